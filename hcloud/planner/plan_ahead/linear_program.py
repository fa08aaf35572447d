"""Which jobs start when, and where: a linear program over slots of time and pools of machines (3Sigma §4.3.3).

Variables are the share of each job that takes each of its options (pool, start), and the share of each running job that
is stopped. The program maximises the expected utility of what is started, less the cost of what is stopped, such that
each job takes at most one option and, at the start of each slot, jobs are expected to need no more than is expected to
be free. A job may be spread over several pools: what jobs need that run in certain pools only must be free in these,
for all sets of pools that jobs ask for and their unions (Hall's theorem). So the program is a little too hopeful: a job
may change pools from one slot to the next, within its set. Jobs of one kind are one group of the program
(:mod:`hcloud.planner.plan_ahead.packing`), of which the first ones start first.

All but a few jobs take one option whole, as there are few constraints but those of jobs. The others are rounded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hcloud.forecast.runtimes.distribution import RunTimes
from hcloud.planner.plan_ahead.expected import Floats, RunTimeTable, Utility
from hcloud.planner.plan_ahead.packing import PackingProgram, bound_at, solve_packing
from hcloud.planner.plan_ahead.sparse_rows import SlottedRows, SparseRows

ROUNDED = 0.5
"""Others are stopped for a job only if at least this share of it starts now."""
WHOLE = 1.0 - 1e-6
LEAST_SHARE = 1e-3
DIGITS = 9
"""Of what is compared where jobs take their room one after the other, in parts of the largest."""
MOST_UNIONS = 64
"""Of more sets of pools that share some, no further unions are formed. Then the program is a little too hopeful."""
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
class ScheduleOfStarts:
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
) -> ScheduleOfStarts:
    """Return which of the ``waiting`` jobs start now.

    ``capacity``: the room of each pool, that of running jobs included; ``starts_s``: the starts of the slots, the first
    one now, ascending, shape ``(T,)``. The same jobs in the same order always give the same schedule.
    """
    if not waiting:
        return ScheduleOfStarts()
    program = _LinearProgram(waiting, running, capacity, starts_s)
    return program.rounded() if len(program.worth) and program.solve() else ScheduleOfStarts()


@dataclass(slots=True, eq=False)
class _Kind:
    """Jobs that differ in nothing but their numbers."""

    job: PendingJob
    members: list[int] = field(default_factory=list)
    """Places among the waiting jobs."""


class _LinearProgram:
    """The options of all kinds of jobs as columns: ``N`` of them, each of one kind, place and slot."""

    def __init__(
        self,
        waiting: Sequence[PendingJob],
        running: Sequence[RunningJob],
        capacity: Mapping[int, float],
        starts_s: Floats,
    ) -> None:
        self.waiting, self.running, self.starts_s, self.capacity = waiting, running, starts_s, capacity
        self.rests = expected_rests(running, starts_s)
        self.pools = {pool: at for at, pool in enumerate(sorted(capacity))}
        self.held = self._held()
        self.stoppable = [at for at, each in enumerate(running) if each.stop_cost is not None]
        self.kinds = _kinds_of(waiting)
        self.bound = 0.0
        self.shares, self.stopped = np.zeros(0), np.zeros(0)
        """What of each column, and of each job that can be stopped, is taken; from :meth:`solve`."""
        self._add_columns()

    def _add_columns(self) -> None:
        """Set kind, place, slot, set of pools and worth of each column, shape ``(N,)``, and what it expects to use at
        the start of each slot, shape ``(N, T)``."""
        places, sets = list[tuple[int, int, int]](), dict[frozenset[int], int]()
        for kind, each in enumerate(self.kinds):
            covered = frozenset[int]()  # pools of places before, where it is worth no less
            for number, place in enumerate(each.job.places):
                if pools := place.pools - covered:
                    places.append((kind, number, sets.setdefault(pools, len(sets))))
                covered |= place.pools
        jobs = [self.kinds[kind].job for kind, _, _ in places]
        taken = [job.places[number] for job, (_, number, _) in zip(jobs, places, strict=True)]
        table, which = RunTimeTable.of_each([job.run_time for job in jobs])
        stretch = np.array([place.stretch for place in taken])
        begins_s = self.starts_s + np.array([[place.delay_s] for place in taken])
        worth = table.utilities(which, [job.utility for job in jobs], begins_s, stretch)
        worth -= np.array([[place.usd] for place in taken])
        passing = ~np.array([place.lasting for place in taken])
        worth[passing, 1:] = 0.0
        place_of, self.slot_of = (worth > _SLACK).nonzero()
        columns = np.array(places, dtype=np.intp).reshape(-1, 3)[place_of]
        self.kind_of, self.place_of, self.set_of = columns.T
        self.worth, self.sets = worth[place_of, self.slot_of], tuple(sets)
        # What runs alike is expected to use alike.
        alike, alike_of = np.unique(np.stack((which, stretch)), axis=1, return_inverse=True)
        since_s = self.starts_s[None, :] - self.starts_s[:, None]  # from each start to each slot
        uses = table.uses(alike[0].astype(np.intp), since_s, alike[1])
        amounts = np.array([job.amount for job in jobs])[place_of, None]
        self.uses = amounts * uses[alike_of.ravel()[place_of], self.slot_of]
        self.uses[passing[place_of], 1:] = 0.0
        self.uses[self.uses <= _SLACK] = 0.0

    def solve(self) -> bool:
        """Choose the share of each option, and of each job that can be stopped; return whether that succeeded."""
        unions = _unions_of(self.sets)
        within = np.array([[float(pools <= union) for union in unions] for pools in self.sets])
        pools, free = self.pools, self._expected_free()
        costs = np.array([float(self.running[each].stop_cost or 0.0) for each in self.stoppable])
        program = PackingProgram(
            worth=self.worth,
            group_of=self.kind_of,
            uses=SlottedRows(spread=within, group_of=self.set_of, parts=self.uses),
            counts=np.array([float(len(each.members)) for each in self.kinds]),
            release_cost=costs,
            releases=self._releases(unions),
            capacity=np.concatenate([free[sorted(pools[pool] for pool in union)].sum(axis=0) for union in unions]),
        )
        # Of equal options the earliest is best, and of equal kinds the first: no other vertex is optimal.
        worth = self.worth * (1.0 - _TIES * (self.slot_of + self.kind_of / len(self.kinds) / 4))
        costs = costs * (1.0 + _TIES * np.arange(len(costs)))
        solved = solve_packing(replace(program, worth=worth, release_cost=costs))
        if solved is None:
            return False
        self.shares, self.stopped, self.bound = solved.units, solved.released, bound_at(program, solved.prices)
        return True

    def _releases(self, unions: Sequence[frozenset[int]]) -> SlottedRows:
        """Return what each job that can be stopped gives to each union of pools in each slot."""
        spread = [np.array([float(pool in union) for union in unions]) for pool in self.pools]
        group_of, amounts = list[int](), list[float]()
        for held in (self.running[at].amounts for at in self.stoppable):
            if len(held) == 1:
                [(pool, amount)] = held.items()
                group_of.append(self.pools[pool])
                amounts.append(amount)
            else:
                group_of.append(len(spread))
                amounts.append(1.0)
                spread.append(
                    sum((amount * spread[self.pools[pool]] for pool, amount in held.items()), 0.0 * spread[0])
                )
        parts = np.array(amounts)[:, None] * self.rests[self.stoppable]
        return SlottedRows(spread=np.array(spread), group_of=np.array(group_of, dtype=np.intp), parts=parts)

    def _held(self) -> SparseRows:
        """Return what running jobs (columns) hold of each pool (rows, by their numbers in ``pools``)."""
        amounts = [each.amounts for each in self.running]
        rows = np.array([self.pools[pool] for each in amounts for pool in each], dtype=np.intp)
        columns = np.repeat(np.arange(len(amounts)), [len(each) for each in amounts])
        values, order = np.array([part for each in amounts for part in each.values()]), np.argsort(rows, kind="stable")
        shape = (len(self.pools), len(amounts))
        return SparseRows(rows=rows[order], columns=columns[order], values=values[order], shape=shape)

    @property
    def _room(self) -> Floats:
        """The room of each pool, by its number in ``pools``."""
        return np.array([self.capacity[pool] for pool in self.pools])

    def _expected_free(self) -> Floats:
        """Return the room expected to be free in each pool at the start of each slot, shape ``(pools, T)``."""
        return np.maximum(np.stack([self._room - self.held.times(rests) for rests in self.rests.T], axis=1), 0.0)

    # --------------------------------------------------------------------------------------------------------- rounding
    def rounded(self) -> ScheduleOfStarts:
        """Return whole starts: first of jobs of which all starts now, then of others by what their part is worth."""
        now, worth, later = dict[int, dict[int, float]](), dict[tuple[int, int], float](), dict[int, float]()
        for job, column, share in self._shares_by_job():
            place, slot = int(self.place_of[column]), int(self.slot_of[column])
            if slot == 0:
                places = now.setdefault(job, {})
                places[place] = places.get(place, 0.0) + share
                worth[job, place] = float(self.worth[column])
            elif job not in later or share > ROUNDED:
                later[job] = float(self.starts_s[slot])
        share_of = {job: min(1.0, sum(places.values())) for job, places in now.items()}
        density = {
            job: max([worth[job, place] for place in places]) / max(self.waiting[job].amount, _SLACK)
            for job, places in now.items()
        }
        # Rounded, as the last digits depend on the steps of the solver.
        most = max([_SLACK, *density.values()])
        by_worth = {
            job: (part < WHOLE, -round(part * density[job] / most, DIGITS), job) for job, part in share_of.items()
        }
        ranked = sorted(now, key=by_worth.__getitem__)
        room, stopped, starting = self._free_now(), list[int](), list[JobStart]()
        stops, in_stops = self._stops(), defaultdict[int, float](float)
        for at in stops:
            for pool, held in self.running[at].amounts.items():
                in_stops[pool] += held
        for job in ranked:
            each = self.waiting[job]
            for place in sorted(now[job], key=lambda number: (-now[job][number], number)):
                pools = each.places[place].pools
                lacks = each.amount - sum([room[pool] for pool in pools])
                chosen = list[int]()
                if lacks > _SLACK:
                    enough = share_of[job] >= ROUNDED and sum([in_stops[pool] for pool in pools]) > lacks - 2 * _SLACK
                    chosen = self._to_stop(stops, pools, lacks) if enough else []
                    if not chosen:
                        continue
                for at in chosen:
                    stopped.append(at)
                    stops.remove(at)
                    for pool, held in self.running[at].amounts.items():
                        room[pool] += held
                        in_stops[pool] -= held
                order = sorted(pools, key=lambda pool: (-room[pool], pool))
                taken = _take(room, order, each.amount)
                starting.append(JobStart(number=each.number, place=place, amounts=taken, share=share_of[job]))
                break
            else:
                later.setdefault(job, float(self.starts_s[1]))
        numbers = [each.number for each in self.waiting]
        job_at = {number: at for at, number in enumerate(numbers)}
        started = {each.number for each in starting}
        value = sum([worth[job_at[each.number], each.place] for each in starting])
        return ScheduleOfStarts(
            starting=tuple(starting),
            stopping=tuple(sorted(self.running[at].number for at in stopped)),
            starts_s={numbers[job]: at_s for job, at_s in later.items() if numbers[job] not in started},
            bound=self.bound,
            value=value - sum([self.running[at].stop_cost or 0.0 for at in stopped]),
        )

    def _shares_by_job(self) -> Iterator[tuple[int, int, float]]:
        """Yield jobs with columns and the share that they take of it; of each kind the first jobs start first."""
        taken = (self.shares >= LEAST_SHARE).nonzero()[0]
        kind, left = -1, iter(())  # type: tuple[int, Iterator[int]]
        job, free = -1, 0.0
        for column in taken[np.lexsort((self.place_of[taken], self.slot_of[taken], self.kind_of[taken]))].tolist():
            if self.kind_of[column] != kind:
                kind = int(self.kind_of[column])
                left, free = iter(self.kinds[kind].members), 0.0
            share = float(self.shares[column])
            while share >= LEAST_SHARE:
                if free < LEAST_SHARE:
                    job, free = next(left, -1), 1.0
                    if job < 0:
                        break
                part = min(share, free)
                yield job, column, part
                share, free = share - part, free - part

    def _stops(self) -> list[int]:
        """Return the running jobs of which a part is stopped, those first of which most is."""
        chosen = (self.stopped > LEAST_SHARE).nonzero()[0]
        return [self.stoppable[number] for number in chosen[np.argsort(-self.stopped[chosen], kind="stable")].tolist()]

    def _free_now(self) -> dict[int, float]:
        free = self._room - self.held.times(np.ones(len(self.running)))
        return dict(zip(self.pools, free.tolist(), strict=True))

    def _to_stop(self, stops: Sequence[int], pools: frozenset[int], lacks: float) -> list[int]:
        """Return which of ``stops`` make room for ``lacks`` in these pools; none if all of them do not."""
        chosen = list[int]()
        for at in stops:
            given = sum([amount for pool, amount in self.running[at].amounts.items() if pool in pools])
            if given > 0.0:
                chosen.append(at)
                lacks -= given
                if lacks <= _SLACK:
                    return chosen
        return []


def expected_rests(running: Sequence[RunningJob], after_s: Floats) -> Floats:
    """Return the probability that each running job still runs ``after_s`` from now, shape ``(len(running), T)``."""
    if not running:
        return np.zeros((0, len(after_s)))
    table, which = RunTimeTable.of_each([each.run_time for each in running])
    ages_s, stretch = np.array([each.age_s for each in running]), np.array([each.stretch for each in running])
    return table.rests(which, ages_s, after_s, stretch)


def _kinds_of(waiting: Sequence[PendingJob]) -> list[_Kind]:
    kinds = dict[tuple[float, int, Utility, tuple[StartOption, ...]], _Kind]()
    equal = RunTimeTable.of_each([job.run_time for job in waiting])[1].tolist()
    for at, job in enumerate(waiting):
        kinds.setdefault((job.amount, equal[at], job.utility, job.places), _Kind(job)).members.append(at)
    return list(kinds.values())


def _unions_of(sets: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Return ``sets`` and the unions of those that share members: of others, what holds of each holds of both."""
    found, unseen = dict.fromkeys(sets), list(sets)
    while unseen and len(found) < MOST_UNIONS:
        one = unseen.pop(0)
        more = [one | other for other in sets if one & other and one | other not in found]
        found |= dict.fromkeys(more)
        unseen += dict.fromkeys(more)
    return sorted(found, key=lambda pools: (len(pools), sorted(pools)))


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
