"""What counts as a helper, a word or a class that is defined twice."""

from pathlib import Path

import pytest

from bench.house import count, main

CODE = '''"""Who is told what: nobody."""


class Host:
    """A host."""

    def used_twice(self):
        return _once() + self.used_twice() + self.used_twice()


def _once():
    """Tell a number."""
    return 1


def _tested():
    return 2


def _long():
    a = 1
    b = 2
    c = 3
    d = 4
    e = 5
    f = 6
    return a + b + c + d + e + f


x = f"{_in_text()}" + str(_tested()) + str(_long())


def _in_text():
    return 3


def outer():
    def nested():
        return 4

    return nested() + outer() + outer()
'''


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in {
        "hcloud/a.py": CODE,
        "hcloud/b.py": '"""Two."""\n\n\nclass Host:\n    """Another."""\n',
        "tests/test_a.py": "from hcloud.a import _tested\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_short_helpers_with_one_caller_and_no_test_are_counted(checkout: Path) -> None:
    house = count(checkout)
    assert sorted(each.name for each in house.helpers) == ["_in_text", "_once", "nested"]
    assert house.functions == 7


def test_words_and_classes_are_counted_in_docstrings_and_files(checkout: Path) -> None:
    house = count(checkout)
    assert (house.verbs, house.persons) == (2, 2)
    assert house.classes_twice == {"Host": ["hcloud/a.py:4", "hcloud/b.py:4"]}
    assert count(checkout, below="hcloud/b").words == 2


def test_the_figures_are_printed_with_their_goals(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--room", "hcloud/a", "--list"], checkout)
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition("(")[2] for line in lines[:4]] == ["below 0.3)", "below 0.4)", "0)", "below 12)"]
