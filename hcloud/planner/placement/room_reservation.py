"""Reserve room for jobs that find none, so that smaller jobs do not take it for ever.

The first such job in order gets a reservation, and each whose deadline comes near, whatever its place in order. It
names machines and an expected start, from the remaining run times of the units there. Other jobs pass if they leave the
reserved room, or end before the expected start (backfill, as in Slurm and EASY). Reservations are made anew in each
plan; of them only ``wait_code`` is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from hcloud.core.model import Allocation, Job, JobState, Number, Reason
from hcloud.core.rows import number_of
from hcloud.planner.context import PlanContext
from hcloud.planner.fleet import SLACK, Amounts, Mask, vector
from hcloud.planner.job_groups import JobGroup
from hcloud.planner.occupancy import RESERVES_ROOM, SECRETS_UNREADABLE
from hcloud.planner.reservations import RoomReservation
from hcloud.planner.text import clock_time

if TYPE_CHECKING:
    from hcloud.planner.placement.state import PlacementState

BOOTING = "booting"
"""Code of the reason of a job for which an instance boots."""
WAITS_FOR_RESERVED = "waits_for_reserved"
"""Code of the reason of a job that waits for reserved room because the hybrid mapping rents nothing for it."""
PLANNED = "planned"
"""Code of the reason of a job that is planned to start later (:mod:`hcloud.planner.plan_ahead`)."""
NOT_FOR_ROOM = frozenset(
    {BOOTING, WAITS_FOR_RESERVED, PLANNED, SECRETS_UNREADABLE, "engine_unreachable", "holds_out", "impossible"}
)
"""Codes of jobs that wait for something else than room on machines in use."""
MOST_SOUGHT = 16
"""For how many groups per plan a reservation is sought, so that a long queue stays cheap."""
MOST_MACHINES = 16
"""Among how many machines per rank, those with the least missing room, the earliest start is sought."""
ABOUT_AS_EARLY = 4.0
"""Starts within this multiple of the earliest are taken as equally early, since remaining times are mostly guesses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStart:
    """When a rank could start on an instance."""

    at: int
    """Place of the instance."""
    expected_s: float
    """Seconds until its room is expected to be free."""
    missing: float
    """vCPUs that must be released before."""


def waits_for_room(job: Job) -> bool:
    """Return whether an earlier plan launched no machine for ``job``, though it lacked nothing but room."""
    return job.state is JobState.QUEUED and bool(job.wait_code) and job.wait_code not in NOT_FOR_ROOM


def urgent_jobs(context: PlanContext) -> list[Job]:
    """Return the jobs that get a reservation whatever their place in order, those that have one first.

    A job is urgent when it can wait no longer than it has waited, or it will miss its deadline. So one with unknown run
    time is urgent after half of its time. Of jobs of one shape the one with the earliest deadline is considered, unless
    that has passed.
    """
    occupancy, found = context.snapshot.plan_cache.occupancy, list[tuple[bool, float, int, Job]]()
    left_out = {*context.snapshot.left_out.jobs, *context.snapshot.unreadable_secrets}
    for job_id in (*sorted(occupancy.reserving), *occupancy.earliest_due(context.now)):
        job = occupancy.rows[job_id]
        if job.deadline_at is None or not waits_for_room(job) or job.not_before_at > context.now or job_id in left_out:
            continue
        may_wait_s = job.deadline_at - (context.run_times.median_s(job) or 0.0) - context.now
        holds = job.wait_code == RESERVES_ROOM
        if may_wait_s <= context.now - job.eligible_at and (holds or may_wait_s >= 0.0):
            found.append((not holds, may_wait_s, number_of(job_id), job))
    ranked = sorted(found, key=lambda each: each[:3])
    return list({job.id: job for *_, job in ranked}.values())[:MOST_SOUGHT]


def open_beside(context: PlanContext, group: JobGroup, allowed: Mask) -> Mask:
    """Return the instances of ``allowed`` where a unit of ``group`` delays no reserved start of another group."""
    barring = [
        each
        for each in context.reservations.rooms.values()
        if each.group is not group and not _ends_before(context, group, each)
    ]
    left = allowed.copy() if barring else allowed
    for at in {at for each in barring for at in each.reserved}:
        spare = context.fleet.room[:, at] - _reserved_on(barring, at)
        left[at] &= bool((spare >= context.reservations.amount_on(group, at) - SLACK).all())
    return left


def _reserved_on(reservations: Iterable[RoomReservation], at: int) -> Amounts:
    return sum([each.reserved[at] for each in reservations if at in each.reserved], start=np.zeros(4))


def _ends_before(context: PlanContext, group: JobGroup, reservation: RoomReservation) -> bool:
    """Return whether units of ``group`` end before the reserved start, with the policy's confidence.

    The run time is at most ``max_runtime``, or what it does not exceed with that confidence.
    """
    risk, ends_in_s = 1.0 - context.policy.placement.confidence, inf
    if (run_time := context.run_times.limits(group.example)) is not None:
        ends_in_s = run_time.long_s
    if group.max_runtime_s is not None:
        ends_in_s = min(ends_in_s, group.max_runtime_s)
    # The start may come earlier than expected, and moves on with each plan. What may end at any time within as long
    # again ends within this share of the expected time as improbably as the risk.
    return ends_in_s <= risk * reservation.starts_in_s


def reservation_reason(context: PlanContext, reservation: RoomReservation, refusal: Reason) -> Reason:
    """Return for which machines the job waits, and until when; ``refusal``: why none is launched."""
    names = ", ".join(context.fleet.instances[at].id for at in reservation.reserved)
    starts_at = context.now + reservation.starts_in_s
    text = f"room on {names} is reserved for it, expected start at {clock_time(starts_at)}"
    numbers: dict[str, Number] = {
        **refusal.numbers,
        "instances": names,
        "expected_start_at": round(starts_at, 3),
        "expected_start_in_s": round(reservation.starts_in_s, 3),
        "refused": refusal.code,
    }
    return Reason(code=RESERVES_ROOM, text=f"{text}; no new machine: {refusal.text}", numbers=numbers)


def reserve_room(
    state: PlacementState, job: Job, group: JobGroup, allowed: Mask, *, urgent: bool, ready_too: bool
) -> RoomReservation | None:
    """Return the reservation for ``job``, or None if it lacks something else than room on the ``allowed`` instances.

    To be called for a job for which no machine can be launched; once per group and plan. ``allowed``: as if nothing was
    reserved; what other reservations hold is left to them. ``ready_too``: reserve also what is free by now.
    """
    context = state.context
    if job.state is not JobState.QUEUED or context.reservations.user_cap(job) is not None:
        return None
    fleet = context.fleet
    large = allowed & fleet.large_enough(group.demand)
    if (
        not ready_too
        and np.count_nonzero(open_beside(context, group, fleet.fitting_now(group.demand, large))) >= group.needed
    ):
        return None  # something else keeps it waiting
    if job.wait_code != RESERVES_ROOM and not _smaller_ones_wait(state, group):
        return None
    places = large.nonzero()[0]
    lasting = np.array([fleet.residents[at].lasting_vcpus() for at in places.tolist()])
    ever_free = fleet.capacity[0, places] - lasting + SLACK >= group.taken_on(fleet.capacity, places)[0]
    places = places[ever_free]
    missing = (group.taken_on(fleet.capacity, places)[0] - fleet.room[0, places]).clip(min=0.0)
    kept = {fleet.index[name] for name in job.reserved if name in fleet.index}
    elsewhere = np.array([at not in kept for at in places.tolist()], dtype=np.bool_)
    order: list[int] = np.lexsort((missing, elsewhere)).tolist()
    usual_s = _usual_age_s(context, [int(places[number]) for number in order[:MOST_MACHINES]])
    starts, machines = list[RankStart](), 0
    for number in order:
        found = list(_starts_on(context, group, int(places[number]), float(missing[number]), usual_s))
        starts += found
        machines += bool(found)
        if machines >= MOST_MACHINES * group.needed:
            break
    reservation = _choose(context, job, group, starts, usual_s, kept, urgent=urgent)
    if reservation is not None and reservation.starts_in_s == 0.0 and not ready_too:
        return None  # several ranks fit on one instance now, so something else keeps it waiting
    return reservation


def _smaller_ones_wait(state: PlacementState, group: JobGroup) -> bool:
    """Return whether jobs wait that could take room too small for ``group``."""
    return bool((state.least_queued() < group.demand - SLACK).any())


def _usual_age_s(context: PlanContext, places: Sequence[int]) -> float:
    ages_s = [_ran_s(context, job, unit) for at in places for job, unit in context.fleet.holdings[at]]
    return float(np.median(ages_s)) if ages_s else 0.0


def _choose(
    context: PlanContext,
    job: Job,
    group: JobGroup,
    starts: Sequence[RankStart],
    usual_s: float,
    kept: Set[int],
    *,
    urgent: bool,
) -> RoomReservation | None:
    """Return the reservation of those ``starts`` that suffice for all ranks; None: too few.

    Of starts that are about equally early, those on instances reserved before (``kept``) come first, as what was
    released there would be lost; then the instance with the least missing room.
    """
    if len(starts) < group.needed:
        return None
    early_s = ABOUT_AS_EARLY * max(usual_s, sorted(each.expected_s for each in starts)[group.needed - 1])
    chosen, reserved, taken = list[RankStart](), dict[int, Amounts](), list[int]()
    everywhere = np.ones(len(context.fleet.instances), dtype=np.bool_)

    def rank_order(each: RankStart) -> tuple[bool, bool, float, float, int]:
        return (each.expected_s > early_s, each.at not in kept, each.missing, each.expected_s, each.at)

    for start in sorted(starts, key=rank_order):
        constraints, company = group.constraints, group.company
        if (
            constraints is not None
            and taken
            and not (everywhere & context.topology.spread(constraints, taken))[start.at]
        ):
            continue
        if company is not None and start.at in reserved:
            continue
        chosen.append(start)
        taken.append(start.at)
        reserved[start.at] = reserved.get(start.at, np.zeros(4)) + context.reservations.amount_on(group, start.at)
        if len(taken) == group.needed:
            if _cannot_pay(context, job, group, taken):
                return None
            return RoomReservation(
                group=group,
                urgent=urgent,
                reserved=reserved,
                starts_in_s=max(each.expected_s for each in chosen),
            )
    return None


def _cannot_pay(context: PlanContext, job: Job, group: JobGroup, places: Sequence[int]) -> bool:
    if not context.ledger.watches_scopes:
        return False
    ledger, machines = context.ledger.copy(), context.fleet.instances
    for at in places:
        held = context.reservations.granted(group, at)
        if ledger.placement_refusal(job, machines[at], held) is not None:
            return True
        ledger.book_placement(job, machines[at], held)
    return False


def _starts_on(context: PlanContext, group: JobGroup, at: int, missing: float, usual_s: float) -> Iterator[RankStart]:
    """Yield when instance ``at`` has room for one rank, two ranks, and so on, until room is never expected."""
    fleet, asks = context.fleet, context.reservations.amount_on(group, at)
    held = [
        pair
        for pair in fleet.holdings[at]
        if pair[0].id not in context.decisions.stopping and pair[1].yielded_at is None
    ]
    ages_s = [_ran_s(context, *pair) for pair in held]
    ends = sorted(
        (_remaining_s(context, job, ran_s, usual_s), number)
        for number, ((job, _), ran_s) in enumerate(zip(held, ages_s, strict=True))
    )
    others = _reserved_on(context.reservations.rooms.values(), at)
    room, wanted, now_s = fleet.room[:, at] - others, asks.copy(), 0.0
    queue = iter(ends)
    for _ in range(group.needed):
        if (wanted > fleet.capacity[:, at] - others + SLACK).any():
            return
        while (room < wanted - SLACK).any():
            now_s, number = next(queue, (inf, -1))
            if now_s == inf:
                return
            room += vector(held[number][1].resources)
        yield RankStart(at=at, expected_s=now_s, missing=missing)
        wanted, missing = wanted + asks, missing + float(asks[0])


def _ran_s(context: PlanContext, job: Job, unit: Allocation) -> float:
    since = unit.started_at
    if since is None:
        since = job.attempt.placed_at if job.attempt is not None else context.now
    return max(0.0, context.now - since - unit.total_paused_s(context.now))


def _remaining_s(context: PlanContext, job: Job, ran_s: float, usual_s: float) -> float:
    """Return the expected remaining run time of a unit, at most its limit; inf for a service without one.

    Without an estimate, it lasts as long again as it ran, or as units usually have: otherwise a machine would look the
    sooner free, the more of its units have just started.
    """
    limit_s = inf if job.spec.max_runtime_s is None else max(0.0, job.spec.max_runtime_s - ran_s)
    if job.spec.target.kind == "service":
        return limit_s
    rest_s = context.run_times.rest_s(job, ran_s)
    return min(max(ran_s, usual_s) if rest_s is None else rest_s, limit_s)
