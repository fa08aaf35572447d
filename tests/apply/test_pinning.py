"""A rank is pinned to CPUs of its machine: recorded first, repeated until its worker answered, undone if refused."""

from dataclasses import replace

import pytest

from hcloud.core.model import EventKind, JobState, Reason
from hcloud.planner.explain import job_timeline
from hcloud.planner.plan import Action, Place, Plan, RankPlacement, Resize
from tests.apply.conftest import MakeDeployment
from tests.apply.deployment import SMALL, Deployment

WHY = Reason(code="test", text="because the test says so")
TWO_CPUS: dict[str, object] = {"topology_from_vcpus": 2, "persist": True}


@pytest.fixture
def site(make: MakeDeployment) -> Deployment:
    """One running job on a machine of two CPUs."""
    made = make(cloud=TWO_CPUS, policy={"timing": {"sample_every_s": 2}})
    made.submit("sleep", "5000")
    made.until_state(JobState.RUNNING)
    return made


def apply(site: Deployment, *actions: Action) -> list[str]:
    controller = site.scene.controller
    plan = Plan(at=site.now, actions=actions)
    outcome = controller.applier.apply(plan, controller.policy, controller.offers.all, controller.lease)
    return [refusal.why for refusal in outcome.refused]


def pin(site: Deployment, *cpus: int) -> Resize:
    attempt = site.job().attempt
    assert attempt is not None
    (held,) = attempt.allocations
    rank = RankPlacement(rank=0, instance_id=held.instance_id, resources=held.resources, cpus=cpus)
    return Resize(job_id="job-1", ranks=(rank,), reason=WHY)


def cpus_of(site: Deployment) -> tuple[tuple[int, ...], tuple[int, ...] | None, tuple[int, ...]]:
    """Return on which CPUs the rank runs by its row, what is unsettled of that, and what its worker holds it to."""
    attempt = site.job().attempt
    assert attempt is not None
    spec = site.scene.engine._units[site.unit()].spec
    assert spec is not None
    return attempt.allocations[0].cpus, attempt.allocations[0].pinned_from, spec.cpus


def test_a_pin_is_held_by_row_and_worker_and_told_by_explain(site: Deployment) -> None:
    assert apply(site, pin(site, 1)) == []
    assert cpus_of(site) == ((1,), None, (1,))
    site.cycle(15)
    assert cpus_of(site) == ((1,), None, (1,))
    assert apply(site, pin(site)) == []
    assert cpus_of(site) == ((), None, ())
    assert [each.fields["cpus"] for each in site.events(EventKind.UNIT_RESIZED)] == ["1", ""]
    story = job_timeline(site.job(), site.scene.store.events(limit=1000), site.scene.store.live().instances)
    texts = [line.text for line in story if line.code == "pinned"]
    assert texts == ["rank 0 pinned to CPUs 1 on inst-1", "rank 0 pinned to no CPUs any more on inst-1"]


def test_cpus_that_a_machine_lacks_or_does_not_report_are_refused(site: Deployment, make: MakeDeployment) -> None:
    assert apply(site, pin(site, 0, 7)) == ["inst-1 has no CPUs 7"]
    unknown = make()
    unknown.submit("sleep", "5000")
    unknown.until_state(JobState.RUNNING)
    assert apply(unknown, pin(unknown, 0)) == ["inst-1 has no CPUs 0"]


def test_a_pin_whose_reply_is_lost_is_sent_again_also_by_a_new_daemon(site: Deployment) -> None:
    site.scene.engine.silence("inst-1")
    assert apply(site, pin(site, 1)) == []
    assert cpus_of(site) == ((1,), (), ())
    assert apply(site, pin(site, 0)) == ["an earlier resize of job-1.1 is not complete"]
    site.restart()
    site.until(lambda: site.scene.store.live().intents == ())
    assert cpus_of(site) == ((1,), None, (1,))


def test_a_pin_that_its_worker_refuses_is_undone(site: Deployment) -> None:
    assert apply(site, pin(site, 0)) == []
    site.scene.engine.stiffen("inst-1")
    assert apply(site, pin(site, 1)) == []
    assert cpus_of(site) == ((0,), None, (0,))
    assert site.scene.store.live().intents == ()


def test_a_program_that_pins_itself_is_known_to_run_there(site: Deployment) -> None:
    unit = site.unit()
    site.scene.engine.resize({unit: ("inst-1", SMALL)}, cpus={unit: (0,)})
    site.until(lambda: cpus_of(site)[0] == (0,), cycles=30)
    site.scene.engine.resize({unit: ("inst-1", SMALL)}, cpus={unit: ()})
    site.until(lambda: cpus_of(site)[0] == (), cycles=60)
    assert site.events(EventKind.UNIT_RESIZED) == []


def test_a_rank_can_be_placed_on_cpus(site: Deployment) -> None:
    site.submit("sleep", "5000")
    rank = RankPlacement(rank=0, instance_id="inst-1", resources=SMALL, cpus=(1,))
    with site.scene.store.transaction(site.now) as txn:
        controller = site.scene.controller
        txn.put_job(replace(txn.job("job-2"), state=JobState.QUEUED))
    plan = Plan(at=site.now, actions=(Place(job_id="job-2", ranks=(rank,), reason=WHY),))
    controller.applier.apply(plan, controller.policy, controller.offers.all, controller.lease)
    spec = site.scene.engine._units[site.unit(2)].spec
    assert spec is not None and spec.cpus == (1,)
