"""The resource quality a job needs: what it cannot bear, over the sources that are measured reliably.

HCloud §8.3.3 and ARQ §6.3 want quality to follow a job's *sensitivity*. Tarcil encodes the pressure a job causes and
assumes that it tolerates the rest (``t = 99 - c``); in measured programs the two hardly correlate. So the code is that
of ``100 - t``, over the sources that reach a job from other cores and that tell programs apart. Each measured value is
shrunk towards the mean of the known programs by its doubt (regression to the mean): a single reading of 100 with
limits of 10 and 100 says little.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hcloud.classifier.interference import CORE_SOURCES, NOT_COUNTED
from hcloud.classifier.library import Library, MeasuredApplication, Question
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
    """How well readings of one source tell programs apart."""

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

    def shrunk(self, value: float, error_variance: float) -> tuple[float, float]:
        """Return a reading (0..100) with its doubt removed, and the standard deviation that is left."""
        weight = 1.0 / (1.0 + error_variance / self.variance) if self.variance > 0 else 0.0
        return self.mean + weight * (value - self.mean), math.sqrt(weight * error_variance)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToleranceScale:
    """What the known programs tolerate, by source that reaches a job from other cores."""

    sources: Mapping[str, SourceReliability] = field(default_factory=dict)

    @classmethod
    def of(cls, library: Library) -> ToleranceScale:
        """Return the scale of the programs of ``library``."""
        readings: dict[str, list[tuple[float, float]]] = {}
        for program in library.known.values():
            spreads = program.spreads.get(Question.TOLERATED, {})
            for source, value in program.cells.get(Question.TOLERATED, {}).items():
                readings.setdefault(source, []).append((value, _error_sd(value, spreads.get(source, 0.0))))
        reaching = {source: found for source, found in readings.items() if source not in CORE_SOURCES | NOT_COUNTED}
        return cls(sources={source: _reliability(found) for source, found in sorted(reaching.items())})

    def counted(self, sources: Sequence[str]) -> list[str]:
        """Return those of ``sources`` that count; all that reach a job from other cores if none is reliable."""
        reaching = [each for each in sources if each not in CORE_SOURCES | NOT_COUNTED]
        reliable = [each for each in reaching if each in self.sources and self.sources[each].reliability >= RELIABLE]
        return reliable or reaching

    def needed(self, tolerated: Mapping[str, Estimate], seen: MeasuredApplication) -> Estimate:
        """Return ``Q_T`` (0..1) with 80 % limits: the code (eq. 7.2) of what an application cannot bear.

        ``tolerated``: estimates by source. ``seen``: the readings that they are based on.
        """
        counted = self.counted(sorted(tolerated))
        if not counted:
            return UNKNOWN
        values, lows, highs = [], [], []
        measured, spreads = seen.cells.get(Question.TOLERATED, {}), seen.spreads.get(Question.TOLERATED, {})
        for source in counted:
            value, low, high, observed = tolerated[source]
            if observed and source in self.sources and source in measured:
                error_sd = _error_sd(measured[source], spreads.get(source, 0.0))
                value, left_sd = self.sources[source].shrunk(measured[source], error_sd**2)
                low, high = value - left_sd / SD_PER_80, value + left_sd / SD_PER_80
            values.append(_unbearable(value))
            lows.append(_unbearable(high))
            highs.append(_unbearable(low))
        observed = all(tolerated[source].observed for source in counted)
        return Estimate(quality.encode(values), quality.encode(lows), quality.encode(highs), observed)


def _reliability(readings: Sequence[tuple[float, float]]) -> SourceReliability:
    """Return the moments of readings: value and standard deviation of its error."""
    count = len(readings)
    mean = math.fsum(value for value, _ in readings) / count
    error_variance = math.fsum(sd * sd for _, sd in readings) / count
    if count < FEWEST_PROGRAMS:
        return SourceReliability(mean=mean, variance=math.inf, error_variance=error_variance)
    total = math.fsum((value - mean) ** 2 for value, _ in readings) / (count - 1)
    return SourceReliability(mean=mean, variance=max(0.0, total - error_variance), error_variance=error_variance)


def _unbearable(tolerated: float) -> float:
    return 100.0 - min(100.0, max(0.0, tolerated))


def _error_sd(value: float, spread: float) -> float:
    """Return the standard deviation of a reading with this 95 % spread; neither limit is outside 0..100."""
    return SD_PER_95 * (min(100.0, value + spread) - max(0.0, value - spread)) / 2.0
