"""Reserve room for the first job in order that finds none, so that smaller jobs behind it do not take it for ever.

The reservation names machines and an expected start, from the remaining run times of the units there. Jobs behind it
pass if they leave the reserved room, or if their ``max_runtime`` ends before the start that limits guarantee
(backfill, as in Slurm and EASY). A reservation is made anew in each plan; nothing of it is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from hcloud.core.model import Allocation, Job, JobState, Number, Reason
from hcloud.planner.context import JobGroup, PlanContext, RoomReservation
from hcloud.planner.fit.arq import run_s
from hcloud.planner.fleet import SLACK, Amounts, Mask, vector
from hcloud.planner.text import seconds

RESERVES_ROOM = "reserves_room"
"""Code of the reason of a job for which room is reserved."""
BOOTING = "booting"
"""Code of the reason of a job for which an instance boots."""
WAITS_FOR_RESERVED = "waits_for_reserved"
"""Code of the reason of a job that waits for reserved room because the hybrid mapping rents nothing for it."""
NOT_FOR_ROOM = frozenset({BOOTING, WAITS_FOR_RESERVED, "engine_unreachable", "holds_out", "impossible"})
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
    within_s: float
    """Seconds until it is free at the latest, by limits of run times; inf: no limit."""
    missing: float
    """vCPUs that must be released before."""


def open_beside(context: PlanContext, reservation: RoomReservation, group: JobGroup, allowed: Mask) -> Mask:
    """Return the instances of ``allowed`` where a unit of ``group`` does not delay the reserved start."""
    ends_in_s = inf if group.max_runtime_s is None else group.max_runtime_s
    # An estimate alone must not let jobs pass: it moves on with each plan, and they would pass for ever.
    ends_before = reservation.starts_within_s < inf and ends_in_s <= reservation.starts_in_s
    if group is reservation.group or ends_before:
        return allowed
    left = allowed.copy()
    for at, amount in reservation.reserved.items():
        spare = context.fleet.room[:, at] - amount
        left[at] &= bool((spare >= context.amount_on(group, at) - SLACK).all())
    return left


def reservation_reason(context: PlanContext, reservation: RoomReservation, refusal: Reason) -> Reason:
    """Return for which machines the job waits, and until when; ``refusal``: why none is launched."""
    names = ", ".join(context.fleet.instances[at].id for at in reservation.reserved)
    text = f"room on {names} is reserved for it, expected start in {seconds(reservation.starts_in_s)}"
    numbers: dict[str, Number] = {
        **refusal.numbers,
        "instances": names,
        "expected_start_at": round(context.now + reservation.starts_in_s, 3),
        "expected_start_in_s": round(reservation.starts_in_s, 3),
        "refused": refusal.code,
    }
    return Reason(code=RESERVES_ROOM, text=f"{text}; no new machine: {refusal.text}", numbers=numbers)


def reserve_room(context: PlanContext, job: Job, group: JobGroup, allowed: Mask) -> RoomReservation | None:
    """Return the reservation for ``job``, or None if it lacks something else than room on the ``allowed`` instances.

    To be called for a job for which no machine can be launched; once per group and plan.
    """
    group.may_reserve = False
    if job.state is not JobState.QUEUED or context.user_cap(job) is not None:
        return None
    fleet = context.fleet
    large = allowed & fleet.large_enough(group.demand)
    if np.count_nonzero(large & fleet.fitting_now(group.demand, large)) >= group.needed:
        return None  # something else keeps it waiting
    if job.wait_code != RESERVES_ROOM and not _smaller_ones_wait(context, group):
        return None
    places = large.nonzero()[0]
    missing = (group.taken_on(fleet.capacity, places)[0] - fleet.room[0, places]).clip(min=0.0)
    order: list[int] = np.argsort(missing, kind="stable").tolist()
    usual_s = _usual_age_s(context, [int(places[number]) for number in order[:MOST_MACHINES]])
    starts, machines = list[RankStart](), 0
    for number in order:
        found = list(_starts_on(context, group, int(places[number]), float(missing[number]), usual_s))
        starts += found
        machines += bool(found)
        if machines >= MOST_MACHINES * group.needed:
            break
    return _choose(context, job, group, starts, usual_s)


def _smaller_ones_wait(context: PlanContext, group: JobGroup) -> bool:
    """Return whether jobs wait that could take room too small for ``group``."""
    groups = context.groups.values()
    return any(each.queued and bool((each.demand < group.demand - SLACK).any()) for each in groups)


def _usual_age_s(context: PlanContext, places: Sequence[int]) -> float:
    ages_s = [_ran_s(context, job, unit) for at in places for job, unit in context.fleet.holdings[at]]
    return float(np.median(ages_s)) if ages_s else 0.0


def _choose(
    context: PlanContext, job: Job, group: JobGroup, starts: Sequence[RankStart], usual_s: float
) -> RoomReservation | None:
    """Return the reservation of those ``starts`` that suffice for all ranks; None: too few.

    Of starts that are about equally early, the machine with the least missing room comes first. It stays the same from
    plan to plan, since no other job takes what its units release.
    """
    if len(starts) < group.needed:
        return None
    early_s = ABOUT_AS_EARLY * max(usual_s, sorted(each.expected_s for each in starts)[group.needed - 1])
    chosen, reserved, taken = list[RankStart](), dict[int, Amounts](), list[int]()
    everywhere = np.ones(len(context.fleet.instances), dtype=np.bool_)
    for start in sorted(starts, key=lambda each: (each.expected_s > early_s, each.missing, each.expected_s, each.at)):
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
        reserved[start.at] = reserved.get(start.at, np.zeros(3)) + context.amount_on(group, start.at)
        if len(taken) == group.needed:
            if _cannot_pay(context, job, group, taken):
                return None
            return RoomReservation(
                job_id=job.id,
                group=group,
                reserved=reserved,
                starts_in_s=max(each.expected_s for each in chosen),
                starts_within_s=max(each.within_s for each in chosen),
            )
    return None


def _cannot_pay(context: PlanContext, job: Job, group: JobGroup, places: Sequence[int]) -> bool:
    if not context.ledger.watches_users:
        return False
    ledger, machines = context.ledger.copy(), context.fleet.instances
    return any(ledger.placement_refusal(job.spec.user, machines[at], context.granted(group, at)) for at in places)


def _starts_on(context: PlanContext, group: JobGroup, at: int, missing: float, usual_s: float) -> Iterator[RankStart]:
    """Yield when instance ``at`` has room for one rank, two ranks, and so on, until room is never expected."""
    fleet, asks = context.fleet, context.amount_on(group, at)
    held = [pair for pair in fleet.holdings[at] if pair[0].id not in context.stopping]
    ages_s = [_ran_s(context, *pair) for pair in held]
    ends = sorted(
        (_remaining_s(context, job, ran_s, usual_s), number)
        for number, ((job, _), ran_s) in enumerate(zip(held, ages_s, strict=True))
    )
    room, wanted, limit_s, now_s = fleet.room[:, at].copy(), asks.copy(), 0.0, 0.0
    queue = iter(ends)
    for _ in range(group.needed):
        if (wanted > fleet.capacity[:, at] + SLACK).any():
            return
        while (room < wanted - SLACK).any():
            now_s, number = next(queue, (inf, -1))
            if now_s == inf:
                return
            job, unit = held[number]
            room += vector(unit.resources)
            limit_s = max(limit_s, _limit_left_s(job, ages_s[number]))
        yield RankStart(at=at, expected_s=now_s, within_s=limit_s, missing=missing)
        wanted, missing = wanted + asks, missing + float(asks[0])


def _ran_s(context: PlanContext, job: Job, unit: Allocation) -> float:
    since = unit.started_at
    if since is None:
        since = job.attempt.placed_at if job.attempt is not None else context.now
    return max(0.0, context.now - since)


def _limit_left_s(job: Job, ran_s: float) -> float:
    return inf if job.spec.max_runtime_s is None else max(0.0, job.spec.max_runtime_s - ran_s)


def _remaining_s(context: PlanContext, job: Job, ran_s: float, usual_s: float) -> float:
    """Return the expected remaining run time of a unit, at most its limit; inf for a service without one.

    Without an estimate, it lasts as long again as it ran, or as units usually have: otherwise a machine would look the
    sooner free, the more of its units have just started.
    """
    if job.spec.target.kind == "service":
        return _limit_left_s(job, ran_s)
    lasts_s = run_s(context.snapshot.applications.get(job.application), job.spec.nodes.count)
    remains_s = max(ran_s, usual_s) if lasts_s is None else abs(lasts_s - ran_s)
    return min(remains_s, _limit_left_s(job, ran_s))
