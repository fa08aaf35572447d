"""What is predicted of measured pairs and triples, and from how much knowledge of the programs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.interference.model import NO_TURNS, Combination, slowdown, turns
from bench.interference.pairs import Found, Pair, Place, Triple, without
from hcloud.classifier.classify import Classifier, FittedClassifier
from hcloud.classifier.gaussian import GaussianFoldIn
from hcloud.classifier.interference import neighbour_loss
from hcloud.classifier.library import Library, MeasuredApplication, Question
from hcloud.classifier.slowdown.calibration import Comparison, PressureCalibration, calibrate
from hcloud.classifier.slowdown.forecasts import SlowdownForecasts, fit_slowdowns
from hcloud.core.co_runs import MOST_COUNTED, CoRun
from hcloud.core.estimates import Classification, Estimate

LEARNT = "probes, and pairs of other programs"
"""As a daemon predicts: what pressures say, as far as programs that are not of this pair lost it on this machine."""
PROBES, NO_PROBES, WHOLE_ROWS = "probes", "no probes", "whole rows"
FROM_PAIRS = "the same pairs"
"""As a daemon predicts what several neighbours cost that were observed one by one."""
NOT_SLOWED = "not slowed at all"
HERE = "local/here"
"""The type of this machine."""
SD_PER_95 = 1 / 1.959963984540054
ALONE = Estimate(value=1.0, low=1.0, high=1.0)


@dataclass(frozen=True, slots=True)
class Predictor:
    """Predicts everything that was measured; for each pair from a library that knows neither program."""

    found: Found
    library: Library

    def of_pairs(self) -> list[dict[str, Estimate]]:
        """Return by pair the slowdowns by method, the product's first."""
        made = [self._of_pair(pair) for pair in self.found.pairs]
        learnt = [
            _slowdown_of(self._calibrated(pair, made).loss(HERE, _loss_of(each[PROBES])))
            for pair, each in zip(self.found.pairs, made, strict=True)
        ]
        return [{LEARNT: first, **each} for first, each in zip(learnt, made, strict=True)]

    def of_triples(self) -> list[dict[str, Estimate]]:
        """Return by triple the slowdowns by method, the product's first."""
        forecasts = forecasts_of(self.found.pairs)
        return [
            {
                FROM_PAIRS: self._from_pairs(each, forecasts),
                PROBES: self._from_probes(each),
                NOT_SLOWED: ALONE,
            }
            for each in self.found.triples
        ]

    def _of_pair(self, pair: Pair) -> dict[str, Estimate]:
        fitted = self._fitted((pair.victim, pair.neighbour))
        busy = [min(1.0, self.found.probed[name].busy_vcpus) for name in (pair.victim, pair.neighbour)]
        core = turns(busy[0], busy[1:]) if pair.same_core else NO_TURNS
        unknown = fitted.classify(MeasuredApplication(name=""))
        sides = {
            PROBES: (self._probed(fitted, pair.victim), self._probed(fitted, pair.neighbour)),
            NO_PROBES: (unknown, unknown),
            WHOLE_ROWS: (self._row(fitted, pair.victim), self._row(fitted, pair.neighbour)),
        }
        made = dict[str, Estimate]()
        for name, (victim, neighbour) in sides.items():
            by_turns = slowdown(victim.tolerated, [neighbour.caused], core=core)
            made[name] = by_turns if pair.same_core else _slowdown_of(neighbour_loss(victim, [neighbour]))
        victim, neighbour = sides[PROBES]
        summed = slowdown(victim.tolerated, [neighbour.caused], core=core, combination=Combination.SUM)
        return {**made, f"{PROBES}, resources added up": summed, NOT_SLOWED: ALONE}

    def _calibrated(self, pair: Pair, predicted: Sequence[Mapping[str, Estimate]]) -> PressureCalibration:
        """Return what pairs in the same place as ``pair`` show that have no program in common with it."""
        own = {pair.victim, pair.neighbour}
        return calibrate(
            [
                Comparison(HERE, by[PROBES].value - 1.0, each.slowdown - 1.0, _doubt(each))
                for each, by in zip(self.found.pairs, predicted, strict=True)
                if each.same_core is pair.same_core and own.isdisjoint((each.victim, each.neighbour))
            ]
        )

    def _from_pairs(self, triple: Triple, forecasts: SlowdownForecasts) -> Estimate:
        """Return what follows from the pairs; neighbours on its core and on another are different ones."""
        found = forecasts.slowdown(triple.victim, [_placed(each) for each in triple.places], HERE, 0.0)
        low, high = (found.mean + side * 1.2815515655446004 * found.deviation for side in (-1.0, 1.0))
        return Estimate(value=math.exp(found.mean), low=math.exp(max(0.0, low)), high=math.exp(high))

    def _from_probes(self, triple: Triple) -> Estimate:
        """Return turns with neighbours on its core, times what those on another core cost by pressures."""
        probed = self.found.probed
        fitted = self._fitted((triple.victim, *(each.neighbour for each in triple.places)))
        known = {name: self._probed(fitted, name) for name in self._names(triple)}
        on_core, apart = (
            [each.neighbour for each in triple.places if each.same_core is same] for same in (True, False)
        )
        busy = [min(1.0, probed[name].busy_vcpus) for name in on_core]
        core = turns(min(1.0, probed[triple.victim].busy_vcpus), busy) if on_core else NO_TURNS
        victim = known[triple.victim]
        own = slowdown(victim.tolerated, [known[name].caused for name in on_core], core=core)
        other = _slowdown_of(neighbour_loss(victim, [known[name] for name in apart]))
        return Estimate(own.value * other.value, own.low * other.low, own.high * other.high)

    @staticmethod
    def _names(triple: Triple) -> Iterator[str]:
        yield triple.victim
        yield from (each.neighbour for each in triple.places)

    def _fitted(self, forgotten: Collection[str]) -> FittedClassifier:
        methods = {question: GaussianFoldIn() for question in (Question.TOLERATED, Question.CAUSED)}
        return Classifier(methods=methods).fit(without(self.library, *forgotten))

    def _probed(self, fitted: FittedClassifier, name: str) -> Classification:
        probed = self.found.probed[name]
        cells = {Question.TOLERATED: dict(probed.tolerated), Question.CAUSED: dict(probed.caused)}
        spreads = {Question(side): dict(each) for side, each in probed.spreads.items()}
        return fitted.classify(MeasuredApplication(name=name, cells=cells, spreads=spreads))

    def _row(self, fitted: FittedClassifier, name: str) -> Classification:
        row = self.library.known.get(name)
        if row is None:
            return fitted.classify(MeasuredApplication(name=name))
        kept = (Question.TOLERATED, Question.CAUSED)
        return fitted.classify(
            MeasuredApplication(
                name=name,
                cells={side: row.cells[side] for side in kept if side in row.cells},
                spreads={side: row.spreads[side] for side in kept if side in row.spreads},
            )
        )


def forecasts_of(pairs: Sequence[Pair]) -> SlowdownForecasts:
    """Return what a daemon learns from pairs, each the mean of many periods; by place, neighbours are different."""
    records = [
        CoRun(
            application=each.victim,
            neighbours=(_placed(Place(each.neighbour, each.same_core)),),
            type_column=HERE,
            log_speed=-math.log(each.slowdown),
            doubt=_doubt(each) / each.slowdown,
            seconds=600.0,
            periods=MOST_COUNTED,
            observed_at=float(each.repeat),
        )
        for each in pairs
    ]
    steps = fit_slowdowns(records, {})
    while True:
        try:
            next(steps)
        except StopIteration as done:
            forecasts: SlowdownForecasts = done.value
            return forecasts


def _placed(place: Place) -> str:
    return f"{place.neighbour}, {'same' if place.same_core else 'other'} core"


def _doubt(pair: Pair) -> float:
    return SD_PER_95 * (pair.high - pair.low) / 2.0


def _loss_of(slower: Estimate) -> Estimate:
    return Estimate(1.0 - 1.0 / slower.value, 1.0 - 1.0 / slower.low, 1.0 - 1.0 / slower.high)


def _slowdown_of(loss: Estimate) -> Estimate:
    value, low, high = (1.0 / max(0.01, 1.0 - each) for each in loss[:3])
    return Estimate(value, low, high)
