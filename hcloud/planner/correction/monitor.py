"""How a running job performs against its target and its estimate, and when to check it again (Paragon §3.4, Quasar
§4.4).

A service is judged by its latency and, where that is at its bound, by the requests it serves; a batch job with
deadline and progress metric by the rate that would still meet the deadline; any other job by the performance expected
where it runs. All values carry the uncertainty of their readings, so that noise alone is never taken for a miss.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import NormalDist
from typing import Any, NamedTuple

from hcloud.core.estimates import Classification, Measure, per_rank
from hcloud.core.model import Allocation, Instance, Job, JobId, JobState, ServiceTarget
from hcloud.core.rows import row_changes
from hcloud.core.service_rate import rate_in_time
from hcloud.forecast.job_monitor import (
    WINDOW,
    JobSamples,
    Pace,
    Sampled,
    Timed,
    latency_kept,
    pace_of_rate,
    sampled_since,
    tail_ms,
)
from hcloud.forecast.trend import Trend, course_of_rate, course_of_total
from hcloud.planner.admission import QueueKey, queue_key
from hcloud.planner.context import PlanContext
from hcloud.planner.fit.expected_performance import ExpectedPerformance, expected
from hcloud.planner.occupancy import Occupancy
from hcloud.planner.profiling_in_place import LASTS_S
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import Policy

_COUNTERS = {Measure.PROGRESS: "progress", Measure.OUTPUT: "written_mib", Measure.CPU: "cpu_s"}
LEARNING = ("reprofile", "reclassify", "inspected", "slowed", "sampled")
"""Corrections that change estimates only."""
_IN_PLACE = ("inspected", "slowed", "sampled")
"""Corrections with which a run in place may have begun: while that lasts, the job does less."""
MOST_OLD_TIMERS = 1000
"""Number of outdated timers tolerated in addition to one per postponed job."""
AT_BOUND, STILL_AT_BOUND = 0.95, 0.9
"""From this part of its bound on, a latency is at it: a service that served more requests would break it. The second
holds while the service misses its target, so that it does not change back and forth."""
OF_SERVICE = ("latency", "rate")
MOST_TAKEN = 0.9
"""The largest share that counts as taken: of a job that got nothing at all, no upper limit would follow."""
LATE_READINGS = 2
"""So many readings in a row over a bound are enough for a step that costs nearly nothing."""
_UNKNOWN: Any = object()
"""Marks a value that was not computed yet; None is a valid result."""


class Assessment(NamedTuple):
    """Performance of a running job against its target, since its start or its last correction."""

    by: str
    """Kind of target: ``deadline``, ``latency``, ``rate`` (part of a service's requests per second) or
    ``expectation``."""
    pace: Pace
    """What was measured, in the unit of ``wanted``."""
    wanted: float
    """What is needed."""
    done: float = 0.0
    """Progress (0..1)."""
    remaining_s: float | None = None
    """Remaining run time in seconds at this pace; None: unknown."""
    taken: float = 0.0
    """Share (0..1) of its CPU time that the host took, where no other machine would be better."""

    def missed(self, deviations: float, margin: float) -> bool:
        """Return whether the job surely performs below what is wanted, by the margin."""
        if self.by in OF_SERVICE:
            deviations = few_readings(deviations, self.pace.counted)
        return self.pace.at_most(deviations) / (1.0 - self.taken) <= self.enough(margin) * self.wanted

    def enough(self, margin: float) -> float:
        """Return the part of ``wanted`` below which the target counts as missed.

        A latency is kept or not: no margin. On the way to a deadline only the remaining work can still change the
        outcome, so the margin shrinks with it, and a small miss is noticed while there is time to correct it.
        """
        match self.by:
            case "latency":
                return 1.0
            case "deadline":
                return 1.0 - margin * (1.0 - self.done)
            case _:
                return 1.0 - margin


class Deviation(NamedTuple):
    """Measured performance of a job, and what is expected of it alone where it runs."""

    measured: Pace
    estimate: ExpectedPerformance
    taken: float
    """Share (0..1) of its CPU time that the host took meanwhile: without that it might do so much more."""

    def surely(self, deviations: float, part: float) -> bool:
        """Return whether the measurement surely lies outside the expected range by ``part`` of it, whatever the host
        took."""
        low, high = self.estimate.limits()
        too_low = self.measured.at_most(deviations) / (1.0 - self.taken) < (1.0 - part) * low
        return too_low or self.measured.at_least(deviations) > (1.0 + part) * high


class Slowdown(NamedTuple):
    """The pace of a job before and after it fell."""

    before: Pace
    now: Pace


@lru_cache(maxsize=64)
def deviations_of(confidence: float) -> float:
    """Return the number of standard errors for a one-sided confidence."""
    return NormalDist().inv_cdf(confidence)


@lru_cache(maxsize=256)
def few_readings(deviations: float, counted: int) -> float:
    """Return the number of standard errors for the same confidence if the error is an estimate from ``counted``
    readings: Student's t."""
    from scipy.special import stdtrit  # slow to import

    return float(stdtrit(max(1, counted - 1), NormalDist().cdf(deviations)))


def first_rank(job: Job) -> Allocation | None:
    """Return the running rank with the lowest number, which represents the job; None if none runs."""
    held = job.attempt.allocations if job.attempt is not None else ()
    return min((a for a in held if not a.released and a.started_at is not None), key=lambda a: a.rank, default=None)


def settled_at(job: Job, settle_s: float) -> float:
    """Return from when readings count: the start, resumption or last correction of the job, plus the time to settle."""
    attempt = job.attempt
    assert attempt is not None
    begins = [(a.started_at, a.resumed_at) for a in attempt.allocations if not a.released]
    started = [at for pair in begins if pair[0] is not None for at in pair if at is not None]
    own = [each for each in job.corrections if each.attempt == attempt.id]
    steps = [each.at for each in own if each.step not in LEARNING]
    return max([*(at + settle_s for at in (*started, *steps)), *measured_until(job)])


def measured_until(job: Job) -> list[float]:
    """Return until when runs in place may have slowed a job down."""
    return [each.at + LASTS_S for each in job.corrections if each.step in _IN_PLACE]


@dataclass(slots=True, eq=False)
class RankExpectation:
    """What does not change between two samples of a running job."""

    job: Job
    held: Allocation
    """The rank that represents the job."""
    since: float
    """When its samples begin to count."""
    known: Classification | None
    """Estimates of its application; None: none."""
    steps_taken: int
    """Corrections of this attempt, other than learning ones."""
    deadline_at: float | None
    policy: Policy
    sampling: tuple[int, bool] = (-1, False)
    """The sampling period last computed, and whether the job is sampled in it."""
    _expected: tuple[Instance, ExpectedPerformance | None] | None = None

    def estimate(self, instance: Instance) -> ExpectedPerformance | None:
        """Return the performance expected on ``instance``, where the job runs; None: unknown."""
        if self._expected is None or self._expected[0] is not instance:
            known = self.known
            estimate = None if known is None else expected_where(known, self.job, self.held, column_of(instance))
            self._expected = (instance, estimate)
        return self._expected[1]


@dataclass(slots=True, eq=False)
class RankSamples:
    """The samples of the rank that represents a job, judged against target and estimates."""

    context: PlanContext
    watched: JobSamples
    expectation: RankExpectation
    instance: Instance
    job: Job = field(init=False)
    """The job that is judged."""
    held: Allocation = field(init=False)
    """The rank that represents the job."""
    since: float = field(init=False)
    """When its samples begin to count."""
    _assessment: Assessment | None = field(default=_UNKNOWN, repr=False)
    _deviation: Deviation | None = field(default=_UNKNOWN, repr=False)
    _slowdown: Slowdown | None = field(default=_UNKNOWN, repr=False)

    def __post_init__(self) -> None:
        self.job, self.held, self.since = self.expectation.job, self.expectation.held, self.expectation.since

    @property
    def samples(self) -> tuple[Sampled, ...]:
        """The samples of that rank."""
        return self.watched.ranks[self.held.rank]

    def kept_latency(self, target: ServiceTarget) -> Pace | None:
        """Return promised over measured latency (1: just met); None: unknown, or too few readings."""
        in_time = self.watched.latency_kept(self.held.rank, target.percentile, target.latency_ms)
        # Each is of many requests already; noisy ones are judged by as many as those of other jobs.
        readings = self.context.policy.correction.readings
        return pace_of_rate(in_time, self.since, max(3, readings // 2), window=WINDOW * readings)

    def late_lately(self, margin: float) -> Assessment | None:
        """Return the last ``LATE_READINGS`` readings of a service if each is over its bound by the margin; else
        None."""
        target = self.job.spec.target
        if not isinstance(target, ServiceTarget):
            return None
        kept = self.watched.latency_kept(self.held.rank, target.percentile, target.latency_ms)
        late, looks = list[float](), 0
        for each in reversed(kept):
            if each.at <= self.since or each.value * (1.0 + margin) > 1.0:
                break
            late.append(each.value)
            looks += each.looks
            if looks >= LATE_READINGS:
                pace = Pace(math.fsum(late) / len(late), 0.0, looks, [(value, 1) for value in late], LATE_READINGS)
                return Assessment(by="latency", pace=pace, wanted=1.0)
        return None

    def served(self) -> Pace | None:
        """Return the requests per second that all ranks of a service serve; None: unknown, or too few readings."""
        attempt, readings = self.job.attempt, self.context.policy.correction.readings
        paces = list[Pace]()
        for held in attempt.allocations if attempt is not None else ():
            if held.released or held.started_at is None:
                continue
            rates = [
                Timed(each.at, each.values["requests_per_s"], each.looks)
                for each in self.watched.ranks.get(held.rank, ())
                if "requests_per_s" in each.values
            ]
            pace = pace_of_rate(rates, self.since, max(3, readings // 2), window=WINDOW * readings)
            if pace is None:
                return None
            paces.append(pace)
        if not paces:
            return None
        mean, error = math.fsum(each.mean for each in paces), math.hypot(*(each.error for each in paces))
        part = mean / paces[0].mean if paces[0].mean > 0 else 1.0  # of all ranks, in the first one's history
        history = [(value * part, looks) for value, looks in paces[0].history]
        return Pace(mean, error, min(each.counted for each in paces), history, paces[0].readings)

    def pace(self, counter: str) -> Pace | None:
        """Return the pace of a counter; None: too few readings."""
        return self.watched.pace(self.held.rank, counter, self.since, self.context.policy.correction.readings)

    def assess(self) -> Assessment | None:
        """Return how the job performs against its target; None: no measurable target, or too few readings."""
        if self._assessment is _UNKNOWN:
            self._assessment = self._assess()
        return self._assessment

    def _assess(self) -> Assessment | None:
        target = self.expectation.job.spec.target
        if isinstance(target, ServiceTarget):
            policy, pace = self.context.policy.correction, self.kept_latency(target)
            if pace is None:
                return None
            kept = Assessment(by="latency", pace=pace, wanted=1.0)
            # Far below its bound, a service that serves little is asked for little: nothing tells how many requests
            # are offered.
            at_bound = STILL_AT_BOUND if self.job.unmet_code else AT_BOUND
            if pace.mean >= 1.0 / at_bound or kept.missed(deviations_of(policy.confidence), policy.margin):
                return kept
            served = self.served()
            return kept if served is None else Assessment(by="rate", pace=served, wanted=target.requests_per_s)
        if target.kind == "best_effort":
            return None
        progress = self.pace("progress") if self.job.spec.progress is not None else None
        deadline_at, (done, recorded_at) = self.expectation.deadline_at, self.done()
        left_s = (1.0 - done) / progress.mean if progress is not None and progress.mean > 0 else None
        # Unchanged progress is recorded rarely: compare the remaining work with the time that was left at the last
        # record. The pace has held since.
        left_s = left_s and max(0.0, left_s - (self.context.now - recorded_at))
        # The clock may have been set back to before the last record.
        latest = max(self.context.now, recorded_at)
        if progress is not None and deadline_at is not None and deadline_at > latest and done < 1.0:
            wanted = (1.0 - done) / (deadline_at - recorded_at)
            return Assessment(by="deadline", pace=progress, wanted=wanted, done=done, remaining_s=left_s)
        deviation = self.deviation()
        if deviation is None:
            return None
        wanted = (1.0 - self.context.policy.placement.tolerance) * deviation.estimate.limits()[0]
        pace, taken = deviation.measured, self.taken_everywhere
        return Assessment(by="expectation", pace=pace, wanted=wanted, done=done, remaining_s=left_s, taken=taken)

    def kept_until(self, deviations: float, margin: float) -> float:
        """Return until when these samples surely do not show a miss; -inf if they show one now.

        Only the passing of the deadline changes the judgement without a new sample.
        """
        assessment, deadline_at = self.assess(), self.expectation.deadline_at
        if assessment is None:
            return math.inf
        if assessment.missed(deviations, margin):
            return -math.inf
        return math.inf if assessment.by != "deadline" or deadline_at is None else deadline_at

    def done(self) -> tuple[float, float]:
        """Return the progress (0..1) of the slowest rank, and when it was recorded."""
        ranks = self.watched.ranks
        if len(ranks) == 1:
            return _progress(*ranks.values())
        return min((_progress(rank) for rank in ranks.values()), default=(0.0, self.context.now))

    def history(self, assessment: Assessment) -> Trend | None:
        """Return the history of the job's performance in the unit of ``found``; None: unknown."""
        samples, target, known = self.watched.history(self.held.rank), self.job.spec.target, self.known()
        if assessment.by == "rate":  # it also shows how the load rose and fell
            return None
        if isinstance(target, ServiceTarget):
            return course_of_rate(latency_kept(samples, target.percentile, target.latency_ms))
        measure = known.measure if known is not None else None
        counter = "progress" if assessment.by == "deadline" else _COUNTERS.get(measure) if measure is not None else None
        return course_of_total(samples, counter) if counter is not None else None

    @property
    def span_s(self) -> float:
        """Seconds a pace must be measured until it counts: as many samples as readings are needed."""
        return self.context.policy.correction.readings * self.context.policy.timing.sample_every_s

    def known(self) -> Classification | None:
        """Return the estimates of its application; None: none."""
        return self.expectation.known

    def estimate(
        self, *, column: str = "", vcpus: float | None = None, nodes: int | None = None
    ) -> ExpectedPerformance | None:
        """Return the performance expected here, or with another type, vCPUs or nodes; None: unknown."""
        expectation = self.expectation
        if expectation.known is None:
            return None
        return expected_where(
            expectation.known,
            expectation.job,
            expectation.held,
            column or column_of(self.instance),
            vcpus=vcpus,
            nodes=nodes,
        )

    def deviation(self) -> Deviation | None:
        """Return the measured and expected performance of the rank; None: either is unknown."""
        if self._deviation is _UNKNOWN:
            self._deviation = self._deviation_now()
        return self._deviation

    def deviation_elsewhere(self) -> Deviation | None:
        """Return :meth:`deviation` as another machine might end it: what only this one's host took shows in full."""
        found = self.deviation()
        return found if found is None else found._replace(taken=self.taken_everywhere)

    def _deviation_now(self) -> Deviation | None:
        known, estimate = self.expectation.known, self.expectation.estimate(self.instance)
        if known is None or known.measure is None or estimate is None:
            return None
        if known.measure is Measure.REQUESTS:
            values = [Timed(s.at, self._in_time(s), s.looks) for s in self.samples if "requests_per_s" in s.values]
            measured = pace_of_rate(values, self.since, self.context.policy.correction.readings)
        else:
            counter = _COUNTERS.get(known.measure)
            measured = self.pace(counter) if counter is not None else None
        if measured is None:
            return None
        attempt = self.job.attempt
        part = per_rank(known.measure, attempt.size if attempt is not None else 1)
        return Deviation(measured=measured, estimate=estimate.times(part), taken=self.taken)

    def _in_time(self, sample: Sampled) -> float:
        rate, target = sample.values["requests_per_s"], self.job.spec.target
        if not isinstance(target, ServiceTarget):
            return rate
        return rate_in_time(rate, tail_ms(sample.latency_ms, target.percentile), target.latency_ms)

    def slowdown(self) -> Slowdown | None:
        """Return how the pace of a job fell since its last correction, for whatever reason; None if it surely did not
        fall by half of ``correction.margin``, or nothing shows its pace."""
        if self._slowdown is _UNKNOWN:
            self._slowdown = self._slowdown_now()
        return self._slowdown

    def _slowdown_now(self) -> Slowdown | None:
        known, policy, job = self.known(), self.context.policy.correction, self.job
        measure = Measure.PROGRESS if job.spec.progress is not None else known.measure if known is not None else None
        if measure not in (Measure.PROGRESS, Measure.OUTPUT):  # CPU time passes as fast in any phase
            return None
        since = max([self.since, *(each.at for each in job.corrections if each.step != "inspected")])
        both = self.watched.before_and_now(self.held.rank, _COUNTERS[measure], since, policy.readings)
        if both is None:
            return None
        before, now = both
        deviations = deviations_of(policy.confidence)
        now_at_most = now.at_most(deviations) / (1.0 - self.taken)
        surely = now_at_most <= (1.0 - policy.margin / 2) * before.at_least(deviations)
        return Slowdown(before, now) if surely else None

    @property
    def taken(self) -> float:
        """The share (0..1) of the rank's CPU time that the host took in the readings that count."""
        share = self.watched.taken(self.held.rank, self.since, self.context.policy.correction.readings)
        return min(MOST_TAKEN, share)

    @property
    def taken_everywhere(self) -> float:
        """:attr:`taken` if all machines that could be had instead are on the same host, else 0."""
        return self.taken if self.instance.offer.pool_free is not None else 0.0

    def busy(self) -> bool:
        """Return whether the rank uses nearly all of its vCPUs, so that more of them would help."""
        cpu = self.pace("cpu_s")
        return cpu is not None and cpu.mean >= self.context.policy.correction.busy_share * self.held.resources.vcpus


def _progress(samples: Sequence[Sampled]) -> tuple[float, float]:
    """Return progress and time of the last sample that has it; some samples do not."""
    for each in reversed(samples):
        if (part := each.values.get("progress")) is not None:
            return part, each.at
    return 0.0, samples[0].at


def column_of(instance: Instance) -> str:
    """Return the type of an instance as ``<provider>/<type>``."""
    return f"{instance.offer.provider}/{instance.offer.instance_type.name}"


def expected_where(
    known: Classification,
    job: Job,
    held: Allocation,
    column: str,
    *,
    vcpus: float | None = None,
    nodes: int | None = None,
) -> ExpectedPerformance | None:
    """Return the performance expected of a running job on this type, with the given or its present vCPUs and nodes."""
    return expected(
        known,
        column,
        vcpus=held.resources.vcpus if vcpus is None else vcpus,
        asked_vcpus=job.spec.resources.vcpus,
        nodes=nodes if nodes is not None else job.attempt.size if job.attempt is not None else 1,
    )


def rank_samples(context: PlanContext, job: Job) -> RankSamples | None:
    """Return the samples of ``job``; None if it does not run, is paused, has not settled, or has no samples since."""
    watched, attempt = context.snapshot.job_samples.get(job.id), job.attempt
    if watched is None or attempt is None or watched.attempt != attempt.id or job.state is not JobState.RUNNING:
        return None
    known, expectations = context.snapshot.applications.get(job.application), context.snapshot.plan_cache.expectations
    expectation: RankExpectation | None = expectations.get(job.id)
    if (
        expectation is None
        or expectation.job is not job
        or expectation.known is not known
        or expectation.policy is not context.policy
    ):
        expectation = expectations[job.id] = _expectation(job, known, context.policy)
    at = context.fleet.index.get(expectation.held.instance_id) if expectation is not None else None
    if expectation is None or at is None:
        return None
    samples = watched.ranks.get(expectation.held.rank, ())
    return (
        RankSamples(context, watched, expectation, context.fleet.instances[at])
        if samples and samples[-1].at > expectation.since
        else None
    )


def _expectation(job: Job, known: Classification | None, policy: Policy) -> RankExpectation | None:
    held = first_rank(job)
    if held is None or held.paused_at is not None:
        return None
    since, steps = settled_at(job, policy.correction.settle_s), correction_steps(job)
    return RankExpectation(
        job=job, held=held, since=since, known=known, steps_taken=steps, deadline_at=job.deadline_at, policy=policy
    )


def correction_steps(job: Job) -> int:
    """Return the number of corrections of the present attempt, other than learning ones."""
    attempt = job.attempt.id if job.attempt is not None else ""
    return sum([each.attempt == attempt and each.step not in LEARNING for each in job.corrections])


class RecheckAt(NamedTuple):
    """Postpones the check of a job until ``until``, as long as its samples and estimates are the identical objects."""

    until: float
    samples: JobSamples | None
    application: str
    belief: Classification | None


class RecheckQueue:
    """The running jobs, divided into those due for a check and those postponed; updated from plan to plan."""

    def __init__(self) -> None:
        self._postponed: dict[JobId, RecheckAt] = {}
        self._due: dict[JobId, QueueKey] = {}
        self._order: list[tuple[QueueKey, Job]] = []
        """The due jobs in queue order."""
        self._timers: list[tuple[float, JobId]] = []
        self._jobs: Sequence[Job] = ()
        self._watched: Mapping[JobId, JobSamples] = {}
        self._beliefs: Mapping[str, Classification] = {}
        self._policy: Policy | None = None

    def due(self, snapshot: Snapshot, policy: Policy, jobs: Sequence[Job]) -> Sequence[Job]:
        """Return the running jobs that are due, in queue order; ``plan_cache.occupancy`` must be up to date with
        ``jobs``."""
        occupancy, now = snapshot.plan_cache.occupancy, snapshot.now
        self._follow(jobs, occupancy)
        for job_id in self._changed(snapshot, policy):
            del self._postponed[job_id]
            self._add(occupancy.rows[job_id])
        while self._timers and self._timers[0][0] <= now:
            _, job_id = heapq.heappop(self._timers)
            if job_id in self._postponed and self._postponed[job_id].until <= now:
                del self._postponed[job_id]
                self._add(occupancy.rows[job_id])
        self._watched, self._beliefs, self._policy = snapshot.job_samples, snapshot.applications, policy
        return [job for _, job in self._order]

    def postpone(self, job: Job, until: float) -> None:
        """Postpone a due job until ``until``; inf: until its samples or estimates change."""
        self._remove(job.id)
        samples, belief = self._watched.get(job.id), self._beliefs.get(job.application)
        self._postponed[job.id] = RecheckAt(until, samples, job.application, belief)
        if until < math.inf:
            heapq.heappush(self._timers, (until, job.id))
        if len(self._timers) > 2 * len(self._postponed) + MOST_OLD_TIMERS:
            self._timers = [(rest.until, name) for name, rest in self._postponed.items() if rest.until < math.inf]
            heapq.heapify(self._timers)

    def _follow(self, jobs: Sequence[Job], occupancy: Occupancy) -> None:
        for before, job in row_changes(self._jobs, jobs):
            if before is not None:
                self._postponed.pop(before.id, None)
                self._remove(before.id)
            if job is not None and occupancy.runs(job):
                self._add(job)
        self._jobs = jobs

    def _add(self, job: Job) -> None:
        self._remove(job.id)
        key = self._due[job.id] = queue_key(job)
        insort(self._order, (key, job))

    def _remove(self, job_id: JobId) -> None:
        key = self._due.pop(job_id, None)
        if key is not None:
            del self._order[bisect_left(self._order, (key,))]

    def _changed(self, snapshot: Snapshot, policy: Policy) -> set[JobId]:
        """Return the postponed jobs with changed samples, estimates or policy."""
        if policy is not self._policy:
            return set(self._postponed)
        watched, beliefs, resting = snapshot.job_samples, snapshot.applications, self._postponed
        sampled = sampled_since(self._watched, watched)
        if sampled is None:
            woken = {name for name, rest in resting.items() if watched.get(name) is not rest.samples}
        else:
            woken = resting.keys() & sampled
        if beliefs is not self._beliefs:
            woken |= {name for name, rest in resting.items() if beliefs.get(rest.application) is not rest.belief}
        return woken
