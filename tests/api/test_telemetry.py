"""Counters and histograms: what is counted, from when on, and what is not counted twice."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hcloud.api.telemetry import Telemetry
from hcloud.core.model import Event, EventKind
from hcloud.spec.policy import ScopeBudget
from providers.mock.faults import Fault, FaultKind
from tests.api.deployment import CLOUD, ROOT, SUBMITTER, Deployment, job

SPOT = {**CLOUD, "markets": ["spot"]}


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path, cloud=SPOT)
    yield made
    made.close()


def value(telemetry: Telemetry, name: str, **labels: str) -> float:
    return telemetry.registry.get_sample_value(f"hcloud_{name}", labels) or 0.0


def test_a_new_process_counts_from_its_own_start_but_knows_jobs_that_wait(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    client.post("/v1/jobs", json=[job("first")])
    deployment.cycle_until(lambda: not deployment.store.live().jobs)
    client.post("/v1/jobs", json=[job("second")])
    deployment.clock.advance(100.0)
    restarted = Telemetry()
    deployment.controller.followers = (restarted,)
    deployment.controller.release()
    deployment.cycle(3)
    assert value(restarted, "jobs_ended_total", **{"class": "best_effort", "state": "succeeded"}) == 0
    assert value(restarted, "job_wait_seconds_count", **{"class": "best_effort"}) == 1
    assert value(restarted, "job_wait_seconds_sum", **{"class": "best_effort"}) >= 100.0


def test_an_array_counts_by_its_tasks(deployment: Deployment) -> None:
    answer = deployment.client(SUBMITTER).post("/v1/jobs", json=[job(array="0-2")])
    assert answer.status_code == 201, answer.text
    deployment.cycle_until(lambda: deployment.store.live().submitted == ())
    deployment.cycle()
    assert value(deployment.telemetry, "jobs_ended_total", **{"class": "best_effort", "state": "succeeded"}) == 3
    assert value(deployment.telemetry, "job_wait_seconds_count", **{"class": "best_effort"}) == 3


def test_a_preemption_counts_once_though_a_notice_comes_before_the_end(deployment: Deployment) -> None:
    deployment.cloud.inject(Fault(kind=FaultKind.PREEMPT, delay_s=10.0))
    deployment.client(SUBMITTER).post("/v1/jobs", json=[job(command=["sleep", "60"])])
    deployment.cycle_until(lambda: deployment.store.events(kinds=[EventKind.INSTANCE_NOTICE]))
    deployment.cycle_until(lambda: deployment.store.events(kinds=[EventKind.INSTANCE_TERMINATED]))
    deployment.cycle(2)
    assert value(deployment.telemetry, "preemptions_total", provider="mock") == 1


def test_failed_launches_count_by_cause(deployment: Deployment) -> None:
    for kind in (FaultKind.RUN_OUT, FaultKind.THROTTLE, FaultKind.EXCEED_QUOTA):
        deployment.cloud.inject(Fault(kind=kind, call="launch"))
    deployment.client(SUBMITTER).post("/v1/jobs", json=[job()])
    deployment.cycle_until(lambda: not deployment.store.live().jobs)
    deployment.cycle()
    for cause in ("out_of_stock", "throttled", "quota"):
        assert value(deployment.telemetry, "launch_failures_total", provider="mock", cause=cause) == 1, cause
    assert value(deployment.telemetry, "launches_total", provider="mock", market="spot") == 1
    assert value(deployment.telemetry, "launch_to_ready_seconds_count", provider="mock", type="m.two") == 1


def test_requests_count_by_route_and_those_that_wait_for_news_are_not_timed(deployment: Deployment) -> None:
    client, timed = deployment.client(ROOT), "api_request_duration_seconds_count"
    for path in ("/v1/jobs/job-7", "/v1/jobs/job-8", "/v1/events?wait_s=0.01", "/nowhere"):
        client.get(path)
    assert value(deployment.telemetry, timed, method="GET", route="/v1/jobs/{job_id}") == 2
    assert value(deployment.telemetry, timed, method="GET", route="(none)") == 1
    assert value(deployment.telemetry, timed, method="GET", route="/v1/events") == 0
    assert value(deployment.telemetry, "api_requests_total", code="404") == 3


def test_a_defect_in_counting_is_logged_once_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    telemetry = Telemetry(["mock"])
    telemetry.begin((), (), 0)
    broken = Event(at=0.0, kind=EventKind.INSTANCE_REQUESTED, instance_id="inst-1", fields=None)  # type: ignore[arg-type]
    trouble = Event(
        at=0.0, kind=EventKind.PROVIDER_TROUBLE, fields={"provider": "mock", "call": "launch", "error": "X"}
    )
    with caplog.at_level(logging.ERROR):
        telemetry.follow([broken, broken, trouble])
    assert [each.message for each in caplog.records] == ["metrics failed"]
    assert value(telemetry, "launch_failures_total", provider="mock", cause="x") == 1


def test_no_event_is_lost_or_counted_twice_when_a_new_budget_lets_the_ledger_be_read_again(
    deployment: Deployment,
) -> None:
    deployment.client(SUBMITTER).post("/v1/jobs", json=[job()])
    deployment.cycle_until(lambda: not deployment.store.live().jobs)  # no cycle has read of its end yet
    controller, ended = deployment.controller, {"class": "best_effort", "state": "succeeded"}
    assert value(deployment.telemetry, "jobs_ended_total", **ended) == 0
    limited = replace(controller.policy.budgets, per_tag={"team=ml": ScopeBudget(per_day_usd=3.0)})
    controller.policy = replace(controller.policy, budgets=limited)
    deployment.cycle(2)
    assert value(deployment.telemetry, "jobs_ended_total", **ended) == 1
