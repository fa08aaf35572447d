"""The lower bound is never above the best schedule, found by exhaustive search on tiny workloads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from hcloud.core.errors import BadInput
from hcloud.core.model import (
    BatchTarget,
    BestEffortTarget,
    Event,
    EventKind,
    InstanceType,
    JobSpec,
    Market,
    Nodes,
    Offer,
    Resources,
)
from hcloud.simulator.bound import lower_bound, lowest_prices
from hcloud.simulator.optimality import run_times_s
from hcloud.simulator.workload import Arrival, Workload, workload_of

HOUR_S = 3600.0


def offer(
    name: str, vcpus: float, usd_per_h: float, market: Market = Market.ON_DEMAND, available: int | None = None
) -> Offer:
    kind = InstanceType(provider="mock", name=name, capacity=Resources(vcpus=vcpus, memory_mib=int(1024 * vcpus)))
    return Offer(
        provider="mock", region="east-1", zone="east-1a", instance_type=kind, market=market,
        price_usd_per_h=usd_per_h, priced_at=0.0, available=available,
    )  # fmt: skip


def job(at_h: float, run_h: float, vcpus: float = 1.0, by_h: float | None = None, *, firm: bool = False) -> Arrival:
    target = BestEffortTarget() if by_h is None else BatchTarget(finish_within_s=by_h * HOUR_S)
    spec = JobSpec(
        name="job", user="ada", command=("simulated",), target=target, interruptible=not firm,
        resources=Resources(vcpus=vcpus, memory_mib=int(1024 * vcpus)),
    )  # fmt: skip
    return Arrival(at_s=at_h * HOUR_S, run_s=run_h * HOUR_S, spec=spec)


def usd(jobs: Sequence[Arrival], offers: Sequence[Offer], **options: object) -> float:
    return lower_bound(workload_of("tiny", jobs), offers, **options).usd  # type: ignore[arg-type]


SMALL, LARGE = offer("small", 1, 1.0), offer("large", 4, 3.0)


def test_work_that_fills_the_cheapest_machines_costs_just_that() -> None:
    assert usd([job(0, 1), job(0, 1), job(0, 2)], [SMALL]) == pytest.approx(4.0)
    assert usd([job(0, 1)] * 8, [SMALL, LARGE]) == pytest.approx(8 * 3.0 / 4)


def test_a_large_job_pays_for_a_machine_large_enough() -> None:
    dear = offer("large", 4, 8.0)
    assert usd([job(0, 1, vcpus=3)], [SMALL, dear]) == pytest.approx(3 * 8.0 / 4)


def test_spot_is_for_those_that_may_be_interrupted() -> None:
    spot = offer("small", 1, 0.25, Market.SPOT)
    assert usd([job(0, 1), job(0, 1, firm=True)], [SMALL, spot]) == pytest.approx(1.25)


def test_reserved_machines_are_paid_to_the_last_arrival_and_free_till_then() -> None:
    reserved = offer("small", 1, 0.5, Market.RESERVED, available=1)
    found = lower_bound(workload_of("tiny", [job(0, 2), job(4, 1)]), [SMALL, reserved])
    assert found.committed_usd == pytest.approx(2.0)
    # The hour after the last arrival is paid as well, at the reserved price.
    assert found.usd == pytest.approx(2.5)


def test_deadlines_never_lower_the_bound() -> None:
    reserved = offer("small", 1, 0.5, Market.RESERVED, available=1)
    jobs = [job(0, 1, by_h=1.0), job(0, 1, by_h=1.0), job(3, 0.5, by_h=0.5)]
    kept, whenever = usd(jobs, [SMALL, reserved]), usd(jobs, [SMALL, reserved], keep_deadlines=False)
    assert (kept, whenever) == (pytest.approx(1.5 + 1.0 + 0.25), pytest.approx(1.5 + 0.25))


def test_faster_machines_lower_the_bound() -> None:
    assert usd([job(0, 2)], [SMALL], fastest=2.0) == pytest.approx(1.0)


def test_gangs_need_all_their_ranks() -> None:
    each = job(0, 1)
    pair = Arrival(at_s=0.0, run_s=HOUR_S, spec=JobSpec(
        name="pair", user="ada", command=("simulated",), target=BestEffortTarget(), nodes=Nodes(count=2, minimum=2),
        resources=each.spec.resources,
    ))  # fmt: skip
    assert usd([pair], [SMALL]) == pytest.approx(2.0)


def test_jobs_that_may_get_fewer_vcpus_lower_the_bound() -> None:
    asks_for_four = job(0, 1, vcpus=4)
    sized = replace(asks_for_four, spec=replace(asks_for_four.spec, vcpus_within=(1.0, 8.0)))
    # A planner that sizes jobs ran it on one vCPU, for as long: with four the bound would be above what that cost.
    assert usd([asks_for_four], [offer("large", 4, 4.0)]) == pytest.approx(4.0)
    roomy = replace(LARGE, instance_type=replace(LARGE.instance_type, capacity=Resources(vcpus=4, memory_mib=16384)))
    assert usd([sized], [roomy]) == pytest.approx(0.75)


def test_run_time_is_that_of_the_first_rank_to_end() -> None:
    def told(kind: EventKind, at: float, **fields: object) -> Event:
        return Event(seq=0, at=at, kind=kind, job_id="job-1", fields=fields)

    ended = [
        told(EventKind.UNIT_ENDED, 30.0, attempt="a1", rank=0, started_at=10.0),  # an attempt that was lost
        told(EventKind.UNIT_ENDED, 160.0, attempt="a2", rank=0, started_at=100.0),
        told(EventKind.UNIT_ENDED, 190.0, attempt="a2", rank=1, started_at=100.0),
    ]
    log = [
        told(EventKind.JOB_SUBMITTED, 0.0),
        *ended,
        told(EventKind.JOB_FINISHED, 190.0, state="succeeded", run_s=90.0),
    ]
    work = workload_of("pair", [job(0, 1)])
    assert run_times_s(work, log) == (60.0,)
    assert run_times_s(work, log[:-1]) == (math.inf,)


def test_infeasible_deadlines_are_refused() -> None:
    reserved = offer("small", 1, 0.5, Market.RESERVED, available=1)
    with pytest.raises(BadInput, match="no planner could run this workload"):
        usd([job(0, 1, by_h=1.0), job(0, 1, by_h=1.0)], [reserved])
    assert usd([job(0, 1, vcpus=64)], [SMALL]) == 0.0


def test_prices_that_move_count_at_their_lowest() -> None:
    at_times = [[offer("small", 1, usd_per_h, Market.SPOT)] for usd_per_h in (0.5, 0.2, 0.4)]
    assert [each.price_usd_per_h for each in lowest_prices(at_times)] == [0.2]


# -------------------------------------------------------------------------------------------------------- by trying all
def cheapest_by_trying(jobs: Sequence[Arrival], offers: Sequence[Offer], hours: int) -> float:
    """Return the least cost of all schedules on whole hours; no bound may exceed it.

    Tries every start of every job on every machine of a small fleet, rented by the hour.
    """
    fleet = [offer for offer in offers for _ in jobs]
    best = np.inf
    begins = [
        [at for at in range(hours) if at * HOUR_S >= each.at_s and at * HOUR_S + each.run_s <= _by_s(each, hours)]
        for each in jobs
    ]
    for starts in itertools.product(*begins):
        for places in itertools.product(range(len(fleet)), repeat=len(jobs)):
            best = min(best, _cost_usd(jobs, fleet, starts, places, hours))
    return float(best)


def _by_s(each: Arrival, hours: int) -> float:
    target = each.spec.target
    return each.at_s + float(target.finish_within_s or 0) if isinstance(target, BatchTarget) else hours * HOUR_S


def _cost_usd(
    jobs: Sequence[Arrival], fleet: Sequence[Offer], starts: Sequence[int], places: Sequence[int], hours: int
) -> float:
    held = np.zeros((len(fleet), hours))
    for each, start, place in zip(jobs, starts, places, strict=True):
        held[place, start : start + round(each.run_s / HOUR_S)] += each.spec.resources.vcpus
    sizes = np.array([each.instance_type.capacity.vcpus for each in fleet])
    prices = np.array([each.price_usd_per_h for each in fleet])
    return float("inf") if (held > sizes[:, None]).any() else float(((held > 0) * prices[:, None]).sum())


def tiny(seed: int) -> Workload:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(3):
        at_h, run_h = int(rng.integers(0, 2)), int(rng.integers(1, 3))
        by_h = run_h + int(rng.integers(0, 2)) if rng.random() < 0.7 else None
        made.append(job(at_h, run_h, float(rng.integers(1, 3)), None if by_h is None else float(by_h)))
    return workload_of("tiny", made)


TYPES = (offer("one", 1, 1.0), offer("two", 2, 1.7))


@pytest.mark.parametrize("seed", range(5))
def test_it_is_never_above_the_best_of_all_schedules(seed: int) -> None:
    work = tiny(seed)
    best = cheapest_by_trying(work.arrivals, TYPES, hours=4)
    assert 0 < lower_bound(work, TYPES).usd <= best + 1e-6


def test_overcounting_exceeds_the_best_schedule() -> None:
    # The seeded fault: machines are priced as if each job had the dearest one for itself.
    dearer = [offer("two", 2, 3.4)]
    assert any(
        lower_bound(tiny(seed), dearer).usd > cheapest_by_trying(tiny(seed).arrivals, TYPES, hours=4)
        for seed in range(5)
    )
