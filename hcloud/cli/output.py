"""How commands write: tables for people, JSON and CSV for programs; colours only on a terminal and without NO_COLOR."""

from __future__ import annotations

import codecs
import csv
import json
import math
import re
import select
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import IO, Any, TextIO, TypeVar, cast

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hcloud.core.errors import printable
from hcloud.core.price_age import old_prices_warning

F = TypeVar("F", bound=Callable[..., Any])
FORMATS = ("table", "json", "csv")
WIDE = 4096
_PADDING = re.compile(r" +\n")
_WHOLE = re.compile(r"[+-]?[0-9]+")
STATE_STYLES = {
    "succeeded": "green",
    "running": "cyan",
    "ready": "green",
    "failed": "red",
    "cancelled": "yellow",
    "preempted": "yellow",
    "terminating": "yellow",
    "draining": "yellow",
}


def format_option(function: F) -> F:
    """Add ``-o table|json|csv``."""
    return click.option(
        "-o", "--output", "form", type=click.Choice(FORMATS), default="table", show_default=True, help="Output format."
    )(function)


class FiniteRange(click.FloatRange):
    """A number between limits, or any; ``nan`` lies between any two to click, ``inf`` above any, and ``１_0`` is 10."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; fails on one that is none."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        if isinstance(value, str):
            from hcloud.core.units import parse_number  # imports pydantic: only where such an option is given

            if parse_number(value) is not None:
                return number
            self.fail(f"{value!r} is not a number in plain digits.", param, ctx)
        return number

    def _describe_range(self) -> str:
        return super()._describe_range() if _limited(self) else ""


class WholeRange(click.IntRange):
    """A whole number between limits, in plain digits: ``１``, ``1_0`` and `` 5`` are numbers to click."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; fails on one that is none."""
        number = super().convert(value, param, ctx)
        if isinstance(value, str) and not _WHOLE.fullmatch(value):
            self.fail(f"{value!r} is not a whole number in plain digits.", param, ctx)
        return number

    def _describe_range(self) -> str:
        return super()._describe_range() if _limited(self) else ""


def _limited(limits: click.FloatRange | click.IntRange) -> bool:
    """Return whether help has a range to show; without limits click would show ``x<=None``."""
    return limits.min is not None or limits.max is not None


class NamedPath(click.Path):
    """A path that is not empty: "" would be the present directory, as when a variable of a script is not set."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; fails where there is none."""
        if value == "":
            self.fail("is empty; name a path.", param, ctx)
        return super().convert(value, param, ctx)


def console(*, stderr: bool = False) -> Console:
    """Return a console that never wraps or truncates what is piped."""
    stream = sys.stderr if stderr else sys.stdout
    piped = not stream.isatty()
    file = cast(IO[str], _Unpadded(stream)) if piped else stream
    width = WIDE if piped else None
    return _Console(file=file, width=width, highlight=False, markup=False, emoji=False, soft_wrap=True)


class _Console(Console):
    """A console that leaves broken pipes to the command."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError; Rich would end the program with 1, as if it had failed."""
        raise BrokenPipeError


class _Unpadded:
    """A stream without the blanks that pad the lines of tables."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write without the padding; return the length of ``text`` as it came, which is what writers check."""
        self._stream.write(_PADDING.sub("\n", text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def write_json(value: Any) -> None:
    """Write one JSON document."""
    click.echo(json_text(value, indent=2))


def json_text(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON, with letters escaped where standard output does not take all of them."""
    whole = codecs.lookup(sys.stdout.encoding).name.startswith("utf")
    return json.dumps(value, indent=indent, ensure_ascii=not whole)


def write_csv(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Write a header and rows; an absent value is an empty field."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)


def table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None = None, spare: Sequence[str] = ()
) -> Table:
    """Return a table without lines. Columns with a name that begins with ``>`` are right-aligned.

    On a terminal too narrow for all of it, ``spare`` columns are left out, the first named first.
    """
    columns, rows = _narrowed(columns, rows, spare, console().width)
    made = Table(box=None, title=title, title_justify="left", header_style="bold", pad_edge=False)
    for column in columns:
        made.add_column(
            column.removeprefix(">"), justify="right" if column.startswith(">") else "left", overflow="fold"
        )
    for row in rows:
        made.add_row(*(_cell(value) for value in row))
    return made


def _narrowed(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], spare: Sequence[str], width: int
) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
    for name in spare:
        cells = [columns, *rows]
        longest = [max(len(str(row[place]).removeprefix(">")) for row in cells) for place in range(len(columns))]
        if sum(longest) + 2 * len(columns) <= width:
            break
        out = [column.removeprefix(">") for column in columns].index(name)
        columns = [*columns[:out], *columns[out + 1 :]]
        rows = [[*row[:out], *row[out + 1 :]] for row in rows]
    return columns, rows


def _cell(value: Any) -> Text:
    text = "-" if value is None or value == "" else printable(str(value))
    return Text(text, style=STATE_STYLES.get(text, ""))


def write_rows(
    form: str,
    documents: Sequence[Any],
    columns: Sequence[str],
    row: Callable[[Any], Sequence[Any]],
    empty: str = "",
    spare: Sequence[str] = (),
) -> None:
    """Write documents in the form asked for: JSON as they are, tables and CSV by ``row``."""
    if form == "json":
        write_json(list(documents))
    elif form == "csv":
        write_csv([name.removeprefix(">") for name in columns], [row(each) for each in documents])
    elif documents or not empty:
        console().print(table(columns, [row(each) for each in documents], spare=spare))
    else:
        click.echo(empty)


def stop_when_unread() -> None:
    """Raise BrokenPipeError when the program reading our output has gone, also while there is nothing to write."""
    watched = select.poll()
    try:
        watched.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):  # captured, or closed: writing will tell
        return
    if any(event & select.POLLERR for _, event in watched.poll(0)):
        raise BrokenPipeError


def when(at: float | None) -> str:
    """Return a Unix time as local date and time, or the empty text."""
    if at is None:
        return ""
    return datetime.fromtimestamp(at, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def span(seconds: float | None) -> str:
    """Return a duration as people say it: 12s, 3m05s, 2h10m, 4d03h."""
    if seconds is None:
        return ""
    whole = round(abs(seconds))
    sign = "-" if seconds < 0 and whole else ""
    if whole < 60:
        return f"{sign}{whole}s"
    if whole < 3600:
        return f"{sign}{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{sign}{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{sign}{whole // 86400}d{whole % 86400 // 3600:02d}h"


def price_age(age_s: float) -> str:
    """Return the age of prices as in ``3d02h old``, with a warning past 30 days."""
    warning = old_prices_warning(age_s)
    return f"{span(age_s)} old{warning}"


def usd(value: float | None) -> str:
    """Return money: two decimals from a dollar on, else four; of less than $0.0001 the first two digits."""
    if value is None:
        return ""
    sign, amount = "-" if value < 0 else "", abs(value)
    if amount < 1e-9:  # also what rounding left over
        return "$0.00"
    decimals = 2 if amount >= 1 else 4 if amount >= 1e-4 else 1 - math.floor(math.log10(amount))
    return f"{sign}${amount:.{decimals}f}"


def gib(amount: float) -> str:
    """Return GiB as people write them, and less than one as MiB."""
    return f"{round(amount, 2):.10g} GiB" if amount >= 1 else f"{round(amount * 1024, 2):.10g} MiB"


def confirmed(question: str, yes: bool) -> bool:
    """Ask on a terminal; without one, or with ``yes``, the answer is yes."""
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    return click.confirm(question, default=True, err=True)
