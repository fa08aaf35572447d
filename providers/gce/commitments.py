"""Committed use: vCPUs and memory of a series in a region, billed whether used or not.

Commitments belong to the project, so instances of other users count against them, and so do reservations, used or not.
Spot instances do not. What is left is offered as market ``reserved`` at the price of the commitment's term.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import floor, inf

from google.cloud import compute_v1 as compute

from hcloud.core.commitments import capacity_by_end, last_end_first
from hcloud.core.model import CommittedCapacity
from providers.gce.names import last_part
from providers.gce.settings import region_of

_SERIES: Mapping[str, str] = {
    "GENERAL_PURPOSE": "n1",
    "COMPUTE_OPTIMIZED": "c2",
    "MEMORY_OPTIMIZED": "m1",
    "ACCELERATOR_OPTIMIZED": "a2",
}
"""Series of the oldest kinds of commitment. Newer kinds end with their series: GENERAL_PURPOSE_N2."""
_PLANS: Mapping[str, str] = {"TWELVE_MONTH": "commit_1y", "THIRTY_SIX_MONTH": "commit_3y"}
_UNCOMMITTED = re.compile(r"(f1|g1|e2)-(micro|small|medium)")
"""Shared-core types, which commitments do not cover."""
_CUSTOM = re.compile(r"custom-(\d+)-(\d+)")


@dataclass(slots=True)
class Pool:
    """Resources committed for one machine series in a region."""

    vcpus: float = 0.0
    memory_mb: float = 0.0
    plans: set[str] = field(default_factory=set)
    """Terms of the commitments, by their key in the price file."""
    last_ends_at: float = 0.0
    """When the last of them ends; infinite if one is not known to end."""
    committed_vcpus: float = 0.0
    """vCPUs before usage is subtracted."""
    committed: list[tuple[float | None, float, float]] = field(default_factory=list)
    """End, vCPUs and memory of each commitment before usage is subtracted."""


@dataclass(frozen=True, slots=True)
class Use:
    """Instances of one type in a zone."""

    zone: str
    type_name: str
    vcpus: float
    """vCPUs per instance."""
    memory_mb: float
    """Memory per instance."""
    count: float = 1.0


class CommitmentBalances:
    """Commitments less their usage, by region and series."""

    def __init__(self, commitments: Iterable[compute.Commitment], uses: Sequence[Use]) -> None:
        """Subtract ``uses``: running instances except spot, and reservations of the project."""
        self._pools: dict[tuple[str, str], Pool] = {}
        for each in commitments:
            series, plan = series_of_commitment(each.type_), _PLANS.get(each.plan)
            if each.status == "ACTIVE" and series and plan and each.category != "LICENSE":
                self._add(self._pools.setdefault((last_part(each.region), series), Pool()), each, plan)
        for use in uses:
            self.use(use)

    def _add(self, pool: Pool, commitment: compute.Commitment, plan: str) -> None:
        pool.plans.add(plan)
        ends_at = ends_at_of(commitment)
        pool.last_ends_at = max(pool.last_ends_at, inf if ends_at is None else ends_at)
        amounts = dict.fromkeys(("VCPU", "MEMORY"), 0.0)
        for each in commitment.resources:
            if each.type_ in amounts:
                amounts[each.type_] += each.amount
        pool.vcpus += amounts["VCPU"]
        pool.committed_vcpus += amounts["VCPU"]
        pool.memory_mb += amounts["MEMORY"]
        pool.committed.append((ends_at, amounts["VCPU"], amounts["MEMORY"]))

    def use(self, use: Use) -> None:
        """Subtract usage from its pool, which may become negative."""
        pool = self._pool(use.zone, use.type_name)
        if pool is not None:
            pool.vcpus -= use.vcpus * use.count
            pool.memory_mb -= use.memory_mb * use.count

    def left(self, zone: str, type_name: str, vcpus: float, memory_mb: float) -> int:
        """Return how many more instances of a type are fully covered."""
        return max(0, self._balance(zone, type_name, vcpus, memory_mb))

    def _balance(self, zone: str, type_name: str, vcpus: float, memory_mb: float) -> int:
        pool = self._pool(zone, type_name)
        if pool is None or vcpus <= 0 or memory_mb <= 0:
            return 0
        return floor(min(pool.vcpus / vcpus, pool.memory_mb / memory_mb))

    def plan(self, zone: str, type_name: str) -> str | None:
        """Return the term with the price that applies; the more expensive one if there are several, to be safe."""
        pool = self._pool(zone, type_name)
        return min(pool.plans) if pool is not None and pool.plans else None

    def capacity(
        self, zone: str, type_name: str, vcpus: float, memory_mb: float, *, kept: int = 0
    ) -> tuple[CommittedCapacity, ...]:
        """Return how many instances of a type the commitments cover, by their end; what others use counts as such
        instances. ``kept``: instances counted as use that may still be launched, in free reservations."""
        pool = self._pool(zone, type_name)
        if pool is None or vcpus <= 0 or memory_mb <= 0:
            return ()
        totals, all_vcpus, all_memory_mb = dict[float | None, int](), 0.0, 0.0
        for ends_at, more_vcpus, more_memory_mb in sorted(pool.committed, key=lambda each: last_end_first(each[0])):
            all_vcpus += more_vcpus
            all_memory_mb += more_memory_mb
            totals[ends_at] = int(min(all_vcpus / vcpus, all_memory_mb / memory_mb))
        return capacity_by_end(totals.items(), max(0, self._balance(zone, type_name, vcpus, memory_mb) + kept))

    def pools(self) -> Mapping[tuple[str, str], Pool]:
        """Return what is left of the commitments, by region and series."""
        return self._pools

    def _pool(self, zone: str, type_name: str) -> Pool | None:
        if _UNCOMMITTED.fullmatch(type_name):
            return None
        return self._pools.get((region_of(zone), series_of_type(type_name)))


def ends_at_of(commitment: compute.Commitment) -> float | None:
    """Return when a commitment ends (Unix seconds), as it states that."""
    text = str(commitment.end_timestamp or "")
    return datetime.fromisoformat(text).timestamp() if text else None


def series_of_commitment(kind: str) -> str | None:
    """Return the series that a kind of commitment covers; None if it does not cover exactly one."""
    if kind in _SERIES:
        return _SERIES[kind]
    found = re.fullmatch(r"(?:GENERAL_PURPOSE|COMPUTE_OPTIMIZED|MEMORY_OPTIMIZED)_([A-Z]\d\w?|T2D|N2D)", kind)
    return found[1].lower() if found else None


def series_of_type(type_name: str) -> str:
    """Return a machine type's series: ``n2`` for ``n2-standard-4``; plain custom types are N1."""
    series = type_name.partition("-")[0]
    return "n1" if series in ("custom", "f1", "g1") else series


def needs_of(type_name: str, known: Mapping[str, tuple[float, float]]) -> tuple[float, float] | None:
    """Return vCPUs and memory (MB) of a type, from ``known`` or from its name; None if neither has them."""
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
