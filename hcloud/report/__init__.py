"""Reports computed from the event log alone: cost, performance, savings, utilisation, commitments, accuracy,
decisions, run times, right sizes, and the cost in the FOCUS format. Neighbours are reported from co-run records.

Each report reads the log once, in order. The log must start at its first event, even for a report of a later period:
earlier events determine which machines are running when the period starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from hcloud.core.co_runs import CoRun
from hcloud.core.errors import BadInput
from hcloud.core.model import Event, EventKind
from hcloud.report import decisions, neighbours, right_sizing, run_time_accuracy, run_times
from hcloud.report.accuracy import ACCURACY_KINDS, GROUPINGS, accuracy_table
from hcloud.report.commitments import COMMITMENT_KINDS, CommitmentsTable
from hcloud.report.cost import COST_KINDS, SAVINGS_KINDS, CostTable, SavingsTable, SharedCostTable
from hcloud.report.focus_export import FOCUS_KINDS, focus_table
from hcloud.report.grouping import Grouping, choose_grouping, minute_of, parse_grouping, zone_of
from hcloud.report.performance import PERFORMANCE_KINDS, performance_table
from hcloud.report.stretches import MoneyTable, read_stretches
from hcloud.report.table import Column, ReportTable
from hcloud.report.utilisation import BY_ACCOUNT, UTILISATION_KINDS, utilisation_table

_Build = Callable[[Iterable[Event], Grouping, float, float, float], ReportTable]


def _alone(kind: Callable[[Grouping], MoneyTable]) -> _Build:
    """Return the function that builds a report of money by a pass of its own."""

    def build(events: Iterable[Event], grouping: Grouping, since: float, until: float, now: float) -> ReportTable:
        made = kind(grouping)
        return made.table(read_stretches(events, (made,), since, until), now)

    return build


# By name: what adds up the reports that one pass can make together.
_MONEY: dict[str, Callable[[Grouping], MoneyTable]] = {
    "cost": CostTable,
    "savings": SavingsTable,
    "commitments": CommitmentsTable,
}
MONEY_KINDS: frozenset[EventKind] = COST_KINDS | SAVINGS_KINDS | COMMITMENT_KINDS
"""Event kinds that the reports of money read together."""
# By name: the function that builds the report, its default grouping, the event kinds it reads.
_REPORTS: dict[str, tuple[_Build, str, frozenset[EventKind]]] = {
    "cost": (_alone(CostTable), "user", COST_KINDS),
    "performance": (performance_table, "user", PERFORMANCE_KINDS),
    "savings": (_alone(SavingsTable), "market", SAVINGS_KINDS),
    "utilisation": (utilisation_table, "pool", UTILISATION_KINDS),
    "commitments": (_alone(CommitmentsTable), "pool", COMMITMENT_KINDS),
    "accuracy": (accuracy_table, "quantity", ACCURACY_KINDS),
    "decisions": (decisions.decisions_table, "job", decisions.DECISION_KINDS),
    "right-sizing": (right_sizing.right_sizing_table, "program", right_sizing.RIGHT_SIZING_KINDS),
    "focus": (focus_table, "day", FOCUS_KINDS),
    "neighbours": (partial(neighbours.neighbours_table, ()), "program", frozenset()),
    "run-times": (run_times.run_times_table, "history", run_times.RUN_TIME_KINDS),
}
# What else a report may be about: by report and subject.
_SUBJECTS: dict[tuple[str, str], tuple[_Build, str, frozenset[EventKind]]] = {
    ("accuracy", "runtime"): (
        run_time_accuracy.run_time_accuracy_table,
        "feature",
        run_time_accuracy.RUN_TIME_ACCURACY_KINDS,
    ),
}
_OWN_GROUPINGS = {
    "accuracy": GROUPINGS,
    "accuracy of runtime": run_time_accuracy.GROUPINGS,
    "decisions": decisions.GROUPINGS,
    "run-times": run_times.GROUPINGS,
    "right-sizing": right_sizing.GROUPINGS,
    "focus": ("day",),
    "neighbours": neighbours.GROUPINGS,
}
_FURTHER_GROUPINGS = {"utilisation": (BY_ACCOUNT,)}
REPORT_NAMES: tuple[str, ...] = tuple(_REPORTS)


def report_kinds(name: str, of: str | None = None) -> frozenset[EventKind]:
    """Return the event kinds that a report reads, so that callers can skip the others. Raises BadInput."""
    return _definition(name, of)[2]


def build_report(
    name: str,
    events: Iterable[Event],
    now: float,
    *,
    of: str | None = None,
    by: str | None = None,
    since: float | None = None,
    until: float | None = None,
    zone: str = "UTC",
    shares_idle: bool = False,
    co_runs: Iterable[CoRun] = (),
) -> ReportTable:
    """Return a report for the period from ``since`` (None: the start of the log) to ``until`` (None: ``now``).

    Times are Unix seconds; ``until`` is at most ``now``. ``of``: what the report is about, if not what it usually is;
    ``runtime`` for accuracy. ``by`` is what a row stands for (None: the report's default). Days, and times in the
    title, are of the time ``zone``. ``shares_idle``: the cost report shares idle and boot cost among jobs.
    ``co_runs``: all co-run records, for neighbours.
    Reports are grouped by ``job``, ``user``, ``tag:KEY``, ``pool``, ``market`` or ``day``, utilisation also by
    ``account``; accuracy, decisions and run-times have groupings of their own (``GROUPINGS`` of their modules).

    Raises:
        BadInput: unknown report, subject, grouping or zone, ``since`` after ``until``, or nothing to share.
    """
    build, default, kinds = _definition(name, of)
    if shares_idle and name != "cost":
        raise BadInput(f"only the cost report shares idle cost, not {name}")
    build = _alone(SharedCostTable) if shares_idle else build
    if name == "neighbours":
        build = partial(neighbours.neighbours_table, co_runs)
    zone_of(zone)
    own = _OWN_GROUPINGS.get(name if of is None else f"{name} of {of}")
    if own is not None:
        grouping = choose_grouping(by, default, own, zone)
    else:
        grouping = parse_grouping(by, default, _FURTHER_GROUPINGS.get(name, ()), zone)
    end = now if until is None else min(until, now)
    begin = 0.0 if since is None else since
    if begin > end:
        start_text, end_text = (f"{minute_of(at, zone)} {zone}" for at in (begin, end))
        raise BadInput(f"the start of the report ({start_text}) is after its end ({end_text})")
    table = build(_relevant(events, kinds, end), grouping, begin, end, now)
    return _with_period(table, since, end, zone)


class MoneyReport(NamedTuple):
    """Which report of money is asked for."""

    name: str
    """``cost``, ``savings`` or ``commitments``."""
    by: str
    """What a row stands for, as in :func:`build_report`."""
    zone: str = "UTC"
    """The time zone of days, and of times in the title."""


def build_money_reports(
    asked: Sequence[MoneyReport], events: Iterable[Event], now: float, *, since: float | None = None
) -> list[ReportTable]:
    """Return reports of one period by one pass of the log, each as :func:`build_report` returns it.

    ``events``: of MONEY_KINDS, from the start of the log. Raises BadInput: unknown grouping or zone.
    """
    sums = [_MONEY[each.name](parse_grouping(each.by, "user", zone=each.zone)) for each in asked]
    begin = 0.0 if since is None else since
    history = read_stretches(_relevant(events, MONEY_KINDS, now), sums, begin, now)
    tables = [each.table(history, now) for each in sums]
    return [_with_period(table, since, now, each.zone) for table, each in zip(tables, asked, strict=True)]


def _relevant(events: Iterable[Event], kinds: frozenset[EventKind], end: float) -> Iterable[Event]:
    return (event for event in events if event.kind in kinds and event.at <= end)


def _with_period(table: ReportTable, since: float | None, end: float, zone: str) -> ReportTable:
    period = f"up to {minute_of(end, zone)} {zone}"
    if since is not None:
        period = f"{minute_of(since, zone)} to {minute_of(end, zone)} {zone}"
    return replace(table, title=f"{table.title}, {period}")


def _definition(name: str, of: str | None) -> tuple[_Build, str, frozenset[EventKind]]:
    if name not in _REPORTS:
        raise BadInput(f"there is no report {name!r}; known reports: {', '.join(REPORT_NAMES)}")
    if of is None:
        return _REPORTS[name]
    if (name, of) not in _SUBJECTS:
        known = ", ".join(f"{report} of {subject}" for report, subject in _SUBJECTS)
        raise BadInput(f"there is no report {name} of {of!r}; leave it out, or choose: {known}")
    return _SUBJECTS[name, of]


__all__ = [
    "MONEY_KINDS",
    "REPORT_NAMES",
    "Column",
    "MoneyReport",
    "ReportTable",
    "build_money_reports",
    "build_report",
    "minute_of",
    "report_kinds",
]
