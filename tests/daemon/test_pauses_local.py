"""Two real programs that slow each other take turns on a real machine: one is paused while the other counts on."""

import json
from collections.abc import Iterator
from contextlib import closing
from math import log
from pathlib import Path

import pytest

from hcloud.classifier.applications import identify
from hcloud.classifier.library import Question
from hcloud.core.clock import SystemClock, holds_within
from hcloud.core.co_runs import CoRun
from hcloud.core.estimates import Application, Measure
from hcloud.core.model import JobSpec
from hcloud.store import Store
from tests.daemon.home import PATIENCE_S, Home
from tests.waiting import wait_until

COUNTS = """
import time
count = 0
while True:
    count += 1
    with open("count", "w") as file:
        file.write(str(count))
    time.sleep(0.02)
"""
RESOURCES = {"vcpus": 0.5, "memory": "128MiB", "disk": "20MiB"}
POLICY = {
    "name": "turns",
    "allow": {"instance_types": ["local.large"], "markets": ["on_demand"]},
    "placement": {"order": "co_schedule", "neighbours": "observed", "pause_step_s": 2},
    "admission": {"queues": "one"},
    "provisioning": {"strategy": "best_value"},
    "profiling": {"when": "beside", "for_targets": ["service"]},
}
TYPE, ALONE_S = "local/local.large", 45.0


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A daemon that rents a machine of two vCPUs, without control groups, and reads what it observed often."""
    made = Home(tmp_path / "home", constants={"hcloud.slowdowns.READ_EVERY_S": 0.5})
    made.set_up_local()
    (made.path / "policies" / "default.yaml").write_text(json.dumps(POLICY))
    made.daemon()
    yield made
    made.run("destroy", "--all", "--yes", "--wait", str(PATIENCE_S))
    made.end()


def submitted(home: Home, name: str) -> str:
    path = home.path / f"{name}.json"
    # The program's name tells them apart: it is what a program is known by.
    command = ["sh", "-c", f"cp $(command -v python3) {name} && exec ./{name} -c '{COUNTS}'"]
    job = {"name": name, "command": command, "resources": RESOURCES, "target": "batch", "max_runtime": "10m"}
    path.write_text(json.dumps(job))
    return home.run("submit", "-y", "-q", str(path)).split()[0]


def known_as_bad_neighbours(store: Store, one: JobSpec, other: JobSpec) -> None:
    """Record that each was seen alone and beside the other, at three tenths of its speed."""
    now, names = SystemClock().now(), ("one", "other")
    with store.transaction(now) as txn:
        for name, spec in zip(names, (one, other), strict=True):
            identity = identify(spec)
            cells = {Question.TYPE: {TYPE: 1.0 / ALONE_S}}
            txn.put_application(
                Application(
                    name=name, program=identity.program, inputs={identity.input: 1.0}, measure=Measure.COMPLETION,
                    cells=cells, spreads={Question.TYPE: {TYPE: 0.05}}, type_column=TYPE, reference_vcpus=0.5,
                    run_s=ALONE_S, ended_runs=3,
                )
            )  # fmt: skip
        for name, neighbours, speed in (("one", (), 1.0), ("other", (), 1.0),
                                        ("one", ("other",), 0.3), ("other", ("one",), 0.3)):  # fmt: skip
            txn.add_co_run(
                CoRun(
                    application=name, neighbours=neighbours, type_column=TYPE, log_speed=log(speed), doubt=0.02,
                    seconds=6000.0, periods=20, observed_at=now,
                )
            )  # fmt: skip


def paused_text(home: Home, job_id: str) -> str:
    [job] = json.loads(home.run("status", job_id, "-o", "json"))
    return str(job["attempt"]["allocations"][0]["paused_text"]) if job["attempt"] else ""


def count(home: Home, job_id: str) -> int:
    (unit,) = home.path.glob(f"providers/local/instances/*/machine/units/{job_id}.*")
    return int((unit / "root" / "job" / "count").read_text() or 0)


def counts_on(home: Home, job_id: str) -> bool:
    before = count(home, job_id)
    return holds_within(lambda: count(home, job_id) > before, 1.0, 0.05)


def test_two_bad_neighbours_take_turns_over_a_restart_and_can_be_cancelled(home: Home) -> None:
    jobs = [submitted(home, name) for name in ("one", "other")]
    wait_until(lambda: all(home.job_state(each) == "running" for each in jobs), PATIENCE_S)
    with closing(Store.open(f"sqlite:///{home.path}/hcloud.db")) as store:
        known_as_bad_neighbours(store, *(store.job(each).spec for each in jobs))

    def one_is_paused() -> str:
        return next((each for each in jobs if paused_text(home, each)), "")

    first = wait_until(one_is_paused, PATIENCE_S)
    [second] = [each for each in jobs if each != first]
    assert paused_text(home, first).startswith(f"paused on inst-1 while {second} runs, for about ")
    wait_until(lambda: not counts_on(home, first) and counts_on(home, second), PATIENCE_S)
    home.started[-1].kill()
    home.started[-1].wait()
    assert not counts_on(home, first), "nothing of it depends on the daemon"
    home.daemon()
    wait_until(lambda: one_is_paused() == second, PATIENCE_S)
    wait_until(lambda: not counts_on(home, second) and counts_on(home, first), PATIENCE_S)
    home.run("cancel", "-y", second)
    wait_until(lambda: home.job_state(second) == "cancelled", PATIENCE_S)
    wait_until(lambda: not one_is_paused() and counts_on(home, first), PATIENCE_S)
    story = home.run("explain", second)
    assert f"paused on inst-1 while {first} runs" in story
    assert "resumed on inst-1" in home.run("explain", first)
