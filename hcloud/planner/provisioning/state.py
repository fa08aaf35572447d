"""What provisioning keeps while one plan is made: the market, what may be evicted, and the instances to launch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hcloud.core.model import Job, Offer, Reason
from hcloud.planner.budget import BudgetLedger, open_budget
from hcloud.planner.context import PlanContext
from hcloud.planner.fleet import SLACK, Amounts, Mask, Places
from hcloud.planner.job_groups import JobGroup
from hcloud.planner.market import OfferMarket
from hcloud.planner.offer_ranking import Choice
from hcloud.planner.placement.state import PlacementState
from hcloud.planner.provisioning.eviction import EvictionCandidates


@dataclass(slots=True, eq=False)
class PlannedInstance:
    """An instance this plan launches."""

    offer: Offer
    at: int
    """Place of the offer in the market."""
    place: int
    """Place of the instance in :class:`PlannedCapacity`."""
    choices: list[Choice]
    """The offers considered, best first."""
    group: JobGroup
    """The group of the job that it was opened for."""
    jobs: list[Job] = field(default_factory=list)
    """The jobs it is for, one entry per rank."""


@dataclass(slots=True, eq=False)
class PlannedCapacity:
    """What is left of the instances this plan launches, as arrays: the first plan of a cluster launches thousands. Rows
    beyond the number of instances are undefined."""

    left: Amounts = field(default_factory=lambda: np.zeros((16, 4)))
    """Free resources, shape ``(N, 4)``."""
    at: Places = field(default_factory=lambda: np.zeros(16, dtype=np.intp))
    """Place of the offer in the market, shape ``(N,)``."""

    def add(self, place: int, at: int, capacity: Amounts) -> None:
        """Add an empty instance of offer ``at``."""
        if place >= len(self.at):
            self.left, self.at = np.concatenate([self.left, self.left]), np.concatenate([self.at, self.at])
        self.left[place], self.at[place] = capacity, at

    def where(self, count: int, taken: Amounts, serves: Mask) -> list[int]:
        """Return which of the first ``count`` instances have room for one rank.

        ``taken`` is what a rank takes of each offer, shape ``(M, 4)``; ``serves`` are the permitted offers.
        """
        at = self.at[:count]
        roomy = np.logical_and.reduce(self.left[:count] + SLACK >= taken[at], axis=1)
        places: list[int] = (roomy & serves[at]).nonzero()[0].tolist()
        return places


@dataclass(slots=True)
class ProvisioningState:
    """The state of this stage."""

    context: PlanContext
    placement: PlacementState
    offer_market: OfferMarket
    victims: EvictionCandidates
    groups: list[JobGroup]
    machines: list[PlannedInstance] = field(default_factory=list)
    """Instances this plan launches."""
    rooms: PlannedCapacity = field(default_factory=PlannedCapacity)
    future: BudgetLedger | None = None
    """The account once terminating instances are gone; None: not computed yet."""
    idle: list[int] | None = None
    """Idle instances that may be terminated to make room; None: not computed yet."""
    closed: Reason | None = None
    """The reason common to all jobs if nothing can be claimed, launched or terminated."""
    refused: Offer | None = None
    """The cheapest offer that limits refused when one was last requested."""
    capped: dict[JobGroup, int] = field(default_factory=dict)
    """How many jobs of each group wait only because no more instances are allowed."""
    first_capped: Job | None = None
    """The first of these in order."""

    @property
    def running(self) -> Mask:
        """Ready instances that stay, in use or not."""
        running = self.context.fleet.placeable.copy()
        running[list(self.context.reservations.renewed_if_used)] = False
        return running


def future_of(state: ProvisioningState) -> BudgetLedger:
    """Return the account once terminating instances are gone, including what this plan launches."""
    if state.future is None:
        context = state.context
        staying = [
            context.fleet.instances[at] for at in context.fleet.staying if at not in context.decisions.terminating
        ]
        state.future = open_budget(context.snapshot, context.policy, staying, context.jobs)
        for machine in state.machines:
            foresee(state, machine)
    return state.future


def foresee(state: ProvisioningState, machine: PlannedInstance) -> None:
    """Book ``machine`` in the account of :func:`future_of`, if that is computed."""
    if state.future is not None:
        shares = state.future.shares(machine.jobs, machine.offer.instance_type.capacity)
        state.future.book_launch(machine.offer, shares)
