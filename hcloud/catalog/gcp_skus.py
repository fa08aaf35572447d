"""Google's Cloud Billing Catalog: prices of machine types, from the SKUs of Compute Engine.

A SKU is the price of one vCPU or one GiB of a family in some regions. Only its description identifies them, in words
(Cloud Billing API Reference, "services.skus.list"). Unknown descriptions are skipped, never guessed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Literal

from hcloud.catalog.gce_sizes import shapes, whole_price
from hcloud.catalog.prices import Key, PricePlan
from hcloud.catalog.reading import PriceReading, text_of
from hcloud.core.errors import ProviderUnavailable

SOURCE: Final = "Cloud Billing Catalog"
COMPUTE_ENGINE: Final = "services/6F81-5844-456A"
"""Id of Compute Engine in the Cloud Billing Catalog."""
_PLANS: Final = {
    "OnDemand": PricePlan.ON_DEMAND,
    "Preemptible": PricePlan.SPOT,
    "Commit1Yr": PricePlan.COMMIT_1Y,
    "Commit3Yr": PricePlan.COMMIT_3Y,
}
_USAGE: Final = r"(?:Spot Preemptible |Preemptible |Commitment v1: )?"
_WHERE: Final = r" (?:running )?in .+"
_FAMILY: Final = re.compile(rf"{_USAGE}(?P<family>.*?) ?(?P<part>Core|Cpu|Ram){_WHERE}")
_FAMILY_NAMES: Final = (
    (re.compile(r"N1 Predefined Instance|", re.ASCII), "n1"),  # commitments for N1 name no family
    (re.compile(r"Compute optimized"), "c2"),
    (re.compile(r"Memory-optimized(?: Instance)?"), "m1"),
    (re.compile(r"([A-Z][0-9][A-Z]?)(?: AMD| Arm)?(?: Instance)?"), ""),
)
_WHOLE: Final = (
    (re.compile(rf"{_USAGE}Micro Instance with burstable CPU{_WHERE}"), "f1"),
    (re.compile(rf"{_USAGE}Small Instance with 1 VCPU{_WHERE}"), "g1"),
)
_GPU: Final = re.compile(
    rf"(?:Commitment v1: )?Nvidia (?:Tesla )?(?P<kind>[A-Z]+[0-9]+)(?P<memory> [0-9]+GB)? GPU"
    rf"(?: attached to Spot Preemptible VMs)?{_WHERE}"
)
Part = Literal["cpu", "ram", "gpu"]


def part_of(description: str) -> tuple[str, Part] | None:
    """Return the family and part in a SKU's description, or None for other SKUs.

    "Spot Preemptible N2D AMD Instance Ram running in Tokyo" is the memory of n2d, "Nvidia Tesla A100 80GB GPU running
    in Iowa" one GPU of kind a100-80gb. Custom machines, sole tenancy and premiums are other SKUs.
    """
    if (gpu := _GPU.fullmatch(description)) is not None:
        return f"{gpu['kind']}{gpu['memory'] or ''}".replace(" ", "-").lower(), "gpu"
    for pattern, family in _WHOLE:
        if pattern.fullmatch(description):
            return family, "cpu"
    match = _FAMILY.fullmatch(description)
    if match is None:
        return None
    part: Part = "ram" if match["part"] == "Ram" else "cpu"
    for pattern, family in _FAMILY_NAMES:
        named = pattern.fullmatch(match["family"])
        if named is not None:
            return family or named[1].lower(), part
    return None


def read_skus(skus: Iterable[Mapping[str, Any]], regions: Collection[str], reading: PriceReading) -> None:
    """Read the prices of all machine types from Compute Engine's SKUs; empty ``regions``: of every region.

    Raises:
        ProviderUnavailable: a SKU has an unknown format, or there is no price of a machine type.
    """
    parts: dict[tuple[str, str, PricePlan, Part], float] = {}
    for sku in skus:
        try:
            _add_part(sku, parts, reading)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise ProviderUnavailable(f"the {SOURCE} has an unknown format ({type(error).__name__})") from error
    before = len(reading.quotes)
    _assemble(parts, regions, reading)
    if len(reading.quotes) == before:
        raise ProviderUnavailable(f"the {SOURCE} has no price of a machine type; nothing was read")


def _add_part(
    sku: Mapping[str, Any], parts: dict[tuple[str, str, PricePlan, Part], float], reading: PriceReading
) -> None:
    category = sku["category"]
    plan = _PLANS.get(text_of(category, "usageType"))
    if category["resourceFamily"] != "Compute" or plan is None:
        return
    named = part_of(sku["description"])
    if named is None:
        return
    usd = _usd_per_h(sku, reading)
    if usd is None:
        return
    for region in sku["serviceRegions"]:
        key = (named[0], region, plan, named[1])
        if key in parts and parts[key] != usd:
            reading.left_out["listed twice with different prices; the higher one was used"] += 1
        parts[key] = max(usd, parts.get(key, 0.0))


def _usd_per_h(sku: Mapping[str, Any], reading: PriceReading) -> float | None:
    """Return a SKU's price per hour, of its last tier: the first one may be a free allowance."""
    expression = sku["pricingInfo"][-1]["pricingExpression"]
    price = expression["tieredRates"][-1]["unitPrice"]
    if not expression["usageUnit"].endswith("h"):  # "h", "GiBy.h"
        reading.left_out[f"per {expression['usageUnit']}, not per hour"] += 1
        return None
    if price.get("currencyCode", "USD") != "USD":
        reading.left_out[f"in {price['currencyCode']}, not USD"] += 1
        return None
    usd = int(price.get("units", 0) or 0) + int(price.get("nanos", 0) or 0) / 1e9
    if usd <= 0:
        reading.left_out["no valid price (zero, negative or too high)"] += 1
        return None
    return usd


def _assemble(
    parts: Mapping[tuple[str, str, PricePlan, Part], float], regions: Collection[str], reading: PriceReading
) -> None:
    places: dict[str, set[tuple[str, PricePlan]]] = defaultdict(set)
    for family, region, plan, part in parts:
        if part == "gpu":
            continue
        if not regions or region in regions:
            places[family].add((region, plan))
            reading.whole.add(("gce", region, plan))
    for kind, shape in shapes().items():
        for region, plan in sorted(places.get(shape.family, ())):
            vcpu, gib = (parts.get((shape.family, region, plan, part)) for part in ("cpu", "ram"))
            usd = whole_price(shape, vcpu, gib, parts.get((shape.gpu, region, plan, "gpu")))
            if usd is None:
                what = "a type whose GPUs have no price there" if shape.gpu and vcpu and gib else ""
                reading.left_out[what or "a family with a price of vCPUs or memory only"] += 1
            else:
                reading.add(Key("gce", region, kind, plan), round(usd, 9))
                reading.sizes["gce", kind] = shape.size
