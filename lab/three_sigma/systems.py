"""The schedulers that 3Sigma's experiments compare (table 1, §6.2), each a choice of run times and of utilities."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from hcloud.core.pricing import HOUR_S
from hcloud.forecast.runtimes.distribution import Predictor, RunTimes
from hcloud.forecast.runtimes.mixture import MixturePredictor
from hcloud.forecast.runtimes.printed import PrintedPredictor
from hcloud.planner.plan_ahead.expected import Utility, overestimated, point
from hcloud.simulator.deadline_mix import JobTrace, TracedJob

IN_TIME_WORTH = 1.0
BEST_EFFORT_WORTH = 0.1
BEST_EFFORT_DECAY_S = 6 * HOUR_S
OVERESTIMATED_BELOW = 0.05
PADDED_BY = 1.0
"""Standard deviations by which the mean is padded."""
SHIFT_SPREAD = 0.1
_NORMAL = np.linspace(-4.0, 4.0, 65)
_CUMULATIVE = np.array([0.5 * (1.0 + math.erf(z / math.sqrt(2.0))) for z in _NORMAL])
RunTimesOf = Callable[[JobTrace], Mapping[int, RunTimes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterScheduler:
    """One scheduler."""

    name: str
    run_times: RunTimesOf | None
    """Returns by number what is expected of each job of a trace; None: strict priorities, no run times."""
    overestimates: str = "no"
    """Whether the value of deadlines falls slowly: ``no``, ``adaptive`` for overestimated jobs, ``always``."""

    def utility(self, job: TracedJob, run_time: RunTimes, now_s: float) -> Utility:
        """Return what the end of a job is worth at ``now_s``."""
        if job.deadline_s is None:
            waited = (now_s - job.submitted_s) / BEST_EFFORT_DECAY_S
            return Utility(value=BEST_EFFORT_WORTH * (1.0 + waited), until_s=0.0, decay_s=BEST_EFFORT_DECAY_S)
        allowed_s, decay_s = job.deadline_s - job.submitted_s, 0.0
        slowly = self.overestimates == "always"
        if slowly or (self.overestimates == "adaptive" and overestimated(run_time, allowed_s, OVERESTIMATED_BELOW)):
            decay_s = allowed_s
        return Utility(value=IN_TIME_WORTH, until_s=job.deadline_s - now_s, decay_s=decay_s)


def _perfect(trace: JobTrace) -> Mapping[int, RunTimes]:
    return {job.number: point(job.run_s) for job in trace.jobs}


def _predicted(make: Callable[[], Predictor], trace: JobTrace, *, as_point: bool = False) -> Mapping[int, RunTimes]:
    """Return what a predictor says that learnt from the runs before the experiment."""
    predictor = make()
    for features, run_s in trace.past:
        predictor.observe(features, run_s, predicted=predictor.predict(features))
    found = {job.number: predictor.predict(job.features) for job in trace.jobs}
    return {number: point(each.likely_s) for number, each in found.items()} if as_point else found


def padded_s(run_time: RunTimes) -> float:
    """Return the mean run time and a standard deviation more, in seconds (the stochastic scheduler of §2.2)."""
    low, high = run_time.times_s[:-1], run_time.times_s[1:]
    ratio = np.log(high / low)
    # Between two points the logarithm of the time is uniform.
    squares = np.where(ratio > 0.0, (high**2 - low**2) / np.where(ratio > 0.0, 2.0 * ratio, 1.0), high**2)
    mean_s = run_time.expected_s
    variance = float(np.diff(run_time.cumulative) @ squares) - mean_s**2
    return mean_s + PADDED_BY * math.sqrt(max(0.0, variance))


def _padded(trace: JobTrace) -> Mapping[int, RunTimes]:
    return {number: point(padded_s(each)) for number, each in _predicted(PrintedPredictor, trace).items()}


def shifted(trace: JobTrace, seed: int, shift: float, spread: float) -> Mapping[int, RunTimes]:
    """Return normal run times beside the true ones (§6.3), ``shift`` of these off in the mean; ``spread``: standard
    deviation as a share of the true run time, 0: one estimate."""
    rng, found = np.random.default_rng([seed, 9]), dict[int, RunTimes]()
    for job in trace.jobs:
        middle_s = job.run_s * max(0.05, 1.0 + rng.normal(shift, SHIFT_SPREAD))
        times_s = middle_s + job.run_s * spread * _NORMAL
        kept = times_s > 0.01 * job.run_s
        cumulative = np.concatenate(((0.0,), _CUMULATIVE[kept][1:-1], (1.0,)))
        found[job.number] = RunTimes(times_s[kept], cumulative) if spread else point(middle_s)
    return found


_OURS, _PRINTED = partial(_predicted, MixturePredictor), partial(_predicted, PrintedPredictor)
SYSTEMS = {
    each.name: each
    for each in (
        ClusterScheduler(name="HCloud", run_times=_OURS, overestimates="adaptive"),
        ClusterScheduler(name="3Sigma", run_times=_PRINTED, overestimates="adaptive"),
        ClusterScheduler(name="PointPerfEst", run_times=_perfect),
        ClusterScheduler(name="PointRealEst", run_times=partial(_PRINTED, as_point=True)),
        ClusterScheduler(name="PointPaddedEst", run_times=_padded),
        ClusterScheduler(name="Prio", run_times=None),
        ClusterScheduler(name="NoDist", run_times=partial(_OURS, as_point=True), overestimates="adaptive"),
        ClusterScheduler(name="NoOE", run_times=_OURS),
        ClusterScheduler(name="NoAdapt", run_times=_OURS, overestimates="always"),
    )
}
