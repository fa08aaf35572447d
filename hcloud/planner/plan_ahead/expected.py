"""Expected utility and expected consumption of a job that starts at a certain time (3Sigma §3, eqs. 1 and 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hcloud.forecast.runtimes.distribution import LEAST_REST, RunTimes, outlasting

Floats = NDArray[np.float64]
Integers = NDArray[np.intp]

_QUADRATURE = (np.arange(6) + 0.5) / 6
"""Where a falling utility is looked at, as shares of its decay."""
_APART = 64.0
"""Between the curves of two run times, in logarithms of seconds: more than any run time spans."""
_SHORTEST_S = 1e-12
_ONE = np.zeros(1, dtype=np.intp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Utility:
    """What the end of a job is worth, by when it ends: ``value`` up to ``until_s``, then less, and nothing from
    ``until_s + decay_s`` on. Times count from now."""

    value: float
    until_s: float
    decay_s: float = 0.0
    """Over this time the value falls to nothing in a straight line; 0: at once, as for a deadline."""


class RunTimeTable:
    """Several run times, of which many jobs are asked at once. ``which``: by job, the number of its run time, shape
    ``(n,)``; ``stretch``: by job, how many times as long it runs."""

    def __init__(self, run_times: Sequence[RunTimes]) -> None:
        logs = [np.log(each.times_s) for each in run_times]
        self._first, self._last = np.array([each[0] for each in logs]), np.array([each[-1] for each in logs])
        # One curve of all, each far from the others, so that one look-up serves all jobs.
        self._logs = np.concatenate([each + _APART * number for number, each in enumerate(logs)])
        self._cumulative = np.concatenate([each.cumulative for each in run_times])

    @staticmethod
    def of_each(run_times: Sequence[RunTimes]) -> tuple[RunTimeTable, Integers]:
        """Return the distinct ones of ``run_times``, and the number of each. What is one object may depend on the
        past, so equal ones are one."""
        by_id, by_value, distinct = dict[int, int](), dict[tuple[bytes, bytes], int](), list[RunTimes]()
        for each in run_times:
            if id(each) not in by_id:
                value = (each.times_s.tobytes(), each.cumulative.tobytes())
                if value not in by_value:
                    by_value[value] = len(distinct)
                    distinct.append(each)
                by_id[id(each)] = by_value[value]
        return RunTimeTable(distinct), np.array([by_id[id(each)] for each in run_times], dtype=np.intp)

    def cumulative(self, which: Integers, times_s: Floats) -> Floats:
        """Return the probability of each job to run at most ``times_s``, shape ``(n, ...)``; 0 for negative times."""
        by_job = (len(which),) + (1,) * (times_s.ndim - 1)
        first, last = self._first[which].reshape(by_job), self._last[which].reshape(by_job)
        asked = np.clip(np.log(np.maximum(times_s, _SHORTEST_S)), first, last)
        found: Floats = np.interp(asked + (_APART * which).reshape(by_job), self._logs, self._cumulative)
        return found

    def utilities(self, which: Integers, utilities: Sequence[Utility], starts_s: Floats, stretch: Floats) -> Floats:
        """Return what jobs are worth by their expected end (eq. 1) if they start at ``starts_s`` from now, both of the
        shape ``(n, T)``.

        A value that falls in a straight line over ``decay_s`` makes the expectation the mean of the probabilities to
        end by each moment of the fall.
        """
        values = np.array([(each.until_s, each.decay_s, each.value) for each in utilities]).reshape(-1, 3)
        until_s, decay_s, value = values.T[:, :, None]
        found, falling = np.empty_like(starts_s), (decay_s > 0.0).ravel()
        sure, slower = ~falling, stretch[:, None]
        found[sure] = self.cumulative(which[sure], ((until_s - starts_s) / slower)[sure])
        moments_s = (until_s + decay_s * _QUADRATURE)[falling, :, None] - starts_s[falling, None, :]
        found[falling] = self.cumulative(which[falling], moments_s / slower[falling, :, None]).mean(axis=1)
        valued: Floats = value * found
        return valued

    def uses(self, which: Integers, after_s: Floats, stretch: Floats) -> Floats:
        """Return the probability that each job still runs ``after_s`` after its start (eq. 2), shape ``(n, *S)`` for
        ``after_s`` of shape ``S``; 0 before it."""
        since_s = after_s / stretch.reshape((-1,) + (1,) * after_s.ndim)
        return np.where(after_s < 0.0, 0.0, 1.0 - self.cumulative(which, since_s))

    def rests(self, which: Integers, ages_s: Floats, after_s: Floats, stretch: Floats) -> Floats:
        """Return the probability that each job, which ran for its age, shape ``(n,)``, still runs ``after_s`` from now;
        shape ``(n, T)`` for ``after_s`` of shape ``(T,)``."""
        alike = np.argsort(which, kind="stable")  # those of one curve together are looked up twice as fast
        which, reached_s, slower = which[alike], (ages_s / stretch)[alike, None], stretch[alike, None]
        left = 1.0 - self.cumulative(which, reached_s)
        until_s = reached_s + after_s / slower
        found = (1.0 - self.cumulative(which, until_s)) / np.maximum(left, LEAST_REST)
        outlived = (left < LEAST_REST).ravel()
        found[outlived] = outlasting(until_s[outlived] / reached_s[outlived])
        rests = np.empty_like(found)
        rests[alike] = found
        return rests


def expected_utility(utility: Utility, run_time: RunTimes, starts_s: Floats, stretch: float = 1.0) -> Floats:
    """Return :meth:`RunTimeTable.utilities` of one job, of the shape ``(T,)`` of ``starts_s``."""
    found: Floats = RunTimeTable((run_time,)).utilities(_ONE, (utility,), starts_s[None, :], np.array([stretch]))[0]
    return found


def expected_use(run_time: RunTimes, after_s: Floats, stretch: float = 1.0) -> Floats:
    """Return :meth:`RunTimeTable.uses` of one job, of the shape of ``after_s``."""
    found: Floats = RunTimeTable((run_time,)).uses(_ONE, after_s, np.array([stretch]))[0]
    return found


def expected_rest(run_time: RunTimes, age_s: float, after_s: Floats, stretch: float = 1.0) -> Floats:
    """Return :meth:`RunTimeTable.rests` of one job, of the shape ``(T,)`` of ``after_s``."""
    found: Floats = RunTimeTable((run_time,)).rests(_ONE, np.array([age_s]), after_s, np.array([stretch]))[0]
    return found


def slot_starts(horizon_s: float, first_s: float, slots: int) -> Floats:
    """Return when the slots of a plan begin, from now, shape ``(slots,)``: at once, after ``first_s``, then ever
    farther apart up to ``horizon_s``."""
    if slots < 2 or horizon_s <= first_s:
        return np.array([0.0, first_s])
    return np.concatenate(((0.0,), np.geomspace(first_s, horizon_s, slots - 1)))


def overestimated(run_time: RunTimes, available_s: float, below: float) -> bool:
    """Return whether a prediction is most likely too long: it gives a run within ``available_s``, the time that the
    deadline allows, a probability below ``below`` (3Sigma §4.2.3)."""
    return run_time.cdf(available_s) < below


def point(run_time_s: float) -> RunTimes:
    """Return a run time that is known: a jump at ``run_time_s``."""
    return RunTimes(run_time_s * np.array([1.0 - 1e-9, 1.0]), np.array([0.0, 1.0]))
