"""Actions on jobs that only change rows: enqueue, wait, finish, preempt, profile, classify, correct."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hcloud.apply.transitions import reason_fields, record_correction, transition_job
from hcloud.classifier.applications import feed, row_name, scale_of, step_factor
from hcloud.core.arrays import count_positions
from hcloud.core.errors import Refused
from hcloud.core.model import JOB_ENDED, JOB_ON_INSTANCE, EventKind, Job, JobId, JobState, Reason
from hcloud.core.rows import replace_fields
from hcloud.planner.plan import (
    MET,
    Classify,
    Correct,
    Enqueue,
    Finish,
    Learnt,
    MakeTasks,
    Miss,
    Preempted,
    Profile,
    Wait,
)
from hcloud.store import Submission, Transaction


def _require_over(job: Job, verb: str) -> None:
    if job.state in JOB_ON_INSTANCE and job.attempt is not None and not job.attempt.over:
        raise Refused(f"{job.id} cannot be {verb}: attempt {job.attempt.id} has not ended")


def enqueue(txn: Transaction, action: Enqueue) -> None:
    """Queue a job. Raises Refused while an attempt still runs, InvalidTransition if the job has ended."""
    job = txn.job(action.job_id)
    _require_over(job, "queued")
    failures = (*job.failures, action.failure) if action.failure else job.failures
    transition_job(
        txn,
        job,
        JobState.QUEUED,
        action.reason,
        queued_at=txn.now,
        not_before_at=action.not_before_at,
        awaiting=(),
        failures=failures,
        memory_mib=action.memory_mib or job.memory_mib,
        wait_code="",
    )


def mark_preempted(txn: Transaction, action: Preempted) -> None:
    """Record that a job lost its instance. Raises Refused while a part of it still runs."""
    job = txn.job(action.job_id)
    _require_over(job, "marked preempted")
    failures = (*job.failures, action.failure)
    transition_job(
        txn, job, JobState.PREEMPTED, action.reason, not_before_at=action.not_before_at, failures=failures, wait_code=""
    )


def wait(txn: Transaction, action: Wait) -> None:
    """Record why a job waits; write an event only if the code, or where room is reserved for it, is new."""
    job, code = txn.job(action.job_id), action.reason.code
    known = (job.wait_code, job.reserved) == (code, action.reserved)
    if job.state in JOB_ENDED or job.state in JOB_ON_INSTANCE or known:
        return
    txn.put_job(replace_fields(job, wait_code=code, wait_text=action.reason.text, reserved=action.reserved))
    fields = reason_fields(action.reason)
    txn.emit(
        EventKind.JOB_STATE,
        job_id=job.id,
        user=job.spec.user,
        **{**fields, "from": job.state.value, "to": job.state.value},
    )


def finish(txn: Transaction, action: Finish) -> None:
    """End a job. Unless it succeeded, its profiling runs are cancelled: they would measure what does not work.

    Raises Refused while an attempt still runs.
    """
    job = txn.job(action.job_id)
    _require_over(job, "ended")
    if action.state is not JobState.CANCELLED and job.cancelled_by:
        raise Refused(f"{job.id} has been cancelled by {job.cancelled_by}")
    failure = job.attempt.failure if job.attempt and job.state in JOB_ON_INSTANCE else None
    failures = (*job.failures, failure) if failure else job.failures
    transition_job(txn, job, action.state, action.reason, failures=failures)
    if action.state is not JobState.SUCCEEDED:
        _end_runs(txn, job, f"{job.id} has ended")


# --------------------------------------------------------------------------------------------------------------- arrays
def make_tasks(txn: Transaction, action: MakeTasks) -> None:
    """Make tasks of an array. Raises Refused if it was cancelled, has ended, or is not as the plan saw it."""
    array = txn.job(action.job_id)
    record, tasks = array.task_record, array.spec.tasks
    if record is None or tasks is None or array.cancelled_by or array.state not in (JobState.QUEUED, JobState.RUNNING):
        raise Refused(f"{array.id} makes no more tasks: it is {array.state}")
    if record.made != action.made_before:
        raise Refused(f"{array.id} has made {count_positions(record.made)} of {len(tasks)} tasks by now")
    if action.returned:
        array = txn.return_tasks(array, [_waiting_task(txn, each).id for each in action.returned])
    positions = array.task_record.next_positions(action.count, len(tasks)) if array.task_record is not None else []
    if not positions:
        raise Refused(f"{array.id} has made {count_positions(record.made)} of {len(tasks)} tasks by now")
    txn.make_tasks(array, positions, action.reason, per_unit=action.per_unit, begin_within_s=action.begin_within_s)
    if array.state is JobState.QUEUED or action.per_unit > 1:
        fields = {**reason_fields(action.reason), "from": array.state.value, "to": JobState.RUNNING.value}
        txn.emit(EventKind.JOB_STATE, job_id=array.id, user=array.spec.user, **fields)


def _waiting_task(txn: Transaction, task_id: JobId) -> Job:
    """Return a task that has never been placed. Raises Refused, NotFound: it is no longer so."""
    task = txn.job(task_id)
    if task.state is not JobState.QUEUED or task.attempts_made or task.cancelled_by is not None or task.run is not None:
        raise Refused(f"{task_id} is {task.state} by now")
    return task


# ------------------------------------------------------------------------------------------------------------ profiling
def profile(txn: Transaction, action: Profile) -> None:
    """Submit a job's profiling runs and record them with the job in one transaction, so that they are created once.

    A running job keeps its application until a new run has found something. Raises Refused if the job has moved on, was
    cancelled, or has a full set of runs.
    """
    job = txn.job(action.job_id)
    again = job.state in JOB_ON_INSTANCE
    if (job.state is not JobState.SUBMITTED and not again) or job.cancelled_by:
        raise Refused(f"{job.id} is {job.state}" + (f", cancelled by {job.cancelled_by}" if job.cancelled_by else ""))
    before = [txn.job(run) for run in job.profile_runs]
    if not all(run.state in JOB_ENDED if again else _is_finished_check(run) for run in before):
        raise Refused(f"{job.id} was profiled already: {', '.join(job.profile_runs)}")
    runs = txn.add_jobs([Submission(spec=spec, actor="hcloud") for spec in action.runs])
    names = tuple(run.id for run in runs)
    # A job is measured in place as long as it runs: only the last of these runs stays with it.
    kept = tuple(run.id for run in before if not _is_in_place(run))
    updated = replace(job, profile_runs=(*kept, *names))
    if not again:
        updated = replace(updated, application=action.application, wait_code=action.reason.code)
        updated = replace(updated, wait_text=action.reason.text)
    after = txn.put_job(updated)
    fields = {**reason_fields(action.reason), "from": job.state.value, "to": job.state.value, "profile_runs": names}
    txn.emit(EventKind.JOB_STATE, job_id=after.id, user=job.spec.user, **fields)


def _is_in_place(run: Job) -> bool:
    return run.spec.profile is not None and run.spec.profile.unit_id != ""


def _is_finished_check(run: Job) -> bool:
    return run.state in JOB_ENDED and run.spec.profile is not None and run.spec.profile.look


def classify(txn: Transaction, action: Classify) -> None:
    """Assign a job's application. A job that had to wait for it goes on without profiling runs that are still running.

    Raises Refused if the job has ended or was cancelled.
    """
    job = txn.job(action.job_id)
    if job.state in JOB_ENDED or job.cancelled_by:
        raise Refused(f"{job.id} is {job.state}" + (f", cancelled by {job.cancelled_by}" if job.cancelled_by else ""))
    waited = job.state in (JobState.SUBMITTED, JobState.PROFILED)
    if waited:
        if job.profile_runs and job.state is JobState.SUBMITTED:
            text = f"profiling runs {', '.join(job.profile_runs)} finished or given up"
            job = transition_job(txn, job, JobState.PROFILED, Reason(code="profiled", text=text))
        transition_job(txn, job, JobState.CLASSIFIED, action.reason, application=action.application, wait_code="")
    elif job.application != action.application:
        txn.put_job(replace(job, application=action.application))
    txn.emit(
        EventKind.JOB_CLASSIFIED,
        job_id=job.id,
        user=job.spec.user,
        **{**reason_fields(action.reason), "application": action.application, "source": action.source},
    )
    if waited:
        _end_runs(txn, job, f"{job.id} continues without them")


def _end_runs(txn: Transaction, job: Job, why: str) -> None:
    for name in job.profile_runs:
        run = txn.job(name)
        if run.state in JOB_ENDED or run.cancelled_by is not None:
            continue
        txn.put_job(replace(run, cancelled_by="hcloud"))
        fields: dict[str, Any] = {
            "from": run.state.value,
            "to": run.state.value,
            "code": "cancel_requested",
            "text": why,
        }
        txn.emit(EventKind.JOB_STATE, job_id=run.id, user=run.spec.user, **fields)


def correct(txn: Transaction, action: Correct) -> None:
    """Record a correction with its job and a CORRECTION event. Raises Refused if the job is not running."""
    job = txn.job(action.job_id)
    attempt = job.attempt
    if attempt is None or attempt.over or job.state not in JOB_ON_INSTANCE:
        raise Refused(f"{job.id} is not running")
    record_correction(txn, job, action.step, action.reason, action.instances)
    if action.learnt is not None:
        _learn(txn, job, action.learnt)


def miss(txn: Transaction, action: Miss) -> None:
    """Record that a job misses its target, or no longer does; write an event only if the code is new."""
    job, reason = txn.job(action.job_id), action.reason
    code = "" if reason.code == MET else reason.code
    if job.attempt is None or job.attempt.over or job.state not in JOB_ON_INSTANCE or job.unmet_code == code:
        return
    txn.put_job(replace_fields(job, unmet_code=code, unmet_text=reason.text if code else ""))
    fields = {**reason_fields(reason), "attempt": job.attempt.id}
    txn.emit(EventKind.TARGET_MISSED, job_id=job.id, user=job.spec.user, **fields)


def _learn(txn: Transaction, job: Job, learnt: Learnt) -> None:
    """Add what a running job showed to its application, if that is still known."""
    row = txn.application(row_name(job.application)) if job.application else None
    scale = scale_of(row, job.application) if row is not None else None
    if row is None or not scale:
        return
    known = row
    if learnt.tolerated:
        tolerated = {**row.cells.get("tolerated", {}), **learnt.tolerated}
        known = replace(row, cells={**row.cells, "tolerated": tolerated})
    factor = step_factor(row, learnt.vcpus, row.reference_vcpus)
    if learnt.performance is not None and factor is not None:
        known = feed(known, learnt.column, learnt.performance * factor / scale, None)
    if known != row:
        txn.put_application(known)
