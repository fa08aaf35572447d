"""Apply is the judge: what a plan wanted and fresh state no longer allows is refused, and nothing else is lost."""

from contextlib import suppress
from dataclasses import replace

import pytest

from hcloud.core.errors import StaleWrite, StoreBusy
from hcloud.core.model import EventKind, FailureCause, InstanceState, Job, JobState, Nodes, Reason, Retries
from hcloud.fake_runner.runner import StartFault
from hcloud.planner.plan import (
    Action,
    Drain,
    Enqueue,
    Finish,
    Launch,
    Place,
    Plan,
    RankPlacement,
    Renew,
    StopAttempt,
    Terminate,
)
from tests.apply.conftest import MakeDeployment
from tests.apply.deployment import SMALL, Deployment

WHY = Reason(code="test", text="because the test says so")


def _apply(site: Deployment, *actions: Action) -> list[str]:
    """Apply a plan of ``actions``; return why those that were refused were."""
    controller = site.scene.controller
    outcome = controller.applier.apply(
        Plan(at=site.now, actions=actions), controller.policy, controller.offers.all, controller.lease
    )
    return [refusal.why for refusal in outcome.refused]


def _ready_machine(site: Deployment) -> str:
    """Run a job to its end; return the machine that is left idle."""
    site.submit("true")
    site.until_state(JobState.SUCCEEDED)
    return site.scene.store.live().instances[0].id


def _place(job: Job, instance_id: str, ranks: int = 1) -> Place:
    places = tuple(RankPlacement(rank=n, instance_id=instance_id, resources=SMALL) for n in range(ranks))
    return Place(job_id=job.id, ranks=places, reason=WHY)


def test_apply_refuses_place_on_terminated_instance(site: Deployment) -> None:
    machine = _ready_machine(site)
    _apply(site, Terminate(instance_id=machine, reason=WHY))
    site.until(lambda: site.machines_up() == [])
    [job] = site.submit()
    _apply(site, Enqueue(job_id=job.id, reason=WHY))
    assert _apply(site, _place(job, machine)) == [f"{machine} is not ready"]
    assert site.starts(job.id) == []


def test_apply_refuses_place_of_a_job_cancelled_meanwhile(site: Deployment) -> None:
    machine = _ready_machine(site)
    [job] = site.submit()
    _apply(site, Enqueue(job_id=job.id, reason=WHY))
    site.scene.store.request_cancel(job.id, "eve", site.now)
    assert _apply(site, _place(job, machine)) == [f"{job.id} has been cancelled by eve"]


def test_apply_refuses_the_second_place_when_only_one_fits_and_keeps_the_first(site: Deployment) -> None:
    machine = _ready_machine(site)
    [first] = site.submit("sleep", "9", nodes=Nodes(count=2, minimum=2))
    [second] = site.submit("sleep", "9")
    _apply(site, Enqueue(job_id=first.id, reason=WHY), Enqueue(job_id=second.id, reason=WHY))
    [why] = _apply(site, _place(first, machine, ranks=2), _place(second, machine))
    assert why.startswith(f"{machine} has only")
    assert (site.starts(first.id), site.starts(second.id)) == ([f"{first.id}.1.0", f"{first.id}.1.1"], [])


def test_apply_refuses_to_place_a_job_twice(site: Deployment) -> None:
    machine = _ready_machine(site)
    [job] = site.submit("sleep", "9")
    _apply(site, Enqueue(job_id=job.id, reason=WHY))
    assert _apply(site, _place(job, machine), _place(job, machine)) == [f"{job.id} is placed, not waiting"]
    assert len(site.starts(job.id)) == 1


def test_apply_refuses_launches_beyond_the_caps(make: MakeDeployment) -> None:
    site = make(policy={"caps": {"max_instances": 2}})
    site.cycle()
    offer = site.scene.controller.offers.all[0]
    launch = Launch(offer=offer, expires_at=site.now + 900, for_jobs=(), reason=WHY, for_running=("job-1",))
    assert _apply(site, launch, launch, launch) == ["caps.max_instances 2 is reached"]
    assert len(site.machines_up()) == 2
    assert [each.for_running for each in site.scene.store.instances()] == [("job-1",)] * 2


def test_apply_refuses_launches_beyond_the_vcpus_allowed(make: MakeDeployment) -> None:
    site = make(policy={"caps": {"max_vcpus": 5}})
    site.cycle()
    offer = next(each for each in site.scene.controller.offers.all if each.instance_type.capacity.vcpus == 2)
    launch = Launch(offer=offer, expires_at=site.now + 900, for_jobs=(), reason=WHY)
    assert _apply(site, launch, launch, launch) == ["6 vCPUs would exceed caps.max_vcpus (5)"]
    assert len(site.machines_up()) == 2


def test_apply_refuses_to_end_a_job_whose_attempt_runs(site: Deployment) -> None:
    [job] = site.submit("sleep", "50")
    site.until_state(JobState.RUNNING)
    [why] = _apply(site, Finish(job_id=job.id, state=JobState.SUCCEEDED, reason=WHY))
    assert why == f"{job.id} cannot be ended: attempt {job.id}.1 has not ended"


def test_apply_tells_of_jobs_and_instances_that_do_not_exist(site: Deployment) -> None:
    site.cycle()
    refused = _apply(site, Enqueue(job_id="job-77", reason=WHY), Drain(instance_id="inst-77", reason=WHY))
    assert [why.split(";")[0] for why in refused] == ["there is no job-77", "there is no inst-77"]


def test_a_daemon_that_lost_the_lease_can_neither_launch_nor_start(site: Deployment) -> None:
    site.submit()
    site.cycle()
    controller = site.scene.controller
    site.scene.clock.advance(60)
    assert site.scene.store.acquire_lease("another daemon", site.now, 60) is not None
    before = site.scene.cloud.machines(site.now)
    launch = Launch(offer=controller.offers.all[0], expires_at=site.now + 900, for_jobs=(), reason=WHY)
    with pytest.raises(StaleWrite, match="no longer leads"):
        _apply(site, launch)
    assert site.scene.cloud.machines(site.now) == before


def test_a_standby_does_nothing_until_the_leader_is_gone(site: Deployment) -> None:
    assert site.scene.store.acquire_lease("the leader", site.now, 15) is not None
    site.submit()
    site.cycle(10)
    assert (site.state(), site.machines_up()) == (JobState.SUBMITTED, [])
    site.until_state(JobState.SUCCEEDED)


@pytest.mark.parametrize("fault", [StartFault.LOSE_REPLY, StartFault.LOSE_REQUEST])
def test_start_of_unknown_outcome_starts_once(site: Deployment, fault: StartFault) -> None:
    site.scene.engine.inject(fault, times=3)
    site.submit("sleep", "3")
    site.until_state(JobState.SUCCEEDED)
    assert site.starts("job-1") == ["job-1.1.0"]


def test_start_refused_counts_as_a_failure_with_its_cause(site: Deployment) -> None:
    site.scene.engine.inject(StartFault.REFUSE, times=9)
    site.submit("sleep", "3", retries=Retries(limits={"start_refused": 1}, backoff_s=1.0))
    site.until_state(JobState.FAILED)
    assert site.job().failures == (FailureCause.START_REFUSED, FailureCause.START_REFUSED)


def test_stop_asked_while_a_start_is_unknown_fences_the_unit(site: Deployment) -> None:
    machine = _ready_machine(site)
    [job] = site.submit("sleep", "50")
    _apply(site, Enqueue(job_id=job.id, reason=WHY))
    site.scene.engine.inject(StartFault.LOSE_REQUEST)
    _apply(site, _place(job, machine))
    _apply(site, StopAttempt(job_id=job.id, cause=FailureCause.EVICTED, reason=WHY))
    site.until(lambda: site.job(2).attempt is not None and site.job(2).attempt.over)  # type: ignore[union-attr]
    assert site.starts(job.id) == []


def test_gang_that_lost_a_rank_is_stopped_and_retried_whole(site: Deployment) -> None:
    site.submit("sleep", "40", nodes=Nodes(count=3, minimum=3))
    site.until_state(JobState.RUNNING)
    site.scene.cloud.kill(site.machines_up()[0])
    site.until_state(JobState.SUCCEEDED)
    assert sorted(site.starts("job-1")) == [f"job-1.{k}.{r}" for k in (1, 2) for r in (0, 1, 2)]


def test_store_that_is_busy_in_mid_cycle_loses_nothing(site: Deployment) -> None:
    """Every commit fails once, at another place in each cycle; what was done outside is found again."""
    countdown = [0]

    def fail_sometimes(moment: str) -> None:
        if moment == "commit:before":
            countdown[0] -= 1
            if countdown[0] == 0:
                raise StoreBusy("the database is locked")

    site.submit("sleep", "3", count=3)
    site.scene.store.crash_point = fail_sometimes
    for number in range(1, 60):
        countdown[0] = 1 + number % 4
        with suppress(StoreBusy):
            site.scene.controller.cycle()
        site.scene.clock.advance(1.0)
    site.scene.store.crash_point = None
    site.until(lambda: all(site.state(n) is JobState.SUCCEEDED for n in (1, 2, 3)))
    assert sorted(site.starts("job-1") + site.starts("job-2") + site.starts("job-3")) == [
        "job-1.1.0",
        "job-2.1.0",
        "job-3.1.0",
    ]


def test_preview_tells_the_price_and_changes_nothing(site: Deployment) -> None:
    site.cycle()
    seq = len(site.scene.store.events())
    spec = replace(site.submit("sleep", "1")[0].spec, name="supposed")
    found = site.scene.controller.preview([spec])
    launches = [a for a in found.plan.actions if isinstance(a, Launch) and found.jobs[0].id in a.for_jobs]
    assert [launch.offer.price_usd_per_h for launch in launches] == [0.3]
    assert len(site.scene.store.events()) == seq + 1  # only the submission above
    assert site.machines_up() == []
    assert found.snapshot.instances == ()


def test_ending_machine_keeps_its_record_until_the_cloud_confirms(make: MakeDeployment) -> None:
    site = make(cloud={"stop_s": 20})
    machine = _ready_machine(site)
    _apply(site, Terminate(instance_id=machine, reason=WHY))
    site.cycle(10)
    assert site.scene.store.instance(machine).state is InstanceState.TERMINATING
    site.until(lambda: site.scene.store.instance(machine).state is InstanceState.TERMINATED)
    assert site.machines_up() == []
    assert site.scene.store.live().intents == ()
    assert len(site.events(EventKind.INSTANCE_TERMINATED)) == 1


def test_no_machine_is_renewed_before_the_stop_of_who_cannot_pay_for_that_is_recorded(site: Deployment) -> None:
    [job] = site.submit("sleep", "500")
    site.until_state(JobState.RUNNING)
    [machine] = site.scene.store.live().instances
    both = (
        Renew(instance_id=machine.id, expires_at=machine.expires_at + 50, reason=WHY),
        StopAttempt(job_id=job.id, cause=FailureCause.EVICTED, reason=WHY),
    )

    left = [0]

    def die(moment: str) -> None:
        if moment == "commit:before":
            left[0] -= 1
            if left[0] < 0:
                raise StoreBusy("the database is locked")

    site.scene.store.crash_point = die
    for left[0] in range(5):  # so many commits are recorded, then no more
        with suppress(StoreBusy):
            _apply(site, *both)
        renewed = site.scene.store.instance(machine.id).expires_at > machine.expires_at
        attempt = site.job().attempt
        assert not renewed or (attempt is not None and attempt.stop_requested_at is not None)
    assert renewed
