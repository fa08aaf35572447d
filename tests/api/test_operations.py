"""Machines, offers, events, status, metrics, pausing."""

import re
import threading

from hcloud.core.model import EventKind, JobState
from tests.api.deployment import READER, ROOT, SUBMITTER, Deployment, job


def _run_one(deployment: Deployment) -> None:
    deployment.client(SUBMITTER).post("/v1/jobs", json=[job(command=["sleep", "50"])])
    deployment.cycle_until(lambda: deployment.store.job("job-1").state is JobState.RUNNING)


def test_instances_show_their_jobs_and_what_these_use(deployment: Deployment) -> None:
    _run_one(deployment)
    (machine,) = deployment.client(READER).get("/v1/instances").json()
    assert (machine["id"], machine["state"], machine["jobs"]) == ("inst-1", "ready", ["job-1"])
    assert machine["used"]["vcpus"] == 1.0
    assert machine["offer"]["price_usd_per_h"] > 0


def test_instances_tell_when_their_workers_last_answered(deployment: Deployment) -> None:
    _run_one(deployment)
    client = deployment.client(READER)
    (before,) = client.get("/v1/instances").json()
    deployment.cycle()
    (after,) = client.get("/v1/instances").json()
    assert before["ready_at"] <= before["seen_at"] < after["seen_at"] <= deployment.clock.now()


def test_ended_instances_are_shown_when_asked_for(deployment: Deployment) -> None:
    _run_one(deployment)
    deployment.cycle_until(lambda: not deployment.store.live().instances)
    client = deployment.client(READER)
    assert client.get("/v1/instances").json() == []
    (gone,) = client.get("/v1/instances", params={"ended": True}).json()
    assert gone["state"] == "terminated"


def test_offers_are_what_was_last_heard(deployment: Deployment) -> None:
    client = deployment.client(READER)
    assert client.get("/v1/offers").json() == []
    deployment.cycle()
    assert [each["instance_type"]["name"] for each in client.get("/v1/offers").json()] == ["m.one", "m.two"]


def test_events_are_filtered_and_continued_by_number(deployment: Deployment) -> None:
    _run_one(deployment)
    client = deployment.client(READER)
    every = client.get("/v1/events").json()
    assert [each["seq"] for each in every] == sorted(each["seq"] for each in every)
    rest = client.get("/v1/events", params={"after_seq": every[1]["seq"]}).json()
    assert rest == every[2:]
    last = client.get("/v1/events", params={"newest": True, "limit": 2}).json()
    assert last == every[-2:]
    before = client.get("/v1/events", params={"newest": True, "before_seq": last[0]["seq"], "limit": 1}).json()
    assert before == every[-3:-2]
    about = client.get("/v1/events", params={"job_id": "job-1", "kind": ["job_submitted", "unit_started"]}).json()
    assert [each["kind"] for each in about] == ["job_submitted", "unit_started"]


def test_waiting_for_events_returns_with_the_first_new_one(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    client.post("/v1/jobs", json=[job()])
    found: list[object] = []
    waiting = threading.Thread(
        target=lambda: found.extend(client.get("/v1/events", params={"after_seq": 1, "wait_s": 20}).json())
    )
    waiting.start()
    deployment.client(SUBMITTER).post("/v1/jobs", json=[job("second")])
    waiting.join()
    assert len(found) == 1


def test_status_counts_jobs_and_machines(deployment: Deployment) -> None:
    _run_one(deployment)
    status = deployment.client(SUBMITTER).get("/v1/status").json()
    assert (status["you"], status["role"], status["paused"]) == ("daemon", "submitter", "")
    assert status["jobs"]["running"] == 1
    assert status["instances"] == {"ready": 1}
    assert status["price_usd_per_h"] > 0
    assert status["daemon"]["policy"]["name"]


def test_pausing_is_recorded_with_its_actor_and_stops_launches(deployment: Deployment) -> None:
    client = deployment.client(ROOT)
    for _ in range(2):  # repeating it changes nothing
        assert client.post("/v1/pause", json={"reason": "kernel update"}).json() == {"paused": "kernel update"}
    assert client.get("/v1/status").json()["paused"] == "kernel update"
    client.post("/v1/jobs", json=[job()])
    deployment.cycle(5)
    assert client.get("/v1/instances").json() == []
    client.post("/v1/resume")
    deployment.cycle(2)
    assert len(client.get("/v1/instances").json()) == 1
    told = [(each.actor, each.fields["what"]) for each in deployment.store.events(kinds=[EventKind.DAEMON])]
    assert [each for each in told if each[0] == "root"] == [("root", "paused"), ("root", "resumed")]


_SAMPLE = re.compile(r"([a-z_]+?)(_bucket|_sum|_count)?(?:\{((?:[a-z]+=\"[^\"]*\",?)*)\})? (\S+)")


def _metrics(deployment: Deployment) -> dict[str, float]:
    answer = deployment.client(READER).get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found, described = {}, set()
    for line in answer.text.splitlines():
        if line.startswith("#"):
            described.add(line.split()[2])
            continue
        match = _SAMPLE.fullmatch(line)
        assert match, line
        assert match[1] in described, line
        found[line.rpartition(" ")[0]] = float(match[4])
    return found


def test_metrics_can_be_scraped(deployment: Deployment) -> None:
    _run_one(deployment)
    metrics = _metrics(deployment)
    assert metrics['hcloud_jobs{state="running"}'] == 1
    assert metrics['hcloud_jobs{state="failed"}'] == 0
    assert metrics['hcloud_instances{market="on_demand",state="ready"}'] == 1
    assert metrics['hcloud_price_usd_per_hour{market="on_demand"}'] > 0
    assert metrics["hcloud_engine_workers"] == 1
    assert metrics["hcloud_cycle_duration_seconds"] == 0.01
    assert metrics["hcloud_price_age_seconds"] >= 0


def test_metrics_are_there_before_anything_else_is(deployment: Deployment) -> None:
    assert _metrics(deployment)['hcloud_jobs{state="queued"}'] == 0
