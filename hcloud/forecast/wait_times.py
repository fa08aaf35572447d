"""Time until free: the probability that a busy server, or one of a pool, is free within a given time (ARQ §4.2).

Known are how long servers were busy before (their distribution ``F``) and how long each has been busy now (its age). A
server busy for ``a`` is free within ``t`` with probability ``(F(a+t) - F(a)) / (1 - F(a))``; a pool has at least one
free server unless none of them is. The paper fits a closed form; here the empirical distribution is used. With few
observations, or ages beyond the longest one, it is blended with a scale-free distribution: what has lasted for ``a``
ends within ``t`` with probability ``t / (a + t)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hcloud.core.errors import BadInput

Floats = NDArray[np.float64]
KEPT = 1000
"""Number of latest busy times used."""
DOUBT = 4.0
"""Weight of the scale-free distribution, in observations."""
YOUNGEST_S = 1.0
"""Minimum age assumed for a busy server."""
AGE_STEP = 0.05
"""Ages that differ by less than 5 % are merged, which keeps large pools cheap."""


@dataclass(frozen=True, slots=True, eq=False)
class BusyTimes:
    """How long servers of a pool were busy, from the assignment of work until its end."""

    sorted_s: Floats
    """Ascending array of shape ``(n,)``; ``n`` is 0 if nothing was observed."""

    @classmethod
    def of(cls, observed_s: Iterable[float]) -> BusyTimes:
        """Keep the latest of ``observed_s`` (oldest first). Raises BadInput unless all are finite and 0 or more."""
        kept = np.array(list(observed_s)[-KEPT:], dtype=np.float64)
        if kept.size and not (np.isfinite(kept).all() and kept.min() >= 0):
            raise BadInput("a busy time is negative or not finite; each must be a duration in seconds")
        return cls(np.sort(kept))

    def freed_within(self, ages_s: Sequence[float] | Floats, times_s: Sequence[float] | Floats) -> Floats:
        """Return the probability, shape ``(servers, times)``, that each server is free within each time from now.

        ``ages_s``: how long each has been busy. Increases with time, from 0 at time 0.
        """
        ages = np.maximum(np.asarray(ages_s, dtype=np.float64), YOUNGEST_S)[:, None]
        times = np.maximum(np.asarray(times_s, dtype=np.float64), 0.0)[None, :]
        count = self.sorted_s.size
        outlived = count - np.searchsorted(self.sorted_s, ages, side="right")
        ended = np.searchsorted(self.sorted_s, ages + times, side="right") - (count - outlived)
        found: Floats = (ended + DOUBT * times / (ages + times)) / (outlived + DOUBT)
        return found

    def some_free(self, ages_s: Sequence[float] | Floats, times_s: Sequence[float] | Floats) -> Floats:
        """Return the probability, shape ``(times,)``, that at least one server is free; 0 without servers."""
        steps = np.round(np.log(np.maximum(np.asarray(ages_s, dtype=np.float64), YOUNGEST_S)) / AGE_STEP)
        alike, counts = np.unique(steps, return_counts=True)
        none_free: Floats = 1.0 - self.freed_within(np.exp(alike * AGE_STEP), times_s)
        some: Floats = 1.0 - (none_free ** counts[:, None]).prod(axis=0)
        return some

    def wait_s(self, ages_s: Sequence[float] | Floats, probability: float, *, limit_s: float) -> float:
        """Return the wait until some server is free with ``probability`` (0..1); at most ``limit_s``."""
        times = np.linspace(0.0, limit_s, 257)
        enough = np.flatnonzero(self.some_free(ages_s, times) >= probability)
        return float(times[enough[0]]) if enough.size else limit_s
