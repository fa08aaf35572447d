"""Recipes: how a reference program is set to work, so that it can be measured again (``profiles/recipes``).

A recipe names Debian packages, makes its inputs from a seed, and repeats a small piece of work without end
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
    """A file made before the program runs: ``mib`` of a ``kind`` from a fixed seed, or the ``text`` itself."""

    kind: Literal[
        "text", "random", "numbers", "json", "sql-insert", "sql-select", "redis-get", "redis-set", "c", ""
    ] = ""
    """What to make."""
    mib: Annotated[Number, Field(gt=0, le=1024)] = 1.0
    """About how much of it."""
    text: Text = ""
    """The content, where it is not made."""

    def __post_init__(self) -> None:
        """Raise AtKey unless exactly one of ``kind`` and ``text`` is there."""
        if bool(self.kind) == bool(self.text):
            raise AtKey("kind", "a file is either made (kind) or given (text)")


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Recipe:
    """One reference program at work."""

    group: NonEmptyText
    """What sort of program it is."""
    program: Text = ""
    """What several recipes of one program share; empty: the recipe's own name."""
    packages: tuple[NonEmptyText, ...]
    """The Debian packages it needs."""
    files: Mapping[Annotated[NonEmptyText, AfterValidator(_check_file_name)], InputFile] = field(default_factory=dict)
    """Its inputs, by file name."""
    prepare: tuple[NonEmptyText, ...] = ()
    """Shell lines that are run once, after the files are made."""
    loop: Annotated[NonEmptyText, AfterValidator(_check_loop)]
    """How a small piece of work is repeated: `repeat`, `feed FILE`, `call FILE` or `exchange FILE`."""
    command: tuple[Text, ...] = ()
    """The program and its arguments."""
    memory_mib: PositiveMib = 256
    """The memory it needs."""
    unit: NonEmptyText
    """What is counted; performance is so many of it per second."""

    def __post_init__(self) -> None:
        """Raise AtKey for a command where the loop takes none, or none where it takes one."""
        if bool(self.command) == self.loop.startswith("call "):
            raise AtKey("command", "is what is fed, repeated or asked; `call` has none, the others have one")

    @property
    def loop_command(self) -> tuple[str, ...]:
        """The command that does its work in a prepared directory."""
        return ("python3", "-I", "loop.py", *self.loop.split(), *self.command)


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class _RecipeFile:
    recipes: Mapping[Annotated[str, AfterValidator(_check_name)], Recipe]


def parse_recipes(mapping: object, locate: Callable[[KeyPath], str] = key_path) -> Mapping[str, Recipe]:
    """Return the recipes of one file by name. Raises ConfigError, naming file, line and key."""
    return parse(_RecipeFile, mapping, locate).recipes


def recipe_named(recipes: Mapping[str, Recipe], name: str) -> Recipe:
    """Return one recipe. Raises NotFound, which lists what there is."""
    if name not in recipes:
        raise NotFound(f"there is no recipe {name!r}; there are {', '.join(sorted(recipes))}")
    return recipes[name]


# ----------------------------------------------------------------------------------------------------------- packages
def package_versions(packages: Iterable[str]) -> Mapping[str, str]:
    """Return the versions of those Debian packages that are installed. Raises UnitRefused where dpkg is missing."""
    wanted = sorted(set(packages))
    if shutil.which("dpkg-query") is None:
        raise UnitRefused("recipes name Debian packages, and dpkg-query is not on this machine")
    command = ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package} ${Version}\n", *wanted]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = (line.split() for line in listed.splitlines())
    return {words[1]: words[2] for words in found if len(words) == 3 and words[0] == "installed"}


def missing_packages(recipes: Iterable[Recipe]) -> tuple[str, ...]:
    """Return the packages that have to be installed before these recipes can be measured."""
    wanted = {package for recipe in recipes for package in recipe.packages} | {"stress-ng"}
    return tuple(sorted(wanted - set(package_versions(wanted))))


# ------------------------------------------------------------------------------------------------------------- inputs
@contextmanager
def prepared(recipe: Recipe) -> Iterator[Path]:
    """Make a recipe's work directory, owned by an ordinary user; it is gone after the block.

    Raises UnitRefused where a line of ``prepare`` fails; the sentence ends with what it wrote.
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
    """Write what a recipe works on into a directory; its ``prepare`` lines are still to be run there."""
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
        said = done.stderr.strip().rpartition("\n")[2] or "nothing"
        raise UnitRefused(f"a recipe cannot be prepared: {line!r} ended with {done.returncode} and said: {said}")


def content_of(file: InputFile) -> bytes:
    """Return a file's content; the same on every machine."""
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
    """Yield lines of made-up words, common ones often, as in a language."""
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
    def lines(rng: random.Random) -> Iterator[str]:
        """Yield commands in Redis's own protocol, without end, over 1,000 keys; values are 64 bytes."""
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
