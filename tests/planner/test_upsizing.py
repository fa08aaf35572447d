"""Jobs that wait only at the cap on instances get larger instances in place of the smallest."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from hcloud.core.model import (
    BestEffortTarget,
    Instance,
    InstanceState,
    Job,
    JobState,
    Market,
    Nodes,
    Offer,
    ServiceTarget,
)
from hcloud.planner.plan import Drain, Launch, Place, Plan, StopAttempt, Wait
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import Budgets, Caps
from tests.planner.scenes import decide, job, machine, need, of, offer, running, scene, spec, told
from tests.policies import simple

SMALL, MIDDLE, LARGE = offer(), offer("middle", vcpus=3.0, usd_per_h=0.15), offer("large", vcpus=8.0, usd_per_h=0.4)
FOUR = simple(caps=Caps(max_instances=4))
TWO_VCPUS = spec(resources=need(2))


def _full(*machines: Instance) -> list[Instance | Job]:
    """Return instances with one job each."""
    return [*machines, *(running(n, each, asks=TWO_VCPUS) for n, each in enumerate(machines, start=1))]


def _fleet(*others: Instance, of_small: int = 4) -> list[Instance | Job]:
    return _full(*(machine(number) for number in range(1, of_small + 1)), *others)


def _queue(count: int, **asks: object) -> list[Job]:
    return [
        job(100 + number, asks=spec(resources=need(2), **asks), wait_code="cap_instances") for number in range(count)
    ]


def _crowded(
    count: int = 20, fleet: Sequence[Instance | Job] | None = None, offers: Sequence[Offer] = (SMALL, LARGE)
) -> Snapshot:
    return scene(*(_fleet() if fleet is None else fleet), *_queue(count), *offers)


def _drained(plan: Plan) -> list[str]:
    return [action.instance_id for action in of(plan, Drain)]


def test_half_of_the_small_instances_drain_while_many_jobs_wait_and_no_unit_is_stopped() -> None:
    plan = decide(_crowded(), FOUR)
    assert _drained(plan) == ["inst-1", "inst-2"]
    assert not of(plan, StopAttempt)
    assert told(plan, "job-100") == ""  # its reason was recorded before
    reason = of(plan, Drain)[0].reason
    assert (reason.code, reason.numbers["waiting"], reason.numbers["limit"]) == ("too_small", 20, 4)
    assert "large on_demand" in reason.text


def test_no_more_give_way_than_bring_what_is_lacking() -> None:
    assert _drained(decide(_crowded(3), FOUR)) == ["inst-1"]  # 6 vCPUs are lacking; the first replacement provides them
    assert _drained(decide(_crowded(4), FOUR)) == ["inst-1", "inst-2"]  # one more job needs the second


def test_a_machine_exactly_twice_as_large_is_large_enough() -> None:
    double = offer("double", vcpus=4.0, usd_per_h=0.2)
    assert _drained(decide(_crowded(offers=(SMALL, double)), FOUR)) == ["inst-1", "inst-2"]


def test_nothing_is_drained_where_limits_allow_no_machine_at_all() -> None:
    tight = replace(FOUR, budgets=Budgets(per_hour_usd=0.4))
    assert _drained(decide(_crowded(offers=(LARGE,)), tight)) == []


def test_machines_that_do_not_answer_or_that_a_job_has_awaited_stay() -> None:
    silent = replace(_crowded(), reachable=frozenset({"inst-2", "inst-3", "inst-4"}))
    assert _drained(decide(silent, FOUR)) == ["inst-2", "inst-3"]
    rest = [machine(number) for number in (2, 3, 4)]
    awaiting = job(50, JobState.AWAITING_INSTANCE, asks=TWO_VCPUS, awaiting=("inst-1",))
    residents = [running(n, each, asks=TWO_VCPUS) for n, each in enumerate(rest, start=2)]
    assert _drained(decide(_crowded(fleet=[machine(1), *rest, awaiting, *residents]), FOUR)) == ["inst-2", "inst-3"]


def test_no_optional_rank_is_placed_on_a_machine_that_gives_way() -> None:
    fleet = [machine(number, idle_since=None) for number in (1, 2, 3, 4)]
    residents = [running(n, each, asks=spec(resources=need(1.0 if n == 1 else 2.0))) for n, each in enumerate(fleet, 1)]
    asks = spec(target=BestEffortTarget(), nodes=Nodes(count=2, minimum=1, gang=False))
    half = running(4, fleet[3], asks=asks)
    growing = replace(half, spec=asks)
    for waiting, placed in ((20, []), (0, ["inst-1"])):
        plan = decide(_crowded(waiting, [*fleet, *residents[:3], growing]), FOUR)
        assert [rank.instance_id for each in of(plan, Place) for rank in each.ranks] == placed
        assert bool(_drained(plan)) is (waiting > 0)


def test_what_drains_already_counts() -> None:
    draining = [replace(machine(n), state=InstanceState.DRAINING) for n in (3, 4)]
    assert not _drained(decide(_crowded(fleet=_full(machine(1), machine(2), *draining)), FOUR))
    one = _full(machine(1), machine(2), machine(3), draining[1])
    assert _drained(decide(_crowded(fleet=one), FOUR)) == ["inst-1"]
    assert not _drained(decide(_crowded(3, fleet=one), FOUR))


@pytest.mark.parametrize("count", [3, 6, 9, 20])
def test_an_applied_plan_leaves_nothing_to_drain(count: int) -> None:
    fleet, policy = _fleet(of_small=6), simple(caps=Caps(max_instances=6))
    drained = _drained(decide(_crowded(count, fleet), policy))
    assert drained
    after = [
        replace(each, state=InstanceState.DRAINING) if isinstance(each, Instance) and each.id in drained else each
        for each in fleet
    ]
    assert not _drained(decide(_crowded(count, after), policy))


def test_short_queue_waits() -> None:
    assert not _drained(decide(_crowded(1), FOUR))


def test_nothing_is_drained_while_more_machines_are_allowed() -> None:
    plan = decide(_crowded(), simple(caps=Caps(max_instances=40)))
    assert of(plan, Launch)
    assert not _drained(plan)


@pytest.mark.parametrize(
    "offers",
    [(SMALL,), (SMALL, MIDDLE), (SMALL, replace(LARGE, price_usd_per_h=0.9)), (SMALL, replace(LARGE, available=0))],
)
def test_machines_stay_where_nothing_at_least_twice_as_large_would_be_bought(offers: tuple[Offer, ...]) -> None:
    assert not _drained(decide(_crowded(offers=offers), FOUR))


def test_machines_that_never_get_empty_or_are_paid_in_any_case_stay() -> None:
    service = spec(target=ServiceTarget(requests_per_s=1.0, latency_ms=100.0), resources=need(2))
    reserved = machine(2, of=offer("r", market=Market.RESERVED))
    beside = [running(1, machine(1), asks=replace(service, resources=need(1))), running(9, machine(1))]
    fleet = [machine(1), *beside, *_full(reserved, machine(3), machine(4))]
    assert _drained(decide(_crowded(fleet=fleet), FOUR)) == ["inst-3", "inst-4"]


def test_smallest_by_vcpus_give_way_first_whatever_their_memory() -> None:
    lean = replace(
        MIDDLE,
        instance_type=replace(MIDDLE.instance_type, capacity=replace(MIDDLE.instance_type.capacity, memory_mib=2048)),
    )
    fleet = _full(*(machine(n, of=lean) for n in (1, 2)), machine(3), machine(4))
    assert _drained(decide(_crowded(fleet=fleet, offers=(SMALL, lean, LARGE)), FOUR)) == ["inst-3", "inst-4"]


def test_jobs_of_every_kind_count_for_what_is_lacking() -> None:
    for count, drained in ((2, ["inst-2"]), (3, ["inst-2", "inst-3"])):  # on the first, room is reserved
        others = [job(200 + n, asks=spec(resources=need(2, 1024)), wait_code="cap_instances") for n in range(count)]
        assert _drained(decide(scene(*_fleet(), *_queue(1), *others, SMALL, LARGE), FOUR)) == drained


def test_smallest_give_way_first() -> None:
    middle = [machine(n, of=MIDDLE) for n in (1, 2)]
    fleet = _full(*middle, machine(3), machine(4))
    assert _drained(decide(_crowded(fleet=fleet, offers=(SMALL, MIDDLE, LARGE)), FOUR)) == ["inst-3", "inst-4"]


@pytest.mark.parametrize(("more_usd", "count"), [(0.1, 0), (0.4, 1), (0.7, 2)])
def test_no_more_give_way_than_the_budget_has_larger_machines_for(more_usd: float, count: int) -> None:
    policy = replace(FOUR, budgets=Budgets(per_hour_usd=0.4 + more_usd))  # each replacement costs 0.3 USD/h more
    assert len(_drained(decide(_crowded(), policy))) == count


@pytest.mark.parametrize(("in_stock", "count"), [(0, 0), (1, 1), (2, 2), (9, 2)])
def test_no_more_give_way_than_larger_machines_are_in_stock(in_stock: int, count: int) -> None:
    assert len(_drained(decide(_crowded(offers=(SMALL, replace(LARGE, available=in_stock))), FOUR))) == count


def test_a_larger_machine_that_a_draining_one_gives_way_to_is_in_stock_no_more() -> None:
    draining = replace(machine(4), state=InstanceState.DRAINING)
    fleet = _full(machine(1), machine(2), machine(3), draining)
    for in_stock, drained in ((1, []), (2, ["inst-1"])):
        offers = (SMALL, replace(LARGE, available=in_stock))
        assert _drained(decide(_crowded(fleet=fleet, offers=offers), FOUR)) == drained


@pytest.mark.parametrize(("wait_code", "bought"), [("cap_instances", "large"), ("", "small")])
def test_larger_instances_may_cost_more_while_jobs_wait_at_the_cap(wait_code: str, bought: str) -> None:
    dear = replace(LARGE, price_usd_per_h=0.5)
    waiting = [replace(each, wait_code=wait_code) for each in _queue(20)]
    plan = decide(scene(*_fleet(of_small=3), *waiting, SMALL, dear), FOUR)
    assert [launch.offer.instance_type.name for launch in of(plan, Launch)] == [bought]


def test_best_effort_gets_larger_machines_too() -> None:
    waiting = _queue(20, target=BestEffortTarget())
    assert _drained(decide(scene(*_fleet(), *waiting, SMALL, LARGE), FOUR)) == ["inst-1", "inst-2"]


def test_nothing_is_drained_while_decisions_are_paused() -> None:
    assert not _drained(decide(replace(_crowded(), paused=True), FOUR))


def test_machine_on_which_the_same_plan_places_a_job_stays() -> None:
    asks = spec(
        resources=need(2), target=ServiceTarget(requests_per_s=9.0, latency_ms=9.0)
    )  # machines with services do not drain
    busy = [machine(number) for number in range(1, 4)]
    units = [running(number, each, asks=asks) for number, each in enumerate(busy, start=1)]
    plan = decide(_crowded(fleet=[*busy, *units, machine(9)]), FOUR)
    assert {each.instance_id for action in of(plan, Place) for each in action.ranks} == {"inst-9"}
    assert not _drained(plan)


def test_machine_is_not_drained_that_was_emptied_for_a_job_in_the_same_plan() -> None:
    best_effort = spec(resources=need(2), target=BestEffortTarget())
    urgent = job(99, asks=spec(resources=need(1.5), priority=5))
    wide = [job(100 + n, asks=spec(resources=need(6))) for n in range(9)]
    fleet = [machine(1), machine(2), running(1, machine(1), asks=best_effort), running(2, machine(2), asks=TWO_VCPUS)]
    plan = decide(scene(*fleet, urgent, *wide, SMALL, LARGE), simple(caps=Caps(max_instances=2)))
    assert [each.job_id for each in of(plan, StopAttempt)] == ["job-1"]
    assert "inst-1" not in _drained(plan)
    (wait,) = [each for each in of(plan, Wait) if each.job_id == urgent.id]
    assert (wait.reason.code, wait.reason.text) == ("making_room", "waiting: evicted units are stopping")
