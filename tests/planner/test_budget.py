"""The account of a plan in dollars: what is booked per period and user, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest

from hcloud.core.budget_scope import TOTAL, tag_scope, user_scope
from hcloud.core.model import Instance, InstanceState, Job, JobState, Offer, Reason
from hcloud.planner.budget import Bill, BudgetLedger, cost_is_shared, launch_shares, open_budget, paid_until
from hcloud.planner.snapshot import Spend
from hcloud.spec.policy import Budgets, Caps, Policy, ScopeBudget
from tests.planner.scenes import NOW, job, machine, need, offer, running, scene, spec
from tests.policies import simple
from tests.scopes import by_user

HOUR = 3600.0
ANN, EVE = user_scope("ann"), user_scope("eve")
WHOLE = offer("whole", vcpus=4.0, usd_per_h=1.0)
ENDS = Spend(day_ends_at=NOW + 0.5 * HOUR, month_ends_at=NOW + 0.75 * HOUR)
"""The day ends in half an hour, the month in three quarters."""
WATCHED = simple(
    budgets=Budgets(per_day_usd=100.0, per_user={"default": ScopeBudget(per_day_usd=100.0, per_month_usd=100.0)})
)


def opened(*things: Instance | Job, policy: Policy = WATCHED, spend: Spend = ENDS) -> BudgetLedger:
    snapshot = scene(*things, spend=spend)
    return open_budget(snapshot, policy, snapshot.instances, snapshot.jobs)


def up(number: int = 1, of: Offer = WHOLE, **changes: Any) -> Instance:
    """Return an instance whose lease ends in an hour, so that it may cost $1 yet."""
    return machine(number, of, **{"expires_at": NOW + HOUR, "launched_at": NOW - 60.0, **changes})


def usd(*amounts: float) -> Any:
    return pytest.approx(amounts)


def code(reason: Reason | None) -> str:
    return reason.code if reason is not None else ""


# ----------------------------------------------------------------------------------------------------- what it costs
def test_a_lease_is_split_between_this_day_and_month_and_the_next() -> None:
    ledger = opened()
    assert ledger.launch_bill(WHOLE) == usd(0.5, 0.75, 0.5, 0.25)
    assert ledger.bill(WHOLE, NOW + 0.25 * HOUR) == usd(0.25, 0.25, 0.0, 0.0)
    assert ledger.bill(WHOLE, NOW - HOUR) == (0.0, 0.0, 0.0, 0.0)  # over already


def test_a_billing_minimum_counts_where_it_is_longer_than_a_lease() -> None:
    assert opened().launch_bill(replace(WHOLE, billing_minimum_s=2 * HOUR)) == usd(0.5, 0.75, 1.5, 1.25)
    assert opened().launch_bill(replace(WHOLE, billing_minimum_s=0.5 * HOUR)) == usd(0.5, 0.75, 0.5, 0.25)


def test_without_known_ends_a_lease_costs_this_day_and_month() -> None:
    assert opened(spend=Spend()).launch_bill(WHOLE) == usd(1.0, 1.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("changes", "until_s"),
    [
        ({}, HOUR),
        ({"of": replace(WHOLE, billing_minimum_s=2 * HOUR), "launched_at": NOW - 600.0}, 2 * HOUR - 600.0),
        ({"of": replace(WHOLE, billing_minimum_s=2 * HOUR), "launched_at": None}, 2 * HOUR),  # not launched yet
        ({"of": replace(WHOLE, billing_minimum_s=2 * HOUR), "launched_at": 0.0}, HOUR),
        ({"state": InstanceState.TERMINATED}, 0.0),
    ],
)
def test_an_instance_costs_until_its_lease_or_billing_minimum_ends(changes: dict[str, Any], until_s: float) -> None:
    assert paid_until(up(**changes), NOW) == NOW + until_s


# ---------------------------------------------------------------------------------------------------------- all users
def test_live_instances_count_with_price_size_and_what_they_may_cost_yet() -> None:
    spend = replace(ENDS, day_usd=3.0, month_usd=7.0)
    ledger = opened(up(1), up(2, replace(WHOLE, price_usd_per_h=2.0)), spend=spend)
    assert (ledger.usd_per_h, ledger.instances, ledger.vcpus, ledger.per_type["whole"]) == (3.0, 2, 8.0, 2)
    assert ledger.total == usd(3.0 + 1.5, 7.0 + 2.25, 1.5, 0.75)


def test_releasing_an_instance_gives_all_of_it_back() -> None:
    first, second = up(1), up(2, replace(WHOLE, price_usd_per_h=2.0))
    ledger, alone = opened(first, second), opened(first)
    ledger.release(second)
    assert (ledger.usd_per_h, ledger.instances, ledger.vcpus) == (alone.usd_per_h, alone.instances, alone.vcpus)
    assert (ledger.per_type, ledger.total) == (alone.per_type, usd(*alone.total))


def test_a_launch_counts_for_the_next_one() -> None:
    ledger = opened()
    ledger.book_launch(WHOLE, by_user({"ann": 0.5}))
    assert (ledger.usd_per_h, ledger.instances, ledger.vcpus, ledger.per_type["whole"]) == (1.0, 1, 4.0, 1)
    assert ledger.total == usd(0.5, 0.75, 0.5, 0.25)
    assert ledger.scopes == by_user({"ann": usd(0.25, 0.375, 0.25, 0.125)})


def test_a_copy_is_booked_on_its_own() -> None:
    ledger = opened(up())
    copy = ledger.copy()
    copy.book_launch(WHOLE, by_user({"ann": 1.0}))
    copy.book_renewal(up(), NOW + 2 * HOUR, by_user({"ann": 1.0}))
    copy.remember_awaited(job(1), (1.0, 1.0, 1.0, 1.0))
    untouched = opened(up())
    assert ledger == untouched
    assert copy != untouched


@pytest.mark.parametrize(
    ("budgets", "spend", "refused"),
    [
        ({"per_hour_usd": 1.0}, {}, ""),  # exactly what is left
        ({"per_hour_usd": 0.99}, {}, "budget_per_hour"),
        ({"per_day_usd": 0.5}, {}, ""),
        ({"per_day_usd": 0.49}, {}, "budget_per_day"),
        ({"per_day_usd": 1.0}, {"day_usd": 0.5}, ""),
        ({"per_day_usd": 1.0}, {"day_usd": 0.51}, "budget_per_day"),
        ({"per_month_usd": 1.0}, {"month_usd": 0.25}, ""),
        ({"per_month_usd": 1.0}, {"month_usd": 0.26}, "budget_per_month"),
        ({"per_day_usd": 0.8}, {"day_ends_at": NOW + 0.1 * HOUR}, "budget_next_day"),
        ({"per_month_usd": 0.8}, {"day_ends_at": 0.0, "month_ends_at": NOW + 0.1 * HOUR}, "budget_next_month"),
        ({"per_day_usd": 1.0}, {"day_usd": 9.0, "day_ends_at": NOW}, ""),  # overdrawn, but it costs nothing today
    ],
)
def test_a_launch_fits_every_period(budgets: dict[str, float], spend: dict[str, float], refused: str) -> None:
    ledger = opened(policy=simple(budgets=Budgets(**budgets)), spend=replace(ENDS, **spend))  # type: ignore[arg-type]
    assert code(ledger.refusal(WHOLE, by_user({"ann": 1.0}))) == refused


@pytest.mark.parametrize(
    ("caps", "refused"),
    [
        (Caps(max_instances=2), ""),
        (Caps(max_instances=1), "cap_instances"),
        (Caps(max_vcpus=8.0), ""),
        (Caps(max_vcpus=7.9), "cap_vcpus"),
        (Caps(max_instances_per_type={"whole": 2}), ""),
        (Caps(max_instances_per_type={"whole": 1}), "cap_instances_per_type"),
        (Caps(max_instances_per_type={"other": 1}), ""),
    ],
)
def test_a_launch_fits_the_caps_beside_what_is_up(caps: Caps, refused: str) -> None:
    assert code(opened(up(), policy=simple(caps=caps)).refusal(WHOLE, {})) == refused


# -------------------------------------------------------------------------------------------------------------- users
def limited(**usd_per_day: float) -> Policy:
    """Return a policy that limits some users' days, and no other."""
    return simple(budgets=Budgets(per_user={name: ScopeBudget(per_day_usd=most) for name, most in usd_per_day.items()}))


def test_a_user_pays_the_part_of_a_launch_that_the_users_jobs_take() -> None:
    ledger = opened(policy=limited(ann=0.25), spend=ENDS)
    assert ledger.refusal(WHOLE, by_user({"ann": 0.5})) is None
    assert code(ledger.refusal(WHOLE, by_user({"ann": 0.52}))) == "budget_user_per_day"
    assert ledger.refusal(WHOLE, by_user({"eve": 1.0})) is None
    spent = replace(ENDS, by_scope_day_usd=by_user({"ann": 0.2}), by_scope_month_usd=by_user({"ann": 0.4, "eve": 9.0}))
    ledger = opened(policy=limited(ann=0.25), spend=spent)
    assert ledger.scopes == by_user({"ann": (0.2, 0.4, 0.0, 0.0), "eve": (0.0, 9.0, 0.0, 0.0)})
    assert ledger.refusal(WHOLE, by_user({"ann": 0.1})) is None
    assert code(ledger.refusal(WHOLE, by_user({"ann": 0.11}))) == "budget_user_per_day"


def test_an_instance_for_few_is_paid_whole_and_one_for_many_in_parts() -> None:
    size = WHOLE.instance_type.capacity
    one, two = job(1, asks=spec(resources=need(1.0))), job(2, asks=spec(user="eve", resources=need(2.0)))
    assert launch_shares([one], size) == by_user({"ann": 1.0})
    assert launch_shares([one, one], size) == by_user({"ann": 1.0})
    assert launch_shares([one, two], size) == pytest.approx(by_user({"ann": 1 / 3, "eve": 2 / 3}))
    assert launch_shares([two, two, one], size) == pytest.approx(by_user({"eve": 1.0, "ann": 0.25}))  # not scaled down


def test_a_job_that_joins_a_planned_instance_takes_over_its_part_if_its_user_can_pay() -> None:
    first, second = job(1, asks=spec(resources=need(2.0))), job(2, asks=spec(user="eve", resources=need(2.0)))
    for most_usd, joins in ((0.25, True), (0.24, False)):
        ledger = opened(policy=limited(eve=most_usd))
        ledger.book_launch(WHOLE, launch_shares([first], WHOLE.instance_type.capacity))
        before = dict(ledger.scopes)
        assert cost_is_shared(ledger, WHOLE, [first], second) is joins
        half = usd(0.25, 0.375, 0.25, 0.125)
        assert ledger.scopes == (by_user({"ann": half, "eve": half}) if joins else before)


def test_users_hold_parts_of_what_live_instances_may_cost_yet() -> None:
    host = up()
    held = running(1, host, asks=spec(resources=need(1.0)))
    ledger = opened(host, held, policy=limited(ann=9.0))
    assert ledger.scopes == by_user({"ann": usd(0.125, 0.1875, 0.125, 0.0625)})
    assert held.attempt is not None
    stopping = replace(held, attempt=replace(held.attempt, stop_requested_at=NOW - 1))
    assert opened(host, stopping, policy=limited(ann=9.0)).scopes == ledger.scopes  # until its end is known
    [unit] = held.attempt.allocations
    left = replace(held, attempt=replace(held.attempt, allocations=(replace(unit, ended_at=NOW - 1, exit_code=0),)))
    assert opened(host, left, policy=limited(ann=9.0)).scopes == {}
    assert opened(held, policy=limited(ann=9.0)).scopes == {}  # the instance is gone


def awaits(number: int, *names: str, vcpus: float = 1.0, **asks: Any) -> Job:
    asked = spec(resources=need(vcpus), **asks)
    return job(number, JobState.AWAITING_INSTANCE, asks=asked, awaiting=names)


def test_an_awaited_instance_is_paid_in_full_by_those_that_await_or_hold_it() -> None:
    booting = up(1, state=InstanceState.BOOTING)
    alone = opened(booting, awaits(1, "inst-1"), policy=limited(ann=9.0))
    assert alone.scopes == by_user({"ann": usd(0.5, 0.75, 0.5, 0.25)})
    assert alone.awaited["job-1"] == usd(0.5, 0.75, 0.5, 0.25)
    two = opened(booting, awaits(1, "inst-1"), awaits(2, "inst-1", vcpus=3.0, user="eve"), policy=limited(ann=9.0))
    assert two.scopes[ANN] == usd(0.125, 0.1875, 0.125, 0.0625)
    assert two.scopes[EVE] == usd(0.375, 0.5625, 0.375, 0.1875)
    host = up()
    holds = running(2, host, asks=spec(resources=need(1.0), user="eve"))
    shared = opened(host, holds, awaits(1, "inst-1"), policy=limited(ann=9.0))
    assert shared.scopes[EVE] == usd(0.125, 0.1875, 0.125, 0.0625)  # holds a quarter
    assert shared.scopes[ANN] == usd(0.25, 0.375, 0.25, 0.125)  # a quarter, doubled as half is taken
    assert opened(awaits(1, "inst-9"), policy=limited(ann=9.0)).awaited == {}


def test_a_running_job_pays_for_the_instance_that_boots_for_more_of_its_nodes() -> None:
    host, more = up(1), up(2, state=InstanceState.BOOTING, for_running=("job-1",))
    grows = running(1, host, asks=spec(resources=need(1.0)))
    ledger = opened(host, more, grows, policy=limited(ann=9.0))
    assert ledger.scopes[ANN] == usd(0.5 * 1.25, 0.75 * 1.25, 0.5 * 1.25, 0.25 * 1.25)
    assert grows.attempt is not None
    ready = opened(host, replace(more, state=InstanceState.READY), grows, policy=limited(ann=9.0))
    assert ready.scopes[ANN] == usd(0.125, 0.1875, 0.125, 0.0625)
    stopping = replace(grows, attempt=replace(grows.attempt, stop_requested_at=NOW - 1))
    both = opened(host, more, stopping, policy=limited(ann=9.0))
    assert both.scopes[ANN] == usd(0.125, 0.1875, 0.125, 0.0625)


def test_what_a_job_awaits_is_given_back_and_booked_again() -> None:
    ledger, waiting, bill = opened(policy=limited(ann=9.0)), job(1), (1.0, 2.0, 3.0, 4.0)
    assert ledger.forget_awaited(waiting) is None
    ledger.remember_awaited(waiting, bill)
    ledger.remember_awaited(waiting, bill)
    assert ledger.scopes == by_user({"ann": (2.0, 4.0, 6.0, 8.0)})
    assert ledger.forget_awaited(waiting) == (2.0, 4.0, 6.0, 8.0)
    assert ledger.scopes == by_user({"ann": (0.0, 0.0, 0.0, 0.0)})
    assert ledger.forget_awaited(waiting) is None


@pytest.mark.parametrize(("most_usd", "refused"), [(0.125, ""), (0.12, "budget_user_per_day")])
def test_a_placement_costs_its_part_of_what_the_instance_may_cost_yet(most_usd: float, refused: str) -> None:
    ledger, host = opened(up(), policy=limited(ann=most_usd)), up()
    assert code(ledger.placement_refusal(job(1), host, need(1.0))) == refused
    assert ledger.placement_refusal(job(1, asks=spec(user="eve")), host, need(4.0)) is None
    ledger.book_placement(job(1), host, need(1.0))
    assert ledger.scopes == by_user({"ann": usd(0.125, 0.1875, 0.125, 0.0625)})


# ----------------------------------------------------------------------------------------------------------- renewals
def test_a_renewal_costs_what_it_adds() -> None:
    host = up(expires_at=NOW + 0.25 * HOUR)
    ledger = opened(host)
    ledger.book_renewal(host, NOW + HOUR, by_user({"ann": 0.5}))
    added: Bill = (0.25, 0.5, 0.5, 0.25)
    assert ledger.total == usd(*(a + b for a, b in zip(added, (0.25, 0.25, 0.0, 0.0), strict=True)))
    assert ledger.scopes[ANN] == usd(*(0.5 * each for each in added))
    assert ledger.promised(host) == usd(0.5, 0.75, 0.5, 0.25)
    ledger.book_renewal(host, NOW + HOUR, by_user({"ann": 0.5}))  # it is renewed until then already
    assert ledger.total == usd(0.5, 0.75, 0.5, 0.25)


def test_a_renewal_within_the_billing_minimum_costs_nothing() -> None:
    host = up(of=replace(WHOLE, billing_minimum_s=3 * HOUR), launched_at=NOW, expires_at=NOW + 0.25 * HOUR)
    ledger = opened(host, policy=simple(budgets=Budgets(per_day_usd=0.1)))
    assert ledger.renewal_refusal(host, NOW + HOUR, {}) is None


def test_a_renewal_is_paid_by_those_that_await_the_instance() -> None:
    host = up(expires_at=NOW + 0.25 * HOUR)
    ledger = opened(host)
    waiters = [awaits(1, vcpus=1.0), awaits(2, vcpus=1.0, user="eve")]
    ledger.book_renewal(host, NOW + HOUR, {}, waiters)
    assert ledger.awaited == {"job-1": usd(0.125, 0.25, 0.25, 0.125), "job-2": usd(0.125, 0.25, 0.25, 0.125)}
    assert ledger.scopes == by_user({"ann": usd(0.125, 0.25, 0.25, 0.125), "eve": usd(0.125, 0.25, 0.25, 0.125)})


def test_a_renewal_is_refused_by_the_common_limits_first_then_by_the_users() -> None:
    host, other = up(1, expires_at=NOW + 0.25 * HOUR), up(2)
    ledger = opened(host, other, policy=simple(budgets=Budgets(per_hour_usd=1.5)))
    refused = ledger.renewal_refusal(host, NOW + HOUR, by_user({"ann": 1.0}))
    assert refused is not None
    assert (refused[0].code, refused[1]) == ("budget_per_hour", TOTAL)
    ledger.exclude_from_renewal(other)
    assert ledger.renewal_refusal(host, NOW + HOUR, by_user({"ann": 1.0})) is None  # the other leaves room
    exact = opened(host, other, policy=simple(budgets=Budgets(per_hour_usd=2.0)))
    assert exact.renewal_refusal(host, NOW + HOUR, {}) is None  # it is one of the two already
    daily = opened(host, policy=simple(budgets=Budgets(per_day_usd=0.4)))
    refused = daily.renewal_refusal(host, NOW + HOUR, {})
    assert refused is not None
    assert (refused[0].code, refused[1]) == ("budget_per_day", TOTAL)
    users = opened(host, policy=limited(bob=0.1, eve=0.2))
    assert users.renewal_refusal(host, NOW + HOUR, by_user({"ann": 0.5, "bob": 0.1, "eve": 0.4})) is None
    refused = users.renewal_refusal(host, NOW + HOUR, by_user({"ann": 0.4, "bob": 0.1, "eve": 0.5}))  # half of $0.5
    assert refused is not None
    assert (refused[0].code, refused[1]) == ("budget_user_next_day", EVE)


def test_users_that_could_not_pay_until_the_renewed_end_may_not_stay() -> None:
    host = up(expires_at=NOW + 0.25 * HOUR)
    ledger = opened(host, policy=limited(ann=0.25))
    assert ledger.stay_refusal(host, NOW + HOUR, by_user({"ann": 0.5})) is None
    assert code(ledger.stay_refusal(host, NOW + HOUR, by_user({"ann": 0.6}))) == "budget_user_next_day"


def test_a_refusal_states_what_is_needed_left_and_allowed() -> None:
    ledger = opened(policy=limited(ann=0.25), spend=replace(ENDS, by_scope_day_usd=by_user({"ann": 0.2})))
    reason = ledger.refusal(WHOLE, by_user({"ann": 1.0}))
    assert reason is not None
    numbers = {"rule": "user_per_day", "limit_usd": 0.25, "committed_usd": 0.2, "wanted_usd": 0.5, "left_usd": 0.05}
    assert reason.numbers == {**numbers, "whose": "ann"}
    overdrawn = opened(policy=limited(ann=0.25), spend=replace(ENDS, by_scope_day_usd=by_user({"ann": 9.0})))
    reason = overdrawn.refusal(WHOLE, by_user({"ann": 1.0}))
    assert reason is not None
    assert reason.numbers["left_usd"] == 0.0


# ---------------------------------------------------------------------------------------------------------------- tags
ML, WEB = tag_scope("team=ml"), tag_scope("team=web")


def by_tag(**usd_per_day: float) -> Policy:
    """Return a policy with limits for tags: ``ml`` is the tag team=ml, ``team`` each other value of team."""
    names = {"team": "team"}
    limits = {names.get(name, f"team={name}"): ScopeBudget(per_day_usd=most) for name, most in usd_per_day.items()}
    return simple(budgets=Budgets(per_tag=limits))


def of_team(number: int, team: str, **more: str) -> Job:
    return job(number, asks=spec(tags={"team": team, **more}))


def test_a_job_counts_in_each_of_its_tags_and_for_its_user() -> None:
    both = launch_shares([of_team(1, "ml", stage="test")], WHOLE.instance_type.capacity)
    assert both == {ANN: 1.0, ML: 1.0, tag_scope("stage=test"): 1.0}
    ledger = opened(policy=by_tag(ml=100.0))
    ledger.book_launch(WHOLE, both)
    assert ledger.scopes[ML] == ledger.scopes[ANN] == usd(0.5, 0.75, 0.5, 0.25)


@pytest.mark.parametrize(("team", "refused"), [("ml", ""), ("web", "budget_tag_per_day"), (None, "")])
def test_a_tag_has_its_own_limit_or_that_of_its_key(team: str | None, refused: str) -> None:
    ledger = opened(policy=by_tag(ml=9.0, team=0.4))
    asks = job(1) if team is None else of_team(1, team)
    reason = ledger.refusal(WHOLE, launch_shares([asks], WHOLE.instance_type.capacity))
    assert code(reason) == refused
    if reason is not None:
        assert (
            "of the per_day budget of tag team=web of $0.4" in reason.text and reason.numbers["whose"] == "tag team=web"
        )


def test_what_a_tag_spent_counts_and_jobs_without_it_do_not() -> None:
    spent = replace(ENDS, by_scope_day_usd={ML: 0.3, ANN: 5.0})
    host, held = up(), running(1, up(), asks=spec(tags={"team": "ml"}))
    ledger = opened(host, held, policy=by_tag(ml=0.5), spend=spent)
    assert ledger.scopes[ML] == usd(0.3 + 0.125, 0.1875, 0.125, 0.0625)
    assert code(ledger.placement_refusal(of_team(2, "ml"), host, need(1.0))) == "budget_tag_per_day"
    assert ledger.placement_refusal(of_team(2, "web"), host, need(1.0)) is None
    assert ledger.limited_scopes(of_team(2, "ml")) == (ML,) and ledger.limited_scopes(job(3)) == ()
