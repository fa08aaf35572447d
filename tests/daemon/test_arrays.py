"""An array in a real daemon that is killed while its tasks run."""

import csv
import io
import json
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hcloud.core.model import JOB_ENDED
from hcloud.store import Store
from tests.daemon.home import PATIENCE_S, Home
from tests.waiting import wait_until

TASKS = 48


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A deployment that has been set up; its daemons are ended with the test."""
    made = Home(tmp_path / "home")
    made.set_up()
    yield made
    made.end()


def _has_work_left(home: Home) -> bool:
    """Return whether the array has not ended, by the database that the killed daemon left."""
    with closing(Store.open(f"sqlite:///{home.path}/hcloud.db")) as store:
        return store.job("job-1").state not in JOB_ENDED


def _counts(home: Home) -> dict[str, int]:
    [array] = json.loads(home.run("status", "job-1", "-o", "json"))
    counts: dict[str, int] = array["tasks"]
    return counts


def test_each_task_of_an_array_runs_once_although_the_daemon_is_killed(home: Home) -> None:
    daemon = home.daemon()
    home.run("submit", "-y", "-q", "--vcpus", "0.2", "--array", f"0-{TASKS - 1}%16", "--", "echo task $HCLOUD_TASK_ID")
    wait_until(lambda: _counts(home)["succeeded"] >= TASKS // 8, PATIENCE_S)
    daemon.send_signal(signal.SIGKILL)
    daemon.wait()
    assert _has_work_left(home)
    home.daemon()
    wait_until(lambda: home.job_state("job-1") == "succeeded", PATIENCE_S)
    assert _counts(home)["succeeded"] == TASKS
    events = csv.DictReader(io.StringIO(home.run("events", "--kind", "unit_started", "-n", "1000", "-o", "csv")))
    started = Counter(event["job"] for event in events)
    assert started == Counter(f"job-{number}" for number in range(2, TASKS + 2))
    assert home.run("logs", f"job-1[{TASKS - 1}]") == f"task {TASKS - 1}\n"
