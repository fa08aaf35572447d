"""Decide which waiting jobs are served, and in which order: jobs with a target first, then by priority, then oldest
first. Best-effort jobs come last; otherwise one could take back the room it was evicted from.

A job that cannot be served lets those behind it pass, except that room is reserved for the first in order that finds
none, and for any job whose deadline comes near (:mod:`hcloud.planner.placement.room_reservation`). A job without a
deadline behind a stream of jobs that come before it in order may still wait without limit.

With queues by quality (ARQ, Dissertation ch. 6), among jobs of one priority the more demanding class goes first, so
that it can choose among the good instances, and every job takes the worst pool that suits it. So a job goes up to a
better pool only past an empty queue: no job above that the same room would suit is left waiting. Within a class the
policy's order holds. Jobs whose slack is used up come before all others of their priority. In a first pass each job
gets only what suits it, by neighbours and type. In a second pass, jobs without slack take what is left, in the same
order. A job that has waited for ``patience_cap_s`` accepts any room.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

import numpy as np

from hcloud.core.model import Job, JobState, Reason
from hcloud.core.rows import number_of
from hcloud.planner.context import JobGroup, PlanContext
from hcloud.planner.fit.arq import slacks_s
from hcloud.planner.fit.suitability import Suitability, open_suitability
from hcloud.planner.fleet import Amounts
from hcloud.planner.text import seconds
from hcloud.spec.validation import counted


def queue_key(job: Job) -> tuple[bool, int, float, int]:
    """Return the sort key of the job in the queue; the smallest is served first."""
    spec = job.spec
    return (spec.target.kind == "best_effort", -spec.priority, job.submitted_at, number_of(job.id))


def admit(context: PlanContext) -> None:
    """Fill ``context.queue`` from ``context.waiting``, and record why the other jobs wait."""
    paused, now, awaiting = context.snapshot.paused, context.now, JobState.AWAITING_INSTANCE
    context.suit = open_suitability(
        context.snapshot, context.policy, context.order.needs, context.fleet, context.stopping
    )
    if context.suit is not None and context.policy.admission.queues == "by_quality":
        pairs = _by_quality(context, context.suit)
    else:
        pairs = ((job, context.group_of(job)) for job in _by_priority(context.waiting))
    for pair in pairs:
        job, group = pair
        if paused:
            context.wait(
                job,
                "paused",
                lambda: Reason(code="paused", text=f"launches and placements are paused ({paused})"),
            )
        elif job.not_before_at > now:
            context.wait(job, "backoff_until", lambda job=job: _backoff_reason(job, now))  # type: ignore[misc]
        else:
            group.pending += 1
            group.queued = True
            queue = context.queue[group.promise]
            if job.state is awaiting:
                context.awaiting.append((group.promise, len(queue)))
            queue.append(pair)


def _by_priority(waiting: list[Job]) -> Iterator[Job]:
    """Yield jobs in the order of :func:`queue_key`. They arrive by number, and stable sorting keeps that."""
    ranked: dict[tuple[bool, int], list[Job]] = {}
    for job in sorted(waiting, key=attrgetter("submitted_at")):
        ranked.setdefault((job.spec.target.kind == "best_effort", -job.spec.priority), []).append(job)
    for rank in sorted(ranked):
        yield from ranked[rank]


def _by_quality(context: PlanContext, suit: Suitability) -> Iterable[tuple[Job, JobGroup]]:
    """Return the waiting jobs: best effort last; by priority; then those without slack, then class by class."""
    jobs, now = context.waiting, context.now
    pairs = [(job, context.group_of(job)) for job in jobs]
    kinds = list(context.groups.values())
    if not jobs:
        return []
    of_kind = np.array([group.place for _, group in pairs], dtype=np.intp)
    expected = [suit.expected_s(group.application, group.wanted) for group in kinds]
    expected_s = np.array(expected, dtype=np.float64)[of_kind]
    classes = np.array([suit.quality_class(group.application) for group in kinds])
    best_effort = np.array([not group.promise for group in kinds])
    submitted_at, queued_at = np.array([job.submitted_at for job in jobs]), _queued_at(context, jobs)
    left_s = slacks_s(jobs, submitted_at, queued_at, expected_s, context.policy.admission) - (now - queued_at)
    shortest = context.policy.admission.order == "shortest"
    inner = np.nan_to_num(expected_s, nan=np.inf) if shortest else np.zeros(len(jobs))
    late = left_s <= 0.0
    demanding = np.where(late, left_s, -classes[of_kind])
    behind = -np.array([job.spec.priority for job in jobs], dtype=np.float64)
    # ``lexsort`` sorts by the last key first; jobs come by number, and equal ones keep that order.
    order = np.lexsort((submitted_at, np.where(late, 0.0, inner), demanding, ~late, behind, best_effort[of_kind]))
    return map(pairs.__getitem__, order.tolist())


def _queued_at(context: PlanContext, jobs: Sequence[Job]) -> Amounts:
    now, enqueued = context.now, context.enqueued
    since = [now if job.queued_at is None else job.queued_at for job in jobs]
    if enqueued:
        since = [now if job.id in enqueued else at for job, at in zip(jobs, since, strict=True)]
    return np.array(since, dtype=np.float64)


def _backoff_reason(job: Job, now: float) -> Reason:
    text = f"retrying in {seconds(job.not_before_at - now)} ({counted(len(job.failures), 'failure')})"
    return Reason(code="backoff_until", text=text, numbers={"until_at": job.not_before_at})
