"""``hcloud report``: cost, performance, savings, utilisation, accuracy, decisions."""

from __future__ import annotations

from collections.abc import Sequence

import click

from hcloud.cli.arguments import moment_of
from hcloud.cli.client import Client
from hcloud.cli.output import console, format_option, span, table, usd, write_json
from hcloud.report import REPORT_NAMES, Column, ReportTable

GROUPINGS = ("job", "user", "tag:KEY", "pool", "market", "day")


@click.command()
@click.argument("name", type=click.Choice(REPORT_NAMES), default="cost")
@click.option("--by", metavar="|".join(GROUPINGS), help="What a row stands for (days are UTC).")
@click.option(
    "--since", metavar="7d|TIME", help="Only from then on: so long ago (a bare number: seconds), or a UTC date or time."
)
@click.option("--until", metavar="1d|TIME", help="Only until then.")
@format_option
def report(name: str, by: str | None, since: str | None, until: str | None, form: str) -> None:
    """Report what was spent, how jobs fared, what was saved against all on demand, how machines and commitments
    were used, how far predictions of performance were from what was measured, or what other placements
    would have meant.

    NAME is cost (the default), performance, savings, utilisation, commitments, accuracy (--by application, question,
    type, user or day) or decisions (--by job, user, type, constraint or day). Live machines and jobs count up to now.
    """
    asked = {"since": since, "until": until}
    moments = {each: moment_of(given, f"--{each}") for each, given in asked.items() if given is not None}
    client = Client()
    now = client.get("/v1/status")["now"] if moments else 0.0
    found = client.get(f"/v1/reports/{name}", by=by, **{each: at(now) for each, at in moments.items()})
    if form == "json":
        write_json(found)
        return
    made = ReportTable.from_json(found)
    if form == "csv":
        click.echo(made.to_csv(), nl=False)
        return
    show(made)


def show(made: ReportTable) -> None:
    """Write a report for people: title, table, total, notes. On a terminal too narrow for it a table that is wider than
    long is turned: each row becomes a column."""
    out = console()
    out.print(made.title, style="bold")
    if not made.rows:
        out.print("nothing happened in that time")
        return
    headers = [_header(column) for column in made.columns]
    rows = [*made.rows, *([made.total] if made.total is not None else [])]
    units = [column.unit for column in made.columns]
    cells = [[cell(value, unit) for value, unit in zip(row, units, strict=True)] for row in rows]
    turned = _turned(headers, cells)
    if _width(headers, cells) > max(out.width, _width(*turned)):
        headers, cells = turned
    out.print(table(headers, cells))
    for note in made.notes:
        out.print(note, style="dim")


def _turned(headers: Sequence[str], cells: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    down = [[name.removeprefix(">"), *values] for name, *values in zip(headers, *cells, strict=True)]
    return [down[0][0], *(f">{name}" for name in down[0][1:])], down[1:]


def _width(headers: Sequence[str], cells: Sequence[Sequence[str]]) -> int:
    """Return how wide a table is, with two blanks between columns."""
    longest = [max(len(each) for each in column) for column in zip(headers, *cells, strict=True)]
    return sum(longest) + 2 * (len(longest) - 1)


def _header(column: Column) -> str:
    shown = column.label or (column.name.rpartition("_")[0] if column.unit in ("s", "%", "usd") else column.name)
    number = column.unit or column.name in (
        "jobs",
        "live",
        "succeeded",
        "failed",
        "cancelled",
        "attempts",
        "with_target",
        "predictions",
        "best_taken",
        "target_avoidable",
    )
    return (">" if number else "") + shown + (" %" if column.unit == "%" else "")


def cell(value: str | float | None, unit: str) -> str:
    """Return a value as people write it, with its unit."""
    if value is None or isinstance(value, str):
        return value or ""
    if unit == "usd":
        return usd(value)
    if unit == "s":
        return f"{value:.1f}s" if value < 10 else span(value)
    if unit == "h":
        return f"{value:.2f}" if value >= 0.1 else f"{value:.4f}"
    return f"{value:.1f}" if unit == "%" else f"{value:g}"
