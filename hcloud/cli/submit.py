"""``hcloud submit`` and ``hcloud run``: from files or flags to jobs, with a priced plan before money is spent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from hcloud.cli.job_flags import job_options, mappings_of_jobs
from hcloud.cli.jobs import task_words
from hcloud.cli.output import (
    FiniteRange,
    confirmed,
    console,
    format_option,
    gib,
    table,
    usd,
    when,
    write_json,
    write_rows,
)
from hcloud.cli.schedules import coming_words
from hcloud.client.connection import Connection
from hcloud.client.submission import batch_size, posted, save_schedules, send
from hcloud.core.errors import BadInput, printable

F = TypeVar("F", bound=Callable[..., Any])
PLANS_SHOWN = 5
LIKELY_LATE_BELOW, LATE_SHOWN = 0.5, 3
"""Below this probability to meet its deadline a job is warned of; so many are named."""
_MADE_UP = 10**12
"""The preview numbers jobs that are not submitted yet from here on."""
COLUMNS = ("id", "name", "state", "submitted_at", "deadline_at", "tasks")


class JobCommand(click.Command):
    """A command that takes its arguments after ``--`` as the job's own command line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Set the part after ``--`` aside."""
        own = args
        if "--" in args:
            cut = args.index("--")
            own, ctx.meta["hcloud.command"] = args[:cut], tuple(args[cut + 1 :])
        return super().parse_args(ctx, list(own))


def submit_options(function: F) -> F:
    """Add what ``submit`` and ``run`` have in common."""
    options: list[Callable[[F], F]] = [
        click.argument("files", nargs=-1, type=click.Path(path_type=Path, allow_dash=True)),
        job_options,
        click.option("--dry-run", "--dryrun", "dry_run", is_flag=True, help="Show the priced plan; submit nothing."),
        click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation."),
        click.option("-q", "--quiet", is_flag=True, help="Do not show the plan."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@click.command(cls=JobCommand, options_metavar="[OPTIONS]", epilog="Example: hcloud submit --within 10m -- make test")
@submit_options
@click.option("-d", "--detach", is_flag=True, help="Return at once (the default).")
@format_option
@click.pass_context
def submit(
    ctx: click.Context,
    /,
    files: tuple[Path, ...],
    dry_run: bool,
    yes: bool,
    quiet: bool,
    detach: bool,
    form: str,
    **flags: Any,
) -> int:
    """Submit the jobs of FILES (YAML, several per file; - is standard input), or the command after --.

    Flags win over what a file says. With --dry-run, ends with 1 if one of the jobs can never run.
    """
    client = Connection()
    jobs, _ = _jobs(ctx, client, files, flags, upload=not dry_run)
    if dry_run:
        return _show_plan(client, jobs, form)
    if not quiet and form == "table":
        _show_plan(client, jobs, form, on_stderr=True)
        if not confirmed(f"Submit {_count(jobs)}?", yes):
            raise click.Abort
    from hcloud.cli.waiting_line import working

    with working(f"submitting {len(jobs)} job{'s' * (len(jobs) > 1)}"):
        submitted = send(client, [job for job in jobs if not job.get("schedule")])
    submitted += save_schedules(client, [job for job in jobs if job.get("schedule")])
    if quiet or form != "table":
        _warn_of_late(submitted)
    write_rows(form, submitted, COLUMNS, lambda job: [job[name] for name in COLUMNS]) if form != "table" else None
    if form == "table":
        for job in submitted:
            click.echo(_submitted_line(job))
    return 0


@click.command(cls=JobCommand, options_metavar="[OPTIONS]", epilog="Example: hcloud run --vcpus 2 -- python3 train.py")
@submit_options
@click.option("-d", "--detach", is_flag=True, help="Return after submission, as `submit` does.")
@click.option("--timeout", type=FiniteRange(min=0), help="Wait at most this many seconds; the job goes on.")
@click.pass_context
def run(
    ctx: click.Context,
    /,
    files: tuple[Path, ...],
    dry_run: bool,
    yes: bool,
    quiet: bool,
    detach: bool,
    timeout: float | None,
    **flags: Any,
) -> int:
    """Submit, follow the output and wait; exits with 1 if a job failed. Interrupting leaves the jobs running.

    Files named by outputs are copied to the work directory, or to here where there is none.
    """
    from hcloud.cli.follow import follow_output, wait_for
    from hcloud.cli.waiting_line import WaitingLine

    client = Connection()
    jobs, folders = _jobs(ctx, client, files, flags, upload=not dry_run)
    if named := next((job["name"] for job in jobs if job.get("schedule")), None):
        raise BadInput(f"job {named}: schedule: 'hcloud run' waits for the end, which a schedule has not; submit it")
    if dry_run:
        return _show_plan(client, jobs, "table")
    if not quiet:
        _show_plan(client, jobs, "table", on_stderr=True)
    if not confirmed(f"Submit {_count(jobs)}?", yes):
        raise click.Abort
    submitted = send(client, jobs)
    if quiet:
        _warn_of_late(submitted)
    for job in submitted:
        click.echo(_submitted_line(job), err=not detach)
    if detach:
        return 0
    ids, line = [job["id"] for job in submitted], WaitingLine(client)
    try:
        if len(ids) == 1 and not submitted[0]["tasks"]:
            follow_output(client, ids[0], attempt=1, timeout_s=timeout, line=line)
        code = wait_for(client, ids, timeout_s=timeout, line=line)
        # Those of tasks have the same names: they are copied one by one (hcloud cp 'job-7[3]').
        plain = [each for each, job in enumerate(submitted) if not job["tasks"]]
        wanted = {ids[each]: folders[each] for each in plain if jobs[each].get("outputs")}
        if wanted:
            from hcloud.cli.outputs import bring_outputs

            bring_outputs(client, wanted)
        return code
    except KeyboardInterrupt:
        line.clear()
        click.echo(f"\nstill running: {' '.join(ids)}; stop with 'hcloud cancel {' '.join(ids)}'", err=True)
        raise


def _jobs(
    ctx: click.Context, client: Connection, files: Sequence[Path], flags: Mapping[str, Any], *, upload: bool
) -> tuple[list[dict[str, Any]], list[Path]]:
    """Return the jobs as the API takes them, their work directories and inputs of this machine uploaded, or only
    checked; and each one's work directory (without one: here)."""
    from hcloud.cli.transfer_bar import transfer_bar
    from hcloud.client.workdir import with_files_sent

    jobs = mappings_of_jobs(files, ctx.meta.get("hcloud.command"), flags)
    sent: dict[tuple[Any, ...], dict[str, str]] = {}
    folders = [Path(job.get("workdir") or ".") for job in jobs]
    # A dry run decides the same without the directories.
    return [with_files_sent(client, job, sent, transfer_bar, upload=upload) for job in jobs], folders


def _submitted_line(job: Mapping[str, Any]) -> str:
    if job["state"] == "scheduled":
        return f"{job['id']} {job['name']}, {coming_words(job['next_at'])}"
    return f"{job['id']} {job['name']}" + (f", {task_words(job['tasks'])}" if job["tasks"] else "")


def _count(jobs: Sequence[Mapping[str, Any]]) -> str:
    if len(jobs) > 1:
        return f"these {len(jobs)} jobs"
    return "this array" if "array" in jobs[0] or "matrix" in jobs[0] else "this job"


def _show_plan(client: Connection, jobs: Sequence[Mapping[str, Any]], form: str, *, on_stderr: bool = False) -> int:
    """Ask what the next plan would do with the jobs and show it; jobs that are alike are shown once.

    Return 1 if one of them can never run, else 0.
    """
    from hcloud.cli.waiting_line import working

    planned: list[dict[str, Any]] = []
    size, schedules = batch_size(jobs), [job for job in jobs if job.get("schedule")]
    if schedules:  # what is submitted each time
        jobs = [{key: value for key, value in job.items() if key != "schedule"} for job in jobs]
    for start in range(0, len(jobs), size):
        batch = jobs[start : start + size]
        with working(f"planning {len(jobs)} job{'s' * (len(jobs) > 1)}"):
            answer = posted(client, "/v1/plan", [{"job": job} for job in batch])
        planned += [_with_names(each, batch) for each in answer]
    code = 1 if any(each["action"] == "fail" for each in planned) else 0
    _warn_of_late(planned)
    if form == "json":
        write_json(planned)
        return code
    if form == "csv":
        columns = ("name", "action", "code", "text", "price_usd_per_h", "knowing")
        write_rows(form, planned, columns, lambda job: [*(job[name] for name in columns[:-1]), _how_known(job)])
        return code
    shown = console(stderr=on_stderr)
    alike: dict[str, list[dict[str, Any]]] = {}
    for asked, job in zip(jobs, planned, strict=True):
        alike.setdefault(_alike(asked, job), []).append(job)
    # Jobs that can never run come first, so that they are not missed among many others.
    groups = sorted(alike.values(), key=lambda group: group[0]["action"] != "fail")
    first = max(PLANS_SHOWN, sum(group[0]["action"] == "fail" for group in groups))
    for group in groups[:first]:
        job = group[0]
        why = job["text"].removeprefix("waiting: ")
        shown.print(f"{printable(_names(group))}: {job['action']}, {printable(why)}")
        if job.get("asks_for"):  # an older daemon does not say it
            shown.print(f"  {printable(job['asks_for'])}")
        if job["knowing"] is not None:
            shown.print(f"  {_how_known(job)}")
        if job["action"] == "launch":
            shown.print(table(CANDIDATE_COLUMNS, [_candidate_row(each) for each in job["candidates"]]))
    left = sum(len(group) for group in groups[first:])
    if left:
        shown.print(f"... and {left} more job{'s' if left > 1 else ''}")
    for each in schedules:
        shown.print(f"{printable(each['name'])}: submitted {_next_times(each['schedule'])}")
    added = sum(job["price_usd_per_h"] for job in planned)
    shown.print(f"adds {usd(added)}/h in new machines" if added else "adds no new machines")
    return code


def _next_times(schedule: Mapping[str, Any]) -> str:
    """Return the next three times of a schedule in words."""
    from hcloud.core.clock import SystemClock
    from hcloud.core.cron import next_fire_at

    found, at = list[str](), SystemClock().now()
    while (
        len(found) < 3 and (coming := next_fire_at(schedule["cron"], schedule.get("timezone", "UTC"), at)) is not None
    ):
        found.append(when(coming))
        at = coming
    return f"at {', '.join(found)}, ..."


def _warn_of_late(jobs: Sequence[Mapping[str, Any]]) -> None:
    """Say on stderr which jobs are likely to miss their deadline, in one sentence."""
    known = [each for each in jobs if each.get("deadline_probability") is not None]  # an older daemon says none
    late = [each for each in known if each["deadline_probability"] < LIKELY_LATE_BELOW]
    if not late:
        return
    named = ", ".join(f"{each['name']} {each['deadline_probability']:.2f}" for each in late[:LATE_SHOWN])
    if len(late) == 1:
        name, _, chance = named.rpartition(" ")
        text = f"{name} meets its deadline with probability {chance} even if it starts now"
    else:
        more = ", ..." if len(late) > LATE_SHOWN else ""
        text = f"{len(late)} of {len(jobs)} jobs meet their deadline with probability below {LIKELY_LATE_BELOW:g}"
        text += f" even if they start now: {named}{more}"
    click.echo(f"warning: {printable(text)}", err=True)


def _with_names(planned: dict[str, Any], batch: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a job's plan with names in place of the ids that the preview made up for jobs not submitted yet."""

    def name(found: re.Match[str]) -> str:
        place = int(found[1]) - _MADE_UP
        if place < len(batch):
            return str(batch[place]["name"])
        return "another job" if place < _MADE_UP else "another task"

    text = re.sub(r"job-([12]\d{12})\b", name, planned["text"])
    knowing = planned["knowing"]
    if knowing is not None:
        knowing = {**knowing, "text": re.sub(r"job-([12]\d{12})\b", name, knowing["text"])}
    return {**planned, "text": text, "knowing": knowing}


def _alike(asked: Mapping[str, Any], planned: Mapping[str, Any]) -> str:
    """Return what jobs have in common that are shown as one: all they ask for but the name, and what is done."""
    return json.dumps([{**asked, "name": ""}, planned["action"], planned["code"]], sort_keys=True, default=str)


def _names(group: Sequence[Mapping[str, Any]]) -> str:
    if len(group) == 1:
        return str(group[0]["name"])
    names = list(dict.fromkeys(str(each["name"]) for each in group))
    return f"{len(group)} jobs ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"


def _how_known(job: Mapping[str, Any]) -> str:
    """Return whether a job is profiled first, or what it is classified as."""
    knowing = job["knowing"]
    if knowing is None:
        return ""
    first = {"profiled": "first ", "later": "to be profiled first: "}
    return first.get(knowing["how"], "") + printable(knowing["text"])


CANDIDATE_COLUMNS = ("", "provider", "zone", "type", "market", ">vcpus", ">memory", ">$/h", "note")


def _candidate_row(each: Mapping[str, Any]) -> list[Any]:
    return [
        "->" if each["chosen"] else " ",
        each["provider"],
        each["zone"],
        each["instance_type"],
        each["market"],
        f"{each['vcpus']:g}",
        gib(each["memory_mib"] / 1024),
        f"{each['price_usd_per_h']:.4f}",
        "chosen" if each["chosen"] else each["note"],
    ]
