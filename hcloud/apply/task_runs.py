"""Tasks that run in one unit: what their machine reports of them is recorded with their array, each end once.

Those that succeed get no row. A task that fails gets one, as if it had run alone, so that retries, reasons and reports
are those of all jobs. What had not begun when the unit is over counts as not made: it is made again, at no retry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from hcloud.core.arrays import (
    IdRange,
    Interval,
    TaskRecord,
    has_position,
    ids_text,
    positions_in,
    with_positions,
    without_positions,
)
from hcloud.core.model import Allocation, Attempt, EventKind, FailureCause, Job, JobState
from hcloud.core.rows import number_of, replace_fields
from hcloud.core.task_runs import TaskEnds, TaskProgress, UnitTasks, text_of_ends
from hcloud.store import Transaction
from hcloud.store.event_fields import submitted_fields, task_fields


def unit_tasks(job: Job) -> UnitTasks | None:
    """Return the tasks that the unit of a row runs; None: it runs its own only, once."""
    run, tasks = job.run, job.spec.tasks
    if run is None or tasks is None:
        return None
    positions = with_positions(run.others, [job.task_position])
    return UnitTasks(
        positions=positions,
        ids=tuple(tasks.id_at(each) for each in positions_in(positions)),
        first_job=number_of(job.array) + 1,
        matrix=tasks.matrix,
        begin_within_s=run.begin_within_s,
    )


def new_ends(job: Job, progress: TaskProgress) -> list[TaskEnds]:
    """Return what a machine reports of the tasks of a row's unit and is not recorded: a task ends once, and only in
    the unit to which it was given."""
    run, found = job.run, list[TaskEnds]()
    if run is None:
        return found
    open_positions = run.others if run.own is not None else with_positions(run.others, [job.task_position])
    for each in progress.ended:
        mine = _clipped(open_positions, each.first, each.last)
        began_at = max(each.started_at, min(run.recorded_until, each.ended_at))  # tasks run one after the other
        found += [replace(each, first=first, last=last, started_at=began_at) for first, last in mine]
        open_positions = without_positions(open_positions, positions_in(mine))
    return found


def _clipped(intervals: Iterable[Interval], first: int, last: int) -> list[Interval]:
    return [(max(first, low), min(last, high)) for low, high in intervals if low <= last and high >= first]


def record_tasks(txn: Transaction, job: Job, progress: TaskProgress) -> Job:
    """Record the ends of tasks of a unit that are not recorded yet; return its row."""
    found = new_ends(job, progress)
    if job.run is None or (not found and job.run.begun == progress.begun):
        return job
    own, run = job.task_position, job.run
    if found:
        run = replace(run, recorded_until=found[-1].ended_at)
    ends = [_in_its_time(job, each, txn.now) for each in found]
    mine = next((each for each in ends if each.first <= own <= each.last), None)
    others = [part for each in ends for part in _without(each, own)]
    if mine is not None:
        run = replace(run, own=replace(mine, first=own, last=own))
    _record_others(txn, job, others)
    left = without_positions(run.others, (at for each in others for at in range(each.first, each.last + 1)))
    begun = [at for at in positions_in(progress.begun) if has_position(left, at) or (at == own and run.own is None)]
    job = txn.put_job(replace_fields(job, run=replace(run, others=left, begun=with_positions((), begun))))
    if ends and job.attempt is not None:
        txn.emit(
            EventKind.TASKS_ENDED,
            job_id=job.array,
            instance_id=job.attempt.allocations[0].instance_id,
            user=job.spec.user,
            attempt=job.attempt.id,
            unit=job.attempt.unit_id(0),
            ended=[text_of_ends(each) for each in ends],
            ids=_ids_text(job, ends),
        )
    return job


def _ids_text(job: Job, ends: Sequence[TaskEnds]) -> str:
    """Return the ids of tasks that ended, in the same order."""
    tasks = job.spec.tasks
    assert tasks is not None, "only tasks have runs"
    ranges = list[IdRange]()
    for position in (at for each in ends for at in range(each.first, each.last + 1)):
        task_id = tasks.id_at(position)
        if ranges and task_id == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], task_id, 1)
        else:
            ranges.append((task_id, task_id, 1))
    return ids_text(ranges)


def _in_its_time(job: Job, each: TaskEnds, now: float) -> TaskEnds:
    """Return an end between the placement of its unit and now, whatever the machine's clock says."""
    since = job.attempt.placed_at if job.attempt is not None else now
    ended_at = min(now, max(since, each.ended_at))
    lasted_s = max(0.0, each.ended_at - each.started_at)
    return replace(each, started_at=max(since, ended_at - lasted_s), ended_at=ended_at)


def _without(each: TaskEnds, own: int) -> Iterator[TaskEnds]:
    """Yield an end without the position ``own``."""
    if not each.first <= own <= each.last:
        yield each
        return
    if each.first < own:
        yield replace(each, last=own - 1)
    if own < each.last:
        yield replace(each, first=own + 1)


def _record_others(txn: Transaction, job: Job, ends: Sequence[TaskEnds]) -> None:
    """Record the ends of tasks without a row with their array; give those that failed a row."""
    array, run = txn.job(job.array), job.run
    record = array.task_record
    assert record is not None and run is not None
    failed = list[TaskEnds]()
    for each in ends:
        if each.cause is None:
            record = record.with_ended("succeeded", range(each.first, each.last + 1))
            record = record.with_times(each.count, each.ended_at - each.started_at)
        elif has_position(run.cancelled, each.first) or array.cancelled_by is not None:
            record = record.with_ended("cancelled", [each.first])
        else:
            failed.append(each)
    if record is not array.task_record:
        txn.put_job(replace_fields(array, task_record=record))
    _give_rows(txn, job, failed)


def _give_rows(txn: Transaction, lead: Job, failed: Sequence[TaskEnds]) -> None:
    """Give tasks that failed in the unit of ``lead`` rows, with an attempt that is over: the next plan judges them."""
    if not failed or lead.attempt is None:
        return
    first, attempt = number_of(lead.array) + 1, lead.attempt
    held = attempt.allocations[0]
    rows = list[Job]()
    for each in failed:
        job_id = f"job-{first + each.first}"
        allocation = Allocation(
            rank=0,
            instance_id=held.instance_id,
            resources=held.resources,
            started_at=each.started_at,
            ended_at=each.ended_at,
            exit_code=each.exit_code,
            cause=each.cause,
            detail=each.detail,
        )
        own = Attempt(id=f"{job_id}.1", number=1, placed_at=attempt.placed_at, allocations=(allocation,))
        row = replace_fields(
            lead, id=job_id, state=JobState.RUNNING, attempt=own, attempts_made=1, run=None, cancelled_by=None,
            unmet_code="", unmet_text="", corrections=(),
        )  # fmt: skip
        rows.append(row)
    txn.add_task_rows(rows)
    for row in rows:
        _emit_events(txn, row)


def _emit_events(txn: Transaction, row: Job) -> None:
    """Write the events that a task of its own would have; its time on the machine is its unit's, and has none."""
    assert row.attempt is not None
    (held,) = row.attempt.allocations
    where: dict[str, Any] = {"job_id": row.id, "user": row.spec.user}
    txn.emit(EventKind.JOB_SUBMITTED, **where, **submitted_fields(row) | task_fields(row))
    text = f"ran in a unit with other tasks of {row.array} on {held.instance_id}"
    allocations = [f"{held.instance_id}:0:{held.resources.vcpus}:{held.resources.memory_mib}"]
    txn.emit(
        EventKind.ATTEMPT_PLACED, **where, attempt=row.attempt.id, allocations=allocations, code="in_a_run", text=text
    )
    txn.emit(
        EventKind.UNIT_ENDED,
        **where,
        instance_id=held.instance_id,
        at=held.ended_at,
        attempt=row.attempt.id,
        rank=0,
        exit_code=held.exit_code,
        cause=held.cause.value if held.cause else None,
        detail=held.detail,
        started_at=held.started_at,
    )


def settle_run(txn: Transaction, job: Job, end: dict[str, Any]) -> tuple[Job, dict[str, Any]]:
    """Settle the tasks of a unit that is over; return its row, and ``end`` (Allocation fields) as it is for its own
    task.

    A task that began and is not known to have ended fails as the unit did. The others are made again.
    """
    run, own = job.run, job.task_position
    assert run is not None
    cause = end.get("cause") or FailureCause.INSTANCE_LOST
    lost = [
        TaskEnds(
            first=at, last=at, started_at=min(_since(job), end["ended_at"]), ended_at=end["ended_at"], exit_code=None,
            cause=cause, detail=str(end.get("detail") or "its unit ended before it did"),
        )
        for at in positions_in(run.begun)
        if has_position(run.others, at)
    ]  # fmt: skip
    _record_others(txn, job, lost)
    job = txn.put_job(
        replace_fields(job, run=replace(run, others=without_positions(run.others, [each.first for each in lost])))
    )
    job = end_run(txn, job)
    if run.own is not None:
        end = {**end, "exit_code": run.own.exit_code, "cause": run.own.cause, "detail": run.own.detail}
    elif end.get("cause") is None:
        began = has_position(run.begun, own)
        cause = FailureCause.INSTANCE_LOST if began else FailureCause.START_REFUSED
        end = {**end, "exit_code": None, "cause": cause, "detail": "its unit ended before it did"}
    return job, end


def _since(job: Job) -> float:
    held = job.attempt.allocations[0] if job.attempt is not None else None
    started_at = held.started_at if held is not None else None
    return started_at if started_at is not None else job.submitted_at


def end_run(txn: Transaction, job: Job) -> Job:
    """Count the tasks of a row's run that have not begun as not made, or as cancelled if they were; return the row."""
    array, run = txn.job(job.array), job.run
    assert run is not None and array.task_record is not None
    record: TaskRecord = array.task_record
    is_cancelled = array.cancelled_by is not None
    left = list(positions_in(run.others))
    cancelled = [each for each in left if is_cancelled or has_position(run.cancelled, each)]
    record = record.with_ended("cancelled", cancelled).with_returned(
        [each for each in left if not is_cancelled and not has_position(run.cancelled, each)]
    )
    if record != array.task_record:
        txn.put_job(replace_fields(array, task_record=record))
    return txn.put_job(replace_fields(job, run=replace(run, others=(), begun=(), cancelled=())))
