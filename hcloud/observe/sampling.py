"""Choose which samples of running units are recorded: those that show a change, and now and then one that does not.

A recorded sample stays in the log for ever, and every later plan reads it. A sample on the line of the last two adds
nothing, so the gaps grow while a unit continues evenly. A change is recorded together with the last sample before it.
Each recorded sample stands for the unrecorded ones before it (``looks``), so totals, kept promises and the number of
readings can still be derived from the log.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from copy import copy
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from hcloud.core.model import EventKind, Job, JobSpec, ServiceTarget, Target
from hcloud.core.service_rate import rate_in_time
from hcloud.forecast.job_monitor import WINDOW, tail_ms
from hcloud.provider import UnitSample
from hcloud.spec.policy import Policy
from hcloud.store import Transaction

DEPARTURE = 0.05
"""A total, rate or latency that differs from its expected value by more than this share counts as a change."""
SLOWEST_CPUS, SLOWEST_MIB_PER_S = 0.1, 1.0
"""Slower growth is compared as if it were this fast, so that occasional activity is no change."""
SAMPLES_PER_WINDOW = 2
"""The readings needed to judge a unit are spread over this many recorded samples, to show their spread."""
GAP_MAX_S = 300.0
"""The longest gap in a large fleet; a restarted daemon reads three times as far back
(:data:`hcloud.forecast.job_monitor.WATCHED_S`)."""
_MEASURED = ("cpu_s", "taken_s", "memory_mib", "read_mib", "written_mib", "progress", "requests_per_s")
_measured_of = attrgetter(*_MEASURED)
OFTEN_S, EARLY = 5.0, 0.75
"""A service whose metrics are read more often than this is judged by each reading, and a sample may come early by the
rest of this share."""
Recorded = tuple[UnitSample, int]
"""A sample, and how many readings it stands for: its own and the unchanged ones before it."""


@dataclass(slots=True)
class _SampleTrend:
    """What was last recorded of a unit, and how its totals have grown since."""

    recorded: UnitSample
    since: float
    """Since when it has continued evenly (Unix seconds)."""
    began_at: float
    paced: bool = False
    """Whether the growth of totals is known; it takes two samples."""
    cpus: float = 0.0
    progress_per_s: float = 0.0
    mib_per_s: float = 0.0
    held: UnitSample | None = None
    """The latest sample since ``recorded`` that showed no change."""
    looks: int = 0
    """How many readings since ``recorded`` showed no change."""

    def record(self, sample: UnitSample) -> Recorded:
        """Record a sample: later ones are compared with it."""
        self.update_pace(sample)
        looks, self.recorded, self.held, self.looks = self.looks + sample.looks, sample, None, 0
        return sample, looks

    def update_pace(self, sample: UnitSample) -> None:
        """Set the growth of totals from the last recorded sample to this one."""
        span_s, last, self.paced = sample.at - self.recorded.at, self.recorded, True
        self.cpus = _grown(last.cpu_s, sample.cpu_s) / span_s
        self.progress_per_s = _grown(last.progress, sample.progress) / span_s
        self.mib_per_s = _grown(last.written_mib, sample.written_mib) / span_s

    def record_held(self) -> tuple[Recorded, ...]:
        """Record the last sample that showed no change, if there is one."""
        if self.held is None:
            return ()
        self.looks -= self.held.looks  # record() adds them again
        return (self.record(self.held),)

    def continues(self, sample: UnitSample, promised_ms: float) -> bool:
        """Return whether a sample is as expected."""
        last, span_s = self.recorded, sample.at - self.recorded.at
        return (
            _grows_on(last.cpu_s, sample.cpu_s, self.cpus * span_s, SLOWEST_CPUS * span_s)
            and _grows_on(last.progress, sample.progress, self.progress_per_s * span_s, 0.0)
            and _grows_on(last.written_mib, sample.written_mib, self.mib_per_s * span_s, SLOWEST_MIB_PER_S * span_s)
            and _stays(last.requests_per_s, sample.requests_per_s)
            and _latency_stays(last.latency_ms, sample.latency_ms, promised_ms)
        )


@dataclass(slots=True)
class Sampling:
    """Chooses among the samples of all running units. Its memory may be lost: the next samples are then recorded."""

    _trends: dict[str, _SampleTrend] = field(default_factory=dict)

    def is_due(self, unit: str, sample: UnitSample, every_s: float) -> bool:
        """Return whether a sample is the first of its unit, or ``every_s`` later than the last one processed."""
        trend = self._trends.get(unit)
        return trend is None or sample.at >= (trend.recorded if trend.held is None else trend.held).at + every_s

    def select(
        self, unit: str, sample: UnitSample, policy: Policy, *, changed_at: float = 0.0, promised_ms: float = math.inf
    ) -> tuple[Recorded, ...]:
        """Return what to record after a new sample of a unit, oldest first; mostly nothing.

        ``changed_at``: when the unit was last corrected; samples are dense after that. ``promised_ms``: its promised
        latency; breaking it, or keeping it again, always counts as a change.
        """
        trend = self._trends.get(unit)
        if trend is None:
            self._trends[unit] = _SampleTrend(recorded=sample, since=sample.at, began_at=sample.at)
            return ((sample, sample.looks),)
        if not trend.paced:
            trend.update_pace(sample)
        if not trend.continues(sample, promised_ms):
            trend.since = sample.at
            return (*trend.record_held(), trend.record(sample))
        missed = max(sample.latency_ms.values(), default=0.0) > promised_ms
        if sample.at >= trend.recorded.at + self._gap_s(trend, changed_at, policy, missed):
            return (trend.record(sample),)
        trend.held, trend.looks = sample, trend.looks + sample.looks
        return ()

    def _gap_s(self, trend: _SampleTrend, changed_at: float, policy: Policy, missed: bool) -> float:
        at, many = trend.recorded.at, len(self._trends)
        age_s, steady_s = at - max(trend.began_at, changed_at), at - max(trend.since, changed_at)
        return gap_s(age_s, steady_s, missed, many, policy)

    def finish(self, unit: str, sample: UnitSample | None) -> tuple[Recorded, ...]:
        """Return what is still to be recorded of a unit that has ended, with its last ``sample`` if it has one.

        The answer is the same until :meth:`forget`: recording it may have to be repeated.
        """
        trend = copy(self._trends.get(unit))
        if trend is None:
            return () if sample is None else ((sample, sample.looks),)
        before = trend.record_held()
        return before if sample is None or sample.at <= trend.recorded.at else (*before, trend.record(sample))

    def forget(self, unit: str) -> None:
        """Forget a unit after its end is recorded."""
        self._trends.pop(unit, None)

    def retain(self, units: Set[str]) -> None:
        """Forget all other units: their instances are gone, so no end of them will be reported."""
        self._trends = {unit: trend for unit, trend in self._trends.items() if unit in units}


def gap_s(age_s: float, steady_s: float, missed: bool, many: int, policy: Policy) -> float:
    """Return how long after a recorded sample the next unchanged one is recorded, in seconds.

    ``age_s``: since the unit began or was corrected. ``steady_s``: how long it has continued evenly. ``missed``: it is
    a service over its latency. ``many``: the number of running units.
    """
    # Dense until it has settled, as nothing is concluded before; then as dense as judging it needs (see
    # hcloud.spec.policy.Correction); then ever sparser, the more so the more units run.
    timing, judging = policy.timing, policy.correction
    if timing.steady_share <= 0.0:
        return 0.0
    if age_s < judging.settle_s:
        return min(timing.steady_every_s, judging.settle_s - age_s)
    if steady_s < WINDOW * judging.readings * timing.sample_every_s:
        return 0.0 if missed else judging.readings // SAMPLES_PER_WINDOW * timing.sample_every_s
    stretched = max(1.0, many / (timing.steady_per_s * timing.steady_every_s))
    longest_s = max(timing.steady_every_s, min(GAP_MAX_S, stretched * timing.steady_every_s))
    return min(longest_s, stretched * timing.steady_share * steady_s)


def sampled_every_s(spec: JobSpec, policy: Policy) -> float:
    """Return the least time between two samples of a job that are processed, in seconds: the policy's, or less for a
    service whose ``metrics.every`` asks for that."""
    asked = spec.metrics.every_s if spec.metrics is not None else OFTEN_S
    return policy.timing.sample_every_s if asked >= OFTEN_S else min(policy.timing.sample_every_s, EARLY * asked)


def _grown(before: float | None, now: float | None) -> float:
    return now - before if before is not None and now is not None else 0.0


def _grows_on(before: float | None, now: float | None, expected: float, slowest: float) -> bool:
    """Return whether a total grew as expected; it is always expected to grow by ``slowest`` at least."""
    if before is None or now is None:
        return before is now
    return abs(now - before - expected) <= DEPARTURE * (expected if expected > slowest else slowest) + 1e-12


def _stays(before: float | None, now: float | None) -> bool:
    if before is None or now is None:
        return before is now
    return abs(now - before) <= DEPARTURE * before


def _latency_stays(before: Mapping[str, float], now: Mapping[str, float], promised_ms: float) -> bool:
    if before.keys() != now.keys():
        return False
    for name, ms in now.items():
        if not _stays(before[name], ms) or (ms <= promised_ms) is not (before[name] <= promised_ms):
            return False
    return True


def served_as_promised(sample: UnitSample, target: Target) -> float | None:
    """Return the requests per second that a unit serves within its promised latency; None if it serves none."""
    rate = sample.requests_per_s
    if rate is None or not isinstance(target, ServiceTarget):
        return rate
    latency_ms = {float(percentile): ms for percentile, ms in sample.latency_ms.items()}
    return rate_in_time(rate, tail_ms(latency_ms, target.percentile), target.latency_ms)


# ------------------------------------------------------------------------------------------------------------ recording
@dataclass(frozen=True, slots=True)
class SampleChange:
    """The change that records a sample."""

    job: Job
    instance_id: str
    at: float
    fields: dict[str, Any]

    def __call__(self, txn: Transaction) -> None:
        """Write the SAMPLE event."""
        job = self.job
        txn.emit(
            EventKind.SAMPLE,
            job_id=job.id,
            instance_id=self.instance_id,
            user=job.spec.user,
            at=self.at,
            **self.fields,
        )


def record_sample(job: Job, rank: int, instance_id: str, recorded: Recorded) -> SampleChange:
    """Return the change that records a sample of a job's rank."""
    assert job.attempt is not None
    sample, looks = recorded
    fields: dict[str, Any] = {"attempt": job.attempt.id, "rank": rank}
    for name, value in zip(_MEASURED, _measured_of(sample), strict=True):
        if value is not None:
            fields[name] = value
    for percentile, ms in sample.latency_ms.items():
        fields[f"latency_ms_p{percentile}"] = ms
    if looks > 1:
        fields["looks"] = looks
    return SampleChange(job, instance_id, sample.at, fields)
