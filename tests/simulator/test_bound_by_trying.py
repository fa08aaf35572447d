"""The lower bound compared with the best schedule, on tiny workloads that combine all features of jobs and offers."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hcloud.core.model import BatchTarget, Market, Nodes, Offer
from hcloud.simulator import bound
from hcloud.simulator.bound import lower_bound
from hcloud.simulator.workload import Arrival, Workload, workload_of
from tests.simulator.test_bound import HOUR_S, job, offer

HOURS = 4
Use = tuple[int, int, int, float, int]
"""First hour, hours, machine, vCPUs and MiB of one rank."""


def clouds(seed: int) -> tuple[Offer, ...]:
    """Machines of two sizes in all markets; with every third seed one of them is reserved."""
    rng = np.random.default_rng([seed, 1])
    rented = (
        offer("one", 1, 1.0),
        offer("two", 2, float(rng.choice([1.5, 2.2]))),
        offer("one", 1, float(rng.choice([0.3, 0.9])), Market.SPOT),
    )
    return rented if seed % 3 else (*rented, offer("two", 2, 0.9, Market.RESERVED, available=1))


def draw(seed: int) -> Workload:
    """A few jobs: interruptible or not, with or without deadlines, memory-heavy, gangs, or sized by the planner."""
    rng = np.random.default_rng([seed, 2])
    return workload_of("tiny", [_drawn(rng) for _ in range(int(rng.integers(2, 4)))])


def _drawn(rng: np.random.Generator) -> Arrival:
    run_h, vcpus = int(rng.integers(1, 3)), float(rng.integers(1, 3))
    by_h = float(run_h + rng.integers(0, 2)) if rng.random() < 0.4 else None
    made = job(int(rng.integers(0, 2)), run_h, vcpus, by_h, firm=bool(rng.random() < 0.5))
    spec, kind = made.spec, rng.random()
    if kind < 0.25:
        spec = replace(spec, nodes=Nodes(count=2, minimum=2))
    elif kind < 0.5:
        spec = replace(spec, resources=replace(spec.resources, memory_mib=2048))
    elif kind < 0.75:
        spec = replace(spec, vcpus_within=(0.5, 2.0), resources=replace(spec.resources, memory_mib=512))
    return replace(made, spec=spec)


def best_of_all_usd(work: Workload, offers: Sequence[Offer], *, keep_deadlines: bool) -> float:
    """Return the cost of the cheapest schedule on whole hours; infinite if there is none."""
    fleet = [each for each in offers for _ in range(each.available or 2)]
    ways = [list(_ways(each, fleet, keep_deadlines=keep_deadlines)) for each in work.arrivals]
    return min((_paid_usd(uses, fleet, work) for uses in itertools.product(*ways)), default=math.inf)


def _ways(each: Arrival, fleet: Sequence[Offer], *, keep_deadlines: bool) -> Iterator[tuple[Use, ...]]:
    spec, run_h = each.spec, round(each.run_s / HOUR_S)
    target, arrives_h = spec.target, round(each.at_s / HOUR_S)
    kept = keep_deadlines and isinstance(target, BatchTarget) and target.finish_within_s is not None
    by_h = arrives_h + target.finish_within_s / HOUR_S if kept else math.inf  # type: ignore[union-attr,operator]
    vcpus = spec.vcpus_within[0] if spec.vcpus_within else spec.resources.vcpus
    mine = [at for at, one in enumerate(fleet) if spec.interruptible or one.market is not Market.SPOT]
    for start in range(arrives_h, HOURS - run_h + 1):
        if start + run_h <= by_h:
            for places in itertools.combinations_with_replacement(mine, spec.nodes.count):
                yield tuple((start, run_h, place, vcpus, spec.resources.memory_mib) for place in places)


def _paid_usd(uses: Sequence[Sequence[Use]], fleet: Sequence[Offer], work: Workload) -> float:
    held: dict[tuple[int, int], tuple[float, int]] = {}
    for start, run_h, place, vcpus, mib in itertools.chain(*uses):
        for hour in range(start, start + run_h):
            before = held.get((place, hour), (0.0, 0))
            held[place, hour] = (before[0] + vcpus, before[1] + mib)
    for (place, _), (vcpus, mib) in held.items():
        room = fleet[place].instance_type.capacity
        if vcpus > room.vcpus or mib > room.memory_mib:
            return math.inf
    last_h = max([hour + 1.0 for _, hour in held] + [each.at_s / HOUR_S for each in work.arrivals])
    reserved = [each.market is Market.RESERVED for each in fleet]
    rented = sum(fleet[place].price_usd_per_h for place, _ in held if not reserved[place])
    return rented + last_h * sum(each.price_usd_per_h for each, kept in zip(fleet, reserved, strict=True) if kept)


def found(seed: int, *, keep_deadlines: bool) -> tuple[float, float]:
    """Return the bound and the best schedule's cost."""
    least = lower_bound(draw(seed), clouds(seed), keep_deadlines=keep_deadlines, slots=24).usd
    return least, best_usd(seed, keep_deadlines=keep_deadlines)


@functools.cache
def best_usd(seed: int, *, keep_deadlines: bool) -> float:
    """Return the best schedule's cost, searched once."""
    return best_of_all_usd(draw(seed), clouds(seed), keep_deadlines=keep_deadlines)


SEEDS = range(12)


@pytest.mark.parametrize("keep_deadlines", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_schedule_at_all_costs_less(seed: int, keep_deadlines: bool) -> None:
    least, best = found(seed, keep_deadlines=keep_deadlines)
    assert 0 < least <= best + 1e-6


def test_bound_is_not_far_below_the_best_schedule() -> None:
    parts = [least / best for seed in SEEDS for least, best in [found(seed, keep_deadlines=False)]]
    assert min(parts) > 0.5 and float(np.median(parts)) > 0.8


def all_uninterruptible(classes: bound._JobClasses) -> dict[str, Any]:
    return {"uninterruptible": np.ones_like(classes.uninterruptible)}


def as_if_longer(classes: bound._JobClasses) -> dict[str, Any]:
    return {"run_s": 1.5 * classes.run_s, "most_s": 1.5 * classes.most_s}


def as_if_on_the_largest(classes: bound._JobClasses) -> dict[str, Any]:
    return {"largest": np.full_like(classes.largest, 2.0)}


@pytest.mark.parametrize("fault", [all_uninterruptible, as_if_longer, as_if_on_the_largest])
def test_wrong_constraints_exceed_the_best_schedule(
    fault: Callable[[bound._JobClasses], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = bound._solve

    def solved(classes: bound._JobClasses, *others: Any) -> float:
        return honest(replace(classes, **fault(classes)), *others)

    monkeypatch.setattr(bound, "_solve", solved)
    asked = [found(seed, keep_deadlines=False) for seed in SEEDS]
    assert any(least > best + 1e-6 for least, best in asked)


def test_counting_requests_of_sizable_jobs_exceeds_the_best_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bound, "_least_vcpus", lambda each: each.spec.resources.vcpus)
    asked = [found(seed, keep_deadlines=False) for seed in SEEDS]
    assert any(least > best + 1e-6 for least, best in asked)
