"""Measure programs on this machine: probe each as a profile does, then let them meet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from bench.interference.pairs import Cast, Found, Pair, Place, Probed, Triple, shipped_library, without
from hcloud.classifier.gaussian import GaussianFoldIn
from hcloud.classifier.library import Library, Question, half_width
from hcloud.classifier.needed_quality import ToleranceScale
from hcloud.classifier.source_selection import choose_sources, source_prior
from hcloud.cli.bootstrap import load_recipes
from hcloud.config import package_data
from hcloud.core.errors import Unmeasurable
from hcloud.core.estimates import Measure, Reading
from hcloud.engine.host import EngineHost
from hcloud.profiler.bootstrap import subject
from hcloud.profiler.measure import Bench
from hcloud.profiler.recipes import Recipe, missing_packages, prepared
from hcloud.profiler.reference_runs import BESIDE_VCPUS
from hcloud.profiler.repeats import Interval, interval
from hcloud.profiler.sources import source_named
from hcloud.profiler.subject import Stage

PROBE_S = 3.0
LOOK_S = 2.4
SETTLE_S = 0.2
SERVE_S = 0.01
"""Neighbours are attended to so long before each window: one that ended is started again."""
ROUNDS_MIN, ROUNDS_MAX = 5, 14
TIGHT = 0.04
"""A slowdown is measured until its 95 % limits are at most so far from it, or the rounds are used up."""
PATIENCE_S = 600.0
SIDES = (Question.TOLERATED, Question.CAUSED)
NOT_HERE = ("network-bandwidth",)
"""Copies have no network here."""


class Measurer(Protocol):
    """What measures; tests have one that invents."""

    def probe(self, program: str) -> Probed:
        """Return what probes of a program find. Raises Unmeasurable."""

    def slowdown(self, victim: str, places: Sequence[Place]) -> Interval:
        """Return how many times longer a program takes beside these neighbours than alone. Raises Unmeasurable."""


def missing(cast: Cast) -> tuple[str, ...]:
    """Return the Debian packages that are wanting for the programs of this benchmark."""
    recipes = load_recipes(package_data.path("profiles") / "recipes")
    return missing_packages(recipes[name] for name in cast.programs())


def measure(
    cast: Cast,
    measurer: Measurer,
    *,
    kept: Found | None = None,
    keep: Callable[[Found], None] = lambda _: None,
    say: Callable[[str], None] = print,
) -> Found:
    """Probe every program, then measure the pairs, then the triples, as far as ``kept`` has not what is asked.

    ``keep`` is called with everything so far after each measurement. What cannot be measured is named and left out.
    """
    found = kept or Found()
    for name in cast.programs():
        if name not in found.probed:
            with _named(f"probing {name}", say):
                found = replace(found, probed={**found.probed, name: measurer.probe(name)})
                say(f"  probed {name}: {_described(found.probed[name])}")
                keep(found)
    for pair in _wanted_pairs(cast, found):
        with _named(f"{pair.victim} beside {pair.neighbour}", say):
            seen = measurer.slowdown(pair.victim, (Place(pair.neighbour, pair.same_core),))
            pair = replace(pair, slowdown=seen.value, low=seen.low, high=seen.high)
            found = replace(found, pairs=(*found.pairs, pair))
            say(f"  {pair.victim} beside {_placed((Place(pair.neighbour, pair.same_core),))}: {seen.value:.2f}")
            keep(found)
    done = {(each.victim, each.places) for each in found.triples}
    for victim, places in cast.triples():
        if (victim, places) not in done and found.probed.keys() >= {victim, *(each.neighbour for each in places)}:
            with _named(f"{victim} beside {_placed(places)}", say):
                seen = measurer.slowdown(victim, places)
                triple = Triple(victim=victim, places=places, slowdown=seen.value, low=seen.low, high=seen.high)
                found = replace(found, triples=(*found.triples, triple))
                say(f"  {victim} beside {_placed(places)}: {seen.value:.2f}")
                keep(found)
    return found


def _wanted_pairs(cast: Cast, found: Found) -> Iterator[Pair]:
    """Yield the pairs to measure, of programs that were probed; their figures are those of no slowdown."""
    done = {each.key for each in found.pairs}
    for repeat in range(cast.repeats):
        for victim, neighbour in cast.partners():
            for same in cast.places:
                pair = Pair(
                    victim=victim, neighbour=neighbour, same_core=same, slowdown=1.0, low=1.0, high=1.0, repeat=repeat
                )
                if pair.key not in done and found.probed.keys() >= {victim, neighbour}:
                    yield pair


@contextmanager
def _named(what: str, say: Callable[[str], None]) -> Iterator[None]:
    """Say what could not be measured, and go on."""
    try:
        yield
    except Unmeasurable as error:
        say(f"  {what}: not measured: {error}")


def _placed(places: Sequence[Place]) -> str:
    return " and ".join(f"{each.neighbour} on {'its' if each.same_core else 'another'} core" for each in places)


def _described(probed: Probed) -> str:
    parts = []
    for verb, side, cells in zip(("tolerates", "causes"), SIDES, (probed.tolerated, probed.caused), strict=True):
        spreads = probed.spreads.get(side, {})
        parts += [f"{verb} {value:.0f} ±{spreads.get(source, 0.0):.0f} {source}" for source, value in cells.items()]
    return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class RealMeasurer:
    """Measures on this machine, which must have nothing else to do."""

    recipes: Mapping[str, Recipe]
    folders: Mapping[str, Path]
    library: Library

    def probe(self, program: str) -> Probed:
        """Probe as a profile does on two machines: with twice the two sources that leave least to guess, by a library
        that does not know the program."""
        known = without(self.library, program)
        fitted = {question: GaussianFoldIn().fit(known.rows(question)) for question in SIDES}
        prior = source_prior(fitted, ToleranceScale.of(known))
        first = choose_sources(prior, left_out=NOT_HERE).sources
        sources = (*first, *choose_sources(prior, left_out=NOT_HERE, besides=first).sources)
        given = subject(program, self.recipes[program], self.folders[program])
        with Bench(given, EngineHost(), run_s=LOOK_S, deadline_s=PATIENCE_S) as bench:
            rate = bench.rate(BESIDE_VCPUS, within_s=PROBE_S)
            asked = zip(SIDES, (bench.tolerated, bench.caused), strict=True)
            cells = {side: _cells(sources, side, ask) for side, ask in asked}
        values = {side: {source: each.value for source, each in found.items()} for side, found in cells.items()}
        return Probed(
            busy_vcpus=rate.use[0] if rate.use else BESIDE_VCPUS,
            tolerated=values[Question.TOLERATED],
            caused=values[Question.CAUSED],
            spreads={
                str(side): {source: half_width(side, each.value, each.low, each.high) for source, each in found.items()}
                for side, found in cells.items()
            },
        )

    def slowdown(self, victim: str, places: Sequence[Place]) -> Interval:
        """Alternate windows alone (the neighbours held) and beside them; only their ratio counts."""
        with ExitStack() as stack:
            watched, others = stack.enter_context(self._stage(victim)), list[Stage]()
            for place in places:
                other = stack.enter_context(self._stage(place.neighbour))
                if not place.same_core:
                    other.cpus = other.cpus[::-1]
                others.append(other)
            return _slowdown(watched, others)

    @contextmanager
    def _stage(self, name: str) -> Iterator[Stage]:
        made = subject(name, self.recipes[name], self.folders[name])
        stage = Stage(made, EngineHost(), run_s=LOOK_S, deadline=time.monotonic() + PATIENCE_S)
        try:
            yield stage
        finally:
            stage.clear()


@contextmanager
def real_measurer(cast: Cast) -> Iterator[RealMeasurer]:
    """Prepare the programs of a cast while a block lasts."""
    recipes = load_recipes(package_data.path("profiles") / "recipes")
    with ExitStack() as stack:
        folders = {name: stack.enter_context(prepared(recipes[name])) for name in cast.programs()}
        yield RealMeasurer(recipes, folders, shipped_library())


def _cells(sources: Sequence[str], question: Question, ask: Callable[..., Reading]) -> dict[str, Reading]:
    found = {}
    for source in sources:
        try:
            found[source] = ask(source_named(source), BESIDE_VCPUS, within_s=PROBE_S)
        except Unmeasurable as error:
            print(f"  {question} {source}: {error}")
    return found


def _slowdown(watched: Stage, others: Sequence[Stage]) -> Interval:
    for each in (*others, watched):
        each.play(BESIDE_VCPUS)
    others[0].attend(LOOK_S / 2)  # all are past their start
    watched.sample(Measure.PROGRESS, BESIDE_VCPUS)
    ratios = []
    for at in range(ROUNDS_MAX):
        rates = dict[bool, float]()
        for alone in (True, False) if at % 2 == 0 else (False, True):
            for each in others:
                each.attend(SERVE_S)
            with ExitStack() as held:
                for each in others if alone else ():
                    held.enter_context(each.paused())
                rates[alone] = _settled(watched)
        ratios.append(rates[True] / rates[False])
        if len(ratios) >= ROUNDS_MIN and interval(ratios).half_width <= TIGHT:
            break
    return interval(ratios)


def _settled(watched: Stage) -> float:
    watched.attend(SETTLE_S)
    return watched.sample(Measure.PROGRESS, BESIDE_VCPUS)
