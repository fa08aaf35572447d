"""ExpectedSlowdown by pairs of programs: the additional run times that single neighbours cause add up.

For each program a Gaussian process (equally: a ridge regression) over what its neighbours cost it. The *pressure* of a
neighbour is one number here: the additional run time it causes on average. A program's sensitivity scales the pressures
of all neighbours at once, so that two or three neighbours say much of a new program (Mage §3.2 completes a matrix for
that). Deviations of single pairs, of instance types, and of crowds and any two neighbours from the sum are proportional
to the pressures.

Several neighbours cost some programs less than the sum, and some more. Pairs alone show it: what a program loses beside
weak and strong neighbours is a power of their pressure, and so is what it loses beside several, of the sum of theirs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hcloud.classifier.slowdown.table import Company, CoRunQuestion, CoRunTable, ExpectedSlowdown, Floats


class PairPrior(NamedTuple):
    """Prior standard deviations, as shares of the pressures."""

    sensitivity: float
    """Of the sensitivity of a program to all neighbours."""
    pair: float
    """Of the sensitivity to a single one."""
    crowd: float
    """Of what several cost together, beside their sum."""
    combination: float
    """The same of any two of them: what these very programs cost together."""


UNPROFILED = PairPrior(sensitivity=3.0, pair=0.4, crowd=1.0, combination=0.25)
"""Nothing is known of a program: its sensitivity may be anything."""
PROFILED = PairPrior(sensitivity=0.2, pair=1.0, crowd=1.0, combination=0.25)
"""Profiles predict how sensitive a program is; to which of its neighbours, less well."""
TYPE_SHARE = 0.3
"""Share of the prior variance that other instance types say nothing of."""
LEAST_NOISE = 0.03
"""Least relative error of an observed run time: it stands for what sums of pairs cannot express."""
USUAL_PRESSURE, LEAST_PRESSURE = 0.1, 0.02
"""Pressure of a neighbour before anything is known of it, and the least assumed of any."""
PRESSURE_SD = 2.0
"""Prior deviation of pressures."""
LEAST_EXCESS, SURE_EXCESS = 0.01, 0.1
"""Smaller additional run times count as this one where exponents are fitted; so large a one weighs half as much as the
largest."""
EXPONENT_ROWS = 2.0
"""How much evidence, in rows of neighbours whose pressure differs e-fold, the exponent 1 is worth."""
EXPONENTS = (0.5, 1.5)
"""Least and largest exponent."""
EXPONENT_ROUNDS = 30
MOST_ROWS_EACH = 250
"""Rows of one program that are used, latest first."""
_Companies = tuple[Floats, tuple[str, ...]]
"""Neighbours by column, (n x names), and the instance type of each row."""


@dataclass(frozen=True, slots=True)
class _OwnRows:
    """What was observed of one program."""

    counts: Floats
    """Neighbours by name, (n x names)."""
    types: tuple[str, ...]
    solved: Floats
    """Inverse of the covariance of observations times their surprises, shape ``(n,)``."""
    inverse: Floats
    """That inverse, (n x n)."""
    by_pressure: bool
    """Whether surprises are relative to what profiles predict, not to the sum of pressures."""


@dataclass(frozen=True, slots=True)
class PairTable:
    """The model; it has no settings."""

    def fit(self, table: CoRunTable) -> FittedPairTable:
        """Fit the pressures of all neighbours together, then each program on its own."""
        names = sorted({name for each in table.questions for name in each.neighbours})
        index = {name: at for at, name in enumerate(names)}
        counts = np.zeros((len(table), len(names)))
        for row, each in enumerate(table.questions):
            for name in each.neighbours:
                counts[row, index[name]] += 1.0
        curves = _fit_curves(table)
        # As if the costs of single neighbours added up, for all that follows.
        excess = np.expm1(table.log_longer) / np.array([curves.ratio(each) for each in table.questions])
        noise = np.maximum(table.doubt, LEAST_NOISE) * (1.0 + excess)
        # Where less was observed than profiles predict, corrections must be able to take all of that back.
        predicted = np.maximum(excess, [each.longer_by_pressure or 0.0 for each in table.questions])
        fitted = FittedPairTable(index, _mean_pressures(counts, predicted, noise), {}, curves)
        places = dict[str, list[int]]()
        for row, each in enumerate(table.questions):
            places.setdefault(each.application, []).append(row)
        for name, all_rows in places.items():
            rows = all_rows[-MOST_ROWS_EACH:]
            own, types = counts[rows], tuple(table.questions[row].type_column for row in rows)
            by_pressure = all(table.questions[row].longer_by_pressure is not None for row in rows)
            prior = np.array([fitted.prior(table.questions[row], counts[row], by_pressure) for row in rows])
            scale = PROFILED if by_pressure else UNPROFILED
            covariance = fitted.covariance(scale, (own, types), (own, types)) + np.diag(noise[rows] ** 2)
            inverse = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
            fitted.programs[name] = _OwnRows(own, types, inverse @ (excess[rows] - prior), inverse, by_pressure)
        return fitted


@dataclass(frozen=True, slots=True)
class _Curves:
    """How the cost of neighbours grows with their pressure."""

    exponents: dict[str, float]
    """By program; others: 1."""
    pressures: dict[str, float]
    """By neighbour, in any unit."""
    usual: float = 1.0
    """Pressure of other neighbours."""

    def ratio(self, question: CoRunQuestion) -> float:
        """Return what the neighbours cost together, as a multiple of the sum of what they cost one by one."""
        exponent = self.exponents.get(question.application, 1.0)
        if len(question.neighbours) < 2 or exponent == 1.0:
            return 1.0
        pressures = [self.pressures.get(name, self.usual) for name in question.neighbours]
        return float(math.fsum(pressures) ** exponent / math.fsum([each**exponent for each in pressures]))


def _fit_curves(table: CoRunTable) -> _Curves:
    """Fit, in turns, the exponents of programs and the pressures of neighbours to what single neighbours cost."""
    rows = [row for row, each in enumerate(table.questions) if len(each.neighbours) == 1]
    if not rows:
        return _Curves({}, {})
    programs = sorted({table.questions[row].application for row in rows})
    names = sorted({table.questions[row].neighbours[0] for row in rows})
    own = np.array([programs.index(table.questions[row].application) for row in rows])
    other = np.array([names.index(table.questions[row].neighbours[0]) for row in rows])
    excess = np.maximum(np.expm1(table.log_longer[rows]), LEAST_EXCESS)
    cost, weight = np.log(excess), excess / (excess + SURE_EXCESS)

    def by_program(values: Floats) -> Floats:
        return np.bincount(own, weights=values, minlength=len(programs)).astype(np.float64)

    def by_name(values: Floats) -> Floats:
        return np.bincount(other, weights=values, minlength=len(names)).astype(np.float64)

    exponents = np.ones(len(programs))
    pressure, weights = by_name(weight * cost) / by_name(weight), by_program(weight)
    mean_cost = by_program(weight * cost) / weights
    for _ in range(EXPONENT_ROUNDS):
        mean_pressure = by_program(weight * pressure[other]) / weights
        apart = pressure[other] - mean_pressure[own]
        slope = by_program(weight * apart * (cost - mean_cost[own])) + EXPONENT_ROWS
        exponents = np.clip(slope / (by_program(weight * apart**2) + EXPONENT_ROWS), *EXPONENTS)
        rest = cost - mean_cost[own] + exponents[own] * mean_pressure[own]
        pressure = by_name(weight * exponents[own] * rest) / by_name(weight * exponents[own] ** 2)
        pressure -= pressure.mean()
    pressures = np.exp(pressure)
    return _Curves(
        dict(zip(programs, exponents.tolist(), strict=True)),
        dict(zip(names, pressures.tolist(), strict=True)),
        float(np.median(pressures)),
    )


def _mean_pressures(counts: Floats, excess: Floats, noise: Floats) -> Floats:
    """Return the mean additional run time that each neighbour causes, shape ``(names,)``."""
    # Programs differ by about as much as a neighbour costs; large slowdowns are less precise.
    weight = 1.0 / (0.25 + noise**2)
    precision = counts.T @ (counts * weight[:, None]) + np.eye(counts.shape[1]) / PRESSURE_SD**2
    surprise = counts.T @ (weight * (excess - counts.sum(axis=1) * USUAL_PRESSURE))
    pressures: Floats = np.maximum(USUAL_PRESSURE + np.linalg.solve(precision, surprise), LEAST_PRESSURE)
    return pressures


@dataclass(frozen=True, slots=True)
class FittedPairTable:
    """See :class:`PairTable`."""

    index: dict[str, int]
    """Columns of the neighbours."""
    pressures: Floats
    """By column."""
    programs: dict[str, _OwnRows]
    curves: _Curves

    def slowdown(self, question: CoRunQuestion) -> ExpectedSlowdown | None:
        """Return the expected slowdown; None if it knows neither the program nor a pressure."""
        counts, strangers = self._counts(question.neighbours)
        own, asked = self.programs.get(question.application), (counts[None], (question.type_column,))
        if own is None and question.longer_by_pressure is None and strangers:
            return None
        by_pressure = question.longer_by_pressure is not None if own is None else own.by_pressure
        mean, scale = self.prior(question, counts, by_pressure, strangers), PROFILED if by_pressure else UNPROFILED
        variance = float(self.covariance(scale, asked, asked)[0, 0])
        variance += strangers * (scale.sensitivity**2 + scale.pair**2) * USUAL_PRESSURE**2
        if own is not None:
            covariance = self.covariance(scale, asked, (own.counts, own.types))[0]
            mean += float(covariance @ own.solved)
            variance -= float(covariance @ own.inverse @ covariance)
        ratio = self.curves.ratio(question)
        mean, deviation = ratio * max(0.0, mean), ratio * math.sqrt(max(0.0, variance))
        return ExpectedSlowdown(math.log1p(mean), math.hypot(deviation / (1.0 + mean), LEAST_NOISE))

    def prior(self, question: CoRunQuestion, counts: Floats, by_pressure: bool, strangers: int = 0) -> float:
        """Return the additional run time to expect before the program's own rows are considered, without the curve of
        crowds."""
        if by_pressure and question.longer_by_pressure is not None:
            return question.longer_by_pressure / self.curves.ratio(question)
        return float(counts @ self.pressures) + strangers * USUAL_PRESSURE

    def covariance(self, scale: PairPrior, a: _Companies, b: _Companies) -> Floats:
        """Return the prior covariance of additional run times, (a x b), of one program among these neighbours."""
        weighted_a, weighted_b = a[0] * self.pressures, b[0] * self.pressures
        pairs = weighted_a @ weighted_b.T
        level = np.outer(weighted_a.sum(axis=1), weighted_b.sum(axis=1))
        crowd = np.outer(_crowd(weighted_a), _crowd(weighted_b))
        same = np.array(a[1])[:, None] == np.array(b[1])[None]
        of_types: Floats = 1.0 - TYPE_SHARE + TYPE_SHARE * same.astype(np.float64)
        found = scale.sensitivity**2 * level + scale.pair**2 * pairs + scale.crowd**2 * crowd
        return (found + scale.combination**2 * _combinations(weighted_a, weighted_b, pairs)) * of_types

    def _counts(self, neighbours: Company) -> tuple[Floats, int]:
        """Return the neighbours by column, and how many have none."""
        counts = np.zeros(len(self.index))
        known = [self.index[name] for name in neighbours if name in self.index]
        np.add.at(counts, known, 1.0)
        return counts, len(neighbours) - len(known)


def _crowd(weighted: Floats) -> Floats:
    """Return by row how much of the pressure meets other pressure; 0 beside one neighbour, shape ``(n,)``."""
    total = weighted.sum(axis=1)
    apart: Floats = (total**2 - (weighted**2).sum(axis=1)) / (2.0 * np.maximum(total, LEAST_PRESSURE))
    return apart


def _combinations(a: Floats, b: Floats, pairs: Floats) -> Floats:
    """Return the sum over any two neighbours that both rows have of the products of their pressures, as shares of all
    pressure, shape ``(a, b)``. ``pairs``: products of single ones, the same shape."""
    total = np.outer(a.sum(axis=1), b.sum(axis=1))
    shared: Floats = (pairs**2 - a**2 @ (b**2).T) / (2.0 * np.maximum(total, LEAST_PRESSURE**2))
    return shared
