"""How a running job does, beside what was promised and what was expected of it (Paragon §3.4, Quasar §4.4).

What counts is stated by the job: a service by the latency it is to keep, a batch job with a deadline and a progress
hook by the pace that would still meet it; any other by what its classification expects where it runs. Everything is
said with the uncertainty of its readings, so that noise alone is never taken for a miss.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import NormalDist
from typing import Any, NamedTuple

from hcloud.core.estimates import Classification, Measure, per_rank
from hcloud.core.model import Allocation, Instance, Job, JobId, JobState, ServiceTarget
from hcloud.core.rows import row_changes
from hcloud.forecast.job_monitor import JobSamples, Pace, Sampled, Timed, latency_kept, pace_of_rate, sampled_since
from hcloud.forecast.trend import Trend, course_of_rate, course_of_total
from hcloud.planner.context import PlanContext
from hcloud.planner.fit.sizing import ExpectedPerformance, expected
from hcloud.planner.occupancy import Occupancy
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import Policy

_COUNTERS = {Measure.PROGRESS: "progress", Measure.OUTPUT: "written_mib", Measure.CPU: "cpu_s"}
LEARNING = ("reprofile", "reclassify", "sampled")
"""Corrections that change only what is believed."""


class Assessment(NamedTuple):
    """A running job since it started or was last corrected.

    ``pace``: what it does, in the unit of ``wanted``: what it must do (``by`` deadline, latency or expectation).
    ``done``: its progress (0..1); ``remaining_s``: how much longer it takes at this pace, None: not known.
    """

    by: str
    pace: Pace
    wanted: float
    done: float = 0.0
    remaining_s: float | None = None

    def missed(self, deviations: float, margin: float) -> bool:
        """Whether it surely does less than wanted, by the margin."""
        return self.pace.at_most(deviations) <= self.enough(margin) * self.wanted

    def enough(self, margin: float) -> float:
        """Return the part of what is wanted below which it is missed.

        On the way to a deadline only what is still to be done can go better or worse than now, so the margin shrinks
        with it: a small miss is noticed while there is something left to save.
        """
        return 1.0 - margin * (1.0 - self.done if self.by == "deadline" else 1.0)


class Deviation(NamedTuple):
    """Performance as its classification counts it, beside what that expects where it runs (nobody beside it)."""

    measured: Pace
    would: ExpectedPerformance

    def surely(self, deviations: float, departure: float) -> bool:
        """Whether what was measured surely lies outside what was expected, by that part of it."""
        low, high = self.would.limits()
        too_low = self.measured.at_most(deviations) < (1.0 - departure) * low
        return too_low or self.measured.at_least(deviations) > (1.0 + departure) * high


@lru_cache(maxsize=64)
def deviations_of(confidence: float) -> float:
    """Return how many standard errors make a mean so sure (one-sided)."""
    return NormalDist().inv_cdf(confidence)


def first_rank(job: Job) -> Allocation | None:
    """Return the running rank that speaks for the job: the lowest."""
    held = job.attempt.allocations if job.attempt is not None else ()
    return min((a for a in held if not a.released and a.started_at is not None), key=lambda a: a.rank, default=None)


def settled_at(job: Job, settle_s: float) -> float:
    """Return from when readings count: its start or its last deed of correction, and some time to settle."""
    attempt = job.attempt
    assert attempt is not None
    started = [a.started_at for a in attempt.allocations if a.started_at is not None and not a.released]
    deeds = [each.at for each in job.corrections if each.attempt == attempt.id and each.step not in LEARNING]
    return max([*started, *deeds]) + settle_s


@dataclass(slots=True, eq=False)
class RankExpectation:
    """What of a running job stays the same from sample to sample: the rank that speaks for it, from when its samples
    count, what is believed of it and expected where it runs, and its deeds of correction in this attempt.

    ``drawn``: in which period it is (not) looked at for a change of phase.
    """

    job: Job
    held: Allocation
    since: float
    known: Classification | None
    deeds: int
    deadline_at: float | None
    policy: Policy
    drawn: tuple[int, bool] = (-1, False)
    _expected: tuple[Instance, ExpectedPerformance | None] | None = None

    def would(self, instance: Instance) -> ExpectedPerformance | None:
        """Return what is expected of the job where it runs, which is ``instance``; None: nothing is known."""
        if self._expected is None or self._expected[0] is not instance:
            known = self.known
            would = None if known is None else would_do(known, self.job, self.held, column_of(instance))
            self._expected = (instance, would)
        return self._expected[1]


_UNKNOWN: Any = object()
"""What was not worked out yet; None is an answer."""


@dataclass(slots=True, eq=False)
class RankSamples:
    """The samples of the rank that speaks for a job, and from when they count."""

    context: PlanContext
    watched: JobSamples
    post: RankExpectation
    instance: Instance
    _assessment: Assessment | None = field(default=_UNKNOWN, repr=False)
    _departed: Deviation | None = field(default=_UNKNOWN, repr=False)

    @property
    def job(self) -> Job:
        """The job."""
        return self.post.job

    @property
    def held(self) -> Allocation:
        """The rank that speaks for it."""
        return self.post.held

    @property
    def since(self) -> float:
        """From when its samples count."""
        return self.post.since

    @property
    def samples(self) -> tuple[Sampled, ...]:
        """The samples of that rank."""
        return self.watched.ranks[self.held.rank]

    def pace(self, counter: str) -> Pace | None:
        """Return the pace of a total."""
        return self.watched.pace(self.held.rank, counter, self.since, self.context.policy.correction.readings)

    def assess(self) -> Assessment | None:
        """Return how the job does beside its target; None: it has none that can be measured, or too little was."""
        if self._assessment is _UNKNOWN:
            self._assessment = self._assess()
        return self._assessment

    def _assess(self) -> Assessment | None:
        target = self.post.job.spec.target
        if isinstance(target, ServiceTarget):
            kept = self.watched.latency_kept(self.held.rank, target.percentile, target.latency_ms)
            pace = pace_of_rate(kept, self.since, self.context.policy.correction.readings)
            return Assessment(by="latency", pace=pace, wanted=1.0) if pace is not None else None
        if target.kind == "best_effort":
            return None
        progress = self.pace("progress") if self.job.spec.progress is not None else None
        deadline_at, (done, told_at) = self.post.deadline_at, self.done()
        left_s = (1.0 - done) / progress.mean if progress is not None and progress.mean > 0 else None
        # Of what goes on as before little is recorded: what was still to be done when it was told last is compared with
        # the time there was then, and its pace is what it went on at since.
        left_s = left_s and max(0.0, left_s - (self.context.now - told_at))
        # A clock that was set back may lie before what was told.
        latest = max(self.context.now, told_at)
        if progress is not None and deadline_at is not None and deadline_at > latest and done < 1.0:
            wanted = (1.0 - done) / (deadline_at - told_at)
            return Assessment(by="deadline", pace=progress, wanted=wanted, done=done, remaining_s=left_s)
        found = self.departure()
        if found is None:
            return None
        wanted = (1.0 - self.context.policy.placement.tolerance) * found.would.limits()[0]
        return Assessment(by="expectation", pace=found.measured, wanted=wanted, done=done, remaining_s=left_s)

    def kept_until(self, deviations: float, margin: float) -> float:
        """Return until when its target is surely not missed (:meth:`Assessment.missed`) by these samples.

        Samples alone decide; only once a deadline has passed a job is judged by something else.
        """
        found, deadline_at = self.assess(), self.post.deadline_at
        if found is None:
            return math.inf
        if found.missed(deviations, margin):
            return -math.inf
        return math.inf if found.by != "deadline" or deadline_at is None else deadline_at

    def done(self) -> tuple[float, float]:
        """Return the least that any rank said last of the job's progress (0..1), and when it did."""
        ranks = self.watched.ranks
        if len(ranks) == 1:
            return _progress(*ranks.values())
        return min((_progress(rank) for rank in ranks.values()), default=(0.0, self.context.now))

    def course(self, found: Assessment) -> Trend | None:
        """Return what it did as far back as is known, in the unit of ``found``; None: nothing tells of that."""
        samples, target, known = self.watched.history(self.held.rank), self.job.spec.target, self.known()
        if isinstance(target, ServiceTarget):
            return course_of_rate(latency_kept(samples, target.percentile, target.latency_ms))
        measure = known.measure if known is not None else None
        counter = "progress" if found.by == "deadline" else _COUNTERS.get(measure) if measure is not None else None
        return course_of_total(samples, counter) if counter is not None else None

    @property
    def span_s(self) -> float:
        """How long a pace is to be measured until it counts: as many samples as readings are needed."""
        return self.context.policy.correction.readings * self.context.policy.timing.sample_every_s

    def known(self) -> Classification | None:
        """Return what is believed of its application."""
        return self.post.known

    def would(
        self, *, column: str = "", vcpus: float | None = None, nodes: int | None = None
    ) -> ExpectedPerformance | None:
        """Return what is expected of it here, or with other machines, vCPUs or nodes; None: nothing is known."""
        post = self.post
        if post.known is None:
            return None
        return would_do(post.known, post.job, post.held, column or column_of(self.instance), vcpus=vcpus, nodes=nodes)

    def departure(self) -> Deviation | None:
        """Return what was measured of its rank beside what was expected of that; None: one of them is not known."""
        if self._departed is _UNKNOWN:
            self._departed = self._departure()
        return self._departed

    def _departure(self) -> Deviation | None:
        known, would = self.post.known, self.post.would(self.instance)
        if known is None or known.measure is None or would is None:
            return None
        if known.measure is Measure.REQUESTS:
            rate = "requests_per_s"
            values = [Timed(s.at, s.values[rate], s.looks) for s in self.samples if rate in s.values]
            measured = pace_of_rate(values, self.since, self.context.policy.correction.readings)
        else:
            counter = _COUNTERS.get(known.measure)
            measured = self.pace(counter) if counter is not None else None
        if measured is None:
            return None
        attempt = self.job.attempt
        part = per_rank(known.measure, len(attempt.allocations) if attempt is not None else 1)
        return Deviation(measured=measured, would=would.times(part))

    def busy(self) -> bool:
        """Return whether it uses nearly all of its vCPUs, so that more of them would help."""
        cpu = self.pace("cpu_s")
        return cpu is not None and cpu.mean >= self.context.policy.correction.busy_share * self.held.resources.vcpus


def _progress(samples: Sequence[Sampled]) -> tuple[float, float]:
    """Return what the last sample that tells of it says of progress, and when; not every one can be measured."""
    for each in reversed(samples):
        if (part := each.values.get("progress")) is not None:
            return part, each.at
    return 0.0, samples[0].at


def column_of(instance: Instance) -> str:
    """Return the machine's type as classifications name it."""
    return f"{instance.offer.provider}/{instance.offer.instance_type.name}"


def would_do(
    known: Classification,
    job: Job,
    held: Allocation,
    column: str,
    *,
    vcpus: float | None = None,
    nodes: int | None = None,
) -> ExpectedPerformance | None:
    """Return what is expected of a running job with such machines, or with other vCPUs or nodes than it has."""
    return expected(
        known,
        column,
        vcpus=held.resources.vcpus if vcpus is None else vcpus,
        asked_vcpus=job.spec.resources.vcpus,
        nodes=nodes if nodes is not None else len(job.attempt.allocations) if job.attempt is not None else 1,
    )


def rank_samples(context: PlanContext, job: Job) -> RankSamples | None:
    """Return what can be looked at of ``job``; None: it does not run, has not settled, or was not measured since."""
    watched, attempt = context.snapshot.job_samples.get(job.id), job.attempt
    if watched is None or attempt is None or watched.attempt != attempt.id or job.state is not JobState.RUNNING:
        return None
    known, posts = context.snapshot.applications.get(job.application), context.snapshot.plan_cache.posts
    post: RankExpectation | None = posts.get(job.id)
    if post is None or post.job is not job or post.known is not known or post.policy is not context.policy:
        post = posts[job.id] = _post(job, known, context.policy)
    at = context.fleet.index.get(post.held.instance_id) if post is not None else None
    if post is None or at is None:
        return None
    samples = watched.ranks.get(post.held.rank, ())
    return (
        RankSamples(context, watched, post, context.fleet.instances[at])
        if samples and samples[-1].at > post.since
        else None
    )


def _post(job: Job, known: Classification | None, policy: Policy) -> RankExpectation | None:
    held = first_rank(job)
    if held is None:
        return None
    since, deeds = settled_at(job, policy.correction.settle_s), correction_steps(job)
    return RankExpectation(
        job=job, held=held, since=since, known=known, deeds=deeds, deadline_at=job.deadline_at, policy=policy
    )


def correction_steps(job: Job) -> int:
    """Return how many corrections of its present attempt did more than change what is believed."""
    attempt = job.attempt.id if job.attempt is not None else ""
    return sum([each.attempt == attempt and each.step not in LEARNING for each in job.corrections])


KEPT_ALARMS = 1000
"""So many times to look again are kept beside those of jobs that rest; most are of what was looked at before."""


class RecheckAt(NamedTuple):
    """That nothing is to be done about a job before ``until``, while its samples and what is believed of it are these:
    the very same."""

    until: float
    samples: JobSamples | None
    application: str
    belief: Classification | None


class RecheckQueue:
    """All running jobs, as those that rest and those that do not; follows the snapshots of one deployment."""

    def __init__(self) -> None:
        """Know of nobody."""
        self._resting: dict[JobId, RecheckAt] = {}
        self._awake: dict[JobId, Job] = {}
        self._alarms: list[tuple[float, JobId]] = []
        self._jobs: Sequence[Job] = ()
        self._watched: Mapping[JobId, JobSamples] = {}
        self._beliefs: Mapping[str, Classification] = {}
        self._policy: Policy | None = None

    def awake(self, snapshot: Snapshot, policy: Policy, jobs: Sequence[Job]) -> Collection[Job]:
        """Return the running ones of ``jobs`` that do not rest, in no order; the roster has followed ``jobs``."""
        occupancy, now = snapshot.plan_cache.occupancy, snapshot.now
        self._follow(jobs, occupancy)
        for job_id in self._woken(snapshot, policy):
            del self._resting[job_id]
            self._awake[job_id] = occupancy.rows[job_id]
        while self._alarms and self._alarms[0][0] <= now:
            _, job_id = heapq.heappop(self._alarms)
            if job_id in self._resting and self._resting[job_id].until <= now:
                del self._resting[job_id]
                self._awake[job_id] = occupancy.rows[job_id]
        self._watched, self._beliefs, self._policy = snapshot.job_samples, snapshot.applications, policy
        return list(self._awake.values())

    def rest(self, job: Job, until: float) -> None:
        """Let an awake job rest until some time (infinite: until something of it changes)."""
        del self._awake[job.id]
        samples, belief = self._watched.get(job.id), self._beliefs.get(job.application)
        self._resting[job.id] = RecheckAt(until, samples, job.application, belief)
        if until < math.inf:
            heapq.heappush(self._alarms, (until, job.id))
        if len(self._alarms) > 2 * len(self._resting) + KEPT_ALARMS:
            self._alarms = [(rest.until, name) for name, rest in self._resting.items() if rest.until < math.inf]
            heapq.heapify(self._alarms)

    def _follow(self, jobs: Sequence[Job], occupancy: Occupancy) -> None:
        for before, job in row_changes(self._jobs, jobs):
            if before is not None:
                self._resting.pop(before.id, None)
                self._awake.pop(before.id, None)
            if job is not None and occupancy.runs(job):
                self._awake[job.id] = job
        self._jobs = jobs

    def _woken(self, snapshot: Snapshot, policy: Policy) -> set[JobId]:
        """Return who rests no more, as they are judged by something else now."""
        if policy is not self._policy:
            return set(self._resting)
        watched, beliefs, resting = snapshot.job_samples, snapshot.applications, self._resting
        sampled = sampled_since(self._watched, watched)
        if sampled is None:
            woken = {name for name, rest in resting.items() if watched.get(name) is not rest.samples}
        else:
            woken = resting.keys() & sampled
        if beliefs is not self._beliefs:
            woken |= {name for name, rest in resting.items() if beliefs.get(rest.application) is not rest.belief}
        return woken
