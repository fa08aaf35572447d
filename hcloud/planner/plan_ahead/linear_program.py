"""Which jobs start when, and where: a linear program over slots of time and pools of machines (3Sigma §4.3.3).

Variables are the share of each job that takes each of its options (pool, start), and the share of each running job that
is stopped. The program maximises the expected utility of what is started, less the cost of what is stopped, such that
each job takes at most one option and, at the start of each slot and in each pool, jobs are expected to need no more
than is expected to be free there. A job may be spread over several pools.

All but a few jobs take one option whole, as there are few constraints but those of jobs. The others are rounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from hcloud.forecast.runtimes.distribution import RunTimes
from hcloud.planner.plan_ahead.expected import Floats, Utility, expected_rest, expected_use, expected_utility

ROUNDED = 0.5
"""Others are stopped for a job only if at least this share of it starts now."""
WHOLE = 1.0 - 1e-6
LEAST_SHARE = 1e-3
MOST_ITERATIONS = 20_000
"""Limit of the solver's steps; where it is reached, nothing is planned."""
_TIES = 1e-5
_SLACK = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOption:
    """Pools that serve a job equally well."""

    pools: frozenset[int]
    stretch: float = 1.0
    """How many times as long the job runs there."""
    usd: float = 0.0
    """What it costs to run there, beyond what is paid anyway."""
    delay_s: float = 0.0
    """How long it takes until the job starts there."""
    lasting: bool = True
    """Whether that room is there later, too; else jobs may start there now only, and keep it while they run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingJob:
    """A job that waits."""

    number: int
    amount: float
    """How much room it needs."""
    run_time: RunTimes
    utility: Utility
    places: tuple[StartOption, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job that holds room."""

    number: int
    amounts: Mapping[int, float]
    """How much room it holds, by pool."""
    run_time: RunTimes
    age_s: float
    stretch: float = 1.0
    stop_cost: float | None = None
    """What it costs to stop it; None: it may not be stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStart:
    """A job that starts now."""

    number: int
    place: int
    """Number of the place among those of the job."""
    amounts: Mapping[int, float]
    """How much room it takes, by pool."""
    share: float
    """How much of the job the linear program starts now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What to do now, and what is expected later."""

    starting: tuple[JobStart, ...] = ()
    """In the order in which they should take their room."""
    stopping: tuple[int, ...] = ()
    """Numbers of running jobs that make room."""
    starts_s: Mapping[int, float] = field(default_factory=dict)
    """When the others are expected to start, from now. Jobs without an entry are not worth their room at present."""
    bound: float = 0.0
    """No schedule is worth more, by what is expected."""
    value: float = 0.0
    """What the starts are worth, less what is stopped for them."""


def schedule(
    waiting: Sequence[PendingJob],
    running: Sequence[RunningJob],
    capacity: Mapping[int, float],
    starts_s: Floats,
) -> Schedule:
    """Return which of the ``waiting`` jobs start now.

    ``capacity``: the room of each pool, that of running jobs included; ``starts_s``: the starts of the slots, the first
    one now, ascending, shape ``(T,)``. The same jobs in the same order always give the same schedule.
    """
    if not waiting:
        return Schedule()
    program = _LinearProgram(waiting, running, capacity, starts_s)
    if not program.keys:
        return Schedule()
    return program.rounded(program.solve())


class _LinearProgram:
    """The options of all jobs as columns: ``N`` of them, each of one job, place, pool and slot."""

    def __init__(
        self,
        waiting: Sequence[PendingJob],
        running: Sequence[RunningJob],
        capacity: Mapping[int, float],
        starts_s: Floats,
    ) -> None:
        self.waiting, self.running, self.starts_s, self.capacity = waiting, running, starts_s, capacity
        self.pools = {pool: at for at, pool in enumerate(sorted(capacity))}
        self.rests = [expected_rest(each.run_time, each.age_s, starts_s, each.stretch) for each in running]
        self.stoppable = [at for at, each in enumerate(running) if each.stop_cost is not None]
        self.bound = 0.0
        self.keys = list[tuple[int, int, int, int]]()
        """Job, place, pool and slot of each column."""
        self.worth, self.uses = np.zeros(0), np.zeros((0, len(starts_s)))
        """What each column is worth, shape ``(N,)``, and expects to use at the start of each slot, ``(N, T)``."""
        self._add_columns()

    def _add_columns(self) -> None:
        since_s = self.starts_s[None, :] - self.starts_s[:, None]  # from each start to each slot
        worths, uses = list[Floats](), list[Floats]()
        for at, job in enumerate(self.waiting):
            covered = frozenset[int]()  # pools of places before, where it is worth no less
            for number, place in enumerate(job.places):
                pools, covered = sorted(place.pools - covered), covered | place.pools
                begins_s = self.starts_s + place.delay_s
                worth = expected_utility(job.utility, job.run_time, begins_s, place.stretch) - place.usd
                if not place.lasting:
                    worth[1:] = 0.0
                slots = (worth > _SLACK).nonzero()[0]
                if not (slots.size and pools):
                    continue
                use = job.amount * expected_use(job.run_time, since_s[slots], place.stretch)
                if not place.lasting:
                    use[:, 1:] = 0.0
                self.keys += [(at, number, self.pools[pool], slot) for pool in pools for slot in slots.tolist()]
                worths += [worth[slots]] * len(pools)
                uses += [use] * len(pools)
        if self.keys:
            self.worth, self.uses = np.concatenate(worths), np.concatenate(uses)

    def _expected_free(self) -> Floats:
        """Return the room expected to be free in each pool at the start of each slot, shape ``(pools, T)``."""
        free: Floats = np.repeat(np.array([[self.capacity[pool]] for pool in self.pools]), len(self.starts_s), axis=1)
        for each, rest in zip(self.running, self.rests, strict=True):
            for pool, amount in each.amounts.items():
                free[self.pools[pool]] -= amount * rest
        np.maximum(free, 0.0, out=free)
        return free

    def solve(self) -> Floats:
        """Return the share of each option, and of each job that can be stopped, shape ``(N + stoppable,)``."""
        # Slow to import: a daemon whose jobs need no plan does without.
        from scipy.optimize import linprog
        from scipy.sparse import csr_array

        jobs, slots, count = len(self.waiting), len(self.starts_s), len(self.keys)
        job_of, _, pool_of, slot_of = np.array(self.keys).T
        # Rows: one per job, then one per pool and slot.
        at, slot = (self.uses > _SLACK).nonzero()
        rows = [job_of, jobs + pool_of[at] * slots + slot]
        columns, values = [np.arange(count), at], [np.ones(count), self.uses[at, slot]]
        costs = list[float]()
        for number, of in enumerate(self.stoppable):
            each = self.running[of]
            costs.append(float(each.stop_cost or 0.0) * (1.0 + _TIES * number))
            for pool, amount in each.amounts.items():
                rows.append(jobs + self.pools[pool] * slots + np.arange(slots))
                columns.append(np.full(slots, count + number))
                values.append(-amount * self.rests[of])
        limits = np.concatenate((np.ones(jobs), self._expected_free().ravel()))
        entries = (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))
        matrix = csr_array(entries, shape=(len(limits), count + len(costs)))
        # Of equal options the earliest is best, and of equal jobs the first: no other vertex is optimal.
        worth = self.worth * (1.0 - _TIES * (slot_of + (job_of / jobs + pool_of / len(self.pools)) / 4))
        solved = linprog(
            np.concatenate((-worth, np.array(costs))),
            A_ub=cast(Any, matrix),  # its stubs know dense matrices only
            b_ub=limits,
            bounds=(0.0, 1.0),
            method="highs-ds",
            options={"maxiter": MOST_ITERATIONS},
        )
        if solved.status != 0:
            return np.zeros(count + len(costs))
        shares = np.asarray(solved.x, dtype=np.float64)
        self.bound = float(self.worth @ shares[:count] - np.array(costs) @ shares[count:])
        return shares

    # --------------------------------------------------------------------------------------------------------- rounding
    def rounded(self, shares: Floats) -> Schedule:
        """Return whole starts: first of jobs of which all starts now, then of others by what their part is worth."""
        now, worth, later = dict[int, dict[int, float]](), dict[tuple[int, int], float](), dict[int, float]()
        by_pool, names = dict[tuple[int, int], float](), list(self.pools)
        for column in (shares[: len(self.keys)] >= LEAST_SHARE).nonzero()[0].tolist():
            job, place, pool, slot = self.keys[column]
            if slot == 0:
                by_pool[job, names[pool]] = by_pool.get((job, names[pool]), 0.0) + float(shares[column])
                places = now.setdefault(job, {})
                places[place] = places.get(place, 0.0) + float(shares[column])
                worth[job, place] = float(self.worth[column])
            elif job not in later or shares[column] > ROUNDED:
                later[job] = float(self.starts_s[slot])
        share_of = {job: min(1.0, sum(places.values())) for job, places in now.items()}
        density = {
            job: max([worth[job, place] for place in places]) / max(self.waiting[job].amount, _SLACK)
            for job, places in now.items()
        }
        ranked = sorted(now, key=lambda job: (share_of[job] < WHOLE, -share_of[job] * density[job], job))
        room, stopped, starting = self._free_now(), dict[int, None](), list[JobStart]()
        stops = self._stops(shares)
        for job in ranked:
            each = self.waiting[job]
            for place in sorted(now[job], key=lambda number: (-now[job][number], number)):
                pools = each.places[place].pools
                lacks = each.amount - sum([room[pool] for pool in pools])
                chosen = list[int]()
                if lacks > _SLACK:
                    chosen = self._to_stop(stops, stopped, pools, lacks) if share_of[job] >= ROUNDED else []
                    if not chosen:
                        continue
                for at in chosen:
                    stopped[at] = None
                    for pool, held in self.running[at].amounts.items():
                        room[pool] += held
                order = sorted(pools, key=lambda pool: (-by_pool.get((job, pool), 0.0), -room[pool], pool))
                taken = _take(room, order, each.amount)
                starting.append(JobStart(number=each.number, place=place, amounts=taken, share=share_of[job]))
                break
            else:
                later.setdefault(job, float(self.starts_s[1]))
        numbers = [each.number for each in self.waiting]
        job_at = {number: at for at, number in enumerate(numbers)}
        started = {each.number for each in starting}
        value = sum([worth[job_at[each.number], each.place] for each in starting])
        return Schedule(
            starting=tuple(starting),
            stopping=tuple(sorted(self.running[at].number for at in stopped)),
            starts_s={numbers[job]: at_s for job, at_s in later.items() if numbers[job] not in started},
            bound=self.bound,
            value=value - sum([self.running[at].stop_cost or 0.0 for at in stopped]),
        )

    def _stops(self, shares: Floats) -> list[int]:
        """Return the running jobs of which a part is stopped, those first of which most is."""
        parts = {at: float(shares[len(self.keys) + number]) for number, at in enumerate(self.stoppable)}
        return sorted([at for at, part in parts.items() if part > LEAST_SHARE], key=lambda at: (-parts[at], at))

    def _free_now(self) -> dict[int, float]:
        room = dict(self.capacity)
        for each in self.running:
            for pool, amount in each.amounts.items():
                room[pool] -= amount
        return room

    def _to_stop(
        self, stops: Sequence[int], stopped: Mapping[int, None], pools: frozenset[int], lacks: float
    ) -> list[int]:
        """Return which of ``stops`` make room for ``lacks`` in these pools; none if all of them do not."""
        chosen = list[int]()
        for at in stops:
            given = sum([amount for pool, amount in self.running[at].amounts.items() if pool in pools])
            if given > 0.0 and at not in stopped:
                chosen.append(at)
                lacks -= given
                if lacks <= _SLACK:
                    return chosen
        return []


def _take(room: dict[int, float], pools: Sequence[int], amount: float) -> dict[int, float]:
    """Take ``amount`` of the room of ``pools``, in this order; return how much of each."""
    taken = dict[int, float]()
    for pool in pools:
        part = min(room[pool], amount)
        if part > _SLACK:
            taken[pool] = part
            room[pool] -= part
            amount -= part
    return taken
