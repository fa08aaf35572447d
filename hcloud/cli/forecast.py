"""``hcloud forecast``: how long a job or program runs, by what similar jobs took."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from hcloud.cli.completing import job_ids
from hcloud.cli.jobs import job_id
from hcloud.cli.output import span, write_json
from hcloud.client.connection import Connection
from hcloud.core.errors import printable
from hcloud.spec.validation import counted

BAR_CHARS = 40


@click.command()
@click.argument("of", metavar="JOB|APPLICATION", shell_complete=job_ids)
@click.option("-o", "--output", "form", type=click.Choice(["table", "json"]), default="table", help="Output format.")
def forecast(of: str, form: str) -> None:
    """Predict how long JOB runs, or jobs of APPLICATION (USER:PROGRAM, such as ann:sort).

    Shows how many similar runs (of the program, or jobs of that name) are remembered, median, 80 and 90 % limits, and
    a chart: how likely the run ends between two times.
    """
    found = Connection().get("/v1/forecast", of=of if ":" in of else job_id(of))
    if form == "json":
        write_json(found)
        return
    for line in _lines(found):
        click.echo(printable(line))


def _lines(found: dict[str, Any]) -> Iterator[str]:
    subject = f"{found['job']}, {found['program']}" if found["job"] else found["program"]
    yield f"{subject}: {counted(found['runs'], 'similar run')} remembered"
    if found["ran_s"]:
        yield f"runs for {_time(found['ran_s'])} already"
    yield (
        f"median {_time(found['median_s'])}, 80 % within {_time(found['within_80_pct_s'])}, "
        f"90 % within {_time(found['within_90_pct_s'])}"
    )
    if found["deadline_probability"] is not None:
        yield f"probability to meet the deadline {found['deadline_probability']:.2f}"
    bars = found["chart"]
    highest = max(bar["probability"] for bar in bars)
    for number, bar in enumerate(bars, 1):
        over = number == len(bars) and len(bars) > 1
        label = f"over {_time(bar['from_s'])}" if over else f"up to {_time(bar['until_s'])}"
        length = round(BAR_CHARS * bar["probability"] / highest)
        yield f"{label:>14} {100 * bar['probability']:5.1f} %  {'#' * length}".rstrip()


def _time(seconds: float) -> str:
    return f"{seconds:.2g}s" if seconds < 10 else span(seconds)
