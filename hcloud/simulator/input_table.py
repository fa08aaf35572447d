"""Input files: text within limits, packed or not, read line by line; all that is wrong with it is reported at once.

A message names each wrong column with its first lines: ``jobs.csv: column run_s: line 3: 'abc' is not a number; line 7:
-1 must be at least 0 (12 more); column vcpus: missing; column cpus: unknown, did you mean 'vcpus'?``
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, cast

from hcloud.core.errors import BadInput
from hcloud.core.units import parse_number, plain, shown
from hcloud.spec.validation import counted, nearest

PACKED = ".gz"
LINES_MOST, LINE_MOST, BYTES_MOST = 10_000_000, 1_000_000, 4 * 2**30
"""Limits of an unpacked file: its lines, the characters of a line and its bytes. A small packed file can hold more."""
DOCUMENT_MOST = 256 * 2**20
"""The largest document in bytes that is read as a whole, unpacked."""
EXAMPLES, SUBJECTS = 2, 12
"""How many lines per column, and how many columns, a message names."""
NAMES_SHOWN = 6
"""How many names a list in a message has."""
TIME_MOST = 40
"""The longest time, in characters."""
LATEST_AT = 7_258_118_400.0
"""The year 2200; a later time is a wrong date."""


# ---------------------------------------------------------------------------------------------------------------- files
@contextmanager
def open_lines(path: Path, wrong_bytes: str = "strict") -> Iterator[Iterator[str]]:
    """Open a text file, unpacked if its name ends in ``.gz``, and yield its lines with their ends.

    ``wrong_bytes``: how bytes that are not UTF-8 are decoded, as in ``bytes.decode``. Reading raises BadInput, one
    sentence, if the file cannot be read or exceeds a limit.
    """
    with _readable(path), _open(path) as stream:
        bounded = io.BufferedReader(_Bounded(stream, BYTES_MOST, path), buffer_size=2**20)
        # Spreadsheets begin a file with a byte order mark.
        text = io.TextIOWrapper(bounded, encoding="utf-8-sig", errors=wrong_bytes, newline="")
        yield _bounded_lines(text, path)


def read_document(path: Path) -> str:
    """Return the whole text of a file, unpacked if its name ends in ``.gz``. Raises BadInput as :func:`open_lines`."""
    with _readable(path), _open(path) as stream:
        return _Bounded(stream, DOCUMENT_MOST, path).readall().decode("utf-8-sig")


def read_json(path: Path) -> Any:
    """Return the value of a JSON file, packed or not. Raises BadInput, one sentence, if it is not valid JSON."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not a number of JSON")

    try:
        return json.loads(read_document(path), parse_constant=refuse)
    except RecursionError:
        raise BadInput(f"{path}: is nested too deeply") from None
    except ValueError as error:
        raise BadInput(f"{path}: is not valid JSON ({error})") from None


def read_objects(
    objects: Sequence[object], columns: Sequence[InputColumn], problems: Problems, *, others: bool = False
) -> Iterator[tuple[int, Row]]:
    """Yield the values of JSON objects, with their places from 1, as :func:`read_rows` does those of lines.

    Numbers are read like their text; other values than text, numbers, true
    and false are problems, but null is like an absent key.
    """
    known, hints = {name for column in columns for name in _names(column)}, _Hints([each.name for each in columns])
    for at, each in enumerate(objects, 1):
        if not isinstance(each, dict):
            problems.add("", f"{shown(each)} is not an object", at)
            continue
        before, values = problems.lines, Row()
        for name in () if others else (name for name in each if name not in known):
            problems.add(f"key {word(name)}", f"unknown{hints.of(name)}", at)
        for column in columns:
            given = next((each[name] for name in _names(column) if each.get(name) is not None), None)
            if given is None:
                if column.required and not column.may_be_empty:
                    problems.add(f"key {' or '.join(_names(column))}", "missing", at)
                continue
            try:
                values[column.name] = column.parse(_text(given))
            except ValueError as error:
                problems.add(f"key {column.name}", str(error), at)
        if problems.lines == before:
            yield at, values


def _names(column: InputColumn) -> tuple[str, ...]:
    return column.name, *column.aliases


def _text(value: object) -> str:
    """Return a JSON value as a table has it. Raises ValueError for lists and objects."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        if isinstance(value, int) and abs(value) >= 10**40:  # its text may be longer than Python converts
            raise ValueError("such a long number cannot be meant")
        return str(value)
    raise ValueError(f"{shown(value)} must be text or a number")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Raise BadInput, one sentence, for errors of reading a file."""
    try:
        yield
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadInput(f"{path}: cannot be unpacked ({error}); pack it with gzip, or not at all") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: is not UTF-8 text (byte {error.object[error.start]:#04x})") from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from error


def _open(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb")) if path.suffix.lower() == PACKED else path.open("rb")


class _Bounded(io.RawIOBase):
    """A stream that raises BadInput once more than ``most`` bytes were read."""

    def __init__(self, stream: IO[bytes], most: int, path: Path) -> None:
        self._stream, self._left, self._most, self._path = stream, most, most, path

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self._stream.read(len(buffer))
        self._left -= len(part)
        if self._left < 0:
            raise BadInput(f"{self._path}: is larger than {self._most / 2**20:.0f} MiB unpacked; split it")
        buffer[: len(part)] = part
        return len(part)


def _bounded_lines(text: io.TextIOWrapper, path: Path) -> Iterator[str]:
    for number in range(1, LINES_MOST + 2):
        line = text.readline(LINE_MOST + 1)
        if not line:
            return
        if len(line) > LINE_MOST:
            raise BadInput(f"{path}: line {number} has more than {LINE_MOST} characters; this is no such file")
        if number > LINES_MOST:
            raise BadInput(f"{path}: has more than {LINES_MOST} lines; split it")
        yield line


# ------------------------------------------------------------------------------------------------------------- problems
@dataclass(slots=True)
class Problems:
    """What is wrong with a file, by column or other subject, as one sentence of bounded length."""

    name: str
    """Of the file."""
    entry: str = "line"
    """What its parts are that are counted from 1, as lines are."""
    _found: dict[str, list[str]] = field(default_factory=dict)
    _lines: dict[str, int] = field(default_factory=dict)
    lines: int = 0
    """How many problems of lines were added."""
    wrong_lines: int = 0
    """How many lines have a problem, if problems are added in order of lines."""
    _last_line: int | str = 0

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, subject: str, what: str, line: int | str | None = None) -> None:
        """Add a problem of a subject such as ``column run_s`` (empty: of the line as a whole)."""
        found = self._found.setdefault(subject, [])
        if line is None:
            found.append(what)
            return
        self.lines += 1
        self.wrong_lines += line != self._last_line
        self._last_line = line
        count = self._lines[subject] = self._lines.get(subject, 0) + 1
        if count <= EXAMPLES:
            found.append(f"{self.entry} {line}: {what}")

    def __str__(self) -> str:
        parts = []
        for subject, found in list(self._found.items())[:SUBJECTS]:
            more = self._lines.get(subject, 0) - EXAMPLES
            rest = f" ({more} more)" if more > 0 else ""
            parts.append((f"{subject}: " if subject else "") + "; ".join(found) + rest)
        if (left := len(self._found) - SUBJECTS) > 0:
            parts.append(f"and {left} more")
        return "; ".join(parts)

    def check(self) -> None:
        """Raise BadInput with all problems if there is any."""
        if self._found:
            raise BadInput(f"{self.name}: {self}")


# --------------------------------------------------------------------------------------------------------------- tables
@dataclass(frozen=True, slots=True, kw_only=True)
class InputColumn:
    """A column of a table."""

    name: str
    parse: Callable[[str], Any] = str
    """Returns the value of a text without spaces around it; raises ValueError, which says what is wrong with it."""
    required: bool = False
    """Whether the table must have it, with a value in each row."""
    may_be_empty: bool = False
    """Whether a required column may lack a value in a row."""
    aliases: tuple[str, ...] = ()
    """Other names that it may have."""


Row = dict[str, Any]
"""Values by :attr:`InputColumn.name`; columns without a value are absent."""


def read_rows(
    lines: Iterable[str],
    columns: Sequence[InputColumn],
    problems: Problems,
    *,
    others: bool = False,
    table: str = "table",
) -> Iterator[tuple[int, Row]]:
    """Yield the rows of a CSV table with their line numbers: a header, then a row per line.

    Lines that start with ``#`` and empty lines are skipped. Rows with a problem are not yielded, and no row is if the
    header has one; yet all lines are read, so that ``problems`` has what is wrong with any of them.

    Args:
        others: Whether the table may have other columns, which are ignored.
        table: What the file is, with its required columns named, for files without any row.
    """
    at = [0]
    rows = csv.reader(_content(lines, at), skipinitialspace=True, strict=True)
    try:
        header = next(rows, None)
        if header is None:
            needed = ",".join(each.name for each in columns if each.required)
            what = f"contains only comments or empty lines; {table}" if at[0] else f"is empty; {table}"
            problems.add("", f"{what} starts with a header, such as {needed}")
            return
        if len(header) == 1 and (by := next((each for each in ";\t|" if each in header[0]), None)):
            problems.add("", f"columns are separated by {by!r}; separate columns and values by commas", at[0])
            return
        parsers = _parsers([each.strip() for each in header], columns, problems, others)
        width, usable = len(header), not problems
        for row in rows:
            values = _values(row, parsers, width, at[0], problems)
            if usable and values is not None:
                yield at[0], values
    except csv.Error as error:
        problems.add("", f"is not valid CSV ({error})", at[0])


def _content(lines: Iterable[str], at: list[int]) -> Iterator[str]:
    """Yield the lines with content; ``at`` gets the number of the last one."""
    for number, line in enumerate(lines, 1):
        at[0] = number
        # Spreadsheets write an empty row as commas.
        if line.strip(", \t\r\n") and not line.startswith("#"):
            yield line


Parser = tuple[int, InputColumn]
"""The place of a column in the header, and the column."""


def _parsers(header: Sequence[str], columns: Sequence[InputColumn], problems: Problems, others: bool) -> list[Parser]:
    """Return where the columns are in the header. Missing, unknown and repeated columns are problems."""
    found, used, missing = [], set[int](), []
    for each in columns:
        places = [place for place, name in enumerate(header) if name in (each.name, *each.aliases)]
        used.update(places)
        if len(places) > 1:
            names = dict.fromkeys(header[place] for place in places)
            problems.add(f"column {' and '.join(map(word, names))}", f"appears {len(places)} times; name it once")
        elif places:
            found.append((places[0], each))
        elif each.required:
            missing.append(each)
    for each in missing:
        also = f" (or {', '.join(each.aliases)})" if each.aliases else ""
        problems.add(f"column {each.name}{also}", "missing")
    if not others:
        absent = [each.name for each in columns if each.name not in header] or [each.name for each in columns]
        hints = _Hints(absent)
        for name in dict.fromkeys(name for place, name in enumerate(header) if place not in used):
            problems.add(f"column {word(name)}", f"unknown{hints.of(name)}")
    return found


class _Hints:
    """Hints for unknown names: the closest known one, or, once, the list of known ones. Only the first few names get
    one, as a message shows no more, and comparing names takes long."""

    def __init__(self, known: Sequence[str]) -> None:
        self._known = known
        self._hints: dict[str, str] = {}
        self._listed = False

    def of(self, name: str) -> str:
        """Return the hint, with a comma before it, or nothing."""
        if name not in self._hints and len(self._hints) < SUBJECTS:
            part_of = [each for each in self._known if len(name) > 2 and each.lower().startswith(name.lower())]
            hint = nearest(name, part_of or self._known) if len(part_of) != 1 else f"did you mean {part_of[0]!r}?"
            is_list = not hint.startswith("did you mean")
            self._hints[name] = "" if is_list and self._listed else f", {hint}"
            self._listed = self._listed or is_list
        return self._hints.get(name, "")


def listed(names: Sequence[str]) -> str:
    """Return the first names from a file, and how many more there are, as a message shows them."""
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(word(each) for each in names[:NAMES_SHOWN]) + more


def word(name: str) -> str:
    """Return a name from a file as a message shows it."""
    return name if name.isprintable() and 0 < len(name) <= 40 else shown(name)


def _values(row: Sequence[str], parsers: Sequence[Parser], width: int, line: int, problems: Problems) -> Row | None:
    """Return the values of a row, or None if it has a problem, which is added."""
    before = problems.lines
    if len(row) > width:
        more = counted(len(row) - width, "value")
        problems.add("", f"{more} more than columns; the first is {shown(row[width])}", line)
        return None
    ended = [column.name for place, column in parsers if place >= len(row) and column.required]
    if ended:
        problems.add("", f"the line ends before {ended[0]}; values are separated by commas", line)
        return None
    values = Row()
    for place, column in parsers:
        text = row[place].strip() if place < len(row) else ""
        if not text:
            if column.required and not column.may_be_empty:
                problems.add(f"column {column.name}", "has no value", line)
            continue
        try:
            values[column.name] = column.parse(text)
        except ValueError as error:
            problems.add(f"column {column.name}", str(error), line)
    return values if problems.lines == before else None


# --------------------------------------------------------------------------------------------------------------- values
def number_within(
    least: float | None = None, most: float | None = None, *, whole: bool = False
) -> Callable[[str], float]:
    """Return a parser of finite numbers in plain digits, within limits."""

    def parse(text: str) -> float:
        value = parse_number(text)
        if value is None:
            raise ValueError(f"{shown(text)} is not a number")
        if (least is not None and value < least) or (most is not None and value > most):
            raise ValueError(f"{value:g} must be {_limits(least, most)}")
        if whole and value != int(value):
            raise ValueError(f"{value:g} must be a whole number")
        return value

    return parse


def _limits(least: float | None, most: float | None) -> str:
    if most is None:
        return f"at least {plain(least or 0.0)}"
    return f"at most {plain(most)}" if least is None else f"from {plain(least)} to {plain(most)}"


def choice(meanings: Mapping[str, Any]) -> Callable[[str], Any]:
    """Return a parser of words, in any case, to their meanings."""

    def parse(text: str) -> Any:
        if text.lower() not in meanings:
            raise ValueError(f"{shown(text)} must be one of {', '.join(meanings)}")
        return meanings[text.lower()]

    return parse


YES_OR_NO = choice({"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False})


def printable(most: int) -> Callable[[str], str]:
    """Return a parser of printable text of at most so many characters."""

    def parse(text: str) -> str:
        if len(text) > most:
            raise ValueError(f"has {len(text)} characters, must have at most {most}")
        if not text.isprintable():
            raise ValueError(f"{shown(text)} must be of printable characters")
        return text

    return parse


def moment(text: str) -> float:
    """Return Unix seconds of an ISO 8601 time (UTC unless it has an offset) or of a number of seconds since 1970.

    Raises ValueError for anything else, and outside the years 1970 to 2199.
    """
    at = parse_number(text) if len(text) <= TIME_MOST else None
    if at is None:
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"{shown(text)} is not a time such as 2026-05-01T18:00:00Z") from None
        at = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    if not 0.0 <= at < LATEST_AT:
        raise ValueError(f"{shown(text)} must be between 1970 and 2199, in seconds if it is a number")
    return at
