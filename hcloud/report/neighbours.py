"""Neighbours report: how fast programs ran beside which others, from the records that slowdowns are learnt from."""

from __future__ import annotations

import math
from collections.abc import Iterable

from hcloud.core.co_runs import CoRun
from hcloud.core.model import Event
from hcloud.report.grouping import Grouping
from hcloud.report.table import ReportTable, Row, columns

GROUPINGS = ("program",)


def neighbours_table(
    records: Iterable[CoRun], events: Iterable[Event], grouping: Grouping, since: float, until: float, now: float
) -> ReportTable:
    """Return a row for each program, its neighbours and the machine type; those that lost most first.

    ``records``: all that are kept. Those last observed in the period are shown. Events are not read.
    """
    kept = list(records)
    alone = {(each.application, each.type_column): each for each in kept if not each.neighbours}
    shown = [
        (each, 100.0 * each.lost(alone.get((each.application, each.type_column))) if each.neighbours else 0.0)
        for each in kept
        if since <= each.observed_at <= until
    ]
    shown.sort(key=lambda row: (-row[1], row[0].key))
    return ReportTable(
        title="Neighbours of programs, and what they cost",
        columns=columns(
            "program", "beside", "type", "speed_pct", "lost_pct", "shared_cpus_pct", "observed_s", "periods"
        ),
        rows=tuple([_row(record, lost_pct) for record, lost_pct in shown]),
        when_empty=(
            "nothing to report for this period: recorded are programs with progress or output whose speed alone is "
            "known, in one unit, for 30 s or more beside known ones, on a host that takes no CPU time from them"
        ),
        notes=(
            "speed: as a share of what is expected of the program alone on that type",
            "lost: to these neighbours, beside its observed speed alone where there is one",
            "shared_cpus: of the CPUs it may run on those that they may run on, too",
        ),
    )


def _row(record: CoRun, lost_pct: float) -> Row:
    speed_pct, beside = 100.0 * math.exp(record.log_speed), ", ".join(record.neighbours)
    return (
        record.application,
        beside or "alone",
        record.type_column,
        speed_pct,
        lost_pct if beside else None,
        None if record.shared_cpus is None else 100.0 * record.shared_cpus,
        record.seconds,
        record.periods,
    )
