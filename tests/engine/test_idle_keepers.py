"""Keepers that keep one unit after the other, as worker and keeper see each other over their socket."""

import os
import selectors
import signal
import socket
from pathlib import Path

import pytest

from hcloud.core.model import FailureCause, Resources
from hcloud.engine import idle_keepers
from hcloud.engine.idle_keepers import GivenUnit, IdleKeepers, next_unit, say_begun
from hcloud.engine.prepared_roots import PreparedRoot
from hcloud.engine.unit import Unit, UnitDirectories
from hcloud.engine.wire import unit_to_wire
from hcloud.provider import ExitRecord, UnitSpec
from tests.engine.conftest import NAME
from tests.engine.site import Machine, Watch, new_unit_id
from tests.machine import needs_cgroups_v1
from tests.waiting import wait_until


def spec_of(name: str, **changes: object) -> UnitSpec:
    plain: dict[str, object] = {"command": ("true",), "env": {"KEY": "secret"}, "resources": Resources(memory_mib=64)}
    return UnitSpec(id=name, instance_id=NAME, rank=0, **{**plain, **changes})  # type: ignore[arg-type]


class Bench:
    """A worker's side and a keeper's, in one process."""

    def __init__(self, folder: Path) -> None:
        self.units, self.keepers = UnitDirectories(folder), IdleKeepers(selectors.DefaultSelector())

    def keeper(self, *, idle: bool = True) -> tuple[socket.socket, socket.socket]:
        """Return the worker's socket and that of a new keeper."""
        ours, theirs = socket.socketpair()
        self.keepers.add(ours, Unit(Path("/nowhere")))
        if idle:
            theirs.sendall(b"i")
            self.keepers.take(ours)
        return ours, theirs

    def give(self, name: str, prepared: PreparedRoot | None = None) -> tuple[Unit, bool]:
        """Make a unit and give it to an idle keeper; return whether one took it. This process lets go of its lock."""
        created = self.units.create(name, {})
        assert created is not None
        given = self.keepers.give(GivenUnit(*created, spec_of(name), 61003, prepared), unit_to_wire(spec_of(name)))
        os.close(created[1])
        return created[0], given


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_idle_keeper_is_given_a_unit_with_its_lock_and_its_environment(bench: Bench) -> None:
    _, theirs = bench.keeper()
    root = PreparedRoot(Path("/roots/1"), ("/usr", "/opt"))
    unit, given = bench.give("u", root)
    assert given and unit.kept
    found = next_unit(theirs)
    assert found is not None and unit.kept
    assert (found.unit.path, found.spec, found.uid, found.prepared) == (unit.path, spec_of("u"), 61003, root)
    assert not os.get_inheritable(found.lock)
    os.close(found.lock)
    assert not unit.kept


def test_busy_keepers_and_those_that_were_killed_are_given_nothing(bench: Bench) -> None:
    bench.keeper(idle=False)
    assert not bench.give("u")[1]
    _, killed = bench.keeper()
    killed.close()
    unit, given = bench.give("v")
    assert not given and not unit.kept
    ours, ended = bench.keeper(idle=False)
    ended.close()
    bench.keepers.take(ours)
    assert not bench.give("w")[1]
    bench.keepers.take(ours)  # noticed twice


def test_keeper_that_does_not_read_is_given_up_and_keeps_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_keepers, "SEND_TIMEOUT_S", 0.01)
    _, theirs = bench.keeper()
    huge = {**unit_to_wire(spec_of("u")), "env": {"KEY": "x" * (4 << 20)}}
    created = bench.units.create("u", {})
    assert created is not None
    assert not bench.keepers.give(GivenUnit(*created, spec_of("u"), 1, None), huge)
    assert next_unit(theirs) is None
    os.close(created[1])


def test_idle_keepers_end_after_a_while_and_beyond_a_number(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_keepers, "IDLE_MAX", 1)
    _, first = bench.keeper()
    _, second = bench.keeper()
    assert next_unit(second) is None
    bench.keepers.end_old()
    assert bench.give("u")[1] and next_unit(first) is not None
    monkeypatch.setattr(idle_keepers, "KEPT_IDLE_S", 0.0)
    _, third = bench.keeper()
    bench.keepers.end_old()
    assert next_unit(third) is None


def run(watch: Watch, machine: Machine, code: str) -> tuple[int, ExitRecord]:
    """Run a Python program as a unit; return the id of the process that kept it, and how it ended."""
    unit = spec_of(new_unit_id(), command=("python3", "-Sc", code), max_runtime_s=60.0)
    assert watch.runner.start([unit])[unit.id].outcome == "started"
    record = watch.ended(unit)
    wait_until(lambda: not machine.unit(unit.id).kept, timeout_s=60)
    return machine.keeper(unit.id), record


@needs_cgroups_v1
def test_keeper_keeps_one_unit_after_the_other_and_each_has_its_own_end(watch: Watch, machine: Machine) -> None:
    pid, first = run(watch, machine, "import sys; large = b'x' * (40 << 20); sys.exit(7)")

    def next_of_the_same() -> ExitRecord | None:
        """Return the end of another unit if the same process kept it: the worker may not know yet that it is idle."""
        next_pid, record = run(watch, machine, "pass")
        return record if next_pid == pid else None

    second = wait_until(next_of_the_same, timeout_s=60)
    assert second is not None
    assert (first.exit_code, first.cause, second.exit_code, second.cause) == (7, FailureCause.EXIT_CODE, 0, None)
    assert second.memory_mib_max is not None and second.memory_mib_max < 40


@needs_cgroups_v1
def test_idle_keepers_end_with_their_worker(watch: Watch, machine: Machine) -> None:
    keeper = Path(f"/proc/{run(watch, machine, 'pass')[0]}/cmdline")
    assert keeper.read_bytes()
    machine.kill()
    wait_until(lambda: not keeper.exists() or not keeper.read_bytes(), timeout_s=60)  # a zombie has no command line


def test_keeper_is_starting_until_its_unit_has_begun_or_is_over_or_time_has_passed(bench: Bench) -> None:
    ours, theirs = bench.keeper(idle=False)
    assert bench.keepers.starting(60.0) == 1 and bench.keepers.starting(0.0) == 0
    say_begun(theirs)
    assert bench.keepers.take(ours) is None and bench.keepers.starting(60.0) == 0
    theirs.sendall(b"i")
    kept = bench.keepers.take(ours)
    assert kept is not None and kept.path == Path("/nowhere")
    assert bench.give("u")[1] and bench.keepers.starting(60.0) == 1


@needs_cgroups_v1
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_units_that_wait_for_their_turn_outlive_a_restart_of_the_worker_or_never_ran(
    watch: Watch, machine: Machine, end: signal.Signals
) -> None:
    units = [spec_of(new_unit_id(), command=("sleep", "600"), stop_grace_s=1.0) for _ in range(8)]
    watch.registered(NAME)
    files = [machine.unit(each.id) for each in units]
    missing = list(units)
    while missing:  # an outcome other than "started" is to be asked for again, as the daemon does
        outcomes = watch.runner.start(missing)
        assert "refused" not in {each.outcome for each in outcomes.values()}, outcomes
        missing = [each for each in missing if outcomes[each.id].outcome != "started"]
    machine.supervisor.send_signal(end)
    machine.supervisor.wait()
    wait_until(lambda: all(each.keeper_pid or not each.kept for each in files), timeout_s=60)
    waited = [each for each, unit in zip(units, files, strict=True) if not unit.kept]
    assert len(waited) == 0 if end is signal.SIGTERM else len(waited) < len(units)
    machine.start()
    for each in units:
        if each in waited:
            record = watch.ended(each)
            assert (record.cause, record.exit_code) == (FailureCause.INSTANCE_LOST, None)
        else:
            watch.running(each)
    watch.runner.stop({each.id: NAME for each in units}, cause=None)
    for each in units:
        watch.ended(each)
