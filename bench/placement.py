"""The targets of placement by what is known of jobs: one decision, a queue placed, and admission by quality."""

from __future__ import annotations

import math
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from bench.planner import _fleet, _job
from bench.rows import Row
from hcloud.core.estimates import Classification, Estimate, Measure
from hcloud.core.model import Job
from hcloud.planner import make_plan
from hcloud.planner.admission import admit
from hcloud.planner.context import open_context
from hcloud.planner.fit.interference import PressureState, Sensitivity, open_pressure
from hcloud.planner.fit.paragon import Pools, select, select_relaxed
from hcloud.planner.placement.orders.least_loss import least_loss_choice
from hcloud.planner.placement.orders.sampled import MOST_DRAWN, drawn
from hcloud.planner.plan import Place
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import AdmissionPolicy, Caps, PlacementPolicy, Policy

SOURCES = tuple(f"soi-{k:02}" for k in range(10))
APPLICATIONS = 40
FLEETS = ((1_000, 0.5), (100_000, 8.0))
QUEUED = 10_000
PLACEABLE = 3_000
INSTANCES = 1_000
ROUNDS = 25
BYTES_PER_SERVER = 1024
_POLICY = Policy(
    placement=PlacementPolicy(order="paragon"),
    admission=AdmissionPolicy(queues="by_quality", order="shortest"),
    caps=Caps(max_instances=INSTANCES, max_vcpus=None),
)


def run() -> list[Row]:
    """Measure single selections on fleets with residents, many placements in one plan, and admission of a queue."""
    known = _applications()
    rows = [row for machines, target in FLEETS for row in _selecting(known, machines, target)]
    return [*rows, *_sampling(known), _memory(known), _placing(known), _admitting(known)]


def _applications() -> dict[str, Classification]:
    rng = np.random.default_rng(1)

    def estimates(low: float, high: float) -> dict[str, Estimate]:
        """Return an estimate per source in percent, with limits 10 % either side."""
        values = rng.uniform(low, high, len(SOURCES))
        return {
            s: Estimate(value=v, low=0.9 * v, high=min(100.0, 1.1 * v)) for s, v in zip(SOURCES, values, strict=True)
        }

    return {
        f"app-{number}": Classification(
            by_type={
                "mock/m4": Estimate(value=1.0, low=0.9, high=1.1),
                "mock/m8": Estimate(value=2.0, low=1.8, high=2.2),
            },
            tolerated=estimates(40.0, 100.0),
            caused=estimates(0.0, 30.0),
            quality_target=Estimate(value=0.5, low=0.4, high=0.6),
            measure=Measure.COMPLETION,
        )
        for number in range(APPLICATIONS)
    }


def _estimate(value: float, most: float = math.inf) -> Estimate:
    return Estimate(value=value, low=0.9 * value, high=min(most, 1.1 * value))


def _state(known: dict[str, Classification], machines: int) -> PressureState:
    residents = [[f"app-{(at + 7 * k) % APPLICATIONS}" for k in range(at % 4)] for at in range(machines)]
    return open_pressure(known, residents, [False] * machines, confidence=0.9)


def _selecting(known: dict[str, Classification], machines: int, target: float) -> list[Row]:
    """Time one decision that starts from nothing (no view of the machines is kept), and one after one change."""
    pressure = _state(known, machines)
    everywhere, types = np.ones(machines, dtype=np.bool_), (np.arange(machines) % 5).astype(np.float64)
    who = list(pressure.known.values())

    def fresh(turn: int) -> None:
        """Decide with no view kept."""
        pressure.views.clear()
        _decide(pressure, who[turn % APPLICATIONS], everywhere, types)

    def again(turn: int) -> None:
        """Decide with views kept, for four applications in turn."""
        _decide(pressure, who[turn % 4], everywhere, types)

    def strained(turn: int) -> None:
        """Decide where nobody suits, so that the bar is relaxed step by step."""
        who_ = who[turn % APPLICATIONS]
        select_relaxed(pressure, who_, everywhere, types, neighbours_too=True, work_cells=20_000_000)

    size = f"{machines:,} servers"
    return [
        _timed(f"one placement among {size}", fresh, target),
        _timed(f"the same where the application was placed before, {size}", again, None),
        _timed(f"the search that relaxes, {size}", strained, target),
    ]


def _decide(pressure: PressureState, who: Sensitivity, everywhere: np.ndarray, types: np.ndarray) -> None:
    found = select(pressure, who, everywhere, types, pools=Pools.OF_BEST_TYPE)
    assert found is not None
    pressure.add(found.at, who)


def _timed(name: str, decide: Callable[[int], None], target: float | None) -> Row:
    decide(0)
    times_ms = []
    for turn in range(ROUNDS):
        began = time.perf_counter()
        decide(turn)
        times_ms.append((time.perf_counter() - began) * 1e3)
    return Row(name=name, value=statistics.median(times_ms), unit="ms", target=target)


def _sampling(known: dict[str, Classification]) -> Iterator[Row]:
    """Time one placement by sample in the largest fleet, and see how good the best of a sample is."""
    machines, count, rng = FLEETS[-1][0], MOST_DRAWN, np.random.default_rng(2)
    pressure, everywhere = _state(known, machines), np.ones(machines, dtype=np.bool_)
    types = (np.arange(machines) % 5) / 10.0
    who = list(pressure.known.values())

    def place(turn: int) -> None:
        """Draw and choose."""
        least_loss_choice(pressure, who[turn % APPLICATIONS], drawn(rng, everywhere, count), types)

    yield _timed(f"one placement by {count} draws among {machines:,} servers", place, 0.05)
    quality = rng.permutation(machines) / machines
    best = [quality[drawn(rng, everywhere, count)].max() for _ in range(1_000)]
    off = 100 * abs(statistics.fmean(best) - count / (count + 1))
    note = f"{100 * count / (count + 1):.1f} % expected, R / (R + 1)"
    yield Row(name="mean rank of the best of them, off by", value=off, unit="points", target=2.0, note=note)


def _memory(known: dict[str, Classification]) -> Row:
    """Measure what the state takes per server, residents and views included."""
    machines = 10_000
    tracemalloc.start()
    pressure = _state(known, machines)
    for who in list(pressure.known.values()):
        pressure.suits(who)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return Row(name="memory of the state", value=taken / machines, unit="B/server", target=BYTES_PER_SERVER)


def _known_job(job: Job, number: int) -> Job:
    return replace(job, application=f"app-{number % APPLICATIONS}", queued_at=job.submitted_at)


def _placing(known: dict[str, Classification]) -> Row:
    jobs = tuple(_known_job(_job(number, APPLICATIONS), number) for number in range(1, PLACEABLE + 1))
    snapshot = replace(_fleet(busy=0), jobs=jobs, applications=known)
    rates = []
    for _ in range(5):
        began = time.perf_counter()
        plan = make_plan(snapshot, _POLICY, np.random.default_rng(0))
        took_s = time.perf_counter() - began
        rates.append(PLACEABLE / took_s)
    placed = [action for action in plan.actions if isinstance(action, Place)]
    relaxed = sum("relaxed" in action.reason.numbers for action in placed)
    note = f"{len(placed)} placed, {relaxed} of them with something relaxed"
    name = f"decisions, {PLACEABLE:,} known jobs on {INSTANCES:,} servers"
    return Row(name=name, value=statistics.median(rates), unit="1/s", target=10_000, better="higher", note=note)


def _admitting(known: dict[str, Classification]) -> Row:
    """Time admission alone: who may go on, in which order, in which class."""
    snapshot = replace(_busy(), applications=known)
    times_ms = []
    for _ in range(ROUNDS):
        context = open_context(snapshot, _POLICY, np.random.default_rng(0))
        began = time.perf_counter()
        admit(context)
        times_ms.append((time.perf_counter() - began) * 1e3)
    return Row(
        name="admission of 10,000 queued jobs by quality", value=statistics.median(times_ms), unit="ms", target=20
    )


def _busy() -> Snapshot:
    fleet = _fleet(busy=2)
    first = 2 * INSTANCES
    held = tuple(_known_job(job, number) for number, job in enumerate(fleet.jobs))
    waiting = (_known_job(_job(first + number, APPLICATIONS), number) for number in range(1, QUEUED + 1))
    return replace(fleet, jobs=(*held, *waiting))
