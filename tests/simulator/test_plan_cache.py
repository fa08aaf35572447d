"""The cache between plans saves time but changes no decision: plans are the same with and without it."""

import copy
import gc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hcloud.config import load_policy
from hcloud.config.package_data import path as shipped_path
from hcloud.core.estimates import Classification, Estimate, Measure
from hcloud.core.model import BatchTarget, Resources
from hcloud.planner import make_plan
from hcloud.planner.cache import PlanCache
from hcloud.planner.plan import Plan
from hcloud.planner.snapshot import Snapshot
from hcloud.simulator.run import Setting, simulated
from hcloud.simulator.scenarios import make_scenario
from hcloud.simulator.world import Truth
from hcloud.spec.policy import PlacementPolicy, Policy, RetentionPolicy
from tests.planner.scenes import NOW, decide, job, machine, offer, running, scene, spec
from tests.policies import simple

CLOUD: dict[str, object] = {"zones": ["east-1a"], "reserved": {"m.2xlarge": 2}, "keep_terminated_s": 60}


def plans_that_differ(folder: Path, strategy: str, plan_cache: PlanCache) -> int:
    """Simulate with one cache, and count plans that differ from those with an empty cache."""
    differing = 0

    def plan(snapshot: Snapshot, policy: Policy, rng: np.random.Generator) -> Plan:
        nonlocal differing
        made, chances = None, copy.deepcopy(rng)
        with suppress(IndexError, ValueError):  # no plan at all, where as many machines are remembered as there were
            made = make_plan(replace(snapshot, plan_cache=plan_cache), policy, chances)
        fresh = make_plan(replace(snapshot, plan_cache=PlanCache()), policy, rng)
        differing += made != fresh
        return fresh

    work = make_scenario("high-variability", 1, hours=0.05, share=0.03)
    policy = load_policy(shipped_path(f"policies/{strategy}.yaml"))
    with simulated(Setting(workload=work, policy=policy, cloud=CLOUD, truth=Truth(), planner=plan), folder) as run:
        run.run()
    return differing


@pytest.mark.parametrize("strategy", ["hm", "sr"])
def test_plan_does_not_depend_on_the_cache(tmp_path: Path, strategy: str) -> None:
    assert plans_that_differ(tmp_path, strategy, PlanCache()) == 0


def unreachable_after_plans(folder: Path) -> list[int]:
    """Simulate, and return how many objects each plan leaves that only the garbage collector can free."""
    found = list[int]()

    def plan(snapshot: Snapshot, policy: Policy, rng: np.random.Generator) -> Plan:
        gc.collect()
        made = make_plan(snapshot, policy, rng)
        found.append(gc.collect())
        return made

    work = make_scenario("high-variability", 1, hours=0.05, share=0.03)
    policy = load_policy(shipped_path("policies/hm.yaml"))
    gc.freeze()
    try:
        with simulated(Setting(workload=work, policy=policy, cloud=CLOUD, truth=Truth(), planner=plan), folder) as run:
            run.run()
    finally:
        gc.unfreeze()
    return found


def test_plans_are_freed_by_reference_counting(tmp_path: Path) -> None:
    # One cycle of references through a plan's context keeps the whole plan: groups, sizes, pressures.
    assert max(unreachable_after_plans(tmp_path)) < 100


def plans_that_differ_once_more_is_known(*, shared: bool) -> int:
    """Plan a job of an application that turns out to be slower and slower, and count plans that depend on earlier
    beliefs.

    ``shared``: beliefs have the same answers.
    """
    differing, policy, plan_cache, answers = (
        0,
        simple(placement=PlacementPolicy(order="quasar")),
        PlanCache(),
        dict[object, object](),
    )
    asks = spec(target=BatchTarget(finish_by_at=NOW + 600.0), vcpus_within=(0.5, 8.0))
    for per_s in (0.004, 0.001, 0.0005):
        known = Classification(
            by_type={"mock/large": Estimate(value=per_s, low=per_s, high=per_s)},
            by_step={f"{vcpus} vCPU": Estimate(value=vcpus, low=vcpus, high=vcpus) for vcpus in (1, 2, 4, 8)},
            quality_target=Estimate(value=0.5, low=0.5, high=0.5),
            measure=Measure.COMPLETION,
        )
        waiting, on = job(1, asks=asks, application="a", queued_at=NOW), machine(1, offer("large", vcpus=8.0))
        fresh = replace(known)
        if shared:
            object.__setattr__(known, "_answers", answers)
        snapshot = scene(waiting, on, applications={"a": known}, plan_cache=plan_cache)
        fresh_snapshot = replace(snapshot, applications={"a": fresh}, plan_cache=PlanCache())
        differing += decide(snapshot, policy) != decide(fresh_snapshot, policy)
    return differing


def test_plan_does_not_depend_on_earlier_beliefs() -> None:
    assert plans_that_differ_once_more_is_known(shared=False) == 0


def test_cache_that_mixes_up_beliefs_is_detected() -> None:
    assert plans_that_differ_once_more_is_known(shared=True) > 0


class NeverChecksInputs(PlanCache):
    """A faulty cache that never checks its inputs."""

    def get(self, name: str, made_of: tuple[object, ...], work_out: Callable[[], Any]) -> Any:
        return super().get(name, (len(made_of),), work_out)


class TakesJobsForEqual(PlanCache):
    """A faulty cache that takes all jobs for equal."""

    def number_asks(self, spec: object, asks: tuple[object, ...]) -> int:
        return super().number_asks(spec, ())


@pytest.mark.parametrize("faulty", [NeverChecksInputs, TakesJobsForEqual])
def test_cache_that_mixes_up_objects_is_detected(tmp_path: Path, faulty: type[PlanCache]) -> None:
    assert plans_that_differ(tmp_path, "hm", faulty()) > 0


class KeepsFirstAnswer(PlanCache):
    """A faulty cache that keeps the first answer of a name forever."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.stale = name

    def get(self, name: str, made_of: tuple[object, ...], work_out: Callable[[], Any]) -> Any:
        return super().get(name, () if name == self.stale else made_of, work_out)


def sure(value: float) -> Estimate:
    return Estimate(value=value, low=value, high=value)


def told(pressure: float = 0.0, **by_type: float) -> Classification:
    """Return a belief about an application that causes ``pressure`` and tolerates as much."""
    return Classification(
        by_type={f"mock/{name}": sure(per_s) for name, per_s in by_type.items()},
        by_step={f"{vcpus} vCPU": sure(float(vcpus)) for vcpus in (1, 2, 4, 8)},
        caused={"llc-capacity": sure(pressure)},
        tolerated={"llc-capacity": sure(100.0 - pressure)},
        quality_target=sure(0.5),
        measure=Measure.COMPLETION,
    )


def as_machines_come() -> list[Snapshot]:
    """A job sized by the planner, with one machine, then with a second one that is cheaper for it."""
    large, huge = offer("large", vcpus=8.0, usd_per_h=0.4), offer("huge", vcpus=8.0, usd_per_h=0.3)
    asks = spec(target=BatchTarget(finish_by_at=NOW + 600.0), vcpus_within=(0.5, 8.0))
    waiting = job(1, asks=asks, application="a", queued_at=NOW)
    known, first, second = {"a": told(large=0.001, huge=0.004)}, machine(1, large), machine(2, huge)
    return [
        scene(waiting, first, large, applications=known),
        scene(waiting, first, second, large, huge, applications=known),
    ]


def as_an_offer_comes() -> list[Snapshot]:
    """A job that would disturb the only machine's resident: first without offers, then with one."""
    known, there = {"a": told(90.0, small=0.001)}, machine(1)
    asks = spec(target=BatchTarget(finish_by_at=NOW + 6000.0))
    waiting, resident = job(2, asks=asks, application="a", queued_at=NOW), running(1, there, application="a")
    return [scene(waiting, resident, there, *offers, applications=known) for offers in ([], [offer()])]


def plans_that_differ_of(snapshots: list[Snapshot], order: Any, plan_cache: PlanCache) -> int:
    """Plan a series of snapshots with one cache, and count plans that differ from those with an empty cache."""
    placement, filled = PlacementPolicy(order=order, neighbour_tolerance=0.05), RetentionPolicy(drain=False)
    differing, policy = 0, simple(placement=placement, retention=filled)
    for snapshot in snapshots:
        made = None
        with suppress(KeyError):  # no plan at all, where machines are of a kind that is not remembered
            made = decide(replace(snapshot, plan_cache=plan_cache), policy)
        differing += made != decide(replace(snapshot, plan_cache=PlanCache()), policy)
    return differing


@pytest.mark.parametrize(
    ("stale", "scenes", "order"),
    [
        ("platforms of 1", as_machines_come, "quasar"),
        ("sizes", as_machines_come, "quasar"),
        ("to be had", as_an_offer_comes, "paragon"),
    ],
)
def test_cache_entry_that_outlives_its_input_is_detected(
    stale: str, scenes: Callable[[], list[Snapshot]], order: str
) -> None:
    assert plans_that_differ_of(scenes(), order, PlanCache()) == 0
    assert plans_that_differ_of(scenes(), order, KeepsFirstAnswer(stale)) > 0


def plans_that_differ_once_a_machine_is_another(*, stale: bool) -> int:
    """Plan a job that fits on a machine only as offered later; ``stale``: numbers of the first offer are kept."""
    plan_cache, waiting, policy = (
        PlanCache(),
        job(1, asks=spec(resources=Resources(vcpus=4.0)), queued_at=NOW),
        simple(),
    )
    small, large = machine(1, offer("small", vcpus=2.0)), machine(1, offer("large", vcpus=8.0))
    decide(scene(waiting, small, plan_cache=plan_cache), policy)
    if stale:
        standing = plan_cache.latest("machines")
        standing._made = {name: (large.offer, made) for name, (_, made) in standing._made.items()}
    later = scene(waiting, large, plan_cache=plan_cache)
    return int(decide(later, policy) != decide(replace(later, plan_cache=PlanCache()), policy))


def test_cache_that_mixes_up_offers_is_detected() -> None:
    assert plans_that_differ_once_a_machine_is_another(stale=False) == 0
    assert plans_that_differ_once_a_machine_is_another(stale=True) > 0
