"""Make the tasks of arrays: the next ones in order get rows, as many as may run soon.

An array of ten thousand tasks costs what one job costs until its tasks can run. Rows of waiting tasks are made up to a
window that grows with the tasks that run, so that the fleet that is bought for them doubles from plan to plan up to the
size of the array, its own limit, caps and budgets. All else about a task is decided as about any job.
"""

from __future__ import annotations

from typing import Final

from hcloud.classifier.applications import identify, key_of, known_as
from hcloud.core.arrays import ENDINGS, TaskList, TaskRecord
from hcloud.core.model import Job, JobState, Number, Reason
from hcloud.planner.context import PlanContext
from hcloud.planner.occupancy import TaskTally
from hcloud.planner.plan import Classify, Finish, MakeTasks
from hcloud.spec.validation import counted

WINDOW_LEAST: Final = 256
"""So many tasks of an array wait with rows of their own at least, if there are as many."""
MADE_MOST: Final = 4_000
"""Tasks that one plan makes at most, of all arrays."""


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
        count = min(left, _to_make(tasks, record, tally))
        if count > 0 and not context.snapshot.paused:
            left -= count
            unmade = record.unmade(len(tasks)) - count
            numbers: dict[str, Number] = {"made": count, "live": tally.live, "left": unmade}
            text = f"{counted(count, 'task')} of {array.id} may run soon; {unmade} left"
            reason = Reason(code="tasks_made", text=text, numbers=numbers)
            context.decisions.add(MakeTasks(job_id=array.id, made_before=record.made, count=count, reason=reason))


def _to_make(tasks: TaskList, record: TaskRecord, tally: TaskTally) -> int:
    window = max(WINDOW_LEAST, tally.live - tally.waiting) - tally.waiting
    allowed = window if tasks.at_most is None else min(window, tasks.at_most - tally.live)
    return max(0, min(allowed, record.unmade(len(tasks))))


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
