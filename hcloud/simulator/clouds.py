"""Virtual clouds made from what real providers offer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from hcloud.errors import BadInput
from hcloud.model import Market, Offer
from hcloud.policy import Policy
from hcloud.simulator.workload import Workload

FULL_SERVER, FULL_SERVER_VCPUS = "m.2xlarge", 16.0
"""The mock provider's largest type."""
P95_OF_TYPICAL_BOOT = 4.0
"""A slow boot beside a typical one, where only the typical one is known."""


def cloud_of_offers(offers: Sequence[Offer]) -> dict[str, object]:
    """Return settings of a mock provider with these types, zones, markets, prices, boot times and reserved machines.

    Prices of spot and reserved machines become parts of the on-demand price: the median over all types.

    Raises BadInput where nothing is offered.
    """
    if not offers:
        raise BadInput("no provider offers anything now, so there is no cloud to simulate; name one with --cloud FILE")
    boots = [offer.instance_type.boot_delay_s for offer in offers]
    settings: dict[str, object] = {
        "types": {name: _type(name, offers) for name in sorted({offer.instance_type.name for offer in offers})},
        "zones": sorted({offer.zone for offer in offers}),
        "region_price_factors": {},
        "markets": sorted({offer.market.value for offer in offers}),
        "boot": {"p50_s": median(boots), "p95_s": P95_OF_TYPICAL_BOOT * median(boots)},
        "billing_minimum_s": max(offer.billing_minimum_s for offer in offers),
        "reserved": _reserved(offers),
        "reserved_default": 0,
    }
    for market, key in ((Market.SPOT, "spot"), (Market.RESERVED, "reserved_price_factor")):
        if (part := _part_of_on_demand(market, offers)) is not None:
            settings[key] = {"price_factor": part} if market is Market.SPOT else part
    return settings


def _type(name: str, offers: Sequence[Offer]) -> dict[str, float]:
    own = [offer for offer in offers if offer.instance_type.name == name]
    on_demand = [offer for offer in own if offer.market is Market.ON_DEMAND] or own
    size = own[0].instance_type.capacity
    price = min(offer.price_usd_per_h for offer in on_demand)
    return {"vcpus": size.vcpus, "memory_mib": size.memory_mib, "disk_gib": size.disk_gib, "usd_per_h": price}


def _reserved(offers: Sequence[Offer]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for offer in offers:
        if offer.market is Market.RESERVED and offer.available:
            counts[offer.instance_type.name] = max(counts.get(offer.instance_type.name, 0), offer.available)
    return counts


def _part_of_on_demand(market: Market, offers: Sequence[Offer]) -> float | None:
    whole = {(o.zone, o.instance_type.name): o.price_usd_per_h for o in offers if o.market is Market.ON_DEMAND}
    parts = [
        offer.price_usd_per_h / price
        for offer in offers
        if offer.market is market and (price := whole.get((offer.zone, offer.instance_type.name)))
    ]
    return min(1.0, median(parts)) if parts else None


def reserved_for(policy: Policy, workload: Workload, cloud: Mapping[str, object]) -> Mapping[str, int]:
    """Return the reserved machines by type that a strategy buys knowing this very load (HCloud §8.4): of the largest
    type, for the peak and 15 % (sr), for the steady part (hf, hm), or none. Types without a size are passed over: the
    provider refuses them.
    """
    if Market.RESERVED.value not in _names(cloud.get("markets", Market)):
        return {}
    cores, strategy = workload.cores(), policy.provisioning.strategy
    wanted = {"sr": 1.15 * max(cores), "hf": _steady(cores), "hm": _steady(cores)}.get(strategy, 0.0)
    types = cloud.get("types")
    sizes = {
        str(name): float(size["vcpus"])
        for name, size in (types.items() if isinstance(types, Mapping) else ())
        if isinstance(size, Mapping) and isinstance(size.get("vcpus"), (int, float)) and size["vcpus"] > 0
    } or {FULL_SERVER: FULL_SERVER_VCPUS}
    name, vcpus = max(sizes.items(), key=lambda each: each[1])
    count = math.ceil(wanted / vcpus) if strategy == "sr" else round(wanted / vcpus)
    return {name: count} if count else {}


def _names(markets: object) -> set[str]:
    """Return the names of markets in settings not checked yet: what is no list of them names none."""
    return {str(getattr(each, "value", each)) for each in markets} if isinstance(markets, Iterable) else set()


def _steady(cores: Sequence[float]) -> float:
    """The least load after the first jobs have come: the tenth percentile, so that one idle minute does not decide."""
    return sorted(cores)[len(cores) // 10]
