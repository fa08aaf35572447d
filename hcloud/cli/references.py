"""``hcloud profile bootstrap --on PROVIDER``: the reference programs measured by jobs of the running daemon."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hcloud.classifier.profiles import ReferenceProfile
from hcloud.cli.client import Client
from hcloud.cli.compare import progress
from hcloud.cli.follow import ENDED, WAIT_S
from hcloud.cli.output import printable
from hcloud.cli.workdir import upload_workdir
from hcloud.core.errors import BadInput, HCloudError, Unmeasurable
from hcloud.profiler.recipes import Recipe, write_inputs
from hcloud.profiler.references import Part, facts_of, job_of, profile_of, readings_of
from hcloud.profiler.scratch import scratch

TAG = "hcloud.bootstrap"
"""What jobs of a bootstrap are found again by: a digest of what each is to measure, and how."""
LOG_BYTES = 1 << 16


@dataclass(slots=True)
class _Task:
    """One part of one program, the job that measures it (once there is one), and what it found."""

    name: str
    recipe: Recipe
    part: Part
    job_id: str = ""
    ended: bool = False
    told: dict[str, Any] = field(default_factory=dict)


def parts_on(client: Client, provider: str, types: Sequence[str]) -> tuple[Part, ...]:
    """Return what to measure of every program: all of it on the first type, on the others how fast it is.

    Raises BadInput: the provider offers no such type, or another one offers a type of that name too.
    """
    offers = client.get("/v1/offers")
    own = {each["instance_type"]["name"]: each for each in offers if each["provider"] == provider}
    if not own:
        there = ", ".join(sorted({each["provider"] for each in offers})) or "none"
        raise BadInput(f"--on: the daemon has no offers of {provider!r}; it has offers of: {there}")
    if not types:
        raise BadInput(
            f"--on goes with --type, once for each type to measure on; {provider} has {', '.join(sorted(own))}"
        )
    for name in types:
        if name not in own:
            raise BadInput(f"--type: {provider} has no {name!r}; it has {', '.join(sorted(own))}")
        others = sorted({e["provider"] for e in offers if e["instance_type"]["name"] == name} - {provider})
        if others:
            raise BadInput(
                f"--type: {', '.join(others)} has a type {name!r} too, and jobs choose machines by their type"
            )
    return tuple(
        Part(provider=provider, instance_type=name, vcpus=own[name]["instance_type"]["capacity"]["vcpus"], whole=n == 0)
        for n, name in enumerate(dict.fromkeys(types))
    )


def measured_elsewhere(
    client: Client,
    recipes: Mapping[str, Recipe],
    parts: Sequence[Part],
    *,
    seconds: float,
    at_once: int,
    again: bool,
) -> Iterator[tuple[str, ReferenceProfile | HCloudError]]:
    """Measure each program on each type by a job of the daemon; yield programs as they are finished.

    What was found before is used again (``again``: not), and jobs that are under way are followed, so that this can be
    stopped at any time and goes on when it is started anew.
    """
    client.be_patient()
    waiting = [_Task(name, recipe, part) for name, recipe in recipes.items() for part in parts]
    by_name = {name: [task for task in waiting if task.name == name] for name in recipes}
    live = list[_Task]()
    with progress(len(waiting)) as advance:
        while waiting or live:
            while waiting and len(live) < at_once:
                task = waiting.pop(0)
                advance(f"{task.name} on {task.part.column}")
                task.job_id = _job_for(client, task, seconds, again=again)
                live.append(task)
            for task in live:
                _look(client, task, wait_s=WAIT_S if task is live[0] else 0.0)
            for task in [each for each in live if each.ended]:
                live.remove(task)
                if all(each.ended for each in by_name[task.name]):
                    yield task.name, _outcome(client, by_name[task.name])


def _job_for(client: Client, task: _Task, seconds: float, *, again: bool) -> str:
    """Return the job that measures this: one that has found it, one that is under way, or a new one."""
    job = job_of(task.name, task.recipe, task.part, seconds)
    with scratch("inputs") as folder:
        write_inputs(task.recipe, folder)
        job["workdir_sha256"] = upload_workdir(client, folder, int(client.get("/v1/status")["max_upload_bytes"]))
    digest = hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()[:32]
    before = client.get("/v1/jobs", tag=f"{TAG}={digest}", limit=1000)
    for each in before:
        under_way = each["state"] not in ENDED and each["cancelled_by"] is None
        if under_way or (not again and each["state"] == "succeeded" and _event(client, each["id"]).get("readings")):
            return str(each["id"])
    # The token is the same for the same number of tries, so a repeated or interrupted submission makes one job.
    request = {"job": {**job, "tags": {TAG: digest}}, "token": f"{TAG}-{digest}-{len(before)}"}
    return str(client.post("/v1/jobs", [request])[0]["id"])


def _look(client: Client, task: _Task, *, wait_s: float) -> None:
    task.told = client.get(f"/v1/jobs/{task.job_id}", wait_s=wait_s)
    task.ended = task.told["state"] in ENDED


def _event(client: Client, job_id: str) -> dict[str, Any]:
    """Return what a job that was measured found; empty: nothing is known of it."""
    events = client.get("/v1/events", job_id=job_id, kind="job_profiled")
    return dict(events[-1]["fields"]) if events else {}


def _outcome(client: Client, tasks: Sequence[_Task]) -> ReferenceProfile | HCloudError:
    found = [_found(client, task) for task in tasks]
    try:
        return profile_of(tasks[0].name, tasks[0].recipe, found)
    except Unmeasurable as error:
        return error


def _found(client: Client, task: _Task) -> Part:
    fields, job = _event(client, task.job_id), task.told
    notes = tuple(fields.get("notes", ()))
    if job["state"] != "succeeded":
        said = _output(client, task.job_id, "stderr").strip().rpartition("\n")[2]
        notes = (f"{task.job_id} on {task.part.column} {job['state']}: {printable(said or job['outcome'])}", *notes)
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


def _output(client: Client, job_id: str, stream: str) -> str:
    """Return the beginning of a job's output, or nothing where it is lost."""
    try:
        answer = client.send("GET", f"/v1/jobs/{job_id}/logs", {"stream": stream, "limit": LOG_BYTES})
    except HCloudError:
        return ""
    return str(answer.content.decode(errors="replace"))
