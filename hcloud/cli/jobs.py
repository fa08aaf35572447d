"""``hcloud logs``, ``wait``, ``cancel``, ``rerun``, ``explain``: commands about jobs that exist."""

from __future__ import annotations

import re
import uuid
from functools import partial
from typing import Any

import click

from hcloud.cli.completing import job_ids
from hcloud.cli.output import FiniteRange, WholeRange, confirmed, format_option, gib, span, when, write_json, write_rows
from hcloud.client.connection import Connection
from hcloud.client.submission import cancelled
from hcloud.core.arrays import count_of, ids_text, parse_ids, split_reference
from hcloud.core.cpu_topology import cpu_list
from hcloud.core.errors import BadInput, printable
from hcloud.core.resources import Gpus

ENDED = frozenset({"succeeded", "failed", "cancelled"})
CANCELLED_COLUMNS = ("job", "name", "state", "cancelled_by")
RERUN_COLUMNS = ("id", "name", "state", "submitted_at", "deadline_at", "tasks")
TASK_STATES = ("waiting", "running", "succeeded", "failed", "cancelled")
TASKS_AT_ONCE = 1000
_text_or_json = click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Output format.",
)


def job_id(text: str) -> str:
    """Return a job's id, or tasks of an array; ``7`` means ``job-7``, ``7[3]`` means ``job-7[3]``.

    Raises BadInput for anything else than an id (a path, say).
    """
    found = re.fullmatch(r"(?P<job>[\w-]+)(?P<tasks>\[[^\[\]]*\])?", text, re.ASCII)
    if found is None:
        raise BadInput(f"{text!r} is not the id of a job; one looks like job-7, a task of an array like job-7[3]")
    name = f"job-{found['job']}" if found["job"].isdigit() else found["job"]
    if found["tasks"] is None:
        return name
    try:
        ranges, at_most = parse_ids(found["tasks"][1:-1])
    except ValueError as error:
        raise BadInput(f"{text}: {error}") from None
    if at_most is not None or not ranges:
        raise BadInput(f"{text}: must name tasks, such as {name}[3] or {name}[3-9]")
    return f"{name}[{ids_text(ranges)}]"


def each_task(reference: str) -> list[str]:
    """Return ``job-7[3-5]`` as one id for each task; others as they are. Raises BadInput for more than 1,000 tasks."""
    name, ids = split_reference(reference)
    if ids is None:
        return [reference]
    ranges, _ = parse_ids(ids)
    if (count := sum(count_of(each) for each in ranges)) > TASKS_AT_ONCE:
        raise BadInput(f"{reference} names {count} tasks; name at most {TASKS_AT_ONCE}, or {name} itself")
    return [f"{name}[{each}]" for first, last, step in ranges for each in range(first, last + 1, step)]


def _tasks_there(client: Connection, reference: str) -> list[str]:
    """Return what ``each_task`` returns. Raises NotFound before anything of them is shown: one is not there."""
    tasks = each_task(reference)
    if len(tasks) > 1:
        client.get(f"/v1/jobs/{reference}/tasks", limit=1)
    return tasks


def shown_id(job: dict[str, Any]) -> str:
    """Return the id of a job as users write it: of a task ``job-7[3]``."""
    return str(job["id"]) if job["task"] is None else f"{job['array']}[{job['task']}]"


@click.command()
@click.argument("job", shell_complete=job_ids)
@click.option("-f", "--follow", is_flag=True, help="Continue until the job has ended, across attempts.")
@click.option("--stderr", "stderr", is_flag=True, help="Standard error instead of standard output.")
@click.option("--rank", type=WholeRange(min=0), default=0, show_default=True, help="Which node of the job.")
@click.option("--attempt", type=WholeRange(min=1), help="Which attempt (default: the current or last one).")
@click.option("-n", "--tail", type=WholeRange(min=0), help="Only so many of the last lines; with -f also what follows.")
@_text_or_json
def logs(job: str, follow: bool, stderr: bool, rank: int, attempt: int | None, tail: int | None, form: str) -> None:
    """Show the output of JOB, or of tasks such as JOB[3] or JOB[3-9], also after its end.

    With -o json: one JSON object per line, for each part of it.

    With -f also its standard error as it comes, each line marked, on standard error.
    """
    from hcloud.cli.follow import BOTH, LastLines, PrefixWriter, copy_output, follow_output, write_bytes, write_part

    client, stream = Connection(), "stderr" if stderr else "stdout"
    write = write_bytes if form == "text" else write_part
    tasks = _tasks_there(client, job_id(job))
    if follow and len(tasks) > 1:
        raise BadInput(f"{job} names {len(tasks)} tasks; follow one, such as {tasks[0]}")
    if follow:
        streams = (stream,) if stderr else BOTH
        marking = PrefixWriter() if form == "text" and not stderr else write
        onwards, offsets = attempt is None, dict[str, int]()
        for each in streams if tail is not None else ():
            lines = LastLines(tail or 0, marking)
            number, offsets[each] = copy_output(
                client, job_id(job), stream=each, rank=rank, attempt=attempt, write=lines, may_come=True
            )
            attempt = number or attempt
            lines.flush()
        follow_output(
            client, job_id(job), streams=streams, rank=rank, attempt=attempt, onwards=onwards, write=marking,
            offsets=offsets,
        )  # fmt: skip
        return
    for task in tasks:
        if len(tasks) > 1 and form == "text":
            click.echo(f"==> {task} <==")
        elif len(tasks) > 1:
            write = partial(write_part, task=task)
        last = LastLines(tail, write) if tail is not None else None
        copy_output(client, task, stream=stream, rank=rank, attempt=attempt, write=last or write)
        if last is not None:
            last.flush()


@click.command()
@click.argument("jobs", nargs=-1, required=True, shell_complete=job_ids)
@click.option("--timeout", type=FiniteRange(min=0), help="Give up after this many seconds; the jobs go on.")
@_text_or_json
def wait(jobs: tuple[str, ...], timeout: float | None, form: str) -> int:
    """Wait until JOBS, or tasks such as JOB[3-9], have ended; exits with 1 if one of them did not succeed."""
    from hcloud.cli.follow import wait_for
    from hcloud.cli.waiting_line import WaitingLine

    ended: list[dict[str, Any]] = []
    ids = [task for each in jobs for task in each_task(job_id(each))]
    client = Connection()
    code = wait_for(client, ids, timeout_s=timeout, ended=ended, line=WaitingLine(client))
    if form == "json":
        write_json(ended)
    return code


@click.command()
@click.argument("jobs", nargs=-1, shell_complete=job_ids)
@click.option("-a", "--all", "every", is_flag=True, help="All your jobs that have not ended.")
@click.option("-u", "--all-users", is_flag=True, help="With --all: of all users (admins only).")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@format_option
def cancel(jobs: tuple[str, ...], every: bool, all_users: bool, yes: bool, form: str) -> None:
    """Stop JOBS, or tasks such as JOB[3-9]. What has ended is left alone."""
    if bool(jobs) == every:
        raise BadInput("name the jobs to cancel, or --all; see 'hcloud status'")
    client = Connection()
    ids = _all_live(client, all_users) if every else [job_id(each) for each in jobs]
    if not ids:
        click.echo("none of your jobs is left to cancel")
        return
    if not confirmed(f"Cancel {' '.join(ids) if len(ids) <= 5 else f'{len(ids)} jobs'}?", yes):
        raise click.Abort
    from hcloud.cli.waiting_line import working

    done: list[dict[str, Any]] = []
    with working(lambda: f"{len(done)} of {len(ids)} jobs cancelled"):
        done += cancelled(client, ids)
    write_rows(form, done, CANCELLED_COLUMNS, _cancelled_row)


def _cancelled_row(job: dict[str, Any]) -> list[Any]:
    return [shown_id(job), job["spec"]["name"], job["state"], job["cancelled_by"]]


@click.command()
@click.argument("job", shell_complete=job_ids)
@click.option("--failed", is_flag=True, help="Only what failed: of an array, its failed tasks.")
@format_option
def rerun(job: str, failed: bool, form: str) -> None:
    """Submit JOB, which has ended, again as a new job; of an array all tasks, or those named, such as JOB[3-9].

    Tasks keep their ids and the values of a matrix.
    """
    name, client = job_id(job), Connection()
    again = client.post(f"/v1/jobs/{name}/rerun", {"failed": failed, "token": f"cli-{uuid.uuid4()}"})
    if form == "table":
        click.echo(f"{again['id']} {again['name']}" + (f", {task_words(again['tasks'])}" if again["tasks"] else ""))
    else:
        write_rows(form, [again], RERUN_COLUMNS, lambda each: [each[column] for column in RERUN_COLUMNS])


def task_words(count: int) -> str:
    """Return a number of tasks in words."""
    return "1 task" if count == 1 else f"{count} tasks"


def count_words(tasks: dict[str, int]) -> str:
    """Return the counts of an array's tasks in a few words, without those that are 0."""
    parts = (f"{tasks[name]} {name}" for name in TASK_STATES if tasks[name])
    return f"{', '.join(parts)} of {task_words(tasks['total'])}"


def _all_live(client: Connection, all_users: bool) -> list[str]:
    """Return the ids of all jobs that have not ended, page by page."""
    user = None if all_users else client.get("/v1/status")["you"]
    live = ["submitted", "profiled", "classified", "queued", "awaiting_instance", "placed", "running", "preempted"]
    found: list[str] = []
    while True:
        before = found[-1] if found else None
        page = client.get("/v1/jobs", user=user, state=live, limit=1000, before=before)
        found += [job["id"] for job in page]
        if len(page) < 1000:
            return found


@click.command()
@click.argument("job", shell_complete=job_ids)
@click.option("-o", "--output", "form", type=click.Choice(["table", "json"]), default="table", help="Output format.")
def explain(job: str, form: str) -> None:
    """Explain every decision about JOB, or tasks such as JOB[3] or JOB[3-9], with the numbers that decided it.

    With -o json: of several tasks a list.
    """
    from hcloud.cli.follow import last_lines

    client = Connection()
    tasks = _tasks_there(client, job_id(job))
    if form == "json":
        timelines = [client.get(f"/v1/jobs/{each}/explain") for each in tasks]
        write_json(timelines if len(tasks) > 1 else timelines[0])
        return
    for number, each in enumerate(tasks):
        if number:
            click.echo()
        for line in client.get(f"/v1/jobs/{each}/explain")["lines"]:
            click.echo(printable(line))
        if text := last_lines(client, client.get(f"/v1/jobs/{each}")):
            click.echo("its last lines:")
            click.echo("\n".join(f"  {line}" for line in text.splitlines()))


def job_detail(job: dict[str, Any], now: float) -> list[tuple[str, str]]:
    """Return the details of one job as (name, text) pairs."""
    spec, attempt = job["spec"], job["attempt"]
    need, held = spec["resources"], attempt["allocations"] if attempt else []
    failures = f", failures: {', '.join(job['failures'])}" if job["failures"] else ""
    gpus = f", {Gpus(**need['gpus']).words()}" if need.get("gpus") else ""
    lines = [
        ("job", f"{shown_id(job)} {spec['name']}" + (f" ({job['id']})" if job["task"] is not None else "")),
        ("user", spec["user"]),
        ("state", job["state"] + (f" ({job['wait_text'] or job['wait_code']})" if job["wait_code"] else "")),
        ("tasks", count_words(job["tasks"]) if job["tasks"] else ""),
        ("misses", job["unmet_text"]),
        ("paused", "; ".join(filter(None, (each.get("paused_text") for each in held if each["ended_at"] is None)))),
        ("outcome", job["outcome"]),
        ("command", " ".join(spec["command"])),
        ("target", target_text(spec["target"])),
        ("needs", f"{need['vcpus']:g} vCPUs, {need['memory_mib']} MiB, {gib(need['disk_gib'])} disk{gpus}"),
        ("nodes", str(spec["nodes"]["count"])),
        ("priority", str(spec["priority"])),
        ("tags", " ".join(f"{key}={value}" for key, value in spec["tags"].items())),
        ("after", ", ".join(f"{name}: {ending}" for name, ending in spec.get("after", {}).items())),
        ("submitted", f"{when(job['submitted_at'])} ({span(now - job['submitted_at'])} ago)"),
        ("deadline", f"{when(job['deadline_at'])}" if job["deadline_at"] is not None else ""),
        ("finished", when(job["finished_at"])),
        ("attempts", f"{job['attempts_made']}{failures}"),
    ]
    for each in attempt["allocations"] if attempt else ():
        code = f", exit code {each['exit_code']}" if each["exit_code"] is not None else ""
        ended = f"ended {when(each['ended_at'])}{code}" if each["ended_at"] else "running"
        cause = f", {each['cause']}: {each['detail']}" if each["cause"] else f" {each['detail']}".rstrip()
        lines.append(
            (f"rank {each['rank']}", f"{attempt['id']} on {each['instance_id']}{_gpu_words(each)}, {ended}{cause}")
        )
    return [(name, text) for name, text in lines if text]


def _gpu_words(allocation: dict[str, Any]) -> str:
    gpus = allocation.get("gpus", ())
    return f" (GPU{'s' if len(gpus) > 1 else ''} {cpu_list(gpus)})" if gpus else ""


def target_text(target: dict[str, Any]) -> str:
    """Return a target in a few words."""
    if target["kind"] == "service":
        return f"{target['requests_per_s']:g}/s, p{target['percentile']:g} <= {target['latency_ms']:g} ms"
    if target["kind"] == "best_effort":
        return "best effort"
    within = f"within {span(target['finish_within_s'])}" if target["finish_within_s"] is not None else ""
    by = f"by {when(target['finish_by_at'])}" if target["finish_by_at"] is not None else ""
    return " ".join(part for part in (within, by) if part) or "batch"
