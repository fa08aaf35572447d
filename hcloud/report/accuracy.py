"""Accuracy: how far predictions of performance were from what was measured, and how honest their limits were.

A prediction is one PREDICTION event: a cell that profiling measured after it had been estimated (``question`` type,
step, nodes, tolerated, caused) or a job that ran (``run``). Errors of performance are relative to what was measured, in
percent; those of pressures are points of their scale of 100.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hcloud.core.model import Event, EventKind
from hcloud.report.grouping import Grouping, day_of, number, text
from hcloud.report.table import ReportTable, Row, columns

ACCURACY_KINDS: frozenset[EventKind] = frozenset({EventKind.PREDICTION})
"""The events this report needs."""
GROUPINGS = ("application", "question", "type", "user", "day")
"""What a row of it may stand for."""
PRESSURES = ("tolerated", "caused")


@dataclass(slots=True)
class Errors:
    """The predictions of one row: errors in percent (or points), and how many lay within their 80 % limits."""

    errors: list[float] = field(default_factory=list)
    signed: list[float] = field(default_factory=list)
    within: int = 0

    def add(self, predicted: float, low: float, high: float, measured: float, *, pressure: bool) -> None:
        """Count one prediction."""
        off = predicted - measured if pressure else 100.0 * (predicted - measured) / measured
        self.errors.append(abs(off))
        self.signed.append(off)
        self.within += low <= measured <= high

    def row(self) -> Row:
        """Return how many there are, the mean absolute error, its 90th percentile, the bias and the share within."""
        count = len(self.errors)
        mean, bias = math.fsum(self.errors) / count, math.fsum(self.signed) / count
        return (count, mean, quantile(self.errors, 0.9), bias, 100.0 * self.within / count)


def quantile(values: Sequence[float], part: float) -> float:
    """Return the smallest of ``values`` that ``part`` (0..1) of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def accuracy_table(events: Iterable[Event], grouping: Grouping, since: float, until: float, now: float) -> ReportTable:
    """Return the errors of the predictions made between ``since`` and ``until``. ``now`` is not needed."""
    groups: dict[str, Errors] = {}
    whole, crowded, useless = Errors(), 0, 0
    for event in events:
        if not since <= event.at <= until:
            continue
        predicted, low, high, measured = (number(event, key, math.nan) for key in _NUMBERS)
        pressure = text(event, "question") in PRESSURES
        if not all(map(math.isfinite, (predicted, low, high, measured))) or (measured <= 0 and not pressure):
            useless += 1
            continue
        for each in (groups.setdefault(_key(event, grouping), Errors()), whole):
            each.add(predicted, low, high, measured, pressure=pressure)
        crowded += event.fields.get("alone") is False
    names = columns(
        *grouping.columns, "predictions", "mean_error_pct", "p90_error_pct", "bias_pct", "within_limits_pct"
    )
    return ReportTable(
        title=f"Accuracy of predictions by {grouping.text}",
        columns=names,
        rows=tuple((key, *groups[key].row()) for key in sorted(groups)),
        total=("total", *whole.row()) if whole.errors else None,
        notes=tuple(_notes(crowded, useless)),
    )


_NUMBERS = ("predicted", "low", "high", "measured")


def _notes(crowded: int, useless: int) -> list[str]:
    notes = ["within limits: 80 of 100 would be honest; bias above 0: predicted too fast"]
    if crowded:
        notes.append(f"{crowded} of the jobs did not have their machine to themselves, which predictions are made for")
    if useless:
        notes.append(f"{useless} predictions are left out, as nothing usable was measured")
    return notes


def _key(event: Event, grouping: Grouping) -> str:
    if grouping.kind == "day":
        return day_of(event.at)
    if grouping.kind == "user":
        return event.user or ""
    return text(event, "instance_type" if grouping.kind == "type" else grouping.kind)
