"""A service gets a slice of its own size on this host, and batch work the room beside other work."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.home import PATIENCE_S, Home
from tests.waiting import wait_until

SIZE = {"memory": "48MiB", "disk": "10MiB"}
SLEEPS = {"command": ["sleep", "300"]}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A daemon under the default policy that rents slices of half a vCPU and of one."""
    made = Home(tmp_path / "home")
    made.set_up_local()
    policy = made.path / "policies" / "default.yaml"
    rules = policy.read_text()
    for wide, narrow in (("  instance_types: null", "  instance_types: [local.small, local.medium]"),
                         ("  markets: [reserved, on_demand, spot]", "  markets: [on_demand]")):  # fmt: skip
        assert wide in rules
        rules = rules.replace(wide, narrow)
    policy.write_text(rules)
    made.daemon()
    yield made
    made.run("destroy", "--all", "--yes", "--wait", str(PATIENCE_S))
    made.end()


def submitted(home: Home, name: str, vcpus: float, **keys: object) -> str:
    """Submit a job that sleeps, wait until it runs, and return the instance."""
    path = home.path / f"{name}.json"
    path.write_text(json.dumps({"name": name, **SLEEPS, "resources": {"vcpus": vcpus, **SIZE}, **keys}))
    job_id = home.run("submit", "-y", "-q", str(path)).split()[0]
    found = list[str]()

    def runs() -> bool:
        [job] = json.loads(home.run("status", job_id, "-o", "json"))
        held = job["attempt"]["allocations"] if job["attempt"] else []
        found[:] = [each["instance_id"] for each in held if each["started_at"]]
        return bool(found)

    wait_until(runs, PATIENCE_S)
    return found[0]


def test_a_real_service_is_kept_apart_and_batch_shares(home: Home) -> None:
    shared = submitted(home, "first", 0.6, target="batch")
    service = submitted(home, "web", 0.3, target={"service": {"requests_per_s": 1, "latency_ms": "100ms"}})
    assert service != shared
    assert submitted(home, "second", 0.3, target="batch") == shared
    launches = json.loads(home.run("events", "--kind", "instance_requested", "-o", "json"))
    [why] = [each["fields"]["text"] for each in launches if each["instance_id"] == service]
    assert f"{shared} with room: a service shares no machine" in why
