"""A command inside a running unit has the unit's view, user, limits and filter, and bounds of its own."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hcloud.core.errors import UnitRefused, WorkerUnreachable
from hcloud.engine.unit_commands import OUTPUT_BYTES_MAX
from hcloud.engine.wire import command_result_from_wire
from hcloud.provider import UnitSpec
from tests.engine.conftest import NAME
from tests.engine.site import SMALL, Machine, Watch, new_unit_id
from tests.machine import needs_bwrap, needs_root

LOOK = (
    "cat file; echo $GREETING $(id -un) $(pwd) $(hostname); ls /root 2>/dev/null; ls /proc | grep -c '^[0-9]'; "
    "grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; "
    "unshare -Ur true 2>/dev/null || echo no namespaces; "
    "touch /x 2>/dev/null || echo read-only; cat /proc/self/cgroup | grep -vc ':/$'; echo wrong >&2; exit 9"
)


@pytest.fixture
def unit(watch: Watch) -> UnitSpec:
    """A running unit."""
    unit = UnitSpec(
        id=new_unit_id(), instance_id=NAME, rank=0, command=("sh", "-c", "echo mine > file; echo up; sleep 300"),
        resources=SMALL, env={"GREETING": "hello"},
    )  # fmt: skip
    watch.runner.start([unit])
    watch.says(unit, "up")
    return unit


def sleepers(seconds: str) -> Iterator[str]:
    """Processes of this host that sleep for so long."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes() == f"sleep\0{seconds}\0".encode():
                yield pid


@needs_root
@needs_bwrap
def test_it_sees_and_may_do_what_the_unit_does_and_no_more(watch: Watch, unit: UnitSpec, machine: Machine) -> None:
    found = watch.runner.execute(unit.id, NAME, ("sh", "-c", LOOK), 60)
    lines = found.stdout.decode().split("\n")
    assert lines[:2] == ["mine", "hello job /job unit"]
    assert int(lines[2]) < 12  # processes of the unit only
    assert {line.split()[1].lstrip("0") for line in lines if line.startswith("Cap")} == {""}
    assert "NoNewPrivs:\t1" in lines and "Seccomp:\t2" in lines
    assert "no namespaces" in lines and "read-only" in lines
    assert (lines[-2], found.stderr, found.exit_code, found.is_cut) == ("0", b"wrong\n", 9, False)
    # In the unit's own group: it ends with the unit.
    watch.runner.execute(unit.id, NAME, ("sh", "-c", "setsid sleep 86399.7 >/dev/null 2>&1 &"), 60)
    watch.runner.stop({unit.id: NAME}, cause=None)
    watch.ended(unit)
    assert not list(sleepers("86399.7"))
    with pytest.raises(UnitRefused, match="its command does not run"):
        watch.runner.execute(unit.id, NAME, ("true",), 60)


@needs_root
@needs_bwrap
def test_its_time_and_its_output_are_bounded(watch: Watch, unit: UnitSpec) -> None:
    found = watch.runner.execute(unit.id, NAME, ("sh", "-c", "head -c 1000000 /dev/zero; sleep 300"), 1.5)
    assert found.exit_code is None and found.is_cut and len(found.stdout) == OUTPUT_BYTES_MAX
    missing = watch.runner.execute(unit.id, NAME, ("nosuch",), 60)
    assert (missing.exit_code, missing.stderr) == (127, b"hcloud: there is no command nosuch\n")
    with pytest.raises(UnitRefused, match="knows no unit"):
        watch.runner.execute("job-1.1.0", NAME, ("true",), 60)


@pytest.mark.parametrize("answer", [{}, {"content": b"", "stdout_bytes": "x", "exit_code": 0, "is_cut": False}])
def test_what_is_no_result_is_refused(answer: dict[str, object]) -> None:
    with pytest.raises(WorkerUnreachable, match="no result of a command"):
        command_result_from_wire(answer)
