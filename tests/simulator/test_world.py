"""The simulated world: the truth about programs and machines, which a planner learns only by measuring."""

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev

import pytest

from hcloud.core.clock import ManualClock
from hcloud.core.errors import BadInput
from hcloud.core.model import (
    BatchTarget,
    JobSpec,
    Market,
    ProfileRequest,
    ProgressHook,
    Resources,
)
from hcloud.fake_runner.runner import FakeRunner, Resident, Work
from hcloud.provider import SimulatedMachine, UnitSpec
from hcloud.simulator.program_models import KINDS, SOURCES, Ranking, draw_program, ranking_by_room, type_speeds
from hcloud.simulator.run import Setting, simulated
from hcloud.simulator.scenarios import make_scenario
from hcloud.simulator.workload import Arrival
from hcloud.simulator.world import WORLDS, Truth, World
from tests.policies import parse_simple

STILL = Truth(external_load=0.0, drift=0.0, stragglers=0.0, noise=0.0, phased=0.0)
LEARNING = parse_simple({"placement": {"order": "paragon"}, "profiling": {"when": "before", "max_share_of_slack": 1.0}})
TYPES = {
    name: Resources(vcpus=vcpus, memory_mib=65536, disk_gib=100)
    for name, vcpus in (("m.large", 4.0), ("m.2xlarge", 16.0), ("c.large", 4.0))
}


def machine(type_name: str = "m.2xlarge", market: Market = Market.ON_DEMAND, quality: float = 1.0) -> SimulatedMachine:
    return SimulatedMachine(
        instance_id="inst-1",
        capacity=TYPES[type_name],
        ready_at=0.0,
        expires_at=1e12,
        quality=quality,
        type_name=type_name,
        market=market,
    )


def job(program: str, kind: str = "analytics", vcpus: float = 2.0) -> JobSpec:
    return JobSpec(
        name=program,
        user="ada",
        command=(program, "--input", "1"),
        target=BatchTarget(finish_within_s=1e6),
        resources=Resources(vcpus=vcpus),
        progress=ProgressHook(file="progress"),
        tags={"program_kind": kind},
    )


def unit(job_id: str, spec: JobSpec, rank: int = 0) -> UnitSpec:
    return UnitSpec(
        id=f"{job_id}.1.{rank}",
        instance_id="inst-1",
        rank=rank,
        command=spec.command,
        resources=spec.resources,
        progress=spec.progress,
    )


def world(truth: Truth = STILL, *programs: tuple[str, str]) -> World:
    made = World(truth=truth, seed=7, types=TYPES, providers=("mock",))
    for number, (program, kind) in enumerate(programs, 1):
        made.add_job(f"job-{number}", Arrival(at_s=0.0, run_s=100.0, spec=job(program, kind)))
    return made


def resident(number: int, spec: JobSpec, done_s: float = 0.0) -> Resident:
    return Resident(unit=unit(f"job-{number}", spec), work=Work(duration_s=100.0), done_s=done_s)


def test_a_program_alone_on_its_best_type_runs_at_full_speed_and_nowhere_faster() -> None:
    made = world(STILL, ("sort", "analytics"))
    alone = resident(1, job("sort"))
    speeds = {name: made.speeds(machine(name), [alone], 0.0)[0][0] for name in TYPES}
    assert max(speeds.values()) == 1.0
    assert min(speeds.values()) < 1.0


def test_its_best_type_is_one_on_which_a_job_fits() -> None:
    made = world(STILL)
    spec = job("sort", vcpus=8.0)
    made.add_job("job-1", Arrival(at_s=0.0, run_s=100.0, spec=spec))
    assert made.speeds(machine("m.2xlarge"), [resident(1, spec)], 0.0)[0] == [1.0]


def test_ranking_by_room_makes_each_type_the_best_for_its_share() -> None:
    vcpus, room = {f"t{number}": 4.0 for number in range(4)}, {"t0": 80.0, "t1": 40.0, "t2": 20.0, "t3": 20.0}

    def favourites(ranking: Ranking | None) -> Counter[str]:
        programs = [draw_program(f"p{n}", "single", 3, phased=0.0) for n in range(400)]
        speeds = [type_speeds(each, list(room), 3, 5.0, ranking) for each in programs]
        return Counter(max(each, key=each.__getitem__) for each in speeds)

    bought, by_lot = favourites(ranking_by_room(3, vcpus, room, 5.0)), favourites(None)
    assert all(bought[name] / 400 == pytest.approx(room[name] / 160, abs=0.08) for name in room)
    assert not all(by_lot[name] / 400 == pytest.approx(room[name] / 160, abs=0.08) for name in room)


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_slow_each_other_by_pressure_and_tolerance(kind: str) -> None:
    one, other = draw_program("one", kind, 7, phased=0.0), draw_program("other", kind, 7, phased=0.0)
    assert one.performance_under([0.0] * len(SOURCES)) == 1.0
    at_limit = [min(tolerated, 100.0) for tolerated in one.tolerated]
    if min(one.tolerated) <= 100:
        assert one.performance_under(at_limit) == pytest.approx(0.95)
    assert one.performance_under([2 * each for each in other.caused]) <= one.performance_under(other.caused)


def test_remaining_units_speed_up_when_one_leaves() -> None:
    made = world(STILL, ("sort", "analytics"), ("cache", "service"), ("crunch", "analytics"))
    specs = [job("sort"), job("cache", "service"), job("crunch")]
    together, until = made.speeds(machine(), [resident(n, spec) for n, spec in enumerate(specs, 1)], 0.0)
    two, _ = made.speeds(machine(), [resident(1, specs[0]), resident(2, specs[1])], 0.0)
    assert together[1] < two[1] <= 1.0
    assert until == float("inf")


def test_external_load_affects_only_small_unreserved_machines() -> None:
    made = world(replace(STILL, external_load=0.25, external_swing=0.1), ("cache", "service"))
    spec = job("cache", "service")
    alone = [resident(1, spec)]
    best = made.speed_on_type(made.program_model(spec), "m.large")
    (shared,), until = made.speeds(machine("m.large"), alone, 0.0)
    assert shared < best
    assert until == 300.0
    assert made.speeds(machine("m.large", Market.RESERVED), alone, 0.0)[0] == [best]
    full = made.speeds(machine("m.2xlarge"), alone, 0.0)[0]
    assert full == [made.speed_on_type(made.program_model(spec), "m.2xlarge")]


@pytest.mark.parametrize("market", [Market.RESERVED, Market.ON_DEMAND])
def test_machine_drifts_while_the_same_unit_stays_even_without_other_tenants(market: Market) -> None:
    made = world(replace(STILL, drift=0.02, external_step_s=300.0), ("sort", "analytics"))
    at, speeds = 0.0, []
    while at < 300.0 * 200:
        (speed,), until = made.speeds(machine(market=market), [resident(1, job("sort"))], at)
        speeds.append(math.log(speed))
        assert until == at + 300.0
        at = until
    assert stdev(speeds) == pytest.approx(0.02, rel=0.25)
    steps = [each - before for before, each in pairwise(speeds)]
    assert stdev(steps) < 0.024  # it wanders; speeds that knew nothing of each other would be 0.028 apart


def test_phases_change_speed_and_pressure_in_the_middle() -> None:
    truth = replace(STILL, phased=1.0)
    made = world(truth, ("sort", "analytics"))
    phases = made.program_model(job("sort")).phases
    assert len(phases) == 2
    alone_s = made.alone_s(Arrival(at_s=0.0, run_s=100.0, spec=job("sort")))
    slow = phases[1].until - phases[0].until
    assert alone_s == pytest.approx(100.0 * (1 - slow + slow / phases[1].speed))
    (speed,), until = made.speeds(machine(), [resident(1, job("sort"))], 50.0)
    assert until == pytest.approx(50.0 + 100.0 * phases[0].until / speed)
    (middle,), _ = made.speeds(machine(), [resident(1, job("sort"), done_s=100.0 * phases[0].until)], 0.0)
    assert middle == pytest.approx(speed * phases[1].speed)


def test_profiling_finds_the_truth_but_for_its_noise() -> None:
    request = ProfileRequest(
        job_id="job-1", type_column="mock/m.large", steps_vcpus=(2.0, 1.0), sources=("llc-capacity",), run_s=10.0,
        total_s=100.0,
    )  # fmt: skip
    spec = job("sort")
    asked = replace(unit("job-9", spec), profile=request)
    exact = world(STILL, ("sort", "analytics"))
    found = {(r.question, r.column): r.value for r in exact.profile(asked, exact.work(asked), 1.0).readings}
    model = exact.program_model(spec)
    speed = exact.speed_on_type(model, "m.large")
    assert found["type", "mock/m.large"] == pytest.approx(speed / 100.0)
    assert found["step", "1 vCPU"] == pytest.approx(speed / 100.0 / model.on_vcpus(2.0))
    assert found["caused", "llc-capacity"] == pytest.approx(model.caused[SOURCES.index("llc-capacity")])
    noisy = world(replace(STILL, noise=0.1), ("sort", "analytics"))
    first, again = (noisy.profile(asked, noisy.work(asked), 1.0) for _ in range(2))
    assert first == again
    assert [r.value for r in first.readings] != pytest.approx(list(found.values()))


def test_types_are_alike_without_heterogeneity_and_a_factor_apart_with_it() -> None:
    model = draw_program("sort", "single", 7, phased=0.0)
    assert set(type_speeds(model, list(TYPES), 7, 0.0).values()) == {1.0}
    assert 0.2 < min(type_speeds(model, list(TYPES), 7, 1.0).values()) < 1.0


class Halves:
    """Each unit gets an equal share of the machine."""

    def speeds(self, machine: SimulatedMachine, residents: list[Resident], now: float) -> tuple[list[float], float]:
        return [1.0 / len(residents)] * len(residents), float("inf")


class Cloud:
    """One machine that is always up."""

    def __init__(self) -> None:
        self._machines = {"inst-1": machine()}

    def running(self, now: float) -> dict[str, SimulatedMachine]:
        return self._machines

    def set_expiry(self, expiries: object) -> frozenset[str]:
        return frozenset()

    def journal(self, name: str) -> None:
        return None


def test_progress_adds_up_over_all_speeds_between_observations() -> None:
    clock = ManualClock(0.0)
    runner = FakeRunner([Cloud()], clock, work=lambda _: Work(duration_s=60.0), surroundings=Halves())
    first, second = unit("job-1", job("a")), unit("job-2", job("b"))
    runner.start([first])
    clock.advance(30.0)
    runner.start([second])
    # The first has 30 s of work left at half speed, until 90; then the second has 30 s left at full speed.
    assert runner.next_event_at() == 90.0
    clock.advance(1000.0)
    ends = {report.id: report.exit.ended_at for report in runner.observe().workers[0].units if report.exit}
    assert ends == {first.id: 90.0, second.id: 120.0}


def test_colocated_jobs_are_profiled_and_classified(tmp_path: Path) -> None:
    work = make_scenario("high-variability", 1, hours=0.1, share=0.02)
    with simulated(Setting(workload=work, policy=LEARNING, truth=Truth()), tmp_path) as simulation:
        simulation.run()
        kinds = {event.kind.value for event in simulation.events()}
    assert {"job_profiled", "job_classified"} <= kinds


def test_invalid_world_is_refused() -> None:
    with pytest.raises(BadInput, match="the world's noise is -1"):
        Truth(noise=-1)


def test_other_tenants_cost_a_few_percent_on_small_machines_only() -> None:
    kept: dict[tuple[str, float], float] = {}
    for kind in ("analytics", "service"):
        models = [draw_program(f"{kind}{n}", kind, 0, phased=0.0) for n in range(40)]
        for vcpus in (1.0, 16.0):
            made, size = world(Truth()), Resources(vcpus=vcpus, memory_mib=1024)
            machines = [replace(machine(), instance_id=f"inst-{n}", capacity=size) for n in range(20)]
            outside = [made._outside(each, 0) for each in machines]
            kept[kind, vcpus] = fmean(model.performance_under(each) for model in models for each in outside)
    assert kept["analytics", 1.0] == pytest.approx(0.96, abs=0.015)
    assert kept["service", 1.0] == pytest.approx(0.91, abs=0.025)
    assert kept["analytics", 16.0] == kept["service", 16.0] == 1.0


@pytest.mark.parametrize(
    ("type_name", "market", "slower"),
    [("m.large", Market.ON_DEMAND, True), ("m.2xlarge", Market.ON_DEMAND, False), ("m.large", Market.RESERVED, False)],
)
def test_other_tenants_of_2014_slow_shared_machines_only(type_name: str, market: Market, slower: bool) -> None:
    """On a slice other tenants press; a full server and a reserved slice have none."""
    today, then = (
        world(truth, ("sort", "analytics")).speeds(machine(type_name, market), [resident(1, job("sort"))], 0.0)[0][0]
        for truth in (WORLDS["today"], WORLDS["clouds-of-2014"])
    )
    assert (then < 0.7 * today) is slower and (then == today) is not slower
