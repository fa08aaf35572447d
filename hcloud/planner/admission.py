"""Which waiting jobs may go on, and in which order: those with a promise first, then by priority, then as submitted.

Nobody blocks anybody: a job that cannot be served lets those behind it pass. Best-effort jobs come last because they
run in what is left over; otherwise one of them could take the very room it was evicted from.

With queues by quality (ARQ, Dissertation ch. 6) the more demanding class goes first, so that it has its pick of good
machines, and everybody takes the lowest pool that suits: an easy job then finds what is left, and as it can use nearly
anything it is never blocked behind a demanding one. Inside a class the policy's order holds. A job whose slack is used
up comes before all that, so nobody starves.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from hcloud.model import Job, JobState, Reason
from hcloud.planner.draft import Draft
from hcloud.planner.suitability import Suitability, open_suitability
from hcloud.planner.wording import number_of, seconds


def queue_key(job: Job) -> tuple[bool, int, float, int]:
    """Return the job's place in the queue (smaller is served first)."""
    spec = job.spec
    return (spec.target.kind == "best_effort", -spec.priority, job.submitted_at, number_of(job.id))


def admit(draft: Draft) -> None:
    """Fill ``draft.queue`` from ``draft.waiting``; the others are told why they wait."""
    paused, now = draft.snapshot.paused, draft.now
    draft.suit = open_suitability(draft.snapshot, draft.policy, draft.fleet, draft.stopping)
    by_quality = draft.suit is not None and draft.policy.admission.queues == "by_quality"
    for job in _by_quality(draft, draft.suit) if by_quality and draft.suit else _in_order(draft.waiting):
        if paused:
            draft.wait(job, "paused", lambda: Reason(code="paused", text=f"nothing is started now: {paused}"))
        elif job.not_before_at > now:
            draft.wait(job, "backoff_until", lambda job=job: _backing_off(job, now))  # type: ignore[misc]
        else:
            group = draft.group_of(job)
            group.pending += 1
            queue = draft.queue[group.promise]
            if job.state is JobState.AWAITING_INSTANCE:
                draft.awaiting.append((group.promise, len(queue)))
            queue.append((job, group))


def _in_order(waiting: list[Job]) -> Iterator[Job]:
    """Yield jobs as :func:`queue_key` orders them; they come by number, so that stable sorting keeps it."""
    ranked: dict[tuple[bool, int], list[Job]] = {}
    for job in sorted(waiting, key=attrgetter("submitted_at")):
        ranked.setdefault((job.spec.target.kind == "best_effort", -job.spec.priority), []).append(job)
    for rank in sorted(ranked):
        yield from ranked[rank]


def _by_quality(draft: Draft, suit: Suitability) -> list[Job]:
    """Return waiting jobs: with a promise first; of these those out of patience, then class by class."""
    shortest = draft.policy.admission.order == "shortest"
    by_number = sorted(draft.waiting, key=attrgetter("submitted_at"))

    def key(job: Job) -> tuple[bool, bool, float, float]:
        left_s, best_effort = draft.slack_left_s(job), job.spec.target.kind == "best_effort"
        if left_s <= 0.0:
            return (best_effort, False, left_s, 0.0)
        inner = suit.run_s(job) if shortest else -float(job.spec.priority)
        return (best_effort, True, -float(suit.level(job.application)), inner)

    return sorted(by_number, key=key)


def _backing_off(job: Job, now: float) -> Reason:
    text = f"not before {seconds(job.not_before_at - now)} from now, after {len(job.failures)} failure(s)"
    return Reason(code="backoff_until", text=text, numbers={"until_at": job.not_before_at})
