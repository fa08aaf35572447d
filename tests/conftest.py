"""Settings for every test: same examples in every run, a clean environment, and no process left behind."""

import logging
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from lab.soak.planted_defects import Planted
from tests.waiting import wait_until
from tests.warm import ALONE, PAPERS, WARM

# Databases to test on, and a loud line at the end of the run when one of them is not installed.
pytest_plugins = ["tests.databases", "tests.workers"]

_COMMON = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("hcloud", derandomize=True, **_COMMON)
settings.register_profile("explore", derandomize=False, **_COMMON)  # `make soak`: other examples each time
settings.load_profile("hcloud")

# Who is started in the background by a shell without job control ignores Ctrl-C, and so does all that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# What tests make for other users is open to them, as a test says, whoever runs the tests.
os.umask(0o022)

for _name in [name for name in os.environ if name.startswith("HCLOUD_")]:
    del os.environ[_name]

# The files that take longest, longest first: begun first, none of them is still running when all else has ended.
LONGEST = (
    "tests/daemon/test_daemon_process.py",
    "tests/engine/test_isolation.py",
    "tests/contract/test_runner_gateway.py",
    "tests/cli/test_simulate.py",
    "tests/profiler/test_measure.py",
    "tests/lab/test_soak.py",
    "tests/engine/test_faults.py",
    "tests/engine/test_profiling.py",
    "tests/profiler/test_validation.py",
    "tests/cli/test_entry.py",
    "tests/house/test_doc_examples.py",
    "tests/upgrade/test_previous_release.py",
    "tests/providers/ec2/test_profiling.py",
    "tests/providers/gce/test_profiling.py",
    "tests/providers/gce/test_whole_runs.py",
    "tests/chaos/test_checks_can_fail.py",
    "tests/contract/test_provider_ec2.py",
    "tests/profiler/test_bootstrap.py",
    "tests/cli/test_jobs.py",
    "tests/chaos/test_kill_anywhere.py",
    "tests/chaos/test_kill_while_profiling.py",
    "tests/chaos/test_every_call.py",
    "tests/providers/test_mock_properties.py",
    "tests/lab/test_papers_command.py",
    "tests/providers/test_local_slices.py",
    "tests/planner/test_known_properties.py",
    "tests/api/test_fuzz.py",
    "tests/store/test_processes.py",
    "tests/engine/test_profiling_in_place.py",
    "tests/threats/test_wire.py",
    "tests/threats/test_stopped_agent.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; the others keep their order."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))


SESSION_VARIABLE = "HCLOUD_TEST_SESSION"
# Helpers of Python's own multiprocessing; they end with the process that started them.
_PYTHON_HELPERS = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")


def processes_of_session(token: str) -> dict[int, str]:
    """Command lines, by process id, of all other processes whose environment carries the test session's token."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment, command = (entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()
        except OSError:  # ended meanwhile, or of another user
            continue
        ours = f"{SESSION_VARIABLE}={token}".encode() in environment.split(b"\0")
        if ours and command and not any(helper in command for helper in _PYTHON_HELPERS):
            found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def _state(pid: int) -> str:
    """What helps to find out who started a process and what it waits for."""
    folder = Path(f"/proc/{pid}")
    try:
        state, parent, group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
        return f"{pid} (state {state}, parent {parent}, group {group}, in {(folder / 'wchan').read_text()})"
    except OSError:
        return f"{pid} (ended meanwhile)"


class _FailedPlans(logging.Handler):
    """Keeps what the daemon's cycle says of plans that failed, unless a test planted it."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        defect = record.exc_info[1] if record.exc_info else None
        is_planning = record.msg.startswith(("planning failed;", "classification failed;"))
        told = is_planning or "a defect;" in record.msg
        planted = isinstance(defect, Planted) or isinstance(getattr(defect, "__cause__", None), Planted)
        if told and not planted:
            self.told.append(logging.Formatter().format(record))


@pytest.fixture(autouse=True)
def no_plan_failed() -> Iterator[None]:
    """Planning goes round its own defects, so that a test would not notice one."""
    heard = _FailedPlans()
    logging.getLogger("hcloud").addHandler(heard)
    yield
    logging.getLogger("hcloud").removeHandler(heard)
    assert not heard.told, heard.told[0]


@pytest.fixture(scope="session", autouse=True)
def no_process_left_running() -> Iterator[None]:
    """Everything a test starts has ended when the tests end; what still runs is named."""
    token = uuid.uuid4().hex
    os.environ[SESSION_VARIABLE] = token
    yield
    for program in (WARM, PAPERS, ALONE):
        program.close()
    try:
        wait_until(lambda: not processes_of_session(token), timeout_s=60)
    except TimeoutError:
        left = processes_of_session(token)
        pytest.fail("tests left processes running: " + "; ".join(f"{_state(pid)} {line}" for pid, line in left.items()))
