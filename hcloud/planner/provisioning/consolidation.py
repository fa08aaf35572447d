"""Consolidate: empty an instance if its jobs fit on others and that saves more than it costs.

This happens only while nothing else is going on: no job waits, no instance boots or drains, and no unit is stopping. At
most one instance per plan is drained; its jobs are stopped, and placed elsewhere by a later plan. The saving is its
price for a lease horizon. The cost is the work its jobs repeat and the gap until they run again, at the price of their
destination.

Hysteresis keeps noise from moving jobs: the saving must be a multiple of the cost, and no job is moved soon after it
was placed. Jobs move only to instances that stay in any case, so each move leaves one instance fewer.

Whatever the policy says of moving jobs, no machine is paid for only because of ranks that their jobs do not need
(:func:`give_up_optional_ranks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hcloud.core.model import FailureCause, InstanceState, Job, Market, Number, Reason
from hcloud.planner.context import PlanContext
from hcloud.planner.fleet import Mask
from hcloud.planner.placement.open_instances import usable
from hcloud.planner.plan import Drain, Place, StopRank
from hcloud.planner.provisioning.eviction import optional_ranks
from hcloud.planner.text import seconds, size_share, usd
from hcloud.spec.validation import counted

LEASE_MARGIN_S = 300.0
"""An instance with a lease to renew sooner than this is skipped, since that decision is about to be made anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainCandidate:
    """An instance that could be emptied."""

    at: int
    jobs: tuple[Job, ...]
    """Its jobs, in the order in which they are placed again."""
    targets: tuple[int, ...]
    """Where each job would go."""
    saved_usd: float
    cost_usd: float


def consolidate(context: PlanContext) -> None:
    """Stop optional ranks that alone keep an instance, else drain the instance with the largest net saving, if any
    saves enough."""
    policy = context.policy.disruption
    if give_up_optional_ranks(context) or not policy.consolidate or not _is_calm(context):
        return
    candidates = [each for at in _rented(context) if (each := _candidate(context, at)) is not None]
    worthwhile = [each for each in candidates if each.saved_usd >= policy.consolidate_gain * each.cost_usd]
    if worthwhile:
        # Of equal ones, the first has the lowest number.
        _drain(context, max(worthwhile, key=lambda each: each.saved_usd - each.cost_usd))


def give_up_optional_ranks(context: PlanContext) -> bool:
    """Stop the optional ranks that alone keep a rented instance, so that it is released; return whether there were any.

    They have run for ``consolidate_rest_s``, so that a rank that took idle room also does some work.
    """
    occupancy, policy = context.snapshot.plan_cache.occupancy, context.policy.disruption
    if not occupancy.surplus or not policy.evict_best_effort:
        return False
    if context.snapshot.paused or not context.snapshot.engine_reachable:
        return False
    rested_at = context.now - policy.consolidate_rest_s
    optional = {
        (job_id, held.rank)
        for job_id in occupancy.surplus
        if not (job := occupancy.rows[job_id]).unmet_code and job_id not in context.snapshot.unreadable_secrets
        for held in optional_ranks(context, job)
        if held.started_at is not None and held.started_at <= rested_at
    }
    placed = {
        each.instance_id for action in context.decisions.actions if isinstance(action, Place) for each in action.ranks
    }
    found = False
    for at in context.fleet.staying if optional else ():
        instance, holdings = context.fleet.instances[at], context.fleet.holdings[at]
        is_rented = instance.offer.market is not Market.RESERVED and instance.offer.price_usd_per_h > 0.0
        if (
            not (is_rented and holdings and context.fleet.placeable[at])
            or at in context.reservations.awaited
            or instance.id in placed
        ):
            continue
        if not all((job.id, held.rank) in optional for job, held in holdings):
            continue
        found = True
        for job, held in holdings:
            text = f"its optional rank {held.rank} alone keeps {instance.id} ({usd(instance.offer.price_usd_per_h)}/h)"
            numbers: dict[str, Number] = {"rank": held.rank, "price_usd_per_h": instance.offer.price_usd_per_h}
            reason = Reason(code="rank_yields", text=f"{text}, and it can do without", numbers=numbers)
            context.decisions.add(StopRank(job_id=job.id, rank=held.rank, reason=reason, yields=True))
    return found


def _is_calm(context: PlanContext) -> bool:
    """Return whether nothing is going on that needs room or has just changed the fleet."""
    fleet = context.fleet
    changing = bool(
        bool(context.waiting) or context.decisions.stopping or context.decisions.terminating or context.snapshot.paused
    )
    if changing or not context.snapshot.engine_reachable:
        return False
    return all(fleet.instances[at].state is InstanceState.READY for at in fleet.staying)


def _rented(context: PlanContext) -> list[int]:
    """Return the instances that might be emptied: rented, in use, and not about to be renewed."""
    fleet, due_s = context.fleet, context.policy.lease.renew_before_s + LEASE_MARGIN_S
    return [
        at
        for at in fleet.staying
        if fleet.placeable[at]
        and fleet.holdings[at]
        and at not in context.reservations.used
        and fleet.instances[at].offer.market is not Market.RESERVED
        and fleet.instances[at].expires_at - context.now > due_s
    ]


def _candidate(context: PlanContext, at: int) -> DrainCandidate | None:
    """Return what emptying instance ``at`` would save and cost; None if one of its jobs cannot be moved."""
    jobs = sorted({job.id: job for job, _ in context.fleet.holdings[at]}.values(), key=_queue_order)
    if not all(_movable(context, job) for job in jobs):
        return None
    targets = _find_targets(context, at, jobs)
    if len(targets) < len(jobs):
        return None
    price, offer = context.fleet.instances[at].offer.price_usd_per_h, context.fleet.instances[at].offer
    since = context.fleet.instances[at].launched_at or context.now
    paid_s = max(0.0, since + offer.billing_minimum_s - context.now)
    saved_usd = price * max(0.0, context.policy.lease.horizon_s - paid_s) / 3600.0
    cost_usd = sum(_cost_usd(context, job, to) for job, to in zip(jobs, targets, strict=True))
    return DrainCandidate(at=at, jobs=tuple(jobs), targets=tuple(targets), saved_usd=saved_usd, cost_usd=cost_usd)


def _queue_order(job: Job) -> tuple[bool, float]:
    # In another order, such as the largest first, jobs may fit that will not: an instance would be launched for them.
    return (job.spec.target.kind == "best_effort", job.submitted_at)


def _movable(context: PlanContext, job: Job) -> bool:
    """Return whether ``job`` may be stopped and restarted elsewhere now without missing its target."""
    attempt, spec = job.attempt, job.spec
    if attempt is None or spec.nodes.count > 1 or spec.stateful or not spec.interruptible or spec.profile is not None:
        return False
    if job.id in context.snapshot.unreadable_secrets:
        return False
    ran_s, cause = context.now - attempt.placed_at, FailureCause.EVICTED
    if ran_s < context.policy.disruption.consolidate_rest_s:
        return False
    if job.failures.count(cause) >= spec.retries.limits.get(cause.value, 0):
        return False
    # The expected remaining time equals the time run so far (Lindy); restarted, it takes twice that.
    again_s = context.policy.disruption.move_gap_s + 2.0 * ran_s
    return job.deadline_at is None or context.now + again_s <= job.deadline_at


def _find_targets(context: PlanContext, at: int, jobs: Sequence[Job]) -> list[int]:
    """Return the destinations of ``jobs`` of instance ``at``, in order; fewer if one finds no room."""
    fleet, targets = context.fleet, list[int]()
    stays = _staying(context, at)
    for job in jobs:
        group = context.group_of(job)
        to = fleet.least_loaded(group.asks, usable(context, group, stays))
        if to < 0:
            break
        fleet.use(to, context.reservations.amount_on(group, to))
        targets.append(to)
    for job, to in zip(jobs, targets, strict=False):
        fleet.unuse(to, context.reservations.amount_on(context.group_of(job), to))
    return targets


def _staying(context: PlanContext, at: int) -> Mask:
    """Return the instances that stay in any case: reserved, or in use and not near the end of their lease."""
    fleet = context.fleet
    stays: Mask = np.zeros(len(fleet.instances), dtype=np.bool_)
    for other in fleet.staying:
        reserved = fleet.instances[other].offer.market is Market.RESERVED
        stays[other] = other != at and (reserved or bool(fleet.holdings[other]))
    return stays & fleet.placeable


def _cost_usd(context: PlanContext, job: Job, to: int) -> float:
    """Return what moving ``job`` to instance ``to`` costs in USD: the work to repeat (none for a service) and the
    gap."""
    target = context.fleet.instances[to]
    ran_s = context.now - job.attempt.placed_at if job.attempt is not None else 0.0
    lost_s = context.policy.disruption.move_gap_s + (0.0 if job.spec.target.kind == "service" else ran_s)
    return target.offer.price_usd_per_h * size_share(job.spec.resources, target) * lost_s / 3600.0


def _drain(context: PlanContext, chosen: DrainCandidate) -> None:
    instance = context.fleet.instances[chosen.at]
    names = ", ".join(dict.fromkeys(context.fleet.instances[to].id for to in chosen.targets))
    numbers: dict[str, Number] = {
        "jobs": len(chosen.jobs),
        "saved_usd": round(chosen.saved_usd, 6),
        "cost_usd": round(chosen.cost_usd, 6),
        "gain_wanted": context.policy.disruption.consolidate_gain,
        "targets": names,
    }
    text = (
        f"consolidating {instance.id}: {counted(len(chosen.jobs), 'job')} fit on {names}, saves {usd(chosen.saved_usd)}"
    )
    text += f" in {seconds(context.policy.lease.horizon_s)} at a cost of {usd(chosen.cost_usd)} (repeated work, gaps)"
    reason = Reason(code="consolidated", text=text, numbers=numbers)
    context.decisions.add(Drain(instance_id=instance.id, reason=reason))
    for job in chosen.jobs:
        context.decisions.stop(job, FailureCause.EVICTED, reason)
