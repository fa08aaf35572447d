"""Expected utility and expected consumption of a job that starts at a certain time (3Sigma §3, eqs. 1 and 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hcloud.forecast.runtimes.distribution import LEAST_REST, RunTimes

Floats = NDArray[np.float64]

_QUADRATURE = (np.arange(6) + 0.5) / 6
"""Where a falling utility is looked at, as shares of its decay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Utility:
    """What the end of a job is worth, by when it ends: ``value`` up to ``until_s``, then less, and nothing from
    ``until_s + decay_s`` on. Times count from now."""

    value: float
    until_s: float
    decay_s: float = 0.0
    """Over this time the value falls to nothing in a straight line; 0: at once, as for a deadline."""


def cumulative(run_time: RunTimes, times_s: Floats) -> Floats:
    """Return the probability that the run takes at most ``times_s``, of the same shape; 0 for negative times."""
    logs = np.log(run_time.times_s)
    asked = np.log(np.maximum(times_s, 0.5 * run_time.times_s[0]))
    found: Floats = np.interp(asked, logs, run_time.cumulative, left=0.0, right=1.0)
    return found


def expected_utilities(
    utilities: Sequence[Utility], run_time: RunTimes, starts_s: Floats, stretch: float = 1.0
) -> Floats:
    """Return what jobs are worth by their expected end (eq. 1) if they start at ``starts_s`` from now.

    Both have the shape ``(n, T)``, with a row for each of the utilities. ``stretch``: how many times as long they run
    there. A value that falls in a straight line over ``decay_s`` makes the expectation the mean of the probabilities to
    end by each moment of the fall.
    """
    until_s, decay_s, value = (
        np.array([[getattr(each, name)] for each in utilities]) for name in ("until_s", "decay_s", "value")
    )
    found, falling = np.empty_like(starts_s), (decay_s > 0.0).ravel()
    found[~falling] = cumulative(run_time, (until_s - starts_s)[~falling] / stretch)
    moments_s = (until_s + decay_s * _QUADRATURE)[falling, :, None] - starts_s[falling, None, :]
    found[falling] = cumulative(run_time, moments_s / stretch).mean(axis=1)
    valued: Floats = value * found
    return valued


def expected_utility(utility: Utility, run_time: RunTimes, starts_s: Floats, stretch: float = 1.0) -> Floats:
    """Return :func:`expected_utilities` of one job, of the shape ``(T,)`` of ``starts_s``."""
    found: Floats = expected_utilities((utility,), run_time, starts_s[None, :], stretch)[0]
    return found


def expected_use(run_time: RunTimes, after_s: Floats, stretch: float = 1.0) -> Floats:
    """Return the probability that a job still runs ``after_s`` after its start (eq. 2), of the same shape; 0 before
    it."""
    return np.where(after_s < 0.0, 0.0, 1.0 - cumulative(run_time, after_s / stretch))


def expected_rest(run_time: RunTimes, age_s: float | Floats, after_s: Floats, stretch: float = 1.0) -> Floats:
    """Return the probability that a job that ran for ``age_s`` still runs ``after_s`` from now.

    It has the shape ``(T,)`` of ``after_s``; for several ages, shape ``(n,)``, a row for each.
    """
    ages_s = np.asarray(age_s, dtype=np.float64)[..., None] / stretch
    reached = cumulative(run_time, ages_s)
    rest: Floats = (1.0 - cumulative(run_time, ages_s + after_s / stretch)) / np.maximum(1.0 - reached, LEAST_REST)
    outlived = (1.0 - reached < LEAST_REST)[..., 0]
    for at in np.argwhere(outlived):
        old_s = float(ages_s[tuple(at)][0])
        rest[tuple(at)] = 1.0 - cumulative(run_time.after(old_s), old_s + after_s / stretch)
    return rest


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
