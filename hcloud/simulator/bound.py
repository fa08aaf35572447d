"""A lower bound on the cost of a workload: a linear program with perfect knowledge that may rent fractions of machines.

Time is cut into slots. Variables are the machine-seconds rented of each offer in each slot (``rented``) and the seconds
each job runs in each slot (``run``). The program minimises the price of what is rented, such that

  * each job runs for its whole run time after its arrival, in each slot for no longer than its window overlaps the
    slot, and before its deadline if deadlines are kept;
  * in each slot, for vCPUs, memory and each class of jobs (jobs that need at least so many vCPUs, jobs that may not run
    on spot): the resource-seconds the class holds are at most those rented on machines that may serve the class.

*Why this is a lower bound.* Take any real schedule in which every job succeeds. Let ``rented`` be how long its machines
of each offer were paid for in each slot, and ``run`` how long each job ran there in its successful attempt. At each
moment the jobs on a machine hold no more than it has, and each is on a machine that is large enough and of a permitted
market. Integrated over a slot and summed over machines, that is the second constraint. The first holds because every
job ran from start to end after it arrived. So the schedule is a feasible solution, and it cost at least its objective:
bills also include boot times, idle time, failed attempts, billing minimums and prices above the lowest. The optimum is
at most that. Relaxations only drop constraints or make quantities divisible. Machines faster than stated would break
the first constraint, so run times are divided by ``fastest``, the highest possible speed. A job sized by the planner
counts with its minimum size.

Reserved machines are paid for from the start to the last arrival at least, used or not. So until then they are free to
use and their price is added. Afterwards each second of use costs its price, as a reserved fleet is paid for while any
of it is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hcloud.core.errors import BadInput
from hcloud.core.model import BatchTarget, Market, Offer
from hcloud.core.pricing import HOUR_S
from hcloud.simulator.workload import Arrival, Workload

if TYPE_CHECKING:
    from scipy.sparse import coo_array

SLOTS = 120
"""Number of slots up to the last arrival; more slots make the bound tighter and slower to compute."""
SIZES = 6
"""The maximum number of job classes by size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A lower bound on cost."""

    usd: float
    """No schedule costs less."""
    committed_usd: float
    """The part of ``usd`` for reserved machines up to the last arrival."""
    deadlines_kept: bool
    slots: int
    in_time_usd: float | None = None
    """No schedule that keeps all deadlines costs less; None: there is none, or it was not asked for."""


@dataclass(frozen=True, slots=True)
class _Machines:
    """Offers as arrays, each of shape ``(M,)``."""

    vcpus: np.ndarray
    memory_mib: np.ndarray
    usd_per_s: np.ndarray
    count: np.ndarray
    """Infinite if unlimited."""
    not_spot: np.ndarray
    reserved: np.ndarray


class _Rows:
    """Sparse constraints ``A x <= b``."""

    def __init__(self) -> None:
        self.rows: list[np.ndarray] = []
        self.columns: list[np.ndarray] = []
        self.values: list[np.ndarray] = []
        self.limits: list[np.ndarray] = []
        self.count = 0

    def add(self, rows: np.ndarray, columns: np.ndarray, values: np.ndarray, limits: np.ndarray) -> None:
        """Add ``len(limits)`` constraints; ``rows`` counts from 0 among them."""
        self.rows.append(rows + self.count)
        self.columns.append(columns)
        self.values.append(values)
        self.limits.append(limits)
        self.count += len(limits)

    def matrix(self, width: int) -> coo_array:
        """Return ``A``, of shape ``(count, width)``."""
        from scipy.sparse import coo_array

        entries = (np.concatenate(self.values), (np.concatenate(self.rows), np.concatenate(self.columns)))
        return coo_array(entries, shape=(self.count, width))


def lower_bound(
    workload: Workload,
    offers: Sequence[Offer],
    *,
    keep_deadlines: bool = True,
    fastest: float = 1.0,
    slots: int = SLOTS,
) -> Bound:
    """Return a lower bound on the cost of ``workload`` on ``offers``, each at its lowest price.

    ``fastest`` is the highest speed of a machine, as a factor on run times. Jobs that fit on no offer cost nothing.
    Raises BadInput if not even a perfect planner could serve the others.
    """
    machines = _machines(offers)
    jobs = [each for each in workload.arrivals if _fits(each, machines)]
    if not jobs:
        return Bound(usd=0.0, committed_usd=0.0, deadlines_kept=keep_deadlines, slots=0)
    last_at_s = max(each.at_s for each in jobs)
    edges = _edges(jobs, last_at_s, slots, keep_deadlines)
    usd = _solve(_job_classes(jobs, edges, keep_deadlines, fastest), machines, edges, last_at_s)
    reserved = machines.reserved
    committed_usd = float((machines.count[reserved] * machines.usd_per_s[reserved]).sum()) * last_at_s
    return Bound(
        usd=usd + committed_usd, committed_usd=committed_usd, deadlines_kept=keep_deadlines, slots=len(edges) - 1
    )


def _machines(offers: Sequence[Offer]) -> _Machines:
    """Merge offers of one size and market; if their number is unlimited, only the cheapest counts."""
    rented: dict[tuple[float, int, bool], float] = {}
    rows: list[tuple[float, int, float, float, bool, bool]] = []
    for offer in offers:
        size, steady = offer.instance_type.capacity, offer.market is not Market.SPOT
        if offer.market is Market.RESERVED:
            if offer.available:
                rows.append((size.vcpus, size.memory_mib, offer.price_usd_per_h, float(offer.available), True, True))
            continue
        key = (size.vcpus, size.memory_mib, steady)
        rented[key] = min(rented.get(key, math.inf), offer.price_usd_per_h)
    rows += [(vcpus, mib, usd, math.inf, steady, False) for (vcpus, mib, steady), usd in sorted(rented.items())]
    table = np.array(rows, dtype=np.float64).reshape(-1, 6)
    return _Machines(
        vcpus=table[:, 0],
        memory_mib=table[:, 1],
        usd_per_s=table[:, 2] / HOUR_S,
        count=table[:, 3],
        not_spot=table[:, 4] > 0,
        reserved=table[:, 5] > 0,
    )


def _fits(job: Arrival, machines: _Machines) -> bool:
    fits = (machines.vcpus >= _least_vcpus(job)) & (machines.memory_mib >= job.spec.resources.memory_mib)
    return bool((fits & (machines.not_spot | job.spec.interruptible)).any())


def _edges(jobs: Sequence[Arrival], last_at_s: float, slots: int, keep_deadlines: bool) -> np.ndarray:
    """Return the boundaries of slots; the last slot is long enough for all remaining work."""
    tail_s = max((_window_s(each, keep_deadlines) for each in jobs), default=0.0)
    if math.isinf(tail_s):
        tail_s = sum(each.run_s for each in jobs) + 1.0
    width_s = max(last_at_s, 1.0) / slots
    within = np.arange(slots + 1) * width_s
    more = np.array([within[-1] + width_s * 2**n for n in range(64)])
    return np.concatenate((within, more[: int(np.searchsorted(more, last_at_s + tail_s)) + 1]))


def _window_s(job: Arrival, keep_deadlines: bool) -> float:
    """Return how long after its arrival a job may run."""
    target = job.spec.target
    if not keep_deadlines or not isinstance(target, BatchTarget):
        return math.inf
    by = target.deadline_at(0.0)
    return math.inf if by is None else max(by, job.run_s)


@dataclass(frozen=True, slots=True)
class _JobClasses:
    """Jobs with the same size, market and slots, summed: G classes over T slots."""

    vcpus: np.ndarray
    memory_gib: np.ndarray
    largest: np.ndarray
    uninterruptible: np.ndarray
    run_s: np.ndarray
    """What each class must run in total, shape ``(G,)``."""
    most_s: np.ndarray
    """What it can run in each slot, shape ``(G, T)``."""


def _job_classes(jobs: Sequence[Arrival], edges: np.ndarray, keep_deadlines: bool, fastest: float) -> _JobClasses:
    begins, ends = edges[:-1], edges[1:]
    run_s = np.array([each.run_s / fastest for each in jobs])
    at_s = np.array([each.at_s for each in jobs])
    until_s = at_s + np.array([_window_s(each, keep_deadlines) for each in jobs])
    overlap = np.minimum(until_s[:, None], ends) - np.maximum(at_s[:, None], begins)
    most_s = np.clip(overlap, 0.0, run_s[:, None])
    first = np.searchsorted(edges, at_s, side="right")
    last = np.searchsorted(edges, until_s, side="left")
    keys = [
        (*_size(each), not each.spec.interruptible, int(a), int(b))
        for each, a, b in zip(jobs, first, last, strict=True)
    ]
    places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    class_of = np.array([places[key] for key in keys])
    total_s, most = np.zeros(len(places)), np.zeros((len(places), len(begins)))
    np.add.at(total_s, class_of, run_s)
    np.add.at(most, class_of, most_s)
    table = np.array([key[:4] for key in places], dtype=np.float64)
    return _JobClasses(
        vcpus=table[:, 0],
        memory_gib=table[:, 1],
        largest=table[:, 2],
        uninterruptible=table[:, 3] > 0,
        run_s=total_s,
        most_s=most,
    )


def _size(job: Arrival) -> tuple[float, float, float]:
    """Return vCPUs and GiB of all required ranks, and the vCPUs of one."""
    # GiB rather than MiB: the solver works best with coefficients near 1.
    need, ranks, vcpus = job.spec.resources, job.spec.nodes.needed, _least_vcpus(job)
    return ranks * vcpus, ranks * need.memory_mib / 1024, vcpus


def _least_vcpus(job: Arrival) -> float:
    """Return the fewest vCPUs with which a rank may run; a planner that sizes jobs may give less than requested."""
    requested, within = job.spec.resources.vcpus, job.spec.vcpus_within
    return requested if within is None else min(requested, within[0])


def _solve(classes: _JobClasses, machines: _Machines, edges: np.ndarray, last_at_s: float) -> float:
    """Return the cost (USD) of rented machines and, after the last arrival, of used reserved machines."""
    from scipy.optimize import linprog  # slow to import: half of the start of a command that asks for no bound

    begins, length_s = edges[:-1], np.diff(edges)
    class_of, slot_of = np.nonzero(classes.most_s > 0)
    rented = len(begins) * len(machines.vcpus)
    rows = _Rows()
    # Each class's run time: minus what it runs is at most minus what it must.
    runs = rented + np.arange(len(class_of))
    rows.add(class_of, runs, np.full(len(runs), -1.0), -classes.run_s)
    for own, good in _coverage_classes(classes, machines):
        for have, need in ((machines.vcpus, classes.vcpus), (machines.memory_mib / 1024, classes.memory_gib)):
            _cover(rows, np.where(good, have, 0.0), np.where(own, need, 0.0)[class_of], slot_of, len(begins))
    sunk = machines.reserved[None, :] & (begins < last_at_s)[:, None]
    price = np.where(sunk, 0.0, machines.usd_per_s[None, :])
    upper = np.concatenate(((machines.count[None, :] * length_s[:, None]).ravel(), classes.most_s[class_of, slot_of]))
    solved = linprog(
        np.concatenate((price.ravel(), np.zeros(len(runs)))),
        A_ub=cast(Any, rows.matrix(len(upper)).tocsr()),  # its stubs know dense matrices only
        b_ub=np.concatenate(rows.limits),
        bounds=[(0.0, most) for most in upper.tolist()],
        method="highs",
    )
    if solved.status != 0:
        raise BadInput(f"no planner could run this workload on this cloud in time: {solved.message}")
    return float(solved.fun or 0.0)


def _coverage_classes(classes: _JobClasses, machines: _Machines) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return pairs of masks, job classes and the offers that may serve them: by minimum size, and without spot."""
    kinds: dict[tuple[bytes, bytes], tuple[np.ndarray, np.ndarray]] = {}
    for size in [0.0, *np.unique(machines.vcpus)][:SIZES]:
        for steady in (False, True):
            own = (classes.largest > size) & (classes.uninterruptible | (not steady))
            good = (machines.vcpus > size) & (machines.not_spot | (not steady))
            if own.any():
                kinds.setdefault((own.tobytes(), good.tobytes()), (own, good))
    return list(kinds.values())


def _cover(rows: _Rows, have: np.ndarray, need: np.ndarray, slot_of: np.ndarray, count: int) -> None:
    """Add for each slot: the amount held minus the amount rented for it is at most 0."""
    offers = len(have)
    mine, good = np.flatnonzero(need), np.flatnonzero(have)
    columns = (np.arange(count)[:, None] * offers + good[None, :]).ravel()
    rows.add(
        np.concatenate((np.repeat(np.arange(count), len(good)), slot_of[mine])),
        np.concatenate((columns, count * offers + mine)),
        np.concatenate((-np.tile(have[good], count), need[mine])),
        np.zeros(count),
    )


def lowest_prices(catalogues: Sequence[Sequence[Offer]]) -> tuple[Offer, ...]:
    """Return each offer at its lowest price in any of the ``catalogues``, sorted by key."""
    lowest: dict[tuple[str, str, str, str], Offer] = {}
    for catalogue in catalogues:
        for offer in catalogue:
            known = lowest.get(offer.key)
            if known is None or offer.price_usd_per_h < known.price_usd_per_h:
                lowest[offer.key] = replace(offer, available=offer.available if known is None else known.available)
    return tuple(lowest[key] for key in sorted(lowest))
