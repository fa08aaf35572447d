"""Why nothing can be bought for a job, now or ever."""

from __future__ import annotations

import numpy as np

from hcloud.core.model import Number, Offer, Reason
from hcloud.planner.fleet import SLACK, Mask
from hcloud.planner.job_groups import JobGroup
from hcloud.planner.offer_refusals import why_not_obtainable
from hcloud.planner.placement.open_instances import lastingly_permitted
from hcloud.planner.placement.room_reservation import WAITS_FOR_RESERVED
from hcloud.planner.provisioning.state import ProvisioningState
from hcloud.planner.text import amount, offer_words, percent


def no_more_zones(state: ProvisioningState, group: JobGroup) -> Reason:
    """Return the reason that the nodes of a job of ``group`` find too few zones, for now or for ever."""
    offer_market, fleet = state.offer_market, state.context.fleet
    permitted_places = lastingly_permitted(state.context, group, np.ones(len(fleet.instances), dtype=np.bool_))
    zones = {offer_market.offers[int(at)].zone for at in np.flatnonzero(offer_market.fitting(group))}
    zones |= {fleet.instances[int(at)].offer.zone for at in np.flatnonzero(permitted_places)}
    need, named = f"its {group.needed} nodes need different zones (placement.spread)", ", ".join(sorted(zones))
    numbers: dict[str, Number] = {"zones": len(zones), "nodes": group.needed, "bound": "placement.spread"}
    if len(zones) < group.needed and _all_offers_known(state):
        text = f"can never run here: {need}, and only {len(zones)} can be used: {named}"
        return Reason(code="impossible", text=text, numbers={**numbers, "why": "too_few_zones"})
    text = f"{need}, but too few of {named} have machines available"
    return Reason(code="too_few_zones", text=text, numbers=numbers)


def _all_offers_known(state: ProvisioningState) -> bool:
    """Return whether the offers of every provider are known."""
    snapshot = state.context.snapshot
    return bool(snapshot.providers) and snapshot.providers <= snapshot.offers_known


def refused_offer(offer: Offer, refusal: Reason, others: int) -> Reason:
    """Return the refusal of an offer, with the number of instances for ``others`` of the job's nodes counted before
    it."""
    numbers: dict[str, Number] = {**refusal.numbers, "offer": "/".join(offer.key)}
    # These are not launched then; without the remark the numbers would not match what users see.
    included = f", including {others} for its other nodes" if others else ""
    text = f"{refusal.text}{included} ({offer_words(offer)})"
    return Reason(code=refusal.code, text=text, numbers=numbers)


def quota_refusal(state: ProvisioningState, group: JobGroup) -> Reason | None:
    """Return the reason that the instances of a job of ``group`` together exceed a quota that a refusal showed."""
    offer_market = state.offer_market
    fitting = [int(at) for at in np.flatnonzero(offer_market.fitting(group))]
    for offer in (offer_market.offers[at] for at in fitting if offer_market.backoffs[at] is None):
        limit = offer_market.quotas.exceeded_by(offer)
        if limit is not None:
            needed, quota = group.needed * group.resources.vcpus, limit.vcpus - limit.instance_vcpus
            in_use = offer_market.quotas.in_use[limit.key]
            numbers: dict[str, Number] = {"needed_vcpus": needed, "quota_vcpus": quota, "in_use_vcpus": in_use}
            text = f"needs {needed:g} vCPUs, the quota is {quota:g} ({offer.market} in {offer.region})"
            return Reason(code="quota_exceeded", text=text, numbers={**numbers, "until_at": limit.until_at})
    return None


def unobtainable(state: ProvisioningState, group: JobGroup) -> Reason:
    """Return why no offer is available for ``group``; the code ``impossible`` if none ever will be."""
    if (waits := _waits_for_reserved(state, group)) is not None:
        return waits
    reason = why_not_obtainable(state.context, state.offer_market, group)
    if reason.code not in (
        "no_offer_fits",
        "not_allowed",
        "no_such_type",
        "no_such_gpu",
        "no_such_zone",
        "no_such_label",
        "no_gang_network",
    ):
        return reason
    fleet = state.context.fleet
    large_enough: Mask = np.logical_and.reduce(fleet.capacity + SLACK >= group.demand[:, None], axis=0)
    if lastingly_permitted(state.context, group, large_enough).any():
        text = f"only running machines fit {amount(group.resources)}, and they are full; {reason.text}"
        return Reason(code="instance_full", text=text, numbers=reason.numbers)
    if _all_offers_known(state):
        numbers: dict[str, Number] = {**reason.numbers, "why": reason.code}
        return Reason(code="impossible", text=f"can never run here: {reason.text}", numbers=numbers)
    return reason


def _waits_for_reserved(state: ProvisioningState, group: JobGroup) -> Reason | None:
    """Return the reason that ``group`` waits for reserved room, if the hybrid mapping excludes every rented offer."""
    hybrid, offer_market = state.context.strategy.hybrid, state.offer_market
    if hybrid is None:
        return None
    kept_from = offer_market.fitting(group) & ~offer_market.rentable(group)
    if not any(
        offer_market.backoffs[at] is None and offer_market.in_stock(int(at)) for at in np.flatnonzero(kept_from)
    ):
        return None
    wait_s = hybrid.expected_wait_s(group.resources)
    numbers: dict[str, Number] = {
        "quality_needed": group.mapping_need.quality,
        "reserved_in_use": round(hybrid.utilisation, 4),
        "hard_limit": hybrid.policy.hard_limit,
        "expected_wait_s": wait_s,
        "spin_up_s": hybrid.spin_up_s if hybrid.spin_up_s < float("inf") else None,
    }
    in_use = percent(hybrid.utilisation)
    text = f"reserved room is {in_use} in use, and no rented offer has the quality it needs"
    return Reason(code=WAITS_FOR_RESERVED, text=text, numbers=numbers)
