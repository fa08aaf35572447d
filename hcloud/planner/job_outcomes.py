"""Decide the outcome of jobs: finish, retry or stop. The first stage of a plan.

An attempt is judged only once it is over. Retries are counted by cause, with exponential back-off. A job that lost its
instance passes through PREEMPTED, so that reports can tell it from a job that failed on its own. A failed rank of an
incremental job does not stop the others; the attempt is judged when its last rank has ended.
"""

from __future__ import annotations

from hcloud.core.arrays import count_positions
from hcloud.core.model import JOB_ON_INSTANCE, JOB_WAITING, Attempt, FailureCause, Job, JobState, Number, Reason
from hcloud.core.rows import number_of
from hcloud.planner.context import PlanContext
from hcloud.planner.occupancy import SECRETS_UNREADABLE
from hcloud.planner.plan import Finish, Wait
from hcloud.planner.profiling import decide_submitted
from hcloud.planner.profiling_in_place import is_pointless
from hcloud.planner.retries import failure_reason, may_retry, retry
from hcloud.planner.spot_preemption import requeue_reason
from hcloud.planner.text import as_wait, deadline_numbers, failure, seconds, usd
from hcloud.spec.validation import counted

PLANNING_FAILS = "planning_fails"
_ADMISSIBLE = (JobState.SUBMITTED, JobState.PROFILED, JobState.CLASSIFIED)


def decide_outcomes(context: PlanContext) -> None:
    """Decide what each job's own state requires, and add the jobs that wait for an instance to ``context.waiting``."""
    submitted, left_out, unreadable = list[Job](), context.snapshot.left_out.jobs, context.snapshot.unreadable_secrets
    _exclude_similar(context)
    for job in context.snapshot.plan_cache.occupancy.needing_decision:  # excludes nearly all running and queued jobs
        on_instance = job.state in JOB_ON_INSTANCE
        if (job.id in left_out or (job.id in unreadable and not on_instance)) and not has_to_end(job):
            _refuse(context, job)
        elif on_instance:
            _decide_running(context, job)
        elif job.cancelled_by is not None:
            _cancel(context, job)
        elif job.spec.budget_usd is not None and job.spent_usd >= job.spec.budget_usd:
            _finish(context, job, JobState.FAILED, _budget_reason(job))
        elif job.state is JobState.QUEUED and is_pointless(context, job):
            text = "there was no room for it in time, or what it was to measure has ended"
            _finish(context, job, JobState.CANCELLED, Reason(code="profiling_given_up", text=text))
        elif job.state in JOB_WAITING:
            context.waiting.add(job)
            if job.state is JobState.AWAITING_INSTANCE:
                context.reservations.count_active(job)
        elif job.state in _ADMISSIBLE:
            submitted.append(job)
        elif job.state is JobState.PREEMPTED and job.not_before_at <= context.now:
            context.waiting.add(context.decisions.enqueue(job, requeue_reason(job)))
    if submitted:
        decide_submitted(context, submitted)


def _exclude_similar(context: PlanContext) -> None:
    """Leave out those of ``context.waiting.similar`` that may not be planned."""
    left_out, unreadable = context.snapshot.left_out.jobs, context.snapshot.unreadable_secrets
    occupancy = context.snapshot.plan_cache.occupancy
    context.waiting.exclude({job_id for job_id in (*left_out, *unreadable) if job_id in occupancy.queued})
    for job_id in sorted(context.waiting.excluded, key=number_of):
        _refuse(context, occupancy.rows[job_id])


def _refuse(context: PlanContext, job: Job) -> None:
    """Let a job wait that is left out of plans, or has secrets that cannot be read."""
    error = context.snapshot.left_out.jobs.get(job.id)
    if error is not None:
        text = f"planning this job fails with a defect of HCloud ({error}); retried every few minutes"
        _hold(context, job, PLANNING_FAILS, text)
    else:
        _hold(context, job, SECRETS_UNREADABLE, context.snapshot.unreadable_secrets[job.id])


def has_to_end(job: Job) -> bool:
    """Return whether a job was cancelled or has spent its own budget. Such a job ends even if planning it fails."""
    return job.cancelled_by is not None or (job.spec.budget_usd is not None and job.spent_usd >= job.spec.budget_usd)


def _hold(context: PlanContext, job: Job, code: str, text: str) -> None:
    """Let a job wait without a place in the queue: nothing is placed or launched for it."""
    if job.state not in JOB_ON_INSTANCE and job.wait_code != code:
        context.decisions.add(Wait(job_id=job.id, reason=as_wait(Reason(code=code, text=text))))
    if job.state is JobState.AWAITING_INSTANCE:
        context.reservations.count_active(job)


def _decide_running(context: PlanContext, job: Job) -> None:
    attempt = job.attempt
    if attempt is None:
        return
    if attempt.over:
        _judge(context, job, attempt)
    elif job.id in context.decisions.stopping:
        return
    elif job.cancelled_by is not None:
        context.decisions.stop(job, None, Reason(code="cancelled", text=f"cancelled by {job.cancelled_by}"))
    elif job.run is not None and job.run.cancelled:
        text = f"{counted(count_positions(job.run.cancelled), 'task')} of its unit cancelled; the others begin anew"
        context.decisions.stop(job, FailureCause.EVICTED, Reason(code="tasks_cancelled", text=text))
    elif job.spec.budget_usd is not None and job.spent_usd >= job.spec.budget_usd:
        context.decisions.stop(job, FailureCause.EVICTED, _budget_reason(job))
    elif len(attempt.allocations) > 1 and job.spec.nodes.gang:
        _stop_gang_of_failed_rank(context, job, attempt)


def _stop_gang_of_failed_rank(context: PlanContext, job: Job, attempt: Attempt) -> None:
    failed = next((a for a in attempt.allocations if a.cause is not None), None)
    if failed is None:
        return
    what = failure(str(failed.cause), failed.exit_code, failed.detail)
    text = f"rank {failed.rank} of {len(attempt.allocations)} {what}; stopping the gang"
    numbers: dict[str, Number] = {"rank": failed.rank, "exit_code": failed.exit_code, "cause": str(failed.cause)}
    context.decisions.stop(job, failed.cause, Reason(code="rank_failed", text=text, numbers=numbers))


def _judge(context: PlanContext, job: Job, attempt: Attempt) -> None:
    cause = attempt.failure
    if job.cancelled_by is not None:
        _cancel(context, job)
    elif cause is None:
        _finish(context, job, JobState.SUCCEEDED, _success(context, job, attempt))
    elif job.spec.budget_usd is not None and job.spent_usd >= job.spec.budget_usd:
        _finish(context, job, JobState.FAILED, _budget_reason(job))
    elif may_retry(context, job, cause):
        retry(context, job, attempt, cause)
    else:
        _finish(context, job, JobState.FAILED, failure_reason(context, job, attempt, cause))


def _success(context: PlanContext, job: Job, attempt: Attempt) -> Reason:
    ended_at = max((a.ended_at for a in attempt.allocations if a.ended_at is not None), default=context.now)
    started_at = min((a.started_at for a in attempt.allocations if a.started_at is not None), default=attempt.placed_at)
    late = deadline_numbers(job, ended_at)
    numbers: dict[str, Number] = {"run_s": round(ended_at - started_at, 3), "attempts": job.attempts_made, **late}
    ranks = sum(a.cause is None for a in attempt.allocations)
    lasted = seconds(ended_at - started_at)
    text = f"all {ranks} ranks succeeded in {lasted}" if ranks > 1 else f"succeeded in {lasted}"
    if late.get("deadline_missed"):
        text += f", {seconds(float(late['late_s'] or 0))} after its deadline"
    return Reason(code="succeeded", text=text, numbers=numbers)


def _budget_reason(job: Job) -> Reason:
    limit_usd = job.spec.budget_usd or 0.0
    text = f"stopped: cost {usd(job.spent_usd)} exceeded budget_usd ({usd(limit_usd)})"
    return Reason(code="job_budget", text=text, numbers={"limit_usd": limit_usd, "spent_usd": round(job.spent_usd, 6)})


def _cancel(context: PlanContext, job: Job) -> None:
    _finish(context, job, JobState.CANCELLED, Reason(code="cancelled", text=f"cancelled by {job.cancelled_by}"))


def _finish(context: PlanContext, job: Job, state: JobState, reason: Reason) -> None:
    context.ledger.forget_awaited(job)
    context.decisions.add(Finish(job_id=job.id, state=state, reason=reason))
