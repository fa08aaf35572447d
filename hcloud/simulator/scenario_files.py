"""Scenarios that users describe in a file: the load over time, and the kinds of jobs it is made of.

    name: evenings
    load: [[0, 40], [2, 200], [4, 40]]   # vCPUs in use at these hours; straight lines between them
    jobs:
      - {name: etl, weight: 3, vcpus: 2, run_s: 600, within_s: 3600}
      - {name: web, vcpus: 4, run_s: 7200, run_spread: 0, requests_per_s: 100, latency_ms: 20, interruptible: false}

A job arrives whenever those before it leave room for it under the load, each kind as often as its ``weight`` says;
those that fill the load at the beginning are under way. The same seed, the same jobs.
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
    """One kind of job: ``like`` has its run time's mean, ``spread`` is the standard deviation of that's logarithm.

    ``where``: file, line and key of it, for error messages.
    """

    like: Arrival
    weight: float
    spread: float
    where: str = ""

    @property
    def vcpu_s(self) -> float:
        """Return how long it holds how many vCPUs, on average."""
        return self.vcpus * self.like.run_s

    @property
    def vcpus(self) -> float:
        """Return what all of its nodes hold."""
        return self.like.spec.resources.vcpus * self.like.spec.nodes.count


@dataclass(frozen=True, slots=True, kw_only=True)
class FileScenario:
    """A load over time: ``at_h`` and ``vcpus`` in use then, shape ``(P,)``; and of which jobs it is made.

    ``where``: file, line and key of the load.
    """

    name: str
    at_h: tuple[float, ...]
    vcpus: tuple[float, ...]
    kinds: tuple[JobKind, ...]
    where: str = ""

    def make(self, seed: int, share: float) -> Workload:
        """Return the jobs of ``share`` (0..1] of the load.

        Raises NoJobs where there would be none, BadInput where one would run too long; both name file, line and key.
        """
        rng = np.random.default_rng([seed, sum(map(ord, self.name))])
        use = _RunningLoad()
        arrivals = [*self._initial_jobs(rng, share, use), *self._arrivals(rng, share, use)]
        if not arrivals:
            raise NoJobs(f"{self.where or self.name}: {self._empty_message(share)}")
        named = [_numbered(each, number) for number, each in enumerate(arrivals)]
        return workload_of(self.name if share == 1 else f"{self.name} x {share:g}", named)

    def expected_jobs(self) -> float:
        """Return how many jobs the whole load is made of, those under way at the beginning among them."""
        mean_run_s = float(np.dot(self._odds, [each.like.run_s for each in self.kinds]))
        vcpu_s = float(np.trapezoid(self.vcpus, self.at_h)) * HOUR_S + self.vcpus[0] * mean_run_s
        return vcpu_s / self._mean_vcpu_s

    def _empty_message(self, share: float) -> str:
        """Return in words that the load, or this share of it, is too small for any job."""
        least = min(self.kinds, key=lambda each: each.vcpu_s)
        lasts = f"{plain(self.at_h[-1])} h" if self.at_h[-1] >= 0.1 else f"{self.at_h[-1] * HOUR_S:.3g} s"
        load = f"{max(self.vcpus) * share:.4g} vCPUs at most, for {lasts}" + (
            f" (--share {share:g})" if share < 1 else ""
        )
        job = f"the smallest kind of job holds {least.vcpus:.4g} for {least.like.run_s:.4g} s"
        return f"makes no job: {load}, and {job}; make the load larger or longer, or jobs smaller"

    @property
    def _odds(self) -> np.ndarray:
        weights = np.array([each.weight for each in self.kinds])
        odds: np.ndarray = weights / weights.sum()
        return odds

    @property
    def _mean_vcpu_s(self) -> float:
        return float(np.dot(self._odds, [each.vcpu_s for each in self.kinds]))

    def _initial_jobs(self, rng: np.random.Generator, share: float, use: _RunningLoad) -> Iterator[Arrival]:
        """Yield the jobs that run at the beginning, which long ones are likelier to, each with a part of its time."""
        running = self._odds * [each.like.run_s for each in self.kinds]
        while True:
            kind = self.kinds[rng.choice(len(self.kinds), p=running / running.sum())]
            if not use.has_room(kind, self.vcpus[0] * share):
                return
            yield use.begin(kind, 0.0, max(0.001, _run_s(kind, rng) * rng.random()))

    def _arrivals(self, rng: np.random.Generator, share: float, use: _RunningLoad) -> Iterator[Arrival]:
        """Yield the jobs that arrive.

        Their rate cannot follow from the load alone: a peak would be filled only a whole run later.
        """
        odds, seconds = self._odds, range(int(self.at_h[-1] * HOUR_S))
        load = np.interp(np.array(seconds) / HOUR_S, self.at_h, self.vcpus) * share
        kind = self.kinds[rng.choice(len(self.kinds), p=odds)]
        use.unused_vcpu_s = kind.vcpu_s * rng.random()
        for second, vcpus in zip(seconds, load.tolist(), strict=True):
            at_s: float | None = second + rng.random()
            use.save_unused(kind, vcpus)
            while at_s is not None:
                while use.has_room(kind, vcpus):
                    yield use.begin(kind, at_s, _run_s(kind, rng))
                    kind = self.kinds[rng.choice(len(self.kinds), p=odds)]
                at_s = use.next_end_before(second + 1.0)


@dataclass(slots=True)
class _RunningLoad:
    """What jobs hold where none of them waits: ``held`` vCPUs, of which so many are let go of at their ``ends`` (s).

    ``saved_vcpu_s``: what the load has left unused of late, as it is too small for the job that comes next.
    """

    held: float = 0.0
    ends: list[tuple[float, float]] = field(default_factory=list)
    unused_vcpu_s: float = 0.0

    def has_room(self, kind: JobKind, load_vcpus: float) -> bool:
        """Whether a job brings what is held nearer to the load; one that never would comes as often as it should."""
        if _too_large(kind, load_vcpus):
            return self.unused_vcpu_s >= kind.vcpu_s
        return self.held + kind.vcpus / 2 <= load_vcpus

    def save_unused(self, kind: JobKind, load_vcpus: float) -> None:
        """Save up the load of a second where the next job is too large for it."""
        self.unused_vcpu_s += load_vcpus if _too_large(kind, load_vcpus) else 0.0

    def begin(self, kind: JobKind, at_s: float, run_s: float) -> Arrival:
        """Return a job of a kind that holds what it needs from now on."""
        self.held += kind.vcpus
        self.unused_vcpu_s = max(0.0, self.unused_vcpu_s - kind.vcpu_s)
        heappush(self.ends, (at_s + run_s, kind.vcpus))
        return replace(kind.like, at_s=at_s, run_s=run_s)

    def next_end_before(self, until_s: float) -> float | None:
        """Have the next job end, and return when; None where that is not before ``until_s``."""
        if not self.ends or self.ends[0][0] >= until_s:
            return None
        ends_s, vcpus = heappop(self.ends)
        self.held -= vcpus
        return ends_s


def _too_large(kind: JobKind, load_vcpus: float) -> bool:
    return kind.vcpus / 2 > load_vcpus


def _run_s(kind: JobKind, rng: np.random.Generator) -> float:
    """Return a run time: lognormal around the kind's mean. Raises BadInput where it is beyond LONGEST_DAYS."""
    run_s = kind.like.run_s * math.exp(rng.normal(0.0, kind.spread) - kind.spread**2 / 2)
    if run_s > LONGEST_DAYS * DAY_S:
        text = f"run_s {kind.like.run_s:g} with run_spread {kind.spread:g} makes a job of {run_s / DAY_S:.3g} days"
        raise BadInput(f"{kind.where}: {text}; it must be at most {LONGEST_DAYS}, and times are in seconds")
    return max(0.001, run_s)


def _numbered(job: Arrival, number: int) -> Arrival:
    return replace(job, spec=replace(job.spec, name=f"{job.spec.name}-{number}"))


# ------------------------------------------------------------------------------------------------------------- reading
def read_scenario(path: Path) -> FileScenario:
    """Read a scenario file. Raises ConfigError, naming file, line and key, where it is none."""
    document = read_document(path)
    top = _mapping(document, document.value, (), KEYS)
    load = _items(document, top, "load", 2, "points such as [0, 40] and [2, 200]: hours and the vCPUs in use then")
    jobs = _items(document, top, "jobs", 1, "kinds of jobs")
    points = [_point(document, each, ("load", at)) for at, each in enumerate(load)]
    _check_points(document, points)
    kinds = _programs([_kind(document, each, ("jobs", at)) for at, each in enumerate(jobs)])
    name = top.get("name", path.stem)
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 100:
        raise ConfigError("must be a name of 1 to 100 printable characters", where=document.where(("name",)))
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
            raise ConfigError(f"there is no such key; {nearest(key, keys)}", where=document.where((*path, key)))
    return value


def _items(document: Document, top: Mapping[str, object], key: str, least: int, what: str) -> Sequence[object]:
    found = top.get(key)
    if not isinstance(found, list) or not least <= len(found) <= KINDS_MOST:
        said = "must" if key in top else f"{key} is missing; it must"
        where = document.where((key,) if key in top else ())
        raise ConfigError(f"{said} be a list of {least} to {KINDS_MOST} {what}", where=where)
    return found


def _point(document: Document, value: object, path: KeyPath) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise ConfigError("must be two numbers: an hour, and the vCPUs in use then", where=document.where(path))
    return (
        _number(document, value[0], path, "the hour", 0.0, HOURS_MOST),
        _number(document, value[1], path, "vCPUs in use", 0.0, VCPUS_MOST),
    )


def _check_points(document: Document, points: Sequence[tuple[float, float]]) -> None:
    if points[0][0] != 0.0:
        raise ConfigError(f"begins at hour {points[0][0]:g}; it must begin at 0", where=document.where(("load", 0)))
    for at in range(1, len(points)):
        if points[at][0] <= points[at - 1][0]:
            text = f"hour {points[at][0]:g} does not come after {points[at - 1][0]:g}; write them in order"
            raise ConfigError(text, where=document.where(("load", at)))
    if not any(vcpus for _, vcpus in points):
        raise ConfigError("is 0 all the time; somewhere it must be more", where=document.where(("load",)))


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
    """Return the kinds with a program each, for whoever learns what programs need, though several have one name."""
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
