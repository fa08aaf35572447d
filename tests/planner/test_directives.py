"""Directives of operators: drained instances get no new units and end when empty; destroyed ones end at once."""

from math import inf

from hcloud.core.model import BestEffortTarget, FailureCause, InstanceState
from hcloud.planner.plan import Drain, Launch, Place, Renew, StopAttempt, Terminate, Wait
from hcloud.planner.snapshot import Directive, DirectiveScope, closed
from hcloud.spec.policy import DisruptionPolicy
from tests.planner.scenes import NOW, decide, job, machine, of, offer, running, scene, spec
from tests.policies import simple


def order(name: str = "inst-1", scope: DirectiveScope = DirectiveScope.INSTANCE, **changes: object) -> Directive:
    return Directive(scope=scope, name=name, by="ada", ordered_at=NOW - 5, **changes)  # type: ignore[arg-type]


def test_nothing_is_placed_on_a_drained_machine_and_it_ends_when_it_is_empty() -> None:
    plan = decide(scene(job(1), machine(1), machine(2), offer(), directives=(order(),)))
    assert [rank.instance_id for place in of(plan, Place) for rank in place.ranks] == ["inst-2"]
    assert [(end.instance_id, end.reason.code) for end in of(plan, Terminate)] == [("inst-1", "drained")]


def test_what_runs_on_a_drained_machine_may_end_and_its_lease_is_renewed_for_it() -> None:
    near = machine(1, expires_at=NOW + 100)
    plan = decide(scene(running(1, machine(1)), near, directives=(order(),)))
    assert [each.undo for each in of(plan, Drain)] == [False]
    assert [each.instance_id for each in of(plan, Renew)] == ["inst-1"]
    assert (of(plan, StopAttempt), of(plan, Terminate)) == ([], [])


def test_a_drained_machine_with_a_new_lease_is_not_used_again() -> None:
    near = machine(1, state=InstanceState.DRAINING, expires_at=NOW + 100)
    plan = decide(scene(running(1, machine(1)), job(2), near, offer(), directives=(order(),)))
    assert (of(plan, Drain), of(plan, Place)) == ([], [])


def test_at_the_deadline_what_still_runs_is_stopped_to_run_elsewhere() -> None:
    busy, early, due = running(1, machine(1)), order(deadline_at=NOW + 1000), order(deadline_at=NOW + 20)
    assert of(decide(scene(busy, machine(1), directives=(early,))), StopAttempt) == []
    [stop] = of(decide(scene(busy, machine(1), directives=(due,))), StopAttempt)
    assert (stop.job_id, stop.cause) == ("job-1", FailureCause.EVICTED)


def test_a_destroyed_machine_ends_at_once_whatever_runs_there_and_however_many_end() -> None:
    policy = simple(disruption=DisruptionPolicy(max_terminations_per_cycle=1))
    orders = tuple(order(f"inst-{n}", destroy=True) for n in (1, 2, 3))
    booting = machine(3, state=InstanceState.REQUESTED, provider_id=None, launched_at=None, ready_at=None)
    plan = decide(scene(running(1, machine(1)), machine(1), machine(2), booting, directives=orders), policy)
    assert [end.instance_id for end in of(plan, Terminate)] == ["inst-1", "inst-2", "inst-3"]
    assert [(stop.job_id, stop.cause) for stop in of(plan, StopAttempt)] == [("job-1", FailureCause.EVICTED)]


def test_destroying_outranks_draining() -> None:
    orders = (order(), order("mock", DirectiveScope.PROVIDER), order("inst-1", destroy=True))
    plan = decide(scene(running(1, machine(1)), machine(1), directives=orders))
    assert [end.reason.code for end in of(plan, Terminate)] == ["destroyed"]


def test_of_a_drained_type_nothing_is_launched_and_a_job_that_needs_it_waits() -> None:
    small, large = offer(), offer("large", vcpus=8.0, usd_per_h=0.9)
    orders = (order("sma*", DirectiveScope.TYPE),)
    shut = closed(orders, (small, large))
    assert [(each.instance_type, each.until_at) for each in shut] == [("small", inf)]
    plan = decide(scene(job(1), small, large, directives=orders, backoffs=shut))
    assert [launch.offer.instance_type.name for launch in of(plan, Launch)] == ["large"]
    only_small = scene(job(1, asks=spec(target=BestEffortTarget())), small, directives=orders, backoffs=shut)
    [wait] = of(decide(only_small), Wait)
    assert wait.reason.code == "drained"
    assert "drained by ada" in wait.reason.text


def test_a_machine_of_a_drained_provider_that_is_still_booting_ends() -> None:
    booting = machine(1, state=InstanceState.BOOTING, ready_at=None)
    plan = decide(scene(booting, directives=(order("mock", DirectiveScope.PROVIDER),)))
    assert [end.instance_id for end in of(plan, Terminate)] == ["inst-1"]
