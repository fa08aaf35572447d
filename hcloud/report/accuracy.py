"""Accuracy report: errors of predictions against measurements, and how often their 80 % limits hold.

Each PREDICTION event is one prediction. Its ``question`` is ``run`` for a job that ran, ``loss`` for what it lost
beside its neighbours, or the matrix of a cell that profiling measured after it was estimated (type, step, nodes,
tolerated, caused). Errors of performance are relative to the measurement, in percent. Errors of pressures (tolerated,
caused) and of losses are points on a scale of 100.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hcloud.core.model import Event, EventKind
from hcloud.report.grouping import Grouping, number, text
from hcloud.report.table import ReportTable, Row, columns
from hcloud.spec.validation import counted

ACCURACY_KINDS: frozenset[EventKind] = frozenset({EventKind.PREDICTION})
"""Event kinds that the report reads."""
GROUPINGS = ("quantity", "application", "question", "type", "user", "day")
"""What a row may stand for."""
IN_POINTS = ("tolerated", "caused", "loss")
"""Questions with errors in points; those of all others are relative."""
QUANTITIES = ("speed", *IN_POINTS)
"""What is predicted, in the order of the report; ``speed`` is performance by any question."""


@dataclass(slots=True)
class PredictionErrors:
    """Prediction errors of one row of the report."""

    absolute: list[float] = field(default_factory=list)
    """Absolute errors, in percent or points."""
    signed: list[float] = field(default_factory=list)
    """The same errors with their signs; positive if the prediction was too high."""
    within: int = 0
    """Number of measurements within the 80 % limits of their prediction."""

    def add(self, predicted: float, low: float, high: float, measured: float, *, in_points: bool) -> None:
        """Record one prediction."""
        error = predicted - measured if in_points else 100.0 * (predicted - measured) / measured
        self.absolute.append(abs(error))
        self.signed.append(error)
        self.within += low <= measured <= high

    def row(self, *, comparable: bool = True) -> Row:
        """Return count, mean absolute error, its 90th percentile, bias, and the percentage within limits.

        Not ``comparable``: some errors are relative and others points, so no mean is stated.
        """
        count = len(self.absolute)
        if not comparable:
            return (count, None, None, None, 100.0 * self.within / count)
        mean, bias = math.fsum(self.absolute) / count, math.fsum(self.signed) / count
        return (count, mean, quantile(self.absolute, 0.9), bias, 100.0 * self.within / count)


def quantile(values: Sequence[float], part: float) -> float:
    """Return the ``part`` quantile (0..1) by nearest rank: the smallest value with that share at or below it."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def accuracy_table(events: Iterable[Event], grouping: Grouping, since: float, until: float, now: float) -> ReportTable:
    """Return the errors of the predictions made between ``since`` and ``until``. ``now`` is unused."""
    groups: dict[str, PredictionErrors] = {}
    whole, shared, unusable, units = PredictionErrors(), 0, 0, dict[str, set[bool]]()
    for event in events:
        if not since <= event.at <= until:
            continue
        predicted, low, high, measured = (number(event, key, math.nan) for key in _NUMBERS)
        in_points = text(event, "question") in IN_POINTS
        if not all(map(math.isfinite, (predicted, low, high, measured))) or (measured <= 0 and not in_points):
            unusable += 1
            continue
        key = _key(event, grouping)
        for each in (groups.setdefault(key, PredictionErrors()), whole):
            each.add(predicted, low, high, measured, in_points=in_points)
        units.setdefault(key, set()).add(in_points)
        shared += event.fields.get("alone") is False and text(event, "question") != "loss"
    names = columns(
        *grouping.columns, "predictions", "mean_error_pct", "p90_error_pct", "bias_pct", "within_limits_pct"
    )
    return ReportTable(
        title=f"Accuracy of predictions by {grouping.text}",
        columns=names,
        rows=tuple((key, *groups[key].row(comparable=len(units[key]) == 1)) for key in sorted(groups, key=_order)),
        total=("total", *whole.row(comparable=len(set().union(*units.values())) == 1)) if whole.absolute else None,
        notes=tuple(_notes(shared, unusable)),
    )


_NUMBERS = ("predicted", "low", "high", "measured")


def _notes(shared: int, unusable: int) -> list[str]:
    notes = ["within_limits: 80 % is ideal, as the limits are 80 % limits; bias above 0: predicted too much"]
    notes.append("errors of tolerated, caused and loss are points of 100; all others are relative to the measurement")
    if shared:
        notes.append(f"{counted(shared, 'job')} shared a machine; predictions of these include the expected loss")
    if unusable:
        notes.append(f"{counted(unusable, 'prediction')} left out: no usable measurement")
    return notes


def _order(key: str) -> tuple[int, str]:
    return (QUANTITIES.index(key) if key in QUANTITIES else len(QUANTITIES), key)


def _key(event: Event, grouping: Grouping) -> str:
    if grouping.kind == "quantity":
        question = text(event, "question")
        return question if question in IN_POINTS else "speed"
    if grouping.kind == "day":
        return grouping.day_of(event.at)
    if grouping.kind == "user":
        return event.user or ""
    return text(event, "instance_type" if grouping.kind == "type" else grouping.kind)
