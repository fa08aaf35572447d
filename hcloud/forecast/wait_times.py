"""Time until free: the probability that a busy server, or one of a pool, is free within a given time (ARQ §4.2).

Known are how long servers were busy before, and how long those that are busy now have been (their ages). A server busy
for ``a`` is free within ``t`` with probability ``1 - S(a+t) / S(a)``, where ``S(a)`` is the share of servers that are
busy for longer than ``a``; a pool has at least one free server unless none of them is. The paper fits a closed form to
``S``; here it is the empirical one. Where few servers reached an age, it is blended with a scale-free distribution:
what has lasted for ``a`` ends within ``t`` with probability ``t / (a + t)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hcloud.core.errors import BadInput

Floats = NDArray[np.float64]
Seconds = Sequence[float] | Floats
DOUBT = 1.0
"""Weight of the scale-free distribution, in servers. It counts once for each e-fold of age that a wait spans."""
YOUNGEST_S = 1.0
"""Minimum age assumed for a busy server."""
AGE_STEP = 0.05
"""Ages that differ by less than 5 % are merged, which keeps large pools cheap."""


@dataclass(frozen=True, slots=True, eq=False)
class BusyTimes:
    """How long servers of a pool are busy, from the assignment of work until its end.

    ``-log S`` jumps at ages at which servers ended; between these it grows with the logarithm of the age, the more the
    fewer servers reached it (a beta process, whose prior is the scale-free distribution).
    """

    ages_s: Floats
    """Ages at which its course changes, ascending from ``YOUNGEST_S``, shape ``(n,)``."""
    hazard: Floats
    """``-log S`` at each, shape ``(n,)``."""
    slope: Floats
    """Its growth with the logarithm of the age from each to the next, shape ``(n,)``."""

    @classmethod
    def of(
        cls, ended_s: Seconds, running_s: Seconds = (), *, ended_from_s: Seconds = (), running_from_s: Seconds = ()
    ) -> BusyTimes:
        """Return what follows from busy times that ended and from the ages of servers that are still busy.

        Without the latter short ones count too much, as they are the first to end (Kaplan and Meier). ``ended_from_s``
        and ``running_from_s``: the age of each when it was first seen; empty: all were seen from their start. Raises
        BadInput unless all are finite and 0 or more.
        """
        ended, running = np.asarray(ended_s, dtype=np.float64), np.asarray(running_s, dtype=np.float64)
        until = np.concatenate((ended, running))
        since = np.concatenate((_or_zeros(ended_from_s, ended), _or_zeros(running_from_s, running)))
        if not all(each.size == 0 or (np.isfinite(each).all() and each.min() >= 0.0) for each in (until, since)):
            raise BadInput("a busy time is negative or not finite; each must be a duration in seconds")
        is_seen = since < until
        ended, since, until = np.sort(ended[is_seen[: ended.size]]), np.sort(since[is_seen]), np.sort(until[is_seen])
        points = np.unique(np.concatenate(([YOUNGEST_S], since, until)))
        points = points[points >= YOUNGEST_S]
        at_risk = np.searchsorted(since, points, side="right") - np.searchsorted(until, points, side="right")
        slope: Floats = np.asarray(DOUBT / (at_risk + DOUBT), dtype=np.float64)
        ends = np.searchsorted(ended, points, side="right") - np.searchsorted(ended, points, side="left")
        between = slope[:-1] * np.diff(np.log(points)) - np.log1p(-ends[1:] / (at_risk[:-1] + DOUBT))
        return cls(ages_s=points, hazard=np.concatenate(([0.0], np.cumsum(between))), slope=slope)

    def freed_within(self, ages_s: Seconds, times_s: Seconds) -> Floats:
        """Return the probability, shape ``(servers, times)``, that each server is free within each time from now.

        ``ages_s``: how long each has been busy. Increases with time, from 0 at time 0.
        """
        found: Floats = -np.expm1(-self._hazard_within(ages_s, times_s))
        return found

    def some_free(self, ages_s: Seconds, times_s: Seconds) -> Floats:
        """Return the probability, shape ``(times,)``, that at least one server is free; 0 without servers."""
        steps = np.round(np.log(np.maximum(np.asarray(ages_s, dtype=np.float64), YOUNGEST_S)) / AGE_STEP)
        alike, counts = np.unique(steps, return_counts=True)
        hazard = self._hazard_within(np.exp(alike * AGE_STEP), times_s)
        some: Floats = -np.expm1(-(hazard * counts[:, None]).sum(axis=0))
        return some

    def wait_s(self, ages_s: Seconds, probability: float, *, limit_s: float) -> float:
        """Return the wait until some server is free with ``probability`` (0..1); at most ``limit_s``."""
        times = np.linspace(0.0, limit_s, 257)
        enough = np.flatnonzero(self.some_free(ages_s, times) >= probability)
        return float(times[enough[0]]) if enough.size else limit_s

    def _hazard_within(self, ages_s: Seconds, times_s: Seconds) -> Floats:
        ages = np.maximum(np.asarray(ages_s, dtype=np.float64), YOUNGEST_S)[:, None]
        times = np.maximum(np.asarray(times_s, dtype=np.float64), 0.0)[None, :]
        return self._hazard_at(ages + times) - self._hazard_at(ages)

    def _hazard_at(self, ages_s: Floats) -> Floats:
        """Return ``-log S``; no age is below ``YOUNGEST_S``."""
        at = np.searchsorted(self.ages_s, ages_s, side="right") - 1
        found: Floats = self.hazard[at] + self.slope[at] * np.log(ages_s / self.ages_s[at])
        return found


def _or_zeros(since_s: Seconds, until: Floats) -> Floats:
    return np.asarray(since_s, dtype=np.float64) if len(since_s) else np.zeros(until.size)
