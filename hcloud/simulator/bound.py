"""The least that a workload can cost: a linear program that knows everything beforehand and rents parts of machines.

Time is cut into slots. For each slot and offer there is an amount of machine time (``rented``, in machine-seconds), for
each job and slot the time it runs there (``run``). The program minimises the price of what is rented, such that

* each job runs for its whole run time, after its arrival, in no slot longer than its window overlaps the slot and,
  where deadlines are to be kept, before its deadline;
* in each slot, for vCPUs and for memory, and for each kind of job (those that need at least so many vCPUs, those that
  may not run on spot machines): what jobs of the kind hold, times how long, is at most what machines good enough for
  them have, times how long they are rented.

*Why this is a lower bound.* Take any real schedule in which every job succeeds. Let ``rented`` be how long its machines
of each offer were paid for in each slot, and ``run`` how long each job ran there in its successful attempt. At each
moment the jobs on a machine hold no more than it has, and each is on a machine large enough and of a market it allows;
integrated over a slot and summed over machines that is the second kind of constraint. The first kind holds because
every job ran from start to end after it arrived. So the schedule is one solution of the program, and it cost at least
what the program counts: bills also hold boot times, idle time, failed attempts, billing minimums and prices above the
lowest. The optimum is at most this solution's price. What is relaxed is only left out or made divisible: nothing a
real planner must do is asked less cheaply than it can be had. Machines that run jobs faster than stated would break
the first constraint, so run times are divided by ``fastest``, the speed of the fastest machine there can be. A job
sized by the planner counts with the least it may get.

Reserved machines are paid for from the beginning to the last arrival at least, used or not, so until then they are
free to use and their price is added; afterwards each second of use costs its price, as a fleet of reserved machines is
paid for at least for as long as one of them is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from hcloud.core.errors import BadInput
from hcloud.core.model import BatchTarget, Market, Offer
from hcloud.core.pricing import HOUR_S
from hcloud.simulator.workload import Arrival, Workload

SLOTS = 120
"""Into how many slots the time of arrivals is cut, unless said otherwise: more make the bound tighter, and slower."""
SIZES = 6
"""So many kinds of jobs by size are told apart at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """``usd``: no schedule costs less. ``committed_usd`` of it is for reserved machines up to the last arrival."""

    usd: float
    committed_usd: float
    deadlines_kept: bool
    slots: int


@dataclass(frozen=True, slots=True)
class _Machines:
    """Offers as arrays over M offers; ``count`` is infinite where no limit is stated."""

    vcpus: np.ndarray
    memory_mib: np.ndarray
    usd_per_s: np.ndarray
    count: np.ndarray
    not_spot: np.ndarray
    reserved: np.ndarray


class _Rows:
    """Collects sparse constraints ``A x <= b``."""

    def __init__(self) -> None:
        self.rows: list[np.ndarray] = []
        self.columns: list[np.ndarray] = []
        self.values: list[np.ndarray] = []
        self.limits: list[np.ndarray] = []
        self.count = 0

    def add(self, rows: np.ndarray, columns: np.ndarray, values: np.ndarray, limits: np.ndarray) -> None:
        """Add ``len(limits)`` rows; ``rows`` counts from 0 among them."""
        self.rows.append(rows + self.count)
        self.columns.append(columns)
        self.values.append(values)
        self.limits.append(limits)
        self.count += len(limits)

    def matrix(self, width: int) -> coo_array:
        """Return A."""
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
    """Return the least that ``workload`` can cost on ``offers`` (each at the lowest price it ever has).

    ``fastest``: the highest speed a machine can have, as a factor on run times. Jobs that fit on no offer are left
    out, as they cost nothing. Raises BadInput where not even a perfect planner could serve the others.
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
    """Merge offers of one size and market: the cheapest of them is as good as any, where its number is not limited."""
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
    """Return where slots begin and end; the last one is long enough for everything that is left to be done in it."""
    tail_s = max((_window_s(each, keep_deadlines) for each in jobs), default=0.0)
    if math.isinf(tail_s):
        tail_s = sum(each.run_s for each in jobs) + 1.0
    width_s = max(last_at_s, 1.0) / slots
    within = np.arange(slots + 1) * width_s
    more = np.array([within[-1] + width_s * 2**n for n in range(64)])
    return np.concatenate((within, more[: int(np.searchsorted(more, last_at_s + tail_s)) + 1]))


def _window_s(job: Arrival, keep_deadlines: bool) -> float:
    """Return how long after its arrival a job may still run."""
    target = job.spec.target
    if not keep_deadlines or not isinstance(target, BatchTarget):
        return math.inf
    by = target.deadline_at(0.0)
    return math.inf if by is None else max(by, job.run_s)


@dataclass(frozen=True, slots=True)
class _JobClasses:
    """Jobs alike in size, market and the slots they may run in, added up: G crowds over T slots.

    ``run_s``: ``(G,)``, what each must run in all; ``most_s``: ``(G, T)``, what it can run in each slot.
    """

    vcpus: np.ndarray
    memory_gib: np.ndarray
    largest: np.ndarray
    uninterruptible: np.ndarray
    run_s: np.ndarray
    most_s: np.ndarray


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
    crowd_of = np.array([places[key] for key in keys])
    total_s, most = np.zeros(len(places)), np.zeros((len(places), len(begins)))
    np.add.at(total_s, crowd_of, run_s)
    np.add.at(most, crowd_of, most_s)
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
    """Return vCPUs and GiB (numbers near 1 are solved best) of all ranks that must run, and vCPUs of one."""
    need, ranks, vcpus = job.spec.resources, job.spec.nodes.needed, _least_vcpus(job)
    return ranks * vcpus, ranks * need.memory_mib / 1024, vcpus


def _least_vcpus(job: Arrival) -> float:
    """Return with how few vCPUs a rank may be run: a planner that sizes jobs may give less than what is asked for."""
    asked, within = job.spec.resources.vcpus, job.spec.vcpus_within
    return asked if within is None else min(asked, within[0])


def _solve(crowds: _JobClasses, machines: _Machines, edges: np.ndarray, last_at_s: float) -> float:
    """Solve the program; return what is rented and, after the last arrival, what of the reserved is used, in USD."""
    begins, length_s = edges[:-1], np.diff(edges)
    crowd_of, slot_of = np.nonzero(crowds.most_s > 0)
    rented = len(begins) * len(machines.vcpus)
    rows = _Rows()
    # Each crowd's run time: minus what it runs is at most minus what it must.
    runs = rented + np.arange(len(crowd_of))
    rows.add(crowd_of, runs, np.full(len(runs), -1.0), -crowds.run_s)
    for own, good in _coverage_classes(crowds, machines):
        for have, need in ((machines.vcpus, crowds.vcpus), (machines.memory_mib / 1024, crowds.memory_gib)):
            _cover(rows, np.where(good, have, 0.0), np.where(own, need, 0.0)[crowd_of], slot_of, len(begins))
    sunk = machines.reserved[None, :] & (begins < last_at_s)[:, None]
    price = np.where(sunk, 0.0, machines.usd_per_s[None, :])
    upper = np.concatenate(((machines.count[None, :] * length_s[:, None]).ravel(), crowds.most_s[crowd_of, slot_of]))
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


def _coverage_classes(crowds: _JobClasses, machines: _Machines) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return masks of crowds and of the offers that may serve them: all, the larger ones, those not for spot."""
    kinds: dict[tuple[bytes, bytes], tuple[np.ndarray, np.ndarray]] = {}
    for size in [0.0, *np.unique(machines.vcpus)][:SIZES]:
        for steady in (False, True):
            own = (crowds.largest > size) & (crowds.uninterruptible | (not steady))
            good = (machines.vcpus > size) & (machines.not_spot | (not steady))
            if own.any():
                kinds.setdefault((own.tobytes(), good.tobytes()), (own, good))
    return list(kinds.values())


def _cover(rows: _Rows, have: np.ndarray, need: np.ndarray, slot_of: np.ndarray, count: int) -> None:
    """Add for each slot: what is held in it, less what is rented for that, is at most nothing."""
    offers = len(have)
    mine, good = np.flatnonzero(need), np.flatnonzero(have)
    columns = (np.arange(count)[:, None] * offers + good[None, :]).ravel()
    rows.add(
        np.concatenate((np.repeat(np.arange(count), len(good)), slot_of[mine])),
        np.concatenate((columns, count * offers + mine)),
        np.concatenate((-np.tile(have[good], count), need[mine])),
        np.zeros(count),
    )


def lowest_prices(seen: Sequence[Sequence[Offer]]) -> tuple[Offer, ...]:
    """Return each offer at the lowest price it had in any of the catalogues ``seen``, sorted by key."""
    lowest: dict[tuple[str, str, str, str], Offer] = {}
    for catalogue in seen:
        for offer in catalogue:
            known = lowest.get(offer.key)
            if known is None or offer.price_usd_per_h < known.price_usd_per_h:
                lowest[offer.key] = replace(offer, available=offer.available if known is None else known.available)
    return tuple(lowest[key] for key in sorted(lowest))
