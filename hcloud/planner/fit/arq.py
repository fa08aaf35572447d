"""Admission queues by resource quality (ARQ; Dissertation ch. 6): classes, slack, and when to take a worse server.

A job's class says how demanding it is; a server's pool says how much its residents still tolerate. A job is served from
the lowest pool that suits it: its own, or one above (which costs nothing once more demanding jobs were served). If no
pool suits it, the job waits. It goes *down*, to a server that does not suit it, when that is worth more than waiting:
ARQ maximises ``(S - wt) Q Pr`` over both (eq. 6.2), with slack ``S``, wait ``wt``, quality ``Q`` and probability
``Pr``. The printed ``S = (1 + tau) CT - P`` is the time within which the job must be *done*; the part that may be spent
queueing is ``tau CT - P``. After that the job takes any server.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hcloud.core.model import BatchTarget, Job
from hcloud.forecast.runtimes.distribution import RunTimes
from hcloud.forecast.wait_times import BusyTimes, Floats
from hcloud.planner.run_times import RunTimeLimits
from hcloud.spec.policy import AdmissionPolicy

_GRID = 65
LEAST_SLACK_S = 1e-3
"""Waiting for less is worth nothing."""


def slack_s(job: Job, queued_at: float, run_time: RunTimeLimits | None, admission: AdmissionPolicy) -> float:
    """Return for how long ``job`` may wait for a suitable server, counted from ``queued_at``.

    ``tau CT - P`` if the run time is known, ``CT`` being its median and ``P`` the time spent on profiling; otherwise
    the policy's patience. Limited by the latest start that meets the deadline with the policy's confidence, and by the
    policy's cap; never negative.
    """
    slack = admission.patience_s
    if run_time is not None:
        overhead_s = queued_at - job.eligible_at if job.profile_runs else 0.0
        slack = admission.tolerance * run_time.median_s - overhead_s
    if isinstance(job.spec.target, BatchTarget) and (deadline_at := job.deadline_at) is not None:
        slack = min(slack, deadline_at - queued_at - (0.0 if run_time is None else run_time.long_s))
    return max(0.0, min(slack, admission.patience_cap_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchPoint:
    """When to take a worse server."""

    within_s: float
    """Switch once at most this much of the slack is left."""
    chance: float
    """``Pr`` within that time."""


def switch_point(
    busy: BusyTimes,
    ages_s: Sequence[float] | Floats,
    *,
    own: float,
    below: float,
    slack: float,
    fresh_s: float = math.inf,
) -> SwitchPoint:
    """Return when a job with ``slack`` seconds should take a server of quality ``below`` rather than wait for ``own``.

    ``ages_s``: how long the servers that would suit the job have been busy; ``fresh_s``: time until a new one would be
    ready if launched now. With ``R`` of the slack left the job goes down if ``R Q_below >= max_t (R - t) Q_own Pr(t)``.
    The right side falls faster than the left, so there is one such ``R``; at 0 it always goes down. Qualities are 0..1.
    """
    return waiting_value(busy, ages_s, own=own, slack=slack, fresh_s=fresh_s).switch(below)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WaitingValue:
    """The value of waiting, as arrays of shape ``(T,)``."""

    left_s: Floats
    """Slack left."""
    chance: Floats
    """Probability that a server becomes free within that time."""
    worth: Floats
    """Value of the best moment to stop waiting."""

    def switch(self, below: float) -> SwitchPoint:
        """Return when to take a server of quality ``below`` instead."""
        downward = (self.left_s * below >= self.worth - 1e-12).nonzero()[0]
        at = int(downward[-1]) if downward.size else 0
        return SwitchPoint(within_s=float(self.left_s[at]), chance=float(self.chance[at]))


def waiting_value(
    busy: BusyTimes,
    ages_s: Sequence[float] | Floats,
    *,
    own: float,
    slack: float,
    fresh_s: float = math.inf,
    known: Sequence[tuple[RunTimes, float]] = (),
) -> WaitingValue:
    """Return the value of waiting for a server of quality ``own``; see :func:`switch_point`.

    ``known``: of the servers that are not among ``ages_s``, the run time of what they are busy with, and for how long
    it has run.
    """
    if slack < LEAST_SLACK_S or not (len(ages_s) or known or fresh_s < slack):
        nothing = np.zeros(1)
        return WaitingValue(left_s=np.array([max(0.0, slack)]), chance=nothing, worth=nothing)
    left, remains = _grid(slack)
    none_free = 1.0 - busy.some_free(ages_s, left)
    for run_time, age_s in known:
        none_free *= run_time.still_running(age_s, left)
    chance = np.where(left >= fresh_s, 1.0, 1.0 - none_free)
    worth = np.maximum.reduce(remains * own * chance[None, :], axis=1)
    return WaitingValue(left_s=left, chance=chance, worth=worth)


@lru_cache(maxsize=8)
def _grid(slack: float) -> tuple[Floats, Floats]:
    """Return times up to ``slack``, shape ``(T,)``, and the remainder of each after each, shape ``(T, T)``."""
    left = np.concatenate(([0.0], np.geomspace(slack / 1000, slack, _GRID)))
    remains: Floats = np.maximum(left[:, None] - left[None, :], 0.0)
    left.setflags(write=False)
    remains.setflags(write=False)
    return left, remains
