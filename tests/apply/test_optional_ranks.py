"""Ranks beyond those that a job needs: they take idle room, give way to jobs with a target, and decide nothing."""

from dataclasses import replace

import pytest

from hcloud.core.model import BatchTarget, EventKind, FailureCause, JobState, Nodes
from hcloud.planner.explain import job_timeline
from hcloud.planner.plan import StopRank
from tests.apply.conftest import MakeDeployment
from tests.apply.deployment import SMALL, Deployment
from tests.apply.test_corrections import WHY, apply

TWO = Nodes(count=2, minimum=1, gang=False)
DEADLINE = BatchTarget(finish_within_s=3600.0)


def running(site: Deployment, number: int = 1) -> list[int]:
    """Return the ranks of a job whose units run in truth."""
    attempt = site.job(number).attempt
    held = attempt.allocations if attempt is not None else ()
    return [each.rank for each in held if not each.released and each.started_at is not None]


def one_machine(make: MakeDeployment) -> Deployment:
    """Return a deployment that may have one machine of two vCPUs."""
    return make(policy={"caps": {"max_instances": 1}})


def test_optional_ranks_take_idle_room_and_no_machine_is_bought_for_them(make: MakeDeployment) -> None:
    site = make()
    site.submit("sleep", "500", nodes=Nodes(count=8, minimum=1, gang=False))
    site.until(lambda: running(site) == [0, 1])  # a machine of two vCPUs
    site.cycle(60)
    assert running(site) == [0, 1]
    assert len(site.machines_up()) == 1
    assert [each.kind for each in site.events(EventKind.INSTANCE_REQUESTED)] == [EventKind.INSTANCE_REQUESTED]


@pytest.mark.parametrize("restarts", [False, True])
def test_an_optional_rank_gives_way_to_a_job_with_a_target_and_joins_again(
    make: MakeDeployment, restarts: bool
) -> None:
    site = one_machine(make)
    site.submit("sleep", "500", nodes=TWO, target=BatchTarget(finish_within_s=36_000.0))
    site.until(lambda: running(site) == [0, 1])
    site.submit("sleep", "30", target=DEADLINE)
    if restarts:
        site.until(lambda: site.job().attempt.held(1).yielded_at is not None)  # type: ignore[union-attr]
        site.restart()
    site.until_state(JobState.RUNNING, number=2)
    assert running(site) == [0]
    attempt = site.job().attempt
    assert attempt is not None
    assert attempt.allocations[1].cause is FailureCause.EVICTED
    assert attempt.size == 1
    events = list(site.scene.store.events(job_id="job-1", limit=1000))
    told = [step.text for step in job_timeline(site.job(), events, [])]
    assert any("its optional rank 1 on inst-1 makes room for job-2, which has a target" in text for text in told)
    site.until_state(JobState.SUCCEEDED, number=2)
    site.until(lambda: running(site) == [0, 1])
    assert site.job().attempts_made == 1


def test_a_job_succeeds_without_the_rank_that_gave_way(make: MakeDeployment) -> None:
    site = one_machine(make)
    site.submit("sleep", "60", nodes=TWO)
    site.until(lambda: running(site) == [0, 1])
    site.submit("sleep", "500", target=DEADLINE)
    site.until_state(JobState.SUCCEEDED)
    assert site.job().attempts_made == 1
    assert running(site, 2) == [0]


def test_a_best_effort_job_loses_its_optional_rank_before_any_job_is_evicted(make: MakeDeployment) -> None:
    site = make(policy={"caps": {"max_instances": 2}})
    site.submit("sleep", "500", nodes=TWO)
    site.until(lambda: running(site) == [0, 1])
    site.submit("sleep", "500", resources=replace(SMALL, vcpus=2.0))
    site.until_state(JobState.RUNNING, number=2)
    site.submit("sleep", "30", target=DEADLINE)
    site.until_state(JobState.RUNNING, number=3)
    assert (running(site), running(site, 2)) == ([0], [0])


def test_ranks_that_a_job_needs_give_way_to_nothing(make: MakeDeployment) -> None:
    site = one_machine(make)
    site.submit("sleep", "500", nodes=Nodes(count=3, minimum=2, gang=False), target=DEADLINE)
    site.until(lambda: running(site) == [0, 1])
    site.submit("sleep", "30", target=DEADLINE, priority=100)
    site.cycle(30)
    assert running(site) == [0, 1]
    assert site.state(2) is JobState.QUEUED
    [why] = apply(site, StopRank(job_id="job-1", rank=1, reason=WHY, yields=True))
    assert "is not optional" in why
