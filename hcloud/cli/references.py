"""``hcloud profile bootstrap --on PROVIDER``: measure reference programs by jobs of the running daemon."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hcloud.classifier.profiles import ReferenceProfile
from hcloud.cli.follow import ENDED, WAIT_S
from hcloud.cli.progress_bar import progress
from hcloud.cli.transfer_bar import transfer_bar
from hcloud.client.connection import Connection
from hcloud.client.workdir import upload_workdir
from hcloud.core.errors import BadInput, HCloudError, Unmeasurable, printable
from hcloud.profiler.recipes import Recipe, write_inputs
from hcloud.profiler.references import Part, facts_of, job_of, profile_of, readings_of
from hcloud.profiler.scratch import scratch

TAG = "hcloud.bootstrap"
"""Tag of bootstrap jobs: a digest of what the job measures and how, by which a later run finds it."""
LOG_BYTES = 1 << 16


@dataclass(slots=True)
class _Task:
    """One part of the measurements of one program, and the job that makes them."""

    name: str
    recipe: Recipe
    part: Part
    job_id: str = ""
    """Empty until the job is submitted or found."""
    ended: bool = False
    job: dict[str, Any] = field(default_factory=dict)
    """The job as last returned by the API."""


def parts_on(client: Connection, provider: str, types: Sequence[str]) -> tuple[Part, ...]:
    """Return the parts to measure of every program: everything on the first type, only speed on the others.

    Raises BadInput if the provider does not offer a type, or another provider has a type of the same name.
    """
    offers = client.get("/v1/offers")
    own = {each["instance_type"]["name"]: each for each in offers if each["provider"] == provider}
    if not own:
        there = ", ".join(sorted({each["provider"] for each in offers})) or "none"
        raise BadInput(f"--on: the daemon has no offers of {provider!r}; it has offers of: {there}")
    if not types:
        raise BadInput(f"--on needs --type, once for each type to measure on; {provider} has {', '.join(sorted(own))}")
    for name in types:
        if name not in own:
            raise BadInput(f"--type: {provider} has no {name!r}; it has {', '.join(sorted(own))}")
        others = sorted({e["provider"] for e in offers if e["instance_type"]["name"] == name} - {provider})
        if others:
            raise BadInput(
                f"--type: {', '.join(others)} also has a type {name!r}, and jobs select machines by type name only"
            )
    return tuple(
        Part(provider=provider, instance_type=name, vcpus=own[name]["instance_type"]["capacity"]["vcpus"], whole=n == 0)
        for n, name in enumerate(dict.fromkeys(types))
    )


def measure_by_jobs(
    client: Connection,
    recipes: Mapping[str, Recipe],
    parts: Sequence[Part],
    *,
    seconds: float,
    at_once: int,
    again: bool,
) -> Iterator[tuple[str, ReferenceProfile | HCloudError]]:
    """Measure each program on each type by a job of the daemon; yield programs as they are finished.

    Earlier measurements are reused unless ``again``, and unfinished jobs are followed. The command can therefore be
    stopped at any time and continues when it is run again.
    """
    client.be_patient()
    waiting = [_Task(name, recipe, part) for name, recipe in recipes.items() for part in parts]
    by_name = {name: [task for task in waiting if task.name == name] for name in recipes}
    live: list[_Task] = []
    with progress(len(waiting)) as advance:
        while waiting or live:
            while waiting and len(live) < at_once:
                task = waiting.pop(0)
                advance(f"{task.name} on {task.part.column}")
                task.job_id = _job_for(client, task, seconds, again=again)
                live.append(task)
            for task in live:
                # Waits for the first job only: the others are then as fresh as one round of requests.
                wait_s = WAIT_S if task is live[0] else 0.0
                task.job = client.get(f"/v1/jobs/{task.job_id}", wait_s=wait_s)
                task.ended = task.job["state"] in ENDED
            for task in [each for each in live if each.ended]:
                live.remove(task)
                if all(each.ended for each in by_name[task.name]):
                    yield task.name, _profile(client, by_name[task.name])


def _job_for(client: Connection, task: _Task, seconds: float, *, again: bool) -> str:
    """Return the id of the task's job: one that has the results, one that is unfinished, or a new one."""
    job = job_of(task.name, task.recipe, task.part, seconds)
    with scratch("inputs") as folder:
        write_inputs(task.recipe, folder)
        job |= upload_workdir(client, folder, int(client.get("/v1/status")["max_upload_bytes"]), transfer_bar)
    # Inputs are written anew each time, so that their times differ.
    same = {key: value for key, value in job.items() if key != "workdir_sha256"}
    digest = hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:32]
    earlier = client.get("/v1/jobs", tag=f"{TAG}={digest}", limit=1000)
    for each in earlier:
        unfinished = each["state"] not in ENDED and each["cancelled_by"] is None
        if unfinished or (not again and each["state"] == "succeeded" and _results(client, each["id"]).get("readings")):
            return str(each["id"])
    # The idempotency token depends on the number of earlier jobs, so an interrupted submission makes one job only.
    request = {"job": {**job, "tags": {TAG: digest}}, "token": f"{TAG}-{digest}-{len(earlier)}"}
    return str(client.post("/v1/jobs", [request])[0]["id"])


def _results(client: Connection, job_id: str) -> dict[str, Any]:
    """Return the fields of a job's last ``job_profiled`` event; empty without one."""
    events = client.get("/v1/events", job_id=job_id, kind="job_profiled")
    return dict(events[-1]["fields"]) if events else {}


def _profile(client: Connection, tasks: Sequence[_Task]) -> ReferenceProfile | HCloudError:
    """Return the profile of a program whose tasks have all ended, or the reason why there is none."""
    parts = [_measured_part(client, task) for task in tasks]
    try:
        return profile_of(tasks[0].name, tasks[0].recipe, parts)
    except Unmeasurable as error:
        return error


def _measured_part(client: Connection, task: _Task) -> Part:
    fields, job = _results(client, task.job_id), task.job
    notes = tuple(fields.get("notes", ()))
    if job["state"] != "succeeded":
        last_line = _output(client, task.job_id, "stderr").strip().rpartition("\n")[2]
        reason = printable(last_line or job["outcome"])
        notes = (f"{task.job_id} on {task.part.column} {job['state']}: {reason}", *notes)
    return replace(
        task.part,
        measure=fields.get("measure"),
        readings=readings_of(fields.get("readings", ())),
        use=tuple(fields.get("use", ())),
        facts=facts_of(_output(client, task.job_id, "stdout")),
        notes=notes,
        measured_at=job["finished_at"] or job["submitted_at"],
        took_s=fields.get("duration_s", 0.0),
    )


def _output(client: Connection, job_id: str, stream: str) -> str:
    """Return the first ``LOG_BYTES`` of a job's output; empty if the output is lost."""
    try:
        answer = client.send("GET", f"/v1/jobs/{job_id}/logs", {"stream": stream, "limit": LOG_BYTES})
    except HCloudError:
        return ""
    return str(answer.content.decode(errors="replace"))
