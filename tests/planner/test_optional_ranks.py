"""Ranks beyond a job's minimum are bought, and kept, only where its target needs them."""

from dataclasses import replace

from hcloud.core.estimates import Classification, Measure
from hcloud.core.model import BatchTarget, BestEffortTarget, Instance, Job, Market, Nodes
from hcloud.planner.plan import Launch, Place, Plan, StopRank
from tests.planner.apply_model import apply_ideally, pass_time
from tests.planner.scenes import NOW, decide, job, machine, need, of, offer, running, scene, spec
from tests.planner.watched import sure

SCALES = Classification(
    by_type={"mock/fast": sure(0.01)},
    by_nodes={n: sure(float(n)) for n in (1, 2, 3, 4)},
    measure=Measure.PROGRESS,
    quality_target=sure(1.0),
)
"""Needs 100 s on one node, and half of that on two."""


def bought(target: BatchTarget | BestEffortTarget, applications: bool = True) -> int:
    """Return how many machines are bought for a job of one to four nodes that needs 100 s on one and half on two."""
    large = offer("fast", 8.0)
    asks = spec(target=target, resources=need(8.0), nodes=Nodes(count=4, minimum=1, gang=False))
    waiting = job(1, asks=asks, application="x", queued_at=NOW, submitted_at=NOW)
    return len(of(decide(scene(waiting, large, applications={"x": SCALES} if applications else {})), Launch))


def test_machines_are_bought_for_optional_ranks_only_where_the_target_needs_them() -> None:
    assert bought(BatchTarget(finish_within_s=60.0)) == 2
    assert bought(BatchTarget(finish_within_s=30.0)) == 4
    assert bought(BatchTarget(finish_within_s=600.0)) == 1  # met on one node
    assert bought(BatchTarget(finish_within_s=5.0)) == 1  # met on no number of nodes
    assert bought(BatchTarget(finish_within_s=60.0), applications=False) == 1  # nothing is known of its scaling
    assert bought(BatchTarget()) == 1
    assert bought(BestEffortTarget()) == 1


def test_ranks_that_a_deadline_needs_are_not_optional() -> None:
    here = machine(1, offer("fast", 8.0, available=0))
    wide = spec(target=BatchTarget(finish_within_s=60.0), resources=need(2.0))
    wide = replace(wide, nodes=Nodes(count=4, minimum=1, gang=False))
    grown = replace(running(1, here, here, here, here, asks=wide, application="x", submitted_at=NOW), spec=wide)
    urgent = job(2, asks=spec(resources=need(6.0)))
    plan = decide(scene(here, here.offer, grown, urgent, applications={"x": SCALES}))
    assert not of(plan, StopRank)  # two of its four ranks are needed, and the others would not be enough
    smaller = job(2, asks=spec(resources=need(4.0)))
    plan = decide(scene(here, here.offer, grown, smaller, applications={"x": SCALES}))
    assert [each.rank for each in of(plan, StopRank)] == [3, 2]


def wide(*on: Instance, target: BatchTarget | BestEffortTarget, ran_s: float = 700.0) -> Job:
    """Return a job of one to four nodes with a rank on each of these machines."""
    asks = replace(spec(target=target, resources=need(8.0)), nodes=Nodes(count=4, minimum=1, gang=False))
    made = replace(running(1, *on, asks=asks, application="x", submitted_at=NOW - ran_s), spec=asks)
    assert made.attempt is not None
    held = tuple(replace(each, started_at=NOW - ran_s) for each in made.attempt.allocations)
    return replace(made, attempt=replace(made.attempt, allocations=held))


def given_up(plan: Plan) -> list[int]:
    return [each.rank for each in of(plan, StopRank) if each.yields]


def test_a_rented_machine_is_given_up_when_only_optional_ranks_keep_it() -> None:
    one, two, three = (machine(n, offer("fast", 8.0), idle_since=None) for n in (1, 2, 3))
    best_effort = wide(one, two, three, target=BestEffortTarget())
    plan = decide(scene(best_effort, one, two, three))
    assert given_up(plan) == [1, 2]
    assert plan.actions[0].reason.text == "its optional rank 1 alone keeps inst-2 ($0.10/h), and it can do without"
    fresh = wide(one, two, three, target=BestEffortTarget(), ran_s=500.0)
    assert given_up(decide(scene(fresh, one, two, three))) == []  # it only just took the idle room
    for within_s, gone in ((760.0, []), (1300.0, [1])):  # both ranks are needed, or one would meet the deadline too
        promised = wide(one, two, target=BatchTarget(finish_within_s=within_s))
        assert given_up(decide(scene(promised, one, two, applications={"x": SCALES}))) == gone
    assert given_up(decide(scene(replace(best_effort, unmet_code="nodes:no_room"), one, two, three))) == []


def test_optional_ranks_stay_where_a_machine_is_paid_for_anyway() -> None:
    one, reserved = (
        machine(1, offer("fast", 8.0), idle_since=None),
        machine(2, offer("fast", 8.0, market=Market.RESERVED), idle_since=None),
    )
    shared = machine(3, offer("large", 12.0), idle_since=None)
    best_effort = wide(one, reserved, shared, target=BestEffortTarget())
    other = running(2, shared, asks=spec(resources=need(4.0)))
    assert given_up(decide(scene(best_effort, other, one, reserved, shared))) == []
    assert given_up(decide(scene(best_effort, one, reserved, shared))) == [2]  # the other job has ended


def test_no_rank_is_given_up_while_decisions_are_paused_or_where_nothing_is_saved() -> None:
    one, two = (machine(n, offer("fast", 8.0), idle_since=None) for n in (1, 2))
    before = scene(wide(one, two, target=BestEffortTarget()), one, two)
    assert given_up(decide(before)) == [1]
    for changes in ({"paused": "by ann"}, {"engine_reachable": False}, {"reachable": frozenset({"inst-1"})}):
        assert given_up(decide(replace(before, **changes))) == []  # type: ignore[arg-type]
    free = machine(2, offer("fast", 8.0, usd_per_h=0.0), idle_since=None)
    assert given_up(decide(scene(wide(one, free, target=BestEffortTarget()), one, free))) == []


def test_a_rank_does_not_return_to_the_machine_that_it_gave_up_and_that_is_released() -> None:
    at = scene(*(machines := [machine(n, offer("fast", 8.0), idle_since=None) for n in (1, 2)]),
               wide(*machines, target=BestEffortTarget()))  # fmt: skip
    kept, starts = 2, 0
    for _ in range(40):
        plan = decide(at)
        starts += len(of(plan, Place)) + len(of(plan, Launch))
        at = pass_time(apply_ideally(at, plan), 20.0, run_s=1e9)
        kept = min(kept, len(at.instances))
    assert (kept, starts) == (1, 0)
