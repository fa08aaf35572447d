"""State changes: the row and its event, in one transaction."""

from __future__ import annotations

from typing import Any

from hcloud.apply.task_runs import end_run, settle_run
from hcloud.core.dependencies import Dependency, holds, shown, wait_words
from hcloud.core.model import (
    JOB_ENDED,
    Correction,
    EventKind,
    FailureCause,
    Instance,
    InstanceId,
    InstanceState,
    Job,
    JobState,
    Reason,
    move_instance,
    move_job,
)
from hcloud.core.rows import replace_fields
from hcloud.planner.run_times import recorded_features
from hcloud.planner.snapshot import DirectiveScope
from hcloud.store import Transaction


def reason_fields(reason: Reason) -> dict[str, Any]:
    """Return the event fields of a reason: its numbers, ``code`` and ``text``."""
    return {**reason.numbers, "code": reason.code, "text": reason.text}


def transition_job(txn: Transaction, job: Job, to: JobState, reason: Reason, **changes: Any) -> Job:
    """Move ``job`` to state ``to``; write the row and a JOB_STATE event, and JOB_FINISHED if the job ended.

    Jobs that wait for its end are released, or end with it, in the same transaction: no crash can come between.

    Raises InvalidTransition if the transition table forbids the move, StaleWrite if the row has changed.
    """
    if to in JOB_ENDED and job.run is not None and job.run.others:
        job = end_run(txn, job)
    after = _move(txn, job, to, reason, **changes)
    if to in JOB_ENDED and not after.array:  # the tasks of arrays are waited for together
        _settle_dependents(txn, after)
    return after


def _move(txn: Transaction, job: Job, to: JobState, reason: Reason, **changes: Any) -> Job:
    if to in JOB_ENDED:
        changes = {"finished_at": txn.now, "outcome": reason.text, "wait_code": "", "awaiting": ()} | changes
    if job.unmet_code and to is not JobState.RUNNING:
        changes = {"unmet_code": "", "unmet_text": ""} | changes
    if changes.get("wait_code") == "":
        changes |= {"wait_text": "", "reserved": ()}
    after = txn.put_job(move_job(job, to, **changes))
    fields = {**reason_fields(reason), "from": job.state.value, "to": to.value}
    txn.emit(EventKind.JOB_STATE, job_id=job.id, user=job.spec.user, **fields)
    if to in JOB_ENDED:
        _emit_finished(txn, after)
    return after


def _settle_dependents(txn: Transaction, ended: Job) -> None:
    """Release the jobs that wait for ``ended`` if it ended as awaited, else cancel them, and what waits for them."""
    all_ended = [ended]
    while all_ended:
        upstream = all_ended.pop()
        for job in txn.take_dependents(upstream.id):
            left = tuple(each for each in job.waits_for if each.job_id != upstream.id)
            broken = [
                each for each in job.waits_for if each.job_id == upstream.id and not holds(each.ending, upstream.state)
            ]
            if broken:
                text = f"waited for {broken[0].words}, which {_ENDED_AS[upstream.state]}"
                reason = Reason(code="dependency_not_met", text=text, numbers={"upstream": upstream.id})
                ended_at = {"released_at": txn.now}  # it never waited for anything else
                all_ended.append(_move(txn, job, JobState.CANCELLED, reason, waits_for=(), **ended_at))
            else:
                _release(txn, job, upstream, left)


_ENDED_AS = {JobState.SUCCEEDED: "succeeded", JobState.FAILED: "failed", JobState.CANCELLED: "was cancelled"}


def _release(txn: Transaction, job: Job, upstream: Job, left: tuple[Dependency, ...]) -> None:
    """Record that a job no longer waits for ``upstream``; if nothing else is ``left``, the next plan has it."""
    text = f"{shown(upstream.id, upstream.spec.name)} {_ENDED_AS[upstream.state]}"
    if left:
        changes: dict[str, Any] = {"wait_text": wait_words(left)}
        code, text = "dependency_ended", f"{text}; {wait_words(left)}"
    else:
        changes = {"wait_code": "", "wait_text": "", "released_at": txn.now}
        code, text = "released", f"{text}: it waits for no other job any more"
    txn.put_job(replace_fields(job, waits_for=left, **changes))
    fields: dict[str, Any] = {"from": job.state.value, "to": job.state.value, "code": code, "text": text}
    fields["upstream"] = upstream.id
    txn.emit(EventKind.JOB_STATE, job_id=job.id, user=job.spec.user, **fields)


CORRECTIONS_KEPT = 64
"""The number of latest corrections kept with a job."""


def record_correction(
    txn: Transaction, job: Job, step: str, reason: Reason, instances: tuple[InstanceId, ...] = ()
) -> None:
    """Record a correction with a job that has an attempt, and a CORRECTION event."""
    attempt = job.attempt
    assert attempt is not None
    made = Correction(at=txn.now, step=step, attempt=attempt.id, instances=instances)
    txn.put_job(replace_fields(job, corrections=(*job.corrections, made)[-CORRECTIONS_KEPT:]))
    fields = {**reason_fields(reason), "attempt": attempt.id, "step": step}
    txn.emit(EventKind.CORRECTION, job_id=job.id, user=job.spec.user, **fields)


def _emit_finished(txn: Transaction, job: Job) -> None:
    run_s, paused = run_time_s(job), paused_s(job)
    pauses: dict[str, Any] = {"paused_s": round(paused, 3)} if paused else {}
    of_array: dict[str, Any] = {"array": job.array} if job.array else {}
    txn.emit(
        EventKind.JOB_FINISHED,
        job_id=job.id,
        user=job.spec.user,
        state=job.state.value,
        outcome=job.outcome,
        deadline_at=job.deadline_at,
        target_met=deadline_met(job),
        run_s=run_s,
        queue_s=max(0.0, _last_end(job, txn.now) - job.eligible_at - run_s - paused),
        **pauses,
        attempts=job.attempts_made,
        stopped=was_stopped(job),
        **of_array,
        features={} if job.is_array else recorded_features(job.spec, job.submitted_at),
    )


def run_time_s(job: Job) -> float:
    """Return how long the last attempt ran, from first start to last end without pauses, in seconds; 0 if it never
    started."""
    if job.run is not None and job.run.own is not None:
        return job.run.own.ended_at - job.run.own.started_at
    held = job.attempt.allocations if job.attempt else ()
    starts = [a.started_at for a in held if a.started_at is not None]
    ends = [a.ended_at for a in held if a.ended_at is not None]
    return max(0.0, max(ends) - min(starts) - paused_s(job)) if starts and ends else 0.0


def paused_s(job: Job) -> float:
    """Return how long the last attempt of a job that has ended was paused, in seconds."""
    held = job.attempt.allocations if job.attempt else ()
    return max((each.paused_s for each in held), default=0.0)


def was_stopped(job: Job) -> bool:
    """Return whether the last run of an ended job was stopped before it ended by itself, with any exit code."""
    if job.state is JobState.SUCCEEDED:
        return False
    attempt = job.attempt
    exited = attempt is not None and any(each.cause is FailureCause.EXIT_CODE for each in attempt.allocations)
    return job.state is JobState.CANCELLED or attempt is None or attempt.stop_cause is not None or not exited


def _last_end(job: Job, now: float) -> float:
    """Return when the last unit ended; ``now`` if none ran. A daemon that was down may record it much later."""
    if job.run is not None and job.run.own is not None:
        return job.run.own.ended_at
    ends = [a.ended_at for a in job.attempt.allocations if a.ended_at is not None] if job.attempt else []
    return max(ends, default=now)


def deadline_met(job: Job) -> bool | None:
    """Return whether an ended batch job kept its deadline; None if it has none or the user cancelled it."""
    if job.deadline_at is None or job.state is JobState.CANCELLED:
        return None
    return job.state is JobState.SUCCEEDED and _last_end(job, job.finished_at or 0.0) <= job.deadline_at


def transition_instance(
    txn: Transaction, instance: Instance, to: InstanceState, reason: Reason, **changes: Any
) -> Instance:
    """Move ``instance`` to state ``to``; write the row and an INSTANCE_STATE or INSTANCE_TERMINATED event.

    Raises InvalidTransition, StaleWrite.
    """
    changes["reason"] = reason.text
    if to is InstanceState.TERMINATED:
        changes = {"terminated_at": txn.now} | changes
    after = txn.put_instance(move_instance(instance, to, **changes))
    if to is InstanceState.TERMINATED:
        txn.drop_directive(DirectiveScope.INSTANCE, after.id)
    fields = reason_fields(reason)
    if to is InstanceState.TERMINATED:
        billed = after.launched_at is not None
        txn.emit(
            EventKind.INSTANCE_TERMINATED,
            instance_id=after.id,
            **{**fields, "terminated_at": after.terminated_at, "billed": billed},
        )
    else:
        txn.emit(
            EventKind.INSTANCE_STATE, instance_id=after.id, **{**fields, "from": instance.state.value, "to": to.value}
        )
    return after


def release_allocation(txn: Transaction, job: Job, rank: int, **end: Any) -> Job:
    """Record that one rank's unit is over, with a UNIT_ENDED event. Returns ``job`` itself if it is released already.

    ``end``: Allocation fields, ``ended_at`` among them, and ``cpu_s`` and ``memory_mib_max`` for the event only.
    """
    attempt = job.attempt
    if attempt is None:
        return job
    measured = {key: end.pop(key, None) for key in ("cpu_s", "memory_mib_max")}
    held = next((a for a in attempt.allocations if a.rank == rank), None)
    if held is None or held.released:
        return job
    if job.run is not None:  # all tasks of the unit are settled with its end
        job, end = settle_run(txn, job, end)
    ended = replace_fields(held, **end)
    if ended.paused_at is not None:
        paused = ended.total_paused_s(txn.now)
        ended = replace_fields(ended, paused_at=None, paused_text="", paused_s=paused)
    others = tuple(ended if a.rank == rank else a for a in attempt.allocations)
    after = txn.put_job(replace_fields(job, attempt=replace_fields(attempt, allocations=others)))
    txn.emit(
        EventKind.UNIT_ENDED,
        job_id=job.id,
        instance_id=held.instance_id,
        user=job.spec.user,
        at=ended.ended_at,
        attempt=attempt.id,
        rank=rank,
        exit_code=ended.exit_code,
        cause=ended.cause.value if ended.cause else None,
        detail=ended.detail,
        started_at=ended.started_at,
        **measured,
    )
    return after
