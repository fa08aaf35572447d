"""``hcloud submit`` and ``hcloud run``: from files or flags to jobs, with a priced plan before money is spent."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from hcloud.cli.client import Client
from hcloud.cli.job_flags import job_options, mappings_of_jobs
from hcloud.cli.output import (
    FiniteRange,
    confirmed,
    console,
    format_option,
    gib,
    printable,
    table,
    usd,
    write_json,
    write_rows,
)
from hcloud.core.errors import BadInput

F = TypeVar("F", bound=Callable[..., Any])
BATCH = 2000
PLANS_SHOWN = 5
COLUMNS = ("id", "name", "state", "submitted_at", "deadline_at")


class JobCommand(click.Command):
    """A command whose arguments after ``--`` are the job's own command line, whatever they look like."""

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
        click.option("-y", "--yes", is_flag=True, help="Do not ask."),
        click.option("-q", "--quiet", is_flag=True, help="Do not show the plan."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@click.command(cls=JobCommand, options_metavar="[OPTIONS]", epilog="Example: hcloud submit --within 10m -- make test")
@submit_options
@click.option("-d", "--detach", is_flag=True, help="Return at once; `submit` always does.")
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
) -> None:
    """Submit the jobs of FILES (YAML, several per file; - is standard input), or the command after --.

    Flags win over what a file says.
    """
    client = Client()
    jobs = _jobs(ctx, client, files, flags, upload=not dry_run)
    if dry_run:
        _show_plan(client, jobs, form)
        return
    if not quiet and form == "table":
        _show_plan(client, jobs, form, on_stderr=True)
        if not confirmed(f"Submit {_count(jobs)}?", yes):
            raise click.Abort
    submitted = send(client, jobs)
    write_rows(form, submitted, COLUMNS, lambda job: [job[name] for name in COLUMNS]) if form != "table" else None
    if form == "table":
        for job in submitted:
            click.echo(f"{job['id']} {job['name']}")


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
    """Submit, follow the output and wait; ends with 1 when a job failed. Interrupting leaves the jobs running."""
    from hcloud.cli.follow import follow_output, wait_for

    client = Client()
    jobs = _jobs(ctx, client, files, flags, upload=not dry_run)
    if dry_run or not quiet:
        _show_plan(client, jobs, "table", on_stderr=not dry_run)
    if dry_run:
        return 0
    if not confirmed(f"Submit {_count(jobs)}?", yes):
        raise click.Abort
    submitted = send(client, jobs)
    for job in submitted:
        click.echo(f"{job['id']} {job['name']}", err=not detach)
    if detach:
        return 0
    ids = [job["id"] for job in submitted]
    try:
        if len(ids) == 1:
            follow_output(client, ids[0], attempt=1, timeout_s=timeout)
        return wait_for(client, ids, timeout_s=timeout)
    except KeyboardInterrupt:
        click.echo(f"\nstill running: {' '.join(ids)}; stop with 'hcloud cancel {' '.join(ids)}'", err=True)
        raise


def send(client: Client, jobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Submit jobs in batches; every job has a token of its own, so repeating a lost request submits nothing twice."""
    requests = [{"job": job, "token": f"cli-{uuid.uuid4()}"} for job in jobs]
    submitted: list[dict[str, Any]] = []
    for start in range(0, len(requests), BATCH):
        submitted += _posted(client, "/v1/jobs", requests[start : start + BATCH])
    return submitted


def _posted(client: Client, path: str, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Send requests about jobs. What the daemon says of one by its place in the body names the job instead."""
    try:
        answer: list[dict[str, Any]] = client.post(path, requests)
        return answer
    except BadInput as error:
        place = re.match(r"body\[(\d+)\]\.(?:job\.)?", str(error))
        if place is None:
            raise
        raise BadInput(f"job {requests[int(place[1])]['job']['name']}: {str(error)[place.end() :]}") from error


def _jobs(
    ctx: click.Context, client: Client, files: Sequence[Path], flags: Mapping[str, Any], *, upload: bool
) -> list[dict[str, Any]]:
    """Return the jobs as the API takes them, their work directories uploaded."""
    from hcloud.cli.workdir import upload_workdir

    jobs = mappings_of_jobs(files, ctx.meta.get("hcloud.command"), flags)
    sent: dict[str, str] = {}
    for job in jobs:
        directory = job.pop("workdir", None)
        if directory is None or not upload:  # a dry run decides the same without the directory
            continue
        if directory not in sent:
            limit_bytes = int(client.get("/v1/status")["max_upload_bytes"])
            sent[directory] = upload_workdir(client, Path(directory), limit_bytes)
        job["workdir_sha256"] = sent[directory]
    return jobs


def _count(jobs: Sequence[Any]) -> str:
    return "this job" if len(jobs) == 1 else f"these {len(jobs)} jobs"


def _show_plan(client: Client, jobs: Sequence[Mapping[str, Any]], form: str, *, on_stderr: bool = False) -> None:
    """Ask what would be done and show it; a table shows the first few jobs whole and the rest in sum."""
    planned: list[dict[str, Any]] = []
    for start in range(0, len(jobs), BATCH):
        planned += _posted(client, "/v1/plan", [{"job": job} for job in jobs[start : start + BATCH]])
    if form == "json":
        write_json(planned)
        return
    if form == "csv":
        columns = ("name", "action", "code", "text", "price_usd_per_h", "knowing")
        write_rows(form, planned, columns, lambda job: [*(job[name] for name in columns[:-1]), _how_known(job)])
        return
    shown = console(stderr=on_stderr)
    # Who can never run is not to be missed among the others, however many these are.
    failing = [job for job in planned if job["action"] == "fail"]
    in_order = [*failing, *(job for job in planned if job["action"] != "fail")]
    first = max(PLANS_SHOWN, len(failing))
    for job in in_order[:first]:
        shown.print(f"{job['name']}: {job['action']}, {printable(job['text'])}")
        if job["knowing"] is not None:
            shown.print(f"  {_how_known(job)}")
        if job["action"] == "launch":
            shown.print(table(CANDIDATE_COLUMNS, [_candidate_row(each) for each in job["candidates"]]))
    if len(planned) > first:
        shown.print(f"... and {len(planned) - first} more jobs")
    added = sum(job["price_usd_per_h"] for job in planned)
    shown.print(f"adds {usd(added)}/h in new machines" if added else "adds no new machines")


def _how_known(job: Mapping[str, Any]) -> str:
    """Say whether a job is profiled first, or what it is taken for."""
    knowing = job["knowing"]
    if knowing is None:
        return ""
    first = {"profiled": "before that ", "later": "to be profiled before that: "}
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
