"""Predictions beside measurements: how many points of performance, and of run time, they are apart.

The target is stated in performance lost (0..100 points of that alone), as degradation is in the papers and as 5 % is
in what a program tolerates; a run time that doubles is 50 points.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from scipy.stats import spearmanr

from bench.interference.model import NO_TURNS, Combination, slowdown, turns
from bench.interference.pairs import Found, Pair, observed, shipped_library, without
from bench.rows import Row
from hcloud.classifier.classify import Classifier
from hcloud.classifier.gaussian import GaussianFoldIn
from hcloud.classifier.library import Library, MeasuredApplication, Question
from hcloud.core.estimates import Estimate

TARGET_POINTS = 8.0
MOST_OF_REPEATS = 0.7
"""Expected losses order pairs at least so well, as a part of how well a second measurement does."""
WIDEST_QUARTILES = 0.3
PLACES = {"on another core": False, "on the same core": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One pair and its predictions by method; the first method is the product's."""

    pair: Pair
    predicted: Mapping[str, Estimate]


def judged(found: Found, library: Library) -> list[Judged]:
    """Predict every pair from probes, by a library that knows neither program."""
    return [Judged(pair=pair, predicted=dict(_predictions(pair, found, library))) for pair in found.pairs]


def _predictions(pair: Pair, found: Found, library: Library) -> Iterator[tuple[str, Estimate]]:
    known = without(library, pair.victim, pair.neighbour)
    methods = {question: GaussianFoldIn() for question in (Question.TOLERATED, Question.CAUSED)}
    fitted = Classifier(methods=methods).fit(known)
    sides = {
        "probed": (found.probed[pair.victim].tolerated, found.probed[pair.neighbour].caused),
        "no probes": ({}, {}),
        "whole rows": (
            _row(library, pair.victim, Question.TOLERATED),
            _row(library, pair.neighbour, Question.CAUSED),
        ),
    }
    busy = [min(1.0, found.probed[name].busy_vcpus) for name in (pair.victim, pair.neighbour)]
    core = turns(busy[0], busy[1:]) if pair.same_core else NO_TURNS
    for name, (tolerated, caused) in sides.items():
        victim = fitted.classify(observed(pair.victim, Question.TOLERATED, tolerated)).tolerated
        neighbour = fitted.classify(observed(pair.neighbour, Question.CAUSED, caused)).caused
        for combination in (Combination.MAX, Combination.SUM):
            guess = slowdown(victim, [neighbour], core=core, combination=combination)
            yield f"{name}, {combination.value}", guess
    yield "not slowed at all", Estimate(value=1.0, low=1.0, high=1.0)


def _row(library: Library, name: str, question: Question) -> Mapping[str, float]:
    return library.known[name].cells.get(question, {}) if name in library.known else {}


def points(estimate: float, measured: float) -> float:
    """Return how many points of run time (100: as long again) a slowdown is off."""
    return 100.0 * abs(estimate - measured)


def lost_points(estimate: float, measured: float) -> float:
    """Return how many points of performance (100: all of it) a slowdown is off."""
    return 100.0 * abs(1.0 / max(estimate, 0.5) - 1.0 / max(measured, 0.5))


def table(found: Found) -> str:
    """Return every pair, and every method's mean errors."""
    pairs = judged(found, shipped_library())
    lines = [f"  {'program':<15} {'neighbour':<13} {'core':<6} {'measured (95 %)':<20} predicted (80 %)"]
    for each in pairs:
        pair, guess = each.pair, next(iter(each.predicted.values()))
        measured = f"{pair.slowdown:5.2f} ({pair.low:.2f}..{pair.high:.2f})"
        place = "same" if pair.same_core else "other"
        lines.append(f"  {pair.victim:<15} {pair.neighbour:<13} {place:<6} {measured:<20} "
                     f"{guess.value:5.2f} ({guess.low:.2f}..{guess.high:.2f})")  # fmt: skip
    lines.append(f"  {'mean error, points of performance (of run time)':<50}" + "".join(f"{p:>22}" for p in PLACES))
    for method in pairs[0].predicted if pairs else ():
        cells = [_means([each for each in pairs if each.pair.same_core is same], method) for same in PLACES.values()]
        lines.append(f"  {method:<50}" + "".join(f"{cell:>22}" for cell in cells))
    return "\n".join(lines)


def _means(pairs: Sequence[Judged], method: str) -> str:
    if not pairs:
        return "-"
    run_time = fmean(points(each.predicted[method].value, each.pair.slowdown) for each in pairs)
    performance = fmean(lost_points(each.predicted[method].value, each.pair.slowdown) for each in pairs)
    return f"{performance:.1f} ({run_time:.1f})"


def rows(found: Found) -> list[Row]:
    """Return the figures that have targets, and how honest the limits are."""
    made = []
    everything = judged(found, shipped_library())
    for place, same in PLACES.items():
        pairs = [each for each in everything if each.pair.same_core is same]
        if pairs:
            made += _figures(place, pairs)
    return made + list(_ranks(found, everything))


def _ranks(found: Found, everything: Sequence[Judged]) -> Iterator[Row]:
    """Yield whether expected losses order the pairs as measured ones do, where these were measured twice."""
    repeated = dict[tuple[str, str, bool], list[Judged]]()
    for each in everything:
        repeated.setdefault((each.pair.victim, each.pair.neighbour, each.pair.same_core), []).append(each)
    twice = [each for each in repeated.values() if len(each) > 1]
    if not twice:
        return
    first, second = ([each[at].pair.slowdown for each in twice] for at in (0, 1))
    again = float(spearmanr(first, second).statistic)
    measured = [fmean(each.pair.slowdown for each in pair) for pair in twice]
    note = f"{len(twice)} pairs; measured twice {again:.2f}"
    for method in twice[0][0].predicted:
        guessed = [pair[0].predicted[method].value for pair in twice]
        if len(set(guessed)) > 1:
            ranked = float(spearmanr(guessed, measured).statistic)
            target = MOST_OF_REPEATS * again if method == next(iter(twice[0][0].predicted)) else None
            name = f"rank correlation of expected with measured loss, {method}"
            yield Row(name=name, value=ranked, unit="", target=target, better="higher", note=note)
    needed = sorted(_quality_target(name, found) for name in {pair[0].pair.victim for pair in twice})
    low, high = np.percentile(needed, (25, 75))
    note = f"{len(needed)} programs, {needed[0]:.2f} to {needed[-1]:.2f}"
    name = "needed quality, interquartile range"
    yield Row(name=name, value=float(high - low), unit="", target=WIDEST_QUARTILES, better="higher", note=note)


def _quality_target(name: str, found: Found) -> float:
    """Return the needed quality of a program from its probes, by a library that does not know it."""
    probed = found.probed[name]
    cells = {Question.TOLERATED: dict(probed.tolerated), Question.CAUSED: dict(probed.caused)}
    fitted = Classifier().fit(without(shipped_library(), name))
    return fitted.classify(MeasuredApplication(name=name, cells=cells)).quality_target.value


def _figures(place: str, pairs: Sequence[Judged]) -> list[Row]:
    method = next(iter(pairs[0].predicted))
    seen = [(each.predicted[method], each.pair.slowdown) for each in pairs]
    programs = len({each.pair.victim for each in pairs})
    inside = [guess.low <= measured <= guess.high for guess, measured in seen]
    return [
        Row(
            name=f"performance lost beside a neighbour {place}, mean error",
            value=fmean(lost_points(guess.value, measured) for guess, measured in seen),
            unit="points",
            target=TARGET_POINTS,
            note=f"{programs} programs, {len(pairs)} pairs, from the sources a profile chooses",
        ),
        Row(
            name="  the same in run time",
            value=fmean(points(guess.value, measured) for guess, measured in seen),
            unit="points",
        ),
        Row(name="  within the 80 % limits", value=100.0 * fmean(inside), unit="%"),
    ]
