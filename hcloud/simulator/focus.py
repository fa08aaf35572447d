"""Cost and usage exports in the FinOps FOCUS format (https://focus.finops.org): the machines that were billed, as load.

A machine is a job of its size that runs from its first to its last billed second without a gap. What it cost is kept
beside, so that a policy can be compared with what was paid.
"""

from __future__ import annotations

import csv
import json
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from hcloud.core.model import BatchTarget, JobSpec
from hcloud.simulator.input_table import InputColumn, Problems, Row, listed, moment, number_within, read_rows
from hcloud.simulator.workload import COMMAND, NAME_MOST, Arrival, Workload, request, workload_of
from hcloud.spec.jobfile import VCPUS_MOST
from hcloud.spec.validation import counted

_COST = number_within(-1e12, 1e12)
_moment = lru_cache(100_000)(moment)
"""All machines are billed for the same periods."""
COLUMNS = (
    InputColumn(name="ChargePeriodStart", parse=_moment, required=True),
    InputColumn(name="ChargePeriodEnd", parse=_moment, required=True),
    InputColumn(name="EffectiveCost", parse=_COST, required=True),
    InputColumn(name="ResourceId", required=True, may_be_empty=True),
    InputColumn(name="ServiceCategory", required=True),
    InputColumn(name="ChargeCategory", required=True),
    InputColumn(name="ResourceName"),
    InputColumn(name="SubAccountName"),
    InputColumn(name="SubAccountId"),
    InputColumn(name="BillingCurrency"),
    InputColumn(name="ProviderName"),
    InputColumn(name="ServiceProviderName"),
    InputColumn(name="RegionId"),
    InputColumn(name="PricingCategory"),
    InputColumn(name="CommitmentDiscountStatus"),
    InputColumn(name="ConsumedQuantity", parse=number_within(-1e15, 1e15)),
    InputColumn(name="ConsumedUnit"),
    InputColumn(name="SkuPriceDetails"),
    InputColumn(name="x_SkuDetails"),
    InputColumn(name="x_InstanceType"),
    InputColumn(name="x_UsageType"),
)
"""Those of FOCUS 1.0 to 1.3 that count here, and columns of providers that name the machine type."""
CLOUDS = {"aws": "ec2", "amazon": "ec2", "google": "gce"}
"""Clouds of the price catalogue, by a word in the name of the provider."""
HOURS = ("hours", "hour", "hrs", "h")
_AWS_USAGE = re.compile(r"(?:^|-)(?:BoxUsage|SpotUsage|DedicatedUsage):([a-z0-9-]+\.[a-z0-9-]+)$")
SLACK, SLACK_S = 0.1, 600.0
"""The target is that a machine's time is over, at the latest, this part of it and these seconds later than it was. Time
here is work: a machine that is slower takes longer."""
FULL = 0.999
"""A machine that was used for this part of a charge period was up for all of it."""
Size = tuple[float, int]
"""vCPUs and memory in MiB."""
SizeOf = Callable[[str, str], Size | None]
"""Returns the size of a type of a cloud of the price catalogue, or None if it is not known."""


def is_focus_header(line: str) -> bool:
    """Return whether a CSV header is that of a FOCUS export."""
    try:
        names = {each.strip() for each in next(csv.reader([line]), [])}
    except csv.Error:
        return False
    return "ChargePeriodStart" in names and bool(names & {"EffectiveCost", "BilledCost"})


@dataclass(slots=True)
class _Machine:
    """The charge periods of one resource of one type."""

    name: str
    user: str
    size: Size
    on_spot: bool = True
    """Whether all of it was billed at prices of the spot market."""
    periods: array[float] = field(default_factory=lambda: array("d"))
    """Start, end and the seconds used of each charge period, one after the other."""

    def add(self, start_at: float, end_at: float, used_s: float) -> None:
        """Add a charge period, or a part of one, as when a commitment covers a part of the hour."""
        self.periods.extend((start_at, end_at, used_s))

    def stretches(self) -> list[tuple[float, float]]:
        """Return the times during which it was up without a gap: start and end.

        Of a charge period that was used in part, this is its end if the next one was used in full and the one before
        did not last to its end, and else its start.
        """
        rows = sorted(zip(self.periods[0::3], self.periods[1::3], self.periods[2::3], strict=True))
        periods, up = list(_merged(rows)), list[tuple[float, float]]()
        for place, (start_at, end_at, used_s) in enumerate(periods):
            goes_on = bool(up) and up[-1][1] == start_at
            following = periods[place + 1] if place + 1 < len(periods) else None
            if _is_full(start_at, end_at, used_s):
                began_at, ended_at = start_at, end_at
            elif not goes_on and following is not None and following[0] == end_at and _is_full(*following):
                began_at, ended_at = end_at - used_s, end_at
            else:
                began_at, ended_at = start_at, start_at + used_s
            if up and up[-1][1] == began_at:
                began_at = up.pop()[0]
            up.append((began_at, ended_at))
        return up


def _is_full(start_at: float, end_at: float, used_s: float) -> bool:
    return used_s >= FULL * (end_at - start_at)


def _merged(periods: Sequence[tuple[float, float, float]]) -> Iterator[tuple[float, float, float]]:
    """Yield sorted periods with those that overlap as one, none used for longer than it is."""
    current: tuple[float, float, float] | None = None
    for start_at, end_at, used_s in periods:
        if current is not None and start_at < current[1]:
            current = (current[0], max(current[1], end_at), current[2] + used_s)
            continue
        if current is not None:
            yield _capped(*current)
        current = (start_at, end_at, used_s)
    if current is not None:
        yield _capped(*current)


def _capped(start_at: float, end_at: float, used_s: float) -> tuple[float, float, float]:
    return start_at, end_at, min(used_s, end_at - start_at)


@dataclass(slots=True)
class _Totals:
    """What is not load, and what was paid."""

    machine_usd: float = 0.0
    unused_usd: float = 0.0
    other_usd: float = 0.0
    other_rows: int = 0
    unused_rows: int = 0
    unsized_usd: float = 0.0
    unsized_rows: int = 0
    unsized: set[str] = field(default_factory=set)
    """Types of unknown size."""
    regions: set[str] = field(default_factory=set)
    currencies: set[str] = field(default_factory=set)

    def notes(self) -> list[str]:
        """Return a sentence for each kind of row that was left out."""
        money = "" if self.currencies <= {"USD"} else f" ({listed(sorted(self.currencies))})"
        types, regions = listed(sorted(self.unsized)), listed(sorted(self.regions))
        found = (
            (self.other_rows, f"{counted(self.other_rows, 'row')} of other charges than use of machines left out, "
             f"of cost {self.other_usd:.2f}{money}"),
            (self.unused_rows, f"{counted(self.unused_rows, 'row')} of unused commitments left out, "
             f"of cost {self.unused_usd:.2f}{money}"),
            (self.unsized_rows, f"{counted(self.unsized_rows, 'row')} of machines of unknown size ({types}) left out, "
             f"of cost {self.unsized_usd:.2f}{money}"),
            (len(self.regions) > 1, f"machines of several regions ({regions}) are simulated as if in one"),
            (money, f"costs in the file are not in USD{money}, so they are not compared"),
        )  # fmt: skip
        return [note for count, note in found if count]


def read_focus(lines: Iterable[str], name: str, size_of: SizeOf) -> Workload:
    """Read a FOCUS export (CSV): each machine becomes a job for each stretch of time that it was billed for.

    The workload has what the export says was paid for these machines. Raises BadInput, which names all wrong columns;
    NoJobs without a machine.
    """
    problems, totals = Problems(name), _Totals()
    machines: dict[tuple[str, str], _Machine] = {}
    for at, row in read_rows(lines, COLUMNS, problems, others=True, table="a FOCUS export"):
        if row["ChargePeriodEnd"] <= row["ChargePeriodStart"]:
            problems.add("column ChargePeriodEnd", "is not after ChargePeriodStart", at)
        elif not problems:
            _take(row, machines, totals, size_of)
    problems.check()
    arrivals = [each for machine in machines.values() for each in _arrivals(machine)]
    made = workload_of(name, arrivals, totals.notes())
    in_usd = totals.currencies <= {"USD"}
    began_at = min(each.at_s for each in arrivals)
    return replace(made, began_at=began_at, paid_usd=totals.machine_usd if in_usd else None)


def _take(row: Row, machines: dict[tuple[str, str], _Machine], totals: _Totals, size_of: SizeOf) -> None:
    """Add a row to the periods of its machine, or to what is left out."""
    usd, type_name = row["EffectiveCost"], _type_name(row)
    totals.currencies.update([row["BillingCurrency"]] if "BillingCurrency" in row else [])
    if row.get("CommitmentDiscountStatus") == "Unused" and row["ServiceCategory"] == "Compute":
        totals.unused_rows, totals.unused_usd = totals.unused_rows + 1, totals.unused_usd + usd
        return
    if type_name is None:
        totals.other_rows, totals.other_usd = totals.other_rows + 1, totals.other_usd + usd
        return
    key = (row["ResourceId"], type_name)
    if key not in machines:
        size = _size(row, type_name, size_of)
        if size is None:
            totals.unsized_rows, totals.unsized_usd = totals.unsized_rows + 1, totals.unsized_usd + usd
            totals.unsized.add(type_name)
            return
        resource = row.get("ResourceName") or re.split("[/:]", row["ResourceId"])[-1]
        user = row.get("SubAccountName") or row.get("SubAccountId", "")
        machines[key] = _Machine(name=_clipped(resource) or "machine", user=_clipped(user) or "unknown", size=size)
    start_at, end_at = row["ChargePeriodStart"], row["ChargePeriodEnd"]
    used_s = end_at - start_at
    if "ConsumedQuantity" in row and row.get("ConsumedUnit", "hours").lower() in HOURS:
        used_s = min(used_s, max(0.0, row["ConsumedQuantity"] * 3600.0))
    machine = machines[key]
    machine.on_spot = machine.on_spot and row.get("PricingCategory") == "Dynamic"
    if used_s > 0:
        machine.add(start_at, end_at, used_s)
    totals.machine_usd += usd
    totals.regions.update([row["RegionId"]] if "RegionId" in row else [])


def _clipped(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)[:NAME_MOST]


def _type_name(row: Row) -> str | None:
    """Return the machine type of a row, or None if it is not about the use of a machine."""
    is_use = row["ChargeCategory"] == "Usage" and row["ServiceCategory"] == "Compute" and "ResourceId" in row
    if not is_use or row.get("ConsumedUnit", "hours").lower() not in HOURS:
        return None
    if (given := row.get("x_InstanceType")) is not None:
        return str(given)
    details = _details(row.get("SkuPriceDetails") or row.get("x_SkuDetails", ""))
    for key in ("InstanceType", "x_InstanceType", "ServiceType", "VMName"):  # the last two are Azure's
        if isinstance(found := details.get(key), str) and found:
            return found
    usage = _AWS_USAGE.search(row.get("x_UsageType", ""))
    return usage[1] if usage else None


def _size(row: Row, type_name: str, size_of: SizeOf) -> Size | None:
    details = _details(row.get("SkuPriceDetails") or row.get("x_SkuDetails", ""))
    vcpus, gib = _positive(details.get("CoreCount", details.get("VCPUs"))), _positive(details.get("MemorySize"))
    if vcpus is None or gib is None:
        provider = (row.get("ProviderName") or row.get("ServiceProviderName", "")).lower()
        cloud = next((cloud for part, cloud in CLOUDS.items() if part in provider), "")
        known = size_of(cloud, type_name)
        vcpus, mib = known if known is not None else (vcpus, None)
    else:
        mib = round(gib * 1024)
    return (vcpus, mib) if vcpus and mib and vcpus <= VCPUS_MOST else None


def _positive(value: object) -> float | None:
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else 0.0
    except (ValueError, OverflowError):
        return None
    return number if 0 < number < 1e9 else None


@lru_cache(1000)
def _details(text: str) -> Mapping[str, Any]:
    """Return the properties of a price; none if they are not a JSON object."""
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _arrivals(machine: _Machine) -> Iterator[Arrival]:
    resources, nodes = request(machine.size[0], machine.size[1], 1)
    for began_at, ended_at in machine.stretches():
        run_s = max(0.001, ended_at - began_at)
        spec = JobSpec(
            name=machine.name,
            user=machine.user,
            command=(*COMMAND, machine.name),
            target=BatchTarget(finish_within_s=run_s * (1 + SLACK) + SLACK_S),
            resources=resources,
            nodes=nodes,
            interruptible=machine.on_spot,
        )
        yield Arrival(at_s=began_at, run_s=run_s, spec=spec)
