"""Every house rule holds in the whole tree, and every checker is shown to fail on a bad snippet."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.house import rules, tree

Checker = Callable[[str, str], list[str]]


def nothing(found: str) -> None:
    """One violation per line, instead of pytest's shortened comparison."""
    if found:
        pytest.fail(found, pytrace=False)


SLEEPING = {
    "hcloud/core/clock.py": "the one place where programs, and tests, look again and again",
    "hcloud/api/server.py": "the API's loop: is the socket still there, has a listener begun",
    "hcloud/api/unit_logs.py": "the API's loop: output that is not there yet",
    "hcloud/web/live.py": "the pages' clock: one question to the store a second, for all who look",
    "hcloud/engine/link.py": "the worker's loop: between two reports and two tries to connect",
    "hcloud/engine/worker.py": "a machine that is switched off waits for its keepers",
    "hcloud/engine/keeper.py": "a tree that is killed: the kernel tells nobody of the end of others' children",
    "hcloud/engine/limits.py": "a group that is killed or removed: as above",
    "hcloud/profiler/loop.py": "a program of its own that is laid beside jobs, without HCloud",
    "hcloud/profiler/validation.py": "a rate is measured over so much time",
}
"""Where time may simply pass, and why. Elsewhere programs wait for an event, by a clock that tests can move."""
SKIPPING = {
    "tests/machine.py": "what the machine lacks",
    "tests/contract/benches.py": "what an implementation of a port cannot be made to show",
}


DOCUMENTED = ("hcloud", "providers", "lab", "bench", "demo")


def others(named: dict[str, str], *directories: str) -> list[Path]:
    assert all((tree.ROOT / name).is_file() for name in named)
    return [path for path in tree.python_files(*directories) if tree.relative(path) not in named]


def files_by_checker() -> dict[Checker, list[Path]]:
    """The files that each checker is asked of."""
    everything, own = tree.all_python_files(), Path(rules.__file__).resolve().parent
    elsewhere = [path for path in everything if own not in path.parents]
    return {
        rules.too_long_functions: everything,
        rules.too_long_file: everything,
        rules.missing_docstrings: tree.python_files(*DOCUMENTED),
        rules.fields_described_above: tree.python_files(*DOCUMENTED),
        rules.unpickling: tree.python_files("hcloud", "providers", "lab"),
        rules.unbounded_paging: tree.python_files("hcloud", "providers"),
        rules.import_cycles_hidden: tree.python_files(),
        rules.broad_excepts: elsewhere,
        rules.mocks: elsewhere,
        rules.sleeps: others(SLEEPING, "hcloud", "providers", "tests"),
        rules.hidden_defects: others(SKIPPING, "tests"),
        rules.impurities: [path for path in tree.python_files("hcloud") if _room(path).startswith(rules.PURE_ROOMS)],
    }


@pytest.fixture(scope="module")
def violations() -> dict[Checker, str]:
    """What each checker says of all its files; asked file by file, so that each file is parsed once."""
    checkers, found = defaultdict[Path, list[Checker]](list), dict[Checker, list[str]]()
    for checker, paths in files_by_checker().items():
        assert paths
        found[checker] = []
        for path in paths:
            checkers[path].append(checker)
    for path, asked in checkers.items():
        source = path.read_text(encoding="utf-8")
        for checker in asked:
            found[checker] += checker(source, tree.relative(path))
    return {checker: "\n".join(lines) for checker, lines in found.items()}


@pytest.mark.parametrize("checker", [rules.too_long_functions, rules.too_long_file])
def test_nothing_grows_over_its_cap(checker: Checker, violations: dict[Checker, str]) -> None:
    nothing(violations[checker])


def test_public_code_is_documented(violations: dict[Checker, str]) -> None:
    nothing(violations[rules.missing_docstrings])


def test_fields_are_documented_under_themselves(violations: dict[Checker, str]) -> None:
    nothing(violations[rules.fields_described_above])


def test_nothing_is_unpickled(violations: dict[Checker, str]) -> None:
    nothing(violations[rules.unpickling])


def test_lists_are_read_to_a_bound(violations: dict[Checker, str]) -> None:
    nothing(violations[rules.unbounded_paging])


def test_code_is_wired_openly(violations: dict[Checker, str]) -> None:
    nothing(violations[rules.import_cycles_hidden])


@pytest.mark.parametrize("checker", [rules.broad_excepts, rules.mocks])
def test_no_mocks_and_no_silent_catch_alls_anywhere(checker: Checker, violations: dict[Checker, str]) -> None:
    nothing(violations[checker])


def test_time_passes_only_where_nothing_tells_what_is_waited_for(violations: dict[Checker, str]) -> None:
    nothing(violations[rules.sleeps])


def test_no_test_hides_a_defect(violations: dict[Checker, str]) -> None:
    nothing(violations[rules.hidden_defects])


def test_pure_rooms_decide_from_their_arguments_only(violations: dict[Checker, str]) -> None:
    nothing(violations[rules.impurities])


def test_files_are_named_after_what_they_do() -> None:
    assert not [line for path in tree.all_python_files() for line in rules.vague_file_name(path)]


def test_no_file_names_a_registry_a_machine_or_unfinished_work() -> None:
    found = [line for path, text in tree.text_files() for line in rules.forbidden_words(text, tree.relative(path))]
    nothing("\n".join(found))


def _room(path: Path) -> str:
    inside = path.relative_to(tree.ROOT / "hcloud")
    return ".".join(inside.parts).removesuffix(".py")


LONG_FUNCTION = "def long():\n" + "    x = 1\n" * 70
DOCUMENTED_FUNCTION = 'def short():\n    """' + "Says much.\n" * 80 + '    """\n    return 1\n'


@pytest.mark.parametrize(
    ("checker", "bad"),
    [
        (rules.too_long_functions, LONG_FUNCTION),
        (rules.too_long_file, "x = 1\n" * 901),
        (rules.missing_docstrings, "x = 1\n"),
        (rules.missing_docstrings, '"""Module."""\ndef public(): ...\n'),
        (rules.missing_docstrings, '"""Module."""\nclass Public:\n    "Doc."\n    async def method(self): ...\n'),
        (rules.missing_docstrings, '"""Module."""\nif True:\n    def public(): ...\n'),
        (rules.fields_described_above, 'class A:\n    "``a``: one. ``b`` (s): two."\n    a: int\n    b: int\n'),
        (rules.unbounded_paging, "for page in client.get_paginator('x').paginate(): print(page)\n"),
        (rules.unbounded_paging, "token = page.next_page_token\n"),
        (rules.unpickling, "import pickle\n"),
        (rules.unpickling, "from cloudpickle import loads\n"),
        (rules.impurities, "import time\n"),
        (rules.impurities, "from os import environ\n"),
        (rules.impurities, "from hcloud.core.clock import Clock\n"),
        (rules.impurities, "from hcloud.core import clock\n"),
        (rules.impurities, "import datetime\nx = datetime.datetime.now()\n"),
        (rules.impurities, "import numpy\nx = numpy.random.default_rng()\n"),
        (rules.mocks, "from unittest import mock\n"),
        (rules.mocks, "import unittest.mock as m\n"),
        (rules.mocks, "def test_x(mocker): ...\n"),
        (rules.sleeps, "import time\ntime.sleep(0.1)\n"),
        (rules.sleeps, "from time import sleep as pause\npause(1)\n"),
        (rules.sleeps, "import asyncio\nasync def f():\n    await asyncio.sleep(0.1)\n"),
        (rules.hidden_defects, "import pytest\n@pytest.mark.xfail\ndef test_x(): ...\n"),
        (rules.hidden_defects, "import pytest\n@pytest.mark.skip(reason='later')\ndef test_x(): ...\n"),
        (rules.hidden_defects, "import pytest\n@pytest.mark.skipif(SLOW, reason='takes long')\ndef test_x(): ...\n"),
        (rules.hidden_defects, "import pytest\ndef test_x():\n    pytest.skip('later')\n"),
        (rules.broad_excepts, "try:\n    f()\nexcept Exception:\n    pass\n"),
        (rules.broad_excepts, "try:\n    f()\nexcept (OSError, BaseException):  # noqa: BLE001\n    pass\n"),
        (rules.broad_excepts, "try:\n    f()\nexcept:\n    pass\n"),
        (rules.broad_excepts, "try:\n    f()\nexcept Exception:\n    raise\n"),
        (rules.broad_excepts, "try:\n    f()\nexcept Exception:  # one bad job must not end the cycle\n    pass\n"),
        (rules.broad_excepts, "with suppress(OSError, Exception):\n    f()\n"),
        (rules.import_cycles_hidden, "import importlib\nimportlib.import_module('providers.mock')\n"),
        (rules.forbidden_words, "fetch from py" + "pi.org\n"),
        (rules.forbidden_words, "cd /wo" + "rk/main\n"),
        (rules.forbidden_words, "x = '/ro" + "ot/key'\n"),
        (rules.forbidden_words, "# TO" + "DO: later\n"),
    ],
)
def test_checker_sees_what_it_forbids(checker: Checker, bad: str) -> None:
    assert checker(bad, "snippet.py")


@pytest.mark.parametrize(
    ("checker", "good"),
    [
        (rules.too_long_functions, DOCUMENTED_FUNCTION),
        (rules.missing_docstrings, '"""Module."""\ndef _private(): ...\nclass _Own:\n    def _method(self): ...\n'),
        (rules.missing_docstrings, '"""Module."""\ndef _private():\n    def nested(): ...\n'),
        (rules.missing_docstrings, '"""Module."""\nclass _Own:\n    def method(self): ...\n'),
        (rules.sleeps, "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n"),
        (rules.broad_excepts, "try:\n    f()\nexcept Exception:  # half of it must not stay\n    undo()\n    raise\n"),
        (
            rules.broad_excepts,
            "try:\n    f()\nexcept Exception:  # noqa: BLE001 one bad job must not end it\n    log.exception('bad')\n",
        ),
        (rules.forbidden_words, "x = f'{home}/work/unit' + 'var/root/'\n"),
    ],
)
def test_checker_allows_what_is_right(checker: Checker, good: str) -> None:
    assert not checker(good, "snippet.py")


def test_vague_file_name_is_seen() -> None:
    assert rules.vague_file_name(Path("hcloud/utils.py"))
