"""Evict best-effort jobs, and optional ranks of running jobs, to make room for jobs with a target, if one can start
then.

The work lost counts at its price: where a launch in time costs less, nothing is evicted
(:mod:`hcloud.planner.provisioning.provision`). A rank is optional beyond those that its job needs to start and to meet
its target; it goes before any whole job. Of jobs of one priority the one that loses least goes first. A job is never
evicted once its retries are used up. Admission serves best effort last, and optional ranks come after all waiting jobs,
so that nothing takes back the room it was evicted from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from hcloud.core.model import Allocation, FailureCause, Job, Number, Reason
from hcloud.core.pricing import HOUR_S
from hcloud.planner.admission import queue_key
from hcloud.planner.context import PlanContext
from hcloud.planner.fit.sizing import ranks_for_target
from hcloud.planner.fleet import Amounts, vector
from hcloud.planner.job_groups import JobGroup
from hcloud.planner.occupancy import running_ranks
from hcloud.planner.placement.open_instances import beyond, suited
from hcloud.planner.plan import StopRank
from hcloud.planner.text import amount, size_share

CANDIDATES = 64
"""Number of instances compared when choosing what to evict."""


@dataclass(frozen=True, slots=True, eq=False)
class Evictable:
    """A best-effort job, or one optional rank of any job."""

    job: Job
    rank: Allocation | None
    """None: the job."""
    units: dict[int, list[Allocation]]
    """What it would release, by place of the instance; of a job, without its optional ranks."""
    lost_usd: float = 0.0
    """What the work cost that it would lose; an optional rank loses none."""

    def amount(self, at: int) -> Amounts:
        """Return what it would release on an instance, shape ``(4,)``."""
        total: Amounts = np.zeros(4)
        for held in self.units.get(at, ()):
            total += vector(held.resources)
        return total


@dataclass(slots=True)
class EvictionCandidates:
    """What may be evicted."""

    by_machine: defaultdict[int, list[Evictable]]
    """The candidates on each instance, those to evict first in front."""
    amounts: Amounts
    """What they hold on each instance, shape ``(4, N)``."""
    chosen: list[Evictable] = field(default_factory=list)
    """Those chosen so far."""

    @property
    def lost_usd(self) -> float:
        """What the work cost that the chosen jobs would lose."""
        return sum(each.lost_usd for each in self.chosen)


def _lost_usd(context: PlanContext, job: Job, units: Mapping[int, Sequence[Allocation]]) -> float:
    """Return what the units of a job cost since they were placed, or since a checkpoint, by their shares of their
    instances; inf for a profiling run."""
    fleet, attempt = context.fleet, job.attempt
    if job.spec.profile is not None:
        return inf  # another machine would be launched for it at once
    if attempt is None:
        return 0.0
    shares = (
        fleet.price_usd_per_h[at] * size_share(held.resources, fleet.instances[at].offer.instance_type.capacity)
        for at, on_it in units.items()
        for held in on_it
    )
    lost_s = max(0.0, context.now - attempt.placed_at)
    if job.spec.checkpoint is not None:
        lost_s = min(lost_s, job.spec.checkpoint.every_s)
    return float(sum(shares)) * lost_s / HOUR_S


def no_candidates(context: PlanContext) -> EvictionCandidates:
    """Return that nothing may be evicted."""
    return EvictionCandidates(defaultdict(list), np.zeros_like(context.fleet.room))


def find_evictable(context: PlanContext) -> EvictionCandidates:
    """Return what may be evicted; nothing if the policy forbids eviction."""
    candidates = no_candidates(context)
    occupancy = context.snapshot.plan_cache.occupancy
    if not context.policy.disruption.evict_best_effort:
        return candidates
    for job_id in sorted(occupancy.best_effort | occupancy.surplus):
        job = occupancy.rows[job_id]
        optional = optional_ranks(context, job) if job_id in occupancy.surplus else []
        for held in optional:
            _add(context, candidates, job, held, [held])
        if is_evictable(context, job):
            _add(context, candidates, job, None, [each for each in running_ranks(job) if each not in optional])
    for each in candidates.by_machine.values():
        each.sort(key=_goes_first)
    return candidates


def _add(
    context: PlanContext, candidates: EvictionCandidates, job: Job, rank: Allocation | None, held: Sequence[Allocation]
) -> None:
    units = defaultdict[int, list[Allocation]](list)
    for each in held:
        at = context.fleet.index.get(each.instance_id, -1)
        if at >= 0:
            units[at].append(each)
    lost_usd = _lost_usd(context, job, units) if rank is None else 0.0
    evictable = Evictable(job=job, rank=rank, units=dict(units), lost_usd=lost_usd)
    for at in units:
        candidates.by_machine[at].append(evictable)
        candidates.amounts[:, at] += evictable.amount(at)


def _goes_first(each: Evictable) -> tuple[bool, bool, int, float, float, int, int]:
    """Return the sort key of what goes first: optional ranks, then by priority what loses least, then the last in
    queue order."""
    best_effort, priority, submitted_at, number = queue_key(each.job)
    rank = each.rank.rank if each.rank is not None else 0
    return (each.rank is None, not best_effort, -priority, each.lost_usd, -submitted_at, -number, -rank)


def optional_ranks(context: PlanContext, job: Job) -> list[Allocation]:
    """Return the running ranks of ``job`` that may give way: those with the highest numbers, beyond what it needs."""
    if job.id in context.decisions.stopping or job.id in context.decisions.growing:
        return []
    known, now = context.snapshot.applications.get(job.application), context.now
    keep = ranks_for_target(job, known, now, context.policy.placement.confidence)
    running = [each for each in running_ranks(job) if each.yielded_at is None]
    return running[keep:]


def is_evictable(context: PlanContext, job: Job) -> bool:
    """Return whether ``job`` is best effort and may be evicted once more."""
    if job.spec.target.kind != "best_effort" or job.id in context.decisions.stopping or job.attempt is None:
        return False
    times, most = job.failures.count(FailureCause.EVICTED), job.spec.retries.limits.get(FailureCause.EVICTED.value, 0)
    return times < most


def evict_for(context: PlanContext, candidates: EvictionCandidates, group: JobGroup, taken_by: Sequence[int]) -> int:
    """Choose what to evict so that one more rank of ``group`` fits; return the instance, or -1. Adds nothing to the
    plan.

    The instance with the fewest evictions of jobs wins, then of ranks. ``taken_by`` are the instances of the job's
    other ranks.
    """
    fleet = context.fleet
    allowed = beyond(context, group, suited(context, group, fleet.placeable), taken_by)
    taken = group.taken_everywhere(fleet.capacity)
    enough = ((fleet.room + candidates.amounts) >= np.maximum(taken, group.demand[:, None]) - 1e-9).all(
        axis=0
    ) & allowed
    options = [(_needed(context, candidates, int(at), group), int(at)) for at in np.flatnonzero(enough)[:CANDIDATES]]
    feasible = [(sum(one.rank is None for one in each), len(each), at, each) for each, at in options if each]
    if not feasible:
        return -1
    *_, at, chosen = min(feasible, key=lambda option: option[:3])
    for each in chosen:
        _choose(context, candidates, each)
    return at


def _needed(context: PlanContext, candidates: EvictionCandidates, at: int, group: JobGroup) -> list[Evictable]:
    room, chosen, taken = context.fleet.room[:, at].copy(), list[Evictable](), context.reservations.amount_on(group, at)

    def enough() -> bool:
        return bool((room >= taken - 1e-9).all()) and _suits_without(context, at, group, chosen)

    for each in candidates.by_machine[at]:
        if enough():
            break
        room += each.amount(at)
        chosen.append(each)
    return chosen if enough() else []


def _suits_without(context: PlanContext, at: int, group: JobGroup, gone: list[Evictable]) -> bool:
    """Return whether instance ``at`` would suit ``group`` without the units of ``gone``."""
    if context.suit is None:
        return True
    units = [each.job.application for each in gone for _ in each.units[at]]
    return context.suit.suits_without(at, group.application, units)


def _choose(context: PlanContext, candidates: EvictionCandidates, chosen: Evictable) -> None:
    """Count what ``chosen`` holds on any instance as room."""
    candidates.chosen.append(chosen)
    for at, units in chosen.units.items():
        freed = chosen.amount(at)
        candidates.by_machine[at].remove(chosen)
        candidates.amounts[:, at] -= freed
        context.reservations.free(at, freed, [chosen.job.application] * len(units))


def put_back(context: PlanContext, candidates: EvictionCandidates) -> None:
    """Undo the choices; the caller has dropped the claims on their room."""
    for each in candidates.chosen:
        for at in each.units:
            candidates.amounts[:, at] += each.amount(at)
            candidates.by_machine[at].append(each)
            candidates.by_machine[at].sort(key=_goes_first)
    candidates.chosen.clear()


def stop_chosen(context: PlanContext, candidates: EvictionCandidates, job: Job) -> None:
    """Stop what was chosen, to make room for ``job``."""
    why = f"for {job.id}, which has a target and needs {amount(job.spec.resources)}"
    for each in candidates.chosen:
        victim = each.job
        if each.rank is None:
            times = victim.failures.count(FailureCause.EVICTED) + 1
            numbers: dict[str, Number] = {"for_job": job.id, "evictions": times}
            reason = Reason(code="evicted_for_promise", text=f"evicted {why}", numbers=numbers)
            context.decisions.stop(victim, FailureCause.EVICTED, reason)
        elif victim.id not in context.decisions.stopping:
            text = f"its optional rank {each.rank.rank} on {each.rank.instance_id} makes room {why}"
            numbers = {"for_job": job.id, "rank": each.rank.rank}
            reason = Reason(code="rank_yields", text=text, numbers=numbers)
            context.decisions.add(StopRank(job_id=victim.id, rank=each.rank.rank, reason=reason, yields=True))
        if context.suit is not None:
            for at in each.units:
                context.suit.unsettle(at)
    candidates.chosen.clear()
