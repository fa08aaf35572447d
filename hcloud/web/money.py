"""Money: what was spent on what, what was saved, which commitments idle, and what another policy would have cost."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from fastapi import Query, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from hcloud.api.context import ApiContext, Context, CurrentCaller
from hcloud.api.errors import Forbidden
from hcloud.core.errors import BadInput
from hcloud.core.units import parse_utc_s
from hcloud.report import MONEY_KINDS, REPORT_NAMES, MoneyReport, build_money_reports
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
"""A report is computed again after so long, when somebody looks; later, if that takes much of the daemon's time."""
CPU_SHARE_MAX = 0.02
"""Of a CPU, at most this share goes into reports of one period."""
REPORTS_KEPT = 64
TAGS_FROM_JOBS = 200
_Text = Annotated[str, Query(max_length=100)]


@dataclass(frozen=True, slots=True)
class KeptReport:
    """A report, and until when it is shown without being computed again (Unix seconds)."""

    made_at: float
    fresh_until: float
    table: ReportTable


class ReportCache:
    """Keeps reports: they are computed from the whole event log, by one pass for all that a page lacks."""

    def __init__(self, context: ApiContext) -> None:
        """Prepare; nothing is read yet."""
        self._context = context
        self._kept: OrderedDict[tuple[str, MoneyReport], KeptReport] = OrderedDict()
        self._turn = threading.Lock()

    def last(self, period: str, report: MoneyReport) -> KeptReport | None:
        """Return a report as it was computed last, however long ago."""
        return self._kept.get((period, report))

    def fresh(self, period: str, asked: Sequence[MoneyReport]) -> list[KeptReport]:
        """Return reports of a period; those that are not fresh are computed. Raises BadInput."""
        with self._turn:  # a request that waited finds what the one before computed
            missing = [each for each in asked if not self._is_fresh(self.last(period, each))]
            if missing:
                self._compute(period, missing)
            found = [self._kept[period, each] for each in asked]
            while len(self._kept) > REPORTS_KEPT:
                self._kept.popitem(last=False)
        return found

    def _is_fresh(self, kept: KeptReport | None) -> bool:
        return kept is not None and kept.made_at <= self._context.clock.now() < kept.fresh_until

    def _compute(self, period: str, asked: Sequence[MoneyReport]) -> None:
        now, length_s = self._context.clock.now(), PERIODS[period][1]
        began_s = time.thread_time()
        events = self._context.store.iter_events(kinds=MONEY_KINDS)
        tables = build_money_reports(asked, events, now, since=None if length_s is None else now - length_s)
        fresh_until = now + max(FRESH_S, (time.thread_time() - began_s) / CPU_SHARE_MAX)
        for each, table in zip(asked, tables, strict=True):
            self._kept[period, each] = KeptReport(now, fresh_until, table)
            self._kept.move_to_end((period, each))


def reports_of(request: Request) -> ReportCache:
    """Return the reports that the pages show."""
    cache: ReportCache = request.app.state.report_cache
    return cache


@router.get("/money")
def show_money(
    request: Request, context: Context, caller: CurrentCaller, by: _Text = "user", period: _Text = "week"
) -> Response:
    """Show where the money goes: reports as they were computed last, which are replaced once those of now are there."""
    _check(by, period)
    reports = reports_of(request)
    # Days are those of the reader's zone, which the page's script names when it asks for the reports.
    asked = {part: each for part, each in _asked(by, "UTC").items() if each.by != "day"}
    parts = _parts(by, "UTC", {part: reports.last(period, each) for part, each in asked.items()})
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


@router.get("/money/reports")
async def show_reports(
    request: Request,
    context: Context,
    caller: CurrentCaller,
    by: _Text = "user",
    period: _Text = "week",
    zone: _Text = "UTC",
) -> Response:
    """Return the reports of the page, computed from the event log; days are of the time ``zone``."""
    _check(by, period)
    zone_of(zone)
    asked = _asked(by, zone)
    work = partial(reports_of(request).fresh, period, list(asked.values()))
    found = await context.long_work.result(work, at_once=caller.is_admin)
    parts = _parts(by, zone, dict(zip(asked, found, strict=True)))
    values: dict[str, Any] = {"parts": parts, "by": by, "period_words": PERIODS[period][0], "zone": zone}
    return await run_in_threadpool(partial(pages_of(request).render, request, "_money_reports.html", **values))


def _check(by: str, period: str) -> None:
    if period not in PERIODS:
        raise BadInput(f"there is no period {period!r}; choose one of {', '.join(PERIODS)}")
    if not (by in ("user", "market", "day", "job", "pool", "task") or (by.startswith("tag:") and len(by) > 4)):
        raise BadInput(f"cost is not grouped by {by!r}; choose user, tag:KEY, market, day, job, task or pool")


def _asked(by: str, zone: str) -> dict[str, MoneyReport]:
    """Return the reports of a page by its part; cost by day is one of its parts anyway."""
    found = {}
    for part, (_, fixed) in PARTS.items():
        rows = fixed or by
        if part != "cost" or by != "day":
            name = part if part in REPORT_NAMES else "cost"
            found[part] = MoneyReport(name, rows, zone if rows == "day" else "UTC")
    return found


def _parts(by: str, zone: str, found: Mapping[str, KeptReport | None]) -> list[dict[str, Any]]:
    """Return what the page shows of each of its parts; ``found`` may lack those that are not computed."""
    parts: list[dict[str, Any]] = []
    for part, report in _asked(by, zone).items():
        kept = found.get(part)
        parts.append(
            {
                "name": part,
                "heading": PARTS[part][0],
                "table": kept.table if kept is not None else None,
                "made_at": kept.made_at if kept is not None else None,
                "chart": day_chart(kept.table, zone) if kept is not None and report.by == "day" else "",
            }
        )
    return parts


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
