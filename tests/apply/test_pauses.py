"""A unit is paused and resumed: recorded first, repeated until its worker answered, undone if refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from hcloud.apply.pauses import PauseActions
from hcloud.core.model import Allocation, EventKind, FailureCause, JobState, Reason
from hcloud.forecast.job_monitor import WATCH_KINDS, JobMonitor
from hcloud.planner.explain import job_timeline
from hcloud.planner.plan import Action, Pause, Plan
from hcloud.planner.run_times import ran_for_s
from tests.apply.conftest import MakeDeployment
from tests.apply.deployment import Deployment

WHY = Reason(code="paused", text="paused on inst-1 while job-2 runs, for about 60 s")
BACK = Reason(code="resumed", text="resumed on inst-1")
FAST_SAMPLES: dict[str, object] = {"timing": {"sample_every_s": 2}}


@pytest.fixture(autouse=True)
def no_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests decide what is paused; the planner would resume it."""
    monkeypatch.setattr("hcloud.planner.co_scheduling._resume_all", lambda context, held: None)


@pytest.fixture
def site(make: MakeDeployment) -> Deployment:
    """A job that works for 100 s, and one beside it."""
    made = make(cloud={"persist": True}, policy=FAST_SAMPLES)
    made.submit("sleep", "100", max_runtime_s=150.0)
    made.submit("sleep", "5000")
    made.until_state(JobState.RUNNING)
    made.until_state(JobState.RUNNING, number=2)
    return made


def apply(site: Deployment, *actions: Action) -> list[str]:
    controller = site.scene.controller
    plan = Plan(at=site.now, actions=actions)
    outcome = controller.applier.apply(plan, controller.policy, controller.offers.all, controller.lease)
    return [refusal.why for refusal in outcome.refused]


def pause(site: Deployment, *, undo: bool = False) -> Pause:
    instance = held(site).instance_id
    return Pause(job_id="job-1", rank=0, instance_id=instance, reason=BACK if undo else WHY, undo=undo)


def held(site: Deployment) -> Allocation:
    attempt = site.job().attempt
    assert attempt is not None
    return attempt.allocations[0]


def is_paused(site: Deployment) -> tuple[bool, bool]:
    """Return whether its unit is paused by its row, and in truth."""
    unit = site.scene.engine._units[site.unit()]
    return held(site).paused_at is not None, unit.paused_at is not None


def test_a_pause_lengthens_the_run_and_is_no_part_of_it(site: Deployment) -> None:
    site.cycle(10)
    before_s = ran_for_s(site.job(), site.now)
    assert apply(site, pause(site)) == []
    assert is_paused(site) == (True, True)
    assert held(site).paused_text == WHY.text
    site.cycle(200)
    assert site.state() is JobState.RUNNING, "its time limit of 150 s does not count the pause"
    assert ran_for_s(site.job(), site.now) == pytest.approx(before_s, abs=0.1)
    assert apply(site, pause(site, undo=True)) == []
    assert is_paused(site) == (False, False)
    site.until_state(JobState.SUCCEEDED)
    [finished] = site.events(EventKind.JOB_FINISHED)
    assert finished.fields["run_s"] == pytest.approx(100.0, abs=2.0)
    assert finished.fields["paused_s"] == pytest.approx(200.0, abs=1.0)
    assert float(finished.fields["queue_s"]) < 20.0  # type: ignore[arg-type]
    story = job_timeline(site.job(), site.scene.store.events(limit=1000), site.scene.store.live().instances)
    texts = [line.text for line in story if line.code in ("paused", "resumed")]
    assert texts == [WHY.text, "resumed on inst-1 after a pause of 3.33 min"]
    assert "paused 3.33 min" in next(line.text for line in story if line.code == "finished")


def test_a_pause_is_no_slow_progress(site: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    def follow() -> JobMonitor:
        monitor = JobMonitor()
        monitor.follow(list(site.scene.store.events(kinds=list(WATCH_KINDS), limit=10_000)))
        return monitor

    def samples_at() -> list[float]:
        watched = follow().watched().get("job-1")
        return [each.at for each in watched.history(0)] if watched is not None else []

    site.cycle(30)
    assert samples_at()
    paused_at = site.now
    apply(site, pause(site))
    site.cycle(60)
    assert max(samples_at()) <= paused_at + 1.0, "it is not sampled while it is paused"
    resumed_at = site.now
    apply(site, pause(site, undo=True))
    site.cycle(30)
    assert samples_at() and min(samples_at()) >= resumed_at - 10.0, "what was before the pause is forgotten"
    monkeypatch.setattr(JobMonitor, "_resumed", lambda self, event: None)
    assert min(samples_at()) < paused_at, "a monitor that takes no notice is found"


def test_what_is_known_of_the_pace_of_a_unit_ends_with_the_pause(site: Deployment) -> None:
    units, unit = site.scene.controller.observer.units, site.unit()
    site.cycle(30)
    assert unit in units._sampling._trends
    apply(site, pause(site))
    site.cycle(5)
    assert unit not in units._sampling._trends and unit not in units._co_runs._open
    assert site.unit(2) in units._sampling._trends


def test_a_pause_whose_reply_is_lost_is_sent_again_also_by_a_new_daemon(site: Deployment) -> None:
    instance = held(site).instance_id
    site.scene.engine.silence(instance)
    assert apply(site, pause(site)) == []
    assert is_paused(site) == (True, False)
    assert apply(site, pause(site, undo=True)) == ["an earlier pause of rank 0 of job-1.1 is not complete"]
    site.restart()
    site.until(lambda: site.scene.store.live().intents == ())
    assert is_paused(site) == (True, True)
    site.restart()
    site.cycle(3)
    assert is_paused(site) == (True, True)


def test_a_pause_that_its_worker_refuses_is_undone_and_not_asked_again(site: Deployment) -> None:
    site.scene.engine.stiffen(held(site).instance_id)
    assert apply(site, pause(site)) == []
    assert is_paused(site) == (False, False)
    assert held(site).refuses_pause and held(site).total_paused_s(site.now) == 0.0
    assert site.scene.store.live().intents == ()
    assert apply(site, pause(site)) == ["rank 0 of job-1.1 cannot be paused or resumed as it is"]


def test_a_refusal_after_a_lost_reply_lets_the_unit_run(site: Deployment) -> None:
    """A worker may have paused it by the call that was not answered."""
    engine, instance = site.scene.engine, held(site).instance_id
    engine.silence(instance)
    apply(site, pause(site))
    engine.unsilence(instance)
    engine.pause({site.unit(): (instance, True)})  # the call arrived; its answer did not
    engine.stiffen(instance)
    assert is_paused(site) == (True, True)
    site.until(lambda: site.scene.store.live().intents == ())
    assert is_paused(site) == (False, False) and held(site).refuses_pause


@pytest.mark.parametrize("by", ["cancel", "evict"])
def test_a_paused_job_can_be_stopped(site: Deployment, by: str) -> None:
    apply(site, pause(site))
    site.cycle(5)
    if by == "cancel":
        site.scene.store.request_cancel("job-1", "ada", site.now)
        site.until_state(JobState.CANCELLED)
    else:
        unit = site.unit()
        site.scene.engine.stop({unit: held(site).instance_id}, cause=FailureCause.EVICTED)
        site.until(lambda: site.events(EventKind.UNIT_ENDED))
    assert held(site).ended_at is not None and held(site).total_paused_s(site.now + 1000.0) < 20.0


def test_only_what_runs_can_be_paused_or_resumed(site: Deployment) -> None:
    why = "rank 0 of job-1.1 cannot be paused or resumed as it is"
    assert apply(site, pause(site, undo=True)) == [why]
    apply(site, pause(site))
    site.cycle()
    assert apply(site, pause(site)) == [why]
    elsewhere = replace(pause(site, undo=True), instance_id="inst-9")
    assert apply(site, elsewhere) == ["rank 0 of job-1.1 is not running on inst-9"]


def test_a_daemon_that_records_no_intent_loses_the_pause(site: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that these tests would find: with the worker away, nothing would repeat it."""
    monkeypatch.setattr(PauseActions, "drive", lambda self, intents, lease: None)
    site.scene.engine.silence(held(site).instance_id)
    apply(site, pause(site))
    site.scene.engine.unsilence(held(site).instance_id)
    site.cycle(15)
    assert is_paused(site) == (True, False)
    assert site.scene.store.live().intents != (), "and that nothing settled it is on record"


def test_what_no_daemon_resumes_runs_again_by_itself(site: Deployment, tmp_path: Path) -> None:
    apply(site, pause(site))
    unit = site.scene.engine._units[site.unit()]
    assert unit.works_from == pytest.approx(site.now + 3600.0, abs=5.0)
