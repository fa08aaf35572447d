"""Job actions that only change rows: enqueue, wait, finish, preempted."""

from __future__ import annotations

from dataclasses import replace

from hcloud.apply.records import change_job, reason_fields
from hcloud.errors import Refused
from hcloud.model import JOB_ENDED, JOB_ON_INSTANCE, EventKind, Job, JobState
from hcloud.planner.plan import Enqueue, Finish, Preempted, Wait
from hcloud.store import Transaction


def _require_over(job: Job, wish: str) -> None:
    if job.state in JOB_ON_INSTANCE and job.attempt is not None and not job.attempt.over:
        raise Refused(f"{job.id} cannot be {wish}: attempt {job.attempt.id} has not ended")


def enqueue(txn: Transaction, action: Enqueue) -> None:
    """Queue a job. Refused while an attempt of it still runs, or when it has ended."""
    job = txn.job(action.job_id)
    _require_over(job, "queued")
    failures = (*job.failures, action.failure) if action.failure else job.failures
    change_job(
        txn,
        job,
        JobState.QUEUED,
        action.reason,
        queued_at=txn.now,
        not_before_at=action.not_before_at,
        awaiting=(),
        failures=failures,
        wait_code="",
    )


def preempted(txn: Transaction, action: Preempted) -> None:
    """Note that a job lost its machine. Refused while a part of it still runs."""
    job = txn.job(action.job_id)
    _require_over(job, "marked preempted")
    failures = (*job.failures, action.failure)
    change_job(
        txn, job, JobState.PREEMPTED, action.reason, not_before_at=action.not_before_at, failures=failures, wait_code=""
    )


def wait(txn: Transaction, action: Wait) -> None:
    """Note why a job waits; an event only when the code is new."""
    job = txn.job(action.job_id)
    if job.state in JOB_ENDED or job.state in JOB_ON_INSTANCE or job.wait_code == action.reason.code:
        return
    txn.put_job(replace(job, wait_code=action.reason.code))
    fields = reason_fields(action.reason)
    txn.emit(
        EventKind.JOB_STATE,
        job_id=job.id,
        user=job.spec.user,
        **{**fields, "from": job.state.value, "to": job.state.value},
    )


def finish(txn: Transaction, action: Finish) -> None:
    """End a job. Refused while an attempt of it still runs."""
    job = txn.job(action.job_id)
    _require_over(job, "ended")
    if action.state is not JobState.CANCELLED and job.cancelled_by:
        raise Refused(f"{job.id} was cancelled by {job.cancelled_by} meanwhile")
    failure = job.attempt.failure if job.attempt and job.state in JOB_ON_INSTANCE else None
    failures = (*job.failures, failure) if failure else job.failures
    change_job(txn, job, action.state, action.reason, failures=failures)
