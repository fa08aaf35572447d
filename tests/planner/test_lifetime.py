"""A whole workload through an ideal world: everything ends, nothing is left, and nothing is done for nothing."""

from collections import Counter
from dataclasses import replace

import pytest

from hcloud.core.model import BestEffortTarget, JobState, Nodes
from hcloud.planner.invariants import check_invariants
from hcloud.planner.plan import Finish, Launch, Terminate
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import Caps
from tests.planner.apply_model import apply_ideally, pass_time
from tests.planner.scenes import decide, job, need, of, offer, scene, spec
from tests.policies import simple


def _workload() -> Snapshot:
    kinds = (
        spec(resources=need(1)),
        spec(resources=need(4), user="bob"),
        spec(resources=need(2), nodes=Nodes(count=3)),
        spec(resources=need(0.5), target=BestEffortTarget()),
        spec(resources=need(1), nodes=Nodes(count=4, minimum=1, gang=False)),
    )
    jobs = (job(number, JobState.SUBMITTED, asks=kinds[number % len(kinds)]) for number in range(1, 41))
    return scene(*jobs, offer(), offer("large", vcpus=8.0, usd_per_h=0.3))


@pytest.mark.parametrize("most", [3, 20])
def test_every_job_finishes_and_every_instance_is_released(most: int) -> None:
    policy, world, done = simple(caps=Caps(max_instances=most)), _workload(), Counter[str]()
    for _ in range(400):
        plan = decide(world, policy)
        done.update(type(a).__name__ for a in plan.actions)
        done.update(a.state.value for a in of(plan, Finish))
        world = apply_ideally(world, plan)
        assert not check_invariants(world, policy)
        world = pass_time(world, 7.0)
    assert (world.jobs, world.instances) == ((), ())
    assert done["succeeded"] == 40
    assert done["Launch"] == done["Terminate"]
    assert done["Place"] <= 40 * 4


def test_steady_arrivals_reuse_machines_instead_of_buying_new_ones() -> None:
    world, policy = scene(offer()), simple()
    launches, ends = 0, 0
    for number in range(1, 61):
        arrived = job(number, JobState.SUBMITTED, submitted_at=world.now)
        world = replace(world, jobs=(*world.jobs, arrived))
        plan = decide(world, policy)
        launches, ends = launches + len(of(plan, Launch)), ends + len(of(plan, Terminate))
        world = pass_time(apply_ideally(world, plan), 20.0, run_s=30.0)
    assert launches <= 3
    assert ends == 0
