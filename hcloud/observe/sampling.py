"""Which samples of running units are recorded: those that say something new, and now and then one of what goes on.

A sample is a row for ever, and is judged by every plan that follows. One that lies where the last two recorded ones
point says nothing, so while a unit goes on as it did the recorded ones lie ever further apart; as soon as one departs
from that, it is recorded with the last one that did not. One stands for all looks before it at which nothing was new:
what totals were at any time, and how many looks found a promise kept, can still be read off the log, and a job is
judged by as many looks as if each were there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from copy import copy
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from hcloud.core.model import EventKind, Job, ServiceTarget, Target
from hcloud.provider import UnitSample
from hcloud.spec.policy import Policy
from hcloud.store import Transaction

DEPARTURE = 0.05
"""A total that grew, or a rate or latency that is, by more than this part of it other than expected is news."""
SLOWEST_CPUS, SLOWEST_MIB_PER_S = 0.1, 1.0
"""Slower totals are judged as if they grew so fast: what a unit does now and then is no news."""
SAMPLES_PER_WINDOW = 2
"""The looks needed to judge a unit are recorded as so many samples: they tell by how much they differ."""
GAP_MAX_S = 300.0
"""Of a large fleet each rank is recorded at least so often: a daemon that starts anew reads three times as far back
(:data:`hcloud.forecast.job_monitor.WATCHED_S`)."""
_MEASURED = ("cpu_s", "memory_mib", "read_mib", "written_mib", "progress", "requests_per_s")
_measured_of = attrgetter(*_MEASURED)
Recorded = tuple[UnitSample, int]
"""A sample, and how many looks it stands for: its own, and those before it at which nothing was new."""


@dataclass(slots=True)
class _SampleTrend:
    """What was recorded of a unit last, how fast its totals grew then (once that is known, ``paced``), since when it
    goes on so, and when it began.

    ``looks`` since then found nothing new, the latest of them being ``held``.
    """

    recorded: UnitSample
    since: float
    began_at: float
    paced: bool = False
    cpus: float = 0.0
    progress_per_s: float = 0.0
    mib_per_s: float = 0.0
    held: UnitSample | None = None
    looks: int = 0

    def record(self, sample: UnitSample) -> Recorded:
        """Record a sample, and go by it from now on."""
        self.update_pace(sample)
        looks, self.recorded, self.held, self.looks = self.looks + sample.looks, sample, None, 0
        return sample, looks

    def update_pace(self, sample: UnitSample) -> None:
        """Go by how fast totals grew up to a sample."""
        span_s, last, self.paced = sample.at - self.recorded.at, self.recorded, True
        self.cpus = _grown(last.cpu_s, sample.cpu_s) / span_s
        self.progress_per_s = _grown(last.progress, sample.progress) / span_s
        self.mib_per_s = _grown(last.written_mib, sample.written_mib) / span_s

    def record_held(self) -> tuple[Recorded, ...]:
        """Record the last look at which nothing was new, if there was one since."""
        if self.held is None:
            return ()
        self.looks -= self.held.looks  # they are among them
        return (self.record(self.held),)

    def continues(self, sample: UnitSample, promised_ms: float) -> bool:
        """Return whether a sample says what was to be expected."""
        told, span_s = self.recorded, sample.at - self.recorded.at
        return (
            _grows_on(told.cpu_s, sample.cpu_s, self.cpus * span_s, SLOWEST_CPUS * span_s)
            and _grows_on(told.progress, sample.progress, self.progress_per_s * span_s, 0.0)
            and _grows_on(told.written_mib, sample.written_mib, self.mib_per_s * span_s, SLOWEST_MIB_PER_S * span_s)
            and _stays(told.requests_per_s, sample.requests_per_s)
            and _latency_stays(told.latency_ms, sample.latency_ms, promised_ms)
        )


@dataclass(slots=True)
class Sampling:
    """Chooses among the samples of all running units. What it remembers may be lost: the next ones are recorded."""

    _trends: dict[str, _SampleTrend] = field(default_factory=dict)

    def is_due(self, unit: str, sample: UnitSample, every_s: float) -> bool:
        """Return whether it is time to look at a unit: never before, or so long after the last time."""
        course = self._trends.get(unit)
        return course is None or sample.at >= (course.recorded if course.held is None else course.held).at + every_s

    def select(
        self, unit: str, sample: UnitSample, policy: Policy, *, changed_at: float = 0.0, promised_ms: float = math.inf
    ) -> tuple[Recorded, ...]:
        """Return what is to be recorded after a look at a unit, oldest first; mostly nothing.

        ``changed_at``: when something was last done to it, after which it is to be seen closely. ``promised_ms``: its
        promised latency; that this is kept no more, or again, is always news.
        """
        course = self._trends.get(unit)
        if course is None:
            self._trends[unit] = _SampleTrend(recorded=sample, since=sample.at, began_at=sample.at)
            return ((sample, sample.looks),)
        if not course.paced:
            course.update_pace(sample)
        if not course.continues(sample, promised_ms):
            course.since = sample.at
            return (*course.record_held(), course.record(sample))
        missed = any(ms > promised_ms for ms in sample.latency_ms.values())
        if sample.at >= course.recorded.at + self._gap_s(course, changed_at, policy, missed):
            return (course.record(sample),)
        course.held, course.looks = sample, course.looks + sample.looks
        return ()

    def _gap_s(self, course: _SampleTrend, changed_at: float, policy: Policy, missed: bool) -> float:
        at, many = course.recorded.at, len(self._trends)
        age_s, steady_s = at - max(course.began_at, changed_at), at - max(course.since, changed_at)
        return gap_s(age_s, steady_s, missed, many, policy)

    def finish(self, unit: str, sample: UnitSample | None) -> tuple[Recorded, ...]:
        """Return what is still to be recorded of a unit that has ended; ``sample``: its last, if any.

        It stays the same until the unit is forgotten, as it may have to be recorded once more.
        """
        course = copy(self._trends.get(unit))
        if course is None:
            return () if sample is None else ((sample, sample.looks),)
        before = course.record_held()
        return before if sample is None or sample.at <= course.recorded.at else (*before, course.record(sample))

    def forget(self, unit: str) -> None:
        """Forget a unit with a recorded end."""
        self._trends.pop(unit, None)

    def retain(self, units: Set[str]) -> None:
        """Forget all other units: their machines vanished, and no end of theirs will ever be reported."""
        self._trends = {unit: course for unit, course in self._trends.items() if unit in units}


def gap_s(age_s: float, steady_s: float, missed: bool, many: int, policy: Policy) -> float:
    """Return how long after a recorded sample the next one is recorded, of what began or was corrected ``age_s`` before
    it and had gone on evenly for ``steady_s`` by then, a service that ``missed`` its latency or not; ``many`` run.

    None is until it has settled, as nothing is concluded before; then so often that it is seen as soon as there are
    enough looks to judge it by (see :class:`hcloud.spec.policy.Correction`), and then ever fewer, the more run.
    """
    timing, judging = policy.timing, policy.correction
    if timing.steady_share <= 0.0:
        return 0.0
    if age_s < judging.settle_s:
        return min(timing.steady_every_s, judging.settle_s - age_s)
    if steady_s < judging.settle_s + judging.readings * timing.sample_every_s:
        return 0.0 if missed else judging.readings // SAMPLES_PER_WINDOW * timing.sample_every_s
    stretched = max(1.0, many / (timing.steady_per_s * timing.steady_every_s))
    longest_s = max(timing.steady_every_s, min(GAP_MAX_S, stretched * timing.steady_every_s))
    return min(longest_s, stretched * timing.steady_share * steady_s)


def _grown(before: float | None, now: float | None) -> float:
    return now - before if before is not None and now is not None else 0.0


def _grows_on(before: float | None, now: float | None, expected: float, slowest: float) -> bool:
    """Whether a total grew as expected since; ``slowest``: by how much it is always taken to grow."""
    if before is None or now is None:
        return before is now
    return abs(now - before - expected) <= DEPARTURE * max(expected, slowest) + 1e-12


def _stays(before: float | None, now: float | None) -> bool:
    if before is None or now is None:
        return before is now
    return abs(now - before) <= DEPARTURE * before


def _latency_stays(before: Mapping[str, float], now: Mapping[str, float], promised_ms: float) -> bool:
    if before.keys() != now.keys():
        return False
    return all(
        _stays(before[name], ms) and (ms <= promised_ms) is (before[name] <= promised_ms) for name, ms in now.items()
    )


def served_as_promised(sample: UnitSample, target: Target) -> float | None:
    """Return the requests per second a unit serves, or what is left of them at the promised latency, as profiling
    counts them; None where it serves none.

    A machine that is too small may serve all that is asked, each request late: that is not what it can do.
    """
    rate = sample.requests_per_s
    if rate is None or not isinstance(target, ServiceTarget):
        return rate
    told = {float(percentile): ms for percentile, ms in sample.latency_ms.items()}
    enough = [percentile for percentile in told if percentile >= target.percentile]
    tail_ms = told[min(enough)] if enough else 0.0
    return rate * min(1.0, target.latency_ms / tail_ms) if tail_ms > 0 else rate


# ------------------------------------------------------------------------------------------------------------ recording
@dataclass(frozen=True, slots=True)
class SampleChange:
    """A sample that is to be recorded."""

    job: Job
    instance_id: str
    at: float
    fields: dict[str, Any]

    def __call__(self, txn: Transaction) -> None:
        """Record it."""
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
