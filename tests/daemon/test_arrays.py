"""An array in a real daemon that is killed while its tasks run."""

import json
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hcloud.core.model import JOB_ENDED, EventKind
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


def _ended(store: Store) -> int:
    """Return how many tasks have ended, by the database: asking the command line costs as much as ten tasks."""
    array = store.job("job-1")
    assert array.task_record is not None
    return array.task_record.ended


def test_each_task_of_an_array_runs_once_although_the_daemon_is_killed(home: Home) -> None:
    daemon = home.daemon()
    home.run(
        "submit",
        "-y",
        "-q",
        "--vcpus",
        "0.2",
        "--array",
        f"0-{TASKS - 1}%16",
        "--tasks-per-unit",
        "1",
        "--",
        "echo task $HCLOUD_TASK_ID",
    )
    with closing(Store.open(f"sqlite:///{home.path}/hcloud.db")) as store:
        wait_until(lambda: _ended(store) >= TASKS // 8, PATIENCE_S)
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()
        assert store.job("job-1").state not in JOB_ENDED
        home.daemon()
        wait_until(lambda: store.job("job-1").state in JOB_ENDED, PATIENCE_S)
        started = Counter(event.job_id for event in store.iter_events(kinds=[EventKind.UNIT_STARTED]))
    [array] = json.loads(home.run("status", "job-1", "-o", "json"))
    assert (array["state"], array["tasks"]["succeeded"]) == ("succeeded", TASKS)
    assert started == Counter(f"job-{number}" for number in range(2, TASKS + 2))
    assert home.run("logs", f"job-1[{TASKS - 1}]") == f"task {TASKS - 1}\n"
