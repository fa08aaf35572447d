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


def waiting(*jobs: str, **numbers: str) -> Plan:
    why = Reason(code=f"budget_{numbers['rule']}", text="x", numbers=dict(numbers))
    return Plan(at=NOW, actions=tuple(Wait(job_id=each, reason=why) for each in jobs))


def test_a_job_that_too_little_is_left_for_is_recorded_once_and_hides_no_threshold() -> None:
    store = MemoryStore()
    for usd in (0.5, 0.5, 8.0, 10.0):
        BudgetWatch(store).record(spent(usd), DAY, waiting("job-2", "job-1", rule="per_day"), NOW, None)
    texts = [str(event.fields["text"]) for event in store.events(kinds=[EventKind.BUDGET])]
    assert texts == [
        "job-2 waits: too little is left of the daily budget; $0.50 of $10.00 is spent",
        "80% of the daily budget is spent: $8.00 of $10.00",
        "100% of the daily budget is spent: $10.00 of $10.00",
    ]
    assert [each[3] for each in recorded(store)] == [0.0, 0.8, 1.0]


def test_budgets_of_users_that_jobs_wait_for_are_recorded() -> None:
    store = MemoryStore()
    budgets = Budgets(per_user={"default": ScopeBudget(per_day_usd=4.0)})
    plan = waiting("job-1", rule="user_per_day", whose="ann")
    BudgetWatch(store).record(spent(0.0, ann=1.0, bob=1.0), budgets, plan, NOW, None)
    [event] = store.events(kinds=[EventKind.BUDGET])
    assert event.fields["text"] == "job-1 waits: too little is left of the daily budget of ann; $1.00 of $4.00 is spent"
    assert (event.user, event.fields["job"]) == ("ann", "job-1")


def test_a_budget_that_is_spent_is_not_recorded_again_for_jobs_that_wait() -> None:
    store = MemoryStore()
    BudgetWatch(store).record(spent(10.0), DAY, waiting("job-1", rule="per_day"), NOW, None)
    assert [each[3] for each in recorded(store)] == [1.0]
