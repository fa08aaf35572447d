"""Recipes: how to run a reference program, so that its measurement can be repeated (``profiles/recipes``).

A recipe names Debian packages, creates its inputs from a seed, and repeats a small unit of work forever
(``hcloud.profiler.loop``), so that one run can be measured in windows.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from hcloud.core.errors import NotFound, UnitRefused
from hcloud.core.units import NonEmptyText, Number, PositiveMib, Text, shown
from hcloud.profiler import loop
from hcloud.profiler.sandbox import NOBODY_UID
from hcloud.profiler.scratch import scratch
from hcloud.spec.validation import AtKey, KeyPath, key_path, parse

_STRICT = ConfigDict(extra="forbid")
_LOOP = re.compile(r"(repeat)|(feed|call|exchange) ([A-Za-z0-9._-]+)")
PREPARE_S = 60.0
SEED = 20
MIB = 1 << 20


def _check_loop(text: str) -> str:
    if not _LOOP.fullmatch(text):
        raise ValueError(f"must be repeat, or feed, call or exchange and a file's name, not {shown(text)}")
    return text


def _check_name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]{0,39}", text):
        raise ValueError(f"must be a name of small letters, digits, dots, plus signs and dashes, not {shown(text)}")
    return text


def _check_file_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,62}", text) or text == loop.PROGRESS:
        raise ValueError(f"must be a plain file name other than {loop.PROGRESS}, not {shown(text)}")
    return text


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class InputFile:
    """A file created before the program runs: ``mib`` of a ``kind`` from a fixed seed, or the ``text`` itself."""

    kind: Literal[
        "text", "random", "numbers", "json", "sql-insert", "sql-select", "redis-get", "redis-set", "c", ""
    ] = ""
    """Kind of generated content."""
    mib: Annotated[Number, Field(gt=0, le=1024)] = 1.0
    """Approximate size."""
    text: Text = ""
    """Literal content, if it is not generated."""

    def __post_init__(self) -> None:
        """Raise AtKey unless exactly one of ``kind`` and ``text`` is given."""
        if bool(self.kind) == bool(self.text):
            raise AtKey("kind", "must be either generated (kind) or literal (text)")


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Recipe:
    """How to run one reference program."""

    group: NonEmptyText
    """Kind of program."""
    program: Text = ""
    """Shared by several recipes of one program; empty: the recipe's own name."""
    packages: tuple[NonEmptyText, ...]
    """Required Debian packages."""
    files: Mapping[Annotated[NonEmptyText, AfterValidator(_check_file_name)], InputFile] = field(default_factory=dict)
    """Inputs, by file name."""
    prepare: tuple[NonEmptyText, ...] = ()
    """Shell lines run once, after the files are created."""
    loop: Annotated[NonEmptyText, AfterValidator(_check_loop)]
    """How a unit of work is repeated: `repeat`, `feed FILE`, `call FILE` or `exchange FILE`."""
    command: tuple[Text, ...] = ()
    """The program and its arguments."""
    memory_mib: PositiveMib = 256
    """Memory required."""
    unit: NonEmptyText
    """Unit of work; performance is this many per second."""

    def __post_init__(self) -> None:
        """Raise AtKey for a command if the loop takes none, or for a missing one."""
        if bool(self.command) == self.loop.startswith("call "):
            raise AtKey("command", "is required, except for `call`, which takes none")

    @property
    def loop_command(self) -> tuple[str, ...]:
        """The command that runs the loop in a prepared directory."""
        return ("python3", "-I", "loop.py", *self.loop.split(), *self.command)


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class _RecipeFile:
    recipes: Mapping[Annotated[str, AfterValidator(_check_name)], Recipe]


def parse_recipes(mapping: object, locate: Callable[[KeyPath], str] = key_path) -> Mapping[str, Recipe]:
    """Return the recipes of one file by name. Raises ConfigError, naming file, line and key."""
    return parse(_RecipeFile, mapping, locate).recipes


def recipe_named(recipes: Mapping[str, Recipe], name: str) -> Recipe:
    """Return one recipe. Raises NotFound, listing the known names."""
    if name not in recipes:
        raise NotFound(f"there is no recipe {name!r}; known recipes are {', '.join(sorted(recipes))}")
    return recipes[name]


# ----------------------------------------------------------------------------------------------------------- packages
def package_versions(packages: Iterable[str]) -> Mapping[str, str]:
    """Return the versions of the installed packages among these. Raises UnitRefused without dpkg."""
    wanted = sorted(set(packages))
    if shutil.which("dpkg-query") is None:
        raise UnitRefused("recipes need Debian packages, and dpkg-query is not installed on this machine")
    command = ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package} ${Version}\n", *wanted]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = (line.split() for line in listed.splitlines())
    return {words[1]: words[2] for words in found if len(words) == 3 and words[0] == "installed"}


def missing_packages(recipes: Iterable[Recipe]) -> tuple[str, ...]:
    """Return the packages that must be installed before these recipes can be measured."""
    wanted = {package for recipe in recipes for package in recipe.packages} | {"stress-ng"}
    return tuple(sorted(wanted - set(package_versions(wanted))))


# ------------------------------------------------------------------------------------------------------------- inputs
@contextmanager
def prepared(recipe: Recipe) -> Iterator[Path]:
    """Create a recipe's work directory, owned by an unprivileged user; it is removed after the block.

    Raises UnitRefused if a line of ``prepare`` fails; the message ends with its output.
    """
    with scratch("recipe") as folder:
        write_inputs(recipe, folder)
        own = os.geteuid() == 0
        for path in (folder, *folder.iterdir()):
            path.chmod(0o755 if path.is_dir() else 0o644)
            if own:
                os.chown(path, NOBODY_UID, NOBODY_UID)
        for line in recipe.prepare:
            _run(line, folder, own)
        yield folder


def write_inputs(recipe: Recipe, folder: Path) -> None:
    """Write a recipe's input files into a directory; its ``prepare`` lines are not run."""
    for file, content in recipe.files.items():
        (folder / file).write_bytes(content_of(content))
    shutil.copyfile(loop.__file__, folder / "loop.py")


def _run(line: str, folder: Path, own: bool) -> None:
    environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(folder), "LANG": "C.UTF-8", "USER": "job"}
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PREPARE_S,
        check=False,
        user=NOBODY_UID if own else None,
        group=NOBODY_UID if own else None,
        extra_groups=[] if own else None,
    )
    if done.returncode != 0:
        output = done.stderr.strip().rpartition("\n")[2] or "no output"
        raise UnitRefused(f"a recipe cannot be prepared: {line!r} failed with exit code {done.returncode}: {output}")


def content_of(file: InputFile) -> bytes:
    """Return a file's content; identical on every machine."""
    if not file.kind:
        return file.text.encode()
    rng, size = random.Random(SEED), round(file.mib * MIB)
    if file.kind == "random":
        return rng.randbytes(size)
    parts, length = [], 0
    for line in _LINES[file.kind](rng):
        parts.append(line)
        length += len(line)
        if length >= size:
            break
    return "".join(parts).encode()


def _words(rng: random.Random) -> Sequence[str]:
    letters = "etaoinshrdlucmfwypvbgk"
    return ["".join(rng.choices(letters, range(len(letters), 0, -1), k=rng.randint(2, 9))) for _ in range(4000)]


def _text(rng: random.Random) -> Iterator[str]:
    """Yield lines of made-up words with word frequencies like those of a language."""
    words = _words(rng)
    often = [1.0 / (rank + 2) for rank in range(len(words))]
    while True:
        chosen = rng.choices(words, often, k=1000)
        for at in range(0, 1000, 10):
            yield " ".join(chosen[at : at + 10]) + "\n"


def _numbers(rng: random.Random) -> Iterator[str]:
    while True:
        yield f"{rng.randrange(10**9)}\n"


def _json(rng: random.Random) -> Iterator[str]:
    number = 0
    while True:
        values = ",".join(str(rng.randrange(1000)) for _ in range(6))
        yield f'{{"id":{number},"name":"item {number}","values":[{values}],"nested":{{"on":true,"of":null}}}}\n'
        number += 1


def _sql_insert(rng: random.Random) -> Iterator[str]:
    while True:
        yield "BEGIN;\n"
        for _ in range(50):
            yield f"INSERT INTO item VALUES ({rng.randrange(20000)}, 'item {rng.randrange(10**9)}');\n"
        yield "COMMIT;\n"


def _sql_select(rng: random.Random) -> Iterator[str]:
    while True:
        first = rng.randrange(20000)
        yield f"SELECT count(*), max(name) FROM item WHERE id BETWEEN {first} AND {first + 20};\n"


def _redis(verb: str) -> Callable[[random.Random], Iterator[str]]:
    # Redis's own protocol, over 1,000 keys; values are 64 bytes.
    def lines(rng: random.Random) -> Iterator[str]:
        while True:
            key, tail = f"key:{rng.randrange(1000):06d}", ""
            if verb == "SET":
                tail = f"$64\r\n{rng.randrange(10**9):064d}\r\n"
            yield f"*{3 if tail else 2}\r\n$3\r\n{verb}\r\n${len(key)}\r\n{key}\r\n{tail}"

    return lines


def _c(rng: random.Random) -> Iterator[str]:
    number = 0
    while True:
        factor = rng.randrange(3, 99)
        yield (
            f"int part_{number}(int *values, int count) {{\n    int sum = {number};\n"
            f"    for (int at = 0; at < count; at++)\n        sum += values[at] * {factor} "
            f"^ (sum >> {number % 7 + 1});\n    return sum;\n}}\n"
        )
        number += 1


_LINES: Mapping[str, Callable[[random.Random], Iterator[str]]] = {
    "text": _text,
    "numbers": _numbers,
    "json": _json,
    "sql-insert": _sql_insert,
    "sql-select": _sql_select,
    "redis-get": _redis("GET"),
    "redis-set": _redis("SET"),
    "c": _c,
}
