"""The distribution of a run time, and the interface of whatever predicts it.

A distribution is a cumulative function over run times, log-linear between its points. What has lasted longer than
anything known ends as :mod:`hcloud.forecast.wait_times` assumes: what ran for ``a`` runs longer than ``t`` with
probability ``a / t``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hcloud.core.errors import BadInput
from hcloud.forecast.runtimes.features import RunFeatures

Floats = NDArray[np.float64]

SHORTEST_S, LONGEST_S = 0.1, 1e7
"""Limits of the grid of run times; shorter and longer runs count as these."""
LEAST_REST = 1e-6
"""Below this probability of having lasted so long, a job's rest is taken as free of scale."""
_FREE_OF_SCALE = np.geomspace(1.0, 1e4, 97)
"""Run times as multiples of the age."""
_OUTLIVED = (1.0 - 1.0 / _FREE_OF_SCALE) / (1.0 - 1.0 / _FREE_OF_SCALE[-1])
"""Probability to run no longer than each of them, once a job lasted longer than anything known."""


@dataclass(frozen=True, slots=True, eq=False)
class RunTimes:
    """The distribution of one job's run time, from its start to its end."""

    times_s: Floats
    """Run times in seconds, ascending, shape ``(n,)``. A time that occurs twice is a jump of ``cumulative``."""
    cumulative: Floats
    """Probability that the run is no longer, shape ``(n,)``; never falls, from 0 to 1; log-linear in between."""
    age_s: float = 0.0
    """How long the job ran already; all run times are longer."""
    point_s: float | None = None
    """The predictor's own estimate of one run time, in seconds; None: it has none beside the distribution."""
    evidence: bytes = field(default=b"", repr=False)
    """What was known when this was predicted; ``observe`` learns from it when given the prediction back."""
    source: str = ""
    """What it follows from most, such as the features ``user+name`` of past runs; empty: not stated."""

    def times(self, factor: float) -> RunTimes:
        """Return the distribution of what runs so many times as long."""
        point_s = None if self.point_s is None else self.point_s * factor
        return replace(self, times_s=self.times_s * factor, age_s=self.age_s * factor, point_s=point_s)

    def cdf(self, time_s: float) -> float:
        """Return the probability that the run takes at most ``time_s`` seconds."""
        after = int(np.searchsorted(self.times_s, time_s, side="right"))
        if after == 0 or math.isnan(time_s):
            return 0.0
        if after == len(self.times_s):
            return 1.0
        low, high = float(self.times_s[after - 1]), float(self.times_s[after])
        part = math.log(time_s / low) / math.log(high / low)
        below = float(self.cumulative[after - 1])
        return below + part * (float(self.cumulative[after]) - below)

    def quantile(self, probability: float) -> float:
        """Return the shortest time in seconds within which the run ends with ``probability``, 0 to 1.

        Raises BadInput for other probabilities.
        """
        if not 0.0 <= probability <= 1.0:
            return float(self.quantiles((probability,))[0])
        cumulative, times_s = self.cumulative, self.times_s
        after = min(max(int(cumulative.searchsorted(probability)), 1), len(times_s) - 1)
        below, above = float(cumulative[after - 1]), float(cumulative[after])
        part = min(max((probability - below) / (above - below), 0.0), 1.0) if above > below else 0.0
        low, high = float(times_s[after - 1]), float(times_s[after])
        return low * float((high / low) ** part)

    def quantile_after(self, age_s: float, probability: float) -> float:
        """Return :meth:`quantile` of :meth:`after` an age, without making that distribution."""
        if not age_s > self.age_s or age_s <= self.times_s[0]:
            return self.quantile(probability)
        reached = self.cdf(age_s)
        if 1.0 - reached < LEAST_REST:
            return self.after(age_s).quantile(probability)
        return max(age_s, self.quantile(reached + probability * (1.0 - reached)))

    def quantiles(self, probabilities: Sequence[float] | Floats) -> Floats:
        """Return :meth:`quantile` of each probability, shape ``(len(probabilities),)``."""
        wanted = np.asarray(probabilities, dtype=np.float64)
        if not ((wanted >= 0.0) & (wanted <= 1.0)).all():
            raise BadInput(f"quantiles of {wanted.tolist()} were asked for; each must be a probability from 0 to 1")
        after = np.minimum(np.maximum(np.searchsorted(self.cumulative, wanted), 1), len(self.times_s) - 1)
        below, above = self.cumulative[after - 1], self.cumulative[after]
        part = np.clip((wanted - below) / np.where(above > below, above - below, 1.0), 0.0, 1.0)
        low, high = self.times_s[after - 1], self.times_s[after]
        found: Floats = low * (high / low) ** part
        return found

    @property
    def expected_s(self) -> float:
        """The mean run time in seconds, the time already run included."""
        low, high = self.times_s[:-1], self.times_s[1:]
        ratio = np.log(high / low)
        means = np.where(ratio > 0.0, (high - low) / np.where(ratio > 0.0, ratio, 1.0), high)
        return float(np.diff(self.cumulative) @ means)

    @property
    def likely_s(self) -> float:
        """The best estimate of one run time in seconds: most probability lies within a factor 2 of it."""
        if self.point_s is not None:
            return self.point_s
        logs = np.log(self.times_s)
        middles = 0.5 * (logs[:-1] + logs[1:])
        within = np.interp(middles + math.log(2.0), logs, self.cumulative)
        within -= np.interp(middles - math.log(2.0), logs, self.cumulative)
        return math.exp(middles[int(np.argmax(within))])

    def still_running(self, age_s: float, after_s: Floats) -> Floats:
        """Return the probability that a job that ran for ``age_s`` still runs ``after_s`` from now, of the same shape
        as ``after_s`` (0 or more)."""
        rest = self.after(age_s)
        asked = np.log(np.maximum(age_s + after_s, 0.5 * rest.times_s[0]))
        ended: Floats = np.interp(asked, np.log(rest.times_s), rest.cumulative, left=0.0, right=1.0)
        return 1.0 - ended

    def after(self, age_s: float) -> RunTimes:
        """Return the distribution of the run time once the job ran for ``age_s`` seconds and did not end.

        An age that is negative or not a number, as from a clock that went back, counts as 0.
        """
        if not age_s > self.age_s:
            return self
        if age_s <= self.times_s[0]:
            return RunTimes(self.times_s, self.cumulative, age_s, None, self.evidence, self.source)
        reached = self.cdf(age_s)
        if 1.0 - reached < LEAST_REST or math.isinf(age_s):
            age_s = min(age_s, 1e300)
            times, cumulative = age_s * _FREE_OF_SCALE, _OUTLIVED
        else:
            later = int(np.searchsorted(self.times_s, age_s, side="right"))
            times = np.concatenate(((age_s,), self.times_s[later:]))
            cumulative = np.concatenate(((0.0,), (self.cumulative[later:] - reached) / (1.0 - reached)))
        return RunTimes(times, cumulative, age_s, None, self.evidence, self.source)


def outlasting(multiples: Floats) -> Floats:
    """Return the probability that a job that lasted longer than anything known runs longer than these multiples of its
    age, of the same shape."""
    ended: Floats = np.interp(np.log(multiples), np.log(_FREE_OF_SCALE), _OUTLIVED)
    return 1.0 - ended


def unknown_run_time() -> RunTimes:
    """Return the distribution of a run time about which nothing is known: all orders of magnitude are as likely."""
    return RunTimes(np.array([SHORTEST_S, LONGEST_S]), np.array([0.0, 1.0]))


class Predictor(Protocol):
    """Learns how long jobs run, and predicts it. No clock: only what was observed, and in which order, counts."""

    def observe(
        self, features: RunFeatures, run_s: float, censored: bool = False, *, predicted: RunTimes | None = None
    ) -> None:
        """Learn that a job ran for ``run_s`` seconds; ``censored``: it was stopped then and would have run longer.

        ``predicted`` is what :meth:`predict` returned when the job was submitted; without it the predictor judges
        itself by what it would predict now. A time that is negative or not finite is ignored.
        """

    def predict(self, features: RunFeatures, age_s: float = 0.0) -> RunTimes:
        """Return the distribution of a job's run time; ``age_s``: how long it ran already, in seconds."""
