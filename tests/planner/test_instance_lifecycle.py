"""What a plan does about instances: launch, keep, renew, drain, terminate."""

from dataclasses import replace
from typing import Any

import pytest

from hcloud.core.model import BestEffortTarget, FailureCause, InstanceState, JobState, Market, Nodes
from hcloud.planner.plan import Drain, Enqueue, Finish, Launch, Place, Renew, StopAttempt, Terminate, Wait
from hcloud.planner.snapshot import OfferBackoff, Spend
from hcloud.spec.policy import Budgets, Caps, DisruptionPolicy, Policy, ScopeBudget
from tests.planner.scenes import NOW, decide, job, machine, need, of, offer, running, scene, spec, told
from tests.policies import simple

LARGE = offer("large", vcpus=8.0, usd_per_h=0.4)
DAY = Spend(day_usd=1.0, day_ends_at=NOW + 40_000, month_ends_at=NOW + 900_000)


# ------------------------------------------------------------------------------------------------------------- buying
def test_cheapest_machine_that_fits_is_bought_and_the_alternatives_are_named() -> None:
    launch = of(decide(scene(job(1), offer(), LARGE)), Launch)[0]
    assert (launch.offer.instance_type.name, launch.for_jobs) == ("small", ("job-1",))
    assert launch.expires_at == NOW + 3600
    assert "large" in str(launch.reason.numbers["alternatives"])


def test_reserved_machine_is_bought_before_a_cheaper_one() -> None:
    reserved = offer("r", vcpus=4.0, usd_per_h=0.3, market=Market.RESERVED, available=1)
    launches = of(decide(scene(job(1, asks=spec(resources=need(4))), job(2), offer(), reserved)), Launch)
    assert [launch.offer.instance_type.name for launch in launches] == ["r", "small"]


def test_waiting_jobs_share_a_big_machine_when_that_is_cheaper() -> None:
    bargain = replace(LARGE, price_usd_per_h=0.25)
    jobs = [job(number, asks=spec(resources=need(2))) for number in range(1, 5)]
    launches = of(decide(scene(*jobs, offer(), bargain)), Launch)
    assert [(launch.offer, len(launch.for_jobs)) for launch in launches] == [(bargain, 4)]


def test_gang_is_named_once_per_rank_on_the_machines_bought_for_it() -> None:
    gang = job(1, asks=spec(resources=need(2), nodes=Nodes(count=3)))
    assert [launch.for_jobs for launch in of(decide(scene(gang, offer())), Launch)] == [("job-1",)] * 3
    assert not of(decide(scene(gang, offer()), simple(caps=Caps(max_instances=2))), Launch)


def test_the_reason_of_a_gang_beyond_a_limit_names_its_own_part() -> None:
    gang = job(1, asks=spec(resources=need(2), nodes=Nodes(count=3)))
    (wait,) = of(decide(scene(gang, offer()), simple(caps=Caps(max_vcpus=4))), Wait)
    assert wait.reason.text.startswith(
        "waiting: caps.max_vcpus reached: 4 of 4 vCPUs running or launching, 2 more needed, including 2 for its other"
    )
    (wait,) = of(decide(scene(job(1), offer()), simple(caps=Caps(max_vcpus=1))), Wait)
    assert wait.reason.text.startswith("waiting: caps.max_vcpus reached: 0 of 1 ")


@pytest.mark.parametrize(("limit_usd", "launches"), [(0.15, 0), (0.19, 1)])
def test_a_gang_is_bought_a_machine_only_if_its_user_can_pay_for_those_that_serve_the_rest_of_it(
    limit_usd: float, launches: int
) -> None:
    gang, there = job(1, asks=spec(resources=need(2), nodes=Nodes(count=2))), machine(1)
    # The present instance costs 0.083 USD until it expires, another one 0.1 USD.
    policy = simple(budgets=Budgets(per_user={"ann": ScopeBudget(per_day_usd=limit_usd)}))
    plan = decide(scene(gang, there, offer(), spend=DAY), policy)
    assert len(of(plan, Launch)) == launches
    assert launches or told(plan, "job-1") == "budget_user_per_day"


def test_nothing_is_bought_twice_for_the_same_need() -> None:
    coming = machine(1, state=InstanceState.BOOTING, ready_at=None, idle_since=None)
    awaiting = job(1, JobState.AWAITING_INSTANCE, awaiting=("inst-1",))
    plan = decide(scene(awaiting, job(2), coming, offer()))
    assert not of(plan, Launch)
    assert told(plan, "job-2") == "booting"
    assert of(decide(scene(awaiting, job(2), job(3), coming, offer())), Launch)[0].for_jobs == ("job-3",)


def test_job_whose_instance_failed_is_requeued_and_gets_another() -> None:
    lost = job(1, JobState.AWAITING_INSTANCE, awaiting=("inst-7",))
    backoff = OfferBackoff(provider="mock", instance_type="small", until_at=NOW + 60, error="stockout")
    plan = decide(scene(lost, offer(), LARGE, backoffs=(backoff,)))
    assert [a.reason.code for a in of(plan, Enqueue)] == ["awaited_lost"]
    assert of(plan, Launch)[0].offer == LARGE


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        (simple(caps=Caps(max_instances=1)), "cap_instances"),
        (simple(caps=Caps(max_vcpus=3.0)), "cap_vcpus"),
        (simple(caps=Caps(max_instances_per_type={"small": 1})), "cap_instances_per_type"),
        (simple(budgets=Budgets(per_hour_usd=0.15)), "budget_per_hour"),
        (simple(budgets=Budgets(per_day_usd=1.15)), "budget_per_day"),
        (simple(budgets=Budgets(per_month_usd=0.15)), "budget_per_month"),
        (simple(budgets=Budgets(per_user={"ann": ScopeBudget(per_day_usd=0.05)})), "budget_user_per_day"),
    ],
)
def test_limits_are_asked_before_buying(policy: Policy, code: str) -> None:
    busy = machine(1)
    full = running(1, busy, asks=spec(resources=need(2), user="bob"))
    plan = decide(scene(full, job(2), busy, offer(), spend=DAY), policy)
    assert not of(plan, Launch)
    assert told(plan, "job-2") == code


def test_refusal_by_budget_has_the_numbers_reports_rely_on() -> None:
    plan = decide(scene(job(1), offer(), spend=DAY), simple(budgets=Budgets(per_day_usd=1.05)))
    numbers = plan.actions[-1].reason.numbers
    assert (numbers["rule"], numbers["limit_usd"], numbers["committed_usd"]) == ("per_day", 1.05, 1.0)
    assert [numbers["wanted_usd"], numbers["left_usd"]] == pytest.approx([0.1, 0.05])


def test_money_promised_beyond_midnight_is_held_against_the_next_day() -> None:
    late = replace(DAY, day_usd=0.0, day_ends_at=NOW + 360)
    jobs = [job(number, asks=spec(resources=need(2))) for number in (1, 2, 3)]
    plan = decide(scene(*jobs, offer(), spend=late), simple(budgets=Budgets(per_day_usd=0.2)))
    # Each costs $0.01 today and $0.09 tomorrow.
    assert len(of(plan, Launch)) == 2
    assert told(plan, "job-3") == "budget_next_day"


@pytest.mark.parametrize(
    "rule",
    ["per_hour", "per_day", "per_month", "ann per_day", "ann per_month"],
    ids=lambda rule: rule.replace(" ", "_"),
)
def test_a_lease_beyond_the_end_of_a_commitment_is_paid_from_then_on_at_the_price_on_demand(rule: str) -> None:
    """The renewed hour costs 10 minutes at $0.1/h and 50 at $0.5/h."""
    more_usd = 0.1 / 6 + 0.5 * 5 / 6
    user, _, period = rule.rpartition(" ")
    reserved = offer(vcpus=1.0, market=Market.RESERVED, ends_at=NOW + 600, price_after_usd_per_h=0.5)
    near_its_end = machine(1, reserved, expires_at=NOW + 100)

    def renewed(limit_usd: float) -> bool:
        limits = {f"{period}_usd": limit_usd}
        budgets = Budgets(per_user={user: ScopeBudget(**limits)}) if user else Budgets(**limits)
        spend = Spend(day_ends_at=NOW + 40_000, month_ends_at=NOW + 900_000)
        return bool(
            of(decide(scene(running(1, near_its_end), near_its_end, spend=spend), simple(budgets=budgets)), Renew)
        )

    most_usd = 0.5 if period == "per_hour" else more_usd
    assert (renewed(most_usd + 0.001), renewed(most_usd - 0.001)) == (True, False)


def test_the_price_per_hour_after_a_renewal_counts_for_the_next_launch() -> None:
    reserved = offer(vcpus=1.0, market=Market.RESERVED, ends_at=NOW + 600, price_after_usd_per_h=0.5)
    held = machine(1, reserved, expires_at=NOW + 100)
    there = scene(running(1, held), held, job(2), offer())
    assert len(of(decide(there, simple(budgets=Budgets(per_hour_usd=0.6))), Launch)) == 1
    plan = decide(there, simple(budgets=Budgets(per_hour_usd=0.59)))
    assert (len(of(plan, Renew)), told(plan, "job-2")) == (1, "budget_per_hour")


def test_offers_that_failed_lately_are_left_alone() -> None:
    stockout = OfferBackoff(provider="mock", until_at=NOW + 60, error="no capacity")
    plan = decide(scene(job(1), offer(), backoffs=(stockout,)))
    assert plan.actions[-1].reason.code == "all_backed_off"
    assert plan.actions[-1].reason.numbers["until_at"] == NOW + 60
    text = plan.actions[-1].reason.text
    assert text.startswith("waiting: 1 suitable offer failed recently (no capacity); next retry in ")
    assert text.endswith(", or at once by 'hcloud provider resume mock'")
    longer = replace(stockout, zone="a", until_at=NOW + 600)
    plan = decide(scene(job(1), offer(), backoffs=(stockout, longer)))
    assert plan.actions[-1].reason.numbers["until_at"] == NOW + 600
    of_zone = decide(
        scene(
            job(1), offer(), offer("other", available=0), backoffs=(replace(stockout, zone="a", instance_type="small"),)
        )
    )
    text = of_zone.actions[-1].reason.text
    assert text.startswith(
        "waiting: 1 of 2 suitable offers failed recently (no capacity); the others are sold out; next retry in "
    )
    assert "resume" not in text
    quota = replace(stockout, error="QuotaExceeded: 20 vCPUs")
    assert told(decide(scene(job(1), offer(), backoffs=(quota,))), "job-1") == "quota_exceeded"


def test_offers_that_were_sold_out_by_this_very_plan_are_not_said_to_have_failed() -> None:
    last_one, other = replace(offer(), available=1), replace(offer(), zone="b")
    stockout = OfferBackoff(provider="mock", zone="b", until_at=NOW + 60, error="none")
    whole = spec(resources=offer().instance_type.capacity)
    plan = decide(scene(job(1, asks=whole), job(2, asks=whole), last_one, other, backoffs=(stockout,)))
    assert [launch.offer.zone for launch in of(plan, Launch)] == [last_one.zone]
    [wait] = of(plan, Wait)
    assert "waiting: 1 of 2 suitable offers failed recently (none); the others are sold out;" in wait.reason.text


def test_job_larger_than_any_offer_fails_only_when_all_offers_are_known() -> None:
    giant = job(1, asks=spec(resources=need(64)))
    finish = of(decide(scene(giant, offer(), LARGE)), Finish)[0]
    assert (finish.state, finish.reason.code) == (JobState.FAILED, "impossible")
    assert finish.reason.numbers["nearest"] == "large"
    unheard = frozenset(["mock", "other"])
    assert told(decide(scene(giant, offer(), LARGE, providers=unheard)), "job-1") == "no_offer_fits"
    busy = machine(1, offer("own", vcpus=64.0))
    assert told(decide(scene(running(2, busy), giant, busy, offer())), "job-1") == "instance_full"


def test_idle_machine_makes_room_under_a_cap_for_one_that_is_needed() -> None:
    policy = simple(caps=Caps(max_instances=1))
    big = job(1, asks=spec(resources=need(8)))
    plan = decide(scene(big, machine(1), LARGE), policy)
    assert [(a.instance_id, a.reason.code) for a in of(plan, Terminate)] == [("inst-1", "make_room")]
    assert told(plan, "job-1") == "making_room"
    ending = machine(1, state=InstanceState.TERMINATING)
    plan = decide(scene(big, ending, machine(2), LARGE), simple(caps=Caps(max_instances=2)))
    assert not of(plan, Terminate)


# ------------------------------------------------------------------------------------------------------------- keeping
def test_idle_machine_is_kept_for_as_long_as_a_new_one_takes_to_start() -> None:
    assert not decide(scene(machine(1, idle_since=NOW - 29))).actions
    assert of(decide(scene(machine(1, idle_since=NOW - 30))), Terminate)[0].reason.code == "idle"


def test_idle_machine_is_not_ended_when_work_is_placed_there_or_it_is_reserved_or_awaited() -> None:
    old = machine(1, idle_since=NOW - 5000)
    plan = decide(scene(old, job(1)))
    assert of(plan, Place)
    assert not of(plan, Terminate)
    assert not decide(scene(replace(old, offer=offer(market=Market.RESERVED)))).actions
    gang = spec(resources=need(2), nodes=Nodes(count=2))
    coming = machine(2, state=InstanceState.BOOTING, ready_at=None, idle_since=None)
    awaiting = job(1, JobState.AWAITING_INSTANCE, asks=gang, awaiting=("inst-1", "inst-2"))
    assert not decide(scene(awaiting, old, coming)).actions


def test_at_most_so_many_machines_are_ended_at_once() -> None:
    fleet = [machine(number, idle_since=NOW - 1000) for number in range(1, 6)]
    policy = simple(disruption=DisruptionPolicy(max_terminations_per_cycle=2))
    assert len(of(decide(scene(*fleet), policy), Terminate)) == 2


# ------------------------------------------------------------------------------------------------------------- leases
def test_lease_is_renewed_in_time_while_something_runs() -> None:
    near = machine(1, expires_at=NOW + 800, idle_since=None)
    assert of(decide(scene(running(1, near), near)), Renew)[0].expires_at == NOW + 3600
    far = replace(near, expires_at=NOW + 1000)
    assert not decide(scene(running(1, far), far)).actions


def test_machine_the_budget_cannot_renew_is_drained_its_units_stopped_in_time_and_ended() -> None:
    policy = simple(budgets=Budgets(per_day_usd=1.03))
    near = machine(1, expires_at=NOW + 800, idle_since=None)
    plan = decide(scene(running(1, near), near, spend=DAY), policy)
    assert [type(a) for a in plan.actions] == [Drain]
    assert plan.actions[0].reason.code == "not_renewed"
    soon = replace(near, state=InstanceState.DRAINING, expires_at=NOW + 35)
    stop = of(decide(scene(running(1, soon), soon, spend=DAY), policy), StopAttempt)[0]
    assert stop.cause is FailureCause.EVICTED
    assert [type(a) for a in decide(scene(soon, spend=DAY), policy).actions] == [Terminate]


def test_drained_machine_comes_back_when_the_budget_has_room_again() -> None:
    near = machine(1, state=InstanceState.DRAINING, expires_at=NOW + 800, idle_since=None)
    plan = decide(scene(running(1, near), near, spend=DAY))
    assert [(type(a), getattr(a, "undo", None)) for a in plan.actions] == [(Renew, None), (Drain, True)]


def test_user_without_money_is_stopped_and_the_others_stay() -> None:
    limits = {"ann": ScopeBudget(per_day_usd=0.04), "bob": ScopeBudget(per_day_usd=9.0)}
    policy, near = simple(budgets=Budgets(per_user=limits)), machine(1, expires_at=NOW + 800, idle_since=None)
    poor, rich = running(1, near), running(2, near, asks=spec(user="bob"))
    plan = decide(scene(poor, rich, near, spend=DAY), policy)
    assert [(a.job_id, a.reason.code) for a in of(plan, StopAttempt)] == [("job-1", "budget_user_per_day")]
    assert not of(plan, Renew)  # if the daemon dies now, units on a renewed instance hold it until it expires
    assert [type(a) for a in decide(scene(rich, near, spend=DAY), policy).actions] == [Renew]


def test_tag_without_money_stops_its_jobs_of_all_users_and_the_others_stay() -> None:
    policy = simple(budgets=Budgets(per_tag={"team=ml": ScopeBudget(per_day_usd=0.04)}))
    near, tags = machine(1, expires_at=NOW + 800, idle_since=None), {"team": "ml"}
    first, second = running(1, near, asks=spec(tags=tags)), running(2, near, asks=spec(user="bob", tags=tags))
    other = running(3, near, asks=spec(tags={"team": "web"}))
    plan = decide(scene(first, second, other, near, spend=DAY), policy)
    stopped = [(a.job_id, a.reason.code) for a in of(plan, StopAttempt)]
    assert stopped == [("job-1", "budget_tag_per_day"), ("job-2", "budget_tag_per_day")]
    assert [type(a) for a in decide(scene(other, near, spend=DAY), policy).actions] == [Renew]
    # If nobody else needs it, it is not renewed at all.
    assert not of(decide(scene(first, second, near, spend=DAY), policy), Renew)


@pytest.mark.parametrize(("asked_s_ago", "left_s", "renewed"), [(5, 800, False), (40, 800, True), (5, 9, True)])
def test_renewal_waits_for_stopping_units_whose_users_cannot_pay(
    asked_s_ago: float, left_s: float, renewed: bool
) -> None:
    limits = {"ann": ScopeBudget(per_day_usd=0.04), "bob": ScopeBudget(per_day_usd=9.0)}
    near = machine(1, expires_at=NOW + left_s, idle_since=None)
    poor, rich = running(1, near, asks=spec(stop_grace_s=30.0)), running(2, near, asks=spec(user="bob"))
    assert poor.attempt is not None
    poor = replace(poor, attempt=replace(poor.attempt, stop_requested_at=NOW - asked_s_ago))
    plan = decide(scene(poor, rich, near, spend=DAY), simple(budgets=Budgets(per_user=limits)))
    assert [type(a) for a in plan.actions] == ([Renew] if renewed else [])
    assert of(decide(scene(poor, rich, near, spend=DAY)), Renew)  # no user's money is limited
    # Units cannot receive a stop while the engine is away: their grace begins when it is back.
    back = replace(scene(poor, rich, near, spend=DAY), engine_reachable_since=NOW - 1)
    assert bool(of(decide(back, simple(budgets=Budgets(per_user=limits))), Renew)) is (left_s < 10)


@pytest.mark.parametrize(("asked_s_ago", "told"), [(5, "Renew"), (40, "Drain")])
def test_machine_is_not_renewed_for_units_that_should_have_ended_long_ago(asked_s_ago: float, told: str) -> None:
    near = machine(1, expires_at=NOW + 800, idle_since=None)
    ending = running(1, near, asks=spec(stop_grace_s=30.0))
    assert ending.attempt is not None
    ending = replace(ending, attempt=replace(ending.attempt, stop_requested_at=NOW - asked_s_ago))
    (action,) = decide(scene(ending, near)).actions
    assert type(action).__name__ == told
    if told == "Drain":
        text = "lease of inst-1 not renewed: its units should have stopped 5 s ago"
        assert action.reason.text == text
    assert [type(a) for a in decide(scene(ending, running(2, near), near)).actions] == [Renew]  # for the other
    heard_of_late = replace(scene(ending, near), engine_reachable_since=NOW - 1)
    assert [type(a) for a in decide(heard_of_late).actions] == [Renew]
    paid_anyway = replace(near, offer=replace(near.offer, market=Market.RESERVED))
    assert not of(decide(scene(ending, paid_anyway)), Drain)


@pytest.mark.parametrize(("limit_usd", "renewed"), [(0.06, False), (0.1, True)])
def test_users_of_stopping_units_can_pay_for_all_they_hold(limit_usd: float, renewed: bool) -> None:
    # Half of one costs 0.05 USD for the renewal, half of the other 0.0417 USD until it expires.
    near, other = machine(1, expires_at=NOW + 800, idle_since=None), machine(2, idle_since=None)
    limits = {"ann": ScopeBudget(per_day_usd=limit_usd), "bob": ScopeBudget(per_day_usd=9.0)}
    ending = running(1, near, other, asks=spec(stop_grace_s=30.0, nodes=Nodes(count=2)))
    assert ending.attempt is not None
    ending = replace(ending, attempt=replace(ending.attempt, stop_requested_at=NOW - 5))
    staying = running(2, near, asks=spec(user="bob"))
    plan = decide(scene(ending, staying, near, other, spend=DAY), simple(budgets=Budgets(per_user=limits)))
    assert bool(of(plan, Renew)) is renewed


def test_a_stopping_unit_is_charged_for_a_renewal_until_its_end_is_known() -> None:
    near, other = machine(1, expires_at=NOW + 9, idle_since=None), machine(2)
    limits = {"ann": ScopeBudget(per_day_usd=0.045), "bob": ScopeBudget(per_day_usd=9.0)}  # half of other: 0.0417 USD
    poor, rich = running(1, near), running(2, near, asks=spec(user="bob"))
    plan = decide(scene(poor, rich, job(3), near, other, spend=DAY), simple(budgets=Budgets(per_user=limits)))
    assert [each.job_id for each in of(plan, StopAttempt)] == ["job-1"]
    assert of(plan, Renew) and not of(plan, Place)
    assert of(decide(scene(rich, job(3), near, other, spend=DAY), simple(budgets=Budgets(per_user=limits))), Place)


def test_idle_machine_near_its_horizon_is_renewed_only_for_work() -> None:
    near = machine(1, expires_at=NOW + 800, idle_since=NOW - 5000)
    assert [type(a) for a in decide(scene(near)).actions] == [Terminate]
    assert [type(a) for a in decide(scene(near, job(1))).actions] == [Renew, Place]


# ------------------------------------------------------------------------------------------------------------ giving up
def test_machine_that_never_registers_is_given_up_but_not_while_the_engine_is_away() -> None:
    stuck = machine(
        1, state=InstanceState.BOOTING, requested_at=NOW - 705, launched_at=NOW - 700, ready_at=None, idle_since=None
    )
    assert of(decide(scene(stuck)), Terminate)[0].reason.code == "never_registered"
    assert not decide(scene(replace(stuck, requested_at=NOW - 50))).actions  # the provider's clock is behind ours
    assert not decide(scene(stuck, engine_reachable=False)).actions
    assert not decide(scene(stuck, engine_reachable_since=NOW - 100)).actions


def test_silent_machine_is_given_up_only_while_the_engine_answers() -> None:
    silent = machine(1, seen_at=NOW - 130, idle_since=None)
    busy = scene(running(1, silent), silent, reachable=frozenset())
    assert of(decide(busy), Terminate)[0].reason.code == "unreachable"
    assert not decide(replace(busy, engine_reachable=False)).actions
    assert not decide(replace(busy, engine_reachable_since=NOW - 60)).actions
    assert not of(decide(replace(busy, jobs=(*busy.jobs, job(2)))), Place)


def test_preemption_notice_drains_and_stops_what_can_be_stopped_in_time() -> None:
    spot = machine(1, offer(market=Market.SPOT), preempt_at=NOW + 100, idle_since=None)
    plan = decide(scene(running(1, spot), job(2), spot))
    assert [a.reason.code for a in of(plan, Drain)] == ["preempt_notice"]
    assert not of(plan, StopAttempt)
    assert not of(plan, Place)
    soon = replace(spot, state=InstanceState.DRAINING, preempt_at=NOW + 30)
    kept = running(3, soon, asks=spec(interruptible=False))
    plan = decide(scene(running(1, soon), kept, soon))
    assert [(a.job_id, a.cause) for a in of(plan, StopAttempt)] == [("job-1", FailureCause.PREEMPTED)]


def test_hopeless_notice_on_an_empty_machine_ends_it() -> None:
    assert of(decide(scene(machine(1, preempt_at=NOW + 100))), Terminate)[0].reason.code == "preempt_notice"


# ---------------------------------------------------------------------------------------------- types, whole machines
def test_job_that_names_types_runs_and_buys_only_those() -> None:
    asks = spec(instance_types=("lar*",))
    assert told(decide(scene(job(1, asks=asks), machine(1), offer(), LARGE)), "job-1") == ""
    launch = of(decide(scene(job(1, asks=asks), machine(1), offer(), LARGE)), Launch)[0]
    assert launch.offer.instance_type.name == "large"
    assert of(decide(scene(job(1, asks=asks), machine(1, LARGE), offer())), Place)


def test_job_with_a_type_that_is_not_offered_fails_and_names_the_types_offered() -> None:
    finish = of(decide(scene(job(1, asks=spec(instance_types=("gpu.*",))), offer(), LARGE)), Finish)[0]
    assert finish.reason.numbers["why"] == "no_such_type"
    assert finish.reason.text.endswith("instance_types gpu.*; available: large, small")
    many = [offer(f"t{n}") for n in range(9)]
    for count, end in ((8, "t6, t7"), (9, "t6, t7, ...")):
        finish = of(decide(scene(job(1, asks=spec(instance_types=("gpu.*",))), *many[:count])), Finish)[0]
        assert finish.reason.text.endswith(end)


def test_exclusive_job_takes_a_whole_instance_and_shares_it_with_no_job() -> None:
    alone = spec(exclusive=True)
    plan = decide(scene(job(1, asks=alone), job(2), machine(1), machine(2)))
    assert [(p.job_id, p.ranks[0].instance_id) for p in of(plan, Place)] == [("job-1", "inst-1"), ("job-2", "inst-2")]
    assert of(plan, Place)[0].ranks[0].resources == machine(1).capacity
    busy = running(3, machine(1))
    plan = decide(scene(busy, job(1, asks=alone), machine(1), offer()))
    assert [launch.for_jobs for launch in of(plan, Launch)] == [("job-1",)]


def test_exclusive_job_evicts_all_best_effort_of_one_machine() -> None:
    here = machine(1, offer(vcpus=2.0))
    fillers = [running(number, here, asks=spec(target=BestEffortTarget())) for number in (1, 2)]
    plan = decide(scene(*fillers, job(3, asks=spec(exclusive=True)), here))
    assert sorted(stop.job_id for stop in of(plan, StopAttempt)) == ["job-1", "job-2"]


# --------------------------------------------------------------------------------------------------------- shared hosts
def test_offers_that_share_a_host_are_counted_together_and_with_what_was_launched_since_they_were_read() -> None:
    left = need(3.0, memory_mib=100_000)
    host: dict[str, Any] = {"pool": "host", "pool_free": replace(left, disk_gib=1000.0)}
    small, middle = offer(**host), offer("middle", vcpus=3.0, usd_per_h=0.15, **host)
    waiting = [job(1, asks=spec(resources=need(2))), job(2, asks=spec(resources=need(3)))]
    assert len(of(decide(scene(*waiting, small, middle)), Launch)) == 1
    coming = machine(7, small, state=InstanceState.REQUESTED, requested_at=NOW, idle_since=None, ready_at=None)
    assert not of(decide(scene(waiting[1], coming, small, middle)), Launch)
    known = replace(coming, requested_at=NOW - 50)
    assert len(of(decide(scene(waiting[1], known, small, middle)), Launch)) == 1


@pytest.mark.parametrize("asked_s_ago", [10.0, 2990.0])
def test_what_a_unit_that_was_asked_to_end_may_hold_is_not_spent_by_others_of_its_user(asked_s_ago: float) -> None:
    one, two = machine(1), machine(2)  # half of either costs 0.0417 USD until it expires
    ending = running(1, one, asks=spec(stop_grace_s=3000.0))
    assert ending.attempt is not None
    ending = replace(ending, attempt=replace(ending.attempt, stop_requested_at=NOW - asked_s_ago))
    policy = simple(budgets=Budgets(per_user={"ann": ScopeBudget(per_day_usd=0.05)}))
    assert not of(decide(scene(ending, job(2), one, two, spend=DAY), policy), Place)
    assert of(decide(scene(job(2), one, two, spend=DAY), policy), Place)


@pytest.mark.parametrize(("limit_usd", "placed", "queued"), [(0.15, 2, 0), (0.09, 2, 1), (0.05, 1, 1), (0.03, 0, 2)])
def test_jobs_that_cannot_pay_for_an_awaited_instance_are_requeued_the_last_first(
    limit_usd: float, placed: int, queued: int
) -> None:
    # Half of either costs 0.0417 USD until it expires; an awaited instance counts in full until a unit is on it.
    there = [machine(1), machine(2)]
    waiting = [job(number, JobState.AWAITING_INSTANCE, awaiting=(each.id,)) for number, each in enumerate(there, 1)]
    policy = simple(budgets=Budgets(per_user={"ann": ScopeBudget(per_day_usd=limit_usd)}))
    plan = decide(scene(*waiting, *there, offer(), spend=DAY), policy)
    assert [action.job_id for action in of(plan, Place)] == ["job-1", "job-2"][:placed]
    told_so = [(action.job_id, action.reason.code) for action in of(plan, Enqueue)]
    assert sorted(told_so) == [(f"job-{number}", "budget_user_per_day") for number in (1, 2)][2 - queued :]


def test_a_gang_that_cannot_pay_for_what_it_awaited_waits_on_while_some_of_it_is_coming() -> None:
    here, comes = machine(1), machine(2, state=InstanceState.BOOTING, idle_since=None, ready_at=None)
    gang = spec(resources=need(2), nodes=Nodes(count=2))
    policy = simple(budgets=Budgets(per_user={"ann": ScopeBudget(per_day_usd=0.05)}))
    waiting = job(1, JobState.AWAITING_INSTANCE, asks=gang, awaiting=(here.id, comes.id))
    assert not of(decide(scene(waiting, here, comes, offer(), spend=DAY), policy), Enqueue)
