"""Reports computed from the event log alone: cost, performance, savings, utilisation, commitments, accuracy,
decisions, run times.

Each report reads the log once, in order. The log must start at its first event, even for a report of a later period:
earlier events determine which machines are running when the period starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from hcloud.core.errors import BadInput
from hcloud.core.model import Event, EventKind
from hcloud.report import decisions, run_time_accuracy, run_times
from hcloud.report.accuracy import ACCURACY_KINDS, GROUPINGS, accuracy_table
from hcloud.report.commitments import COMMITMENT_KINDS, commitments_table
from hcloud.report.cost import COST_KINDS, SAVINGS_KINDS, cost_table, savings_table
from hcloud.report.grouping import Grouping, choose_grouping, minute_of, parse_grouping
from hcloud.report.performance import PERFORMANCE_KINDS, performance_table
from hcloud.report.table import Column, ReportTable
from hcloud.report.utilisation import BY_ACCOUNT, UTILISATION_KINDS, utilisation_table

_Build = Callable[[Iterable[Event], Grouping, float, float, float], ReportTable]
# By name: the function that builds the report, its default grouping, the event kinds it reads.
_REPORTS: dict[str, tuple[_Build, str, frozenset[EventKind]]] = {
    "cost": (cost_table, "user", COST_KINDS),
    "performance": (performance_table, "user", PERFORMANCE_KINDS),
    "savings": (savings_table, "market", SAVINGS_KINDS),
    "utilisation": (utilisation_table, "pool", UTILISATION_KINDS),
    "commitments": (commitments_table, "pool", COMMITMENT_KINDS),
    "accuracy": (accuracy_table, "quantity", ACCURACY_KINDS),
    "decisions": (decisions.decisions_table, "job", decisions.DECISION_KINDS),
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
) -> ReportTable:
    """Return a report for the period from ``since`` (None: the start of the log) to ``until`` (None: ``now``).

    Times are Unix seconds; ``until`` is at most ``now``. ``of``: what the report is about, if not what it usually is;
    ``runtime`` for accuracy. ``by`` is what a row stands for (None: the report's default).
    Reports are grouped by ``job``, ``user``, ``tag:KEY``, ``pool``, ``market`` or ``day`` (UTC), utilisation also by
    ``account``; accuracy, decisions and run-times have groupings of their own (``GROUPINGS`` of their modules).

    Raises:
        BadInput: unknown report, subject or grouping, or ``since`` after ``until``.
    """
    build, default, kinds = _definition(name, of)
    own = _OWN_GROUPINGS.get(name if of is None else f"{name} of {of}")
    if own is not None:
        grouping = choose_grouping(by, default, own)
    else:
        grouping = parse_grouping(by, default, _FURTHER_GROUPINGS.get(name, ()))
    end = now if until is None else min(until, now)
    begin = 0.0 if since is None else since
    if begin > end:
        raise BadInput(f"the start of the report ({minute_of(begin)} UTC) is after its end ({minute_of(end)} UTC)")
    relevant = (event for event in events if event.kind in kinds and event.at <= end)
    table = build(relevant, grouping, begin, end, now)
    period = f"up to {minute_of(end)} UTC" if since is None else f"{minute_of(begin)} to {minute_of(end)} UTC"
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


__all__ = ["REPORT_NAMES", "Column", "ReportTable", "build_report", "minute_of", "report_kinds"]
