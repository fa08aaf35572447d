"""Run-times report: how often runs ended within the limits that were predicted when their jobs were submitted.

The log is read as the daemon reads it: each job is predicted from the runs that had ended by its submission. Runs that
were stopped have no run time to compare with, and are only learnt from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hcloud.core.model import Event, EventKind, JobId
from hcloud.forecast.run_time_tracker import (
    MAX_SUBMITTED,
    TRACKED_KINDS,
    RunTimeTracker,
    finished_run,
    submitted_features,
)
from hcloud.forecast.runtimes.features import RunFeatures
from hcloud.forecast.runtimes.prediction import JUDGED_COLUMNS, JudgedRuns, RunTimePrediction
from hcloud.report.grouping import Grouping
from hcloud.report.table import ReportTable, columns
from hcloud.spec.validation import counted

RUN_TIME_KINDS: frozenset[EventKind] = frozenset(TRACKED_KINDS)
"""Event kinds that the report reads."""
GROUPINGS = ("history", "user", "application", "day")
"""What a row may stand for; ``history``: how many runs of its program were known when the job was submitted."""
_HISTORIES = ((0, "none"), (3, "1 to 3 runs"), (15, "4 to 15 runs"))
_LONG_HISTORY = "16 runs or more"
JUDGED_NOTES = (
    "within_80: share of runs that ended within the 80 % limit; 80 % is ideal, and so on",
    "within_factor_2: of the best single estimate; log_pinball: loss of the limits of log run times, 0 is perfect",
)
"""What the columns of ``JUDGED_COLUMNS`` mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Predicted:
    """What was predicted at the submission of a job."""

    features: RunFeatures
    history: int
    run_time: RunTimePrediction


def run_times_table(events: Iterable[Event], grouping: Grouping, since: float, until: float, now: float) -> ReportTable:
    """Return how good the limits of run times were, of jobs that ended between ``since`` and ``until``.

    ``now`` is unused.
    """
    tracker, predicted = RunTimeTracker(), dict[JobId, _Predicted]()
    groups, whole, stopped = dict[str, JudgedRuns](), JudgedRuns(), 0
    for event in events:
        if event.kind is EventKind.JOB_SUBMITTED:
            features = submitted_features(event)
            if event.job_id is not None and features is not None:
                predicted[event.job_id] = _predict(tracker, features)
                if len(predicted) > MAX_SUBMITTED:
                    del predicted[next(iter(predicted))]
        elif (before := predicted.pop(event.job_id or "", None)) is not None:
            run = finished_run(event, before.features)
            if run is None or not since <= event.at <= until:
                pass
            elif run.stopped:
                stopped += 1
            else:
                for each in (groups.setdefault(_key(event, before, grouping), JudgedRuns()), whole):
                    each.add(before.run_time, run.run_s)
        tracker.follow((event,))
    return ReportTable(
        title=f"Run-times predicted at submission by {grouping.text}",
        columns=columns(*grouping.columns, *JUDGED_COLUMNS),
        rows=tuple((key, *groups[key].row()) for key in sorted(groups, key=_order)),
        total=("total", *whole.row()) if whole.losses else None,
        notes=tuple(_notes(stopped)),
    )


def _predict(tracker: RunTimeTracker, features: RunFeatures) -> _Predicted:
    found = tracker.predictor.predict(features)
    return _Predicted(
        features=features,
        history=tracker.predictor.runs_of(features, ("application",)),
        run_time=RunTimePrediction.of(found),
    )


def _key(event: Event, predicted: _Predicted, grouping: Grouping) -> str:
    if grouping.kind == "history":
        return next((text for most, text in _HISTORIES if predicted.history <= most), _LONG_HISTORY)
    if grouping.kind == "day":
        return grouping.day_of(event.at)
    return (predicted.features.user if grouping.kind == "user" else predicted.features.application) or ""


def _order(key: str) -> tuple[int, str]:
    texts = [text for _, text in _HISTORIES]
    return (texts.index(key) if key in texts else len(texts), key)


def stopped_note(stopped: int) -> str:
    """Return why stopped runs are not counted."""
    return f"{counted(stopped, 'stopped run')} left out: how long they would have run is not known"


def _notes(stopped: int) -> Iterable[str]:
    yield from JUDGED_NOTES
    if stopped:
        yield stopped_note(stopped)
