"""Which waiting jobs may go on, and in which order: those with a promise first, then by priority, then as submitted.

Nobody blocks anybody: a job that cannot be served lets those behind it pass. Best-effort jobs come last because they
run in what is left over; otherwise one of them could take the very room it was evicted from.

With queues by quality (ARQ, Dissertation ch. 6) the more demanding class goes first, so that it has its pick of good
machines, and everybody takes the lowest pool that suits: an easy job then finds what is left, and as it can use nearly
anything it is never blocked behind a demanding one. Inside a class the policy's order holds. A job whose slack is used
up comes before all that. Each gets only what suits it, by neighbours and type; then those whose slack is used up take,
in the same order, what nobody has found to suit it (placement). One that has waited for as long as any may takes
anything when its turn comes, so nobody starves.
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
    """Return the job's place in the queue (smaller is served first)."""
    spec = job.spec
    return (spec.target.kind == "best_effort", -spec.priority, job.submitted_at, number_of(job.id))


def admit(context: PlanContext) -> None:
    """Fill ``draft.queue`` from ``draft.waiting``; the others are told why they wait."""
    paused, now, awaiting = context.snapshot.paused, context.now, JobState.AWAITING_INSTANCE
    for pair in _served_in_order(context):
        job, group = pair
        if paused:
            context.wait(
                job,
                "paused",
                lambda: Reason(code="paused", text=f"waiting: launches and placements are paused ({paused})"),
            )
        elif job.not_before_at > now:
            context.wait(job, "backoff_until", lambda job=job: _backing_off(job, now))  # type: ignore[misc]
        else:
            group.pending += 1
            queue = context.queue[group.promise]
            if job.state is awaiting:
                context.awaiting.append((group.promise, len(queue)))
            queue.append(pair)


def _served_in_order(context: PlanContext) -> Iterable[tuple[Job, JobGroup]]:
    """Return who is served first, each with its group."""
    context.suit = open_suitability(context.snapshot, context.policy, context.fleet, context.stopping)
    if context.suit is not None and context.policy.admission.queues == "by_quality":
        return _by_quality(context, context.suit)
    return ((job, context.group_of(job)) for job in _in_order(context.waiting))


def _in_order(waiting: list[Job]) -> Iterator[Job]:
    """Yield jobs as :func:`queue_key` orders them; they come by number, so that stable sorting keeps it."""
    ranked: dict[tuple[bool, int], list[Job]] = {}
    for job in sorted(waiting, key=attrgetter("submitted_at")):
        ranked.setdefault((job.spec.target.kind == "best_effort", -job.spec.priority), []).append(job)
    for rank in sorted(ranked):
        yield from ranked[rank]


def _by_quality(context: PlanContext, suit: Suitability) -> Iterable[tuple[Job, JobGroup]]:
    """Return waiting jobs: with a promise first; of these those out of patience, then class by class."""
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
    if context.policy.admission.order == "shortest":
        inner = np.nan_to_num(expected_s, nan=np.inf)
    else:
        inner = np.array([-job.spec.priority for job in jobs], dtype=np.float64)
    late = left_s <= 0.0
    demanding = np.where(late, left_s, -classes[of_kind])
    # The last key counts most; jobs come by number, and what is equal keeps its order.
    order = np.lexsort((submitted_at, np.where(late, 0.0, inner), demanding, ~late, best_effort[of_kind]))
    return map(pairs.__getitem__, order.tolist())


def _queued_at(context: PlanContext, jobs: Sequence[Job]) -> Amounts:
    """Return :meth:`PlanContext.queued_at` of many jobs at once."""
    now, enqueued = context.now, context.enqueued
    since = [now if job.queued_at is None else job.queued_at for job in jobs]
    if enqueued:
        since = [now if job.id in enqueued else at for job, at in zip(jobs, since, strict=True)]
    return np.array(since, dtype=np.float64)


def _backing_off(job: Job, now: float) -> Reason:
    text = f"retrying in {seconds(job.not_before_at - now)} ({counted(len(job.failures), 'failure')})"
    return Reason(code="backoff_until", text=text, numbers={"until_at": job.not_before_at})
