"""The cost as charges in the FinOps FOCUS 1.2 format (https://focus.finops.org): for each job on each machine and day.

What no job held of a machine, and what no machine used of a commitment, are charges of their own. Costs are those of
the event log: hourly prices, not invoices, so ``BilledCost`` equals ``EffectiveCost``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from hcloud.core.model import Event, EventKind, Market
from hcloud.core.pricing import HOUR_S, split
from hcloud.report.commitment_history import CommitmentStretch
from hcloud.report.fleet import FLEET_KINDS, MachineHistory, Stretch
from hcloud.report.grouping import Grouping, JobFacts, text
from hcloud.report.stretches import read_stretches
from hcloud.report.table import Column, ReportTable, Row, Value

FOCUS_KINDS: frozenset[EventKind] = FLEET_KINDS | {EventKind.COMMITMENT}
"""Event kinds that the export reads."""
COLUMNS: Final = (
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodStart", "BillingPeriodEnd",
    "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency", "ChargePeriodStart", "ChargePeriodEnd",
    "CommitmentDiscountCategory", "CommitmentDiscountId", "CommitmentDiscountName", "CommitmentDiscountQuantity",
    "CommitmentDiscountStatus", "CommitmentDiscountType", "CommitmentDiscountUnit", "ConsumedQuantity", "ConsumedUnit",
    "ContractedCost", "ContractedUnitPrice", "EffectiveCost", "InvoiceId", "InvoiceIssuerName", "ListCost",
    "ListUnitPrice", "PricingCategory", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "RegionId",
    "RegionName", "AvailabilityZone", "ResourceId", "ResourceName", "ResourceType", "ServiceCategory", "ServiceName",
    "ServiceSubcategory", "SkuId", "SkuMeter", "SkuPriceId", "SkuPriceDetails", "SubAccountId", "SubAccountName",
    "SubAccountType", "Tags",
)  # fmt: skip
"""All mandatory and recommended columns of FOCUS 1.2 that have a meaning here, and the conditional ones that apply."""
_CATEGORY: Final = {Market.SPOT: "Dynamic", Market.RESERVED: "Committed", Market.ON_DEMAND: "Standard"}
IDLE, BOOT = "idle time", "boot time"


@dataclass(frozen=True, slots=True)
class _ChargeKey:
    """What is one charge, however many stretches of time it has."""

    machine: str
    day: str
    market: str
    usd_per_h: float
    holder: str
    """The job; IDLE or BOOT for what no job held."""


@dataclass(slots=True)
class _Charge:
    """A charge, with the sum of its stretches."""

    machine: MachineHistory
    job: JobFacts | None
    since: float
    until: float
    hours: float = 0.0
    """Hours of the machine, as far as they are the holder's."""


@dataclass(slots=True)
class _Place:
    """What the log says of a machine that its history does not keep."""

    region: str
    resource: str
    """Its id at the provider."""


@dataclass(slots=True)
class _Charges:
    """Reads stretches into charges."""

    grouping: Grouping
    found: dict[_ChargeKey, _Charge] = field(default_factory=dict)
    places: dict[str, _Place] = field(default_factory=dict)
    unused: list[CommitmentStretch] = field(default_factory=list)

    def take(self, event: Event) -> None:
        """Note region and id of a machine."""
        name = event.instance_id or ""
        if event.kind is EventKind.INSTANCE_REQUESTED:
            self.places[name] = _Place(text(event, "region"), "")
        elif event.kind is EventKind.INSTANCE_LAUNCHED and name in self.places:
            self.places[name].resource = text(event, "provider_id")

    def add_unused(self, stretch: CommitmentStretch) -> None:
        """Add what no machine used of a commitment."""
        self.unused.append(stretch)

    def add(self, stretch: Stretch) -> None:
        """Add a stretch of machine time, cut at UTC midnights."""
        fractions, rest = split([holding.share for holding in stretch.holdings])
        parts: list[tuple[str, JobFacts | None, float]] = [
            (holding.job.id, holding.job, fraction)
            for holding, fraction in zip(stretch.holdings, fractions, strict=True)
        ]
        if rest > 0.0:
            parts.append((BOOT if stretch.booting else IDLE, None, rest))
        for since, until in self.grouping.days(stretch.since, stretch.until):
            for holder, job, fraction in parts:
                day, machine = self.grouping.day_of(since), stretch.machine
                key = _ChargeKey(machine.id, day, stretch.market, stretch.price_usd_per_h, holder)
                charge = self.found.setdefault(key, _Charge(machine, job, since, until))
                charge.since, charge.until = min(charge.since, since), max(charge.until, until)
                charge.hours += (until - since) * fraction / HOUR_S


def focus_table(events: Iterable[Event], grouping: Grouping, since: float, until: float, now: float) -> ReportTable:
    """Return the charges of a period, in the order of time. All values are text in the formats of FOCUS."""
    charges = _Charges(Grouping(kind="day"))  # billing is in UTC
    read_stretches(events, (charges,), since, until)
    rows = [_machine_values(key, charge, charges.places.get(key.machine)) for key, charge in charges.found.items()]
    for unused in charges.unused:
        days = charges.grouping.days(unused.since, unused.until)
        rows += [_unused_values(unused, begin, end) for begin, end in days if unused.unused_usd > 0.0]
    order = ("ChargePeriodStart", "ResourceName", "ChargeDescription")
    rows.sort(key=lambda row: [row.get(name) or "" for name in order])
    return ReportTable(
        title="Charges in the FOCUS 1.2 format",
        columns=tuple(Column(name=name) for name in COLUMNS),
        rows=tuple(_row(row) for row in rows),
    )


def _row(values: Mapping[str, str | None]) -> Row:
    row: list[Value] = [values.get(name) for name in COLUMNS]
    return tuple(row)


def _machine_values(key: _ChargeKey, charge: _Charge, place: _Place | None) -> dict[str, str | None]:
    machine, market, job = charge.machine, Market(key.market), charge.job
    region = place.region if place is not None and place.region else None
    list_usd_per_h = machine.on_demand_usd_per_h
    contracted_usd_per_h = list_usd_per_h if market is Market.RESERVED else key.usd_per_h
    sku, used = f"{machine.type}/{key.market}", f"{key.holder} {job.name}" if job is not None else key.holder
    details = {"InstanceType": machine.type, "CoreCount": machine.vcpus, "MemorySize": machine.memory_mib / 1024.0}
    tags = {**job.tags, "hcloud/job": job.label, "hcloud/name": job.name} if job is not None else {}
    values = _common(machine.provider, charge.since, charge.until, key.usd_per_h, charge.hours)
    values |= {
        "ChargeDescription": f"{used} on {machine.id} ({machine.type}, {key.market})",
        "ContractedCost": _decimal(contracted_usd_per_h * charge.hours),
        "ContractedUnitPrice": _decimal(contracted_usd_per_h),
        "ConsumedQuantity": _decimal(charge.hours),
        "ConsumedUnit": "Hours",
        "ListCost": _decimal(list_usd_per_h * charge.hours),
        "ListUnitPrice": _decimal(list_usd_per_h),
        "PricingCategory": _CATEGORY[market],
        "RegionId": region,
        "RegionName": region,
        "AvailabilityZone": machine.zone,
        "ResourceId": (place.resource if place is not None else "") or machine.id,
        "ResourceName": machine.id,
        "ResourceType": "Virtual machine",
        "SkuId": sku,
        "SkuMeter": "Compute usage",
        "SkuPriceId": f"{sku}/{machine.zone}",
        "SkuPriceDetails": json.dumps(details, sort_keys=True),
        "SubAccountId": (job.user or None) if job is not None else None,
        "Tags": json.dumps(tags, sort_keys=True),
    }
    if market is Market.RESERVED:
        values |= _commitment(machine.pool, "Used", charge.hours)
    return _with_sub_account(values)


def _unused_values(unused: CommitmentStretch, since: float, until: float) -> dict[str, str | None]:
    hours = unused.unused * (until - since) / HOUR_S
    values = _common(unused.pool.partition("/")[0], since, until, unused.usd_per_h, hours)
    cost = _decimal(unused.usd_per_h * hours)
    values |= {
        "ChargeDescription": f"unused commitment {unused.pool}",
        "ContractedCost": cost,
        "ContractedUnitPrice": _decimal(unused.usd_per_h),
        "ListCost": cost,
        "ListUnitPrice": _decimal(unused.usd_per_h),
        "PricingCategory": "Committed",
        "SkuId": unused.pool,
        "SkuMeter": "Compute usage",
        "SkuPriceId": unused.pool,
        "Tags": "{}",
    }
    return values | _commitment(unused.pool, "Unused", hours)


def _common(provider: str, since: float, until: float, usd_per_h: float, hours: float) -> dict[str, str | None]:
    cost, month = _decimal(usd_per_h * hours), datetime.fromtimestamp(since, UTC).replace(day=1)
    following = month.replace(year=month.year + month.month // 12, month=month.month % 12 + 1)
    return {
        "BilledCost": cost,
        "BillingAccountId": provider,
        "BillingAccountName": provider,
        "BillingCurrency": "USD",
        "BillingPeriodStart": f"{month:%Y-%m-%d}T00:00:00Z",
        "BillingPeriodEnd": f"{following:%Y-%m-%d}T00:00:00Z",
        "ChargeCategory": "Usage",
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodStart": _time(round(since)),
        "ChargePeriodEnd": _time(max(round(until), round(since) + 1)),  # of less than a second, too
        "EffectiveCost": cost,
        "InvoiceIssuerName": provider,
        "PricingQuantity": _decimal(hours),
        "PricingUnit": "Hours",
        "ProviderName": provider,
        "PublisherName": provider,
        "ServiceCategory": "Compute",
        "ServiceName": "Virtual machines",
        "ServiceSubcategory": "Virtual Machines",
    }


def _commitment(name: str, status: str, hours: float) -> dict[str, str | None]:
    return {
        "CommitmentDiscountCategory": "Usage",
        "CommitmentDiscountId": name,
        "CommitmentDiscountName": name,
        "CommitmentDiscountQuantity": _decimal(hours),
        "CommitmentDiscountStatus": status,
        "CommitmentDiscountType": "Reservation",
        "CommitmentDiscountUnit": "Hours",
    }


def _with_sub_account(values: dict[str, str | None]) -> dict[str, str | None]:
    user = values["SubAccountId"]
    return values | {"SubAccountName": user, "SubAccountType": None if user is None else "User"}


def _decimal(value: float) -> str:
    """Return a number without an exponent, with as many digits as count."""
    return f"{value:.12f}".rstrip("0").rstrip(".") or "0"


def _time(at: int) -> str:
    """Return a time as FOCUS writes it: UTC, to the second."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
