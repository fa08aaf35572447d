"""Reports from the event log alone: cost, performance, savings, utilisation, accuracy, decisions.

Each reads the log once, in order. ``build_report`` takes any iterator of events that begins at the start of the log
(what happened before ``since`` decides which machines live then) and returns a :class:`ReportTable`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hcloud.core.errors import BadInput
from hcloud.core.model import Event, EventKind
from hcloud.report import decisions
from hcloud.report.accuracy import ACCURACY_KINDS, GROUPINGS, accuracy_table
from hcloud.report.commitments import COMMITMENT_KINDS, commitments_table
from hcloud.report.cost import COST_KINDS, cost_table, savings_table
from hcloud.report.grouping import Grouping, choose_grouping, minute_of, parse_grouping
from hcloud.report.performance import PERFORMANCE_KINDS, performance_table
from hcloud.report.table import Column, ReportTable
from hcloud.report.utilisation import UTILISATION_KINDS, utilisation_table

_Build = Callable[[Iterable[Event], Grouping, float, float, float], ReportTable]
# name: (function, default grouping, events it needs)
_REPORTS: dict[str, tuple[_Build, str, frozenset[EventKind]]] = {
    "cost": (cost_table, "user", COST_KINDS),
    "performance": (performance_table, "user", PERFORMANCE_KINDS),
    "savings": (savings_table, "market", COST_KINDS),
    "utilisation": (utilisation_table, "pool", UTILISATION_KINDS),
    "commitments": (commitments_table, "pool", COMMITMENT_KINDS),
    "accuracy": (accuracy_table, "question", ACCURACY_KINDS),
    "decisions": (decisions.decisions_table, "job", decisions.DECISION_KINDS),
}
_OWN_GROUPINGS = {"accuracy": GROUPINGS, "decisions": decisions.GROUPINGS}
REPORT_NAMES: tuple[str, ...] = tuple(_REPORTS)


def report_kinds(name: str) -> frozenset[EventKind]:
    """Return the kinds of events a report needs; reading only these is several times quicker. Raises BadInput."""
    return _report(name)[2]


def build_report(
    name: str,
    events: Iterable[Event],
    now: float,
    *,
    by: str | None = None,
    since: float | None = None,
    until: float | None = None,
) -> ReportTable:
    """Build a report of what happened from ``since`` (None: ever) to ``until`` (None, or in the future: ``now``).

    ``by`` is ``job``, ``user``, ``tag:KEY``, ``pool``, ``market`` or ``day`` (UTC), of accuracy ``application``,
    ``question``, ``type``, ``user`` or ``day``, of decisions ``job``, ``user``, ``type``, ``constraint`` or ``day``;
    None: the report's own default.

    Raises:
        BadInput: unknown report or grouping, or ``since`` after ``until``.
    """
    build, default, kinds = _report(name)
    own = _OWN_GROUPINGS.get(name)
    grouping = choose_grouping(by, default, own) if own is not None else parse_grouping(by, default)
    end = now if until is None else min(until, now)
    begin = 0.0 if since is None else since
    if begin > end:
        raise BadInput(f"the report would begin ({minute_of(begin)} UTC) after its end ({minute_of(end)} UTC)")
    wanted = (event for event in events if event.kind in kinds and event.at <= end)
    table = build(wanted, grouping, begin, end, now)
    span = f"up to {minute_of(end)} UTC" if since is None else f"{minute_of(begin)} to {minute_of(end)} UTC"
    return ReportTable(
        title=f"{table.title}, {span}", columns=table.columns, rows=table.rows, total=table.total, notes=table.notes
    )


def _report(name: str) -> tuple[_Build, str, frozenset[EventKind]]:
    if name not in _REPORTS:
        raise BadInput(f"there is no report {name!r}; there are {', '.join(REPORT_NAMES)}")
    return _REPORTS[name]


__all__ = ["REPORT_NAMES", "Column", "ReportTable", "build_report", "minute_of", "report_kinds"]
