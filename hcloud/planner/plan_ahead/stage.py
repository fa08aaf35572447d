"""Plan ahead: start now what is worth its room now, and let the rest wait for room that is paid already (3Sigma §4.3).

Of the waiting jobs with a known run time, those with a deadline are worth most if they end by it, those of best effort
the more the sooner they end. A linear program (:mod:`hcloud.planner.plan_ahead.linear_program`) chooses for each: to
start now on room that is paid, now on a machine that is rented for it, or later on paid room, as running jobs are
expected to release it. What is to start now on paid room is placed, in that order; what is to start later waits; the
rest is served as without a plan. Jobs whose run time is not known, services and jobs without a deadline take no part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf

import numpy as np

from hcloud.core.model import Job, Market, Reason
from hcloud.core.pricing import HOUR_S
from hcloud.core.rows import number_of
from hcloud.forecast.runtimes.distribution import RunTimes, unknown_run_time
from hcloud.planner.context import PlanContext
from hcloud.planner.fleet import SLACK, Mask
from hcloud.planner.job_groups import JobGroup
from hcloud.planner.job_queue import QueueSegment
from hcloud.planner.market import OfferMarket
from hcloud.planner.placement.open_instances import suited
from hcloud.planner.placement.place import place_now
from hcloud.planner.placement.room_reservation import PLANNED
from hcloud.planner.placement.state import PlacementState
from hcloud.planner.plan import PlannedStart
from hcloud.planner.plan_ahead.expected import Floats, Utility, expected_utility, overestimated, slot_starts
from hcloud.planner.plan_ahead.linear_program import PendingJob, RunningJob, Schedule, StartOption, schedule
from hcloud.planner.run_times import ran_for_s

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
LEVELS, PRIORITY_WORTH = 5, 10.0
"""Of so many priorities, the highest ones, each is worth so many times as much as the next lower one."""
PAID, RENTED, BOUGHT = "paid", "rented", "bought"
"""Kinds of options: reserved room, room that is free on rented machines now, a machine rented for the job."""
_RENTED, _BOUGHT = -1, -2
"""Pools beside those of reserved machines, which have the numbers of their types."""
_UNKNOWN = unknown_run_time()


@dataclass(slots=True, eq=False)
class _Planned:
    """A waiting job as it is planned."""

    job: Job
    group: JobGroup
    segment: QueueSegment
    pending: PendingJob
    kinds: tuple[str, ...]
    """What each of its places is."""


def plan_ahead(state: PlacementState, market: OfferMarket) -> None:
    """Place the jobs that start now on room that is paid, and let those wait that start later."""
    context = state.context
    pools = _Pools(context, market)
    # Without paid room there is nothing to wait for; where no machine may be rented, the queue's own order serves.
    if not context.fleet.reserved.any() or pools.capacity[_BOUGHT] <= 0.0:
        return
    planned = {each.pending.number: each for each in _waiting(context, pools)}
    if not planned:
        return
    starts_s = slot_starts(HORIZON_S, FIRST_S, SLOTS)
    found = schedule([each.pending for each in planned.values()], pools.running(), pools.capacity, starts_s)
    if not (found.starting or found.starts_s):
        return
    decided = set[int]()  # those placed here, and those for which the other rules rent a machine
    for start in found.starting:
        each = planned[start.number]
        if each.kinds[start.place] == BOUGHT:
            decided.add(start.number)
        elif _placed(state, each, each.kinds[start.place] == PAID):
            context.waiting.queues[each.group.promise].remove(each.job, each.group, each.segment)
            decided.add(start.number)
    soonest_s = inf
    for number, each in planned.items():
        if number in decided:
            continue
        at_s = _start_later_s(found, each, starts_s.tolist())
        if at_s is not None:
            soonest_s = min(soonest_s, at_s)
            _let_wait(context, each, at_s)
    if soonest_s < inf:
        context.decisions.release_due(context.now + max(FIRST_S, soonest_s))


def _placed(state: PlacementState, each: _Planned, paid: bool) -> bool:
    if state.context.reservations.user_cap(each.job) is not None:
        return False
    return place_now(state, each.job, each.group, paid_only=paid)


def _start_later_s(found: Schedule, each: _Planned, starts_s: Sequence[float]) -> float | None:
    """Return when a job should start that was not started now; None: it should be served now by the other rules.

    A job that was to start now, but for which no machine with paid room suits, waits for the next slot unless that
    costs more than a machine of its own does.
    """
    at_s = found.starts_s.get(each.pending.number)
    if at_s is not None:
        return at_s
    worth_s = np.array([0.0, starts_s[1]])
    paid = [place for place, kind in zip(each.pending.places, each.kinds, strict=True) if kind == PAID]
    now = [place for place, kind in zip(each.pending.places, each.kinds, strict=True) if kind == BOUGHT]
    if not paid:
        return None
    later = max(_worth(each, place, worth_s)[1] for place in paid)
    at_once = max((_worth(each, place, worth_s)[0] for place in now), default=0.0)
    return starts_s[1] if later > at_once else None


def _worth(each: _Planned, place: StartOption, starts_s: Floats) -> Floats:
    begins_s = starts_s + place.delay_s
    return expected_utility(each.pending.utility, each.pending.run_time, begins_s, place.stretch) - place.usd


def _let_wait(context: PlanContext, each: _Planned, at_s: float) -> None:
    job, run_time = each.job, each.pending.run_time
    context.waiting.queues[each.group.promise].remove(job, each.group, each.segment)
    chance = chance_now = None
    if (deadline_at := job.deadline_at) is not None:
        left_s = deadline_at - context.now
        chance, chance_now = run_time.cdf(max(0.0, left_s - at_s)), run_time.cdf(left_s)
    start = PlannedStart(at=context.now + at_s, chance=chance, chance_now=chance_now)
    context.decisions.plan_start(job, start)

    def why() -> Reason:
        numbers: dict[str, float | int | str] = {"starts_in_s": round(at_s, 1)}
        if chance is not None and chance_now is not None:
            numbers |= {"chance": round(chance, 4), "chance_now": round(chance_now, 4)}
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

    def __post_init__(self) -> None:
        fleet = self.context.fleet
        open_now = fleet.placeable | fleet.coming
        self.reserved, self.rented = open_now & fleet.reserved, open_now & ~fleet.reserved
        for at in self.reserved.nonzero()[0].tolist():
            pool = int(fleet.type_at[at])
            self.capacity[pool] = self.capacity.get(pool, 0.0) + float(fleet.capacity[0, at])
        self.capacity[_RENTED] = float(np.maximum(fleet.free[0][self.rented], 0.0).sum())
        self.capacity[_BOUGHT] = self._to_buy()

    def _to_buy(self) -> float:
        """Return how many vCPUs may still be rented, by the policy's caps."""
        caps, ledger = self.context.policy.caps, self.context.ledger
        if ledger.instances >= caps.max_instances:
            return 0.0
        held = float(self.context.fleet.capacity[0].sum())
        return max(0.0, caps.max_vcpus - held) if caps.max_vcpus is not None else 1e9

    def running(self) -> list[RunningJob]:
        """Return the jobs that hold reserved room, or have it held for them."""
        fleet, context, found = self.context.fleet, self.context, list[RunningJob]()
        amounts = defaultdict[str, dict[int, float]](dict)
        jobs: dict[str, Job] = {}
        for at in self.reserved.nonzero()[0].tolist():
            pool = int(fleet.type_at[at])
            for job, held in fleet.holdings[at]:
                jobs[job.id] = job
                amounts[job.id][pool] = amounts[job.id].get(pool, 0.0) + held.resources.vcpus
        for job_id, job in sorted(jobs.items(), key=lambda each: number_of(each[0])):
            known = context.run_times.of(job)
            found.append(
                RunningJob(
                    number=number_of(job_id),
                    amounts=amounts[job_id],
                    run_time=known or _UNKNOWN,
                    age_s=ran_for_s(job, context.now),
                )
            )
        # What is held for jobs that await a machine, or claimed by this plan.
        for at in self.reserved.nonzero()[0].tolist():
            claimed = float(fleet.free[0, at] - fleet.room[0, at])
            if claimed > SLACK:
                pool = int(fleet.type_at[at])
                found.append(RunningJob(number=-1 - at, amounts={pool: claimed}, run_time=_UNKNOWN, age_s=0.0))
        return found

    def places(self, group: JobGroup, run_time: RunTimes, amount: float) -> Iterator[tuple[str, StartOption]]:
        """Yield where jobs of ``group`` may run, each with what it is."""
        context, fleet = self.context, self.context.fleet
        allowed = suited(context, group, fleet.placeable | fleet.coming)
        paid = frozenset(int(at) for at in np.unique(fleet.type_at[allowed & self.reserved]))
        speeds = self._stretches(group, paid)
        for stretch in sorted(set(speeds.values())):
            pools = frozenset(pool for pool in paid if speeds[pool] <= stretch)
            yield PAID, StartOption(pools=pools, stretch=stretch)
        usd = self._price_usd_per_h(group) * run_time.likely_s / HOUR_S
        if self.capacity[_RENTED] > SLACK and (allowed & self.rented).any():
            # Residents may leave before it; then the machine is paid for this job alone.
            yield RENTED, StartOption(pools=frozenset((_RENTED,)), usd=0.5 * usd, lasting=False)
        if usd > 0.0 and self.capacity[_BOUGHT] >= amount:
            boot_s = context.quickest_s(group.resources)
            delay_s = boot_s if boot_s < inf else 0.0
            yield BOUGHT, StartOption(pools=frozenset((_BOUGHT,)), usd=usd, lasting=False, delay_s=delay_s)

    def _stretches(self, group: JobGroup, pools: frozenset[int]) -> dict[int, float]:
        """Return how many times as long jobs of ``group`` run in each pool as on the best type, in steps of a tenth."""
        known = self.context.snapshot.applications.get(group.application)
        columns = self.context.fleet.type_columns
        if known is None or not known.by_type or not pools:
            return dict.fromkeys(pools, 1.0)
        rates = {pool: known.by_type[columns[pool]].value for pool in pools if columns[pool] in known.by_type}
        best = max((each.value for each in known.by_type.values()), default=0.0)
        usual = float(np.median(list(rates.values()))) if rates else best
        if best <= 0.0:
            return dict.fromkeys(pools, 1.0)
        return {pool: max(1.0, round(best / max(rates.get(pool, usual), 1e-9), 1)) for pool in pools}

    def _price_usd_per_h(self, group: JobGroup) -> float:
        """Return the price of what would be rented for a job of ``group``; 0: nothing can be."""
        at = [each for each in self.market.obtainable(group) if self.market.offers[each].market is not Market.RESERVED]
        if not at:
            return 0.0
        share = float(self.market.taken(group)[at[0]][0] / max(self.market.capacity[at[0]][0], SLACK))
        return group.needed * min(1.0, share) * float(self.market.price_usd_per_h[at[0]])


def _waiting(context: PlanContext, pools: _Pools) -> Iterator[_Planned]:
    """Yield the jobs to plan, those with a target first, each kind in order."""
    jobs = list(islice(_candidates(context), MOST_PLANNED))
    levels = {each: at for at, each in enumerate(sorted({job.spec.priority for job, _ in jobs})[-LEVELS:])}
    for job, segment in jobs:
        run_time, group = context.run_times.of(job), segment.group
        if run_time is None or pools.market.paid_ranks(group):
            continue  # unknown, or a reserved machine is launched for it
        amount = group.needed * float(group.demand[0])
        found = list(pools.places(group, run_time, amount))
        usd = max([place.usd for kind, place in found if kind == BOUGHT], default=0.0)
        if usd <= 0.0:
            continue  # the queue's own order, with its reservations, serves fleets that cannot grow
        worth = PRIORITY_WORTH ** levels.get(job.spec.priority, 0)
        pending = PendingJob(
            number=number_of(job.id),
            amount=amount,
            run_time=run_time,
            utility=_utility(context, job, run_time, usd * worth),
            places=tuple(place for _, place in found),
        )
        yield _Planned(job, group, segment, pending, tuple(kind for kind, _ in found))


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


def _utility(context: PlanContext, job: Job, run_time: RunTimes, usd: float) -> Utility:
    """Return what the end of ``job`` is worth; ``usd``: what it costs on a machine of its own."""
    deadline_at, worth = job.deadline_at, context.policy.admission.deadline_worth * usd
    if deadline_at is None:
        waited = (context.now - job.submitted_at) / BEST_EFFORT_DECAY_S
        return Utility(value=BEST_EFFORT_WORTH * usd * (1.0 + waited), until_s=0.0, decay_s=BEST_EFFORT_DECAY_S)
    left_s, allowed_s = deadline_at - context.now, deadline_at - job.submitted_at
    if left_s > 0.0 and not overestimated(run_time, left_s, OVERESTIMATED_BELOW):
        return Utility(value=worth, until_s=left_s)
    if left_s > 0.0:
        return Utility(value=worth, until_s=left_s, decay_s=allowed_s)
    # It is late: the sooner it ends, the better.
    return Utility(value=worth / 2.0, until_s=0.0, decay_s=BEST_EFFORT_DECAY_S)
