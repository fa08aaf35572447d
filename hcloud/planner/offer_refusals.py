"""Why no offer is obtainable for a job: too small, forbidden, backed off, sold out or unknown."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from hcloud.core.model import Number, Offer, Reason, matches
from hcloud.planner.context import PlanContext
from hcloud.planner.fleet import SLACK, vector
from hcloud.planner.gpu_refusals import has_gpus, why_no_gpus
from hcloud.planner.job_groups import JobGroup
from hcloud.planner.market import OfferMarket, may_use, retry_order
from hcloud.planner.text import amount, offer_words, seconds
from hcloud.spec.validation import counted


def why_not_obtainable(context: PlanContext, offer_market: OfferMarket, group: JobGroup) -> Reason:
    """Return why no offer is obtainable for a rank of ``group``: too small, forbidden, backed off, sold out or
    unknown."""
    fitting = [int(at) for at in np.flatnonzero(offer_market.fitting(group))]
    if fitting:
        key = tuple(fitting)
        if key not in offer_market.refused:
            offer_market.refused[key] = _why_backed_off(context, offer_market, fitting)
        return offer_market.refused[key]
    if not context.snapshot.offers:
        return Reason(code="no_offers", text="no provider has listed its offers yet")
    if group.constraints is not None and group.constraints.instance_id:
        text = f"{group.constraints.instance_id}, where the unit it measures runs, has no room for it now"
        return Reason(code="no_room_in_place", text=text)
    if (reason := _no_such_machine(context, offer_market, group)) is not None:
        return reason
    sizes_fit = [pair for pair in offer_market.forbidden if _large_enough(group, pair[0])]
    spot = [o for o in offer_market.offers if _large_enough(group, o)]
    if sizes_fit or spot:
        return _not_allowed(group, sizes_fit, spot)
    return _nearest_offer(context, group)


def _large_enough(group: JobGroup, offer: Offer) -> bool:
    return group.resources.fits(offer.instance_type.capacity) and may_use(group, offer)


def _why_backed_off(context: PlanContext, offer_market: OfferMarket, fitting: list[int]) -> Reason:
    backed_off = [b for at in fitting if (b := offer_market.backoffs[at]) is not None]
    if not backed_off:
        names = ", ".join(sorted({offer_market.offers[at].instance_type.name for at in fitting}))
        return Reason(code="sold_out", text=f"no {names} available", numbers={"offers": len(fitting)})
    first = min(backed_off, key=retry_order)
    offers, others = counted(len(fitting), "suitable offer"), ""
    if len(backed_off) < len(fitting):
        offers, others = f"{len(backed_off)} of {offers}", "; the others are sold out"
    if first.until_at == inf:
        text = f"{offers} {first.error} until 'hcloud drain --undo'{others}"
        return Reason(code="drained", text=text, numbers={"offers": len(fitting), "error": first.error})
    code = "quota_exceeded" if all("quota" in b.error.lower() for b in backed_off) else "all_backed_off"
    text = f"{offers} failed recently ({first.error or 'no reason given'}){others}"
    text += f"; next retry in {seconds(first.until_at - context.now)}"
    if first.stops_provider:
        text += f", or at once by 'hcloud provider resume {first.provider}'"
    numbers: dict[str, Number] = {"until_at": first.until_at, "offers": len(fitting), "error": first.error}
    return Reason(code=code, text=text, numbers=numbers)


def _not_allowed(group: JobGroup, forbidden: list[tuple[Offer, str]], spot: list[Offer]) -> Reason:
    if forbidden:
        offer, why = min(forbidden, key=lambda pair: (pair[0].price_usd_per_h, pair[0].key))
    else:
        offer, why = min(spot, key=lambda o: (o.price_usd_per_h, o.key)), "this job may not run on spot"
    text = f"{offer_words(offer)} would fit {amount(group.resources)} but is refused: {why}"
    return Reason(code="not_allowed", text=text, numbers={"nearest": offer.instance_type.name, "why": why})


def _no_such_machine(context: PlanContext, offer_market: OfferMarket, group: JobGroup) -> Reason | None:
    """Return which restriction (types, GPUs, zones, labels, network, in this order) excludes every offer, or None."""
    left, where, patterns = list(context.snapshot.offers), group.constraints, group.instance_types
    if patterns:
        typed = [offer for offer in left if matches(offer.instance_type.name, patterns)]
        if not typed:
            names = sorted({offer.instance_type.name for offer in left})
            return _none_offered("no_such_type", "instance_types", ", ".join(patterns), names)
        left = typed
    gpus, named = group.resources.gpus, bool(patterns)
    if text := why_no_gpus(gpus, left, named=named):
        return Reason(code="no_such_gpu", text=text, numbers={"bound": "resources.gpus"})
    left = [offer for offer in left if has_gpus(gpus, offer, named=named)]
    if where is not None and where.zones:
        zoned = [offer for offer in left if where.accepts_zone(offer.zone)]
        if not zoned:
            zones = sorted({offer.zone for offer in left})
            return _none_offered("no_such_zone", "placement.zones", where.words("zones"), zones)
        left = zoned
    if where is not None and not any(where.accepts_labels(offer.labels) for offer in left):
        wanted = {name for name, _ in where.labels}
        labels = {f"{name}={value}" for offer in left for name, value in offer.labels.items() if name in wanted}
        names = sorted(labels) or ["none with such labels"]
        return _none_offered("no_such_label", "placement.labels", where.words("labels"), names)
    if where is not None and where.gang_network:
        places = {(each.provider, each.region) for each in left if where.accepts_labels(each.labels)}
        if places <= offer_market.without_wireguard:
            names = sorted(f"{provider} in {region}" for provider, region in places)
            text = f"machines of {', '.join(names)} report no WireGuard, by which nodes get a network of their own"
            return Reason(code="no_gang_network", text=text, numbers={"bound": "network", "kinds": len(places)})
    return None


def _none_offered(code: str, key: str, wanted: str, offered: Sequence[str]) -> Reason:
    shown = ", ".join(offered[:8]) + (", ..." if len(offered) > 8 else "")
    text = f"no offer matches {key} {wanted}; available: {shown}"
    return Reason(code=code, text=text, numbers={"asked": wanted, "bound": key, "kinds": len(offered)})


def _nearest_offer(context: PlanContext, group: JobGroup) -> Reason:
    need = vector(group.resources)

    def shortfall(offer: Offer) -> float:
        return float((need / np.maximum(vector(offer.instance_type.capacity), SLACK)).max())

    named = [offer for offer in context.snapshot.offers if may_use(group, offer)]
    nearest = min(named, key=lambda offer: (shortfall(offer), offer.key))
    have = nearest.instance_type.capacity
    pairs = (
        ("vCPU", group.resources.vcpus, have.vcpus),
        ("MiB", group.resources.memory_mib, have.memory_mib),
        ("GiB disk", group.resources.disk_gib, have.disk_gib),
    )
    short = ", ".join(f"{want:g} {unit} requested, it has {has:g}" for unit, want, has in pairs if want > has + SLACK)
    numbers: dict[str, Number] = {
        "nearest": nearest.instance_type.name,
        "needed_vcpus": group.resources.vcpus,
        "needed_memory_mib": group.resources.memory_mib,
        "needed_disk_gib": group.resources.disk_gib,
        "nearest_vcpus": have.vcpus,
        "nearest_memory_mib": have.memory_mib,
        "nearest_disk_gib": have.disk_gib,
    }
    text = f"no offer fits {amount(group.resources)}; {nearest.instance_type.name} is nearest: {short}"
    return Reason(code="no_offer_fits", text=text, numbers=numbers)
