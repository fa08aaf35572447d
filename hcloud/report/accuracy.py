"""Accuracy report: errors of performance predictions against measurements, and coverage of their 80 % limits.

Each PREDICTION event is one prediction. Its ``question`` is ``run`` for a job that ran, or the matrix of a cell that
profiling measured after it was estimated (type, step, nodes, tolerated, caused). Errors of performance are relative to
the measurement, in percent. Errors of interference (tolerated, caused) are points on a scale of 100.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hcloud.core.model import Event, EventKind
from hcloud.report.grouping import Grouping, day_of, number, text
from hcloud.report.table import ReportTable, Row, columns
from hcloud.spec.validation import counted

ACCURACY_KINDS: frozenset[EventKind] = frozenset({EventKind.PREDICTION})
"""Event kinds that the report reads."""
GROUPINGS = ("application", "question", "type", "user", "day")
"""What a row may stand for."""
INTERFERENCE = ("tolerated", "caused")


@dataclass(slots=True)
class PredictionErrors:
    """Prediction errors of one row of the report."""

    absolute: list[float] = field(default_factory=list)
    """Absolute errors, in percent or points."""
    signed: list[float] = field(default_factory=list)
    """The same errors with their signs; positive if the prediction was too high."""
    within: int = 0
    """Number of measurements within the 80 % limits of their prediction."""

    def add(self, predicted: float, low: float, high: float, measured: float, *, interference: bool) -> None:
        """Record one prediction."""
        error = predicted - measured if interference else 100.0 * (predicted - measured) / measured
        self.absolute.append(abs(error))
        self.signed.append(error)
        self.within += low <= measured <= high

    def row(self) -> Row:
        """Return count, mean absolute error, its 90th percentile, bias, and the percentage within limits."""
        count = len(self.absolute)
        mean, bias = math.fsum(self.absolute) / count, math.fsum(self.signed) / count
        return (count, mean, quantile(self.absolute, 0.9), bias, 100.0 * self.within / count)


def quantile(values: Sequence[float], part: float) -> float:
    """Return the ``part`` quantile (0..1) by nearest rank: the smallest value with that share at or below it."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def accuracy_table(events: Iterable[Event], grouping: Grouping, since: float, until: float, now: float) -> ReportTable:
    """Return the errors of the predictions made between ``since`` and ``until``. ``now`` is unused."""
    groups: dict[str, PredictionErrors] = {}
    whole, shared, unusable = PredictionErrors(), 0, 0
    for event in events:
        if not since <= event.at <= until:
            continue
        predicted, low, high, measured = (number(event, key, math.nan) for key in _NUMBERS)
        interference = text(event, "question") in INTERFERENCE
        if not all(map(math.isfinite, (predicted, low, high, measured))) or (measured <= 0 and not interference):
            unusable += 1
            continue
        for each in (groups.setdefault(_key(event, grouping), PredictionErrors()), whole):
            each.add(predicted, low, high, measured, interference=interference)
        shared += event.fields.get("alone") is False
    names = columns(
        *grouping.columns, "predictions", "mean_error_pct", "p90_error_pct", "bias_pct", "within_limits_pct"
    )
    return ReportTable(
        title=f"Accuracy of predictions by {grouping.text}",
        columns=names,
        rows=tuple((key, *groups[key].row()) for key in sorted(groups)),
        total=("total", *whole.row()) if whole.absolute else None,
        notes=tuple(_notes(shared, unusable)),
    )


_NUMBERS = ("predicted", "low", "high", "measured")


def _notes(shared: int, unusable: int) -> list[str]:
    notes = ["within_limits: 80 % is ideal, as the limits are 80 % limits; bias above 0: predicted too fast"]
    if shared:
        notes.append(f"{counted(shared, 'job')} shared a machine, while predictions assume a machine of its own")
    if unusable:
        notes.append(f"{counted(unusable, 'prediction')} left out: no usable measurement")
    return notes


def _key(event: Event, grouping: Grouping) -> str:
    if grouping.kind == "day":
        return day_of(event.at)
    if grouping.kind == "user":
        return event.user or ""
    return text(event, "instance_type" if grouping.kind == "type" else grouping.kind)
