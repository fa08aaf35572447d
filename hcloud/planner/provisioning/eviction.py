"""Evict best-effort jobs to make room for jobs with a target, if one can start then.

There is no churn: an evicted job is left alone for ``disruption.evict_rest_s`` after its restart, and never evicted
once its retries are used up. Admission serves best effort last, so no job takes back the room it was evicted from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hcloud.core.model import Allocation, FailureCause, Job, Number, Reason
from hcloud.planner.admission import queue_key
from hcloud.planner.context import JobGroup, PlanContext
from hcloud.planner.fleet import Amounts, vector
from hcloud.planner.placement.place import beyond, suited
from hcloud.planner.text import amount

CANDIDATES = 64
"""Number of instances compared when choosing what to evict."""


@dataclass(slots=True)
class EvictionCandidates:
    """Best-effort jobs that may be evicted."""

    by_machine: defaultdict[int, list[Job]]
    """The jobs on each instance, those to evict first in front."""
    amounts: Amounts
    """What they hold on each instance, shape ``(3, N)``."""
    chosen: list[Job] = field(default_factory=list)
    """Jobs chosen so far."""


def find_evictable(context: PlanContext) -> EvictionCandidates:
    """Return the jobs that may be evicted; none if the policy forbids eviction."""
    candidates = EvictionCandidates(defaultdict(list), np.zeros_like(context.fleet.room))
    if context.policy.disruption.evict_best_effort and context.snapshot.plan_cache.occupancy.best_effort:
        for at, held in enumerate(context.fleet.holdings):
            if context.fleet.placeable[at]:
                _collect(context, candidates, at, held)
    return candidates


def _collect(context: PlanContext, candidates: EvictionCandidates, at: int, held: list[tuple[Job, Allocation]]) -> None:
    for job, allocation in held:
        if is_evictable(context, job):
            candidates.amounts[:, at] += vector(allocation.resources)
            if job not in candidates.by_machine[at]:
                candidates.by_machine[at].append(job)
    candidates.by_machine[at].sort(key=queue_key, reverse=True)


def is_evictable(context: PlanContext, job: Job) -> bool:
    """Return whether ``job`` is best effort, ran long enough since its last eviction, and may be evicted once more."""
    if job.spec.target.kind != "best_effort" or job.id in context.stopping or job.attempt is None:
        return False
    times, cause = job.failures.count(FailureCause.EVICTED), FailureCause.EVICTED.value
    rested = times == 0 or context.now - job.attempt.placed_at >= context.policy.disruption.evict_rest_s
    return rested and times < job.spec.retries.limits.get(cause, 0)


def evict_for(context: PlanContext, candidates: EvictionCandidates, group: JobGroup, taken_by: Sequence[int]) -> int:
    """Choose jobs to evict so that one more rank of ``group`` fits; return the instance, or -1. Adds nothing to the
    plan.

    The instance with the fewest evictions wins; on it, the jobs last in queue order go first. ``taken_by`` are the
    instances of the job's other ranks.
    """
    fleet = context.fleet
    allowed = beyond(context, group, suited(context, group, fleet.placeable), taken_by)
    taken = group.taken_everywhere(fleet.capacity)
    enough = ((fleet.room + candidates.amounts) >= np.maximum(taken, group.demand[:, None]) - 1e-9).all(
        axis=0
    ) & allowed
    options = [(_needed(context, candidates, int(at), group), int(at)) for at in np.flatnonzero(enough)[:CANDIDATES]]
    feasible = [(len(jobs), at, jobs) for jobs, at in options if jobs]
    if not feasible:
        return -1
    _, at, jobs = min(feasible, key=lambda option: option[:2])
    for job in jobs:
        _choose(context, candidates, job)
    return at


def _needed(context: PlanContext, candidates: EvictionCandidates, at: int, group: JobGroup) -> list[Job]:
    room, chosen, taken = context.fleet.room[:, at].copy(), list[Job](), context.amount_on(group, at)

    def enough() -> bool:
        return bool((room >= taken - 1e-9).all()) and _suits_without(context, at, group, chosen)

    for job in candidates.by_machine[at]:
        if enough():
            break
        room += _amount(context, job, at)
        chosen.append(job)
    return chosen if enough() else []


def _suits_without(context: PlanContext, at: int, group: JobGroup, gone: list[Job]) -> bool:
    """Return whether instance ``at`` would suit ``group`` without the units of ``gone``."""
    if context.suit is None or not group.application:
        return True
    units = [job.application for job in gone for holder, _ in context.fleet.holdings[at] if holder.id == job.id]
    return context.suit.suits_without(at, group.application, units)


def _choose(context: PlanContext, candidates: EvictionCandidates, job: Job) -> None:
    """Count what ``job`` holds on any instance as room."""
    candidates.chosen.append(job)
    for at in _machines(context, job):
        freed = _amount(context, job, at)
        candidates.by_machine[at].remove(job)
        candidates.amounts[:, at] -= freed
        context.fleet.room[:, at] += freed
        if context.suit is not None:
            for _ in (True for holder, _ in context.fleet.holdings[at] if holder.id == job.id):
                context.suit.leave(at, job.application)


def put_back(context: PlanContext, candidates: EvictionCandidates) -> None:
    """Undo the choices; the caller has restored ``fleet.room`` and ``suit``."""
    for job in candidates.chosen:
        for at in _machines(context, job):
            candidates.amounts[:, at] += _amount(context, job, at)
            candidates.by_machine[at].append(job)
            candidates.by_machine[at].sort(key=queue_key, reverse=True)
    candidates.chosen.clear()


def _machines(context: PlanContext, job: Job) -> list[int]:
    """Return where ``job`` has units that would make room."""
    held = job.attempt.allocations if job.attempt is not None else ()
    places = {context.fleet.index.get(a.instance_id, -1) for a in held if not a.released}
    return sorted(at for at in places if at >= 0 and context.fleet.placeable[at])


def _amount(context: PlanContext, job: Job, at: int) -> Amounts:
    total: Amounts = np.zeros(3)
    for holder, allocation in context.fleet.holdings[at]:
        if holder.id == job.id:
            total += vector(allocation.resources)
    return total


def stop_chosen(context: PlanContext, candidates: EvictionCandidates, job: Job) -> None:
    """Stop the chosen jobs to make room for ``job``."""
    for victim in candidates.chosen:
        numbers: dict[str, Number] = {"for_job": job.id, "evictions": victim.failures.count(FailureCause.EVICTED) + 1}
        text = f"evicted for {job.id}, which has a target and needs {amount(job.spec.resources)}"
        context.stop(victim, FailureCause.EVICTED, Reason(code="evicted_for_promise", text=text, numbers=numbers))
        if context.suit is not None:
            for at in _machines(context, victim):
                context.suit.unsettle(at)
    candidates.chosen.clear()
