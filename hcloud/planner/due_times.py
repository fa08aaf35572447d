"""The critical path: by when a job must have ended, so that the jobs that wait for it can keep their deadlines.

A job that others wait for has the slack that their deadlines leave it: the deadline of what follows, less the expected
run time of all that follows. The smallest of these over all paths is its due time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from hcloud.core.model import BatchTarget, Job, JobId
from hcloud.core.rows import replace_fields
from hcloud.core.units import utc_text
from hcloud.planner.text import seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class DueTime:
    """By when a job must have ended, and why."""

    at: float
    follows: JobId
    """The next job on the path."""
    deadline_job: JobId
    """The last job on the path, the deadline of which it is."""
    deadline_at: float
    """That deadline."""
    after_s: float
    """Expected run time of all jobs that follow on the path; those of unknown run time count as 0."""


def due_times(held: Sequence[Job], run_s: Callable[[Job], float | None]) -> dict[JobId, DueTime]:
    """Return the due time of each job that one of ``held``, which wait for others, waits for.

    Jobs that only wait for a failure are left out: usually nothing fails. ``run_s`` returns the expected run time.
    """
    upstreams = {job.id: {each.job_id for each in job.waits_for if each.ending != "failed"} for job in held}
    by_id = {job.id: job for job in held}
    open_followers = dict.fromkeys(upstreams, 0)
    for each in (name for names in upstreams.values() for name in names if name in by_id):
        open_followers[each] += 1
    due: dict[JobId, DueTime] = {}
    ready = [by_id[name] for name, count in open_followers.items() if not count]
    while ready:  # from the last jobs to the first, each after all that follow it
        job = ready.pop()
        own = _own_due(job, due.get(job.id), run_s(job) or 0.0)
        for name in upstreams[job.id]:
            if own is not None and (name not in due or own.at < due[name].at):
                due[name] = own
            if name in by_id:
                open_followers[name] -= 1
                if not open_followers[name]:
                    ready.append(by_id[name])
    return due


def _own_due(job: Job, due: DueTime | None, run_s: float) -> DueTime | None:
    """Return the due time of what ``job`` waits for, by its own deadline or by what follows it."""
    deadline_at = job.deadline_at
    if due is not None and (deadline_at is None or due.at < deadline_at):
        return replace(due, at=due.at - run_s, follows=job.id, after_s=due.after_s + run_s)
    if deadline_at is None:
        return None
    return DueTime(at=deadline_at - run_s, follows=job.id, deadline_job=job.id, deadline_at=deadline_at, after_s=run_s)


def planned_by(job: Job, due: DueTime) -> Job:
    """Return ``job`` as it is planned: with the due time as its deadline, unless its own is earlier."""
    own_at = job.deadline_at
    if job.spec.target.kind == "service" or (own_at is not None and own_at <= due.at):
        return job
    spec = replace(job.spec, target=BatchTarget(finish_by_at=due.at))
    return replace_fields(job, spec=spec, needed_for=due.deadline_job)


def critical_path(job_id: JobId, due: Mapping[JobId, DueTime], most: int = 6) -> str:
    """Return one sentence about the path from a job to the deadline that decides its due time; empty: there is none."""
    found = due.get(job_id)
    if found is None:
        return ""
    path = [job_id]
    while len(path) < most and path[-1] in due and path[-1] != found.deadline_job:
        path.append(due[path[-1]].follows)
    if path[-1] != found.deadline_job:
        path += ["...", found.deadline_job]
    text = f"critical path: {' -> '.join(path)}; {found.deadline_job} is due at {utc_text(round(found.deadline_at))}"
    return (
        f"{text}, what follows takes about {seconds(found.after_s)}: {job_id} should end by {utc_text(round(found.at))}"
    )
