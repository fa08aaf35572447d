"""Many tasks in a unit, with real programs: whatever of HCloud is killed, each runs once and none is lost."""

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from hcloud.core.model import JOB_ENDED, EventKind
from hcloud.store import Store
from tests.daemon.home import PATIENCE_S, Home
from tests.waiting import wait_until

TASKS = 60
SCRIPT = "sleep 0.05; echo task $HCLOUD_TASK_ID; [ $HCLOUD_TASK_ID != 41 ] || exit 3"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A deployment that runs real programs."""
    tmp_path.chmod(0o755)
    made = Home(tmp_path / "home")
    made.set_up_local()
    yield made
    made.run("destroy", "--all", "--yes", "--wait", str(PATIENCE_S))
    made.end()


def kill(home: Home, part: str) -> None:
    """Kill the processes of this home whose command line has ``part``."""
    killed = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            command = Path(f"/proc/{name}/cmdline").read_bytes().decode().replace("\0", " ")
            if part in command and str(home.path) in command:
                os.kill(int(name), signal.SIGKILL)
                killed += 1
    assert killed, f"there is no process of {part}"


def test_each_task_of_a_unit_runs_once_although_all_of_hcloud_is_killed(home: Home) -> None:
    daemon = home.daemon()
    size = ["--vcpus", "0.5", "--memory", "64MiB", "--disk", "100MiB"]
    home.run("submit", "-y", "-q", *size, "--array", f"0-{TASKS - 1}", "--tasks-per-unit", "30", "--", SCRIPT)
    with closing(Store.open(f"sqlite:///{home.path}/hcloud.db")) as store:

        def ended() -> int:
            """Return how many tasks have ended."""
            record = store.job("job-1").task_record
            assert record is not None
            return record.ended

        wait_until(lambda: store.iter_events(kinds=[EventKind.UNIT_STARTED]), PATIENCE_S)
        wait_until(lambda: ended() > 4, PATIENCE_S)
        kill(home, "hcloud.engine.link")
        kill(home, "hcloud.engine.gateway")
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()
        home.daemon()
        wait_until(lambda: store.job("job-1").state in JOB_ENDED, PATIENCE_S)
        record = store.job("job-1").task_record
    assert record is not None and record.failed == ((41, 41),)
    assert record.succeeded == ((0, 40), (42, TASKS - 1))
    lines = Counter(line for path in (home.path / "logs").glob("*.stdout") for line in path.read_text().splitlines())
    assert lines == Counter(f"task {each}" for each in range(TASKS))
    assert home.run("logs", "job-1[7]") == "task 7\n"
    [task] = json.loads(home.run("status", "job-1[7]", "-o", "json"))
    assert (task["state"], task["attempts_made"]) == ("succeeded", 1)
    assert "failed with exit code 3" in home.run("explain", "job-1[41]")
