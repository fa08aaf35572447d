"""What a plan has promised so far: room on instances, their lasting use, and money. All of it can be rolled back.

Room is claimed for ranks of waiting jobs before they are placed, so that a plan promises nothing twice. Claims are not
stored: every plan makes them again in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from hcloud.core.model import Job, JobId, JobState, Reason, Resources
from hcloud.planner.budget import BudgetLedger
from hcloud.planner.fit.suitability import Suitability
from hcloud.planner.fleet import Amounts, Fleet, Mask
from hcloud.planner.job_groups import JobGroup
from hcloud.planner.late_boots import LateBoots
from hcloud.planner.topology import TopologyConstraints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoomReservation:
    """Room that is kept for one job until it can start."""

    group: JobGroup
    """The group of the job; its members are not barred."""
    urgent: bool
    """Whether it is for a job whose deadline comes near, not for the first in order."""
    reserved: dict[int, Amounts]
    """By place of an instance: what is reserved there, shape ``(4,)``."""
    starts_in_s: float
    """Seconds until the expected start."""


class Mark(NamedTuple):
    """The claims at one moment, for :meth:`PlanReservations.back_to`."""

    room: Amounts
    neighbours: int
    arrivals: int


@dataclass(slots=True, eq=False)
class PlanReservations:
    """Room and money promised by one plan. Integers are places in ``fleet.instances``.

    Stages read the fields, and change them by the methods only.
    """

    fleet: Fleet
    """The instances, with the room left on each."""
    ledger: BudgetLedger
    """The account of caps and budgets, with all that this plan spends."""
    topology: TopologyConstraints
    """Constraints of users, and how many units each instance has of the jobs they concern."""
    most_jobs_per_user: int | None
    """``caps.max_jobs_per_user``."""
    suit: Suitability | None = None
    """How well instances suit jobs beside their units; None before admission, or if the placement order needs no
    classifications."""
    late: LateBoots | None = None
    """Instances that boot far later than usual; None: none."""
    held: dict[JobId, list[int]] = field(default_factory=dict)
    """Room held for jobs on instances they await."""
    awaited: dict[int, list[Job]] = field(default_factory=dict)
    """Instances awaited when the plan began, with the jobs that await them."""
    used: set[int] = field(default_factory=set)
    """Instances used or promised by this plan, which are not released."""
    renewed_if_used: set[int] = field(default_factory=set)
    """Idle instances near the end of their lease, renewed only if something is placed there."""
    rooms: dict[JobId, RoomReservation] = field(default_factory=dict)
    """Room reserved for urgent jobs, and for the first in order that found none."""
    closed_to_best_effort: Mask | None = None
    """Instances closed to best effort, because such neighbours were evicted there for a running job; None: none."""
    active: dict[str, int] = field(default_factory=dict)
    """Number of jobs that hold or await instances, by user; not counted without a limit."""

    # ---------------------------------------------------------------- what is known
    def follow_neighbours(self, suit: Suitability | None) -> None:
        """Count arrivals and departures in ``suit`` too, from now on."""
        self.suit = suit

    def expect_late_boots(self, late: LateBoots | None) -> None:
        """Note which instances boot late."""
        self.late = late

    # ---------------------------------------------------------------- room
    def amount_on(self, group: JobGroup, at: int) -> Amounts:
        """Return what one rank of ``group`` takes of instance ``at``, shape ``(4,)``."""
        return self.fleet.capacity[:, at] if group.exclusive else group.asks_on(at)

    def granted(self, group: JobGroup, at: int) -> Resources:
        """Return :meth:`amount_on` as the resources of an allocation."""
        if group.exclusive:
            return self.fleet.instances[at].capacity
        if group.portions is None:
            return group.resources
        return replace(group.resources, vcpus=float(group.asks_on(at)[0]))

    def fitting_now(self, group: JobGroup, among: Mask) -> Mask:
        """Return which instances of ``among`` have room now for a rank of ``group``."""
        if not group.unsized:
            return self.fleet.fitting_now(group.asks, among)
        # The size per instance is computed only where the lower bound fits.
        roomy = self.fleet.fitting_now(group.demand, among)
        places = roomy.nonzero()[0]
        roomy[places] = self.fleet.have_room_now(places, group.taken_on(self.fleet.capacity, places))
        return roomy

    def use(self, group: JobGroup, at: int) -> None:
        """Let a unit of ``group`` start on instance ``at``."""
        self.fleet.use(at, self.amount_on(group, at))
        self._arrive(group, at)

    def unuse(self, group: JobGroup, at: int) -> None:
        """Undo :meth:`use`."""
        self.fleet.unuse(at, self.amount_on(group, at))
        self._leave(group, at)

    def claim(self, group: JobGroup, at: int) -> None:
        """Promise room for a rank of ``group`` on instance ``at``, now or once it is free."""
        self.fleet.room[:, at] -= self.amount_on(group, at)
        self._arrive(group, at)

    def unclaim(self, group: JobGroup, places: Iterable[int]) -> None:
        """Undo :meth:`claim` for each of ``places``."""
        for at in places:
            self.fleet.room[:, at] += self.amount_on(group, at)
            self._leave(group, at)

    def free(self, at: int, amount: Amounts, applications: Iterable[str]) -> None:
        """Count ``amount``, shape ``(4,)``, as room that units of ``applications`` will leave on instance ``at``."""
        self.fleet.room[:, at] += amount
        if self.suit is not None:
            for application in applications:
                self.suit.leave(at, application)

    def _arrive(self, group: JobGroup, at: int) -> None:
        self.topology.arrive(at, group.company)
        if self.suit is not None:
            self.suit.arrive(at, group.application)

    def _leave(self, group: JobGroup, at: int) -> None:
        self.topology.arrive(at, group.company, -1)
        if self.suit is not None:
            self.suit.leave(at, group.application)

    def mark(self) -> Mark:
        """Return the present claims on room, for :meth:`back_to`."""
        return Mark(self.fleet.room.copy(), self.suit.moment if self.suit is not None else 0, self.topology.moment)

    def back_to(self, mark: Mark) -> None:
        """Drop all claims made since :meth:`mark`."""
        self.fleet.room[:] = mark.room
        if self.suit is not None:
            self.suit.back_to(mark.neighbours)
        self.topology.back_to(mark.arrivals)

    # ---------------------------------------------------------------- use of instances
    def await_instance(self, at: int, job: Job) -> None:
        """Note that ``job`` awaited instance ``at`` when the plan began."""
        self.awaited.setdefault(at, []).append(job)

    def keep_awaited(self) -> None:
        """Release no instance that a job awaited when the plan began."""
        self.used.update(self.awaited)

    def keep(self, *places: int) -> None:
        """Release none of the instances ``places`` in this plan."""
        self.used.update(places)

    def renew_if_used(self, at: int) -> None:
        """Renew the lease of idle instance ``at`` only if something is placed there."""
        self.renewed_if_used.add(at)

    def renewed(self, places: Iterable[int]) -> None:
        """Note that the leases of ``places`` are renewed."""
        self.renewed_if_used.difference_update(places)

    def hold(self, job: Job, places: list[int]) -> None:
        """Hold what was claimed on ``places`` for ``job``, which awaits instances."""
        if places:
            self.held[job.id] = places

    def unhold(self, job: Job) -> list[int]:
        """Return where room is held for ``job``, one entry per rank, and hold it no longer; it stays claimed."""
        return self.held.pop(job.id, [])

    def reserve(self, job: Job, room: RoomReservation) -> None:
        """Reserve room for ``job``."""
        self.rooms[job.id] = room

    def unreserve(self, job_id: JobId) -> None:
        """Drop what is reserved for a job, if anything is."""
        self.rooms.pop(job_id, None)

    def close_to_best_effort(self, places: Sequence[int]) -> None:
        """Let no best-effort job start on ``places``."""
        if self.closed_to_best_effort is None:
            self.closed_to_best_effort = np.zeros(len(self.fleet.instances), dtype=np.bool_)
        self.closed_to_best_effort[list(places)] = True

    @contextmanager
    def closed_to_all(self, places: list[int]) -> Iterator[None]:
        """Let nothing start on ``places``, which are placeable, for a while."""
        self.fleet.placeable[places] = False
        try:
            yield
        finally:
            self.fleet.placeable[places] = True

    # ---------------------------------------------------------------- money
    def fork_ledger(self) -> BudgetLedger:
        """Go on with a copy of the account; return the present one, for :meth:`adopt` if the trial fails."""
        before = self.ledger
        self.ledger = before.copy()
        return before

    def adopt(self, ledger: BudgetLedger) -> None:
        """Go on with ``ledger``: a trial that succeeded, or the account from before one that failed."""
        self.ledger = ledger

    def book_claims(self, job: Job, group: JobGroup, places: Sequence[int]) -> Reason | None:
        """Book the claimed ``places`` to ``job``'s scopes; return the limit that forbids it, with nothing booked, or
        None.

        Otherwise instances would be launched for the other ranks, and all would wait for money that is spent.
        """
        if not places or not self.ledger.watches_scopes:
            return None
        before = self.fork_ledger()
        for at in places:
            instance, held = self.fleet.instances[at], self.granted(group, at)
            refusal = self.ledger.placement_refusal(job, instance, held)
            if refusal is not None:
                self.ledger = before
                return refusal
            self.ledger.book_placement(job, instance, held)
        return None

    # ---------------------------------------------------------------- jobs at once
    def count_active(self, job: Job, by: int = 1) -> None:
        """Add ``by`` to the number of jobs of this user that hold instances, if the policy limits it."""
        if self.most_jobs_per_user is not None:
            self.active[job.spec.user] = self.active.get(job.spec.user, 0) + by

    def user_cap(self, job: Job) -> Reason | None:
        """Return why no more jobs of this user may hold instances, or None. A job that awaits instances counts
        already."""
        limit, user = self.most_jobs_per_user, job.spec.user
        if limit is None or job.state is JobState.AWAITING_INSTANCE or self.active.get(user, 0) < limit:
            return None
        text = f"caps.max_jobs_per_user reached: {user} has {limit} of {limit} jobs on machines"
        return Reason(code="cap_jobs_per_user", text=text, numbers={"limit": limit, "whose": user})
