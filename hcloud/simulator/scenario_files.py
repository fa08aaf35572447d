"""Scenario files: the load over time, and the kinds of jobs that make it up.

    name: evenings
    load: [[0, 40], [2, 200], [4, 40]]   # vCPUs in use at these hours, interpolated linearly
    jobs:
      - {name: etl, weight: 3, vcpus: 2, run_s: 600, within_s: 3600}
      - {name: web, vcpus: 4, run_s: 7200, run_spread: 0, requests_per_s: 100, latency_ms: 20, interruptible: false}

A job arrives whenever the jobs before it leave room for it under the load, each kind in proportion to its ``weight``.
Jobs that fill the load at the start are already under way. The same seed gives the same jobs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from pathlib import Path

import numpy as np

from hcloud.config.document import Document, read_document
from hcloud.core.errors import BadInput, ConfigError, NoJobs
from hcloud.core.units import plain, shown
from hcloud.simulator.workload import (
    COMMAND,
    DAY_S,
    LONGEST_DAYS,
    NEEDED,
    OPTIONAL,
    Arrival,
    Workload,
    arrival_of,
    workload_of,
)
from hcloud.spec.validation import KeyPath, nearest

HOUR_S = 3600.0
KEYS = ("name", "load", "jobs")
JOB_KEYS = (*(each for each in (*NEEDED, *OPTIONAL) if each != "at_s"), "weight", "run_spread")
SPREAD, SPREAD_MOST, WEIGHT_MOST = 0.5, 3.0, 1e6
VCPUS_MOST, HOURS_MOST, JOBS_MOST, KINDS_MOST = 1e6, 744.0, 1_000_000, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKind:
    """One kind of job in a scenario file."""

    like: Arrival
    """A template; its run time is the mean."""
    weight: float
    spread: float
    """Standard deviation of the logarithm of the run time."""
    where: str = ""
    """File, line and key, for error messages."""

    @property
    def vcpu_s(self) -> float:
        """Mean vCPU-seconds of one job."""
        return self.vcpus * self.like.run_s

    @property
    def vcpus(self) -> float:
        """vCPUs held on all nodes together."""
        return self.like.spec.resources.vcpus * self.like.spec.nodes.count


@dataclass(frozen=True, slots=True, kw_only=True)
class FileScenario:
    """A scenario read from a file."""

    name: str
    at_h: tuple[float, ...]
    """Times of the load's points, in hours, shape ``(P,)``."""
    vcpus: tuple[float, ...]
    """vCPUs in use at these times, shape ``(P,)``."""
    kinds: tuple[JobKind, ...]
    where: str = ""
    """File, line and key of the load."""

    def make(self, seed: int, share: float) -> Workload:
        """Return the jobs of ``share`` (0..1] of the load.

        Raises NoJobs if there are none, BadInput if one would run too long; both name file, line and key.
        """
        rng = np.random.default_rng([seed, sum(map(ord, self.name))])
        running = _RunningLoad()
        arrivals = [*self._initial_jobs(rng, share, running), *self._arrivals(rng, share, running)]
        if not arrivals:
            raise NoJobs(f"{self.where or self.name}: {self._empty_message(share)}")
        named = [
            replace(each, spec=replace(each.spec, name=f"{each.spec.name}-{number}"))
            for number, each in enumerate(arrivals)
        ]
        return workload_of(self.name if share == 1 else f"{self.name} x {share:g}", named)

    def expected_jobs(self) -> float:
        """Return the expected number of jobs of the whole load, including those under way at the start."""
        mean_run_s = float(np.dot(self._odds, [each.like.run_s for each in self.kinds]))
        vcpu_s = float(np.trapezoid(self.vcpus, self.at_h)) * HOUR_S + self.vcpus[0] * mean_run_s
        return vcpu_s / self._mean_vcpu_s

    def _empty_message(self, share: float) -> str:
        """Return why this share of the load contains no job, and what to change."""
        least = min(self.kinds, key=lambda each: each.vcpu_s)
        length = f"{plain(self.at_h[-1])} h" if self.at_h[-1] >= 0.1 else f"{self.at_h[-1] * HOUR_S:.3g} s"
        load = f"at most {max(self.vcpus) * share:.4g} vCPUs for {length}"
        load += f" (--share {share:g})" if share < 1 else ""
        job = f"the smallest kind of job holds {least.vcpus:.4g} for {least.like.run_s:.4g} s"
        return f"contains no job: {load}, but {job}; make the load larger or longer, or jobs smaller"

    @property
    def _odds(self) -> np.ndarray:
        weights = np.array([each.weight for each in self.kinds])
        odds: np.ndarray = weights / weights.sum()
        return odds

    @property
    def _mean_vcpu_s(self) -> float:
        return float(np.dot(self._odds, [each.vcpu_s for each in self.kinds]))

    def _initial_jobs(self, rng: np.random.Generator, share: float, running: _RunningLoad) -> Iterator[Arrival]:
        """Yield the jobs under way at the start, each with a part of its run time left; long jobs are likelier."""
        odds = self._odds * [each.like.run_s for each in self.kinds]
        while True:
            kind = self.kinds[rng.choice(len(self.kinds), p=odds / odds.sum())]
            if not running.has_room(kind, self.vcpus[0] * share):
                return
            yield running.begin(kind, 0.0, max(0.001, _run_s(kind, rng) * rng.random()))

    def _arrivals(self, rng: np.random.Generator, share: float, running: _RunningLoad) -> Iterator[Arrival]:
        """Yield the jobs that arrive later."""
        # A rate derived from the load alone would fill a peak only a whole run time later.
        odds, seconds = self._odds, range(int(self.at_h[-1] * HOUR_S))
        load = np.interp(np.array(seconds) / HOUR_S, self.at_h, self.vcpus) * share
        kind = self.kinds[rng.choice(len(self.kinds), p=odds)]
        running.unused_vcpu_s = kind.vcpu_s * rng.random()
        for second, vcpus in zip(seconds, load.tolist(), strict=True):
            at_s: float | None = second + rng.random()
            running.save_unused(kind, vcpus)
            while at_s is not None:
                while running.has_room(kind, vcpus):
                    yield running.begin(kind, at_s, _run_s(kind, rng))
                    kind = self.kinds[rng.choice(len(self.kinds), p=odds)]
                at_s = running.next_end_before(second + 1.0)


@dataclass(slots=True)
class _RunningLoad:
    """What jobs would hold if none of them had to wait."""

    held: float = 0.0
    """vCPUs held now."""
    ends: list[tuple[float, float]] = field(default_factory=list)
    """A heap of end times (seconds) and the vCPUs released then."""
    unused_vcpu_s: float = 0.0
    """Load left unused because the next job is too large for it."""

    def has_room(self, kind: JobKind, load_vcpus: float) -> bool:
        """Return whether a job brings the held vCPUs closer to the load. A job too large for that starts once enough
        load was left unused."""
        if _too_large(kind, load_vcpus):
            return self.unused_vcpu_s >= kind.vcpu_s
        return self.held + kind.vcpus / 2 <= load_vcpus

    def save_unused(self, kind: JobKind, load_vcpus: float) -> None:
        """Add one second of load to the unused load if the next job is too large for it."""
        self.unused_vcpu_s += load_vcpus if _too_large(kind, load_vcpus) else 0.0

    def begin(self, kind: JobKind, at_s: float, run_s: float) -> Arrival:
        """Return a job of a kind that starts now, and record what it holds."""
        self.held += kind.vcpus
        self.unused_vcpu_s = max(0.0, self.unused_vcpu_s - kind.vcpu_s)
        heappush(self.ends, (at_s + run_s, kind.vcpus))
        return replace(kind.like, at_s=at_s, run_s=run_s)

    def next_end_before(self, until_s: float) -> float | None:
        """Release the next job to end and return its end time; None if none ends before ``until_s``."""
        if not self.ends or self.ends[0][0] >= until_s:
            return None
        ends_s, vcpus = heappop(self.ends)
        self.held -= vcpus
        return ends_s


def _too_large(kind: JobKind, load_vcpus: float) -> bool:
    return kind.vcpus / 2 > load_vcpus


def _run_s(kind: JobKind, rng: np.random.Generator) -> float:
    """Return a run time, lognormal around the kind's mean. Raises BadInput above LONGEST_DAYS."""
    run_s = kind.like.run_s * math.exp(rng.normal(0.0, kind.spread) - kind.spread**2 / 2)
    if run_s > LONGEST_DAYS * DAY_S:
        text = f"run_s {kind.like.run_s:g} with run_spread {kind.spread:g} makes a job of {run_s / DAY_S:.3g} days"
        raise BadInput(f"{kind.where}: {text}; it must be at most {LONGEST_DAYS}, and times are in seconds")
    return max(0.001, run_s)


# ------------------------------------------------------------------------------------------------------------- reading
def read_scenario(path: Path) -> FileScenario:
    """Read a scenario file. Raises ConfigError, which names file, line and key, if it is invalid."""
    document = read_document(path)
    top = _mapping(document, document.value, (), KEYS)
    load = _items(document, top, "load", 2, "points such as [0, 40] and [2, 200]: hours and the vCPUs in use then")
    jobs = _items(document, top, "jobs", 1, "kinds of jobs")
    points = [_point(document, each, ("load", at)) for at, each in enumerate(load)]
    _check_points(document, points)
    kinds = _programs([_kind(document, each, ("jobs", at)) for at, each in enumerate(jobs)])
    name = top.get("name", path.stem)
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 100:
        raise ConfigError("must have 1 to 100 printable characters", where=document.where(("name",)))
    hours, vcpus = zip(*points, strict=True)
    made = FileScenario(name=name, at_h=hours, vcpus=vcpus, kinds=kinds, where=document.where(("load",)))
    if made.expected_jobs() > JOBS_MOST:
        text = f"makes {made.expected_jobs():.3g} jobs; at most {JOBS_MOST} can be simulated"
        raise ConfigError(text, where=document.where(("load",)))
    return made


def _mapping(document: Document, value: object, path: KeyPath, keys: Sequence[str]) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ConfigError(f"must have the keys {', '.join(keys)}", where=document.where(path))
    for key in value:
        if key not in keys:
            raise ConfigError(f"unknown key; {nearest(key, keys)}", where=document.where((*path, key)))
    return value


def _items(document: Document, top: Mapping[str, object], key: str, least: int, what: str) -> Sequence[object]:
    items = top.get(key)
    if not isinstance(items, list) or not least <= len(items) <= KINDS_MOST:
        must = "must" if key in top else f"{key} is missing; it must"
        where = document.where((key,) if key in top else ())
        raise ConfigError(f"{must} be a list of {least} to {KINDS_MOST} {what}", where=where)
    return items


def _point(document: Document, value: object, path: KeyPath) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise ConfigError("must be two numbers: an hour, and the vCPUs in use then", where=document.where(path))
    return (
        _number(document, value[0], path, "the hour", 0.0, HOURS_MOST),
        _number(document, value[1], path, "vCPUs in use", 0.0, VCPUS_MOST),
    )


def _check_points(document: Document, points: Sequence[tuple[float, float]]) -> None:
    if points[0][0] != 0.0:
        raise ConfigError(f"starts at hour {points[0][0]:g}; it must start at 0", where=document.where(("load", 0)))
    for at in range(1, len(points)):
        if points[at][0] <= points[at - 1][0]:
            text = f"hour {points[at][0]:g} is not after hour {points[at - 1][0]:g}; write points in order of time"
            raise ConfigError(text, where=document.where(("load", at)))
    if not any(vcpus for _, vcpus in points):
        raise ConfigError("is always 0; at least one point must be above 0", where=document.where(("load",)))


def _kind(document: Document, value: object, path: KeyPath) -> JobKind:
    keys = _mapping(document, value, path, JOB_KEYS)
    weight = _number(document, keys.get("weight", 1.0), (*path, "weight"), "it", 1e-6, WEIGHT_MOST)
    spread = _number(document, keys.get("run_spread", SPREAD), (*path, "run_spread"), "it", 0.0, SPREAD_MOST)
    for needed in (each for each in NEEDED if each != "at_s" and each not in keys):
        raise ConfigError(f"a kind of job needs {needed}", where=document.where(path))
    row = {
        key: _text(document, each, (*path, key)) for key, each in keys.items() if key not in ("weight", "run_spread")
    }
    like = arrival_of({"name": "job", **row, "at_s": "0"}, document.where(path))
    if like.run_s > LONGEST_DAYS * DAY_S:
        text = f"is {like.run_s / DAY_S:.3g} days; it must be at most {LONGEST_DAYS}, and times are in seconds"
        raise ConfigError(text, where=document.where((*path, "run_s")))
    return JobKind(like=like, weight=weight, spread=spread, where=document.where(path))


def _programs(kinds: Sequence[JobKind]) -> tuple[JobKind, ...]:
    """Return the kinds with a distinct program each, even if several have the same name."""
    names = [each.like.spec.name for each in kinds]
    programs = [name if names.count(name) == 1 else f"{name} ({at})" for at, name in enumerate(names, 1)]
    commands = [(*COMMAND, program) for program in programs]
    return tuple(
        replace(each, like=replace(each.like, spec=replace(each.like.spec, command=command)))
        for each, command in zip(kinds, commands, strict=True)
    )


def _text(document: Document, value: object, path: KeyPath) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or not isinstance(value, str | int | float):
        raise ConfigError("must be a number or a word", where=document.where(path))
    return str(value)


def _number(document: Document, value: object, path: KeyPath, what: str, least: float, most: float) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not least <= value <= most:  # type: ignore[operator]
        text = f"{what} must be a number from {plain(least)} to {plain(most)}, not {shown(str(value))}"
        raise ConfigError(text, where=document.where(path))
    return float(value)  # type: ignore[arg-type]
