"""``hcloud status`` and ``hcloud queue``: the daemon, jobs and machines at a glance, once or continuously."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, repeat
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.text import Text

from hcloud.cli.completing import job_ids
from hcloud.cli.instance_table import INSTANCE_COLUMNS, INSTANCE_SPARE, instance_row
from hcloud.cli.jobs import ENDED, TASKS_AT_ONCE, count_words, job_detail, job_id, shown_id, target_text
from hcloud.cli.output import (
    FiniteRange,
    WholeRange,
    console,
    format_option,
    price_age,
    span,
    table,
    usd,
    write_json,
    write_rows,
)
from hcloud.client.connection import Connection
from hcloud.core.errors import BadInput, printable
from hcloud.core.price_age import PRICES_OLD_S

JOB_COLUMNS = ("job", "name", "user", "state", "target", ">vcpus", ">nodes", ">age", ">left", "where")
JOB_SPARE = ("nodes", "vcpus", "user", "age", "target", "where")
JOB_CSV = ("job", "name", "user", "state", "target", "vcpus", "memory_mib", "nodes", "submitted_at", "deadline_at",
           "finished_at", "attempts", "wait_code", "wait_text", "outcome")  # fmt: skip


DETAILED_MOST = 3
"""More tasks of an array are shown as a table."""
JOB_STATES = (
    "submitted", "profiled", "classified", "queued", "awaiting_instance", "placed", "running", "preempted", "succeeded",
    "failed", "cancelled",
)  # fmt: skip
"""The values of ``JobState``, which this command does without importing."""


def _tag(_context: click.Context, _option: click.Parameter, tag: str | None) -> str | None:
    if tag is not None and not tag.partition("=")[0]:
        raise BadInput(f"--tag {tag}: must have the form KEY or KEY=VALUE")
    return tag


def _listing_options(function: Callable[..., None]) -> Callable[..., None]:
    for option in (
        format_option,
        click.option("--watch", is_flag=True, help="Redraw until interrupted."),
        click.option(
            "--interval", type=FiniteRange(min=0.2), default=2.0, help="Seconds between redraws with --watch."
        ),
        click.option(
            "-n",
            "--limit",
            type=WholeRange(1, 10_000),
            default=50,
            show_default=True,
            help="Show at most N jobs.",
            metavar="N",
        ),
        click.option("--tag", callback=_tag, help="Only jobs with this tag: KEY or KEY=VALUE."),
        click.option(
            "-s", "--state", type=click.Choice(JOB_STATES), multiple=True, help="Only jobs in this state (repeatable)."
        ),
        click.option("-u", "--all-users", is_flag=True, help="Jobs of all users, not only yours."),
    ):
        function = option(function)
    return function


@click.command()
@click.argument("jobs", nargs=-1, shell_complete=job_ids)
@_listing_options
def status(
    jobs: tuple[str, ...],
    all_users: bool,
    state: tuple[str, ...],
    tag: str | None,
    limit: int,
    watch: bool,
    interval: float,
    form: str,
) -> None:
    """Show the daemon, your newest jobs and the machines; or everything about JOBS.

    An array is one line with the counts of its tasks. JOB[3-9] shows tasks; JOB with --state those in that state.
    """
    client = Connection()
    ids = [job_id(each) for each in jobs]
    choice = {"state": list(state) or None, "tag": tag, "limit": limit}

    def read() -> dict[str, Any]:
        return _picture(client, ids, all_users, choice)

    if watch:
        _watch(client, form, interval, lambda: _shown(read(), bool(ids)))
        return
    picture = read()
    if form == "json":
        write_json(picture["jobs"] if ids else picture)
    elif form == "csv":
        write_rows("csv", picture["jobs"], JOB_CSV, _csv_row)
    else:
        console().print(_shown(picture, bool(ids)))


@click.command()
@_listing_options
def queue(
    all_users: bool,
    state: tuple[str, ...],
    tag: str | None,
    limit: int,
    watch: bool,
    interval: float,
    form: str,
) -> None:
    """Show your newest jobs."""
    client = Connection()
    choice = {"state": list(state) or None, "tag": tag, "limit": limit}

    def read() -> dict[str, Any]:
        return _picture(client, [], all_users, choice)

    if watch:
        _watch(client, form, interval, lambda: _job_table(read()))
        return
    picture = read()
    if form == "table":
        console().print(_job_table(picture))
    else:
        write_rows(form, picture["jobs"], JOB_CSV, _csv_row)


def _picture(client: Connection, ids: list[str], all_users: bool, choice: dict[str, Any]) -> dict[str, Any]:
    daemon = client.get("/v1/status")
    if ids:
        from hcloud.cli.follow import last_lines

        jobs = [job for each in ids for job in _jobs_of(client, each, choice)]
        lines = {job["id"]: last_lines(client, job) for job in jobs}
        return {"daemon": daemon, "jobs": jobs, "instances": [], "last_lines": lines}
    user = None if all_users else daemon["you"]
    return {
        "daemon": daemon,
        "jobs": client.get("/v1/jobs", user=user, **choice),
        "instances": client.get("/v1/instances"),
    }


def _jobs_of(client: Connection, reference: str, choice: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a job; of an array with --state its tasks in these states, and the tasks of ``job-7[3-9]``."""
    if "[" not in reference:
        job: dict[str, Any] = client.get(f"/v1/jobs/{reference}")
        if job["tasks"] is None or not choice["state"]:
            return [job]
    limit = min(choice["limit"], TASKS_AT_ONCE)
    tasks: list[dict[str, Any]] = client.get(f"/v1/jobs/{reference}/tasks", state=choice["state"], limit=limit)
    return tasks


def _watch(client: Connection, form: str, interval_s: float, shown: Callable[[], RenderableType]) -> None:
    """Redraw until interrupted; a restarting daemon is waited for."""
    if form != "table":
        raise BadInput("--watch draws tables; leave -o out, or call repeatedly")
    from rich.live import Live

    client.be_patient()
    screen = console()
    try:
        if not screen.is_terminal:  # a pipe gets one picture after the other
            while True:
                screen.print(shown())
                screen.file.flush()
                client.pause(interval_s)
        with Live(shown(), console=screen, auto_refresh=False, screen=True) as live:
            # What is written beside a picture on a screen of its own is lost: it stands above the picture.
            client.report_waiting = lambda line: live.update(
                Group(Text(line, style="bold"), live.get_renderable()), refresh=True
            )
            while True:
                client.pause(interval_s)
                live.update(shown(), refresh=True)
    except KeyboardInterrupt:
        return


def _shown(picture: dict[str, Any], in_detail: bool) -> RenderableType:
    now = picture["daemon"]["now"]
    if in_detail and all(job["task"] is not None for job in picture["jobs"]) and len(picture["jobs"]) > DETAILED_MOST:
        return _job_table(picture)
    if in_detail:
        return Group(*(_detail_table(job, picture["last_lines"][job["id"]], now) for job in picture["jobs"]))
    parts: list[RenderableType] = [Text("\n".join(daemon_lines(picture["daemon"]))), Text(""), _job_table(picture)]
    if picture["instances"]:
        rows = [instance_row(each, now) for each in picture["instances"]]
        parts += [Text(""), table(INSTANCE_COLUMNS, rows, spare=INSTANCE_SPARE)]
    return Group(*parts)


def _detail_table(job: dict[str, Any], last_lines: str, now: float) -> RenderableType:
    rows = [(name, text) for name, text in job_detail(job, now)]
    names = chain(["last lines"], repeat(""))
    return table(("", ""), [*rows, *zip(names, last_lines.splitlines(), strict=False)])


def daemon_lines(status: dict[str, Any]) -> list[str]:
    """Return the daemon's health in a few lines; each problem begins with a word in capitals."""
    daemon, now = status["daemon"], status["now"]
    cycle, policy, engine = daemon.get("cycle", {}), daemon.get("policy", {}), daemon.get("engine", {})
    up = span(now - daemon["started_at"]) if "started_at" in daemon else "?"
    leader = "leader" if daemon.get("leader", True) else "standby"
    lines = [f"daemon   hcloud {status['version']}, up {up}, {leader}; you are {status['you']} ({status['role']})"]
    if cycle.get("at"):
        lines.append(
            f"cycle    {span(now - cycle['at'])} ago, took {cycle.get('duration_s', 0) * 1000:.0f} ms, "
            f"{cycle.get('actions', 0)} actions, {cycle.get('refused', 0)} refused"
        )
    lines.append(f"policy   {policy.get('name', '?')} {policy.get('digest', '')[:12]}".rstrip())
    reachable = "reachable" if engine.get("reachable") else "NOT REACHABLE"
    lines.append(f"engine   {reachable}, {engine.get('workers', 0)} workers, {engine.get('silent', 0)} silent")
    for name, provider in daemon.get("providers", {}).items():
        ages = [f"{market} {span(now - at)}" for market, at in sorted(provider.get("priced_at", {}).items())]
        aged = f"; age of prices: {', '.join(ages)}" if ages else ""
        lines.append(f"provider {name}: {provider.get('offers', 0)} offers{aged}")
    lines += [_money_line(status), *_tag_lines(status), _count_line(status), *_isolation_lines(daemon)]
    lines += [f"TROUBLE  {text}" for text in troubles(status)]
    lines += [
        f"PRICES   {market} prices of {name} are {price_age(now - at)}"
        for name, provider in daemon.get("providers", {}).items()
        for market, at in sorted(provider.get("priced_at", {}).items())
        if now - at > PRICES_OLD_S
    ]
    lines += [f"note     {text}" for text in daemon.get("notes", ())]
    return [printable(line) for line in lines]


def _money_line(status: dict[str, Any]) -> str:
    parts = [f"{usd(status['price_usd_per_h'])}/h now", *_spent(status["daemon"].get("spend", {}))]
    priced_at = status["priced_at"]
    aged = f"; oldest price {span(status['now'] - priced_at)} old" if priced_at is not None else ""
    return f"money    {', '.join(parts)}{aged}"


def _tag_lines(status: dict[str, Any]) -> list[str]:
    tags = status["daemon"].get("spend", {}).get("by_tag", ())
    return [f"         tag {each['tag']}: {', '.join(_spent(each))}" for each in tags]


def _spent(spend: dict[str, Any]) -> list[str]:
    """Return what was spent this day and this month, each with its limit."""
    periods = (("day", "today"), ("month", "this month"))
    amounts = [(spend.get(f"{key}_usd"), spend.get(f"per_{key}_limit_usd"), when) for key, when in periods]
    return [
        f"{usd(spent)}{f' of {usd(limit)}' if limit is not None else ''} {when}"
        for spent, limit, when in amounts
        if spent is not None
    ]


def _count_line(status: dict[str, Any]) -> str:
    jobs = ", ".join(f"{count} {state}" for state, count in status["jobs"].items() if count) or "none"
    machines = ", ".join(f"{count} {state}" for state, count in status["instances"].items()) or "none"
    return f"jobs     {jobs}; machines: {machines}"


def _isolation_lines(daemon: dict[str, Any]) -> list[str]:
    facts = [
        (name, key, text)
        for name, each in daemon.get("providers", {}).items()
        for key, text in each.get("facts", {}).items()
        if "isolation" in key or "missing" in key
    ]
    return [f"{key:<8} {text} ({name})" for name, key, text in facts]


def troubles(status: dict[str, Any]) -> list[str]:
    """Return one sentence per problem."""
    daemon = status["daemon"]
    found = [f"paused: {status['paused']}; continue with 'hcloud resume'"] if status["paused"] else []
    if daemon.get("policy", {}).get("error"):
        found.append(f"policy file rejected, the previous policy stays in force: {daemon['policy']['error']}")
    if daemon.get("unaccepted_changes"):
        found.append(f"not in force until 'hcloud policy accept': {'; '.join(daemon['unaccepted_changes'])}")
    if daemon.get("cycle", {}).get("error"):
        found.append(f"the last cycle failed: {daemon['cycle']['error']}")
    found += [
        f"defect in HCloud, {name} is quarantined: {error}"
        for name, error in sorted(daemon.get("cycle", {}).get("left_out", {}).items())
    ]
    found += [
        f"provider {name}: {provider['error']}"
        for name, provider in daemon.get("providers", {}).items()
        if provider.get("error")
    ]
    found += [
        f"provider {name} launches nothing {provider['stopped']}; once that is fixed: 'hcloud provider resume {name}'"
        for name, provider in daemon.get("providers", {}).items()
        if provider.get("stopped")
    ]
    return found


def _job_table(picture: dict[str, Any]) -> RenderableType:
    now = picture["daemon"]["now"]
    if not picture["jobs"]:
        return Text("no jobs; submit one: hcloud submit -- echo hello")
    return table(JOB_COLUMNS, [_job_row(job, now) for job in picture["jobs"]], spare=JOB_SPARE)


def _job_row(job: dict[str, Any], now: float) -> list[Any]:
    spec = job["spec"]
    ended = job["state"] in ENDED
    left = None if ended or job["deadline_at"] is None else job["deadline_at"] - now
    return [
        shown_id(job),
        spec["name"],
        spec["user"],
        job["state"],
        target_text(spec["target"]),
        f"{spec['resources']['vcpus']:g}",
        spec["nodes"]["count"],
        span((job["finished_at"] if ended and job["finished_at"] else now) - job["submitted_at"]),
        span(left),
        waits_for(job),
    ]


def waits_for(job: dict[str, Any]) -> str:
    """Return where a job runs, what it waits for, or how it ended, in a few words."""
    if job["state"] in ENDED:
        return str(job["outcome"])
    if job["tasks"]:
        waits = f"; {job['wait_text'] or job['wait_code']}" if job["wait_code"] else ""
        return count_words(job["tasks"]) + waits
    if job["state"] in ("placed", "running") and job["attempt"]:
        places = " ".join(each["instance_id"] for each in job["attempt"]["allocations"] if each["ended_at"] is None)
        paused = [each.get("paused_text") for each in job["attempt"]["allocations"] if each["ended_at"] is None]
        return "; ".join(filter(None, (places, job["unmet_text"], *paused)))
    return " ".join(dict.fromkeys(job["awaiting"])) or str(job["wait_text"] or job["wait_code"])


def _csv_row(job: dict[str, Any]) -> list[Any]:
    spec = job["spec"]
    return [
        job["id"], spec["name"], spec["user"], job["state"], spec["target"]["kind"], spec["resources"]["vcpus"],
        spec["resources"]["memory_mib"], spec["nodes"]["count"], job["submitted_at"], job["deadline_at"],
        job["finished_at"], job["attempts_made"], job["wait_code"], job["wait_text"], job["outcome"],
    ]  # fmt: skip
