"""Simulated clouds from real providers' offers or the price catalogue, and the machines a strategy reserves."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from hcloud.catalog import PriceCatalogue, PricePlan, TypeSize
from hcloud.core.errors import BadInput
from hcloud.core.model import Market, Offer
from hcloud.planner.provisioning.strategies import Reserves, strategy_named
from hcloud.simulator.workload import Workload
from hcloud.spec.policy import Policy
from hcloud.spec.validation import nearest

FULL_SERVER, FULL_SERVER_VCPUS = "m.2xlarge", 16.0
"""The mock provider's largest type, and the size of what HCloud calls a full server."""
P95_TO_MEDIAN_BOOT = 4.0
"""Ratio of a slow boot to a typical one, if only the typical one is known. 29 published boot times of Linux machines on
EC2 and GCE, 2012 to 2026, have a median of 24 s and a 95th percentile of 100 s."""
BOOT: Mapping[str, object] = {"p50_s": 24.0, "p95_s": 100.0}
"""These boot times."""
SPOT: Mapping[str, object] = {"shortages_per_h": 0.27, "shortage_h": 0.35}
"""Of spot machines held for 6 days (r5.16xlarge, two zones) and 2 days (c3-highcpu-88, two zones) and polled every 30
s, 0.27 were lost per hour, and none was available for the next 0.35 h (SkyPilot's spot traces, NSDI 2024)."""
FIXED_PRICES: Mapping[str, object] = {"volatility": 0.0}
"""A single host has no spot market."""
QUALITY: Mapping[str, object] = {"spread": 0.025}
"""Machines of one EC2 type differ by 0.2 to 0.5 % (CPU, memory), 2 to 3 % (web serving) and 7 to 20 % (disks): standard
deviations over 244 machines (Scheuner & Leitner 2018). Applications are taken as the middle case."""
MEASURED: Mapping[str, object] = {"quality": QUALITY, "keep_terminated_s": 600}
PLANS = {Market.ON_DEMAND: PricePlan.ON_DEMAND, Market.SPOT: PricePlan.SPOT, Market.RESERVED: PricePlan.COMMIT_1Y}
CLOUD_MINIMUM_S = 60.0
"""Both clouds of the catalogue bill at least one minute."""


def clouds_of_offers(offers: Sequence[Offer], taken: Sequence[Offer] = ()) -> dict[str, dict[str, object]]:
    """Return, by provider, settings of a mock provider with the offers' types, zones, prices, boot times and quotas.

    ``taken``: the offers of machines that are up, one each; ``available`` does not include them. Raises BadInput
    without offers.
    """
    if not offers:
        raise BadInput("no provider has offers now, so there is no cloud to simulate; pass one with --cloud FILE")
    names = sorted({offer.provider for offer in offers})
    return {
        name: _cloud_of([o for o in offers if o.provider == name], [o for o in taken if o.provider == name])
        for name in names
    }


def _cloud_of(offers: Sequence[Offer], taken: Sequence[Offer]) -> dict[str, object]:
    boot_s = median(offer.instance_type.boot_delay_s for offer in offers)
    factors = _region_factors(offers)
    one_host = any(offer.pool_free is not None for offer in offers)
    by_type: dict[str, list[Offer]] = defaultdict(list)
    for offer in offers:
        by_type[offer.instance_type.name].append(offer)
    return {
        **MEASURED,
        "types": {name: _type(own, factors) for name, own in sorted(by_type.items())},
        "zones": sorted({offer.zone for offer in offers}),
        "regions": {offer.zone: offer.region for offer in offers},
        "region_price_factors": factors,
        "markets": sorted({offer.market.value for offer in offers}),
        "boot": {"p50_s": boot_s, "p95_s": P95_TO_MEDIAN_BOOT * boot_s},
        "billing_minimum_s": max(offer.billing_minimum_s for offer in offers),
        "quotas": _quotas(offers, taken),
        "reserved": _reserved(offers, taken),
        "reserved_default": 0,
        "spot": FIXED_PRICES if one_host else SPOT,
    }


def _region_factors(offers: Sequence[Offer]) -> dict[str, float]:
    """Return each region's price level relative to the region with the most offers: the median over common types."""
    counts = Counter(offer.region for offer in offers)
    base = min(counts, key=lambda region: (-counts[region], region))
    prices = {(o.region, o.instance_type.name): o.price_usd_per_h for o in offers if o.market is Market.ON_DEMAND}
    found = {}
    for region in sorted(counts):
        parts = [
            usd / prices[base, name] for (at, name), usd in prices.items() if at == region and (base, name) in prices
        ]
        found[region] = median(parts) if parts else 1.0
    return found


def _type(own: Sequence[Offer], factors: Mapping[str, float]) -> dict[str, object]:
    """Return a type's settings. Other prices are factors of the on-demand price, or of the highest one without it."""
    prices = {market: _usd_per_h(own, market, factors) for market in {offer.market for offer in own}}
    whole = prices.get(Market.ON_DEMAND, max(prices.values()))
    kind = own[0].instance_type
    return {
        "vcpus": kind.capacity.vcpus,
        "memory_mib": kind.capacity.memory_mib,
        "disk_gib": kind.capacity.disk_gib,
        "usd_per_h": whole,
        "labels": dict(kind.labels),
        "zones": sorted({offer.zone for offer in own}),
        "markets": sorted(market.value for market in prices),
        **{
            f"{market.value}_price_factor": min(1.0, prices[market] / whole)
            for market in (Market.SPOT, Market.RESERVED)
            if market in prices
        },
    }


def _usd_per_h(own: Sequence[Offer], market: Market, factors: Mapping[str, float]) -> float:
    return median(offer.price_usd_per_h / factors[offer.region] for offer in own if offer.market is market)


def _quotas(offers: Sequence[Offer], taken: Sequence[Offer]) -> list[dict[str, object]]:
    """Return quotas of used and available vCPUs: of a shared host, or of each account limit if all offers that count
    against it state how many."""
    quotas: list[dict[str, object]] = []
    for region in sorted({offer.region for offer in offers}):
        here = [offer for offer in offers if offer.region == region]
        used = [offer for offer in taken if offer.region == region]
        free = [offer.pool_free.vcpus for offer in here if offer.pool_free is not None]
        if free:
            quotas.append({"region": region, "vcpus": max(free) + _vcpus(used), "told": True})
            continue
        for key in sorted({offer.quota_key for offer in here}):
            rented = [offer for offer in here if offer.quota_key == key and offer.market is not Market.RESERVED]
            markets, left = {offer.market for offer in rented}, [_vcpus_left(offer) for offer in rented]
            if not left or not math.isfinite(sum(left)):
                continue
            same = [each for each in used if each.quota_key == key and (len(markets) > 1 or each.market in markets)]
            quota: dict[str, object] = {"region": region, "vcpus": max(left) + _vcpus(same), "told": True}
            if len(markets) == 1:
                quota["market"] = rented[0].market.value
            if rented[0].quota:
                quota["types"] = sorted({offer.instance_type.name for offer in rented})
            quotas.append(quota)
    return quotas


def _vcpus(machines: Iterable[Offer]) -> float:
    return sum(offer.instance_type.capacity.vcpus for offer in machines)


def _vcpus_left(offer: Offer) -> float:
    return math.inf if offer.available is None else offer.available * offer.instance_type.capacity.vcpus


def _reserved(offers: Sequence[Offer], taken: Sequence[Offer]) -> dict[str, int]:
    """Return reserved machines by ``ZONE/TYPE``, free and taken.

    A pool that several types or zones share counts once, as machines of the largest type that uses all of it.
    """
    counts = Counter(_place(offer) for offer in taken if offer.market is Market.RESERVED and not offer.pool)
    shared: dict[tuple[str, str], list[Offer]] = defaultdict(list)
    for offer in offers:
        if offer.market is not Market.RESERVED or offer.available is None:
            continue
        if offer.pool and offer.pool_free is None:
            shared[offer.region, offer.pool].append(offer)
        else:
            counts[_place(offer)] += offer.available
    for (region, pool), own in shared.items():
        used = [o for o in taken if o.market is Market.RESERVED and (o.region, o.pool) == (region, pool)]
        place, count = _pool_as_machines(own, sum(offer.price_usd_per_h for offer in used))
        counts[place] += count
    sold = _reservable_places(offers)
    return {place: count for place, count in sorted(counts.items()) if count and place in sold}


def _reservable_places(offers: Sequence[Offer]) -> set[str]:
    """Return the places that can be reserved; a machine of an expired commitment may be up in another one."""
    names = {offer.instance_type.name for offer in offers if offer.market is Market.RESERVED}
    return {_place(offer) for offer in offers if offer.instance_type.name in names}


def _place(offer: Offer) -> str:
    return f"{offer.zone}/{offer.instance_type.name}"


def _pool_as_machines(own: Sequence[Offer], used_usd_per_h: float) -> tuple[str, int]:
    """Return a shared commitment as a number of machines of one type in one zone."""
    worth = {offer.key: (offer.available or 0) * offer.price_usd_per_h for offer in own}
    most = max(worth.values())
    whole = [offer for offer in own if worth[offer.key] >= 0.999 * most and (offer.available or not most)]
    chosen = max(whole, key=lambda offer: (offer.instance_type.capacity.vcpus, offer.key))
    return _place(chosen), (chosen.available or 0) + round(used_usd_per_h / chosen.price_usd_per_h)


# ----------------------------------------------------------------------------------------------------------- catalogue
def cloud_of_catalogue(known: PriceCatalogue, cloud: str, region: str) -> dict[str, object]:
    """Return settings of a mock provider with the ordinary machine types of a catalogue region, in one zone.

    Ordinary are x86-64 machines that are neither burstable nor have accelerators. Reserved machines cost what a
    one-year commitment does. Raises BadInput if no such price is known.
    """
    regions = {key.region for key in known.quotes if key.cloud == cloud}
    if region not in regions:
        raise BadInput(f"--cloud {cloud}/{region}: no price is known there; {nearest(region, regions)}")
    names = sorted({key.type for key in known.quotes if (key.cloud, key.region) == (cloud, region)})
    listed = {name: size for name in names if (size := known.sizes.get((cloud, name))) is not None}
    sizes = {
        name: size for name, size in listed.items() if not size.burstable and size.arch == "x86_64" and not size.gpus
    }
    types = {
        name: made for name, size in sizes.items() if (made := _catalogue_type(known, (cloud, region, name), size))
    }
    if not types:
        raise BadInput(
            f"--cloud {cloud}/{region}: no ordinary machine type has an on-demand price there; choose another region"
        )
    zone = f"{region}-a" if cloud == "gce" else f"{region}a"
    sold = {market for made in types.values() for market in _names(made["markets"])}
    return {
        **MEASURED,
        "types": types,
        "zones": [zone],
        "regions": {zone: region},
        "region_price_factors": {},
        "markets": [market.value for market in PLANS if market.value in sold],
        "boot": BOOT,
        "billing_minimum_s": CLOUD_MINIMUM_S,
        "reserved_default": 0,
        "spot": SPOT,
    }


def _catalogue_type(known: PriceCatalogue, place: tuple[str, str, str], size: TypeSize) -> dict[str, object]:
    """Return a type's settings, with the markets that have a price; empty without an on-demand price."""
    usd = {market: quote.usd_per_h for market, plan in PLANS.items() if (quote := known.price(*place, plan))}
    whole = usd.get(Market.ON_DEMAND)
    if whole is None:
        return {}
    factors = {f"{market.value}_price_factor": min(1.0, price / whole) for market, price in usd.items()}
    del factors["on_demand_price_factor"]
    markets = [market.value for market in usd]
    return {"vcpus": size.vcpus, "memory_mib": size.memory_mib, "usd_per_h": whole, "markets": markets, **factors}


# ------------------------------------------------------------------------------------------------------------ reserved
def reserved_for(policy: Policy, workload: Workload, cloud: Mapping[str, object]) -> Mapping[str, int]:
    """Return the reserved machines by type that a strategy buys knowing this very load (HCloud §8.4): of full servers
    (16 vCPUs, or the largest smaller ones; of several the cheapest), for the peak and 15 % (sr), for the steady part
    (hf, hm), or none; none, too, where no type can be reserved. Types without a size are passed over: the provider
    refuses them.
    """
    if Market.RESERVED.value not in _names(cloud.get("markets", Market)):
        return {}
    cores, reserves = workload.cores(), strategy_named(policy.provisioning.strategy).reserves
    if reserves is Reserves.NOTHING:
        return {}
    cores_needed = 1.15 * max(cores) if reserves is Reserves.PEAK else _steady_cores(cores)
    server = _full_server(cloud.get("types"))
    if server is None:
        return {}
    name, vcpus = server
    count = math.ceil(cores_needed / vcpus) if reserves is Reserves.PEAK else round(cores_needed / vcpus)
    return {name: count} if count else {}


def _full_server(types: object) -> tuple[str, float] | None:
    """Return the name and vCPUs of what is reserved of these types (as in settings, not checked yet; not a mapping: the
    mock provider's own). None where none of them can be reserved."""
    if not isinstance(types, Mapping):
        return FULL_SERVER, FULL_SERVER_VCPUS
    sizes = {
        str(name): (float(size["vcpus"]), _number(size.get("usd_per_h")))
        for name, size in types.items()
        if isinstance(size, Mapping) and _number(size.get("vcpus")) > 0 and _reservable(size)
    }
    if not sizes:
        return None
    usual = {name: size for name, size in sizes.items() if size[0] <= FULL_SERVER_VCPUS} or sizes
    name, (vcpus, _) = max(usual.items(), key=lambda each: (each[1][0], -each[1][1]))
    return name, vcpus


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _reservable(size: Mapping[str, object]) -> bool:
    markets = size.get("markets")
    return markets is None or Market.RESERVED.value in _names(markets)


def _names(markets: object) -> set[str]:
    """Return the names of markets in settings that were not validated; empty if they are not a list."""
    return {str(getattr(each, "value", each)) for each in markets} if isinstance(markets, Iterable) else set()


def _steady_cores(cores: Sequence[float]) -> float:
    """The tenth percentile of the load, so that a single idle minute does not decide."""
    return sorted(cores)[len(cores) // 10]
