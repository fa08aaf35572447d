"""How much of the loss that pressures predict really comes, by instance type, learnt from what was observed.

Pressures are readings of short probes beside sources at full intensity; real programs on a large or quiet machine may
lose far less than these say. So what pressures predict of programs that were never observed together is multiplied by
a factor: observed additional run times, divided by predicted ones. Types share what is known of all (a normal
distribution of factors among types, and one of pairs around each), so that a few records move it a little.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hcloud.core.estimates import Estimate

FACTOR_SD, TYPE_SD = 0.5, 0.3
"""Prior standard deviation of the factor of all types around 1, and of one type's around it."""
PAIR_SD = 0.7
"""Standard deviation of what single pairs of programs lose, as a share of what pressures predict: drawn readings with
the limits that the shipped library states differ so from its own."""
LEAST_SD = 0.02
"""The same, whatever is predicted, as additional run time: losses that no source accounts for."""
SURPRISE_MAX = 2.0
"""A pair counts as surprising by so many standard deviations at most."""
FACTOR_MAX = 2.0
Z80 = 1.2815515655446004
"""80 % limits, in standard deviations."""


class Comparison(NamedTuple):
    """What pressures predicted of a program among neighbours, and what was observed, as additional run times."""

    type_column: str
    predicted: float
    observed: float
    """Below 0 where it ran faster than expected."""
    doubt: float
    """Standard deviation of ``observed``."""


class Factor(NamedTuple):
    """The factor of one type."""

    value: float = 1.0
    deviation: float = 0.0
    """Standard deviation; 0: nothing was observed, and what pressures predict is left as it is."""


UNCALIBRATED = Factor()


@dataclass(frozen=True, slots=True, eq=False)
class PressureCalibration:
    """Factors on the additional run time that pressures predict."""

    by_type: Mapping[str, Factor] = field(default_factory=dict)
    other: Factor = UNCALIBRATED
    """That of types on which nothing was observed."""

    def of(self, type_column: str) -> Factor:
        """Return the factor of a type."""
        return self.by_type.get(type_column, self.other)

    def longer(self, type_column: str, by_pressure: float) -> float:
        """Return the additional run time to expect on a type where pressures predict ``by_pressure``."""
        return self.of(type_column).value * by_pressure

    def loss(self, type_column: str, by_pressure: Estimate) -> Estimate:
        """Return the share of performance (0..1) to expect to lose where pressures predict ``by_pressure``."""
        factor = self.of(type_column)
        if factor.deviation == 0.0:
            return by_pressure
        value, low, high = (each / max(1e-9, 1.0 - each) for each in by_pressure[:3])
        doubt, expected = Z80 * factor.deviation * value, factor.value * value
        less, more = math.hypot(doubt, factor.value * (value - low)), math.hypot(doubt, factor.value * (high - value))
        return Estimate(_share(expected), _share(max(0.0, expected - less)), _share(expected + more))


def _share(longer: float) -> float:
    """Return the share of performance that an additional run time costs."""
    return longer / (1.0 + longer)


AS_PREDICTED = PressureCalibration()
"""Nothing was observed."""


def calibrate(seen: Sequence[Comparison]) -> PressureCalibration:
    """Return the factors that ``seen`` shows; comparisons in which pressures predict nothing say nothing."""
    sums = dict[str, tuple[float, float]]()
    for each in seen:
        if each.predicted > 0.0:
            variance = each.doubt**2 + (PAIR_SD * each.predicted) ** 2 + LEAST_SD**2
            most = SURPRISE_MAX * math.sqrt(variance)
            surprise = min(most, max(-most, each.observed - each.predicted))
            precision, total = sums.get(each.type_column, (0.0, 0.0))
            sums[each.type_column] = (
                precision + each.predicted**2 / variance,
                total + each.predicted * (each.predicted + surprise) / variance,
            )
    if not sums:
        return AS_PREDICTED
    # A type's own mean has the variance of its readings and that among types.
    weights = {column: 1.0 / (1.0 / precision + TYPE_SD**2) for column, (precision, _) in sums.items()}
    certainty = 1.0 / FACTOR_SD**2 + math.fsum(weights.values())
    means = [weights[column] * total / precision for column, (precision, total) in sums.items()]
    overall = (1.0 / FACTOR_SD**2 + math.fsum(means)) / certainty
    by_type = {
        column: _factor(
            (total + overall / TYPE_SD**2) / (precision + 1.0 / TYPE_SD**2),
            math.sqrt(1.0 / (precision + 1.0 / TYPE_SD**2)),
        )
        for column, (precision, total) in sorted(sums.items())
    }
    return PressureCalibration(by_type, _factor(overall, math.hypot(math.sqrt(1.0 / certainty), TYPE_SD)))


def _factor(value: float, deviation: float) -> Factor:
    return Factor(min(FACTOR_MAX, max(0.0, value)), deviation)
