"""A job's story over the API: the planner's telling of its events and of the machines it awaited or ran on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from hcloud.core.errors import NotFound
from hcloud.core.model import Event, EventKind, Instance, Job, JobId, JobState
from hcloud.planner.explain import TimelineStep, job_timeline, machines_of
from hcloud.store import Store

_TOLD = frozenset(EventKind) - {EventKind.SAMPLE}
MOST_EVENTS = 10_000
MOST_MACHINES = 50
"""Of a job that awaited more machines, the story of the later ones is told by the job's own events alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that happened ``after_s`` seconds after submission. ``code`` is the stable name of its reason."""

    at: float
    after_s: float
    code: str
    text: str
    numbers: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Everything decided about a job; ``lines`` is the same for reading."""

    job: JobId
    name: str
    state: JobState
    steps: tuple[Step, ...]
    lines: tuple[str, ...]


def job_story(store: Store, job: Job) -> Story:
    """Return the timeline of ``job`` from the event log."""
    events = list(store.events(job_id=job.id, kinds=_TOLD, limit=MOST_EVENTS))
    machines = _machines(store, job, events)
    until = job.finished_at
    for machine in machines:  # what became of them before and after is not this job's story
        lived = store.events(instance_id=machine.id, kinds=_TOLD, since=job.submitted_at, limit=MOST_EVENTS)
        events += [event for event in lived if until is None or event.at <= until]
    told = job_timeline(job, list({event.seq: event for event in events}.values()), machines)
    steps = tuple(_step(job, line) for line in told)
    state = job.outcome if job.outcome.startswith(job.state) else f"{job.state}, {job.outcome}".removesuffix(", ")
    heading = f"{job.id} {job.spec.name} of {job.spec.user}: {state}"
    lines = (heading, *(f"{step.after_s:>9.1f} s  {step.text}" for step in steps))
    return Story(job=job.id, name=job.spec.name, state=job.state, steps=steps, lines=lines)


def _machines(store: Store, job: Job, events: Sequence[Event]) -> list[Instance]:
    found = []
    for instance_id in sorted(machines_of(job, events))[:MOST_MACHINES]:
        with suppress(NotFound):
            found.append(store.instance(instance_id))
    return found


def _step(job: Job, line: TimelineStep) -> Step:
    numbers = {key: value for key, value in line.numbers.items() if value is not None}
    return Step(at=line.at, after_s=line.at - job.submitted_at, code=line.code, text=line.text, numbers=numbers)
