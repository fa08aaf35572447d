"""Decide which waiting jobs are served, and in which order: jobs with a target first, then by priority, then oldest
first. Best-effort jobs come last; otherwise one could take back the room it was evicted from.

A job that cannot be served lets those behind it pass, except that room is reserved for the first in order that finds
none, and for any job whose deadline comes near (:mod:`hcloud.planner.placement.room_reservation`). A job without a
deadline behind a stream of jobs that come before it in order may still wait without limit.

With queues by quality (ARQ, Dissertation ch. 6), among jobs of one priority the more demanding class goes first, so
that it can choose among the good instances, and every job takes the worst pool that suits it. So a job goes up to a
better pool only past an empty queue: no job above that the same room would suit is left waiting. Within a class the
policy's order holds. With ``fair_share``, less recent use of the owner comes before all of these but the priority.
Jobs whose slack is used up come before all others of their priority and share: on a full fleet all are such. In a
first pass each job gets only what suits it, by neighbours and type. In a second pass, jobs without slack take what is
left, in the same order. A job that has waited for ``patience_cap_s`` accepts any room.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from hcloud.core.model import Job, JobState, Reason
from hcloud.core.rows import number_of
from hcloud.planner.context import PlanContext
from hcloud.planner.fair_share import usage_level
from hcloud.planner.fit.arq import slack_s
from hcloud.planner.fit.suitability import Suitability, open_suitability
from hcloud.planner.job_groups import JobGroup
from hcloud.planner.job_queue import QueueSegment, Rank
from hcloud.planner.queued_jobs import JOB, LATE_AT, NUMBER, QueuedJob, SimilarJobs, lateness
from hcloud.planner.run_times import RunTimeLimits
from hcloud.planner.text import seconds
from hcloud.spec.validation import counted

PAUSED = "paused"
QueueKey = tuple[bool, int, float, int]


def queue_key(job: Job) -> QueueKey:
    """Return the sort key of the job in the queue; the smallest is served first, and no two are equal."""
    spec = job.spec
    return (spec.target.kind == "best_effort", -spec.priority, job.submitted_at, number_of(job.id))


def admit(context: PlanContext) -> None:
    """Put the waiting jobs in order into ``context.waiting.queues``, and record why the others wait."""
    context.reservations.follow_neighbours(
        open_suitability(
            context.snapshot,
            context.policy,
            context.order.needs,
            context.fleet,
            context.decisions.stopping,
            context.run_times,
        )
    )
    if context.snapshot.paused:
        _pause(context)
        return
    if context.distinguishes_similar_jobs:
        context.waiting.make_single()
    context.waiting.drop_excluded()
    by_quality = context.suit if context.policy.admission.by_class else None
    admission = _Admission(context, by_quality)
    heads: list[tuple[tuple[float, ...], Job | SimilarJobs]] = []
    for job in context.waiting.single:
        if job.not_before_at > context.now:
            context.decisions.wait(job, "backoff_until", lambda job=job: _backoff_reason(job, context.now))  # type: ignore[misc]
        else:
            heads.append((admission.group_order(job), job))
    heads += [(admission.group_order(similar.first), similar) for similar in context.waiting.similar]
    for _, head in sorted(heads, key=lambda each: each[0]):
        if isinstance(head, SimilarJobs):
            admission.add_similar(head)
        else:
            admission.add(head)
    admission.close()


def _pause(context: PlanContext) -> None:
    text = f"launches and placements are paused ({context.snapshot.paused})"
    context.waiting.drop_waiting_for(PAUSED)
    for job in context.waiting.all_jobs():
        context.decisions.wait(job, PAUSED, lambda: Reason(code=PAUSED, text=text))


@dataclass(slots=True, eq=False)
class _Admission:
    """The queue while it is filled."""

    context: PlanContext
    by_quality: Suitability | None
    """With queues by quality: the estimates of class and run time."""
    queued: dict[tuple[JobGroup, str, tuple[int, float], bool], list[QueuedJob]] = field(default_factory=dict)
    """Single jobs by group, reason to wait, precedence, and whether their slack has ended."""

    def precedence(self, job: Job) -> tuple[int, float]:
        """Return what orders jobs before all else: priority, and what their owner used lately."""
        context = self.context
        return (job.spec.priority, usage_level(job.spec, context.snapshot.usage_usd, context.policy.admission))

    def group_order(self, job: Job) -> tuple[float, ...]:
        """Return the order in which groups are numbered, from their first job."""
        return (number_of(job.id),) if self.by_quality is not None else queue_key(job)

    def add(self, job: Job) -> None:
        """Add a single job."""
        context, group = self.context, self.context.group_of(job)
        late_at = -inf
        if self.by_quality is not None:
            queued_at, run_time = context.queued_at(job), self._run_time(group)
            late_at = queued_at + slack_s(job, queued_at, run_time, context.policy.admission)
        entry, late = (job.submitted_at, number_of(job.id), late_at, job), -inf < late_at <= context.now
        if job.state is JobState.AWAITING_INSTANCE:
            queue = context.waiting.queues[group.promise]
            queue.awaiting.append(self._add(group, self.precedence(job), job.wait_code, [entry], late=late))
        else:
            self.queued.setdefault((group, job.wait_code, self.precedence(job), late), []).append(entry)

    def add_similar(self, similar: SimilarJobs) -> None:
        """Add queued jobs that differ in age only. The group of a job changes at most once as it waits."""
        context, members = self.context, similar.members
        group = context.group_of(similar.first)
        newest = context.group_of(members[-1][JOB]) if context.regroups_as_it_waits else group
        split = len(members)
        if newest is not group:
            split = bisect_left(members, True, key=lambda each: context.group_of(each[JOB]) is newest)
        common, deadline_at = (self.precedence(similar.first), similar.wait_code), similar.deadline_at
        if self.by_quality is None:
            self._add(group, *common, members, stop=split, bounds=(-inf, deadline_at))
            if newest is not group:
                self._add(newest, *common, members, start=split, bounds=(-inf, deadline_at))
            return
        similar.rank(self._run_time(group), context.policy.admission, context.now)
        members, late, on_time = similar.members, similar.late, similar.on_time
        bounds = (similar.by_lateness[late][LATE_AT] if late < len(members) else inf, deadline_at)
        if newest is group:
            if late:
                self._add(group, *common, similar.by_lateness, stop=late, late=True, bounds=bounds)
            self._add(group, *common, on_time, bounds=bounds)
            return
        newer_late = sorted([each for each in members[split:] if each[LATE_AT] <= context.now], key=lateness)
        newer = bisect_left(on_time, members[split][:LATE_AT])
        left_out = frozenset([each[NUMBER] for each in newer_late])
        self._add(group, *common, similar.by_lateness, stop=late, late=True, left_out=left_out, bounds=bounds)
        self._add(newest, *common, newer_late, late=True)
        self._add(group, *common, on_time, stop=newer, bounds=bounds)
        self._add(newest, *common, on_time, start=newer, bounds=bounds)

    def close(self) -> None:
        """Add the single jobs that await no instances."""
        for (group, wait_code, precedence, late), entries in self.queued.items():
            entries.sort(key=lateness if late else None)
            self._add(group, precedence, wait_code, entries, late=late)
        for queue in self.context.waiting.queues.values():
            queue.awaiting.sort(key=lambda segment: segment.key(segment.start))

    def _add(
        self,
        group: JobGroup,
        precedence: tuple[int, float],
        wait_code: str,
        entries: Sequence[QueuedJob],
        start: int = 0,
        stop: int | None = None,
        *,
        late: bool = False,
        left_out: frozenset[int] = frozenset(),
        bounds: tuple[float, float] | None = None,
    ) -> QueueSegment:
        """Add ``entries`` from ``start`` up to ``stop``; ``bounds``: when the first slack ends, the first deadline."""
        if bounds is None:
            deadlines_at = [each[JOB].deadline_at for each in entries]
            first_late_at = min([each[LATE_AT] for each in entries], default=inf)
            bounds = first_late_at, min([at for at in deadlines_at if at is not None], default=inf)
        stop, excluded = len(entries) if stop is None else stop, self.context.waiting.excluded
        if excluded:
            left_out |= {each[NUMBER] for each in entries[start:stop] if each[JOB].id in excluded}
        segment = QueueSegment(
            group=group,
            wait_code=wait_code,
            rank=self._rank(group, precedence, late=late),
            entries=entries,
            start=start,
            stop=stop,
            late=late,
            left_out=left_out,
            first_late_at=bounds[0],
            deadline_at=bounds[1],
        )
        self.context.waiting.queues[group.promise].add(segment)
        return segment

    def _rank(self, group: JobGroup, precedence: tuple[int, float], *, late: bool) -> Rank:
        priority, usage = precedence
        if self.by_quality is None:
            return (-priority, usage)
        if late:
            return (-priority, usage, 0)
        shortest = self.context.policy.admission.order == "shortest"
        run_time, quality_class = self._run_time(group), self.by_quality.quality_class(group.application)
        inner = 0.0 if not shortest else inf if run_time is None else run_time.median_s
        return (-priority, usage, 1, -quality_class, inner)

    def _run_time(self, group: JobGroup) -> RunTimeLimits | None:
        return None if self.by_quality is None else self.context.run_times.limits(group.example)


def _backoff_reason(job: Job, now: float) -> Reason:
    text = f"retrying in {seconds(job.not_before_at - now)} ({counted(len(job.failures), 'failure')})"
    return Reason(code="backoff_until", text=text, numbers={"until_at": job.not_before_at})
