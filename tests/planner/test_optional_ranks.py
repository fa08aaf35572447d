"""Ranks beyond a job's minimum are bought, and kept, only where its target needs them."""

from dataclasses import replace

from hcloud.core.estimates import Classification, Measure
from hcloud.core.model import BatchTarget, BestEffortTarget, Nodes
from hcloud.planner.plan import Launch, StopRank
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
