"""Which CPUs of one machine its units run on, and how much they are expected to slow each other down there.

Neighbours press the more the closer they are (Mage §3.2): on one CPU they take turns; on one core they share what a
core has, on one last-level cache its capacity and bandwidth, in one NUMA node its memory's bandwidth; the rest of the
machine is shared by all. A unit is taken to spread its CPU time evenly over the CPUs on which it may run. Shapes: U
units, N CPUs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from hcloud.classifier.interference import CORE_SOURCES, NOT_COUNTED, excess
from hcloud.core.cpu_topology import CpuTopology, Level

Floats = npt.NDArray[np.float64]
HARM = 0.02
"""By so much at most units with a target may be slowed for another one."""
PER_MOVE = 0.005
"""Of two placements the one that moves a unit more must be better by this share."""
_LEVELS: tuple[Level, ...] = ("core", "l3", "node", "socket")
_SLACK = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuUnit:
    """One unit of the machine."""

    name: str
    vcpus: float
    """How many CPUs it may keep busy."""
    use: float
    """How many it does keep busy."""
    cpus: tuple[int, ...]
    """The CPUs on which it may run."""
    has_target: bool
    """Whether it was promised something: others are not helped at its cost."""
    may_move: bool = True
    """Whether it can be pinned now."""
    caused: Mapping[str, float] = field(default_factory=dict)
    """Pressure that it causes, 0..100 by resource."""
    tolerated: Mapping[str, float] = field(default_factory=dict)
    """Pressure under which it loses 5 %, by resource."""
    observed: Mapping[str, float] = field(default_factory=dict)
    """By name of another unit, the additional run time (1: twice as long) that it was observed to cost somewhere."""

    @property
    def size(self) -> int:
        """How many CPUs it needs."""
        return max(1, math.ceil(self.vcpus - _SLACK))


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuAssignment:
    """Other CPUs for some units."""

    cpus: Mapping[str, tuple[int, ...]]
    """By unit that is to be pinned."""
    slowdown: float
    """Expected slowdown of the unit that is to be helped, afterwards (1: none)."""
    before: float
    """The same now."""

    @property
    def speedup(self) -> float:
        """How many times as fast that unit is afterwards."""
        return self.before / self.slowdown


def level_of(source: str) -> Level | None:
    """Return what units must have in common to share a resource; None: the machine."""
    if source in CORE_SOURCES:
        return "core"
    if source.startswith("llc-"):
        return "l3"
    return "node" if source == "memory-bandwidth" else None


class CpuSharing:
    """The slowdowns that placements on one machine are expected to cause."""

    def __init__(self, topology: CpuTopology) -> None:
        self._topology = topology
        self._at = {number: at for at, number in enumerate(topology.numbers)}
        self._member = {level: self._membership(level) for level in _LEVELS}

    def _membership(self, level: Level) -> Floats:
        """Return which CPU is in which group, shape ``(N, groups)``."""
        groups = self._topology.groups(level)
        member = np.zeros((len(self._at), len(groups)))
        for column, numbers in enumerate(groups.values()):
            member[[self._at[number] for number in numbers], column] = 1.0
        return member

    def slowdowns(self, units: Sequence[CpuUnit]) -> Floats:
        """Return how many times as long each unit takes as alone, shape ``(U,)``."""
        spread = self._spread(units)
        use = np.array([each.use for each in units])
        load = spread * use[:, None]
        # Beside others on its CPUs a unit waits for their turns; with more threads than CPUs for its own, too.
        own = np.maximum(1.0, use / np.maximum((spread > 0.0).sum(axis=1), 1))
        turns: Floats = own * (1.0 + np.maximum((spread * (load.sum(axis=0) - load)).sum(axis=1), 0.0))
        near: dict[Level | None, Floats] = {level: _overlap(spread @ self._member[level]) for level in _LEVELS}
        same_cpu = spread @ spread.T
        near["core"] = np.maximum(near["core"] - same_cpu, 0.0)  # on one CPU they do not run at one time
        near[None] = np.ones((len(units), len(units)))
        return turns * (1.0 + _longer(units, near))

    def _spread(self, units: Sequence[CpuUnit]) -> Floats:
        """Return the share of its time that each unit spends on each CPU, shape ``(U, N)``."""
        spread = np.zeros((len(units), len(self._at)))
        for row, each in enumerate(units):
            columns = [self._at[number] for number in each.cpus if number in self._at] or list(self._at.values())
            spread[row, columns] = 1.0 / len(columns)
        return spread


def _longer(units: Sequence[CpuUnit], near: Mapping[Level | None, Floats]) -> Floats:
    """Return the additional run time of each unit by the resources that it shares, shape ``(U,)``: of the one that
    costs most, or as observed of these programs, in proportion to how much they share a cache."""
    others = 1.0 - np.eye(len(units))
    worst = np.zeros(len(units))
    for source in {name for each in units for name in each.tolerated} - NOT_COUNTED:
        caused = np.array([each.caused.get(source, 0.0) for each in units])
        if not caused.any():
            continue
        pressure = ((near[level_of(source)] * others) @ caused).tolist()
        costs = [
            excess(felt, each.tolerated[source]) if source in each.tolerated else 0.0
            for felt, each in zip(pressure, units, strict=True)
        ]
        worst = np.maximum(worst, costs)
    if not any(each.observed for each in units):
        return worst
    observed = np.array([[one.observed.get(other.name, 0.0) for other in units] for one in units])
    seen: Floats = (observed * near["l3"] * others).sum(axis=1)
    return np.maximum(worst, seen)


def _overlap(by_group: Floats) -> Floats:
    """Return for each two units how likely both are in one group at a time, shape ``(U, U)``."""
    return by_group @ by_group.T


def better_cpus(
    topology: CpuTopology, units: Sequence[CpuUnit], subject: str, least_speedup: float, *, squeeze: bool = False
) -> CpuAssignment | None:
    """Return the CPUs with which ``subject`` is faster by ``least_speedup`` and all units together lose least (by the
    geometric mean, Mage §3.2), first by moving it alone; None: there are none.

    Each unit keeps as many CPUs as it needs, and none with a target is slowed for it. With ``squeeze`` units without a
    target may get fewer, and what they lose does not count.
    """
    sharing, at = CpuSharing(topology), [each.name for each in units].index(subject)
    before = sharing.slowdowns(units)
    alone, together = list[tuple[float, CpuAssignment]](), list[tuple[float, CpuAssignment]]()
    for cpus in _choices(topology, units, at):
        for kept_free in _exclusions(topology, cpus):
            changed = _moved(units, at, cpus, kept_free, squeeze=squeeze)
            pinned = {each.name: each.cpus for was, each in zip(units, changed, strict=True) if each is not was}
            after = sharing.slowdowns(changed)
            counted = [other for other, each in enumerate(units) if each.has_target or other == at or not squeeze]
            harmed = any(
                units[other].has_target and after[other] > before[other] * (1.0 + HARM)
                for other in range(len(units))
                if other != at
            )
            if harmed or before[at] < least_speedup * after[at] or not pinned:
                continue
            cost = float(np.log(after[counted]).sum()) + PER_MOVE * len(pinned)
            found = CpuAssignment(cpus=pinned, slowdown=float(after[at]), before=float(before[at]))
            (alone if pinned.keys() == {subject} else together).append((cost, found))
    best = [min(some, key=lambda each: each[0])[1] for some in (alone, together) if some]
    if not best:
        return None
    # The unit alone, unless it is clearly better off when others move, too.
    return best[0] if best[0].slowdown <= best[-1].slowdown * (1.0 + HARM) else best[-1]


def _choices(topology: CpuTopology, units: Sequence[CpuUnit], at: int) -> Iterator[tuple[int, ...]]:
    """Yield sets of CPUs for one unit: within each cache, node, socket and the machine those that others use least,
    and where it runs now if it has no more than it needs."""
    unit, regions = units[at], {topology.numbers: None}
    for level in ("socket", "node", "l3"):
        regions |= dict.fromkeys(topology.groups(level).values())
    load = dict.fromkeys(topology.numbers, 0.0)
    for each in (*units[:at], *units[at + 1 :]):
        where = [number for number in each.cpus if number in load] or list(load)
        for number in where:
            load[number] += each.use / len(where)
    of_core = {number: sum(load[each] for each in core) for core in topology.groups("core").values() for number in core}
    found: dict[tuple[int, ...], None] = {}
    for region in regions:
        if len(region) >= unit.size:
            ordered = sorted(region, key=lambda number: (round(load[number], 6), round(of_core[number], 6), number))
            found[tuple(sorted(ordered[: unit.size]))] = None
    if len(unit.cpus) == unit.size:
        found[unit.cpus] = None
    yield from found


def _exclusions(topology: CpuTopology, cpus: Sequence[int]) -> Iterator[frozenset[int]]:
    """Yield the sets of CPUs that may be kept free of others: none, these, their cores, caches and sockets."""
    chosen = frozenset(cpus)
    found: dict[frozenset[int], None] = {frozenset(): None, chosen: None}
    for level in _LEVELS:
        groups = [group for group in topology.groups(level).values() if chosen.intersection(group)]
        found[frozenset().union(*groups)] = None
    yield from found


def _moved(
    units: Sequence[CpuUnit], at: int, cpus: tuple[int, ...], kept_free: Set[int], *, squeeze: bool
) -> list[CpuUnit]:
    """Return the units with one on ``cpus`` and the others off ``kept_free``, those that fit elsewhere; units that stay
    are the same objects."""
    changed = list[CpuUnit]()
    for other, each in enumerate(units):
        if other == at:
            changed.append(each if each.cpus == cpus else replace(each, cpus=cpus))
            continue
        left = tuple(number for number in each.cpus if number not in kept_free)
        needed = 1 if squeeze and not each.has_target else each.size
        fits = each.may_move and len(left) >= needed and left != each.cpus
        changed.append(replace(each, cpus=left) if fits else each)
    return changed
