"""The account's commitments in one region, and how much of each no instance uses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf

from hcloud.provider import CommitmentUse
from providers.ec2.inventory import Inventory
from providers.ec2.reservations import ReservedInstances, pool_of

PLANS = "savings plans"
_EXACT = 1e-9


def commitment_uses(inventory: Inventory, region: str) -> dict[str, tuple[CommitmentUse, ...]]:
    """Return the commitments of a region by kind; kinds that could not be read, or whose use is unknown, are absent."""
    if "running machines" in inventory.read_errors:
        return {}
    found: dict[str, tuple[CommitmentUse, ...]] = {}
    if "reservations" not in inventory.read_errors:
        found[f"reservations {region}"] = (*_reserved_instances(inventory, region), *_capacity(inventory))
        if "savings plans" not in inventory.read_errors:
            found[PLANS] = _plans(inventory)
    return found


def of_all_regions(
    regions: Sequence[Mapping[str, Sequence[CommitmentUse]]],
) -> dict[str, Sequence[CommitmentUse]]:
    """Merge the commitments of an account's regions. A Savings Plan of several regions counts once.

    Savings Plans are absent if a region's are: their use there is not known.
    """
    merged = {kind: found for region in regions for kind, found in region.items() if kind != PLANS}
    if not all(PLANS in region for region in regions):
        return merged
    plans: dict[str, CommitmentUse] = {}
    for each in (each for region in regions for each in region[PLANS]):
        before = plans.get(each.name)
        unused = each.unused if before is None else max(0.0, before.unused - (each.count - each.unused))
        plans[each.name] = replace(each, unused=unused)
    return {**merged, PLANS: tuple(plans.values())}


def _reserved_instances(inventory: Inventory, region: str) -> list[CommitmentUse]:
    """Return the Reserved Instances by zone and type, or by family of the region in machines of its first type."""
    coverage, scopes = inventory.coverage(), defaultdict[tuple[str | None, str], list[ReservedInstances]](list)
    for each in inventory.reservations.reserved:
        scopes[each.zone, each.type_name if each.zone else pool_of(each.type_name)[0]].append(each)
    found = []
    for (zone, what), parts in sorted(scopes.items(), key=lambda each: (each[0][0] or "", each[0][1])):
        name = min(each.type_name for each in parts)
        factor = pool_of(name)[1]
        count = sum(each.count * pool_of(each.type_name)[1] for each in parts) / factor
        usd = sum(each.count * each.usd_per_h for each in parts)
        if count > 0:
            found.append(
                CommitmentUse(
                    name=f"{zone}/{what}" if zone else f"reserved {what} {region}",
                    count=count,
                    unused=coverage.zonal_left(zone, what) if zone else coverage.regional_left(what) / factor,
                    usd_per_h=usd / count,
                    ends_at=_last(each.ends_at for each in parts),
                )
            )
    return found


def _capacity(inventory: Inventory) -> list[CommitmentUse]:
    """Return the capacity reservations at the price on demand, less what other commitments pay of the unused ones.

    Regional Reserved Instances and Savings Plans do, as far as instances leave them ("Capacity Reservation pricing and
    billing" in the EC2 user guide). That part costs nothing here, as it is paid for in their rows.
    """
    coverage, plans = inventory.coverage(), inventory.plan_balances()
    held = [(each, left) for each, left in inventory.capacity_left() if each.total > 0]
    regional = defaultdict[str, float](float)
    uncovered = dict[int, float]()
    # Smaller sizes first, as Reserved Instances are applied to instances.
    for at, (each, left) in sorted(enumerate(held), key=lambda one: pool_of(one[1][0].type_name)[1]):
        pool, factor = pool_of(each.type_name)
        covered = min(float(left), max(0.0, coverage.regional_left(pool) - regional[pool]) / factor)
        regional[pool] += covered * factor
        uncovered[at] = left - covered
    amounts = defaultdict[str, float](float)
    for at, (each, _) in enumerate(held):
        amounts[each.type_name] += uncovered[at]
    found = []
    unpaid = plans.unpaid_share(amounts)
    for at, (each, left) in enumerate(held):
        price = inventory.on_demand.get(each.type_name)
        if price is None:
            continue
        share = uncovered[at] / left * unpaid.get(each.type_name, 1.0) if left else 1.0
        found.append(
            CommitmentUse(
                name=f"capacity reservation {each.id}",
                count=each.total,
                unused=left,
                usd_per_h=price.usd_per_h * share,
                ends_at=each.ends_at,
            )
        )
    return found


def _plans(inventory: Inventory) -> tuple[CommitmentUse, ...]:
    left = inventory.plans_left()
    return tuple(
        CommitmentUse(
            name=f"savings plan {each.id}",
            count=1.0,
            unused=left[each.id] / each.usd_per_h,
            usd_per_h=each.usd_per_h,
            ends_at=each.ends_at,
        )
        for each in inventory.plans
        if each.usd_per_h > _EXACT
    )


def _last(ends: Iterable[float | None]) -> float | None:
    """Return the last of several ends; None if one is not known to end."""
    latest = max((inf if each is None else each) for each in ends)
    return None if latest == inf else latest
