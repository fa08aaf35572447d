"""Record when a budget is nearly or fully spent, and when a job waits as too little is left: one event for each
threshold, period and limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hcloud.core.budget_scope import TOTAL, BudgetScope
from hcloud.core.model import EventKind, JobId
from hcloud.planner.plan import Plan, Wait
from hcloud.planner.snapshot import Spend
from hcloud.planner.text import usd
from hcloud.spec.policy import UNLIMITED, Budgets
from hcloud.spend_ledger import month_start
from hcloud.store import LeaderLease, Store

THRESHOLDS = (1.0, 0.8)
"""Shares of a budget, the highest first."""
_REFUSED, _WAITS = "budget_", "waits"


class BudgetUse(NamedTuple):
    """How much of one budget is used."""

    scope: BudgetScope
    period: str
    """``per_day`` or ``per_month``."""
    ends_at: float
    spent_usd: float
    limit_usd: float
    waiting: str = ""
    """A job that waits because too little is left for it."""

    @property
    def share(self) -> float:
        """The highest threshold that is reached; 0: none."""
        return next((each for each in THRESHOLDS if self.spent_usd >= each * self.limit_usd), 0.0)

    @property
    def key(self) -> tuple[str, ...]:
        """Identify budget, period and limit."""
        return (self.scope.kind, self.scope.name, self.period, repr(self.ends_at), repr(self.limit_usd))

    def records(self) -> Iterator[tuple[tuple[str, ...], float, str]]:
        """Yield what is to be recorded once: key, share, and the job that waits. Of a spent budget all wait."""
        if self.share:
            yield self.key, self.share, ""
        if self.waiting and self.share < THRESHOLDS[0]:
            yield (*self.key, _WAITS), THRESHOLDS[0], self.waiting


@dataclass(slots=True)
class BudgetWatch:
    """Remembers what was recorded; after a restart it reads that from the event log."""

    store: Store
    _recorded: dict[tuple[str, ...], float] | None = field(default=None)
    """The highest recorded share of each budget; None: not read yet."""

    def forget(self) -> None:
        """Read from the log again what was recorded: another leader may have written."""
        self._recorded = None

    def record(self, spend: Spend, budgets: Budgets, plan: Plan, now: float, lease: LeaderLease | None) -> None:
        """Write an event for each budget that reached a higher threshold, or that a job waits for. Raises StoreBusy,
        StaleWrite."""
        refusing = {
            (str(a.reason.numbers.get("rule")), str(a.reason.numbers.get("whose", ""))): a.job_id
            for a in reversed(plan.actions)
            if isinstance(a, Wait) and a.reason.code.startswith(_REFUSED)
        }
        reached = [(each, *record) for each in budget_uses(spend, budgets, refusing) for record in each.records()]
        if not reached:
            return
        if self._recorded is None:
            self._recorded = dict(self._read(now))
        fresh = [each for each in reached if each[2] > self._recorded.get(each[1], 0.0)]
        if not fresh:
            return
        with self.store.transaction(now, lease) as txn:
            for each, _, _, waiting in fresh:
                txn.emit(
                    EventKind.BUDGET,
                    user=each.scope.name if each.scope.kind == "user" else None,
                    scope=each.scope.kind,
                    name=each.scope.name,
                    period=each.period,
                    ends_at=each.ends_at,
                    share=each.share,
                    spent_usd=round(each.spent_usd, 6),
                    limit_usd=each.limit_usd,
                    text=_sentence(each, waiting),
                    **_about(waiting),
                )
        self._recorded |= {key: share for _, key, share, _ in fresh}

    def _read(self, now: float) -> Iterator[tuple[tuple[str, ...], float]]:
        for event in self.store.iter_events(since=month_start(now), kinds=[EventKind.BUDGET]):
            f = event.fields
            names = (f.get("scope"), f.get("name"), f.get("period"), repr(f.get("ends_at")), repr(f.get("limit_usd")))
            share, key = f.get("share"), tuple(str(each) for each in names)
            if f.get("job"):
                yield (*key, _WAITS), THRESHOLDS[0]
            else:
                yield key, float(share) if isinstance(share, int | float) else 0.0


def budget_uses(spend: Spend, budgets: Budgets, refusing: Mapping[tuple[str, str], JobId]) -> Iterator[BudgetUse]:
    """Yield the use of each budget with a limit. ``refusing``: a job that waits, by rule and owner of the budget."""
    periods = (
        ("per_day", spend.day_ends_at, spend.day_usd, spend.by_scope_day_usd, budgets.per_day_usd),
        ("per_month", spend.month_ends_at, spend.month_usd, spend.by_scope_month_usd, budgets.per_month_usd),
    )
    for period, ends_at, total_usd, by_scope, limit_usd in periods:
        if limit_usd is not None:
            yield BudgetUse(TOTAL, period, ends_at, total_usd, limit_usd, refusing.get((period, ""), ""))
        for scope, spent_usd in by_scope.items():
            own = budgets.for_scope(scope)
            limit_usd = None if own is UNLIMITED else own.per_day_usd if period == "per_day" else own.per_month_usd
            if limit_usd is not None:
                waiting = refusing.get((f"{scope.kind}_{period}", str(scope)), "")
                yield BudgetUse(scope, period, ends_at, spent_usd, limit_usd, waiting)


def _about(waiting: str) -> dict[str, Any]:
    return {"job": waiting} if waiting else {}


def _sentence(use: BudgetUse, waiting: str) -> str:
    whose = f" of {use.scope}" if use.scope != TOTAL else ""
    period = "daily" if use.period == "per_day" else "monthly"
    spent = f"{usd(use.spent_usd)} of {usd(use.limit_usd)}"
    if waiting:
        return f"{waiting} waits: too little is left of the {period} budget{whose}; {spent} is spent"
    return f"{use.share:.0%} of the {period} budget{whose} is spent: {spent}"
