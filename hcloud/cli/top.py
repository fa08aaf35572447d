"""``hcloud top``: machines and the queue, drawn anew in place as long as somebody looks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.text import Text

from hcloud.cli.instance_table import memory_in_use
from hcloud.cli.output import FiniteRange, console, span, table, usd
from hcloud.cli.status import troubles, waits_for
from hcloud.client.connection import Connection
from hcloud.core.errors import printable

LIVE_STATES = ("running", "placed", "awaiting_instance", "queued", "preempted", "classified", "profiled", "submitted")
"""In the order in which they are shown."""
RUNNING = ("running", "placed")
MACHINES = ("machine", "state", "type", "market", ">$/h", "vCPUs", "memory", ">age", "jobs")
JOBS = ("job", "name", "user", "state", ">vcpus", ">nodes", ">prio", ">age", ">left", "where / why")
MACHINE_SPARE, JOB_SPARE = ("market", "age", "memory", "$/h"), ("prio", "nodes", "vcpus", "user", "age")
BAR_CELLS, LEAST_ROWS = 8, 3
JOBS_READ = 1000
UNBOUNDED = 1_000_000
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _TO_LINE_END, _TO_SCREEN_END = "\x1b[H", "\x1b[K", "\x1b[J"


@click.command()
@click.option("--once", is_flag=True, help="Print one picture and end; also what happens when output is no terminal.")
@click.option("--interval", type=FiniteRange(min=0.2), default=2.0, show_default=True, help="Seconds between pictures.")
@click.option("-m", "--mine", is_flag=True, help="Only your jobs.")
def top(once: bool, interval: float, mine: bool) -> None:
    """Show machines with what is taken of them, and the jobs that run or wait, until Ctrl-C."""
    client = Connection()
    if once or not sys.stdout.isatty():
        console().print(Group(*_picture(_read(client, mine), UNBOUNDED)))
        return
    client.be_patient()
    notice: list[str] = []
    client.report_waiting = notice.append
    sys.stdout.write(_ENTER)
    try:
        while True:
            found = _read(client, mine)
            if notice:  # it was away, and is back
                notice.clear()
            sys.stdout.write(_frame(found))
            sys.stdout.flush()
            client.pause(interval)
    except KeyboardInterrupt:
        return
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()


def _read(client: Connection, mine: bool) -> dict[str, Any]:
    status = client.get("/v1/status")
    user = status["you"] if mine else None
    return {
        "status": status,
        "jobs": client.get("/v1/jobs", user=user, state=list(LIVE_STATES), limit=JOBS_READ),
        "machines": client.get("/v1/instances"),
    }


def _frame(found: dict[str, Any]) -> str:
    """Return what draws a picture over the one before, cut to the terminal's height."""
    screen = console()
    with screen.capture() as captured:
        screen.print(Group(*_picture(found, screen.height)))
    lines = captured.get().splitlines()[: screen.height - 1]
    return _HOME + "".join(f"{line}{_TO_LINE_END}\n" for line in lines) + _TO_SCREEN_END


def _picture(found: dict[str, Any], height: int) -> list[RenderableType]:
    status, now = found["status"], found["status"]["now"]
    machines = [each for each in found["machines"] if each["terminated_at"] is None]
    jobs = sorted(found["jobs"], key=lambda job: (LIVE_STATES.index(job["state"]), -job["spec"]["priority"]))
    head = [*_head(status, jobs, machines), *(f"TROUBLE  {text}" for text in troubles(status))]
    # Machines get at most half of what two headings and three blank lines leave.
    room = max(2 * LEAST_ROWS, height - len(head) - 6)
    for_machines = min(len(machines), max(LEAST_ROWS, room // 2, room - len(jobs)))
    for_jobs = max(LEAST_ROWS, room - for_machines)
    parts: list[RenderableType] = [Text(printable("\n".join(head)), no_wrap=True), Text("")]
    shown = _cut([_machine_row(each, now) for each in machines], for_machines, len(MACHINES))
    parts.append(table(MACHINES, shown, spare=MACHINE_SPARE) if machines else Text("no machines"))
    rows = _cut([_job_row(each, now) for each in jobs], for_jobs, len(JOBS))
    return [*parts, Text(""), table(JOBS, rows, spare=JOB_SPARE) if jobs else Text("no jobs run or wait")]


def _head(status: dict[str, Any], jobs: Sequence[dict[str, Any]], machines: Sequence[dict[str, Any]]) -> list[str]:
    running = sum(job["state"] in RUNNING for job in jobs)
    spend = status["daemon"].get("spend", {})
    today = f", {usd(spend['day_usd'])} today" if spend.get("day_usd") is not None else ""
    ready = sum(each["state"] == "ready" for each in machines)
    return [
        f"hcloud {status['version']}: {running} running, {len(jobs) - running} waiting; "
        f"{ready} of {len(machines)} machines ready; {usd(status['price_usd_per_h'])}/h{today}"
    ]


def _cut(rows: list[list[Any]], most: int, columns: int) -> list[list[Any]]:
    if len(rows) <= most:
        return rows
    more = len(rows) - most + 1
    return [*rows[: most - 1], [f"... {more} more", *[""] * (columns - 1)]]


def _machine_row(each: dict[str, Any], now: float) -> list[Any]:
    offer, used = each["offer"], each["used"]
    capacity = offer["instance_type"]["capacity"]
    return [
        each["id"],
        each["state"],
        offer["instance_type"]["name"],
        offer["market"],
        f"{offer['price_usd_per_h']:.4f}",
        f"{_bar(used['vcpus'], capacity['vcpus'])} {used['vcpus']:g}/{capacity['vcpus']:g}",
        f"{_bar(used['memory_mib'], capacity['memory_mib'])} {memory_in_use(each)}",
        span(now - each["launched_at"]) if each["launched_at"] is not None else "",
        " ".join(each["jobs"]),
    ]


def _bar(used: float, whole: float) -> str:
    cells = round(BAR_CELLS * min(1.0, used / whole)) if whole else 0
    return "#" * cells + "." * (BAR_CELLS - cells)


def _job_row(job: dict[str, Any], now: float) -> list[Any]:
    spec, deadline_at = job["spec"], job["deadline_at"]
    return [
        job["id"],
        spec["name"],
        spec["user"],
        job["state"],
        f"{spec['resources']['vcpus']:g}",
        spec["nodes"]["count"],
        spec["priority"],
        span(now - job["submitted_at"]),
        span(deadline_at - now) if deadline_at is not None else "",
        waits_for(job),
    ]
