"""Give up optional ranks (``nodes: 1..8``) that alone keep a machine: none is paid for only because of ranks that their
jobs do not need."""

from __future__ import annotations

from hcloud.core.model import Market, Number, Reason
from hcloud.planner.context import PlanContext
from hcloud.planner.plan import Place, StopRank
from hcloud.planner.provisioning.eviction import optional_ranks
from hcloud.planner.text import usd


def give_up_optional_ranks(context: PlanContext) -> None:
    """Stop the optional ranks that alone keep a rented instance, so that it is released.

    They have run for ``optional_ranks_rest_s``, so that a rank that took idle room also does some work.
    """
    occupancy, policy = context.snapshot.plan_cache.occupancy, context.policy.disruption
    if not occupancy.surplus or not policy.evict_best_effort:
        return
    if context.snapshot.paused or not context.snapshot.engine_reachable:
        return
    rested_at = context.now - policy.optional_ranks_rest_s
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
        for job, held in holdings:
            text = f"its optional rank {held.rank} alone keeps {instance.id} ({usd(instance.offer.price_usd_per_h)}/h)"
            numbers: dict[str, Number] = {"rank": held.rank, "price_usd_per_h": instance.offer.price_usd_per_h}
            reason = Reason(code="rank_yields", text=f"{text}, and it can do without", numbers=numbers)
            context.decisions.add(StopRank(job_id=job.id, rank=held.rank, reason=reason, yields=True))
