"""``hcloud report``: money, jobs, machines and predictions, from the event log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from hcloud.cli.arguments import moment_of
from hcloud.cli.output import NamedPath, console, format_option, span, table, usd, write_json
from hcloud.cli.waiting_line import working
from hcloud.client.connection import Connection
from hcloud.plots import check_picture, write
from hcloud.report import REPORT_NAMES, Column, ReportTable
from hcloud.report.charts import report_figure

SINCE_HELP = "a duration before now (a bare number is in seconds), or a UTC date or time"
GROUPINGS = ("job", "user", "tag:KEY", "framework", "pool", "market", "day")


@click.command()
@click.argument("name", type=click.Choice(REPORT_NAMES), default="cost")
@click.option("--of", metavar="runtime", help="What accuracy is about: runtime is predicted run times.")
@click.option("--by", metavar="|".join(GROUPINGS), help="What a row stands for.")
@click.option(
    "--idle",
    type=click.Choice(("separate", "share")),
    default="separate",
    show_default=True,
    help="Idle and boot cost of the cost report: in rows of its own, or shared among the jobs.",
)
@click.option("--zone", metavar="ZONE", default="UTC", show_default=True, help="Time zone of days: Europe/Berlin.")
@click.option(
    "--since",
    metavar="7d|TIME",
    help=f"Start of the period: {SINCE_HELP}.",
)
@click.option("--until", metavar="1d|TIME", help="End of the period, as in --since (default: now).")
@click.option(
    "--plot",
    "picture",
    type=NamedPath(path_type=Path, dir_okay=False),
    help="Draw the report to this file (.svg, .png or .pdf); cost with the targets met beside it.",
)
@format_option
def report(
    name: str,
    of: str | None,
    by: str | None,
    idle: str,
    zone: str,
    since: str | None,
    until: str | None,
    picture: Path | None,
    form: str,
) -> None:
    """Report on cost, jobs, machines and predictions, from the event log.

    \b
    cost (the default): money spent on jobs, idle and boot time, and unused commitments;
    performance: queue and run times of jobs, and met targets;
    savings: cost compared with on-demand prices;
    utilisation: how much of the paid machines jobs held and used, and where the money went (--by account: only that);
    commitments: used and unused hours of each commitment, and whether they paid off;
    right-sizing: what programs asked for, what profile and measurements show they need, and what less would save;
    focus: the cost as charges in the FinOps FOCUS 1.2 format (CSV, or JSON with -o json);
    accuracy: errors of predicted speed, tolerated and caused pressures and losses, and how often their limits hold;
    accuracy --of runtime: how often the run times recorded at the start of each job held, by what they were based on;
    decisions: placements compared in hindsight with their alternatives;
    neighbours: how fast programs ran beside which others, from which their slowdowns are learnt;
    run-times: how often runs ended within the limits predicted when their jobs were submitted.

    Cost, performance and savings are grouped --by job (an array is one), task, user, tag:KEY, framework, checkpoint,
    gpus, image (admins only), pool, market or day.
    Right-sizing is grouped --by program, user or job. Accuracy is grouped --by quantity, application, question, type,
    user or day, of runtime --by feature, user, application or day; decisions by job, user, type, constraint or day;
    run-times by history (known runs of the program), user, application or day; neighbours by program. Running machines
    and unfinished jobs count up to now.
    """
    if picture is not None:
        check_picture(picture)
    options = {"since": since, "until": until}
    moments = {each: moment_of(value, f"--{each}", zone) for each, value in options.items() if value is not None}
    client = Connection()
    now = client.get("/v1/status")["now"] if moments else 0.0
    asked = {"of": of, "by": by, "zone": zone if zone != "UTC" else None, "idle": idle if idle != "separate" else None}
    period = {each: at(now) for each, at in moments.items()}
    with working(f"computing the report {name}"):
        document = client.get(f"/v1/reports/{name}", **asked, **period)
    if picture is not None:
        beside = {**asked, **period, "idle": None}
        targets = client.get("/v1/reports/performance", **beside) if name == "cost" else None
        _draw(name, document, targets, picture)
    if form == "json":
        write_json(document)
        return
    report_table = ReportTable.from_json(document)
    if form == "csv" or name == "focus":
        click.echo(report_table.to_csv(), nl=False)
        return
    show(report_table)


def _draw(name: str, document: Mapping[str, Any], targets: Mapping[str, Any] | None, picture: Path) -> None:
    performance = None if targets is None else ReportTable.from_json(targets)
    write(report_figure(name, ReportTable.from_json(document), performance), picture)
    click.echo(f"wrote {picture}", err=True)


def show(report_table: ReportTable) -> None:
    """Print a report: title, table, total and notes.

    A table that is too wide for the terminal is transposed if that makes it narrower: each row becomes a column.
    """
    out = console()
    out.print(report_table.title, style="bold")
    if report_table.rows:
        _show_rows(report_table)
    else:
        out.print(report_table.when_empty)
    for each in report_table.further:
        out.print()
        show(each)


def _show_rows(report_table: ReportTable) -> None:
    out = console()
    headers = [_header(column) for column in report_table.columns]
    rows = [*report_table.rows, *([report_table.total] if report_table.total is not None else [])]
    units = [column.unit for column in report_table.columns]
    cells = [[cell(value, unit) for value, unit in zip(row, units, strict=True)] for row in rows]
    transposed = _transposed(headers, cells)
    if _width(headers, cells) > max(out.width, _width(*transposed)):
        headers, cells = transposed
    out.print(table(headers, cells))
    for note in report_table.notes:
        out.print(note, style="dim")


def _transposed(headers: Sequence[str], cells: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    lines = [[name.removeprefix(">"), *values] for name, *values in zip(headers, *cells, strict=True)]
    return [lines[0][0], *(f">{name}" for name in lines[0][1:])], lines[1:]


def _width(headers: Sequence[str], cells: Sequence[Sequence[str]]) -> int:
    """Return the width of a table with two blanks between columns."""
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
    """Return a value as text, rounded according to its unit; None is empty."""
    if value is None or isinstance(value, str):
        return value or ""
    if unit == "usd":
        return usd(value)
    if unit == "s":
        return f"{value:.1f}s" if value < 10 else span(value)
    if unit == "h":
        return f"{value:.2f}" if value >= 0.1 else f"{value:.4f}"
    return f"{value:.1f}" if unit == "%" else f"{value:g}"
