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

from bench.interference.pairs import Found, Pair, Triple, shipped_library, without
from bench.interference.predictions import NOT_SLOWED, Predictor
from bench.rows import Row
from hcloud.classifier.classify import Classifier
from hcloud.classifier.library import Library, MeasuredApplication, Question
from hcloud.core.estimates import Estimate

MOST_OF_NOT_SLOWED = 0.7
"""Predictions err at most by this part of what "not slowed at all" errs."""
MOST_OF_REPEATS = 0.7
"""Expected losses order pairs at least so well, as a part of how well a second measurement does."""
WIDEST_QUARTILES = 0.3
PLACES = {"on another core": False, "on the same core": True}
TARGETS = {False: 2.0, True: 2.2}
"""Points of performance, by whether a pair shares a core."""
TARGET_OF_TRIPLES = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One pair or triple and its predictions by method; the first method is the product's."""

    met: Pair | Triple
    predicted: Mapping[str, Estimate]


def judged(found: Found, library: Library) -> tuple[list[Judged], list[Judged]]:
    """Predict every pair and every triple."""
    predictor = Predictor(found, library)
    return (
        [Judged(met=pair, predicted=by) for pair, by in zip(found.pairs, predictor.of_pairs(), strict=True)],
        [Judged(met=each, predicted=by) for each, by in zip(found.triples, predictor.of_triples(), strict=True)],
    )


def points(estimate: float, measured: float) -> float:
    """Return how many points of run time (100: as long again) a slowdown is off."""
    return 100.0 * abs(estimate - measured)


def lost_points(estimate: float, measured: float) -> float:
    """Return how many points of performance (100: all of it) a slowdown is off."""
    return 100.0 * abs(1.0 / max(estimate, 0.5) - 1.0 / max(measured, 0.5))


def table(found: Found) -> str:
    """Return every pair and triple, and every method's mean errors."""
    pairs, triples = judged(found, shipped_library())
    lines = [f"  {'program':<15} {'neighbours (=: on its core)':<32} {'measured (95 %)':<20} predicted (80 %)"]
    for each in (*pairs, *triples):
        met, guess = each.met, next(iter(each.predicted.values()))
        measured = f"{met.slowdown:5.2f} ({met.low:.2f}..{met.high:.2f})"
        lines.append(f"  {met.victim:<15} {_neighbours(met):<32} {measured:<20} "
                     f"{guess.value:5.2f} ({guess.low:.2f}..{guess.high:.2f})")  # fmt: skip
    groups = {place: [each for each in pairs if _is_same_core(each.met) is same] for place, same in PLACES.items()}
    lines += _errors("pairs", groups)
    return "\n".join(lines + (_errors("triples", {"triples": triples}) if triples else []))


def _neighbours(met: Pair | Triple) -> str:
    places = [(met.neighbour, met.same_core)] if isinstance(met, Pair) else met.places
    return ", ".join(f"{'=' if same else ' '}{name}" for name, same in places)


def _is_same_core(met: Pair | Triple) -> bool:
    return met.same_core if isinstance(met, Pair) else all(each.same_core for each in met.places)


def _errors(what: str, groups: Mapping[str, Sequence[Judged]]) -> list[str]:
    """Return the mean errors of every method as lines of a table with one column by group."""
    title = f"{what}: mean error, points of performance (of run time)"
    lines = [f"  {title:<60}" + "".join(f"{group:>22}" for group in groups)]
    methods = dict.fromkeys(method for each in groups.values() for judged in each for method in judged.predicted)
    for method in methods:
        lines.append(f"  {method:<60}" + "".join(f"{_means(each, method):>22}" for each in groups.values()))
    return lines


def _means(pairs: Sequence[Judged], method: str) -> str:
    if not pairs:
        return "-"
    run_time = fmean(points(each.predicted[method].value, each.met.slowdown) for each in pairs)
    performance = fmean(lost_points(each.predicted[method].value, each.met.slowdown) for each in pairs)
    return f"{performance:.1f} ({run_time:.1f})"


def rows(found: Found) -> list[Row]:
    """Return the figures that have targets, and how honest the limits are."""
    made = list[Row]()
    pairs, triples = judged(found, shipped_library())
    for place, same in PLACES.items():
        here = [each for each in pairs if _is_same_core(each.met) is same]
        if here:
            made += _figures(f"beside a neighbour {place}", here, TARGETS[same])
    if triples:
        made += _figures("beside two neighbours", triples, TARGET_OF_TRIPLES)
    return made + list(_ranks(found, pairs))


def _ranks(found: Found, everything: Sequence[Judged]) -> Iterator[Row]:
    """Yield whether expected losses order the pairs as measured ones do, where these were measured twice."""
    repeated = dict[tuple[str, str, bool], list[Judged]]()
    for each in everything:
        if isinstance(each.met, Pair):
            repeated.setdefault((each.met.victim, each.met.neighbour, each.met.same_core), []).append(each)
    twice = [each for each in repeated.values() if len(each) > 1]
    if not twice:
        return
    first, second = ([each[at].met.slowdown for each in twice] for at in (0, 1))
    again = float(spearmanr(first, second).statistic)
    measured = [fmean(each.met.slowdown for each in pair) for pair in twice]
    note = f"{len(twice)} pairs; measured twice {again:.2f}"
    for method in twice[0][0].predicted:
        guessed = [pair[0].predicted[method].value for pair in twice]
        if len(set(guessed)) > 1:
            ranked = float(spearmanr(guessed, measured).statistic)
            target = MOST_OF_REPEATS * again if method == next(iter(twice[0][0].predicted)) else None
            name = f"rank correlation of expected with measured loss, {method}"
            yield Row(name=name, value=ranked, unit="", target=target, better="higher", note=note)
    needed = sorted(_quality_target(name, found) for name in {pair[0].met.victim for pair in twice})
    low, high = np.percentile(needed, (25, 75))
    note = f"{len(needed)} programs, {needed[0]:.2f} to {needed[-1]:.2f}"
    name = "needed quality, interquartile range"
    yield Row(name=name, value=float(high - low), unit="", target=WIDEST_QUARTILES, better="higher", note=note)


def _quality_target(name: str, found: Found) -> float:
    """Return the needed quality of a program from its probes, by a library that does not know it."""
    probed = found.probed[name]
    cells = {Question.TOLERATED: dict(probed.tolerated), Question.CAUSED: dict(probed.caused)}
    spreads = {Question(side): dict(each) for side, each in probed.spreads.items()}
    fitted = Classifier().fit(without(shipped_library(), name))
    return fitted.classify(MeasuredApplication(name=name, cells=cells, spreads=spreads)).quality_target.value


def _figures(where: str, seen: Sequence[Judged], target: float) -> list[Row]:
    method = next(iter(seen[0].predicted))
    guessed = [(each.predicted[method], each.met.slowdown) for each in seen]
    inside = [guess.low <= measured <= guess.high for guess, measured in guessed]
    error, plain = (
        fmean(lost_points(each.predicted[name].value, each.met.slowdown) for each in seen)
        for name in (method, NOT_SLOWED)
    )
    note = f"{len({each.met.victim for each in seen})} programs, {len(seen)} measured; known: {method}"
    unit, name = "points", f"performance lost {where}, mean error"
    return [
        Row(name=name, value=error, unit=unit, target=target, note=note),
        Row(
            name='  the same, over that of "not slowed at all"',
            value=error / max(plain, 1e-9),
            unit="",
            target=MOST_OF_NOT_SLOWED,
            note=f"which errs by {plain:.2f} points",
        ),
        Row(
            name="  the same in run time",
            value=fmean(points(guess.value, measured) for guess, measured in guessed),
            unit="points",
        ),
        Row(name="  within the 80 % limits", value=100.0 * fmean(inside), unit="%"),
    ]
