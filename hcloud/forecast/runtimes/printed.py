"""The run-time predictor of the 3Sigma paper as printed (§4.1), with which ours is compared.

Each value of each combination has a histogram of at most 80 bins and four point estimates: mean, median of recent runs,
rolling mean and mean of the latest. Each estimate is an expert, judged by its normalised mean absolute error (NMAE).
The histogram of the best expert's value is the prediction.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import OrderedDict, deque
from dataclasses import dataclass, field

import numpy as np

from hcloud.forecast.runtimes.distribution import LONGEST_S, SHORTEST_S, Floats, RunTimes, unknown_run_time
from hcloud.forecast.runtimes.features import PRINTED_COMBINATIONS, RunFeatures, combination_keys

BINS = 80
"""Maximum number of bins of a histogram (§4.1)."""
ROLLING = 0.6
"""Weight of the latest run in the rolling mean (§4.1)."""
RECENT, LATEST = 20, 3
"""Runs for the median and for the mean of the latest; the paper names neither number."""
ESTIMATES = 4
MAX_VALUES = 65_536


@dataclass(slots=True, eq=False)
class StreamHistogram:
    """Histogram of a stream with bins of varying width (Ben-Haim and Tom-Tov, 2010): the nearest two are merged."""

    centres: array[float] = field(default_factory=lambda: array("d"))
    """Ascending."""
    counts: array[float] = field(default_factory=lambda: array("d"))
    """Runs of each bin."""

    def add(self, value: float) -> None:
        """Count one value."""
        at = bisect_left(self.centres, value)
        if at < len(self.centres) and self.centres[at] == value:
            self.counts[at] += 1.0
            return
        self.centres.insert(at, value)
        self.counts.insert(at, 1.0)
        if len(self.centres) > BINS:
            nearest = int(np.argmin(np.diff(self.centres)))
            one, other = self.counts[nearest], self.counts[nearest + 1]
            merged = (self.centres[nearest] * one + self.centres[nearest + 1] * other) / (one + other)
            self.centres[nearest], self.counts[nearest] = merged, one + other
            del self.centres[nearest + 1], self.counts[nearest + 1]

    def steps(self) -> tuple[Floats, Floats]:
        """Return times and cumulative shares of a distribution that jumps at each centre."""
        total = np.cumsum(self.counts)
        cumulative = np.repeat(total / total[-1], 2)
        return np.repeat(np.array(self.centres), 2), np.concatenate(((0.0,), cumulative[:-1]))


@dataclass(slots=True, eq=False)
class ValueHistory:
    """Runs of one value of one combination."""

    histogram: StreamHistogram = field(default_factory=StreamHistogram)
    """Of all its run times, in seconds."""
    count: int = 0
    """Number of runs."""
    total_s: float = 0.0
    """Sum of the run times."""
    rolling_s: float = 0.0
    """Mean that follows the latest runs."""
    recent_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    """The latest runs, latest last."""
    errors_s: list[float] = field(default_factory=lambda: [0.0] * ESTIMATES)
    """Sum of absolute errors of each estimate."""
    judged_s: float = 0.0
    """Sum of the run times that the estimates were compared with."""

    def estimates(self) -> tuple[float, ...]:
        """Return the four estimates, in seconds."""
        recent = list(self.recent_s)
        latest = recent[-LATEST:]
        return self.total_s / self.count, sorted(recent)[len(recent) // 2], self.rolling_s, sum(latest) / len(latest)

    def nmae(self, estimate: int) -> float:
        """Return the normalised mean absolute error of one estimate; infinite where it was never compared."""
        return self.errors_s[estimate] / self.judged_s if self.judged_s > 0.0 else math.inf

    def add(self, run_s: float) -> None:
        """Remember one run."""
        self.histogram.add(run_s)
        self.rolling_s = ROLLING * run_s + (1.0 - ROLLING) * self.rolling_s if self.count else run_s
        self.count += 1
        self.total_s += run_s
        self.recent_s.append(run_s)


@dataclass(slots=True, eq=False)
class PrintedPredictor:
    """Predicts from the history whose point estimates were best. See :class:`~.distribution.Predictor`.

    The paper knows no runs that were stopped: they are left out.
    """

    max_values: int = MAX_VALUES
    """Maximum number of values that are remembered; those not seen for longest are forgotten."""
    histories: OrderedDict[tuple[int, int], ValueHistory] = field(default_factory=OrderedDict)
    """By combination and key of its value, least recently extended first."""

    def predict(self, features: RunFeatures, age_s: float = 0.0) -> RunTimes:
        """Return the distribution of a job's run time; ``age_s``: how long it ran already, in seconds."""
        found = [self.histories.get(key) for key in _keys(features)]
        estimates = [history.estimates() if history is not None else (math.nan,) * ESTIMATES for history in found]
        evidence = np.array(estimates, "<f8").tobytes()
        best, least, point_s = None, math.inf, 0.0
        for history, points in zip(found, estimates, strict=True):
            if history is None:
                continue
            for number, point in enumerate(points):
                error = history.nmae(number)
                if error < least or best is None:
                    best, least, point_s = history, error, point
        if best is None:
            wide = unknown_run_time()
            return RunTimes(wide.times_s, wide.cumulative, evidence=evidence).after(age_s)
        return RunTimes(*best.histogram.steps(), point_s=point_s, evidence=evidence).after(age_s)

    def observe(
        self, features: RunFeatures, run_s: float, censored: bool = False, *, predicted: RunTimes | None = None
    ) -> None:
        """Learn that a job ran for ``run_s`` seconds; ``censored`` runs are left out.

        ``predicted`` is what :meth:`predict` returned when the job was submitted; without it the estimates are judged
        by what they are now. A time that is negative or not finite is ignored.
        """
        if not 0.0 <= run_s < math.inf or censored:
            return
        run_s, keys = min(max(run_s, SHORTEST_S), LONGEST_S), _keys(features)
        made: Floats | None = None
        if predicted is not None and len(predicted.evidence) == 8 * ESTIMATES * len(keys):
            made = np.frombuffer(predicted.evidence, "<f8").reshape(len(keys), ESTIMATES)
        for at, key in enumerate(keys):
            history = self.histories.get(key)
            points = made[at].tolist() if made is not None else history.estimates() if history is not None else ()
            if history is None:
                history = self.histories[key] = ValueHistory()
            if points and math.isfinite(points[0]):
                history.judged_s += run_s
                history.errors_s = [
                    error + abs(point - run_s) for error, point in zip(history.errors_s, points, strict=True)
                ]
            history.add(run_s)
            self.histories.move_to_end(key)
        while len(self.histories) > max(self.max_values, len(PRINTED_COMBINATIONS)):
            self.histories.popitem(last=False)


def _keys(features: RunFeatures) -> list[tuple[int, int]]:
    return list(zip(*combination_keys(features, PRINTED_COMBINATIONS), strict=True))
