"""Accuracy of predicted run times: what was recorded when each job started, compared with how long it ran.

Nothing is predicted again. A run counts with the prediction of its last attempt, in the row of what that prediction
followed from most: features of past runs, the job's profile, or the mean of its program's runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hcloud.core.model import Event, EventKind, JobId
from hcloud.forecast.run_time_tracker import finished_run
from hcloud.forecast.runtimes.prediction import JUDGED_COLUMNS, RECORDED_IN, JudgedRuns, RunTimePrediction
from hcloud.report.grouping import Grouping, text
from hcloud.report.run_times import JUDGED_NOTES, stopped_note
from hcloud.report.table import ReportTable, columns
from hcloud.spec.validation import counted

RUN_TIME_ACCURACY_KINDS: frozenset[EventKind] = frozenset({EventKind.ATTEMPT_PLACED, EventKind.JOB_FINISHED})
"""Event kinds that the report reads."""
GROUPINGS = ("feature", "user", "application", "day")
"""What a row may stand for."""


def run_time_accuracy_table(
    events: Iterable[Event], grouping: Grouping, since: float, until: float, now: float
) -> ReportTable:
    """Return how well recorded predictions held, of jobs that ended between ``since`` and ``until``.

    ``now`` is unused.
    """
    attempts = dict[JobId, tuple[str, RunTimePrediction | None]]()
    groups, whole, stopped, unknown = dict[str, JudgedRuns](), JudgedRuns(), 0, 0
    for event in events:
        job_id = event.job_id or ""
        if event.kind is EventKind.ATTEMPT_PLACED:
            attempt, recorded = text(event, "attempt"), event.fields.get(RECORDED_IN)
            # Ranks that join a running attempt do not predict it anew.
            if job_id not in attempts or attempts[job_id][0] != attempt:
                attempts[job_id] = (attempt, RunTimePrediction.from_fields(recorded))
            continue
        _, predicted = attempts.pop(job_id, ("", None))
        run = finished_run(event, None)
        if run is None or not since <= event.at <= until:
            continue
        if predicted is None:
            unknown += 1
        elif run.stopped:
            stopped += 1
        else:
            key = _key(event, predicted, run.features.application, grouping)
            for each in (groups.setdefault(key, JudgedRuns()), whole):
                each.add(predicted, run.run_s)
    return ReportTable(
        title=f"Accuracy of predicted run times by {grouping.text}",
        columns=columns(*grouping.columns, *JUDGED_COLUMNS),
        rows=tuple((key, *groups[key].row()) for key in sorted(groups)),
        total=("total", *whole.row()) if whole.losses else None,
        notes=tuple(_notes(stopped, unknown)),
    )


def _key(event: Event, predicted: RunTimePrediction, application: str | None, grouping: Grouping) -> str:
    if grouping.kind == "feature":
        return predicted.source
    if grouping.kind == "day":
        return grouping.day_of(event.at)
    return (event.user if grouping.kind == "user" else application) or ""


def _notes(stopped: int, unknown: int) -> Iterator[str]:
    yield from JUDGED_NOTES
    if stopped:
        yield stopped_note(stopped)
    if unknown:
        yield f"{counted(unknown, 'run')} left out: no prediction was recorded when they started"
