"""Causes of lost QoS of simulated jobs, and the planner with perfect knowledge."""

from collections.abc import Iterator

import pytest

from hcloud.core.errors import BadInput
from hcloud.core.estimates import Classification, Estimate
from hcloud.core.model import BatchTarget, Event, EventKind, JobSpec, ProgressHook, Resources
from hcloud.simulator.clusters import make_experiment
from hcloud.simulator.oracle import corrected
from hcloud.simulator.performance import JobPerformance
from hcloud.simulator.program_models import SOURCES
from hcloud.simulator.qos_losses import NEIGHBOURS, REST, TYPE, count_qos_losses
from hcloud.simulator.run import Setting
from hcloud.simulator.workload import Arrival
from hcloud.simulator.world import Truth, World
from tests.policies import simple

TYPES = {name: Resources(vcpus=8.0, memory_mib=32768) for name in ("a.large", "b.large", "c.large")}
TRUTH = Truth(external_load=0.0, drift=0.0, stragglers=0.0, noise=0.0, phased=0.0, heterogeneity=4.0, pressure=8.0)


def job(program: str) -> JobSpec:
    return JobSpec(
        name=program,
        user="ada",
        command=(program,),
        target=BatchTarget(),
        resources=Resources(vcpus=2.0, memory_mib=1024),
        progress=ProgressHook(file="progress"),
        tags={"program_kind": "analytics"},
    )


@pytest.fixture
def world() -> World:
    made = World(truth=TRUTH, seed=7, types=TYPES, providers=("mock",))
    for number, program in enumerate(("sort", "crunch"), 1):
        made.add_job(f"job-{number}", Arrival(at_s=0.0, run_s=100.0, spec=job(program)))
    return made


def stay(number: int, instance_id: str, began_at: float, ended_at: float) -> Iterator[Event]:
    for kind, at in ((EventKind.UNIT_STARTED, began_at), (EventKind.UNIT_ENDED, ended_at)):
        yield Event(
            seq=1, at=at, kind=kind, job_id=f"job-{number}", instance_id=instance_id, user="ada", actor="hcloud",
            fields={"attempt": f"job-{number}.1", "rank": 0},
        )  # fmt: skip


def machine(instance_id: str, type_name: str) -> Event:
    return Event(
        seq=1, at=0.0, kind=EventKind.INSTANCE_REQUESTED, job_id=None, instance_id=instance_id, user="", actor="hcloud",
        fields={"type": type_name},
    )  # fmt: skip


def performance(running: float) -> JobPerformance:
    return JobPerformance(job_id="job-1", kind="batch", running=running, turnaround=running, kept=running >= 0.95)


def test_losses_are_attributed_to_type_or_neighbour(world: World) -> None:
    specs = {"job-1": job("sort"), "job-2": job("crunch")}
    by_speed = sorted(TYPES, key=lambda name: world.relative_speed(specs["job-1"], name))
    slow, best = by_speed[0], by_speed[-1]
    alone = [machine("i", slow), *stay(1, "i", 0.0, 100.0)]
    slow_speed = world.relative_speed(specs["job-1"], slow)
    assert slow_speed < 0.9
    assert count_qos_losses(alone, [performance(slow_speed)], specs, world) == {TYPE: 1}

    left = world.program_model(specs["job-1"]).performance_under(
        [min(100.0, each) for each in world.program_model(specs["job-2"]).caused]
    )
    assert left < 0.94
    beside = [machine("i", best), *stay(2, "i", 0.0, 200.0), *stay(1, "i", 0.0, 100.0)]
    assert count_qos_losses(beside, [performance(left)], specs, world) == {NEIGHBOURS: 1}
    earlier = [machine("i", best), *stay(2, "i", 0.0, 50.0), *stay(1, "i", 60.0, 160.0)]
    assert count_qos_losses(earlier, [performance(left)], specs, world) == {REST: 1}


def test_jobs_with_kept_qos_or_without_a_run_are_not_counted(world: World) -> None:
    events = [machine("i", "a.large"), *stay(1, "i", 0.0, 100.0)]
    assert count_qos_losses(events, [performance(0.96)], {"job-1": job("sort")}, world) == {}
    assert count_qos_losses([], [performance(0.5)], {"job-1": job("sort")}, world) == {}


def test_corrected_beliefs_are_true_in_the_measured_unit(world: World) -> None:
    model = world.program_model(job("sort"))
    wrong = Estimate(value=1.0, low=0.5, high=2.0)
    seen = Estimate(value=0.01 * world.speed_on_type(model, "a.large"), low=0.0, high=1.0, observed=True)
    belief = Classification(
        by_type={"mock/a.large": seen, "mock/b.large": wrong, "local/local.small": wrong},
        tolerated={"llc-capacity": wrong}, quality_target=wrong,
    )  # fmt: skip
    told = corrected(world, "ada:sort~12345678#99", belief)
    assert told.by_type["mock/b.large"].value == pytest.approx(0.01 * world.speed_on_type(model, "b.large"))
    assert told.by_type["mock/b.large"].low == told.by_type["mock/b.large"].high == told.by_type["mock/b.large"].value
    assert told.by_type["local/local.small"] is wrong, "of a type that the world does not have nothing is true"
    assert [told.caused[name].value for name in SOURCES] == list(model.caused)
    assert max(each.value for each in told.tolerated.values()) <= 100.0
    assert corrected(world, "ada:never-seen~12345678", belief) is belief


def test_oracle_without_truth_is_refused() -> None:
    made = make_experiment("paragon-small-low", share=0.02)
    with pytest.raises(BadInput, match="truth is None"):
        Setting(workload=made.workload, policy=simple(name="any"), oracle=True)
