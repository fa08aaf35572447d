"""Detect machines that boot unusually slowly, and estimate the deadline risk of waiting for a boot.

Boot times have a heavy tail (HCloud §8: mostly 12 to 19 s, two minutes at the 95th percentile), so a late machine is
likely to stay late: without a known scale, what has lasted for ``a`` lasts another ``t`` or more with probability ``a /
(a + t)`` (:mod:`hcloud.forecast.wait_times`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

LATE = 0.05
"""A machine is late once it has been starting for longer than all but this share of comparable boots."""
LEAST_S = 30.0
"""No machine is late before this age."""
PRIOR = 20.0
"""Weight of the assumed distribution of boot times, in observed boots."""
P95_OF_USUAL = 4.0
"""Assumed 95th percentile of boot times, as a multiple of the usual one (lognormal distribution)."""
_DEVIATION = math.log(P95_OF_USUAL) / 1.6449
_ROOT_2 = math.sqrt(2.0)


def is_late(age_s: float, usual_s: float, seen_s: Sequence[float], others_s: Sequence[float]) -> bool:
    """Return whether a machine starting for ``age_s`` is later than nearly all comparable ones.

    ``usual_s``: usual boot time of its type; ``seen_s``: recent boot times of others; ``others_s``: ages of others now
    starting. If all are slow at once none is late, since a replacement would not be ready sooner.
    """
    if age_s < LEAST_S:
        return False
    longer = sum([each >= age_s for each in (*seen_s, *others_s)])
    return PRIOR * _lasts_longer(age_s, usual_s) + longer <= LATE * (PRIOR + len(seen_s) + len(others_s))


def broken_by_waiting(age_s: float, left_s: float, runs_s: Sequence[float]) -> float:
    """Return the probability that a job misses its deadline by waiting for a late machine.

    ``age_s``: how long the machine has been starting; ``left_s``: time to the deadline; ``runs_s``: run times of the
    job that are as likely as each other (empty: unknown, uniform up to ``left_s``). A run that would miss it anyway
    counts as 0.
    """
    if left_s <= 0.0:
        return 0.0
    if runs_s:
        return sum([age_s / (age_s + left_s - run_s) for run_s in runs_s if run_s < left_s]) / len(runs_s)
    return age_s / left_s * math.log1p(left_s / age_s)


def broken_by_a_boot(usual_s: float, left_s: float, runs_s: Sequence[float]) -> float:
    """Return the probability that a job misses its deadline by waiting for a machine not yet requested.

    ``usual_s``: usual boot time of such machines; ``left_s``, ``runs_s``: see :func:`broken_by_waiting`.
    """
    if left_s <= 0.0:
        return 0.0
    if runs_s:
        usual_s, log, erfc = max(usual_s, 1.0), math.log, math.erfc  # _lasts_longer, without a call for each
        later = [log((left_s - run_s) / usual_s) / _DEVIATION for run_s in runs_s if run_s < left_s]
        return sum([0.5 * erfc(deviations / _ROOT_2) for deviations in later]) / len(runs_s)
    return min(1.0, max(usual_s, 1.0) * math.exp(_DEVIATION**2 / 2.0) / left_s)


def _lasts_longer(age_s: float, usual_s: float) -> float:
    """Return the assumed share of boots that take longer than ``age_s``."""
    deviations = math.log(age_s / max(usual_s, 1.0)) / _DEVIATION
    return 0.5 * math.erfc(deviations / _ROOT_2)
