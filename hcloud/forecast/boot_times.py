"""How unusual a boot is that lasts: whether a machine is later than its like mostly are.

Boot times have a tail (HCloud §8: 12 to 19 s mostly, two minutes at the 95th percentile), so that a machine which is
late is likely to be late for long: what has lasted for ``a`` goes on for another ``t`` or more with ``a / (a + t)``
where nothing shows its scale (:mod:`hcloud.forecast.wait_times`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

LATE = 0.05
"""A machine is late that has been starting for longer than this part of its like take."""
LEAST_S = 30.0
"""Nothing is late so soon."""
PRIOR = 20.0
"""What is taken for granted of boots weighs as much as this many that were seen."""
P95_OF_USUAL = 4.0
"""Taken for granted: one boot in twenty takes longer than so many times the usual (a lognormal distribution)."""
_DEVIATION = math.log(P95_OF_USUAL) / 1.6449


def is_late(age_s: float, usual_s: float, seen_s: Sequence[float], others_s: Sequence[float]) -> bool:
    """Return whether a machine that has been starting for ``age_s`` is later than nearly all of its like.

    ``usual_s``: what its type usually takes; ``seen_s``: how long others took lately; ``others_s``: for how long others
    have been starting now. If all are slow at once, none is late: another one would be no sooner.
    """
    if age_s < LEAST_S:
        return False
    longer = sum(each >= age_s for each in (*seen_s, *others_s))
    return PRIOR * _lasts_longer(age_s, usual_s) + longer <= LATE * (PRIOR + len(seen_s) + len(others_s))


def broken_by_waiting(age_s: float, left_s: float, runs_s: float | None) -> float:
    """Return how probable it is that a job misses its deadline that waits for a machine which is late.

    ``age_s``: for how long the machine has been starting; ``left_s``: how long it is to the deadline; ``runs_s``: how
    long the job takes (None: not known, any time up to ``left_s``). What is lost in any case is not lost by waiting: 0.
    """
    if left_s <= 0.0 or (runs_s is not None and runs_s >= left_s):
        return 0.0
    if runs_s is not None:
        return age_s / (age_s + left_s - runs_s)
    return age_s / left_s * math.log1p(left_s / age_s)


def broken_by_a_boot(usual_s: float, left_s: float, runs_s: float | None) -> float:
    """Return how probable it is that a job misses its deadline that waits for a machine which is not asked for yet.

    ``usual_s``: how long such machines usually take to start; ``left_s``, ``runs_s``: see :func:`broken_by_waiting`.
    """
    if left_s <= 0.0 or (runs_s is not None and runs_s >= left_s):
        return 0.0
    if runs_s is not None:
        return _lasts_longer(left_s - runs_s, usual_s)
    return min(1.0, max(usual_s, 1.0) * math.exp(_DEVIATION**2 / 2.0) / left_s)


def _lasts_longer(age_s: float, usual_s: float) -> float:
    """Return which part of boots takes longer than ``age_s``, by what is taken for granted."""
    deviations = math.log(age_s / max(usual_s, 1.0)) / _DEVIATION
    return 0.5 * math.erfc(deviations / math.sqrt(2.0))
