"""Plan ahead: start now what is worth its room now, and let the rest wait for room that is paid already (3Sigma §4.3).

Of the waiting jobs with a known run time, those with a deadline are worth most if they end by it, those of best effort
the more the sooner they end. A linear program (:mod:`hcloud.planner.plan_ahead.linear_program`) chooses for each: to
start now on room that is paid, now on a machine that is rented for it, or later on paid room, as running jobs are
expected to release it. What is to start now on paid room is placed, in that order; what is to start later waits; the
rest is served as without a plan. Jobs whose run time is not known, services and jobs without a deadline take no part.

Where nothing may be rented, all of them wait for paid room, each deadline counts the same, and jobs of best effort are
stopped where jobs with a deadline are worth more (§4.3.5).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from math import inf
from typing import NamedTuple

import numpy as np

from hcloud.core.estimates import Application, Classification
from hcloud.core.model import FailureCause, Instance, Job, Market, Reason, matches
from hcloud.core.pricing import HOUR_S
from hcloud.core.rows import number_of
from hcloud.forecast.runtimes.distribution import RunTimes, unknown_run_time
from hcloud.planner.context import PlanContext
from hcloud.planner.fit.job_sizes import column_of
from hcloud.planner.fleet import SLACK, Mask
from hcloud.planner.job_groups import JobGroup
from hcloud.planner.job_queue import QueueSegment
from hcloud.planner.market import OfferMarket
from hcloud.planner.placement.open_instances import suited
from hcloud.planner.placement.place import place_now
from hcloud.planner.placement.room_reservation import PLANNED
from hcloud.planner.placement.state import PlacementState
from hcloud.planner.plan import PlannedStart
from hcloud.planner.plan_ahead.expected import Floats, RunTimeTable, Utility, expected_utility, slot_starts
from hcloud.planner.plan_ahead.linear_program import PendingJob, RunningJob, ScheduleOfStarts, StartOption, schedule
from hcloud.planner.provisioning.eviction import is_evictable
from hcloud.planner.run_times import RunTimeForecasts, ran_for_s

SLOTS = 12
FIRST_S = 15.0
"""The first slot after now begins so late, in seconds."""
HORIZON_S = 2 * HOUR_S
"""No start is planned later than this."""
MOST_PLANNED = 500
"""Of more waiting jobs only the first in order are looked at."""
BEST_EFFORT_WORTH = 2.0
"""What the end of a best-effort job is worth, in what it costs on a machine of its own, if it ended at once."""
BEST_EFFORT_DECAY_S = 6 * HOUR_S
OVERESTIMATED_BELOW = 0.05
"""Below this probability to run as short as its deadline allows, a job is taken to be overestimated."""
EACH_WORTH = 1.0
"""Where nothing can be rented, each job counts so much whatever its size, as in the paper. Only ratios matter there."""
REST_S = 300.0
"""A job that was evicted before is not stopped again so soon after its start."""
LEVELS, PRIORITY_WORTH = 5, 10.0
"""Of so many priorities, the highest ones, each is worth so many times as much as the next lower one."""
PAID, RENTED, BOUGHT = "paid", "rented", "bought"
"""Kinds of options: reserved room, room that is free on rented machines now, a machine rented for the job."""
_RENTED, _BOUGHT = -1, -2
"""Pools beside those of reserved machines, which have the numbers of their types."""
_UNKNOWN = unknown_run_time()


@dataclass(frozen=True, slots=True, kw_only=True)
class _GroupPlaces:
    """Where jobs of a group may run, and at what price."""

    amount: float
    """vCPUs of all their nodes."""
    paid: tuple[tuple[float, frozenset[int]], ...]
    """Pools of reserved machines, by how many times as long the jobs run there."""
    rented_stretch: float | None
    """How many times as long the jobs run on rented machines; None: none of these suits."""
    usd_per_h: float
    """Price of what would be rented for a job; 0: nothing can be."""
    bought_stretch: float | None
    """How many times as long the jobs run there; None: nothing can be rented."""
    boot_s: float
    """How long a rented machine takes to boot."""


class _Inputs(NamedTuple):
    """All that the plan ahead follows from. Equal inputs give the same plan, so it is made once for them."""

    at: float
    deadline_worth: float
    candidates: tuple[tuple[Job, int], ...]
    """Waiting jobs, each with the place of its group in ``places``."""
    places: tuple[_GroupPlaces | None, ...]
    """By group; None: its jobs are not planned."""
    capacity: tuple[tuple[int, float], ...]
    claimed: bytes
    """What is claimed of each reserved machine."""
    open_machines: bytes
    jobs: tuple[Job, ...]
    instances: tuple[Instance, ...]
    run_times: RunTimeForecasts
    applications: Mapping[str, Classification]
    programs: Mapping[str, tuple[Application, ...]]
    neighbour_tolerance: float


class _Planned(NamedTuple):
    """A waiting job as it is planned."""

    pending: PendingJob
    kinds: tuple[str, ...]
    """What each of its places is."""
    left_s: float
    """How long until its deadline; inf: it has none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _AheadPlan:
    """What was planned for ``inputs``."""

    inputs: _Inputs
    planned: Mapping[int, _Planned]
    """By number of the job."""
    schedule: ScheduleOfStarts
    starts: Mapping[int, PlannedStart]
    """When jobs start that are not to start now."""


def plan_ahead(state: PlacementState, market: OfferMarket) -> None:
    """Place the jobs that start now on room that is paid, and let those wait that start later."""
    context = state.context
    if not context.fleet.reserved.any():  # without paid room there is nothing to wait for
        return
    pools = _Pools(context, market)
    if pools.can_grow and pools.capacity[_BOUGHT] <= 0.0:  # at the policy's caps: the queue's own order serves
        return
    waiting = list(islice(_candidates(context), MOST_PLANNED))
    if not waiting:
        return
    ahead = _planned_for(context, pools, waiting)
    segments = {number_of(job.id): (job, segment) for job, segment in waiting}
    decided = set[int]()  # those placed here, and those for which the other rules rent a machine
    for start in ahead.schedule.starting:
        (job, segment), each = segments[start.number], ahead.planned[start.number]
        kind, place = each.kinds[start.place], each.pending.places[start.place]
        if kind == BOUGHT:
            decided.add(start.number)
        elif _placed(state, job, segment.group, place.pools if kind == PAID else None):
            context.waiting.queues[segment.group.promise].remove(job, segment.group, segment)
            decided.add(start.number)
    _stop(context, ahead.schedule)
    soonest_at = inf
    for number, each in ahead.planned.items() if ahead.schedule.starting or ahead.starts else ():
        if number in decided:
            continue
        job, segment = segments[number]
        planned_start = ahead.starts.get(number) or _start_after_all(each, ahead.inputs.at)
        if planned_start is not None or BOUGHT not in each.kinds:
            soonest_at = min(soonest_at, ahead.inputs.at + FIRST_S if planned_start is None else planned_start.at)
            _let_wait(context, job, segment, planned_start)
    if soonest_at < inf:
        # In the first slot that begins no earlier, as the plan is the same within a slot.
        context.decisions.release_due(max(_slot_at(context.now) + FIRST_S, FIRST_S * math.ceil(soonest_at / FIRST_S)))


def _stop(context: PlanContext, plan: ScheduleOfStarts) -> None:
    """Stop the jobs of best effort that make room for what is to start: that starts once they have ended."""
    occupancy = context.snapshot.plan_cache.occupancy
    for number in plan.stopping:
        job = occupancy.rows.get(f"job-{number}")
        if job is not None and is_evictable(context, job):
            times = job.failures.count(FailureCause.EVICTED) + 1
            text = "evicted for jobs with a deadline, which the plan starts in its room"
            reason = Reason(code="evicted_for_promise", text=text, numbers={"evictions": times})
            context.decisions.stop(job, FailureCause.EVICTED, reason)


def _slot_at(at: float) -> float:
    """Return the begin of the slot of ``FIRST_S`` in which a time is."""
    return FIRST_S * math.floor(at / FIRST_S)


def _planned_for(context: PlanContext, pools: _Pools, waiting: Sequence[tuple[Job, QueueSegment]]) -> _AheadPlan:
    """Return the plan for these jobs: the last one, if all that it follows from is as it was.

    It is made for the begin of the slot of ``FIRST_S``, or the last submission within it: so it is the same whether it
    was made now or earlier in the slot.
    """
    fleet, snapshot = context.fleet, context.snapshot
    groups, places = dict[int, int](), list[_GroupPlaces | None]()
    for _, segment in waiting:
        if segment.group.place not in groups:
            groups[segment.group.place] = len(places)
            places.append(pools.places_of(segment.group))
    last_at = max(job.submitted_at for job, _ in waiting)
    inputs = _Inputs(
        at=min(context.now, max(_slot_at(context.now), last_at)),
        deadline_worth=context.policy.admission.deadline_worth,
        candidates=tuple((job, groups[segment.group.place]) for job, segment in waiting),
        places=tuple(places),
        capacity=tuple(pools.capacity.items()),
        claimed=(fleet.free[0] - fleet.room[0])[pools.reserved].tobytes(),
        open_machines=pools.reserved.tobytes(),
        jobs=snapshot.jobs,
        instances=snapshot.instances,
        run_times=snapshot.run_times,
        applications=snapshot.applications,
        programs=snapshot.programs,
        neighbour_tolerance=context.policy.placement.neighbour_tolerance,
    )
    known: _AheadPlan | None = snapshot.plan_cache.latest("plan ahead")
    if known is None or known.inputs != inputs:
        known = _solved(context, pools, inputs)
        snapshot.plan_cache.keep("plan ahead", known)
    return known


def _solved(context: PlanContext, pools: _Pools, inputs: _Inputs) -> _AheadPlan:
    planned = {each.pending.number: each for each in _pending(context, inputs)}
    if not planned:
        return _AheadPlan(inputs=inputs, planned={}, schedule=ScheduleOfStarts(), starts={})
    found = schedule(
        [each.pending for each in planned.values()],
        pools.running(inputs.at),
        pools.capacity,
        slot_starts(HORIZON_S, FIRST_S, SLOTS),
    )
    starts = _starts([(planned[number], at_s) for number, at_s in found.starts_s.items()], inputs.at)
    return _AheadPlan(inputs=inputs, planned=planned, schedule=found, starts=starts)


def _starts(chosen: Sequence[tuple[_Planned, float]], now: float) -> dict[int, PlannedStart]:
    """Return the starts of jobs so many seconds from ``now``, by their numbers, with the probability of each to meet
    its deadline."""
    if not chosen:
        return {}
    table, which = RunTimeTable.of_each([each.pending.run_time for each, _ in chosen])
    left_s = np.array([each.left_s for each, _ in chosen])
    then_s = np.maximum(left_s - [at_s for _, at_s in chosen], 0.0)
    chances = zip(table.cumulative(which, then_s).tolist(), table.cumulative(which, left_s).tolist(), strict=True)
    return {
        each.pending.number: PlannedStart(at=now + at_s, chance=chance, chance_now=chance_now)
        if each.left_s < inf
        else PlannedStart(at=now + at_s, chance=None, chance_now=None)
        for (each, at_s), (chance, chance_now) in zip(chosen, chances, strict=True)
    }


def _placed(state: PlacementState, job: Job, group: JobGroup, on_paid: frozenset[int] | None) -> bool:
    if state.context.reservations.user_cap(job) is not None:
        return False
    return place_now(state, job, group, on_paid=on_paid)


def _start_after_all(each: _Planned, now: float) -> PlannedStart | None:
    """Return when a job should start that was to start now, but for which no machine with paid room suits: in the next
    slot, unless that costs more than a machine of its own does. None: it should be served now by the other rules."""
    worth_s = np.array([0.0, FIRST_S])
    paid = [place for place, kind in zip(each.pending.places, each.kinds, strict=True) if kind == PAID]
    now_at = [place for place, kind in zip(each.pending.places, each.kinds, strict=True) if kind == BOUGHT]
    if not paid:
        return None
    later = max(_worth(each, place, worth_s)[1] for place in paid)
    at_once = max((_worth(each, place, worth_s)[0] for place in now_at), default=0.0)
    return _starts([(each, FIRST_S)], now)[each.pending.number] if later > at_once else None


def _worth(each: _Planned, place: StartOption, starts_s: Floats) -> Floats:
    begins_s = starts_s + place.delay_s
    return expected_utility(each.pending.utility, each.pending.run_time, begins_s, place.stretch) - place.usd


def _let_wait(context: PlanContext, job: Job, segment: QueueSegment, start: PlannedStart | None) -> None:
    """Let a job wait for its ``start``; None: other jobs are worth more of all the room there is."""
    context.waiting.queues[segment.group.promise].remove(job, segment.group, segment)
    if start is not None:
        context.decisions.plan_start(job, start)

    def why() -> Reason:
        if start is None:
            return Reason(code=PLANNED, text="other jobs are worth more of all the room there is")
        numbers: dict[str, float | int | str] = {"starts_in_s": round(max(0.0, start.at - context.now), 1)}
        if start.chance is not None and start.chance_now is not None:
            numbers |= {"chance": round(start.chance, 4), "chance_now": round(start.chance_now, 4)}
        # It is recorded once. When it starts may change with every plan, so the plan says it, and not this text.
        return Reason(code=PLANNED, text="planned to start later, on room that is paid already", numbers=numbers)

    context.decisions.wait(job, PLANNED, why)


@dataclass(slots=True, eq=False)
class _Pools:
    """Room by pool: that of reserved machines by type, what is free on rented machines now, and what can be rented."""

    context: PlanContext
    market: OfferMarket
    capacity: dict[int, float] = field(default_factory=dict)
    reserved: Mask = field(init=False)
    rented: Mask = field(init=False)
    _columns: tuple[str, ...] = field(init=False)
    _stretches: dict[tuple[str, tuple[str, ...], float], Mapping[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        fleet = self.context.fleet
        open_now = fleet.placeable | fleet.coming
        self._columns = tuple(sorted({*fleet.type_columns, *map(column_of, self.market.offers)}))
        self.reserved, self.rented = open_now & fleet.reserved, open_now & ~fleet.reserved
        sizes = np.bincount(fleet.type_at[self.reserved], fleet.capacity[0][self.reserved], len(fleet.type_columns))
        self.capacity = {pool: float(sizes[pool]) for pool in np.unique(fleet.type_at[self.reserved]).tolist()}
        self.capacity[_RENTED] = float(np.maximum(fleet.free[0][self.rented], 0.0).sum())
        self.capacity[_BOUGHT] = self._to_buy()

    @property
    def can_grow(self) -> bool:
        """Whether machines are offered that may be rented, if the policy's caps permit."""
        return any(each.market is not Market.RESERVED for each in self.market.offers)

    def _to_buy(self) -> float:
        """Return how many vCPUs may still be rented, by the policy's caps."""
        caps, ledger = self.context.policy.caps, self.context.ledger
        if ledger.instances >= caps.max_instances:
            return 0.0
        held = float(self.context.fleet.capacity[0].sum())
        return max(0.0, caps.max_vcpus - held) if caps.max_vcpus is not None else 1e9

    def running(self, now: float) -> list[RunningJob]:
        """Return the jobs that hold reserved room, or have it held for them; their age is that of ``now``."""
        fleet, context, found = self.context.fleet, self.context, list[RunningJob]()
        amounts = defaultdict[str, dict[int, float]](dict)
        jobs: dict[str, Job] = {}
        for at in self.reserved.nonzero()[0].tolist():
            pool = int(fleet.type_at[at])
            for job, held in fleet.holdings[at]:
                if job.id in context.decisions.stopping:
                    continue
                jobs[job.id] = job
                amounts[job.id][pool] = amounts[job.id].get(pool, 0.0) + held.resources.vcpus
        for job_id, job in sorted(jobs.items(), key=lambda each: number_of(each[0])):
            known, spec = context.run_times.of(job), job.spec
            stretches = self._stretches_of(job.application, spec.preferred_types, spec.slower_elsewhere)
            found.append(
                RunningJob(
                    number=number_of(job_id),
                    amounts=amounts[job_id],
                    run_time=known or _UNKNOWN,
                    age_s=ran_for_s(job, now),
                    stretch=max(stretches[fleet.type_columns[pool]] for pool in amounts[job_id]),
                    stop_cost=self._stop_cost(job, known, now),
                )
            )
        # What is held for jobs that await a machine, or claimed by this plan.
        for at in self.reserved.nonzero()[0].tolist():
            claimed = float(fleet.free[0, at] - fleet.room[0, at])
            if claimed > SLACK:
                pool = int(fleet.type_at[at])
                found.append(RunningJob(number=-1 - at, amounts={pool: claimed}, run_time=_UNKNOWN, age_s=0.0))
        return found

    def _stop_cost(self, job: Job, run_time: RunTimes | None, now: float) -> float | None:
        """Return what it costs to stop a job: what was done of it, and half of what its end is worth, as it has to wait
        again. None: it may not be stopped, or machines may be rented instead."""
        context = self.context
        if self.can_grow or run_time is None or not context.policy.disruption.evict_best_effort:
            return None
        age_s = ran_for_s(job, now)
        if not is_evictable(context, job) or (FailureCause.EVICTED in job.failures and age_s < REST_S):
            return None
        return BEST_EFFORT_WORTH * EACH_WORTH * (0.5 + age_s / max(FIRST_S, run_time.after(age_s).quantile(0.5)))

    def places_of(self, group: JobGroup) -> _GroupPlaces | None:
        """Return where jobs of ``group`` may run; None: they are not planned.

        These are groups for which a reserved machine can be launched, or no other one although others may be rented.
        """
        context, fleet = self.context, self.context.fleet
        stretches = self._stretches_of(group.application, group.preferred_types, group.slower_elsewhere)
        if self.market.paid_ranks(group):
            return None
        usd_per_h, bought = self._to_rent(group, stretches) if self.can_grow else (0.0, None)
        if self.can_grow and bought is None:
            return None
        allowed = suited(context, group, fleet.placeable | fleet.coming)
        paid = np.unique(fleet.type_at[allowed & self.reserved]).tolist()
        speeds = {int(pool): stretches[fleet.type_columns[pool]] for pool in paid}
        rented = [stretches[fleet.type_columns[pool]] for pool in np.unique(fleet.type_at[allowed & self.rented])]
        if not self.can_grow and not speeds:
            return None
        boot_s = context.quickest_s(group.resources)
        return _GroupPlaces(
            amount=group.needed * float(group.demand[0]),
            paid=tuple(
                (stretch, frozenset(pool for pool, each in speeds.items() if each <= stretch))
                for stretch in sorted(set(speeds.values()))
            ),
            rented_stretch=min(rented, default=None),
            usd_per_h=usd_per_h,
            bought_stretch=bought,
            boot_s=boot_s if boot_s < inf else 0.0,
        )

    def _stretches_of(self, application: str, preferred: tuple[str, ...], slower: float) -> Mapping[str, float]:
        """Return by type of machine (:attr:`Fleet.type_columns`, and those on offer) how many times as long jobs run
        there as on the best type, in steps of a tenth: as their program was measured, else as they say themselves."""
        key = (application, preferred, slower)
        if key not in self._stretches:
            known = self.context.snapshot.applications.get(application)
            measured = None
            if known is not None:
                measured = known.answer(
                    ("stretches", self._columns), partial(_measured_stretches, known, self._columns)
                )
            self._stretches[key] = measured or {
                column: 1.0 if not preferred or matches(column.partition("/")[2], preferred) else slower
                for column in self._columns
            }
        return self._stretches[key]

    def _to_rent(self, group: JobGroup, stretches: Mapping[str, float]) -> tuple[float, float | None]:
        """Return the price of what would be rented for a job of ``group``, and how many times as long it runs there;
        None: nothing can be."""
        market, best = self.market, tuple[float, float, float | None]((inf, 0.0, None))
        for at in market.obtainable(group):
            if market.offers[at].market is not Market.RESERVED:
                stretch = stretches[column_of(market.offers[at])]
                usd_per_h = float(market.price_for(group)[at])
                if usd_per_h >= best[0]:
                    break
                if usd_per_h * stretch < best[0]:
                    share = float(market.taken(group)[at][0] / max(market.capacity[at][0], SLACK))
                    best = (usd_per_h * stretch, group.needed * min(1.0, share) * usd_per_h, stretch)
        return best[1:]


def _measured_stretches(known: Classification, columns: Sequence[str]) -> dict[str, float] | None:
    """Return by type how many times as long a measured program runs there as on the best one; None: it was not
    measured."""
    rates = {name: each.value for name, each in known.by_type.items()}
    best, had = max(rates.values(), default=0.0), [rates[each] for each in columns if each in rates]
    if best <= 0.0:
        return None
    usual = float(np.median(had)) if had else best
    return {column: max(1.0, round(best / max(rates.get(column, usual), 1e-9), 1)) for column in columns}


def _pending(context: PlanContext, inputs: _Inputs) -> Iterator[_Planned]:
    """Yield the jobs to plan, those with a target first, each kind in order."""
    capacity, asked = dict(inputs.capacity), list[tuple[Job, int, _GroupPlaces, RunTimes]]()
    for job, group in inputs.candidates:
        where, run_time = inputs.places[group], context.run_times.of(job)
        if where is None or run_time is None:
            continue
        if where.bought_stretch is None or capacity[_BOUGHT] >= where.amount:
            asked.append((job, group, where, run_time))
    if not asked:
        return
    levels = {each: at for at, each in enumerate(sorted({job.spec.priority for job, _ in inputs.candidates})[-LEVELS:])}
    lefts_s = np.array([inf if (due := job.deadline_at) is None else due - inputs.at for job, _, _, _ in asked])
    table, which = RunTimeTable.of_each([run_time for _, _, _, run_time in asked])
    in_time = table.cumulative(which, lefts_s).tolist()
    likely_s = dict[RunTimes, float]()  # jobs alike share a run time, and so what follows from it
    options = dict[tuple[int, float], tuple[tuple[str, ...], tuple[StartOption, ...]]]()
    for (job, group, where, run_time), left_s, chance in zip(asked, lefts_s.tolist(), in_time, strict=True):
        usd, slower = EACH_WORTH, where.bought_stretch
        if slower is not None:
            if run_time not in likely_s:
                likely_s[run_time] = run_time.likely_s
            usd = where.usd_per_h * slower * likely_s[run_time] / HOUR_S
        if (group, usd) not in options:
            kinds, places = zip(*_options(where, usd, rented=capacity[_RENTED] > SLACK), strict=True)
            options[group, usd] = kinds, places
        kinds, places = options[group, usd]
        worth = usd * PRIORITY_WORTH ** levels.get(job.spec.priority, 0)
        pending = PendingJob(
            number=number_of(job.id),
            amount=where.amount,
            run_time=run_time,
            utility=_utility(job, left_s, chance, worth, inputs),
            places=places,
        )
        yield _Planned(pending, kinds, left_s)


def _options(where: _GroupPlaces, usd: float, *, rented: bool) -> Iterator[tuple[str, StartOption]]:
    """Yield where a job may run, each with what it is; ``usd``: what it costs on a machine of its own."""
    for stretch, pools in where.paid:
        yield PAID, StartOption(pools=pools, stretch=stretch)
    if rented and where.rented_stretch is not None:
        # Residents may leave before it; then the machine is paid for this job alone.
        stretch = where.rented_stretch
        yield RENTED, StartOption(pools=frozenset((_RENTED,)), stretch=stretch, usd=0.5 * usd, lasting=False)
    if (slower := where.bought_stretch) is not None:
        bought = frozenset((_BOUGHT,))
        yield BOUGHT, StartOption(pools=bought, stretch=slower, usd=usd, lasting=False, delay_s=where.boot_s)


def _candidates(context: PlanContext) -> Iterator[tuple[Job, QueueSegment]]:
    """Yield the waiting jobs with a deadline, then those of best effort, each kind in order."""
    for promise in (True, False):
        queue = context.waiting.queues[promise]
        for segment in queue.segments:
            group = segment.group
            # A job whose size the planner chooses gets the least that meets its deadline: it has no time to spare.
            if segment.awaits or group.serves or group.sizable or segment.first.spec.profile is not None:
                continue
            for job in queue.jobs_of(segment):
                if job.deadline_at is not None or not promise:
                    yield job, segment


def _utility(job: Job, left_s: float, chance: float, usd: float, inputs: _Inputs) -> Utility:
    """Return what the end of ``job`` is worth; ``left_s``: until its deadline, by which it ends with ``chance`` if it
    starts now; ``usd``: what it costs on a machine of its own."""
    worth = inputs.deadline_worth * usd
    if left_s == inf:
        waited = max(0.0, inputs.at - job.eligible_at) / BEST_EFFORT_DECAY_S
        return Utility(value=BEST_EFFORT_WORTH * usd * (1.0 + waited), until_s=0.0, decay_s=BEST_EFFORT_DECAY_S)
    if left_s > 0.0 and chance >= OVERESTIMATED_BELOW:
        return Utility(value=worth, until_s=left_s)
    if left_s > 0.0:
        return Utility(value=worth, until_s=left_s, decay_s=inputs.at + left_s - job.eligible_at)
    # It is late: the sooner it ends, the better.
    return Utility(value=worth / 2.0, until_s=0.0, decay_s=BEST_EFFORT_DECAY_S)
