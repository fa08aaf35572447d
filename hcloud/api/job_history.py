"""A job's timeline over the API: its events and those of the machines that it waited for or ran on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from hcloud.core.errors import NotFound
from hcloud.core.model import Event, EventKind, Instance, Job, JobId, JobState
from hcloud.core.task_runs import ends_of_text
from hcloud.forecast.runtimes.prediction import RECORDED_IN
from hcloud.planner.explain import TimelineStep, job_timeline, machines_of, predicted_run
from hcloud.store import Store

_TIMELINE_KINDS = frozenset(EventKind) - {EventKind.SAMPLE}
OWNERS_KINDS = frozenset({EventKind.SAMPLE, EventKind.JOB_PROFILED, EventKind.EXEC})
"""What was measured of a job, and done in it: for its owner and admins only."""
OWNERS_FIELDS = frozenset({"features", "image", RECORDED_IN})
"""What a job runs, as far as it predicts the run time, and in which image; and what was predicted: likewise."""
MAX_EVENTS = 10_000
MAX_MACHINES = 50
"""Machines with events in the timeline; further ones appear only in the job's own events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One event of the timeline."""

    at: float
    after_s: float
    """Seconds since submission."""
    code: str
    """Stable code of its reason."""
    text: str
    numbers: Mapping[str, object]
    """The numbers of the reason, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTimeline:
    """Timeline of a job."""

    job: JobId
    name: str
    state: JobState
    steps: tuple[Step, ...]
    run_time: str
    """How long it runs, by past runs, and the probability to meet its deadline; if it has ended, what was predicted at
    its start, and how long it ran. "" if none is known."""
    planned_start: str
    """When it is to start by the last plan, and the probability to meet its deadline then; "" unless it waits for room
    that is paid already."""
    critical_path: str
    """By when it should end, so that jobs that wait for it keep their deadlines, and by which path; "" if there is
    none."""
    fair_share: str
    """What its owner used lately, which orders waiting jobs of one priority; "" without fair share."""
    profiling: str
    """Why no copies of it are profiled beside it; "" unless it runs and its program is unknown."""
    asks_for: str
    """Image, framework, GPUs, secret variables, outputs and growing memory, the most of it for its owner only; "" if
    nothing of it."""
    inputs: str
    """What it finds in its work directory, for its owner; "" if nothing that machines fetch."""
    checkpoint: str
    """What is kept for its next attempt; "" if it has ended, or keeps no checkpoints."""
    lines: tuple[str, ...]
    """The same as text, with a heading."""


def shown_to_others(event: Event) -> Event:
    """Return an event of a job as callers see it who may not see what the job does."""
    if event.kind in OWNERS_KINDS:
        return replace(event, fields={})
    if OWNERS_FIELDS.isdisjoint(event.fields):
        return event
    return replace(event, fields={key: each for key, each in event.fields.items() if key not in OWNERS_FIELDS})


def build_timeline(
    store: Store,
    job: Job,
    *,
    whole: bool,
    run_time: str = "",
    planned_start: str = "",
    critical_path: str = "",
    fair_share: str = "",
    profiling: str = "",
    asks_for: str = "",
    inputs: str = "",
    checkpoint: str = "",
) -> JobTimeline:
    """Return the timeline of ``job`` from the event log; unless ``whole``, without what only its owner may see.

    The others are sentences about it, shown below the heading: see :class:`JobTimeline`.
    """
    kinds = _TIMELINE_KINDS if whole else _TIMELINE_KINDS - OWNERS_KINDS
    events = list(store.events(job_id=job.id, kinds=kinds, limit=MAX_EVENTS))
    if job.array and not events:
        events = _run_of(store, job)
    machines = _load_machines(store, job, events)
    until = job.finished_at
    for machine in machines:  # only events during the job's life belong to its timeline
        machine_events = store.events(
            instance_id=machine.id, kinds=_TIMELINE_KINDS, since=job.submitted_at, limit=MAX_EVENTS
        )
        events += [event for event in machine_events if until is None or event.at <= until]
    if not whole:
        events = [shown_to_others(event) for event in events]
    run_time = run_time or predicted_run(job, events)
    timeline = job_timeline(job, list({event.seq: event for event in events}.values()), machines)
    steps = tuple(_step(job, line) for line in timeline)
    state = job.outcome if job.outcome.startswith(job.state) else f"{job.state}, {job.outcome}".removesuffix(", ")
    heading = f"{job.id} {job.spec.name} of {job.spec.user}: {state}"
    about = (heading, run_time, planned_start, critical_path, fair_share, profiling, asks_for, inputs, checkpoint)
    heads = tuple(each for each in about if each)
    lines = (*heads, *(f"{step.after_s:>9.1f} s  {step.text}" for step in steps))
    return JobTimeline(
        job=job.id,
        name=job.spec.name,
        state=job.state,
        steps=steps,
        run_time=run_time,
        planned_start=planned_start,
        critical_path=critical_path,
        fair_share=fair_share,
        profiling=profiling,
        asks_for=asks_for,
        inputs=inputs,
        checkpoint=checkpoint,
        lines=lines,
    )


def _run_of(store: Store, task: Job) -> list[Event]:
    """Return the event of the unit in which a task without events of its own has ended; empty: there is none."""
    for event in store.events(job_id=task.array, kinds=(EventKind.TASKS_ENDED,), limit=MAX_EVENTS):
        given = event.fields.get("ended")
        ended = [ends_of_text(str(each)) for each in (given if isinstance(given, list | tuple) else ())]
        if any(each.first <= task.task_position <= each.last for each in ended):
            return [event]
    return []


def _load_machines(store: Store, job: Job, events: Sequence[Event]) -> list[Instance]:
    machines = []
    for instance_id in sorted(machines_of(job, events))[:MAX_MACHINES]:
        with suppress(NotFound):
            machines.append(store.instance(instance_id))
    return machines


def _step(job: Job, line: TimelineStep) -> Step:
    numbers = {key: value for key, value in line.numbers.items() if value is not None}
    return Step(at=line.at, after_s=line.at - job.submitted_at, code=line.code, text=line.text, numbers=numbers)
