"""Run times that the daemon learns from what its jobs did, kept over restarts and defects."""

from typing import Any

import pytest

from hcloud import run_times
from hcloud.core.model import BatchTarget, EventKind, JobState, ServiceTarget
from hcloud.forecast.run_time_tracker import RunTimeTracker
from hcloud.forecast.runtimes.features import RunFeatures
from hcloud.forecast.runtimes.mixture import MixturePredictor
from hcloud.forecast.runtimes.state import dump
from hcloud.planner.run_times import RUN_TIMES, recorded_features
from hcloud.planner.snapshot import Snapshot
from hcloud.quarantine import QUARANTINE_S
from hcloud.store import Store
from lab.soak.planted_defects import Planted
from tests.apply.conftest import MakeDeployment
from tests.apply.deployment import Deployment

BATCH = BatchTarget(finish_within_s=3600.0)


def learnt_from_all(store: Store) -> RunTimeTracker:
    """Return what one reading of the whole log teaches."""
    tracker = RunTimeTracker()
    tracker.follow(store.iter_events())
    return tracker


def planned_with(site: Deployment) -> Snapshot:
    """Return the snapshot of the next cycle."""
    site.cycle()
    return site.scene.controller.last_snapshot


def test_an_ended_job_is_recorded_with_what_predicts_its_run_time_and_learnt_once(site: Deployment) -> None:
    site.submit("sleep", "5", name="nightly", target=BATCH, max_runtime_s=60.0)
    site.until_state(JobState.SUCCEEDED)
    job = site.job()
    [event] = site.events(EventKind.JOB_FINISHED)
    assert event.fields["features"] == recorded_features(job.spec, job.submitted_at)
    assert event.fields["features"] == site.events(EventKind.JOB_SUBMITTED)[0].fields["features"]
    assert event.fields["stopped"] is False
    seen = planned_with(site)
    assert seen.run_times.history(job) == 1
    forecast = seen.run_times.of_job(job)
    assert forecast is not None and forecast.quantile(0.1) < 5.0 < forecast.quantile(0.9)
    assert planned_with(site).run_times is seen.run_times


@pytest.mark.parametrize(
    ("command", "spec", "stopped"),
    [
        (("sleep", "5"), {}, False),
        (("sh", "-c", "sleep 5; exit 3"), {}, False),
        (("sleep", "500"), {"max_runtime_s": 5.0}, True),
    ],
)
def test_runs_that_were_stopped_are_recorded_as_such(
    site: Deployment, command: tuple[str, ...], spec: dict[str, Any], stopped: bool
) -> None:
    site.submit(*command, **spec)
    site.until_state(JobState.SUCCEEDED, JobState.FAILED)
    [event] = site.events(EventKind.JOB_FINISHED)
    assert event.fields["stopped"] is stopped


def test_a_cancelled_job_was_stopped_and_a_service_teaches_nothing(site: Deployment) -> None:
    site.submit("sleep", "500")
    site.submit("sleep", "500", target=ServiceTarget(requests_per_s=1.0, latency_ms=50.0))
    site.until_state(JobState.RUNNING, number=2)
    site.cycle(times=3)
    for number in (1, 2):
        site.scene.store.request_cancel(f"job-{number}", "ada", site.now)
        site.until_state(JobState.CANCELLED, number=number)
    job, service = sorted(site.events(EventKind.JOB_FINISHED), key=lambda event: event.job_id or "")
    assert (job.fields["stopped"], service.fields["features"]) == (True, {})
    assert learnt_from_all(site.scene.store).runs == 1


@pytest.mark.parametrize("stored", [True, False])
def test_a_killed_daemon_reads_what_it_had_not_stored_and_counts_nothing_twice(
    make: MakeDeployment, stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_times, "SAVED_AFTER_RUNS", 1 if stored else 1000)
    site = make(cloud={"persist": True})
    site.submit("sleep", "3", count=3)
    site.until_state(JobState.SUCCEEDED, number=2)
    site.restart()
    site.submit("sleep", "4")
    site.until_state(JobState.SUCCEEDED, number=4)
    site.cycle()
    state = site.scene.store.run_times()
    assert state is not None and (RunTimeTracker.load(state).runs == 4) is stored
    expected = learnt_from_all(site.scene.store)
    assert expected.runs == 4
    site.restart()
    monkeypatch.setattr(run_times, "_ROWS_PER_CYCLE", 3)
    site.until(lambda: planned_with(site).run_times.predictor is not None)
    learnt = site.scene.controller.last_snapshot.run_times.predictor
    assert learnt is not None
    assert dump(learnt) == dump(expected.predictor)


def test_many_jobs_submitted_at_once_are_taken_in_over_several_cycles(
    site: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_times, "_EVENTS_PER_CYCLE", 4)
    site.submit("sleep", "2")
    site.until_state(JobState.SUCCEEDED)
    site.cycle()
    site.submit("sleep", "2", count=10)
    counted: list[int] = []
    learn = MixturePredictor.evidence

    def count(predictor: MixturePredictor, features: RunFeatures) -> bytes:
        counted[-1] += 1
        return learn(predictor, features)

    monkeypatch.setattr(MixturePredictor, "evidence", count)
    for _ in range(4):
        counted.append(0)
        site.cycle()
    assert (max(counted), sum(counted)) == (4, 10)
    site.until(lambda: all(site.state(number) is JobState.SUCCEEDED for number in range(2, 12)))
    site.until(lambda: planned_with(site).run_times.history(site.job(1)) == 11)
    learnt = site.scene.controller.last_snapshot.run_times.predictor
    assert learnt is not None
    assert dump(learnt) == dump(learnt_from_all(site.scene.store).predictor)


def test_the_recorded_jobs_of_a_daemon_that_kept_no_run_times_are_learnt_at_its_start(make: MakeDeployment) -> None:
    site = make(cloud={"persist": True})
    site.submit("sleep", "3", count=2)
    site.until(lambda: {site.state(1), site.state(2)} == {JobState.SUCCEEDED})
    with site.scene.store.transaction(site.now) as txn:
        txn.put_run_times(b"of another release")
    site.restart()
    assert planned_with(site).run_times.history(site.job(1)) == 2
    assert site.scene.store.run_times() == learnt_from_all(site.scene.store).dump()


@pytest.mark.parametrize("method", ["evidence", "observe", "copy"])
def test_a_defect_in_it_stops_no_job_and_is_tried_again(
    site: Deployment, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise Planted("a defect")

    with monkeypatch.context() as broken:
        broken.setattr(MixturePredictor, method, fail)
        site.submit("sleep", "3", count=2, target=BATCH)
        site.until(lambda: {site.state(1), site.state(2)} == {JobState.SUCCEEDED})
        site.submit("sleep", "3", target=BATCH)
        site.until_state(JobState.SUCCEEDED, number=3)
    assert [event.fields["left_out"] for event in site.events(EventKind.PLANNING_TROUBLE)] == [RUN_TIMES]
    site.scene.clock.advance(QUARANTINE_S)
    assert planned_with(site).run_times.history(site.job(1)) == 3
