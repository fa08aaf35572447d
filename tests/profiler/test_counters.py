"""Event counting, tested with a kernel event that exists everywhere; hardware events are read the same way."""

import os
import subprocess
from collections.abc import Iterator

import pytest

from hcloud.core.errors import Unmeasurable
from hcloud.core.estimates import Measure
from hcloud.engine.host import EngineHost
from hcloud.profiler.counters import TASK_CLOCK, Countable, can_count, counted
from hcloud.profiler.measure import Bench, Subject
from tests.machine import needs
from tests.waiting import wait_until

pytestmark = needs(can_count(TASK_CLOCK), "this kernel counts nothing for us")
TENTH_S = 1e8
"""In nanoseconds, as the task clock counts."""


@pytest.fixture
def idle_shell() -> Iterator[subprocess.Popen[str]]:
    """A shell that waits for a line, then starts a child that works forever."""
    line = ["/bin/sh", "-c", "read line; sh -c 'while :; do :; done'"]
    shell = subprocess.Popen(line, stdin=subprocess.PIPE, text=True, start_new_session=True)
    yield shell
    os.killpg(shell.pid, 9)
    shell.communicate()


def test_work_of_children_that_are_started_later_is_counted(idle_shell: subprocess.Popen[str]) -> None:
    with counted([idle_shell.pid], TASK_CLOCK) as counter:
        before = counter.total()
        assert idle_shell.stdin is not None
        idle_shell.stdin.write("go\n")
        idle_shell.stdin.flush()
        wait_until(lambda: counter.total() > before + TENTH_S, timeout_s=60)


def test_who_does_nothing_is_counted_as_nothing(idle_shell: subprocess.Popen[str]) -> None:
    with counted([idle_shell.pid], TASK_CLOCK) as counter:
        assert counter.total() < TENTH_S


def test_program_that_tells_nothing_is_measured_by_its_instructions_where_they_are_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for user in ("first_look", "subject"):  # the task clock stands in for a counter that virtual machines lack
        monkeypatch.setattr(f"hcloud.profiler.{user}.INSTRUCTIONS", TASK_CLOCK)
    spinning = Subject(
        name="spin", command=("/bin/sh", "-c", "while :; do :; done"), workdir=tmp_path_factory.mktemp("spin")
    )
    with Bench(spinning, EngineHost(), run_s=0.5, deadline_s=60.0) as bench:
        rate = bench.rate(1.0)
    assert rate.measure is Measure.INSTRUCTIONS
    assert rate.value > TENTH_S
    by_cpu_time = [note for note in bench.notes if "CPU time" in note and not note.startswith("the host took")]
    assert by_cpu_time == []


def test_what_this_machine_does_not_count_is_told() -> None:
    unknown = Countable(name="unicorns", kind=1, number=999)
    assert not can_count(unknown)
    with pytest.raises(Unmeasurable, match="this machine does not count unicorns: "):
        with counted([os.getpid()], unknown):
            pass


def test_processes_that_ended_cannot_be_counted() -> None:
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    with pytest.raises(Unmeasurable, match="task-clock could not be counted: the program had ended"):
        with counted([ended.pid], TASK_CLOCK):
            pass
