"""What one job's purchases leave for the next: room, money and zones."""

from dataclasses import replace

from hcloud.core.model import Constraints, Instance, Job, JobSpec, Nodes, Offer
from hcloud.planner.plan import Launch, Plan, Terminate
from hcloud.spec.policy import Budgets, Caps, Policy
from tests.planner.scenes import decide, job, machine, need, of, offer, scene, spec, told
from tests.policies import simple

LARGE = offer("large", vcpus=4.0, usd_per_h=0.4)


def bought(plan: Plan) -> list[tuple[str, ...]]:
    """Return whom each launched instance is for."""
    return [launch.for_jobs for launch in of(plan, Launch)]


def planned(policy: Policy, *things: Job | Instance | Offer) -> Plan:
    return decide(scene(*things), policy)


def gang(count: int, vcpus: float, **demands: object) -> JobSpec:
    """Return a spec of nodes with these constraints."""
    constraints = Constraints(**demands) if demands else Constraints()  # type: ignore[arg-type]
    return spec(resources=need(vcpus), nodes=Nodes(count=count, minimum=count), placement=constraints)


def test_nodes_join_planned_instances_in_different_zones_only() -> None:
    in_a, in_b = replace(LARGE, zone="a", available=2), replace(LARGE, zone="b", price_usd_per_h=0.5)
    ahead = [job(n, asks=spec(resources=need(3.0))) for n in (1, 2)]  # two instances in zone a, each with room for one
    plan = planned(simple(), *ahead, job(3, asks=gang(2, 1.0, spread="zone")), in_a, in_b)
    zones = [launch.offer.zone for launch in of(plan, Launch) if "job-3" in launch.for_jobs]
    assert sorted(zones) == ["a", "b"]


def test_room_that_a_job_could_not_use_after_all_is_there_for_the_next() -> None:
    first = job(1, asks=spec(resources=need(3.0)))
    pair = job(2, asks=gang(2, 1.0, spread="host"))  # joins the first one's instance, and finds no second
    plan = planned(simple(caps=Caps(max_instances=1)), first, pair, job(3), LARGE)
    assert bought(plan) == [("job-1", "job-3")]
    assert told(plan, "job-2") == "cap_instances"


def test_money_that_a_job_could_not_use_after_all_is_there_for_the_next() -> None:
    three = job(1, asks=gang(3, 4.0))
    plan = planned(simple(budgets=Budgets(per_hour_usd=1.0)), three, job(2, asks=spec(resources=need(4.0))), LARGE)
    assert bought(plan) == [("job-2",)]
    assert told(plan, "job-1") == "budget_per_hour"


def test_an_hourly_budget_counts_the_instance_to_be_launched() -> None:
    jobs = [job(n, asks=spec(resources=need(4.0))) for n in (1, 2, 3)]
    plan = planned(simple(budgets=Budgets(per_hour_usd=0.9)), *jobs, LARGE)
    assert len(bought(plan)) == 2
    assert told(plan, "job-3") == "budget_per_hour"


def test_no_later_job_launches_into_the_room_that_is_made_for_one() -> None:
    huge, small = offer("huge", vcpus=16.0, usd_per_h=0.9), offer("small", vcpus=2.0, usd_per_h=0.3)
    idle = machine(1, offer("odd", vcpus=1.0, usd_per_h=0.5), idle_since=0.0)
    first, second = job(1, asks=spec(resources=need(16.0))), job(2, asks=spec(resources=need(2.0)))
    plan = planned(simple(budgets=Budgets(per_hour_usd=1.0)), idle, first, second, huge, small)
    assert [each.instance_id for each in of(plan, Terminate)] == ["inst-1"]
    assert told(plan, "job-1") == "making_room"
    assert bought(plan) == []  # the second would fit today, and take the first one's money when it comes
