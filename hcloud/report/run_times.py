"""Run-times report: how often runs ended within the limits that were predicted when their jobs were submitted.

The log is read as the daemon reads it: each job is predicted from the runs that had ended by its submission. Runs that
were stopped have no run time to compare with, and are only learnt from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from hcloud.core.model import Event, EventKind, JobId
from hcloud.forecast.run_time_tracker import (
    MAX_SUBMITTED,
    TRACKED_KINDS,
    RunTimeTracker,
    finished_run,
    submitted_features,
)
from hcloud.forecast.runtimes.features import RunFeatures
from hcloud.report.grouping import Grouping, day_of
from hcloud.report.table import ReportTable, Row, columns
from hcloud.spec.validation import counted

RUN_TIME_KINDS: frozenset[EventKind] = frozenset(TRACKED_KINDS)
"""Event kinds that the report reads."""
GROUPINGS = ("history", "user", "application", "day")
"""What a row may stand for; ``history``: how many runs of its program were known when the job was submitted."""
_HISTORIES = ((0, "none"), (3, "1 to 3 runs"), (15, "4 to 15 runs"))
_LONG_HISTORY = "16 runs or more"
_PROBABILITIES = np.array([0.05, 0.1, 0.25, 0.5, 0.75, 0.8, 0.9, 0.95])
_COVERED = (0.5, 0.8, 0.9, 0.95)
_COVERED_AT = [_PROBABILITIES.tolist().index(each) for each in _COVERED]
_SHORTEST_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class _Predicted:
    """What was predicted at the submission of a job."""

    features: RunFeatures
    history: int
    likely_s: float
    quantiles_s: tuple[float, ...]


@dataclass(slots=True)
class _Judged:
    """Runs of one row."""

    covered: list[list[bool]] = field(default_factory=list)
    near: int = 0
    losses: list[float] = field(default_factory=list)

    def add(self, predicted: _Predicted, run_s: float) -> None:
        quantiles_s = np.maximum(predicted.quantiles_s, _SHORTEST_S)
        error = math.log(max(run_s, _SHORTEST_S)) - np.log(quantiles_s)
        self.losses.append(float(np.maximum(_PROBABILITIES * error, (_PROBABILITIES - 1.0) * error).mean()))
        self.covered.append([run_s <= quantiles_s[at] for at in _COVERED_AT])
        self.near += min(run_s, predicted.likely_s) >= 0.5 * max(run_s, predicted.likely_s)

    def row(self) -> Row:
        count = len(self.losses)
        covered = (100.0 * np.mean(self.covered, axis=0)).tolist()
        return (count, 100.0 * self.near / count, *covered, round(math.fsum(self.losses) / count, 4))


def run_times_table(events: Iterable[Event], grouping: Grouping, since: float, until: float, now: float) -> ReportTable:
    """Return how good the limits of run times were, of jobs that ended between ``since`` and ``until``.

    ``now`` is unused.
    """
    tracker, predicted = RunTimeTracker(), dict[JobId, _Predicted]()
    groups, whole, stopped = dict[str, _Judged](), _Judged(), 0
    for event in events:
        if event.kind is EventKind.JOB_SUBMITTED:
            features = submitted_features(event)
            if event.job_id is not None and features is not None:
                predicted[event.job_id] = _predict(tracker, features)
                if len(predicted) > MAX_SUBMITTED:
                    del predicted[next(iter(predicted))]
        elif (before := predicted.pop(event.job_id or "", None)) is not None:
            run = finished_run(event, before.features)
            if run is not None and since <= event.at <= until:
                stopped += run.stopped
                for each in () if run.stopped else (groups.setdefault(_key(event, before, grouping), _Judged()), whole):
                    each.add(before, run.run_s)
        tracker.follow((event,))
    shares = (f"within_{100 * each:.0f}_pct" for each in _COVERED)
    return ReportTable(
        title=f"Run-times predicted at submission by {grouping.text}",
        columns=columns(*grouping.columns, "runs", "within_factor_2_pct", *shares, "log_pinball"),
        rows=tuple((key, *groups[key].row()) for key in sorted(groups, key=_order)),
        total=("total", *whole.row()) if whole.losses else None,
        notes=tuple(_notes(stopped)),
    )


def _predict(tracker: RunTimeTracker, features: RunFeatures) -> _Predicted:
    found = tracker.predictor.predict(features)
    return _Predicted(
        features=features,
        history=tracker.predictor.runs_of(features, ("application",)),
        likely_s=found.likely_s,
        quantiles_s=tuple(found.quantiles(_PROBABILITIES).tolist()),
    )


def _key(event: Event, predicted: _Predicted, grouping: Grouping) -> str:
    if grouping.kind == "history":
        return next((text for most, text in _HISTORIES if predicted.history <= most), _LONG_HISTORY)
    if grouping.kind == "day":
        return day_of(event.at)
    return (predicted.features.user if grouping.kind == "user" else predicted.features.application) or ""


def _order(key: str) -> tuple[int, str]:
    texts = [text for _, text in _HISTORIES]
    return (texts.index(key) if key in texts else len(texts), key)


def _notes(stopped: int) -> Iterable[str]:
    yield "within_80: share of runs that ended within the 80 % limit; 80 % is ideal, and so on"
    yield "within_factor_2: of the best single estimate; log_pinball: loss of the limits of log run times, 0 is perfect"
    if stopped:
        yield f"{counted(stopped, 'stopped run')} left out: how long they would have run is not known"
