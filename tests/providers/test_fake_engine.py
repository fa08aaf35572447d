"""The fake engine beyond the contract: speed, samples, its minimal shell, and the cost of observing."""

from dataclasses import replace
from typing import Any

import pytest

from hcloud.core.clock import ManualClock
from hcloud.core.cpu_topology import regular_topology
from hcloud.core.model import FailureCause, MetricsHook, ProgressHook, Resources
from hcloud.fake_runner.runner import FakeRunner, Start, StartFault, Work, read_work, work_from
from hcloud.provider import RunnerView, UnitReport, UnitSpec, UnitState
from providers.mock import MockProvider
from tests.providers.clouds import AT_ONCE, cloud_on, offer_of, request_for, unit_on


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def engine_on(clock: ManualClock, machines: int = 1, **settings: Any) -> tuple[MockProvider, FakeRunner]:
    cloud = cloud_on(clock, **{**AT_ONCE, **settings})
    for number in range(machines):
        cloud.launch(request_for(cloud, number, clock.now()))
    return cloud, FakeRunner([cloud], clock)


def report_of(view: RunnerView, unit: UnitSpec) -> UnitReport:
    return next(each for worker in view.workers for each in worker.units if each.id == unit.id)


# --------------------------------------------------------------------------------------------------------- small shell
@pytest.mark.parametrize(
    ("script", "duration_s", "exit_code", "stdout"),
    [
        ("true", 0, 0, ""),
        ("false", 0, 1, ""),
        ("exit 3", 0, 3, ""),
        ("sleep 5", 5, 0, ""),
        ("sleep 0.5; exit 2; sleep 100", 0.5, 2, ""),
        ("echo a 'b c'; sleep 2 && echo d", 2, 0, "a b c\nd\n"),
        ("echo $NAME-${NAME}-$MISSING-", 0, 0, "x-x--\n"),
        ("make all", 1, 0, ""),
        ("echo 'never closed", 1, 0, ""),
        ("", 0, 0, ""),
    ],
)
def test_small_shell_reads_scripts(script: str, duration_s: float, exit_code: int, stdout: str) -> None:
    work = read_work(unit_on("inst-1", script, env={"NAME": "x"}))
    said = "".join(text for _, stream, text in work.output if stream == "stdout")
    assert (work.duration_s, work.exit_code, said) == (duration_s, exit_code, stdout)


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"command": ()}, "the command is empty"),
        ({"command": ("/no/such/program",)}, "there is no program /no/such/program"),
        ({"workdir": "/no/such.tar.gz"}, "there is no work directory archive /no/such.tar.gz"),
        ({"setup": "exit 9"}, "setup ended with code 9"),
    ],
)
def test_what_cannot_be_started_is_refused_and_leaves_its_fence_only(
    clock: ManualClock, changes: dict[str, Any], refusal: str
) -> None:
    _, runner = engine_on(clock)
    unit = unit_on("inst-0", **changes)
    result = runner.start([unit])[unit.id]
    assert (result.outcome, result.detail) == ("refused", refusal)
    [told] = runner.observe().workers[0].units
    assert runner.starts() == () and told.state is UnitState.ENDED and told.exit is not None
    assert (told.exit.cause, told.exit.detail) == (FailureCause.START_REFUSED, refusal)


def test_direct_commands_are_read_too() -> None:
    assert read_work(unit_on("inst-1", command=("/bin/sleep", "7"))).duration_s == 7
    assert read_work(unit_on("inst-1", command=("false",))).exit_code == 1


def test_unit_larger_than_its_machine_is_refused(clock: ManualClock) -> None:
    _, runner = engine_on(clock)
    unit = unit_on("inst-0", resources=Resources(vcpus=64))
    assert runner.start([unit])[unit.id].outcome == "refused"


# ------------------------------------------------------------------------------------------------------ speed and time
def test_units_run_as_fast_as_their_machine(clock: ManualClock) -> None:
    cloud, runner = engine_on(clock, machines=8, quality={"spread": 0.3})
    units = [unit_on(f"inst-{number}", "sleep 100", f"job-{number}.1.0") for number in range(8)]
    runner.start(units)
    clock.advance(1000)
    ran_s = {unit.instance_id: report_of(runner.observe(), unit).exit for unit in units}
    for machine in cloud.machines(clock.now()):
        record = ran_s[machine.instance_id]
        assert record is not None
        assert record.ended_at - record.started_at == pytest.approx(100 / machine.quality)
    assert len({round(each.quality, 6) for each in cloud.machines(clock.now())}) == 8


def test_samples_do_not_depend_on_how_often_one_looks(clock: ManualClock) -> None:
    cloud, often = engine_on(clock)
    unit = unit_on("inst-0", "sleep 1000", progress=ProgressHook(file="p"))
    often.start([unit])
    rarely = FakeRunner([cloud], clock)
    rarely.start([unit])
    for _ in range(97):
        often.observe()
        clock.advance(1)
    sample = report_of(often.observe(), unit).sample
    assert sample == report_of(rarely.observe(), unit).sample
    assert sample is not None and sample.progress == pytest.approx(0.09, abs=0.01)
    assert sample.cpu_s == pytest.approx(0.8 * 90, abs=10)


def test_service_tells_rate_and_latency_and_is_slower_on_a_slow_machine(clock: ManualClock) -> None:
    cloud, runner = engine_on(clock, machines=2, quality={"spread": 0.3})
    hook = MetricsHook(url="http://127.0.0.1:8000/metrics")
    units = [unit_on(f"inst-{number}", "serve", f"job-{number}.1.0", metrics=hook) for number in range(2)]
    runner.start(units)
    clock.advance(3600)
    quality = {each.instance_id: each.quality for each in cloud.machines(clock.now())}
    p99_ms = {}
    for unit in units:
        sample = report_of(runner.observe(), unit).sample
        assert sample is not None and sample.requests_per_s == 100
        p99_ms[unit.instance_id] = sample.latency_ms["99"]
    assert p99_ms["inst-0"] / p99_ms["inst-1"] == pytest.approx(quality["inst-1"] / quality["inst-0"])


def test_next_event_is_the_next_end_of_a_unit(clock: ManualClock) -> None:
    cloud, runner = engine_on(clock, machines=2)
    start_at = clock.now()
    first, second, third = (
        unit_on(f"inst-{where}", f"sleep {seconds}", f"job-{seconds}.1.0")
        for seconds, where in ((10, 0), (20, 1), (30, 0))
    )
    runner.start([third, second, first])
    assert runner.next_event_at() == start_at + 10
    clock.advance(10)
    assert runner.next_event_at() == start_at + 20
    cloud.kill("mock-000002")
    assert runner.next_event_at() == start_at + 30
    runner.stop({third.id: "inst-0"}, cause=FailureCause.EVICTED)
    assert runner.next_event_at() is None


def test_clock_that_jumps_back_does_not_revive_a_unit(clock: ManualClock) -> None:
    _, runner = engine_on(clock)
    unit = unit_on("inst-0", "sleep 5")
    runner.start([unit])
    clock.advance(10)
    ended = report_of(runner.observe(), unit)
    clock.advance(-9)
    assert report_of(runner.observe(), unit) == ended


# ------------------------------------------------------------------------------------------------------------- machines
def test_fence_outlives_its_machine(clock: ManualClock) -> None:
    cloud, runner = engine_on(clock, machines=2)
    unit = unit_on("inst-0")
    runner.start([unit])
    cloud.kill("mock-000001")
    elsewhere = unit_on("inst-1")
    assert runner.start([unit])[unit.id].outcome == "not_sent"
    result = runner.start([elsewhere])[unit.id]
    assert (result.outcome, result.detail) == ("refused", "job-1.1.0 belongs to inst-0")
    assert runner.starts("job-1.") == (Start(unit_id="job-1.1.0", instance_id="inst-0", at=clock.now()),)


def test_worker_registers_when_its_machine_has_booted_and_goes_at_its_expiry(clock: ManualClock) -> None:
    cloud = cloud_on(clock, boot={"p50_s": 20, "p95_s": 20})
    runner = FakeRunner([cloud], clock)
    cloud.launch(request_for(cloud, 1, clock.now(), expires_at=clock.now() + 100))
    unit = unit_on("inst-1")
    assert runner.observe().workers == ()
    assert runner.start([unit])[unit.id].outcome == "not_sent"
    clock.advance(20)
    assert [each.instance_id for each in runner.observe().workers] == ["inst-1"]
    assert runner.renew({"inst-1": clock.now() + 100}) == {"inst-1"}
    clock.advance(99)
    assert len(runner.observe().workers) == 1
    clock.advance(1)
    assert runner.observe().workers == ()


def test_machines_of_several_clouds_carry_units(clock: ManualClock) -> None:
    clouds = [cloud_on(clock, **AT_ONCE) for _ in range(2)]
    for number, cloud in enumerate(clouds):
        cloud.launch(request_for(cloud, number, clock.now()))
    runner = FakeRunner(clouds, clock)
    assert {each.instance_id for each in runner.observe().workers} == {"inst-0", "inst-1"}
    at = clock.now() + 500
    assert runner.renew({"inst-0": at, "inst-1": at}) == {"inst-0", "inst-1"}


def test_refused_start_is_refused_for_good_and_another_unit_starts(clock: ManualClock) -> None:
    _, runner = engine_on(clock)
    runner.inject(StartFault.REFUSE)
    unit = unit_on("inst-0")
    assert [runner.start([unit])[unit.id].outcome for _ in range(2)] == ["refused", "refused"]
    another = replace(unit, id="job-1.2.0")
    assert runner.start([another])[another.id].outcome == "started"


def test_nothing_is_told_anew_where_nothing_changed(clock: ManualClock) -> None:
    _, runner = engine_on(clock, machines=3)
    runner.start([unit_on(f"inst-{n}", "sleep 1000", f"job-{n}.1.0") for n in range(3)])
    before = runner.observe()
    assert runner.observe() is before
    runner.stop({"job-1.1.0": "inst-1"}, cause=None)
    after = runner.observe()
    assert [one is other for one, other in zip(before.workers, after.workers, strict=True)] == [True, False, True]


def test_work_may_be_told_by_a_table(clock: ManualClock) -> None:
    cloud, _ = engine_on(clock)
    table = {"train": Work(duration_s=50, exit_code=4, output=((10, "stderr", "half\n"),))}
    runner = FakeRunner([cloud], clock, work=work_from(table))
    unit = unit_on("inst-0", "train")
    runner.start([unit])
    clock.advance(49)
    assert runner.logs(unit.id, "inst-0", "stderr", 0, 100).content == b"half\n"
    clock.advance(1)
    record = report_of(runner.observe(), unit).exit
    assert record is not None and (record.exit_code, record.cause) == (4, FailureCause.EXIT_CODE)
    assert record.cpu_s == pytest.approx(40) and record.memory_mib_max == 16


def test_machines_with_enough_vcpus_report_a_topology(clock: ManualClock) -> None:
    cloud = cloud_on(clock, **AT_ONCE, topology_from_vcpus=16)
    for number, kind in enumerate(("m.xlarge", "m.2xlarge")):
        cloud.launch(request_for(cloud, number, clock.now(), offer_of(cloud, kind)))
    small, large = (each.cpu_topology for each in FakeRunner([cloud], clock).observe().workers)
    assert (small, large) == (None, regular_topology(sockets=2, cores=8))
