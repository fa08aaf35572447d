"""Money: what was spent on what, what was saved, which commitments idle, and what another policy would have cost."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

from fastapi import Query, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from hcloud.api.context import ApiContext, Context, CurrentCaller
from hcloud.api.errors import Forbidden
from hcloud.core.errors import BadInput
from hcloud.core.units import parse_utc_s
from hcloud.report import build_report, report_kinds
from hcloud.report.grouping import zone_of
from hcloud.report.table import ReportTable
from hcloud.web.fleet import fleet_of
from hcloud.web.site import form_of, page_router, pages_of
from hcloud.web.what_if import SHIPPED, WhatIfRuns

router = page_router()
PERIODS: Mapping[str, tuple[str, float | None]] = {
    "day": ("last 24 hours", 86400.0),
    "week": ("last 7 days", 7 * 86400.0),
    "month": ("last 30 days", 30 * 86400.0),
    "all": ("all time", None),
}
PARTS: Mapping[str, tuple[str, str | None]] = {
    "cost": ("Cost", None),
    "days": ("Cost by day", "day"),
    "savings": ("Savings against on demand", "market"),
    "commitments": ("Commitments: used and idle", "pool"),
}
"""By part of the page: its heading, and what a row stands for (None: as chosen on the page)."""
FRESH_S = 60.0
"""A report is computed again after so long, when somebody looks."""
REPORTS_KEPT = 64
TAGS_FROM_JOBS = 200
_Text = Annotated[str, Query(max_length=100)]


class ReportKey(NamedTuple):
    """Which report it is."""

    name: str
    by: str
    period: str
    zone: str
    """The time zone of days."""


@dataclass(frozen=True, slots=True)
class KeptReport:
    """A report, and when it was computed."""

    made_at: float
    table: ReportTable


class ReportCache:
    """Keeps reports for a minute: each reads the whole event log, and all who look see the same."""

    def __init__(self, context: ApiContext) -> None:
        """Prepare; nothing is read yet."""
        self._context = context
        self._kept: OrderedDict[ReportKey, KeptReport] = OrderedDict()
        self._lock = threading.Lock()
        self._computing: dict[ReportKey, threading.Lock] = {}

    def known(self, key: ReportKey) -> KeptReport | None:
        """Return a report if it is fresh enough."""
        with self._lock:
            found = self._kept.get(key)
        fresh = found is not None and 0.0 <= self._context.clock.now() - found.made_at < FRESH_S
        return found if fresh else None

    def report(self, key: ReportKey) -> KeptReport:
        """Return a report, computed if it is not fresh. Raises BadInput."""
        with self._lock:
            turn = self._computing.setdefault(key, threading.Lock())
        with turn:
            found = self.known(key) or self._compute(key)
        with self._lock:
            self._computing.pop(key, None)
            self._kept[key] = found
            while len(self._kept) > REPORTS_KEPT:
                self._kept.popitem(last=False)
        return found

    def _compute(self, key: ReportKey) -> KeptReport:
        now, length_s = self._context.clock.now(), PERIODS[key.period][1]
        events = self._context.store.iter_events(kinds=report_kinds(key.name))
        since = None if length_s is None else now - length_s
        table = build_report(key.name, events, now, by=key.by, since=since, zone=key.zone)
        return KeptReport(now, table)


def reports_of(request: Request) -> ReportCache:
    """Return the reports that the pages show."""
    cache: ReportCache = request.app.state.report_cache
    return cache


@router.get("/money")
def show_money(
    request: Request, context: Context, caller: CurrentCaller, by: _Text = "user", period: _Text = "week"
) -> Response:
    """Show where the money goes. Parts that are not computed yet follow by themselves."""
    _check(by, period)
    reports = reports_of(request)
    parts = []
    for part, (heading, fixed) in PARTS.items():
        if part == "cost" and by == "day":
            continue  # the same as the part of days
        # Days are those of the reader's zone, which the page's script names with the request for the part.
        known = None if fixed == "day" else reports.known(_key(part, by, period, "UTC"))
        parts.append({"name": part, "heading": heading, "shown": None if known is None else _shown(part, known)})
    runs, fleet = _runs(request), fleet_of(request)
    return pages_of(request).render(
        request,
        "money.html",
        fleet=fleet,
        spend=fleet.spend,
        parts=parts,
        by=by,
        period=period,
        periods={name: words for name, (words, _) in PERIODS.items()},
        groupings=["user", *(f"tag:{each}" for each in tag_keys(context)), "market", "day", "job"],
        policies=SHIPPED,
        run=runs.latest(caller.name),
        may_run=caller.role != "reader" and runs.is_possible,
    )


@router.get("/money/part/{part}")
async def show_part(
    request: Request,
    context: Context,
    caller: CurrentCaller,
    part: str,
    by: _Text = "user",
    period: _Text = "week",
    zone: _Text = "UTC",
) -> Response:
    """Return a part of the page, computed from the event log; days are of the time ``zone``."""
    if part not in PARTS:
        raise BadInput(f"the page has no part {part!r}; it has {', '.join(PARTS)}")
    _check(by, period)
    zone_of(zone)
    key = _key(part, by, period, zone)
    reports = reports_of(request)
    kept = reports.known(key)
    if kept is None:
        kept = await context.long_work.result(partial(reports.report, key), at_once=caller.is_admin)
    shown = _shown(part, kept, zone, by_day=key.by == "day")
    return await run_in_threadpool(partial(pages_of(request).render, request, "_money_part.html", shown=shown))


def _check(by: str, period: str) -> None:
    if period not in PERIODS:
        raise BadInput(f"there is no period {period!r}; choose one of {', '.join(PERIODS)}")
    if not (by in ("user", "market", "day", "job", "pool", "task") or (by.startswith("tag:") and len(by) > 4)):
        raise BadInput(f"cost is not grouped by {by!r}; choose user, tag:KEY, market, day, job, task or pool")


def _key(part: str, by: str, period: str, zone: str) -> ReportKey:
    by = PARTS[part][1] or by
    return ReportKey("cost" if part == "days" else part, by, period, zone if by == "day" else "UTC")


def _shown(part: str, kept: KeptReport, zone: str = "UTC", *, by_day: bool = False) -> dict[str, Any]:
    return {
        "part": part,
        "heading": PARTS[part][0],
        "table": kept.table,
        "made_at": kept.made_at,
        "chart": day_chart(kept.table, zone) if part == "days" else "",
        "zone": zone if by_day else "",
    }


def day_chart(table: ReportTable, zone: str = "UTC") -> str:
    """Return the cost of each day of a zone for the page's script; empty: there are fewer than two."""
    names = [column.name for column in table.columns]
    if "cost_usd" not in names:
        return ""
    at, days, costs = names.index("cost_usd"), [], []
    for row in table.rows:
        day, cost = str(row[0]), row[at]
        if len(day) == 10 and isinstance(cost, int | float):
            days.append(day)
            costs.append(round(float(cost), 6))
    if len(days) < 2:
        return ""
    times = [int(parse_utc_s(f"{each}T00:00:00Z")) for each in days]
    return json.dumps(
        {"names": ["cost"], "y": f"USD per day ({zone})", "unit": "$", "bars": True, "data": [times, costs]}
    )


def tag_keys(context: ApiContext) -> list[str]:
    """Return the keys of the tags that the latest jobs have."""
    keys = {key for job in context.store.jobs(limit=TAGS_FROM_JOBS) for key in job.spec.tags}
    return sorted(keys)[:20]


# ------------------------------------------------------------------------------------------------------------- what if
def _runs(request: Request) -> WhatIfRuns:
    runs: WhatIfRuns = request.app.state.what_if
    return runs


@router.post("/money/what-if")
def start_what_if(request: Request, caller: CurrentCaller) -> Response:
    """Replay recent jobs under another policy, beside the policy in force."""
    form, runs = form_of(request), _runs(request)
    policy, since = form.get("policy", ""), form.get("since", "7d")
    if caller.role == "reader":
        raise Forbidden(f"{caller.name} may only read; a replay needs another role")
    if policy not in SHIPPED:
        raise BadInput(f"there is no shipped policy {policy!r}; choose one of {', '.join(SHIPPED)}")
    if since not in ("1d", "7d", "30d"):
        raise BadInput(f"jobs are replayed since 1d, 7d or 30d ago, not {since!r}")
    runs.start(caller.name, policy, since)
    return RedirectResponse("/money#what-if", status_code=303)


@router.get("/money/what-if")
def show_what_if(request: Request, caller: CurrentCaller) -> Response:
    """Return how far the caller's replay is, or its result."""
    return pages_of(request).render(request, "_what_if.html", run=_runs(request).latest(caller.name))
