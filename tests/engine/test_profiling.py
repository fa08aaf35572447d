"""Whatever ends a profiling run, nothing of it is left on the machine, and what it found by then is told."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hcloud.core.estimates import Measure
from hcloud.core.model import FailureCause, MetricsHook, ProfileRequest, ProgressHook, Resources
from hcloud.engine.profiling import scratch_of
from hcloud.engine.worker import _marked
from hcloud.provider import ExitRecord, UnitSpec
from tests.contract.runner_contract import COUNTS_ON
from tests.engine.conftest import NAME
from tests.engine.site import PATIENCE_S, Machine, Watch, kill, new_unit_id
from tests.engine.tiny_image import containers_of, tiny_image
from tests.machine import groups_named, needs_cgroups_v1, needs_podman, needs_stress_ng
from tests.waiting import wait_until

GROUPS = Path("/sys/fs/cgroup")


LONG_S = 600.0
SIZE_IN_TIME_S = 24.0
"""Time for a run of which a size, with its part of this, is measured well before a test's patience is over."""


def profiled(
    script: str, *, sources: tuple[str, ...] = (), run_s: float = 1.0, total_s: float = LONG_S, **changes: object
) -> UnitSpec:
    """A unit that is measured at half a CPU; with sources it takes long."""
    request = ProfileRequest(
        job_id="job-1",
        type_column="local/here",
        steps_vcpus=(0.5,),
        sources=sources,
        run_s=run_s,
        total_s=total_s,
    )
    settings = {
        "id": new_unit_id(),
        "instance_id": NAME,
        "rank": 0,
        "command": ("/bin/sh", "-c", script),
        "resources": Resources(vcpus=1.0, memory_mib=512, disk_gib=0.5),
        "progress": ProgressHook(file="progress"),
        "stop_grace_s": 10.0,
        "profile": request,
    }
    return UnitSpec(**{**settings, **changes})  # type: ignore[arg-type]


def in_time(measured: Callable[[float], ExitRecord]) -> ExitRecord:
    """How a measured unit ended; it is given more time where a busy machine let nothing be measured in little."""
    record = measured(5.0)
    late = any("time for profiling was over" in note for note in (record.findings.notes if record.findings else ()))
    return measured(60.0) if late else record


def begun(watch: Watch, machine: Machine, unit: UnitSpec) -> None:
    """Start it and wait until a copy of its program is at work, or was while nobody looked."""
    assert watch.runner.start([unit])[unit.id].outcome == "started"
    wait_until(lambda: _marked(machine.unit(unit.id)) or machine.unit(unit.id).ended, PATIENCE_S)


def groups_of(unit: UnitSpec) -> list[Path]:
    """Control groups of the unit, and inside it."""
    return groups_named(unit.id)


def assert_nothing_left(machine: Machine, unit: UnitSpec) -> None:
    """No process, group, mount or file of copies, loads or probes."""
    scratch = scratch_of(machine.unit(unit.id))
    wait_until(lambda: not _marked(machine.unit(unit.id)), PATIENCE_S)
    wait_until(lambda: not groups_of(unit), PATIENCE_S)
    wait_until(lambda: not scratch.exists(), PATIENCE_S)
    wait_until(lambda: not _with_argument(str(scratch)), PATIENCE_S)
    assert str(scratch) not in Path("/proc/self/mounts").read_text()


def _with_argument(text: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text.encode() in path.read_bytes():
                found.append(str(path))
        except OSError:
            continue
    return found


def test_copies_see_what_setup_made_and_change_nothing(watch: Watch, machine: Machine) -> None:
    script = f"test -f made && echo mine > theirs && {COUNTS_ON}"
    units: list[UnitSpec] = []

    def measured(total_s: float) -> ExitRecord:
        units.append(profiled(script, setup="echo hello > made", total_s=total_s))
        begun(watch, machine, units[-1])
        return watch.ended(units[-1])

    record = in_time(measured)
    assert record.findings is not None and record.findings.measure is Measure.PROGRESS, record
    job = machine.unit(units[-1].id).path / "root" / "job"
    assert [path.name for path in job.iterdir()] == ["made"]
    assert "step 0.5 vCPU" in watch.output(units[-1])
    assert_nothing_left(machine, units[-1])


def test_requests_of_a_service_count_as_its_job_promises_them(watch: Watch) -> None:
    probe = """echo '{"requests_per_s": 10, "latency_ms": {"99": 25}}'"""
    hook = MetricsHook(probe=("/bin/sh", "-c", probe))

    def measured(total_s: float) -> ExitRecord:
        unit = profiled("while :; do sleep 0.05; done", progress=None, metrics=hook, total_s=total_s)
        assert unit.profile is not None
        unit = replace(unit, profile=replace(unit.profile, promised_ms=20.0))
        assert watch.runner.start([unit])[unit.id].outcome == "started"
        return watch.ended(unit)

    record = in_time(measured)
    assert record.findings is not None and record.findings.measure is Measure.REQUESTS, record
    assert [each.value for each in record.findings.readings if each.question == "type"] == [pytest.approx(8.0)]


def test_failing_setup_ends_the_unit_before_anything_is_measured(watch: Watch) -> None:
    unit = profiled(COUNTS_ON, setup="exit 9")
    assert watch.runner.start([unit])[unit.id].outcome == "started"
    record = watch.ended(unit)
    assert (record.exit_code, record.cause, record.findings) == (9, FailureCause.EXIT_CODE, None)


@needs_cgroups_v1
@needs_stress_ng
def test_copies_and_loads_run_inside_the_groups_of_the_unit(watch: Watch, machine: Machine) -> None:
    unit = profiled(COUNTS_ON, sources=("integer",), total_s=SIZE_IN_TIME_S)
    begun(watch, machine, unit)

    # A copy and a load beside each other, each in a group of its own, and the profiler in a third.
    def inside() -> Counter[Path]:
        return Counter(each.parent for each in groups_of(unit) if each.name.startswith("profile"))

    wait_until(lambda: max(inside().values(), default=0) >= 3, PATIENCE_S)
    profiler = next(int(word) for own in groups_of(unit) if own.name == "profiler" for word in _members(own))
    assert not list(GROUPS.glob(f"*/hcloud.profile-{profiler}-*"))
    watch.runner.stop({unit.id: NAME}, cause=FailureCause.EVICTED)
    assert watch.ended(unit).findings is not None
    assert_nothing_left(machine, unit)


def _members(group: Path) -> list[str]:
    try:
        return (group / "cgroup.procs").read_text().split()
    except OSError:
        return []


@needs_stress_ng
def test_killed_keeper_takes_copies_and_loads_along(watch: Watch, machine: Machine) -> None:
    unit = profiled(COUNTS_ON, sources=("integer",), total_s=SIZE_IN_TIME_S)
    begun(watch, machine, unit)
    # By then one size is measured, and a source is tuned beside the program.
    wait_until(lambda: (machine.unit(unit.id).read("findings.json") or {}).get("readings"), PATIENCE_S)
    wait_until(lambda: _with_argument(str(scratch_of(machine.unit(unit.id)))), PATIENCE_S)
    kill(machine.keeper(unit.id))
    record = watch.ended(unit)
    assert record.cause is FailureCause.INSTANCE_LOST
    assert record.findings is not None and record.findings.readings
    assert_nothing_left(machine, unit)


def test_killed_profiler_is_told_with_what_it_found(watch: Watch, machine: Machine) -> None:
    unit = profiled(COUNTS_ON, run_s=60.0)
    begun(watch, machine, unit)
    for child in Path(f"/proc/{machine.keeper(unit.id)}/task/{machine.keeper(unit.id)}/children").read_text().split():
        kill(int(child))
    record = watch.ended(unit)
    assert (record.exit_code, record.cause) == (137, FailureCause.EXIT_CODE)
    assert_nothing_left(machine, unit)


def test_run_goes_on_when_the_worker_is_killed(watch: Watch, machine: Machine) -> None:
    def measured(total_s: float) -> ExitRecord:
        unit = profiled(COUNTS_ON, total_s=total_s)
        begun(watch, machine, unit)
        machine.supervisor.kill()
        machine.supervisor.wait()
        machine.start()
        record = watch.ended(unit)
        assert_nothing_left(machine, unit)
        return record

    record = in_time(measured)
    assert record.exit_code == 0 and record.findings is not None and record.findings.readings


@needs_podman
def test_job_in_an_image_is_profiled_in_it_without_changing_it(watch: Watch, machine: Machine, tmp_path: Path) -> None:
    marks = "cat $NOTE > here; [ ! -e /usr/bin/python3 ] || exit 8; if echo x > /note; then exit 9; fi"

    def measured(total_s: float) -> ExitRecord:
        unit = profiled(f"{marks} 2> /dev/null; {COUNTS_ON}", image=name, setup="echo set up > made", total_s=total_s)
        assert watch.runner.start([unit])[unit.id].outcome == "started"
        record = watch.ended(unit)
        assert_nothing_left(machine, unit)
        return record

    with tiny_image(tmp_path, "localhost/hcloud-test-counts:1", ["sh", "cat"]) as name:
        record = in_time(measured)
        assert containers_of(name) == ""
    assert record.findings is not None and record.findings.measure is Measure.PROGRESS, record
    assert [each.column for each in record.findings.readings] == ["local/here", "0.5 vCPU"], record
