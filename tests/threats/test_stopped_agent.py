"""A machine whose agent hangs delays only what runs on it: a daemon, a gateway and two slices as real processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.stopped_agent import RESOURCES, Site, agent_processes, deployment
from hcloud.core.model import FailureCause
from hcloud.engine.gateway import RESPONSIVE_S
from tests.waiting import wait_until

JOBS = 8
PATIENCE_S = 120.0


@pytest.fixture
def site() -> Iterator[Site]:
    with deployment(agents=2) as site:
        yield site


def stop(directory: Path) -> list[int]:
    """Stop an agent's processes, and let the time pass in which it would be taken to respond."""
    # A unit's keeper that has just begun looks like its agent until it becomes a program of its own.
    stopped = wait_until(lambda: found if len(found := agent_processes(directory)) == 2 else None, PATIENCE_S)
    assert stopped is not None
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    stopped_at = time.monotonic()
    wait_until(lambda: time.monotonic() > stopped_at + 2 * RESPONSIVE_S, PATIENCE_S)
    return stopped


def jobs(site: Site, *command: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = site.client.get("/v1/jobs", params={"limit": 1000}).raise_for_status().json()
    return [each for each in found if each["spec"]["command"] == [*command]]


def test_jobs_run_on_the_other_machine_while_one_agent_is_stopped_and_on_both_afterwards(site: Site) -> None:
    silent = site.slices()[0]
    units_before = set(os.listdir(silent / "machine" / "units"))
    stopped = stop(silent)
    try:
        site.submit(JOBS, RESOURCES, ["true"])
        site.until_ended()
        ended = jobs(site, "true")
        assert {each["state"] for each in ended} == {"succeeded"} and len(ended) == JOBS
        assert not any(each["failures"] for each in ended)
        instances = {part["instance_id"] for each in ended for part in each["attempt"]["allocations"]}
        assert len(instances) == 1
        engine = site.client.get("/v1/status").json()["daemon"]["engine"]
        assert engine["silent"] >= 1
        events = site.client.get("/v1/events", params={"kind": "job_state", "limit": 1000}).json()
        why = {event["fields"]["text"] for event in events if event["fields"]["code"] == "not_sent"}
        [name] = {each["id"] for each in site.client.get("/v1/instances").json()} - instances
        assert f"{name} does not respond; nothing was sent there, so the job is placed again" in why
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    wait_until(lambda: site.client.get("/v1/status").json()["daemon"]["engine"]["workers"] == 2, PATIENCE_S)
    assert set(os.listdir(silent / "machine" / "units")) <= units_before
    site.submit(2, {**RESOURCES, "vcpus": 2}, ["sleep", "3"])  # each fills a slice
    site.until_ended()
    machines = {part["instance_id"] for each in jobs(site, "sleep", "3") for part in each["attempt"]["allocations"]}
    assert FailureCause.INSTANCE_LOST not in {cause for each in jobs(site, "true") for cause in each["failures"]}
    assert len(machines) == 2
