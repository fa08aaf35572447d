"""CommitmentBalances use: vCPUs and memory of a series in a region, paid whether used or not, and used first by whatever runs.

Commitments are the project's, so everybody's machines use them up, and so do reservations, used or not. Spot machines
do not. What is left is offered as market ``reserved`` at the price of the commitment's term.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from google.cloud import compute_v1 as compute

from providers.gce.names import last_part
from providers.gce.settings import region_of

_SERIES: Mapping[str, str] = {
    "GENERAL_PURPOSE": "n1",
    "COMPUTE_OPTIMIZED": "c2",
    "MEMORY_OPTIMIZED": "m1",
    "ACCELERATOR_OPTIMIZED": "a2",
}
"""Series of the oldest kinds of commitment; the newer ones have the series at their end: GENERAL_PURPOSE_N2."""
_PLANS: Mapping[str, str] = {"TWELVE_MONTH": "commit_1y", "THIRTY_SIX_MONTH": "commit_3y"}
_UNCOMMITTED = re.compile(r"(f1|g1|e2)-(micro|small|medium)")
"""Shared-core types, which no commitment covers."""
_CUSTOM = re.compile(r"custom-(\d+)-(\d+)")


@dataclass(slots=True)
class Pool:
    """What of a series is committed in a region, and for which terms."""

    vcpus: float = 0.0
    memory_mb: float = 0.0
    plans: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Use:
    """Machines of a type in a zone: how many, and what one takes."""

    zone: str
    type_name: str
    vcpus: float
    memory_mb: float
    count: float = 1.0


class CommitmentBalances:
    """Commitments less what uses them."""

    def __init__(self, commitments: Iterable[compute.Commitment], uses: Sequence[Use]) -> None:
        """``uses``: everything that runs and is reserved in the project, without spot machines."""
        self._pools: dict[tuple[str, str], Pool] = {}
        for each in commitments:
            series, plan = series_of_commitment(each.type_), _PLANS.get(each.plan)
            if each.status == "ACTIVE" and series and plan and each.category != "LICENSE":
                self._add(self._pools.setdefault((last_part(each.region), series), Pool()), each, plan)
        for use in uses:
            self.use(use)

    def _add(self, pool: Pool, commitment: compute.Commitment, plan: str) -> None:
        pool.plans.add(plan)
        for each in commitment.resources:
            if each.type_ == "VCPU":
                pool.vcpus += each.amount
            elif each.type_ == "MEMORY":
                pool.memory_mb += each.amount

    def use(self, use: Use) -> None:
        """Take what machines use from their pool; a pool may be overdrawn."""
        pool = self._pool(use.zone, use.type_name)
        if pool is not None:
            pool.vcpus -= use.vcpus * use.count
            pool.memory_mb -= use.memory_mb * use.count

    def left(self, zone: str, type_name: str, vcpus: float, memory_mb: float) -> int:
        """Return how many more machines of a type are wholly covered."""
        pool = self._pool(zone, type_name)
        if pool is None or vcpus <= 0 or memory_mb <= 0:
            return 0
        return max(0, int(min(pool.vcpus / vcpus, pool.memory_mb / memory_mb)))

    def plan(self, zone: str, type_name: str) -> str | None:
        """Return the term with the price that holds: the more expensive where there are several, for none is
        promised."""
        pool = self._pool(zone, type_name)
        return min(pool.plans) if pool is not None and pool.plans else None

    def _pool(self, zone: str, type_name: str) -> Pool | None:
        if _UNCOMMITTED.fullmatch(type_name):
            return None
        return self._pools.get((region_of(zone), series_of_type(type_name)))


def series_of_commitment(kind: str) -> str | None:
    """Return the series of machine types that a kind of commitment covers; None: of no single one."""
    if kind in _SERIES:
        return _SERIES[kind]
    found = re.fullmatch(r"(?:GENERAL_PURPOSE|COMPUTE_OPTIMIZED|MEMORY_OPTIMIZED)_([A-Z]\d\w?|T2D|N2D)", kind)
    return found[1].lower() if found else None


def series_of_type(type_name: str) -> str:
    """Return a machine type's series: ``n2`` of ``n2-standard-4``; plain custom types are N1."""
    series = type_name.partition("-")[0]
    return "n1" if series in ("custom", "f1", "g1") else series


def needs_of(type_name: str, known: Mapping[str, tuple[float, float]]) -> tuple[float, float] | None:
    """Return vCPUs and memory in MB of a type, by what is known or as its name says; None: neither says."""
    if type_name in known:
        return known[type_name]
    custom = _CUSTOM.search(type_name)
    if custom:
        return float(custom[1]), float(custom[2])
    standard = re.fullmatch(r"\w+-(standard|highmem|highcpu)-(\d+)", type_name)
    if standard is None:
        return None
    per_vcpu = {"standard": 4096.0, "highmem": 8192.0, "highcpu": 1024.0}[standard[1]]
    return float(standard[2]), per_vcpu * float(standard[2])
