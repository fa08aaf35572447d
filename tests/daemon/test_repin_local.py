"""A real service beside a hog on one CPU of a real machine is pinned to the other one, and says that it runs there."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.repin import HOG, POLICY
from tests.daemon.home import PATIENCE_S, Home
from tests.machine import needs_two_cpus
from tests.waiting import wait_until

SERVICE = """
import json, os, time
os.sched_setaffinity(0, {0})
told = None
while True:
    here = sorted(os.sched_getaffinity(0))
    late = os.path.exists("disturbed") and here == [0]
    with open("stats.new", "w") as file:
        json.dump({"requests_per_s": 10, "latency_ms": {"99": 500.0 if late else 5.0}}, file)
    os.rename("stats.new", "stats.json")
    if told != here:
        print("runs on", *here, flush=True)
    told, until = here, time.monotonic() + 0.05
    while time.monotonic() < until:
        pass
"""
RESOURCES = {"vcpus": 1, "memory": "128MiB", "disk": "20MiB"}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A daemon that rents a machine of two vCPUs, and judges services soon after their start."""
    made = Home(tmp_path / "home")
    made.set_up_local()
    (made.path / "policies" / "default.yaml").write_text(json.dumps({**POLICY, "correction": {"settle_s": 1}}))
    made.daemon()
    yield made
    made.run("destroy", "--all", "--yes", "--wait", str(PATIENCE_S))
    made.end()


def submitted(home: Home, name: str, program: str, **keys: object) -> str:
    path = home.path / f"{name}.json"
    path.write_text(json.dumps({"name": name, "command": ["python3", "-c", program], "resources": RESOURCES, **keys}))
    return home.run("submit", "-y", "-q", str(path)).split()[0]


@needs_two_cpus
def test_a_service_is_pinned_off_the_cpu_of_a_hog(home: Home) -> None:
    target = {"service": {"requests_per_s": 10, "latency_ms": 50}}
    metrics = {"probe": ["cat", "stats.json"], "every": 0.5}
    service = submitted(home, "service", SERVICE, target=target, metrics=metrics)
    wait_until(lambda: "runs on 0\n" in home.run("logs", service), PATIENCE_S)
    hog = submitted(home, "hog", HOG, target="best_effort")
    wait_until(lambda: home.job_state(hog) == "running", PATIENCE_S)
    (unit,) = home.path.glob(f"providers/local/instances/*/machine/units/{service}.*")
    (unit / "root" / "job" / "disturbed").touch()
    wait_until(lambda: "runs on 1\n" in home.run("logs", service), PATIENCE_S)
    (made,) = [
        each["fields"]
        for each in json.loads(home.run("events", "--kind", "correction", "-o", "json"))
        if each["fields"]["step"] == "repin"
    ]
    assert "pinning it to CPUs 1 of inst-1" in made["text"]
    wait_until(lambda: json.loads(home.run("instances", "-o", "json"))[0]["pinned"][service] == "1", PATIENCE_S)
    assert "rank 0 pinned to CPUs 1 on inst-1" in home.run("explain", service)
