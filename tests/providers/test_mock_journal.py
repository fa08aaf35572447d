"""The mock cloud and the fake engine in files: shared by processes, and whole after a kill -9 at any moment."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hcloud.core.clock import ManualClock
from hcloud.core.errors import InsufficientCapacity
from hcloud.fake_runner.runner import FakeRunner, work_from
from hcloud.provider import UnitState
from providers.mock import Fault, FaultKind, MockProvider
from providers.mock.journal import FileJournal
from tests.providers.clouds import AT_ONCE, OWNER, cloud_on, request_for, unit_on
from tests.waiting import wait_until

# Launches machines and starts a unit on each until it is killed; says which after each.
BUSY = """
import sys
from hcloud.core.clock import ManualClock
from hcloud.fake_runner.runner import FakeRunner
from tests.providers.clouds import AT_ONCE, cloud_on, request_for, unit_on
clock = ManualClock()
cloud = cloud_on(clock, sys.argv[1], persist=True, **AT_ONCE)
runner = FakeRunner([cloud], clock)
for number in range(int(sys.argv[2]), int(sys.argv[3])):
    machine = cloud.launch(request_for(cloud, number, clock.now()))
    unit = unit_on(f"inst-{number}", unit_id=f"job-{number}.1.0")
    outcome = runner.start([unit])[unit.id].outcome
    print(number, machine.provider_id, outcome, flush=True)
"""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def busy_process(state_dir: Path, first: int, last: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BUSY, str(state_dir), str(first), str(last)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize("after_lines", [1, 7, 40])
def test_cloud_and_engine_are_whole_after_a_kill(tmp_path: Path, clock: ManualClock, after_lines: int) -> None:
    with busy_process(tmp_path, 0, 1_000_000) as process:
        assert process.stdout is not None
        told = [process.stdout.readline().split() for _ in range(after_lines)]
        os.kill(process.pid, signal.SIGKILL)
        told += [line.split() for line in process.stdout if line.endswith("\n")]
    cloud = cloud_on(clock, tmp_path, persist=True, **AT_ONCE)
    runner = FakeRunner([cloud], clock)
    machines = {each.instance_id: each.provider_id for each in cloud.machines(clock.now())}
    started = [each.unit_id for each in runner.starts()]
    assert {f"inst-{number}": provider_id for number, provider_id, _ in told}.items() <= machines.items()
    assert {f"job-{number}.1.0" for number, _, _ in told} <= set(started)
    assert len(machines) <= len(told) + 1 and len(started) == len(set(started)) <= len(machines)
    view = runner.observe()
    assert {each.instance_id for each in view.workers} == set(machines)
    assert sum(len(each.units) for each in view.workers) == len(started)


def test_processes_that_launch_the_same_tokens_share_the_machines(tmp_path: Path, clock: ManualClock) -> None:
    with busy_process(tmp_path, 0, 30) as one, busy_process(tmp_path, 0, 30) as other:
        outputs = [process.communicate(timeout=60)[0] for process in (one, other)]
    assert outputs[0] == outputs[1]
    cloud = cloud_on(clock, tmp_path, persist=True, **AT_ONCE)
    assert len(cloud.machines(clock.now())) == 30
    assert len(FakeRunner([cloud], clock).starts()) == 30


def test_injected_fault_is_met_once_by_whichever_process_calls(tmp_path: Path, clock: ManualClock) -> None:
    one, other = (cloud_on(clock, tmp_path, persist=True) for _ in range(2))
    one.inject(Fault(kind=FaultKind.RUN_OUT))
    outcomes = []
    for cloud in (other, one, other):
        try:
            outcomes.append(cloud.launch(request_for(cloud, 1, clock.now())).provider_id)
        except InsufficientCapacity:
            outcomes.append("out of stock")
    assert outcomes == ["out of stock", "mock-000001", "mock-000001"]


def test_state_file_is_found_below_the_state_directory(tmp_path: Path, clock: ManualClock) -> None:
    cloud = cloud_on(clock, tmp_path, state_file="shared/cloud.rows")
    cloud.launch(request_for(cloud, 1, clock.now()))
    assert (tmp_path / "shared" / "cloud.rows").stat().st_size > 0


def test_cloud_in_memory_writes_nothing(tmp_path: Path, clock: ManualClock) -> None:
    cloud: MockProvider = cloud_on(clock, tmp_path)
    cloud.launch(request_for(cloud, 1, clock.now()))
    assert list(tmp_path.iterdir()) == []


def test_restarted_cloud_keeps_expiry_notice_and_end(tmp_path: Path, clock: ManualClock) -> None:
    cloud = cloud_on(clock, tmp_path, persist=True, **AT_ONCE)
    machines = [cloud.launch(request_for(cloud, number, clock.now())) for number in range(3)]
    cloud.set_expiry({"inst-0": clock.now() + 50})
    cloud.preempt(machines[1].provider_id, 70)
    cloud.terminate([machines[2].provider_id])
    before = cloud.instances(OWNER)
    again = cloud_on(clock, tmp_path, persist=True, **AT_ONCE)
    assert again.instances(OWNER) == before
    clock.advance(60)
    assert set(again.running(clock.now())) == set(cloud.running(clock.now())) == {"inst-1"}


def test_restarted_engine_keeps_stops_fences_and_forgotten_units(tmp_path: Path, clock: ManualClock) -> None:
    cloud = cloud_on(clock, tmp_path, persist=True, **AT_ONCE)
    cloud.launch(request_for(cloud, 1, clock.now()))
    runner = FakeRunner([cloud], clock)
    units = [unit_on("inst-1", unit_id=f"job-{number}.1.0") for number in range(3)]
    runner.start(units[:2])
    runner.stop({units[0].id: "inst-1", units[2].id: "inst-1"}, cause=None)
    runner.forget({units[0].id: "inst-1"})
    again = FakeRunner([cloud], clock)
    assert again.observe() == runner.observe()
    (worker,) = again.observe().workers
    assert [(unit.id, unit.state) for unit in worker.units] == [
        ("job-1.1.0", UnitState.RUNNING),
        ("job-2.1.0", UnitState.ENDED),
    ]
    assert [each.outcome for each in again.start(units).values()] == ["started", "started", "refused"]
    assert len(again.starts()) == 2


def test_unit_with_every_field_set_reads_back_the_same(tmp_path: Path, clock: ManualClock) -> None:
    cloud = cloud_on(clock, tmp_path, persist=True, **AT_ONCE)
    cloud.launch(request_for(cloud, 1, clock.now()))
    unit = unit_on("inst-1", "echo $A $HCLOUD_RANK", env={"A": "a"}, rank=1, peers=("inst-0", "inst-1"), setup="true")
    FakeRunner([cloud], clock, work=work_from({})).start([unit])
    clock.advance(1)
    chunk = FakeRunner([cloud], clock).logs(unit.id, "inst-1", "stdout", 0, 100)
    assert (chunk.content, chunk.end) == (b"a 1\n", True)


# ------------------------------------------------------------------------------------------------------------- journal
def rows_of(journal: FileJournal) -> dict[str, object]:
    with journal.hold() as news:
        return dict(news)


def test_journal_gives_each_holder_what_others_wrote(tmp_path: Path) -> None:
    one, other = FileJournal(tmp_path / "j"), FileJournal(tmp_path / "j")
    with one.hold():
        one.write({"a": 1, "b": 2})
        one.write({"a": 3})
    assert rows_of(one) == {}
    assert rows_of(other) == {"a": 3, "b": 2}
    assert rows_of(other) == {}


@pytest.mark.parametrize("torn_at", range(1, 12))
def test_torn_write_never_happened_and_the_next_one_is_whole(tmp_path: Path, torn_at: int) -> None:
    path = tmp_path / "j"
    whole = json.dumps({"b": [1, 2]}).encode() + b"\n"
    path.write_bytes(b'{"a":1}\n' + whole[:torn_at])
    journal = FileJournal(path)
    assert rows_of(journal) == {"a": 1}
    with journal.hold():
        journal.write({"c": 3})
    assert rows_of(FileJournal(path)) == {"a": 1, "c": 3}


def test_held_journal_keeps_other_processes_out(tmp_path: Path) -> None:
    path, ready = tmp_path / "j", tmp_path / "ready"
    script = (
        "import sys; from pathlib import Path; from providers.mock.journal import FileJournal\n"
        "journal = FileJournal(Path(sys.argv[1])); Path(sys.argv[2]).touch()\n"
        "with journal.hold() as news: journal.write({'seen': sorted(news)})"
    )
    journal = FileJournal(path)
    with journal.hold():
        process = subprocess.Popen([sys.executable, "-c", script, str(path), str(ready)], cwd=Path(__file__).parents[2])
        wait_until(ready.exists, timeout_s=60)
        journal.write({"first": 1})
        journal.write({"second": 2})
    assert process.wait(timeout=60) == 0
    assert rows_of(journal) == {"seen": ["first", "second"]}
