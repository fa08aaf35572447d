"""A service outside its bound says so in status, explain and API, with what was tried and why nothing helps."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hcloud.cli.jobs import job_detail
from hcloud.cli.status import waits_for
from hcloud.core.model import EventKind
from hcloud.fake_runner.work import Work, read_work
from hcloud.provider import UnitSpec
from tests.api.deployment import SUBMITTER, Deployment, job

BOUND_MS = 50.0
# One machine of 8 vCPUs may run at a time: the second costs as much, and the limit is $2 an hour.
POLICY: dict[str, object] = {
    "caps": {"max_instances": 4},
    "budgets": {"per_hour_usd": 2.0},
    "correction": {"settle_s": 10},
}
latencies_ms = {"99": 40.0}


def work(unit: UnitSpec) -> Work:
    if unit.command[-1] == "serve":
        return Work(duration_s=1e9, cpu_share=0.95, requests_per_s=10.0, latency_ms=latencies_ms)
    return read_work(unit)


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path, policy=POLICY, work=work)
    yield made
    made.close()


def service(requests_per_s: float = 10.0, **changes: Any) -> dict[str, Any]:
    """Return a service of two nodes that start one by one, each of a whole large machine."""
    target = {"service": {"requests_per_s": requests_per_s, "latency_ms": BOUND_MS, "percentile": 99}}
    need = {"vcpus": 8, "memory": "1GiB"}
    nodes = {"nodes": "1..2", "interruptible": False}
    return job("api", command=["serve"], target=target, resources=need, metrics={"probe": "x"}, **nodes, **changes)


def test_a_service_outside_its_bound_says_why_nothing_helps_until_it_is_inside(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    answer = client.post("/v1/jobs", json=[service()])
    assert answer.status_code < 300, answer.text

    def view() -> dict[str, Any]:
        found: dict[str, Any] = client.get("/v1/jobs/job-1").json()
        return found

    deployment.cycle_until(lambda: view()["state"] == "running")
    deployment.cycle(100)
    assert view()["unmet_text"] == ""

    latencies_ms["99"] = 200.0
    deployment.cycle_until(lambda: view()["unmet_code"])
    told = view()["unmet_text"]
    found = re.match(
        r"misses its target: p99 latency ([\d.]+) ms, bound 50 ms; tried: nothing; nothing more helps: ", told
    )
    assert found and BOUND_MS < float(found[1]) <= 200.0, told
    for why in ("resize: ", "evict: no best-effort job", "nodes: no other machine has room", "per_hour", "move: "):
        assert why in told
    assert told in waits_for(view())
    assert ("misses", told) in job_detail(view(), deployment.clock.now())
    steps = client.get("/v1/jobs/job-1/explain").json()["steps"]
    assert told in [step["text"] for step in steps]
    recorded = len(list(deployment.store.events(kinds=[EventKind.TARGET_MISSED], limit=100)))
    deployment.cycle(60)
    events = list(deployment.store.events(kinds=[EventKind.TARGET_MISSED], limit=100))
    assert len(events) == recorded == 1  # once, not in each cycle

    latencies_ms["99"] = 40.0
    deployment.cycle_until(lambda: not view()["unmet_code"])
    assert view()["unmet_text"] == ""
    steps = client.get("/v1/jobs/job-1/explain").json()["steps"]
    assert steps[-1]["text"].startswith("meets its target again: p99 latency")


def test_a_service_that_serves_too_few_requests_at_its_bound_says_so(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    latencies_ms["99"] = 49.0
    try:
        assert client.post("/v1/jobs", json=[service(requests_per_s=25.0)]).status_code < 300
        deployment.cycle_until(lambda: client.get("/v1/jobs/job-1").json()["unmet_code"])
        row = client.get("/v1/jobs/job-1").json()
    finally:
        latencies_ms["99"] = 40.0
    found = re.match(
        r"misses its target: p99 latency ([\d.]+) ms, bound 50 ms; serves ([\d.]+) of 25 requests/s; tried: nothing; "
        r"nothing more helps: any: it uses less than correction.busy_share of its vCPUs",
        row["unmet_text"],
    )
    assert found and float(found[2]) == pytest.approx(10.0, rel=0.2), row["unmet_text"]
    assert row["unmet_text"] in waits_for(row)
    assert row["unmet_text"] in [step["text"] for step in client.get("/v1/jobs/job-1/explain").json()["steps"]]
