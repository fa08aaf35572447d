"""Programs beside real programs: what probes of each say, and how much slower they really are together."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from hcloud.classifier.gaussian import GaussianFoldIn
from hcloud.classifier.library import Library, MeasuredApplication, Question
from hcloud.classifier.needed_quality import ToleranceScale
from hcloud.classifier.source_selection import choose_sources, source_prior
from hcloud.cli.bootstrap import load_recipes
from hcloud.config import package_data
from hcloud.config.profiles import load_library
from hcloud.core.errors import Unmeasurable
from hcloud.core.estimates import Measure
from hcloud.engine.host import EngineHost
from hcloud.profiler.bootstrap import subject
from hcloud.profiler.measure import Bench
from hcloud.profiler.recipes import Recipe, missing_packages, prepared
from hcloud.profiler.reference_runs import BESIDE_VCPUS
from hcloud.profiler.repeats import Interval, interval
from hcloud.profiler.sources import source_named
from hcloud.profiler.subject import Stage

NEIGHBOURS_EACH = 2
PROBE_S = 3.0
LOOK_S = 2.4
SETTLE_S = 0.2
ROUNDS_MIN, ROUNDS_MAX = 5, 14
TIGHT = 0.04
"""A slowdown is measured until its 95 % limits are at most so far from it, or the rounds are used up."""
PATIENCE_S = 600.0
SIDES = (Question.TOLERATED, Question.CAUSED)
NOT_HERE = ("network-bandwidth",)
"""Copies have no network here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """Who is watched, and who may be its neighbour."""

    victims: tuple[str, ...]
    neighbours: tuple[str, ...]
    neighbours_each: int = NEIGHBOURS_EACH
    places: tuple[bool, ...] = (False, True)
    """Where they meet: on another core (False), on the same (True)."""
    repeats: int = 1
    """How often each pair is measured; the second time after all others were measured once."""

    def programs(self) -> tuple[str, ...]:
        """Return everybody, once."""
        return tuple(dict.fromkeys((*self.victims, *self.neighbours)))

    def partners(self) -> Iterator[tuple[str, str]]:
        """Yield who meets whom: every program meets the same number of neighbours, and never itself."""
        for at, victim in enumerate(self.victims):
            others = [name for name in self.neighbours if name != victim]
            for step in range(self.neighbours_each):
                yield victim, others[(at + step) % len(others)]


CASTS = {
    "design": Cast(
        victims=("gzip", "sqlite-insert", "redis-get", "numpy-matmul", "memory-random", "disk-write", "http-server",
                 "sort"),
        neighbours=("memory-triad", "zstd", "disk-read", "numpy-fft"),
    ),
    "test": Cast(
        victims=("grep", "jq", "openssl-aes", "postgres-select", "python-json", "sha256sum", "numpy-fft", "awk"),
        neighbours=("memory-random", "disk-write", "gzip", "numpy-matmul"),
    ),
    "ranks": Cast(
        victims=("awk", "disk-read", "git-log", "grep", "gzip", "http-server", "jq", "numpy-fft", "postgres-select",
                 "python-json", "sort", "sqlite-insert"),
        neighbours=("memory-random", "disk-write", "memory-triad", "numpy-matmul", "zstd", "openssl-aes"),
        neighbours_each=6,
        places=(False,),
        repeats=2,
    ),
}  # fmt: skip
"""How predictions are made was chosen on ``design``; ``test`` was measured afterwards. ``ranks`` asks whether needed
quality tells programs apart: twelve of them beside six neighbours each, measured twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What probes of a program found, by source, for each of its two sides; ``busy_vcpus``: what it uses alone."""

    tolerated: Mapping[str, float]
    caused: Mapping[str, float]
    busy_vcpus: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A program beside a neighbour, on one core or on two, and how many times longer it took than alone."""

    victim: str
    neighbour: str
    same_core: bool
    slowdown: float
    low: float
    high: float
    repeat: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Everything that was measured."""

    probed: Mapping[str, Probed]
    pairs: tuple[Pair, ...]

    def write(self, path: Path) -> None:
        """Keep it, to judge it again later."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


def read(path: Path) -> Found:
    """Return what ``Found.write`` kept."""
    kept = json.loads(path.read_text())
    return Found(
        probed={name: Probed(**each) for name, each in kept["probed"].items()},
        pairs=tuple(Pair(**each) for each in kept["pairs"]),
    )


def shipped_library() -> Library:
    """Return the library as shipped."""
    return load_library([package_data.path("profiles")])


def without(library: Library, *names: str) -> Library:
    """Return the library as if these programs (whatever their input) had never been measured."""
    programs = {library.known[name].program for name in names if name in library.known} | set(names)
    return Library(known={name: each for name, each in library.known.items() if each.program not in programs})


def missing(cast: Cast) -> tuple[str, ...]:
    """Return the Debian packages that are wanting for the programs of this benchmark."""
    recipes = load_recipes(package_data.path("profiles") / "recipes")
    return missing_packages(recipes[name] for name in cast.programs())


def measure(cast: Cast, say: Callable[[str], None] = print) -> Found:
    """Probe every program, then measure the pairs."""
    library, recipes = shipped_library(), load_recipes(package_data.path("profiles") / "recipes")
    wanted = cast.programs()
    with ExitStack() as stack:
        folders = {name: stack.enter_context(prepared(recipes[name])) for name in wanted}
        probed = {}
        for name in wanted:
            probed[name] = _probed(name, recipes[name], folders[name], without(library, name))
            say(f"  probed {name}: {_described(probed[name])}")
        pairs = list[Pair]()
        for repeat in range(cast.repeats):
            for victim, neighbour in cast.partners():
                met = [
                    _together(victim, neighbour, recipes, folders, same_core=same, repeat=repeat)
                    for same in cast.places
                ]
                pairs += met
                say(f"  {victim} beside {neighbour}: " + ", ".join(f"{each.slowdown:.2f}" for each in met))
    return Found(probed=probed, pairs=tuple(pairs))


def _described(probed: Probed) -> str:
    parts = [f"tolerates {value:.0f} {source}" for source, value in probed.tolerated.items()]
    return ", ".join(parts + [f"causes {value:.0f} {source}" for source, value in probed.caused.items()])


def _probed(name: str, recipe: Recipe, folder: Path, library: Library) -> Probed:
    """Probe as a profile does on two machines: with twice the two sources that leave least to guess, by a library that
    does not know the program."""
    fitted = {question: GaussianFoldIn().fit(library.rows(question)) for question in SIDES}
    prior = source_prior(fitted, ToleranceScale.of(library))
    first = choose_sources(prior, left_out=NOT_HERE).sources
    sources = (*first, *choose_sources(prior, left_out=NOT_HERE, besides=first).sources)
    with Bench(subject(name, recipe, folder), EngineHost(), run_s=LOOK_S, deadline_s=PATIENCE_S) as bench:
        rate = bench.rate(BESIDE_VCPUS, within_s=PROBE_S)
        return Probed(
            busy_vcpus=rate.use[0] if rate.use else BESIDE_VCPUS,
            tolerated=_cells(sources, Question.TOLERATED, bench.tolerated),
            caused=_cells(sources, Question.CAUSED, bench.caused),
        )


def _cells(sources: Sequence[str], question: Question, ask: Callable[..., object]) -> dict[str, float]:
    found = {}
    for source in sources:
        try:
            reading = ask(source_named(source), BESIDE_VCPUS, within_s=PROBE_S)
        except Unmeasurable as error:
            print(f"  {question} {source}: {error}")
            continue
        found[source] = float(reading.value)  # type: ignore[attr-defined]
    return found


def observed(name: str, question: Question, cells: Mapping[str, float]) -> MeasuredApplication:
    """Return probes as the classifier takes them."""
    return MeasuredApplication(name=name, cells={question: dict(cells)})


def _together(
    victim: str,
    neighbour: str,
    recipes: Mapping[str, Recipe],
    folders: Mapping[str, Path],
    *,
    same_core: bool,
    repeat: int,
) -> Pair:
    with _stage(victim, recipes, folders) as watched, _stage(neighbour, recipes, folders) as other:
        if not same_core:
            other.cpus = other.cpus[::-1]
        apart = _slowdown(watched, other)
    return Pair(
        victim=victim,
        neighbour=neighbour,
        same_core=same_core,
        slowdown=apart.value,
        low=apart.low,
        high=apart.high,
        repeat=repeat,
    )


@contextmanager
def _stage(name: str, recipes: Mapping[str, Recipe], folders: Mapping[str, Path]) -> Iterator[Stage]:
    made = subject(name, recipes[name], folders[name])
    stage = Stage(made, EngineHost(), run_s=LOOK_S, deadline=time.monotonic() + PATIENCE_S)
    try:
        yield stage
    finally:
        stage.clear()


def _slowdown(watched: Stage, other: Stage) -> Interval:
    """Alternate windows alone (the neighbour held) and beside it; only their ratio counts."""
    other.play(BESIDE_VCPUS)
    watched.play(BESIDE_VCPUS)
    other.attend(LOOK_S / 2)  # both are past their start
    watched.sample(Measure.PROGRESS, BESIDE_VCPUS)
    ratios = []
    for at in range(ROUNDS_MAX):
        rates = dict[bool, float]()
        for alone in (True, False) if at % 2 == 0 else (False, True):
            if alone:
                with other.paused():
                    rates[alone] = _settled(watched)
            else:
                rates[alone] = _settled(watched)
        ratios.append(rates[True] / rates[False])
        if len(ratios) >= ROUNDS_MIN and interval(ratios).half_width <= TIGHT:
            break
    return interval(ratios)


def _settled(watched: Stage) -> float:
    watched.attend(SETTLE_S)
    return watched.sample(Measure.PROGRESS, BESIDE_VCPUS)
