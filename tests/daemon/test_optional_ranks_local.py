"""An optional rank of real processes gives way to a job with a target, on a slice of this host."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.home import PATIENCE_S, Home
from tests.engine.site import free_port
from tests.waiting import wait_until

SMALL = ("--vcpus", "0.25", "--memory", "64MiB", "--disk", "10MiB")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A daemon that may rent one slice of half a vCPU."""
    made = Home(tmp_path / "home")
    made.run("init", "--home", str(made.path), "--provider", "local")
    config, policy = made.path / "config.yaml", made.path / "policies" / "simple.yaml"
    text = config.read_text().replace("127.0.0.1:8786", f"127.0.0.1:{free_port()}")
    for slow, quick in (("settings: {}", "settings: {cgroups: false}"), ("interval_s: 1.0", "interval_s: 0.1"),
                        ("poll_s: 2.0", "poll_s: 0.1"), ("policies/default", "policies/simple")):  # fmt: skip
        assert slow in text
        text = text.replace(slow, quick)
    config.write_text(text)
    policy.write_text(policy.read_text() + "\ncaps: {max_instances: 1}\n")
    made.daemon()
    yield made
    made.run("destroy", "--all", "--yes", "--wait", str(PATIENCE_S))
    made.end()


def running(home: Home, job_id: str) -> list[int]:
    [job] = json.loads(home.run("status", job_id, "-o", "json"))
    held = job["attempt"]["allocations"] if job["attempt"] else []
    return [each["rank"] for each in held if each["started_at"] and each["ended_at"] is None]


def test_an_optional_rank_of_real_processes_gives_way(home: Home) -> None:
    home.run("submit", "-q", "--nodes", "1..2", *SMALL, "--name", "wide", "--", "sleep", "300")
    wait_until(lambda: running(home, "job-1") == [0, 1], PATIENCE_S)
    home.run("submit", "-q", "--within", "1h", *SMALL, "--name", "promised", "--", "sleep", "300")
    wait_until(lambda: running(home, "job-2") == [0], PATIENCE_S)
    assert running(home, "job-1") == [0]
    assert "its optional rank 1 on inst-1 makes room for job-2" in home.run("explain", "job-1")
