"""How long the jobs of one plan run, as distributions: learnt from runs that ended, or expected of what was profiled.

Of both the surer one counts. Where neither is known, a job runs as long as its program's jobs usually did.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median

import numpy as np

from hcloud.classifier.applications import identify
from hcloud.core.estimates import WHOLE_JOBS, Application, Classification
from hcloud.core.model import Job, JobId, JobSpec
from hcloud.forecast.runtimes.distribution import RunTimes
from hcloud.forecast.runtimes.prediction import RunTimePrediction
from hcloud.planner.run_times import BY_PROFILE, BY_USUAL, RunTimeForecasts, RunTimeLimits
from hcloud.planner.snapshot import Snapshot

LEAST_DOUBT = 0.05
"""Least standard deviation of the logarithm of a run time."""
DOUBT_OF_USUAL = 0.8
"""The same where only a mean of earlier runs is known: of 56,117 runs in two job logs (KTH SP2, CEA Curie) 91 % took at
most three times the mean of the same user's earlier runs on as many processors."""
RUN_S = 600.0
"""Run time that is assumed where none was seen."""
EQUALLY_LIKELY = tuple((n + 0.5) / 10 for n in range(10))
"""Quantiles that stand for a distribution where a probability is averaged over it."""
MOST_LOST = 0.9
_LIMITS_OF_80 = 1.2816
_NORMAL = np.linspace(-4.0, 4.0, 65)
_CUMULATIVE = np.array([0.0, *[0.5 * (1.0 + math.erf(z / math.sqrt(2.0))) for z in _NORMAL[1:-1]], 1.0])


@dataclass(slots=True, eq=False)
class _KnownRunTime:
    """The run time of a job, with what it follows from and what was asked of it; kept from plan to plan."""

    spec: JobSpec
    submitted_at: float
    tasks: int
    run_times: RunTimeForecasts
    classification: Classification | None
    rows: Sequence[Application] | None
    """Earlier runs of its program; None: they do not count, as it is predicted."""
    tolerance: float
    confidence: float
    found: RunTimes | None
    limits: RunTimeLimits | None = None
    """None: not asked yet, or nothing is known."""
    equally_likely_s: Sequence[float] | None = None
    """From its start; None: not asked yet."""


@dataclass(eq=False)
class JobRunTimes:
    """Run times by job, asked at most once each."""

    snapshot: Snapshot
    neighbour_tolerance: float = 0.0
    """Share of its performance that neighbours may cost a job."""
    confidence: float = 0.9
    """With which probability a run ends within :attr:`RunTimeLimits.long_s`."""
    _by_job: dict[JobId, _KnownRunTime | None] = field(default_factory=dict)
    """None: of services."""
    _rests: dict[tuple[JobId, float], float | None] = field(default_factory=dict)

    def of(self, job: Job) -> RunTimes | None:
        """Return how long ``job`` runs from start to end; None: nothing is known, or it is a service."""
        known = self._known(job)
        return None if known is None else known.found

    def anew(self, job: Job) -> RunTimes | None:
        """Return :meth:`of` without the caches, for threads beside the planner."""
        snapshot = self.snapshot
        if job.spec.target.kind == "service":
            return None
        found = self._predict(job, snapshot.applications.get(job.application))
        return found or _usual(job, self._rows(job))

    def prediction(self, job: Job) -> RunTimePrediction | None:
        """Return what is predicted of ``job`` now, to be recorded before it runs; None: nothing is known."""
        if job.spec.profile is not None or (found := self.of(job)) is None:
            return None
        return RunTimePrediction.of(found)

    def median_s(self, job: Job) -> float | None:
        """Return the run time that ``job`` exceeds as likely as not, in seconds; None: unknown, or a service."""
        found = self.of(job)
        return None if found is None else found.quantile(0.5)

    def limits(self, job: Job) -> RunTimeLimits | None:
        """Return median and upper limit of the run time of ``job``; None: unknown, or a service."""
        known = self._known(job)
        if known is None or (found := known.found) is None:
            return None
        if known.limits is None:
            known.limits = RunTimeLimits(found.quantile(0.5), found.quantile(self.confidence))
        return known.limits

    def equally_likely_s(self, job: Job, ran_s: float = 0.0) -> Sequence[float]:
        """Return run times of ``job`` in seconds that are as likely as each other, given that it takes longer than
        ``ran_s``; empty: unknown, or a service."""
        known = self._known(job)
        if known is None or known.found is None:
            return ()
        if ran_s > 0.0:
            later_s: Sequence[float] = known.found.after(ran_s).quantiles(EQUALLY_LIKELY).tolist()
            return later_s
        if known.equally_likely_s is None:
            known.equally_likely_s = known.found.quantiles(EQUALLY_LIKELY).tolist()
        return known.equally_likely_s

    def likely_s(self, job: Job) -> Sequence[float]:
        """Return :meth:`equally_likely_s`, or :attr:`recent_runs_s` where they are not known."""
        return self.equally_likely_s(job) or self.recent_runs_s

    @cached_property
    def recent_runs_s(self) -> Sequence[float]:
        """Run times in seconds that are as likely as each other for a job of which nothing is known: those of units
        that ended lately."""
        busy_s = self.snapshot.fleet_stats.busy_s
        return np.quantile(busy_s, EQUALLY_LIKELY).tolist() if busy_s else (RUN_S,)

    @cached_property
    def recent_median_s(self) -> float:
        """The median run time of units that ended lately, in seconds."""
        return median(self.snapshot.fleet_stats.busy_s or (RUN_S,))

    def rest_s(self, job: Job, ran_s: float) -> float | None:
        """Return the median of what is left of a job that ran for ``ran_s``, in seconds; None: unknown, or a
        service."""
        key = (job.id, ran_s)
        if key not in self._rests:
            found = self.of(job)
            self._rests[key] = None if found is None else found.quantile_after(ran_s, 0.5) - ran_s
        return self._rests[key]

    def _known(self, job: Job) -> _KnownRunTime | None:
        if job.id not in self._by_job:
            self._by_job[job.id] = None if job.spec.target.kind == "service" else self._find(job)
        return self._by_job[job.id]

    def _find(self, job: Job) -> _KnownRunTime:
        snapshot, tasks = self.snapshot, job.run.count if job.run is not None else 1
        classification = snapshot.applications.get(job.application)
        before: _KnownRunTime | None = snapshot.plan_cache.run_times.get(job.id)
        if (
            before is not None
            and before.run_times is snapshot.run_times
            and before.classification is classification
            and before.spec is job.spec
            and (before.rows is None or before.rows is self._rows(job))
            and (before.submitted_at, before.tasks) == (job.submitted_at, tasks)
            and (before.tolerance, before.confidence) == (self.neighbour_tolerance, self.confidence)
        ):
            return before
        found, rows = self._predict(job, classification), None
        if found is None:
            rows = self._rows(job)
            found = _usual(job, rows)
        if found is not None and job.run is not None:
            found = found.times(tasks)
        known = snapshot.plan_cache.run_times[job.id] = _KnownRunTime(
            spec=job.spec,
            submitted_at=job.submitted_at,
            tasks=tasks,
            run_times=snapshot.run_times,
            classification=classification,
            rows=rows,
            tolerance=self.neighbour_tolerance,
            confidence=self.confidence,
            found=found,
        )
        return known

    def _rows(self, job: Job) -> Sequence[Application]:
        programs = self.snapshot.programs
        return programs.get(identify(job.spec).program, ()) if programs else ()

    def _predict(self, job: Job, classification: Classification | None) -> RunTimes | None:
        learnt = self.snapshot.run_times.of_job(job)
        expected = expected_run_time(classification, job.spec.nodes.count, self.neighbour_tolerance)
        if learnt is None or expected is None:
            return learnt or expected
        return min(learnt, expected, key=spread)


def _usual(job: Job, rows: Sequence[Application]) -> RunTimes | None:
    """Return the run time of jobs of its program, those with the same input if there are any; None: none ended."""
    known = [row for row in rows if row.run_s is not None]
    if not known:
        return None
    given = identify(job.spec).input
    usual_s = max(row.run_s or 0.0 for row in [row for row in known if given in row.inputs] or known)
    return log_normal(usual_s, DOUBT_OF_USUAL, BY_USUAL)


def spread(run_time: RunTimes) -> float:
    """Return how unsure a run time is: the logarithm of the ratio of its 90 % and 10 % quantiles."""
    return math.log(run_time.quantile(0.9) / run_time.quantile(0.1))


def log_normal(median_s: float, doubt: float, source: str = "") -> RunTimes:
    """Return a log-normal run time; ``doubt``: the standard deviation of its logarithm."""
    return RunTimes(median_s * np.exp(doubt * _NORMAL), _CUMULATIVE, point_s=median_s, source=source)


def run_s(known: Classification | None, nodes: int = 1) -> float | None:
    """Return the expected isolated run time on the best platform (``CT``), in seconds.

    None if the measure does not cover whole jobs. ``nodes``: number of nodes; an unknown count uses the largest known
    count below it.
    """
    if known is None or known.measure not in WHOLE_JOBS:
        return None
    return known.answer(("run_s", nodes), lambda: _run_s(known, nodes))


def _run_s(known: Classification, nodes: int) -> float | None:
    if not known.by_type:
        return None
    rate = max(each.value for each in known.by_type.values())
    counts = [count for count in known.by_nodes if count <= nodes]
    if counts and 1 in known.by_nodes:
        rate *= known.by_nodes[max(counts)].value / known.by_nodes[1].value
    return 1.0 / rate if rate > 0 else None


def expected_run_time(known: Classification | None, nodes: int, neighbour_tolerance: float = 0.0) -> RunTimes | None:
    """Return the run time that a classification expects on the best type, log-normal within its limits; None: it
    expects none.

    Neighbours may cost up to ``neighbour_tolerance`` of its performance, and any part of that as likely as another.
    """
    if known is None:
        return None
    question = ("expected_run_time", nodes, neighbour_tolerance)
    return known.answer(question, lambda: _expected_run_time(known, nodes, neighbour_tolerance))


def _expected_run_time(known: Classification, nodes: int, neighbour_tolerance: float) -> RunTimes | None:
    alone_s = run_s(known, nodes)
    if alone_s is None:
        return None
    best, doubt = max(known.by_type.values(), key=lambda each: each.value), LEAST_DOUBT
    if best.low > 0.0:
        doubt = max(doubt, math.log(best.high / best.low) / (2.0 * _LIMITS_OF_80))
    slowest = 1.0 / (1.0 - min(neighbour_tolerance, MOST_LOST))
    doubt = math.hypot(doubt, math.log(slowest) / math.sqrt(12.0))
    return log_normal(alone_s * math.sqrt(slowest), doubt, BY_PROFILE)
