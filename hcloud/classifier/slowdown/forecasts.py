"""Expected slowdown of programs beside named neighbours, by what was observed of them together.

Models are compared on held-out groups of programs that ran together. The best one is blended with what pressures on
shared resources predict, each by its doubt. Programs that were never observed together are left to
pressures (:mod:`hcloud.classifier.interference`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from hcloud.classifier.applications import row_name
from hcloud.classifier.interference import CORE_SOURCES, NOT_COUNTED, PRESSURE_MAX, neighbour_loss
from hcloud.classifier.slowdown.calibration import AS_PREDICTED, Comparison, PressureCalibration, calibrate
from hcloud.classifier.slowdown.elastic_net import ElasticNet, folds_of
from hcloud.classifier.slowdown.esp import Esp
from hcloud.classifier.slowdown.pair_table import PairTable
from hcloud.classifier.slowdown.table import (
    CoRunQuestion,
    CoRunTable,
    ExpectedSlowdown,
    FittedSlowdown,
    Floats,
    SlowdownModel,
)
from hcloud.core.co_runs import LEAST_SPEED, CoRun
from hcloud.core.estimates import Classification, Estimate

FOLDS = 3
LEAST_GROUPS = 12
"""With fewer different groups of programs nothing can be held out, and the pair table alone is used."""
PERIOD_NOISE = 0.1
"""Standard deviation of the logarithm of a program's speed from one period to another."""
WITHIN_80 = 1.2815515655446004
"""80 % limits, in standard deviations."""
_ANSWERS_KEPT = 20_000


@dataclass(frozen=True, slots=True)
class ByPressure:
    """The model for programs never observed together: pressures on shared resources."""

    def fit(self, table: CoRunTable) -> FittedByPressure:
        """Return the model with its error on the table; nothing in it is fitted."""
        rows = [at for at, each in enumerate(table.questions) if each.longer_by_pressure is not None]
        expected = np.array([math.log1p(table.questions[at].longer_by_pressure or 0.0) for at in rows])
        return FittedByPressure(_root_mean_square(expected - table.log_longer[rows]) if rows else math.inf)


@dataclass(frozen=True, slots=True)
class FittedByPressure:
    """See :class:`ByPressure`."""

    error: float

    def slowdown(self, question: CoRunQuestion) -> ExpectedSlowdown | None:
        """Return the slowdown by pressures; None if they are unknown."""
        longer = question.longer_by_pressure
        return None if longer is None else ExpectedSlowdown(math.log1p(longer), self.error)


PAIR_TABLE, PRESSURES = "pair table", "pressures"
_QUICK = ElasticNet(penalties=8, folds=2, tolerance=1e-3)
MODELS: Mapping[str, SlowdownModel] = {
    PAIR_TABLE: PairTable(),
    "ESP": Esp(log_link=False, net=_QUICK),
    "ESP, log link": Esp(log_link=True, net=_QUICK),
    PRESSURES: ByPressure(),
}
"""All models."""


@dataclass(frozen=True, slots=True)
class _JudgedModel:
    """A fitted model, and how far its limits must be widened to hold as often as they say."""

    fitted: FittedSlowdown
    widening: float

    def slowdown(self, question: CoRunQuestion) -> ExpectedSlowdown | None:
        """Return what the model says, with limits that hold."""
        found = self.fitted.slowdown(question)
        return None if found is None else found._replace(deviation=self.widening * found.deviation)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlendedSlowdown:
    """The first model that knows enough, blended with pressures; each weighs by how sure it is."""

    models: Sequence[_JudgedModel]
    """The best first, as far as they are better than pressures."""
    pressures: _JudgedModel | None
    """None: the error of pressures is not known."""
    errors: Mapping[str, float]
    """Root mean square error of the logarithm of held-out speeds, by name of the model; empty: nothing was held out."""

    def slowdown(self, question: CoRunQuestion) -> ExpectedSlowdown | None:
        """Return the expected slowdown; None if no model knows enough."""
        answers = (each.slowdown(question) for each in self.models)
        observed = next((each for each in answers if each is not None), None)
        by_pressure = None if self.pressures is None else self.pressures.slowdown(question)
        if observed is None or by_pressure is None:
            return observed or by_pressure
        weight = by_pressure.deviation**2 / (observed.deviation**2 + by_pressure.deviation**2)
        # Both err together, so the blend is no surer than the surer one.
        return ExpectedSlowdown(
            weight * observed.mean + (1.0 - weight) * by_pressure.mean, min(observed.deviation, by_pressure.deviation)
        )


def fit_in_steps(
    table: CoRunTable, models: Mapping[str, SlowdownModel] = MODELS
) -> Generator[None, None, BlendedSlowdown]:
    """Yield after each fit of a model; return the best of ``models`` by held-out groups, blended with pressures.

    With few groups the pair table is used alone.
    """
    groups, errors, widenings = table.groups, dict[str, float](), dict[str, float]()
    fold = folds_of(groups, FOLDS)
    for name, model in models.items() if len(set(groups)) >= LEAST_GROUPS else ():
        surprise, relative = list[float](), list[float]()
        for number in range(FOLDS):
            fitted = model.fit(table.take(np.flatnonzero(fold != number)))
            for at in np.flatnonzero(fold == number).tolist():
                answer = fitted.slowdown(table.questions[at])
                if answer is not None:
                    surprise.append(answer.mean - float(table.log_longer[at]))
                    relative.append(surprise[-1] / math.hypot(answer.deviation, float(table.doubt[at])))
            yield
        if 2 * len(surprise) >= len(table):
            errors[name], widenings[name] = _root_mean_square(surprise), max(1.0, _root_mean_square(relative))
    ranked = sorted(errors, key=lambda name: errors[name]) or [PAIR_TABLE]
    judged = list[_JudgedModel]()
    # The pair table always answers; models that are worse than pressures are not used.
    for name in takewhile(lambda name: name != PRESSURES, ranked[: ranked.index(PAIR_TABLE) + 1]):
        judged.append(_JudgedModel(models[name].fit(table), widenings.get(name, 1.0)))
        yield
    pressures = _JudgedModel(models[PRESSURES].fit(table), widenings[PRESSURES]) if PRESSURES in errors else None
    return BlendedSlowdown(models=judged, pressures=pressures, errors=errors)


def _root_mean_square(values: Floats | Sequence[float]) -> float:
    return math.sqrt(float(np.mean(np.square(values))))


# ----------------------------------------------------------------------------------------------------- of applications
@dataclass(frozen=True, slots=True, eq=False)
class SlowdownForecasts:
    """What neighbours cost applications that were observed together; never changes, and may be asked by any thread."""

    blend: BlendedSlowdown | None = None
    """None: nothing was observed."""
    companions: Mapping[str, Set[str]] = field(default_factory=dict)
    """By name of an application's row, those of the neighbours it was observed beside."""
    calibration: PressureCalibration = AS_PREDICTED
    """How much of what pressures predict really comes."""
    _answers: dict[CoRunQuestion, ExpectedSlowdown | None] = field(default_factory=dict, repr=False)
    _neighbours: frozenset[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_neighbours", frozenset().union(*self.companions.values()))

    def is_known(self, application: str) -> bool:
        """Return whether an application was observed among others, or others beside it."""
        name = row_name(application)
        return name in self.companions or name in self._neighbours

    def has_met(self, application: str, neighbours: Iterable[str]) -> bool:
        """Return whether an application was observed beside one of some neighbours (values of ``Job.application``)."""
        met = self.companions.get(row_name(application))
        return met is not None and any(row_name(each) in met for each in neighbours)

    def loss(self, application: str, neighbours: Collection[str], type_column: str, by_pressure: Estimate) -> Estimate:
        """Return the share of performance (0..1) that neighbours cost an application, with 80 % limits.

        ``by_pressure``: what pressures alone predict. If the application was not observed beside any of them, it is
        returned as far as others showed that it comes (:mod:`hcloud.classifier.slowdown.calibration`).
        """
        if "" in neighbours or not self.has_met(application, neighbours):
            return self.calibration.loss(type_column, by_pressure)
        longer = by_pressure.value / max(LEAST_SPEED, 1.0 - by_pressure.value)
        mean, deviation = self.slowdown(application, neighbours, type_column, longer)
        value, low, high = (-math.expm1(-max(0.0, mean + side * WITHIN_80 * deviation)) for side in (0.0, -1.0, 1.0))
        return Estimate(value, low, high)

    def slowdown(
        self, application: str, neighbours: Collection[str], type_column: str, longer_by_pressure: float
    ) -> ExpectedSlowdown:
        """Return the slowdown expected of an application among neighbours on an instance type.

        ``longer_by_pressure``: the additional run time to expect by pressures alone.
        """
        longer = self.calibration.longer(type_column, longer_by_pressure)
        question = CoRunQuestion(row_name(application), tuple(sorted(map(row_name, neighbours))), type_column, longer)
        if question not in self._answers:
            if len(self._answers) >= _ANSWERS_KEPT:
                self._answers.clear()
            self._answers[question] = None if self.blend is None else self.blend.slowdown(question)
        return self._answers.get(question) or ExpectedSlowdown(math.log1p(longer), 0.0)


NOTHING_OBSERVED = SlowdownForecasts()
"""No programs were observed together."""


def fit_slowdowns(
    records: Sequence[CoRun], known: Mapping[str, Classification]
) -> Generator[None, None, SlowdownForecasts]:
    """Yield after each part of the work; return what follows from ``records``.

    ``known``: classifications by name of the application's row, as far as there are. The speed of a program alone, if
    it was observed on the same type, corrects the speed that was expected of it.
    """
    alone = {(each.application, each.type_column): each for each in records if not each.neighbours}
    together = sorted((each for each in records if each.neighbours), key=lambda each: (each.observed_at, each.key))
    if not together:
        return NOTHING_OBSERVED
    met = dict[str, set[str]]()
    for each in together:
        met.setdefault(each.application, set()).update(each.neighbours)
    observed = [_observed(each, alone.get((each.application, each.type_column))) for each in together]
    predicted = [_by_pressure(each, known) for each in together]
    calibration = calibrate(
        [
            Comparison(each.type_column, longer, math.expm1(seen.mean), seen.deviation * math.exp(seen.mean))
            for each, longer, seen in zip(together, predicted, observed, strict=True)
            if longer is not None and all(name in known for name in each.neighbours)
        ]
    )
    table = CoRunTable(
        questions=[
            CoRunQuestion(
                each.application,
                each.neighbours,
                each.type_column,
                None if longer is None else calibration.longer(each.type_column, longer),
            )
            for each, longer in zip(together, predicted, strict=True)
        ],
        log_longer=np.array([max(0.0, each.mean) for each in observed]),
        doubt=np.array([each.deviation for each in observed]),
        features=_features(known),
    )
    blend = yield from fit_in_steps(table)
    return SlowdownForecasts(blend=blend, companions=met, calibration=calibration)


def _observed(record: CoRun, alone: CoRun | None) -> ExpectedSlowdown:
    """Return the slowdown that a record shows, by what was observed of the program ``alone`` on the same type; below 0
    where it ran faster."""
    base, doubt = (0.0, record.doubt) if alone is None else (alone.log_speed, PERIOD_NOISE / math.sqrt(alone.periods))
    return ExpectedSlowdown(base - record.log_speed, math.hypot(doubt, PERIOD_NOISE / math.sqrt(record.periods)))


def _by_pressure(record: CoRun, known: Mapping[str, Classification]) -> float | None:
    own = known.get(record.application)
    if own is None:
        return None
    loss = neighbour_loss(own, [known.get(name) for name in record.neighbours]).value
    return loss / (1.0 - loss)


def _features(known: Mapping[str, Classification]) -> dict[str, Floats]:
    """Return the pressures that applications cause and do not tolerate, as shares of the largest, by name."""
    measured = {source for each in known.values() for source in (*each.caused, *each.tolerated)}
    sources = sorted(measured - CORE_SOURCES - NOT_COUNTED)
    return {
        name: np.array(
            [each.caused[source].value / PRESSURE_MAX if source in each.caused else 0.0 for source in sources]
            + [1.0 - each.tolerated[source].value / PRESSURE_MAX if source in each.tolerated else 0.0
               for source in sources]
        )
        for name, each in known.items()
    } if sources else {}  # fmt: skip
