"""Submitted jobs become known: profiled by runs of their own, recognised under new input, never held up for long."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from numpy.random import default_rng

from hcloud.classifier.applications import identify, row_name
from hcloud.classifier.slowdown.forecasts import NOTHING_OBSERVED
from hcloud.core.co_runs import CoRun
from hcloud.core.estimates import Measure
from hcloud.core.model import (
    BatchTarget,
    EventKind,
    Job,
    JobSpec,
    JobState,
    MetricsHook,
    Nodes,
    ProgressHook,
    Reason,
    ServiceTarget,
)
from hcloud.fake_runner.runner import StartFault
from hcloud.planner.context import open_context
from hcloud.planner.plan import Profile
from hcloud.planner.profiling_runs import run_for
from hcloud.preview import describe_preview
from tests.apply.deployment import Deployment, deployment
from tests.apply.test_corrections import apply

TYPES = {
    "m.one": {"vcpus": 2, "memory_mib": 4096, "usd_per_h": 0.3},
    "m.two": {"vcpus": 4, "memory_mib": 8192, "usd_per_h": 0.7},
}
PROFILING = {"when": "before", "run_s": 2, "total_s": 20, "patience_s": 60, "skip_if_shorter_than_s": 0}
PROMISE = BatchTarget()


def open_site(home: Path, **profiling: object) -> Deployment:
    cloud = {"types": TYPES, "markets": ["on_demand"], "persist": True, "boot": {"p50_s": 2, "p95_s": 2}}
    return deployment(home, cloud, {"profiling": {**PROFILING, **profiling}})


@pytest.fixture
def site(tmp_path: Path) -> Deployment:
    return open_site(tmp_path)


def runs_of(site: Deployment, job: Job) -> list[Job]:
    return [site.scene.store.job(run) for run in site.scene.store.job(job.id).profile_runs]


def states_of(site: Deployment, job: Job) -> list[str]:
    """The states a job went through."""
    told = [event for event in site.events(EventKind.JOB_STATE) if event.job_id == job.id]
    return list(dict.fromkeys(str(event.fields["to"]) for event in told))


def classified(site: Deployment, job: Job) -> dict[str, object]:
    (event,) = [event for event in site.events(EventKind.JOB_CLASSIFIED) if event.job_id == job.id]
    return dict(event.fields)


def until_ended(site: Deployment, *jobs: Job) -> None:
    site.until(lambda: all(site.scene.store.job(job.id).finished_at for job in jobs), cycles=250)


def test_job_nobody_has_seen_is_profiled_classified_and_run(site: Deployment) -> None:
    (job,) = site.submit("sleep", "30", target=PROMISE, tags={"team": "a"}, progress=ProgressHook(file="p"))
    site.cycle(2)
    assert site.scene.store.job(job.id).wait_code == "profiling"
    until_ended(site, job)
    base, other = runs_of(site, job)
    assert (base.spec.name, other.spec.name) == ("job:profile-base", "job:profile-type")
    assert (base.spec.user, base.spec.tags) == ("ada", {"team": "a", "hcloud.profile": job.id})
    assert base.spec.exclusive
    assert [run.state for run in (base, other)] == [JobState.SUCCEEDED] * 2
    known = [state for state in states_of(site, job) if state != "awaiting_instance"]
    assert known == ["submitted", "profiled", "classified", "queued", "placed", "running", "succeeded"]
    ended = site.scene.store.job(job.id)
    row = site.scene.store.live().applications[ended.application]
    assert set(row.runs) == {base.id, other.id}
    assert set(row.cells["type"]) == {"mock/m.one", "mock/m.two"}
    said = classified(site, job)
    assert (said["source"], said["application"]) == ("profiled", row.name)
    assert len([e for e in site.events(EventKind.JOB_PROFILED) if e.job_id == job.id]) == 2


def test_what_was_expected_of_a_job_stands_beside_what_it_reached(site: Deployment) -> None:
    (job,) = site.submit("sleep", "30", target=PROMISE, progress=ProgressHook(file="p"))
    until_ended(site, job)
    predictions = [event.fields for event in site.events(EventKind.PREDICTION) if event.job_id == job.id]
    (told,) = predictions
    assert told["question"] == "run"
    assert float(str(told["measured"])) == pytest.approx(1 / 30, rel=0.2)
    assert float(str(told["predicted"])) == pytest.approx(1 / 30, rel=0.4)
    assert site.scene.store.live().applications[site.job(1).application].run_s == pytest.approx(30, rel=0.2)


def test_loss_beside_neighbours_is_predicted_and_what_they_explain_corrects_nothing(site: Deployment) -> None:
    hook = ProgressHook(file="p")
    (first,) = site.submit("sleep", "30", target=PROMISE, progress=hook)
    until_ended(site, first)
    name = site.scene.store.job(first.id).application
    row = site.scene.store.live().applications[name]
    jobs = site.submit("sleep", "30", count=2, target=PROMISE, progress=hook)
    until_ended(site, *jobs)
    held = [site.scene.store.job(job.id).attempt for job in jobs]
    assert len({each.allocations[0].instance_id for each in held if each is not None}) == 1
    said = [e.fields for e in site.events(EventKind.PREDICTION) if e.job_id in {job.id for job in jobs}]
    losses = [each for each in said if each["question"] == "loss"]
    assert losses
    assert all(0.0 < float(str(each["predicted"])) < float(str(each["high"])) for each in losses)
    runs = [each for each in said if each["question"] == "run" and each["alone"] is False]
    assert all(float(str(each["predicted"])) < row.cells["type"][str(each["instance_type"])] for each in runs)
    after = site.scene.store.live().applications[name]
    assert after.cells["type"] == pytest.approx(row.cells["type"], rel=0.1)


def test_how_fast_jobs_ran_beside_each_other_is_recorded_and_learnt(site: Deployment) -> None:
    hook, controller = ProgressHook(file="p"), site.scene.controller
    (first,) = site.submit("sleep", "30", target=PROMISE, progress=hook)
    until_ended(site, first)
    jobs = site.submit("sleep", "60", count=2, target=PROMISE, progress=hook)
    until_ended(site, *jobs)
    assert controller.last_snapshot.slowdowns is NOTHING_OBSERVED
    controller.policy = replace(
        controller.policy, placement=replace(controller.policy.placement, neighbours="observed")
    )
    name = row_name(site.scene.store.job(jobs[0].id).application)
    records = [record for _, record in site.scene.store.co_runs() if record.neighbours]
    (record,) = {each.key: each for each in records}.values()
    assert record.key == (name, (name,), "mock/m.one")
    assert record.periods == 2 and 60.0 <= record.seconds <= 130.0
    assert record.shared_cpus == 1.0, "neither was pinned"
    assert math.exp(record.log_speed) == pytest.approx(1.0, rel=0.3)
    learnt = site.scene.controller.slowdowns
    site.until(lambda: site.scene.controller.last_snapshot.slowdowns.has_met(name, [name]), cycles=100)
    assert learnt.quarantine.left_out(site.scene.clock.now()).stages == {}


def test_what_neighbours_were_observed_to_cost_explains_a_slow_run(site: Deployment) -> None:
    hook, scene = ProgressHook(file="p"), site.scene
    (first,) = site.submit("sleep", "30", target=PROMISE, progress=hook)
    until_ended(site, first)
    placement = replace(scene.controller.policy.placement, neighbours="observed")
    scene.controller.policy = replace(scene.controller.policy, placement=placement)
    name = row_name(scene.store.job(first.id).application)
    record = CoRun(
        application=name, neighbours=(name,), type_column="mock/m.one", log_speed=math.log(0.3), doubt=0.05,
        seconds=600.0, periods=20, observed_at=scene.clock.now(),
    )  # fmt: skip
    with scene.store.transaction(scene.clock.now()) as txn:
        txn.add_co_run(record)
    site.until(lambda: scene.controller.last_snapshot.slowdowns.has_met(name, [name]), cycles=200)
    jobs = site.submit("sleep", "30", count=2, target=PROMISE, progress=hook)
    until_ended(site, *jobs)
    said = [e.fields for e in site.events(EventKind.PREDICTION) if e.job_id in {job.id for job in jobs}]
    losses = [float(str(each["predicted"])) for each in said if each["question"] == "loss"]
    assert max(losses) > 50.0, "by pressures it would be small"


def test_on_two_machines_each_rank_is_held_against_its_own_part(site: Deployment) -> None:
    (job,) = site.submit("sleep", "30", target=PROMISE, nodes=Nodes(count=2))
    until_ended(site, job)
    row = site.scene.store.live().applications[site.job(1).application]
    assert row.measure is Measure.CPU
    (told,) = [event.fields for event in site.events(EventKind.PREDICTION) if event.job_id == job.id]
    assert told["nodes"] == 2
    alone = row.cells["type"]["mock/m.one"]
    assert 0.5 * alone < float(str(told["predicted"])) < alone  # two do more than one, but not twice as much
    assert float(str(told["measured"])) == pytest.approx(alone, rel=0.1)


def test_known_job_is_not_profiled_again_and_one_under_new_input_is_only_looked_at(site: Deployment) -> None:
    hook = ProgressHook(file="p")
    (first,) = site.submit("sleep", "30", target=PROMISE, progress=hook)
    until_ended(site, first)
    (again,) = site.submit("sleep", "30", target=PROMISE, progress=hook)
    (other,) = site.submit("sleep", "60", target=PROMISE, progress=hook)
    until_ended(site, again, other)
    assert runs_of(site, again) == []
    assert classified(site, again)["source"] == "known"
    (look,) = runs_of(site, other)
    assert look.spec.name == "job:profile-look"
    row = site.scene.store.live().applications[site.scene.store.job(first.id).application]
    assert row.inputs[identify(other.spec).input] == pytest.approx(0.5, rel=0.1)
    assert site.scene.store.job(other.id).application.startswith(f"{row.name}#")
    assert float(str(classified(site, other)["predicted"])) == pytest.approx(1 / 60, rel=0.4)


def test_jobs_of_one_program_wait_for_the_first_ones_profile(site: Deployment) -> None:
    jobs = site.submit("sleep", "20", count=4, target=PROMISE)
    site.cycle(3)
    assert [site.scene.store.job(job.id).wait_code for job in jobs[1:]] == ["profiling_same_program"] * 3
    until_ended(site, *jobs)
    assert [len(runs_of(site, job)) for job in jobs] == [2, 0, 0, 0]


def test_cancelled_job_takes_its_runs_along(site: Deployment) -> None:
    (job,) = site.submit("sleep", "30", target=PROMISE)
    site.until(lambda: any(run.state is JobState.RUNNING for run in runs_of(site, job)))
    site.scene.store.request_cancel(job.id, "ada", site.now)
    until_ended(site, job, *runs_of(site, job))
    assert {run.state for run in runs_of(site, job)} == {JobState.CANCELLED}
    assert site.scene.store.job(job.id).state is JobState.CANCELLED


def test_runs_that_fail_do_not_hold_the_job_up(site: Deployment) -> None:
    site.scene.engine.inject(StartFault.REFUSE, times=2)
    (job,) = site.submit("sleep", "5", target=PROMISE)
    until_ended(site, job)
    assert {run.state for run in runs_of(site, job)} == {JobState.FAILED}
    assert (classified(site, job)["source"], site.scene.store.job(job.id).state) == ("prior", JobState.SUCCEEDED)


def test_program_that_crashes_while_profiled_still_runs_as_asked(site: Deployment) -> None:
    (job,) = site.submit("/bin/sh", "-c", "sleep 3; exit 7", target=PROMISE)
    until_ended(site, job)
    assert classified(site, job)["code"] == "profiling_failed"
    assert site.scene.store.job(job.id).state is JobState.FAILED
    (told, *_) = [event.fields for event in site.events(EventKind.JOB_PROFILED)]
    assert "ended with code 7" in str(told["text"])


def test_job_in_an_image_is_profiled_in_it(site: Deployment) -> None:
    (job,) = site.submit("sleep", "2", target=PROMISE, image="registry/tool:1")
    until_ended(site, job)
    assert classified(site, job)["source"] == "profiled"
    assert {run.spec.image for run in runs_of(site, job)} == {"registry/tool:1"}
    assert site.scene.store.job(job.id).state is JobState.SUCCEEDED


def test_runs_that_take_too_long_are_given_up_and_ended(tmp_path: Path) -> None:
    site = open_site(tmp_path, patience_s=5, total_s=200, run_s=100)
    (job,) = site.submit("sleep", "5", target=PROMISE)
    until_ended(site, job)
    assert site.scene.store.job(job.id).state is JobState.SUCCEEDED
    site.until(lambda: all(run.finished_at for run in runs_of(site, job)))
    assert classified(site, job)["code"] in ("profiling_too_long", "classified_profiled")


def test_best_effort_and_unwilling_jobs_are_queued_at_once(site: Deployment) -> None:
    (plain,) = site.submit("sleep", "2")
    (never,) = site.submit("sleep", "3", target=PROMISE, profiling="never")
    site.cycle()
    assert [classified(site, job)["code"] for job in (plain, never)] == ["profiling_target", "profiling_never"]


def test_job_on_several_nodes_is_measured_on_two(site: Deployment) -> None:
    (job,) = site.submit("sleep", "20", target=PROMISE, nodes=Nodes(count=3, minimum=3))
    until_ended(site, job)
    assert [run.spec.name for run in runs_of(site, job)] == [
        "job:profile-base", "job:profile-type", "job:profile-nodes",
    ]  # fmt: skip
    assert runs_of(site, job)[2].spec.nodes.count == 2


def test_restarted_daemon_goes_on_with_the_runs_it_finds(site: Deployment) -> None:
    (job,) = site.submit("sleep", "20", target=PROMISE)
    for _ in range(40):
        site.cycle()
        site.restart()
    until_ended(site, job)
    assert len(runs_of(site, job)) == 2
    assert classified(site, job)["source"] == "profiled"


def test_drifted_application_is_profiled_anew(site: Deployment) -> None:
    (first,) = site.submit("sleep", "20", target=PROMISE)
    until_ended(site, first)
    name = site.scene.store.job(first.id).application
    with site.scene.store.transaction(site.now) as txn:
        row = txn.application(name)
        assert row is not None
        txn.put_application(type(row)(**{f: getattr(row, f) for f in row.__slots__} | {"missed": (True,) * 3}))
    (again,) = site.submit("sleep", "20", target=PROMISE)
    until_ended(site, again)
    assert len(runs_of(site, again)) == 2


def knowing(site: Deployment, *command: str, **changes: object) -> dict[str, object] | None:
    """What a preview says of how such a job would become known."""
    fields = {"name": "job", "user": "ada", "command": command, "target": PROMISE, **changes}
    found = site.scene.controller.preview([JobSpec(**fields)])  # type: ignore[arg-type]
    (said,) = describe_preview(found, site.scene.controller.policy)
    assert said["action"] in ("launch", "place", "wait")  # what is done with the job itself is told all the same
    return said["knowing"]  # type: ignore[no-any-return]


def test_preview_says_what_profiling_is_going_to_take_and_cost(site: Deployment) -> None:
    site.cycle()
    said = knowing(site, "sleep", "30", progress=ProgressHook(file="p"))
    (job,) = site.submit("sleep", "30", target=PROMISE, progress=ProgressHook(file="p"))
    site.cycle()
    (told,) = [event for event in site.events(EventKind.JOB_STATE) if event.fields.get("code") == "profiling"]
    assert said is not None
    assert (said["how"], said["runs"], said["text"]) == ("profiled", len(runs_of(site, job)), told.fields["text"])
    assert 0 < float(str(said["cost_usd"])) < 0.1
    assert 20 < float(str(said["lasts_s"])) < 60


def test_preview_predicts_what_is_known_already(site: Deployment) -> None:
    hook = ProgressHook(file="p")
    (job,) = site.submit("sleep", "30", target=PROMISE, progress=hook)
    until_ended(site, job)
    site.cycle()
    said = knowing(site, "sleep", "30", progress=hook)
    assert said is not None
    assert (said["how"], said["measure"], said["runs"]) == ("known", "progress", 0)
    assert float(str(said["predicted"])) == pytest.approx(1 / 30, rel=0.4)
    other = knowing(site, "sleep", "60", progress=hook)
    assert other is not None and other["runs"] == 1
    assert "profiled in one short run" in str(other["text"])


def test_preview_says_why_a_job_is_not_profiled_or_not_now(site: Deployment) -> None:
    site.submit("sleep", "30", target=PROMISE)
    site.cycle()
    said = [knowing(site, "sleep", "30"), knowing(site, "true", profiling="never")]
    assert [each and (each["how"], each["code"]) for each in said] == [
        ("later", "profiling_same_program"),
        ("unknown", "profiling_never"),
    ]


def test_preview_says_nothing_of_profiling_where_there_is_none(tmp_path: Path) -> None:
    site = open_site(tmp_path, when="never")
    site.cycle()
    assert knowing(site, "sleep", "30") is None


def test_service_teaches_while_it_runs_and_drift_is_seen_before_it_ends(site: Deployment) -> None:
    """It serves what one CPU of the slowest machine would do at 100 requests/s, and comes to serve a fifth of it."""
    hook = MetricsHook(probe=("./ask",))
    (job,) = site.submit("./serve", target=ServiceTarget(requests_per_s=5.0, latency_ms=100.0), metrics=hook)
    site.until(lambda: site.scene.store.job(job.id).state is JobState.RUNNING, cycles=250)
    name = site.scene.store.job(job.id).application
    with site.scene.store.transaction(site.now) as txn:  # once it was faster than it is now
        row = txn.application(name)
        assert row is not None and row.measure is Measure.REQUESTS
        cells = {q: {c: v * (5 if q in ("type", "step", "nodes") else 1) for c, v in columns.items()}
                 for q, columns in row.cells.items()}  # fmt: skip
        txn.put_application(replace(row, cells=cells))
    site.until(lambda: site.scene.store.live().applications[name].missed, cycles=250, step_s=10.0)
    assert site.scene.store.job(job.id).state is JobState.RUNNING
    (told, *_) = [each.fields for each in site.events(EventKind.PREDICTION) if each.job_id == job.id]
    assert (told["question"], told["measure"]) == ("run", "requests")
    assert float(str(told["predicted"])) > 2 * float(str(told["measured"]))
    slow = site.scene.store.live().applications[name]
    assert slow.missed == (True,)
    # What it says a second and a third time is not another witness: it may be this start of it alone that is slow.
    site.until(lambda: len(site.events(EventKind.PREDICTION)) >= 3, cycles=500, step_s=10.0)
    again = site.scene.store.live().applications[name]
    assert (again.missed, again.cells) == (slow.missed, slow.cells)


def test_a_running_job_is_profiled_again_and_taken_for_what_that_finds(site: Deployment) -> None:
    """As a correction does where a job runs unlike the program it was taken for."""
    site.submit("sleep", "5000", target=PROMISE, profiling="never")
    site.until_state(JobState.RUNNING)
    job = site.job()
    context = open_context(replace(site.scene.controller.snapshot()), site.scene.controller.policy, default_rng(0))
    [offer, *_] = [each for each in context.snapshot.offers if each.instance_type.name == "m.two"]
    spec = replace(job.spec, profiling="auto")
    policy, job_open = context.policy.profiling, replace(job, spec=spec)
    run, _ = run_for(policy, job_open, offer, "again", steps_vcpus=(1.0, 0.5), sources=())
    name = identify(job.spec).name
    again = Profile(job_id=job.id, application=name, runs=(run,), reason=Reason(code="profiling", text="once more"))
    assert apply(site, again) == []
    assert site.job().application == "" and site.state() is JobState.RUNNING
    assert "was profiled already" in apply(site, again)[0], "while a run is left"
    site.until(lambda: site.job().application == name, cycles=60)
    assert site.state() is JobState.RUNNING
    told = [str(event.fields["text"]) for event in site.events(EventKind.JOB_PROFILED)]
    assert f"now classified as {name}, before as a typical application" in told[-1]
    site.cycle()
    assert name in site.scene.controller.last_snapshot.applications


# --------------------------------------------------------------------------------------------------------------- beside
def test_unknown_job_starts_at_once_and_copies_profiled_beside_it_make_it_known(tmp_path: Path) -> None:
    site = open_site(tmp_path, when="beside", expected_saving=1.0)
    (job,) = site.submit("sleep", "200", target=PROMISE, progress=ProgressHook(file="p"))
    until_ended(site, job)
    known = [state for state in states_of(site, job) if state != "awaiting_instance"]
    assert known == ["classified", "queued", "placed", "running", "succeeded"]
    base = runs_of(site, job)[0]
    assert base.spec.name == "job:profile-base"
    assert base.state is JobState.SUCCEEDED
    ended = site.scene.store.job(job.id)
    row = site.scene.store.live().applications[ended.application]
    assert base.id in row.runs and row.profiled_at is not None
    assert row.ended_runs == 1  # its own run counts as one more measurement
    (again,) = site.submit("sleep", "200", target=PROMISE, progress=ProgressHook(file="p"))
    until_ended(site, again)
    assert (classified(site, again)["source"], runs_of(site, again)) == ("known", [])


def test_own_run_of_a_short_job_makes_the_next_one_known_and_costs_nothing(tmp_path: Path) -> None:
    site = open_site(tmp_path, when="beside")
    (job,) = site.submit("sleep", "30", target=PROMISE)
    until_ended(site, job)
    assert runs_of(site, job) == []
    (row,) = site.scene.store.live().applications.values()
    assert (row.measure, row.ended_runs, row.profiled_at) == (Measure.COMPLETION, 1, None)
    assert row.cells["type"] == {"mock/m.one": pytest.approx(1 / 30, rel=0.1)}
    (again,) = site.submit("sleep", "30", target=PROMISE)
    until_ended(site, again)
    said = classified(site, again)
    assert (said["source"], said["application"]) == ("known", row.name)
    assert float(str(said["predicted"])) == pytest.approx(1 / 30, rel=0.2)


def test_job_that_runs_when_its_program_becomes_known_is_classified_too(tmp_path: Path) -> None:
    site = open_site(tmp_path, when="beside")
    (first,) = site.submit("sleep", "30", target=PROMISE)
    site.cycle(15)
    (second,) = site.submit("sleep", "30", target=PROMISE)
    until_ended(site, first)
    site.cycle(2)
    (row,) = site.scene.store.live().applications.values()
    running = site.scene.store.job(second.id)
    assert (running.state, running.application) == (JobState.RUNNING, row.name)
    said = [event.fields["source"] for event in site.events(EventKind.JOB_CLASSIFIED) if event.job_id == second.id]
    assert said == ["prior", "known"]


@pytest.mark.parametrize("ends", ["cancelled", "succeeded"])
def test_runs_outlive_a_job_that_succeeded_but_not_one_that_was_cancelled(tmp_path: Path, ends: str) -> None:
    site = open_site(tmp_path, when="beside", expected_saving=1.0)
    (job,) = site.submit("sleep", "135", target=PROMISE, progress=ProgressHook(file="p"))
    for _ in range(200):
        site.cycle()
        if site.scene.store.job(job.id).profile_runs:
            break
    if ends == "cancelled":
        site.scene.store.request_cancel(job.id, "ada", site.now)
    until_ended(site, job)
    runs = runs_of(site, job)
    assert runs
    until_ended(site, *runs)
    states = {run.state for run in runs_of(site, job)}
    assert states == {JobState.CANCELLED if ends == "cancelled" else JobState.SUCCEEDED}
