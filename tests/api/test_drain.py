"""Draining and destroying over the API, to the end: nothing lost, nothing left, nothing launched again."""

from hcloud.core.model import EventKind, InstanceState, JobState
from tests.api.deployment import ROOT, SUBMITTER, Deployment, job, sentence


def run_one(deployment: Deployment, seconds: int = 50) -> None:
    deployment.client(SUBMITTER).post("/v1/jobs", json=[job(command=["sleep", str(seconds)])])
    deployment.cycle_until(lambda: deployment.store.job("job-1").state is JobState.RUNNING)


def up(deployment: Deployment) -> list[str]:
    return [m.token for m in deployment.cloud.machines(deployment.clock.now()) if m.terminated_at is None]


def test_a_drained_machine_finishes_its_job_takes_no_other_and_ends(deployment: Deployment) -> None:
    run_one(deployment, seconds=20)
    client = deployment.client(ROOT)
    [order] = client.post("/v1/drain", json={"instances": ["inst-1"]}).json()
    assert (order["name"], order["instances"], order["jobs"]) == ("inst-1", ["inst-1"], ["job-1"])
    deployment.client(SUBMITTER).post("/v1/jobs", json=[job("second", command=["sleep", "5"])])
    deployment.cycle_until(lambda: deployment.store.instance("inst-1").state is InstanceState.TERMINATED)
    assert deployment.store.job("job-1").state is JobState.SUCCEEDED
    assert deployment.store.job("job-1").attempts_made == 1
    deployment.cycle_until(lambda: deployment.store.job("job-2").state is JobState.SUCCEEDED)
    attempt = deployment.store.job("job-2").attempt
    assert attempt is not None and attempt.allocations[0].instance_id == "inst-2"
    assert client.get("/v1/orders").json() == []  # an order about a machine goes with it


def test_at_the_deadline_a_job_moves(deployment: Deployment) -> None:
    run_one(deployment, seconds=100)
    deadline_at = deployment.clock.now() + 60
    deployment.client(ROOT).post("/v1/drain", json={"instances": ["inst-1"], "deadline_at": deadline_at})
    deployment.cycle_until(lambda: deployment.store.instance("inst-1").state is InstanceState.TERMINATED)
    assert deployment.clock.now() < deadline_at + 10
    deployment.cycle_until(lambda: deployment.store.job("job-1").state is JobState.SUCCEEDED)
    assert deployment.store.job("job-1").attempts_made == 2


def test_undoing_a_drain_gives_the_machine_back(deployment: Deployment) -> None:
    run_one(deployment)
    client = deployment.client(ROOT)
    client.post("/v1/drain", json={"providers": ["mock"]})
    deployment.cycle(2)
    assert deployment.store.instance("inst-1").state is InstanceState.DRAINING
    assert client.post("/v1/drain", json={"providers": ["mock"], "undo": True}).json() == []
    assert deployment.store.instance("inst-1").state is InstanceState.READY
    deployment.cycle(3)
    assert deployment.store.instance("inst-1").state is InstanceState.READY
    told = [(e.actor, e.fields["what"]) for e in deployment.store.events(kinds=[EventKind.OPERATOR_ORDER])]
    assert told == [("root", "drain"), ("root", "undo")]


def test_of_a_drained_type_nothing_is_launched_until_it_is_undone(deployment: Deployment) -> None:
    deployment.cycle()
    client = deployment.client(ROOT)
    client.post("/v1/drain", json={"types": ["m.*"]})
    client.post("/v1/jobs", json=[job()])
    deployment.cycle(5)
    assert deployment.store.live().instances == ()
    assert deployment.store.job("job-1").wait_code == "drained"
    client.post("/v1/drain", json={"types": ["m.*"], "undo": True})
    deployment.cycle_until(lambda: deployment.store.job("job-1").state is JobState.SUCCEEDED)


def test_what_cannot_be_drained_is_told_and_nothing_is_changed(deployment: Deployment) -> None:
    run_one(deployment)
    client = deployment.client(ROOT)
    assert "inst-1" in sentence(client.post("/v1/drain", json={"instances": ["inst-9"]}))
    assert "did you mean" in sentence(client.post("/v1/drain", json={"providers": ["mok"]}))
    assert "m.one" in sentence(client.post("/v1/drain", json={"instances": ["inst-1"], "types": ["x*"]}))
    assert "name machines" in sentence(client.post("/v1/drain", json={}))
    assert "none" in sentence(client.post("/v1/drain", json={"types": ["m.one"], "undo": True}))
    assert deployment.client(SUBMITTER).post("/v1/drain", json={"providers": ["mock"]}).status_code == 403
    assert client.get("/v1/orders").json() == []


def test_destroying_is_planned_first_and_changes_nothing_until_it_is_said(deployment: Deployment) -> None:
    run_one(deployment)
    client = deployment.client(ROOT)
    deployment.clock.advance(10.0)
    plan = client.post("/v1/destroy", json={"every": True, "dry_run": True}).json()
    assert ([each["id"] for each in plan["machines"]], plan["ordered"]) == (["inst-1"], False)
    [struck] = plan["jobs"]
    assert (struck["id"], struck["runs_again"]) == ("job-1", True)
    assert struck["lost_s"] >= 10 and plan["machines"][0]["spent_usd"] > 0
    deployment.cycle(2)
    assert len(up(deployment)) == 1


def test_everything_destroyed_stays_so_until_resumed_and_then_its_jobs_run_again(deployment: Deployment) -> None:
    run_one(deployment)
    client = deployment.client(ROOT)
    for _ in range(2):  # repeating it is harmless
        client.post("/v1/destroy", json={"every": True})
    deployment.cycle_until(lambda: not deployment.store.live().instances)
    assert up(deployment) == []
    deployment.cycle(30)
    assert up(deployment) == []
    assert deployment.store.job("job-1").state is JobState.QUEUED
    client.post("/v1/resume")
    deployment.cycle_until(lambda: deployment.store.job("job-1").state is JobState.SUCCEEDED)
    assert deployment.store.job("job-1").attempts_made == 2
    told = [e.fields["what"] for e in deployment.store.events(kinds=[EventKind.OPERATOR_ORDER])]
    assert told == ["destroy"]


def test_one_machine_is_destroyed_and_its_job_runs_elsewhere_at_once(deployment: Deployment) -> None:
    run_one(deployment)
    client = deployment.client(ROOT)
    assert deployment.client(SUBMITTER).post("/v1/destroy", json={"instances": ["inst-1"]}).status_code == 403
    client.post("/v1/destroy", json={"instances": ["inst-1"]})
    assert "cannot be undone" in sentence(client.post("/v1/drain", json={"instances": ["inst-1"], "undo": True}))
    deployment.cycle_until(lambda: deployment.store.job("job-1").state is JobState.SUCCEEDED)
    assert deployment.store.instance("inst-1").state is InstanceState.TERMINATED
    assert "not both" in sentence(client.post("/v1/destroy", json={}))
    assert "there is no inst-7" in sentence(client.post("/v1/destroy", json={"instances": ["inst-7"]}))
