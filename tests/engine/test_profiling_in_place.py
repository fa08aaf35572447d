"""A running unit is measured where it runs; whatever ends that, it goes on with its work and is never left halted."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hcloud.core.errors import UnitRefused
from hcloud.core.estimates import Measure, Reading
from hcloud.core.model import FailureCause, ProfileRequest, ProgressHook, Resources
from hcloud.engine.usage import last_progress
from hcloud.engine.wire import unit_from_wire, unit_to_wire
from hcloud.provider import UnitSpec
from tests.contract.runner_contract import COUNTS_ON
from tests.engine.conftest import NAME
from tests.engine.site import PATIENCE_S, Machine, Watch, kill, new_unit_id
from tests.engine.test_profiling import assert_nothing_left
from tests.machine import groups_named, needs_cgroups_v1, needs_stress_ng
from tests.waiting import wait_until

pytestmark = [needs_cgroups_v1, needs_stress_ng]
EXPECTED = (
    Reading(question="tolerated", column="memory-bandwidth", value=50.0, low=40.0, high=60.0),
    Reading(question="caused", column="memory-bandwidth", value=5.0, low=4.0, high=6.0),
)


@pytest.fixture
def subject(watch: Watch, machine: Machine) -> Iterator[UnitSpec]:
    """A unit that counts on; stopped at the end."""
    unit = UnitSpec(
        id=new_unit_id(),
        instance_id=NAME,
        rank=0,
        command=("/bin/sh", "-c", COUNTS_ON),
        resources=Resources(vcpus=0.5, memory_mib=128, disk_gib=0.1),
        progress=ProgressHook(file="progress"),
    )
    assert watch.runner.start([unit])[unit.id].outcome == "started"
    wait_until(lambda: done(machine, unit) > 0.0, PATIENCE_S)
    yield unit
    watch.runner.stop({unit.id: NAME}, cause=FailureCause.EVICTED)
    watch.ended(unit)


def done(machine: Machine, unit: UnitSpec) -> float:
    return last_progress(machine.unit(unit.id).path / "root" / "job", "progress", 1.0) or 0.0


def in_place(of_unit: str, *, total_s: float = 600.0, expected: tuple[Reading, ...] = EXPECTED) -> UnitSpec:
    """A unit that measures another one in place."""
    request = ProfileRequest(
        job_id="job-1",
        type_column="local/here",
        steps_vcpus=(0.5,),
        sources=("memory-bandwidth",),
        run_s=0.5,
        total_s=total_s,
        unit_id=of_unit,
        expected=expected,
    )
    return UnitSpec(
        id=new_unit_id(),
        instance_id=NAME,
        rank=0,
        command=("/bin/true",),
        resources=Resources(vcpus=1.0, memory_mib=512, disk_gib=0.5),
        progress=ProgressHook(file="progress"),
        stop_grace_s=10.0,
        profile=request,
    )


def is_halted(unit: UnitSpec) -> bool:
    """Whether the kernel holds the unit's processes."""
    states = [each / "freezer.state" for each in groups_named(unit.id)]
    return any(each.exists() and each.read_text().strip() == "FROZEN" for each in states)


def goes_on(machine: Machine, unit: UnitSpec) -> None:
    """Wait until the unit has done more than now."""
    before = done(machine, unit)
    wait_until(lambda: done(machine, unit) > before, PATIENCE_S)


def test_a_running_unit_is_measured_by_its_own_progress_and_goes_on(
    watch: Watch, machine: Machine, subject: UnitSpec
) -> None:
    for total_s in (10.0, 60.0):  # a busy machine lets nothing be measured in little time
        unit = in_place(subject.id, total_s=total_s)
        assert watch.runner.start([unit])[unit.id].outcome == "started"
        record = watch.ended(unit)
        found = record.findings
        if found is not None and not any("time for profiling was over" in note for note in found.notes):
            break
    assert (record.exit_code, record.cause) == (0, None), record
    assert found is not None and found.measure is Measure.PROGRESS, found
    [tolerated, *caused] = found.readings
    assert (tolerated.question, tolerated.column) == ("tolerated", "memory-bandwidth")
    assert len(caused) == 1 or any("the probe does not feel it" in note for note in found.notes), found
    assert not is_halted(subject)
    goes_on(machine, subject)
    assert_nothing_left(machine, unit)


def _profiler(machine: Machine, unit: UnitSpec) -> int:
    keeper = machine.keeper(unit.id)
    return int(Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()[0])


@pytest.mark.parametrize(
    "victim", [_profiler, lambda machine, unit: machine.keeper(unit.id)], ids=["profiler", "keeper"]
)
def test_a_halted_unit_goes_on_when_what_measured_it_is_killed(
    watch: Watch, machine: Machine, subject: UnitSpec, victim: Callable[[Machine, UnitSpec], int]
) -> None:
    unit = in_place(subject.id, expected=EXPECTED[1:])
    assert watch.runner.start([unit])[unit.id].outcome == "started"
    wait_until(lambda: is_halted(subject), PATIENCE_S, interval_s=0.002)
    os.kill(_profiler(machine, unit), signal.SIGSTOP)  # it cannot continue the unit any more
    wait_until(lambda: is_halted(subject), PATIENCE_S)
    kill(victim(machine, unit))
    watch.ended(unit)
    wait_until(lambda: not is_halted(subject), PATIENCE_S)
    goes_on(machine, subject)
    assert_nothing_left(machine, unit)


def test_a_unit_that_does_not_run_here_cannot_be_measured(watch: Watch) -> None:
    unit = in_place("job-404.1.0")
    assert watch.runner.start([unit])[unit.id].outcome == "started"
    record = watch.ended(unit)
    assert record.cause is FailureCause.START_REFUSED
    assert "job-404.1.0, which it was to measure, does not run here" in record.detail


def test_a_run_in_place_survives_the_wire() -> None:
    unit = in_place("job-1.1.0")
    assert unit_from_wire(unit_to_wire(unit)) == unit


def test_no_unit_id_leads_out_of_the_directory_of_units() -> None:
    with pytest.raises(UnitRefused, match="cannot be a unit id"):
        unit_from_wire(unit_to_wire(in_place("../../etc")))
