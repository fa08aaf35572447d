"""Models of simulated programs: speed by machine type and size, interference they cause and tolerate.

Programs on one node (``single``) are those of the shipped library as measured, each varied by a random factor. The
vectors of analytics frameworks and memory-based services come from stated ranges: services tolerate little pressure on
caches, memory bandwidth and network, and cause little except on the network; analytics tolerate and cause more (HCloud:
Dissertation §8.2; likewise Paragon §2.3). Only resources shared by a whole machine count, since units hold whole cores.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from hcloud.classifier.interference import CORE_SOURCES, EXCESS, NOT_COUNTED
from hcloud.classifier.library import Library, MeasuredApplication, Question
from hcloud.config import load_library, package_data

SOURCES = (
    "llc-bandwidth",
    "llc-capacity",
    "memory-bandwidth",
    "memory-capacity",
    "network-bandwidth",
    "storage-bandwidth",
    "storage-capacity",
)
"""The interference sources of the shipped profiles that are felt from other cores."""
NOTHING_CAUSED = (0.0,) * len(SOURCES)
assert not {*SOURCES} & (CORE_SOURCES | NOT_COUNTED)
TOLERANCE_MAX = 300.0
"""A program that never lost 5 % at full intensity tolerates up to three times that."""
SERVER_PRESSURE_SHARE = 0.3
"""Profiles were measured on a machine of two cores; the same program exerts this share of the pressure on a server of
sixteen."""
OFFLINE_PROGRAMS = 24
"""Programs known from the start: 20 to 30 in Quasar (Dissertation §4.3.2)."""
NODE_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16)

Ranges = Mapping[str, tuple[float, float]]
TOLERATED: Mapping[str, Ranges] = {
    "analytics": {
        "llc-bandwidth": (30, 120), "llc-capacity": (25, 90), "memory-bandwidth": (25, 90),
        "memory-capacity": (40, 150), "network-bandwidth": (30, 120), "storage-bandwidth": (20, 80),
        "storage-capacity": (80, 300),
    },
    "service": {
        "llc-bandwidth": (12, 40), "llc-capacity": (10, 30), "memory-bandwidth": (12, 40), "memory-capacity": (30, 80),
        "network-bandwidth": (10, 35), "storage-bandwidth": (60, 300), "storage-capacity": (100, 300),
    },
}  # fmt: skip
CAUSED: Mapping[str, Ranges] = {
    "analytics": {
        "llc-bandwidth": (4, 14), "llc-capacity": (4, 18), "memory-bandwidth": (5, 22), "memory-capacity": (2, 12),
        "network-bandwidth": (2, 14), "storage-bandwidth": (4, 18), "storage-capacity": (0, 4),
    },
    "service": {
        "llc-bandwidth": (2, 8), "llc-capacity": (2, 10), "memory-bandwidth": (2, 8), "memory-capacity": (2, 10),
        "network-bandwidth": (4, 16), "storage-bandwidth": (0, 2), "storage-capacity": (0, 1),
    },
}  # fmt: skip
KINDS = ("analytics", "service", "single")


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of a program's work."""

    until: float
    """The share (0..1) of its work at which the phase ends."""
    speed: float
    """Factor on its speed."""
    pressure: float
    """Factor on the pressure it causes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramModel:
    """The true behaviour of one program."""

    name: str
    kind: str
    traits: tuple[float, ...]
    """Weights on the features in which machine types differ."""
    parallel: float
    """The parallel fraction over vCPUs (Amdahl)."""
    spread_out: float
    """The parallel fraction over nodes."""
    node_cost: float
    """What each doubling of nodes costs."""
    tolerated: tuple[float, ...]
    """By :data:`SOURCES`, the pressure at which 5 % of the performance is lost, in percent of a machine; may exceed
    100."""
    caused: tuple[float, ...]
    """By :data:`SOURCES`, the pressure it causes, in percent of a machine."""
    use: tuple[float, ...]
    """See :class:`hcloud.core.estimates.Findings`."""
    phases: tuple[Phase, ...] = ()
    drawn_from: str = ""
    """The program of the shipped library that it is like, if that is all it follows."""
    own_core: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """What it tolerates and causes on sources that are felt on its own cores only, as profiling reads it. Not stated:
    100 and 0."""

    def pressures(self, source: str) -> tuple[float, float]:
        """Return what it tolerates and causes on any source, in percent of a machine."""
        if source in SOURCES:
            at = SOURCES.index(source)
            return self.tolerated[at], self.caused[at]
        return self.own_core.get(source, (100.0, 0.0))

    def on_vcpus(self, vcpus: float) -> float:
        """Return performance with ``vcpus``, relative to one vCPU."""
        return vcpus if vcpus <= 1 else 1 / ((1 - self.parallel) + self.parallel / vcpus)

    def on_nodes(self, nodes: int) -> float:
        """Return performance on ``nodes``, relative to one node."""
        return 1 / ((1 - self.spread_out) + self.spread_out / nodes + self.node_cost * math.log2(nodes))

    def performance_under(self, pressures: Sequence[float]) -> float:
        """Return the share of its performance left under pressures (0..100); the worst source decides.

        Linear in the pressure through 5 % at the tolerated pressure, as measured in
        :mod:`hcloud.classifier.interference`.
        """
        worst = 0.0
        for pressure, tolerated in zip(pressures, self.tolerated, strict=True):
            if pressure > worst * tolerated:
                worst = pressure / tolerated
        return 1.0 / (1.0 + EXCESS * worst)

    def phase(self, done: float) -> Phase:
        """Return the phase at which this share (0..1) of its work is done."""
        for each in self.phases:
            if done < each.until - 1e-9:
                return each
        return STEADY


STEADY = Phase(until=math.inf, speed=1.0, pressure=1.0)


def seeded_random(*key: object) -> random.Random:
    """Return a generator that depends only on ``key``, and is the same in every process."""
    return random.Random("/".join(map(str, key)))


def draw_program(name: str, kind: str, seed: int, *, phased: float) -> ProgramModel:
    """Return the program of this name, always the same for one seed. ``phased`` is the share of batch programs with
    phases."""
    chances = seeded_random(seed, "nature", name)
    tolerated, caused, parallel = (
        _from_shipped_profile(chances) if kind == "single" else _from_stated_ranges(kind, chances)
    )
    service = kind == "service"
    return ProgramModel(
        name=name,
        kind=kind,
        traits=(COMMON_TRAIT, *(OWN_TRAIT * math.sqrt(part) * chances.gauss(0.0, 1.0) for part in OWN_PARTS)),
        parallel=parallel,
        spread_out=chances.uniform(0.85, 0.99),
        node_cost=chances.uniform(0.0, 0.03),
        tolerated=tolerated,
        caused=caused,
        use=(0.8, chances.uniform(64, 512), chances.uniform(0, 40), chances.uniform(0, 20)),
        phases=() if service or chances.random() >= phased else _phases(chances),
    )


def _from_stated_ranges(kind: str, chances: random.Random) -> tuple[tuple[float, ...], tuple[float, ...], float]:
    tolerated = tuple(chances.uniform(*TOLERATED[kind][source]) for source in SOURCES)
    caused = tuple(chances.uniform(*CAUSED[kind][source]) for source in SOURCES)
    return tolerated, caused, chances.uniform(0.85, 0.99)


def _from_shipped_profile(chances: random.Random) -> tuple[tuple[float, ...], tuple[float, ...], float]:
    row = chances.choice(_shipped_profiles())
    tolerated, caused = [], []
    for source in SOURCES:
        limit = row.cells[Question.TOLERATED].get(source, 100.0)
        pressure = row.cells[Question.CAUSED].get(source, 0.0)
        factor = chances.lognormvariate(0.0, 0.3)
        tolerated.append(
            chances.uniform(100.0, TOLERANCE_MAX) if limit >= 100 else min(100.0, max(2.0, limit * factor))
        )
        caused.append(min(100.0, SERVER_PRESSURE_SHARE * pressure * chances.lognormvariate(0.0, 0.3)))
    steps = row.cells.get(Question.STEP, {})
    gain = steps.get("2 vCPU", 1.0) / steps.get("1 vCPU", 1.0)
    return tuple(tolerated), tuple(caused), min(0.99, max(0.0, 2 * (1 - 1 / max(gain, 1.0))))


@lru_cache(maxsize=1)
def _shipped_profiles() -> tuple[MeasuredApplication, ...]:
    library = load_library([package_data.path("profiles")])
    return tuple(library.known[name] for name in sorted(library.known))


def _phases(chances: random.Random) -> tuple[Phase, ...]:
    """Two changes: in the middle, speed and pressure differ (Paragon §5: medium, high, medium)."""
    begin, end = chances.uniform(0.25, 0.4), chances.uniform(0.6, 0.8)
    middle = Phase(until=end, speed=chances.uniform(0.8, 1.0), pressure=chances.uniform(1.5, 2.5))
    return Phase(until=begin, speed=1.0, pressure=1.0), middle


# -------------------------------------------------------------------------------------------------------- machine types
COMMON_TRAIT, OWN_TRAIT = 0.036, 0.085
"""How much types of one size differ, for all programs alike and for each program on its own: standard deviations of log
speed in the Lumos runs on two clouds (``python -m bench likeness``)."""
OWN_PARTS = (0.7, 0.3)
"""How a program's own part splits into two traits: the first explains this share of it in the Lumos runs."""
FAMILY_SHARE = 0.95
"""Correlation between the sizes of one family."""
REQUESTED_VCPUS = (1, 2, 4)
RANKING_PROGRAMS, RANKING_STEPS = 600, 300
"""Programs drawn to fit a ranking, and iterations of the fit."""


Ranking = Mapping[str, float]
"""By type name, what is added to the log speed of all programs."""


def type_speeds(
    model: ProgramModel, types: Sequence[str], seed: int, heterogeneity: float, ranking: Ranking | None = None
) -> dict[str, float]:
    """Return the speed of a program on each type; 1 on its best type.

    ``heterogeneity`` 0: all types alike; 1: as measured on clouds. ``ranking``: the common preference; None: random.
    """
    logs = dict[str, float]()
    for name in types:
        common, *own = (weight * feature for weight, feature in zip(model.traits, _features(name, seed), strict=True))
        logs[name] = heterogeneity * sum(own) + (heterogeneity * common if ranking is None else ranking[name])
    best = max(logs.values(), default=0.0)
    return {name: math.exp(each - best) for name, each in logs.items()}


@lru_cache(maxsize=10_000)
def _features(name: str, seed: int) -> tuple[float, ...]:
    family, own = seeded_random(seed, "family", name.partition(".")[0]), seeded_random(seed, "type", name)
    rest = math.sqrt(1 - FAMILY_SHARE**2)
    return tuple(FAMILY_SHARE * family.gauss(0, 1) + rest * own.gauss(0, 1) for _ in range(1 + len(OWN_PARTS)))


def ranking_by_room(
    seed: int, types: Mapping[str, float], room: Mapping[str, float], heterogeneity: float
) -> dict[str, float]:
    """Return the common ranking under which each type is the best for a share of programs equal to its share of vCPUs.

    Owners buy what their programs run best on. ``types``: vCPUs of one machine by name; ``room``: vCPUs in total by
    name. Fitted by shrinking steps over programs drawn for it, which request 1, 2 or 4 vCPUs.
    """
    names, chances = sorted(types), seeded_random(seed, "ranking")
    requested = np.array([chances.choice(REQUESTED_VCPUS) for _ in range(RANKING_PROGRAMS)], dtype=np.float64)
    own = np.array([[chances.gauss(0.0, 1.0) * OWN_TRAIT * math.sqrt(p) for p in OWN_PARTS] for _ in requested])
    logs = heterogeneity * own @ np.array([_features(name, seed)[1:] for name in names]).T
    logs[requested[:, None] > np.maximum(1.0, np.array([types[name] for name in names]))] = -math.inf
    target = np.array([room[name] for name in names]) / sum(room[name] for name in names)
    ranking = np.zeros(len(names))
    for step in range(RANKING_STEPS):
        favourites = np.bincount((logs + ranking).argmax(axis=1), weights=requested, minlength=len(names))
        ranking += 0.3 / (1 + step / 20) * np.clip(target - favourites / requested.sum(), -0.1, 0.1)
    return dict(zip(names, (ranking - ranking.mean()).tolist(), strict=True))


def offline_library(
    seed: int,
    types: Mapping[str, float],
    columns: Sequence[str],
    *,
    heterogeneity: float,
    ranking: Ranking | None = None,
) -> Library:
    """Return programs that were profiled exhaustively on every type before (``types``: vCPUs by name).

    ``columns``: prefixes of type names in the classifier's columns.
    """
    steps = sorted({1.0, *types.values(), *(each / 2 for each in types.values())})
    known = {}
    for number in range(OFFLINE_PROGRAMS):
        name = f"offline:{number:02d}"
        model = draw_program(name, KINDS[number % len(KINDS)], seed, phased=0.0)
        speeds = type_speeds(model, list(types), seed, heterogeneity, ranking)
        cells = {
            Question.TYPE: {column + each: speed for column in columns for each, speed in speeds.items()},
            Question.STEP: {f"{vcpus:g} vCPU": model.on_vcpus(vcpus) for vcpus in steps},
            Question.NODES: {str(count): model.on_nodes(count) for count in NODE_COUNTS},
            Question.TOLERATED: dict(zip(SOURCES, (min(100.0, each) for each in model.tolerated), strict=True)),
            Question.CAUSED: dict(zip(SOURCES, model.caused, strict=True)),
        }
        known[name] = MeasuredApplication(name=name, program=name, cells=cells)
    return Library(known=known)
