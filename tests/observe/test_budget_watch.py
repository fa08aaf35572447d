"""A budget that is nearly or fully used is recorded once for each threshold, period and limit."""

from hcloud.budget_watch import BudgetWatch
from hcloud.core.budget_scope import tag_scope, user_scope
from hcloud.core.model import EventKind, Reason
from hcloud.planner.plan import Plan, Wait
from hcloud.planner.snapshot import Spend
from hcloud.spec.policy import Budgets, ScopeBudget
from hcloud.store import MemoryStore

NOW = 1_900_000_000.0
NOTHING = Plan(at=NOW, actions=())
DAY = Budgets(per_day_usd=10.0)


def spent(usd: float, day: int = 1, **scopes: float) -> Spend:
    """Return what was spent on a day and by users."""
    users = {user_scope(name): each for name, each in scopes.items()}
    return Spend(day_usd=usd, month_usd=usd, day_ends_at=float(day), month_ends_at=99.0, by_scope_day_usd=users)


def recorded(store: MemoryStore) -> list[tuple[object, ...]]:
    """Return scope, name, period and share of each event."""
    events = store.events(kinds=[EventKind.BUDGET])
    return [tuple(event.fields[name] for name in ("scope", "name", "period", "share")) for event in events]


def test_each_threshold_is_recorded_once_a_period_and_again_for_another_limit() -> None:
    store = MemoryStore()
    watch = BudgetWatch(store)
    for usd in (7.9, 8.0, 9.0, 10.0, 11.0):
        watch.record(spent(usd), DAY, NOTHING, NOW, None)
    assert recorded(store) == [("total", "", "per_day", 0.8), ("total", "", "per_day", 1.0)]
    watch.record(spent(10.0, day=2), DAY, NOTHING, NOW, None)
    watch.record(spent(10.0, day=2), Budgets(per_day_usd=12.0), NOTHING, NOW, None)
    assert [each[3] for each in recorded(store)] == [0.8, 1.0, 1.0, 0.8]
    texts = [event.fields["text"] for event in store.events(kinds=[EventKind.BUDGET])]
    assert texts[0] == "80% of the daily budget is spent: $8.00 of $10.00"


def test_a_restart_records_nothing_again() -> None:
    store = MemoryStore()
    BudgetWatch(store).record(spent(8.0), DAY, NOTHING, NOW, None)
    BudgetWatch(store).record(spent(8.5), DAY, NOTHING, NOW, None)
    watch = BudgetWatch(store)
    watch.forget()
    watch.record(spent(10.0), DAY, NOTHING, NOW, None)
    assert [each[3] for each in recorded(store)] == [0.8, 1.0]


def test_budgets_of_users_and_tags_have_thresholds_of_their_own() -> None:
    store = MemoryStore()
    budgets = Budgets(per_user={"ann": ScopeBudget(per_day_usd=1.0)}, per_tag={"team": ScopeBudget(per_month_usd=5.0)})
    spend = Spend(by_scope_day_usd={user_scope("ann"): 0.9, user_scope("bob"): 100.0},
                  by_scope_month_usd={tag_scope("team=a"): 5.0, user_scope("ann"): 900.0})  # fmt: skip
    BudgetWatch(store).record(spend, budgets, NOTHING, NOW, None)
    assert recorded(store) == [("user", "ann", "per_day", 0.8), ("tag", "team=a", "per_month", 1.0)]
    assert store.events(kinds=[EventKind.BUDGET])[0].user == "ann"


def test_a_budget_that_a_job_waits_for_is_used_up_although_something_is_left() -> None:
    store = MemoryStore()
    why = Reason(code="budget_per_day", text="x", numbers={"rule": "per_day"})
    plan = Plan(at=NOW, actions=(Wait(job_id="job-1", reason=why),))
    BudgetWatch(store).record(spent(5.0), DAY, plan, NOW, None)
    assert recorded(store) == [("total", "", "per_day", 1.0)]
    assert "used up: $5.00 of $10.00 are spent" in str(store.events(kinds=[EventKind.BUDGET])[0].fields["text"])
    of_ann = Reason(code="budget_user_per_day", text="x", numbers={"rule": "user_per_day", "whose": "ann"})
    plan = Plan(at=NOW, actions=(Wait(job_id="job-1", reason=of_ann),))
    budgets = Budgets(per_user={"default": ScopeBudget(per_day_usd=4.0)})
    BudgetWatch(store).record(spent(0.0, ann=1.0, bob=1.0), budgets, plan, NOW, None)
    assert recorded(store)[1:] == [("user", "ann", "per_day", 1.0)]
