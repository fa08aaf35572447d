"""The resource quality a job needs: what it cannot bear, over the sources that are measured reliably.

HCloud §8.3.3 and ARQ §6.3 want quality to follow a job's *sensitivity*. Tarcil encodes the pressure a job causes and
assumes that it tolerates the rest (``t = 99 - c``); in measured programs the two hardly correlate. So the code is that
of ``100 - t``, over the sources that reach a job from other cores and in which programs differ. Each measured value is
shrunk towards the mean of the known programs by its doubt (regression to the mean): a single reading of 100 with
limits of 10 and 100 says little.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hcloud.classifier.estimator import Estimates
from hcloud.classifier.interference import CORE_SOURCES, NOT_COUNTED
from hcloud.classifier.library import Library, Question
from hcloud.classifier.utility_matrix import Matrix
from hcloud.core import quality
from hcloud.core.estimates import Estimate

RELIABLE = 0.5
"""Least reliability of a source that counts: at least half the variance of its readings is between programs."""
FEWEST_PROGRAMS = 5
"""With fewer known programs their spread says nothing, and readings are taken as they are."""
SD_PER_95, SD_PER_80 = 1 / 1.959963984540054, 1 / 1.2815515655446004
"""Standard deviations per half-width of 95 % and of 80 % limits."""
UNKNOWN = Estimate(value=0.5, low=0.0, high=1.0)
"""Needed quality of a job of which no tolerated pressure is known, by itself or from others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReliability:
    """How well readings of one source distinguish programs."""

    mean: float
    """Mean tolerated pressure (0..100) of the known programs."""
    variance: float
    """Variance of what programs tolerate, without that of the readings' errors."""
    error_variance: float
    """Mean variance of the readings' errors."""

    @property
    def reliability(self) -> float:
        """1 minus error variance over the variance of readings (0..1)."""
        return 1.0 / (1.0 + self.error_variance / self.variance) if self.variance > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ToleranceScale:
    """What the known programs tolerate, by source that reaches a job from other cores."""

    sources: Mapping[str, SourceReliability] = field(default_factory=dict)

    @classmethod
    def of(cls, library: Library) -> ToleranceScale:
        """Return the scale of the programs of ``library``."""
        found = reliabilities(library)
        return cls(sources={source: each for source, each in found.items() if source not in CORE_SOURCES | NOT_COUNTED})

    def counted(self, sources: Sequence[str]) -> list[str]:
        """Return those of ``sources`` that count; all that reach a job from other cores if none is reliable."""
        reaching = [each for each in sources if each not in CORE_SOURCES | NOT_COUNTED]
        reliable = [each for each in reaching if each in self.sources and self.sources[each].reliability >= RELIABLE]
        return reliable or reaching

    def needed(self, tolerated: Estimates, readings: Matrix, spreads: Matrix) -> list[Estimate]:
        """Return each job's ``Q_T`` (0..1) with 80 % limits: the code (eq. 7.2) of what it cannot bear.

        ``readings`` (jobs x columns of ``tolerated``): what was measured; NaN elsewhere. ``spreads``: 95 % half-widths.
        """
        counted = self.counted(sorted(tolerated.columns))
        if not counted:
            return [UNKNOWN] * len(tolerated.values)
        at = [tolerated.columns.index(source) for source in counted]
        known = [self.sources.get(source) for source in counted]
        mean = np.array([each.mean if each else 0.0 for each in known])
        variance = np.array([each.variance if each else math.inf for each in known])
        values, low, high = tolerated.values[:, at], tolerated.low[:, at], tolerated.high[:, at]
        observed, error_variance = tolerated.observed[:, at], _error_sd(readings[:, at], spreads[:, at]) ** 2
        # Without variance between programs a reading says nothing.
        weight = np.where(variance > 0.0, 1.0 / (1.0 + error_variance / np.where(variance > 0.0, variance, 1.0)), 0.0)
        shrunk, reach = mean + weight * (readings[:, at] - mean), np.sqrt(weight * error_variance) / SD_PER_80
        is_shrunk = observed & np.array([each is not None for each in known])
        values = np.where(is_shrunk, shrunk, values)
        low, high = np.where(is_shrunk, shrunk - reach, low), np.where(is_shrunk, shrunk + reach, high)
        value_codes, low_codes, high_codes = (_codes(100.0 - np.clip(each, 0.0, 100.0)) for each in (values, high, low))
        whole = np.asarray(observed.all(axis=1))
        return list(map(Estimate, value_codes.tolist(), low_codes.tolist(), high_codes.tolist(), whole.tolist()))


def reliabilities(library: Library) -> dict[str, SourceReliability]:
    """Return how well readings of each source, also of one core's, distinguish the programs of ``library``."""
    readings: dict[str, list[tuple[float, float]]] = {}
    for program in library.known.values():
        spreads = program.spreads.get(Question.TOLERATED, {})
        for source, value in program.cells.get(Question.TOLERATED, {}).items():
            readings.setdefault(source, []).append((value, spreads.get(source, 0.0)))
    return {source: _reliability(found) for source, found in sorted(readings.items())}


def _reliability(readings: Sequence[tuple[float, float]]) -> SourceReliability:
    """Return the moments of readings: value and 95 % spread."""
    count = len(readings)
    mean = math.fsum(value for value, _ in readings) / count
    error_variance = math.fsum(_error_sd(*np.array(readings).T) ** 2) / count
    if count < FEWEST_PROGRAMS:
        return SourceReliability(mean=mean, variance=math.inf, error_variance=error_variance)
    total = math.fsum((value - mean) ** 2 for value, _ in readings) / (count - 1)
    return SourceReliability(mean=mean, variance=max(0.0, total - error_variance), error_variance=error_variance)


def _codes(pressures: Matrix) -> Matrix:
    """Return :func:`quality.encode` of each row of pressures 0..100."""
    digits = -np.sort(-np.minimum(pressures, quality.PRESSURE_MAX), 1)
    places = quality.BASE ** -np.arange(1.0, pressures.shape[1] + 1.0)
    return np.asarray(np.minimum(1.0, (digits * places).sum(1) / (1.0 - places[-1])))


def _error_sd(values: Matrix, spreads: Matrix) -> Matrix:
    """Return the standard deviations of readings with these 95 % spreads; no limit is outside 0..100."""
    return SD_PER_95 * (np.minimum(100.0, values + spreads) - np.maximum(0.0, values - spreads)) / 2.0
