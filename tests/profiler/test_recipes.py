"""Recipes: all shipped ones are valid, inputs are deterministic, and each loop mode works as documented."""

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from hcloud import config
from hcloud.cli.bootstrap import load_recipes
from hcloud.config import package_data
from hcloud.core.errors import ConfigError, NotFound, UnitRefused
from hcloud.profiler import loop, recipes
from hcloud.profiler.recipes import InputFile, Recipe, content_of, parse_recipes, prepared
from tests.waiting import wait_until

SHIPPED = load_recipes(package_data.path("profiles") / "recipes")
SERVER = """
import socket
server = socket.socket(socket.AF_UNIX)
server.bind("server.sock")
server.listen()
line, _ = server.accept()
while request := line.recv(4096):
    line.sendall(b"answer" * 3000)
"""


def test_there_are_recipes_enough_and_of_many_sorts() -> None:
    assert len(SHIPPED) >= 24
    assert len({recipe.group for recipe in SHIPPED.values()}) >= 10


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_recipe_names_files_that_it_makes(name: str) -> None:
    recipe = SHIPPED[name]
    mode, *file = recipe.loop.split()
    prepared_later = " ".join(recipe.prepare)
    assert all(each in recipe.files or each in prepared_later for each in file), (mode, file)
    for content in recipe.files.values():
        assert content.text or content_of(InputFile(kind=content.kind, mib=0.01))


def test_made_inputs_are_the_same_on_every_machine() -> None:
    digest = hashlib.sha256()
    for kind in ("text", "random", "numbers", "json", "sql-insert", "sql-select", "redis-get", "redis-set", "c"):
        content = content_of(InputFile(kind=kind, mib=0.02))  # type: ignore[arg-type]
        assert content == content_of(InputFile(kind=kind, mib=0.02))  # type: ignore[arg-type]
        assert 0.02 * (1 << 20) <= len(content) < 0.03 * (1 << 20)
        digest.update(content)
    assert digest.hexdigest() == EXPECTED


EXPECTED = "d6569ee8f633e3a985b7e29b90213b8ba9e8ef0c28651a48d7793b61550f23c1"


RIGHT = """\
recipes:
  one:
    group: text
    packages: [coreutils]
    files: {input: {kind: text, mib: 0.1}}
    loop: feed input
    command: [cat]
    unit: MiB
"""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("    group: text", "    groups: text", "r.yaml:3: recipes.one.groups: unknown key; did you mean 'group'?"),
        ("feed input", "feed", "r.yaml:6: recipes.one.loop: must be repeat, or feed, call or exchange and a file's"),
        ("feed input", "call input", "command: is required, except for `call`, which takes none"),
        ("kind: text, mib", "mib", "must be either generated (kind) or literal (text)"),
        ("kind: text", "kind: prose", "kind: must be one of text, random"),
        ("  one:", "  One Two:", "must be a name of small letters, digits, dots, plus signs and dashes, not 'One Two'"),
        ("{input:", "{a/b:", "must be a plain file name other than progress, not 'a/b'"),
        ("{input:", "{progress:", "must be a plain file name other than progress, not 'progress'"),
        ("mib: 0.1", "mib: 0", "mib: must be more than 0, not 0"),
    ],
)
def test_wrong_recipe_is_refused_with_its_line(old: str, new: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    assert old in RIGHT
    path.write_text(RIGHT.replace(old, new))
    (document,) = config.read_documents(path)
    with pytest.raises(ConfigError) as caught:
        parse_recipes(document.value, document.where)
    assert words in str(caught.value)


def test_unknown_recipe_is_named_beside_those_there_are() -> None:
    with pytest.raises(NotFound, match=r"there is no recipe 'gizp'; known recipes are .*gzip"):
        recipes.recipe_named(SHIPPED, "gizp")


def recipe(**changes: object) -> Recipe:
    """A small recipe."""
    given: dict[str, object] = {
        "group": "text",
        "packages": ("coreutils",),
        "files": {"input": InputFile(text="some words\n")},
        "loop": "feed input",
        "command": ("cat",),
        "unit": "MiB",
    }
    return Recipe(**(given | changes))  # type: ignore[arg-type]


def test_work_directory_is_prepared_for_an_ordinary_user_and_gone_afterwards() -> None:
    with prepared(recipe(prepare=("tr a-z A-Z < input > loud", "id -u > who"))) as folder:
        assert (folder / "loud").read_text() == "SOME WORDS\n"
        assert (folder / "who").read_text().strip() != "0"
        assert folder.stat().st_uid == (folder / "who").stat().st_uid
        assert (folder / "loop.py").is_file()
    assert not folder.exists()


def test_preparation_that_fails_says_which_line_and_why() -> None:
    with (
        pytest.raises(UnitRefused, match=r"'echo no such luck >&2; exit 3' failed with exit code 3: no such luck"),
        prepared(recipe(prepare=("echo no such luck >&2; exit 3",))),
    ):
        pytest.fail("it was prepared")


def test_packages_that_are_not_installed_are_named() -> None:
    unknown = recipe(packages=("hcloud-no-such-package",))
    assert "hcloud-no-such-package" in recipes.missing_packages([unknown])


# ----------------------------------------------------------------------------------------------------------- the loop
@contextmanager
def looping(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run the loop in a directory; it and all it started are killed at the end."""
    command = [sys.executable, "-I", str(loop.__file__), *arguments]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def done(folder: Path) -> float:
    """The amount of work in the progress file."""
    try:
        text = (folder / loop.PROGRESS).read_text()
    except FileNotFoundError:
        return 0.0
    return float(text) if text else 0.0


@pytest.mark.parametrize(
    ("files", "arguments"),
    [
        ({"input": "x" * 100_000}, ("feed", "input", "cat")),
        ({}, ("repeat", "true")),
        ({"work.py": "def unit():\n    return 1\n"}, ("call", "work.py")),
        ({"request": "please", "server.py": SERVER}, ("exchange", "request", sys.executable, "server.py")),
    ],
    ids=["feed", "repeat", "call", "exchange"],
)
def test_loop_tells_of_more_and_more_work(files: dict[str, str], arguments: tuple[str, ...], tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with looping(tmp_path, *arguments):
        first = wait_until(lambda: done(tmp_path), timeout_s=60)
        wait_until(lambda: done(tmp_path) > first, timeout_s=60)


def test_loop_ends_when_its_command_fails(tmp_path: Path) -> None:
    with looping(tmp_path, "repeat", "false") as process:
        assert process.wait(60) != 0
        assert process.stderr is not None
        assert "false ended with 1" in process.stderr.read()
