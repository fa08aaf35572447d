"""Make the tasks of arrays: the next ones in order get rows, as many as may run soon.

An array of ten thousand tasks costs what one job costs until its tasks can run. Rows of waiting tasks are made up to a
window that grows with the tasks that run, so that the fleet that is bought for them doubles from plan to plan up to the
size of the array, its own limit, caps and budgets. All else about a task is decided as about any job.

Once it is known that tasks are short, many of them share a row and run in one unit, one after the other: a unit costs
more than such a task does.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from hcloud.classifier.applications import identify, key_of, known_as
from hcloud.core.arrays import ENDINGS, TaskList, TaskRecord
from hcloud.core.model import Job, JobId, JobSpec, JobState, Number, Reason
from hcloud.core.task_runs import RUN_TASKS_MOST
from hcloud.planner.context import PlanContext
from hcloud.planner.occupancy import TaskTally
from hcloud.planner.plan import Classify, Finish, MakeTasks
from hcloud.planner.text import seconds
from hcloud.spec.validation import counted

WINDOW_LEAST: Final = 256
"""So many tasks of an array wait with rows of their own at least, if there are as many."""
MADE_MOST: Final = 4_000
"""Rows that one plan makes at most, of all arrays."""
RUN_LASTS_S: Final = 30.0
"""A unit gets as many tasks as run in about this time."""
BEGIN_WITHIN_S: Final = 60.0
"""After this time no task begins in a unit any more: tasks that turn out to be longer are spread again."""
RUNS_LEAST: Final = 8
"""What is left of an array is divided into so many units at least, so that a few machines share it."""
SHORTEST_S: Final = 0.001


class TaskGrouping(NamedTuple):
    """How many tasks of an array run in one unit, and why."""

    per_unit: int
    why: str = ""
    """Empty: nothing is to be said of it."""
    begin_within_s: float | None = None


def plan_tasks(context: PlanContext) -> None:
    """Make tasks of each array, the most urgent first, and end arrays of which all tasks have ended."""
    left, tallies = MADE_MOST, context.snapshot.plan_cache.occupancy.tasks
    for array in sorted(context.snapshot.arrays, key=lambda each: (-each.spec.priority, each.submitted_at)):
        tasks, record = array.spec.tasks, array.task_record
        if tasks is None or record is None or array.id in context.snapshot.left_out.jobs:
            continue
        tally = tallies.get(array.id, TaskTally())
        if record.ended >= len(tasks):
            context.decisions.add(_finish(array, record))
            continue
        _classify(context, array)
        if not context.snapshot.paused and array.cancelled_by is None:
            left -= _make(context, array, tasks, record, tally, left)


def _make(
    context: PlanContext, array: Job, tasks: TaskList, record: TaskRecord, tally: TaskTally, rows_most: int
) -> int:
    """Make tasks of one array; return how many rows that takes."""
    unmade = record.unmade(len(tasks))
    alone = _alone(context, array) if may_share_unit(array.spec) == "" else ()
    grouping = group_tasks(array.spec, record, unmade + len(alone))
    returned = alone if grouping.per_unit > 1 else ()
    live, waiting, unmade = tally.live - len(returned), tally.waiting - len(returned), unmade + len(returned)
    window = max(WINDOW_LEAST, live - waiting) - waiting
    allowed = window if tasks.at_most is None else min(window, tasks.at_most - live)
    count = max(0, min(min(allowed, rows_most) * grouping.per_unit, unmade))
    if count == 0:
        return 0
    if returned:
        context.waiting.exclude(context.waiting.excluded | set(returned))
    numbers: dict[str, Number] = {"made": count, "live": live, "left": unmade - count}
    text = f"{counted(count, 'task')} of {array.id} may run soon{grouping.why}; {unmade - count} left"
    if grouping.per_unit > 1:
        numbers["per_unit"] = grouping.per_unit
    context.decisions.add(
        MakeTasks(
            job_id=array.id,
            made_before=record.made,
            count=count,
            reason=Reason(code="tasks_made", text=text, numbers=numbers),
            per_unit=grouping.per_unit,
            begin_within_s=grouping.begin_within_s,
            returned=returned,
        )
    )
    return math.ceil(count / grouping.per_unit)


def _alone(context: PlanContext, array: Job) -> tuple[JobId, ...]:
    """Return the tasks of an array that wait with rows of their own, and have never been placed."""
    waiting = context.waiting
    jobs = (each[-1] for similar in waiting.similar if similar.first.spec.tasks is not None for each in similar.members)
    return tuple(
        job.id
        for job in jobs
        if job.array == array.id and job.run is None and not job.attempts_made and job.id not in waiting.excluded
    )


def may_share_unit(spec: JobSpec) -> str:
    """Return why each task of an array needs a unit of its own; empty: many may run in one."""
    needs = {
        "nodes": spec.nodes.count > 1,
        "outputs": bool(spec.outputs or spec.bucket_outputs),
        "inputs": bool(spec.inputs),
        "framework": spec.framework is not None,
        "checkpoint": spec.checkpoint is not None,
        "setup": spec.setup is not None,
        "progress": spec.progress is not None,
        "metrics": spec.metrics is not None or spec.target.kind == "service",
        "profiling": spec.profile is not None,
    }
    found = [name for name, needed in needs.items() if needed]
    if spec.tasks is not None and any("\n" in value for _, values in spec.tasks.matrix for value in values):
        found.append("values of more than one line")
    return " and ".join(found)


def group_tasks(spec: JobSpec, record: TaskRecord, left: int) -> TaskGrouping:
    """Return how many of the ``left`` tasks of an array that are not begun run in one unit."""
    assert spec.tasks is not None, "only arrays have tasks"
    wanted, why_alone = spec.tasks.per_unit, may_share_unit(spec)
    if why_alone:
        return TaskGrouping(1, f", one in a unit as they have {why_alone}" if (wanted or 2) > 1 else "")
    if wanted is not None:
        return TaskGrouping(min(wanted, RUN_TASKS_MOST), f", {wanted} in a unit as asked" if wanted > 1 else "")
    mean_s = record.mean_s
    if mean_s is None:
        return TaskGrouping(1)
    per_unit = min(int(RUN_LASTS_S / max(mean_s, SHORTEST_S)), RUN_TASKS_MOST, left // RUNS_LEAST)
    if per_unit < 2:
        return TaskGrouping(1)
    return TaskGrouping(per_unit, f", {per_unit} in a unit as they run {seconds(mean_s)} each", BEGIN_WITHIN_S)


def _classify(context: PlanContext, array: Job) -> None:
    """Recognise the program of an array that was measured since it was admitted: later tasks have its application."""
    if array.application or array.cancelled_by is not None or context.policy.profiles_when != "beside":
        return
    identity = identify(array.spec)
    known = known_as(identity, context.snapshot.programs.get(identity.program, ()), own_runs=True)
    if known is not None:
        reason = Reason(code="classified_known", text=f"recognised as {known.name}, measured since")
        application = key_of(known, identity)
        context.decisions.add(Classify(job_id=array.id, application=application, source="known", reason=reason))


def _finish(array: Job, record: TaskRecord) -> Finish:
    counts: dict[str, int] = {state: record.count(state) for state in ENDINGS}
    state = JobState.FAILED if counts["failed"] else JobState.CANCELLED if counts["cancelled"] else JobState.SUCCEEDED
    if array.cancelled_by is not None:
        state = JobState.CANCELLED
    others = "".join(f", {count} {name}" for name, count in counts.items() if count and name != "succeeded")
    text = f"{counts['succeeded']} of {counted(record.ended, 'task')} succeeded{others}"
    if array.cancelled_by is not None:
        text += f"; cancelled by {array.cancelled_by}"
    return Finish(
        job_id=array.id, state=state, reason=Reason(code="tasks_ended", text=text, numbers=dict[str, Number](counts))
    )
