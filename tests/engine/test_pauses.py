"""A paused unit gets no CPU time, whatever halts it, and goes on after all that may happen meanwhile."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hcloud.core.clock import holds_within
from hcloud.core.errors import UnitRefused
from hcloud.core.model import FailureCause, Resources
from hcloud.engine import pause
from hcloud.engine.limits import Cgroup, CgroupV1, CgroupV2
from hcloud.engine.pause import PauseControl
from hcloud.engine.unit import Unit, write_json
from hcloud.engine.usage import descendants, tree_usage
from hcloud.provider import UnitSpec
from tests.contract.runner_contract import BURNS_CPU
from tests.engine.conftest import NAME
from tests.engine.site import PATIENCE_S, Machine, Watch, new_unit_id
from tests.machine import groups_named, needs, needs_cgroups_v1
from tests.waiting import wait_until

_MOUNTS = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
UNIFIED = next((each for each in _MOUNTS if (each / "cgroup.procs").exists()), None)
needs_cgroups_v2 = needs(
    UNIFIED is not None and os.access(UNIFIED, os.W_OK) and os.geteuid() == 0, "no writable cgroup v2 hierarchy here"
)
FREEZER = Path("/sys/fs/cgroup/freezer")


class Program:
    """Processes that count, in a group or not, and the unit that they are."""

    def __init__(self, folder: Path, kind: str) -> None:
        folder.mkdir()
        self.unit, self.group, self._made = Unit(folder), _group(kind, folder.name), list[Path]()
        command = ["sh", "-c", f"({BURNS_CPU}) & {BURNS_CPU}"]
        self.process = subprocess.Popen(command, preexec_fn=self.group.enter if self.group is not None else None)
        self.pause = PauseControl(self.unit, self.group, lambda: descendants(os.getpid()))
        wait_until(lambda: len(self.pids()) > 1, PATIENCE_S)

    def pids(self) -> set[int]:
        return {self.process.pid} | descendants(self.process.pid)

    def ask(self, paused: bool, epoch: int = 1) -> None:
        write_json(self.unit.path / "pause.json", {"paused": paused, "epoch": epoch})

    def works(self) -> bool:
        """Return whether it uses CPU time."""
        before = tree_usage(self.pids()).cpu_s
        return holds_within(lambda: tree_usage(self.pids()).cpu_s > before, 0.3, 0.05)

    def end(self) -> None:
        self.pause.resume()
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        if self.group is not None:
            wait_until(self.group.remove, PATIENCE_S)


def _group(kind: str, name: str) -> Cgroup | None:
    if kind == "v1":
        (FREEZER / name).mkdir()
        return CgroupV1({"freezer": str(FREEZER)}, name)
    if kind == "v2":
        assert UNIFIED is not None
        (UNIFIED / name).mkdir()
        return CgroupV2(UNIFIED, name)
    if kind == "no freezer":
        (FREEZER.with_name("pids") / name).mkdir()
        return CgroupV1({"pids": str(FREEZER.with_name("pids"))}, name)
    return None


KINDS = [
    pytest.param("v1", marks=needs_cgroups_v1),
    pytest.param("v2", marks=needs_cgroups_v2),
    pytest.param("no freezer", marks=needs_cgroups_v1),
    "none",
]


@pytest.fixture(params=KINDS)
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Program]:
    made = Program(tmp_path / f"hcloud-pause-{os.getpid()}-{new_unit_id()}", request.param)
    yield made
    made.end()


def test_what_is_paused_does_nothing_until_it_is_resumed(program: Program) -> None:
    assert not program.pause.hold() and program.works()
    program.ask(True)
    assert program.pause.hold() and not program.pause.hold()
    wait_until(lambda: not program.works(), PATIENCE_S)
    assert program.pause.is_on and program.pause.total_s > 0.3
    program.ask(False)
    assert program.pause.hold() and not program.pause.hold()
    wait_until(program.works, PATIENCE_S)
    total_s = program.pause.total_s
    assert program.works() and program.pause.total_s == total_s


def test_a_pause_that_lasts_too_long_ends_and_is_not_begun_again(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.ask(True)
    program.pause.hold()
    monkeypatch.setattr(pause, "PAUSED_MOST_S", 0.0)
    assert program.pause.hold() and not program.pause.hold()
    wait_until(program.works, PATIENCE_S)
    monkeypatch.undo()
    program.ask(False)
    program.pause.hold()
    program.ask(True)
    assert program.pause.hold(), "another one is"


def test_that_test_finds_a_pause_of_nothing(tmp_path: Path) -> None:
    program = Program(tmp_path / f"hcloud-pause-{os.getpid()}-{new_unit_id()}", "none")
    try:
        program.pause = PauseControl(program.unit, None, set)
        program.ask(True)
        assert program.pause.hold() and program.works()
    finally:
        program.end()


def test_who_led_before_cannot_pause_what_a_later_daemon_resumed(tmp_path: Path) -> None:
    unit = Unit(tmp_path)
    unit.request_pause(True, 3)
    unit.request_pause(False, 4)
    with pytest.raises(UnitRefused, match="epoch 4, not 3"):
        unit.request_pause(True, 3)
    assert not unit.is_to_pause


# ---------------------------------------------------------------------------------------------------- on a real machine
@pytest.fixture
def unit(watch: Watch, machine: Machine) -> Iterator[UnitSpec]:
    """A unit that burns CPU time, paused; stopped at the end."""
    unit = UnitSpec(
        id=new_unit_id(),
        instance_id=NAME,
        rank=0,
        command=("/bin/sh", "-c", BURNS_CPU),
        resources=Resources(vcpus=0.5, memory_mib=128, disk_gib=0.1),
        stop_grace_s=2.0,
    )
    assert watch.runner.start([unit])[unit.id].outcome == "started"
    watch.running(unit)
    assert watch.runner.pause({unit.id: (NAME, True)})[unit.id].outcome == "done"
    wait_until(lambda: paused_s(watch, unit) > 0.0, PATIENCE_S)
    yield unit
    watch.runner.stop({unit.id: NAME}, cause=FailureCause.EVICTED)
    watch.ended(unit)


def paused_s(watch: Watch, unit: UnitSpec) -> float:
    report = watch.report(unit)
    return report.sample.paused_s if report is not None and report.sample is not None else 0.0


def cpu_s(machine: Machine, unit: UnitSpec) -> float:
    return tree_usage(descendants(machine.keeper(unit.id))).cpu_s


def does_nothing(machine: Machine, unit: UnitSpec) -> bool:
    before = cpu_s(machine, unit)
    return not holds_within(lambda: cpu_s(machine, unit) > before, 0.5, 0.05)


def _freezer_states(unit: UnitSpec) -> list[str]:
    files = [group / "freezer.state" for group in groups_named(unit.id) if group.name == unit.id]
    return [each.read_text().strip() for each in files if each.exists()]


@needs_cgroups_v1
def test_the_kernel_holds_it(machine: Machine, unit: UnitSpec) -> None:
    assert _freezer_states(unit) == ["FROZEN"]
    assert does_nothing(machine, unit)


def test_it_stays_paused_when_its_worker_dies_and_is_resumed_by_the_next_one(
    watch: Watch, machine: Machine, unit: UnitSpec
) -> None:
    machine.supervisor.kill()
    machine.supervisor.wait()
    assert does_nothing(machine, unit)
    machine.start()
    watch.registered(NAME)
    before_s = paused_s(watch, unit)
    wait_until(lambda: paused_s(watch, unit) > before_s, PATIENCE_S)
    assert does_nothing(machine, unit)

    def resumed() -> bool:
        return watch.runner.pause({unit.id: (NAME, False)})[unit.id].outcome == "done"

    wait_until(resumed, PATIENCE_S)
    wait_until(lambda: not does_nothing(machine, unit), PATIENCE_S)


def test_it_is_paused_again_where_something_else_let_it_run(machine: Machine, unit: UnitSpec) -> None:
    let_run: Callable[[Path], object] = lambda group: (group / "freezer.state").write_text("THAWED")  # noqa: E731
    for group in groups_named(unit.id):
        if (group / "freezer.state").exists() and group.name == unit.id:
            let_run(group)
    wait_until(lambda: does_nothing(machine, unit), PATIENCE_S)


def test_no_command_is_run_in_it(watch: Watch, unit: UnitSpec) -> None:
    with pytest.raises(UnitRefused, match=r"paused|can be run only where"):
        watch.runner.execute(unit.id, NAME, ["true"], 5.0)


def test_its_keeper_killed_takes_it_along(watch: Watch, machine: Machine, unit: UnitSpec) -> None:
    os.kill(machine.keeper(unit.id), signal.SIGKILL)
    assert watch.ended(unit).cause is not None
    assert not groups_named(unit.id)
