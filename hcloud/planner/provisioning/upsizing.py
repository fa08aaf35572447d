"""Larger machines in place of small ones, while jobs wait only because no more machines are allowed.

As long as machines are to spare each job gets what is best value for money, often a small machine. Once as many are up
as the policy allows, whoever comes is put where something comes free, so that no small machine is ever empty and gives
way to a larger one, however many wait. So once those who wait for that lack half as many vCPUs as all machines have
together, the smallest rented ones are drained: nobody is stopped, nothing new is placed there, and what is bought when
they are empty is at least twice as large (``offers.rank_choices`` prefers large machines then). No more than half of
all machines are drained at one time. Machines with services stay, as these do not end, and so does every machine where
limits have no room for a larger one.

An hour of a tenth of low variability under the default policy with 20 machines, seeds 0 to 7: 99.2 % of targets are
met, at $3.72 in the mean; without this 84.4 % (from 41 to 100) at $3.35. At a fifth of it, seeds 0 to 2: 98.4 % and
$7.46 instead of 93.5 % and $8.02.
"""

from __future__ import annotations

from dataclasses import dataclass

from hcloud.core.model import Instance, InstanceState, Job, Market, Number, Offer, Reason
from hcloud.planner.budget import BudgetLedger, launch_shares
from hcloud.planner.context import JobGroup, PlanContext
from hcloud.planner.market import rank_for
from hcloud.planner.plan import Drain
from hcloud.planner.provisioning.provision import ProvisioningState, future_of
from hcloud.planner.text import amount, offer_words
from hcloud.spec.validation import counted

LONG_QUEUE = 0.5
"""So much of what all machines have must be lacking before small ones are drained: a shorter queue is over sooner."""
MOST_DRAINED = 0.5
"""No more than this part of all machines are drained at one time."""
LARGER = 2.0
"""What comes in place of a machine has at least so many times its vCPUs."""


@dataclass(slots=True)
class _Upsizing:
    """Who waits (``company``: by group how many ranks; ``job``: the first), what they will lack when the machines that
    drain have given way, how many more may (``left``), and the account as it will be then (``future``)."""

    state: ProvisioningState
    company: list[tuple[JobGroup, int]]
    job: Job
    lacking_vcpus: float
    left: float
    future: BudgetLedger

    @property
    def wanted(self) -> bool:
        """Whether one more machine should give way."""
        return self.lacking_vcpus > 0.0 and self.left >= 1.0

    def larger(self, instance: Instance) -> Offer | None:
        """Book and return what would be bought in place of ``instance``; None, and nothing booked, if it is small."""
        future = self.future.copy()
        future.release(instance)
        at = self._best(future)
        offer = self.state.offer_market.offers[at] if at is not None else None
        if at is None or offer is None or offer.instance_type.capacity.vcpus < LARGER * instance.capacity.vcpus:
            return None
        future.book_launch(offer, self._shares(offer))
        self.state.offer_market.take(at)
        self.future, self.left = future, self.left - 1.0
        self.lacking_vcpus -= offer.instance_type.capacity.vcpus - instance.capacity.vcpus
        return offer

    def _best(self, future: BudgetLedger) -> int | None:
        """Return which offer would be bought, of those that limits have room for."""
        offer_market = self.state.offer_market
        for choice in rank_for(
            self.state.context, offer_market, self.company, offer_market.obtainable(self.company[0][0])
        ):
            offer = offer_market.offers[choice.at]
            if future.refusal(offer, self._shares(offer)) is None:
                return choice.at
        return None

    def _shares(self, offer: Offer) -> dict[str, float]:
        return launch_shares([self.job], offer.instance_type.capacity)


def upsize_machines(state: ProvisioningState) -> None:
    """Drain small machines for those who wait for the cap on the number of machines; to be called after launches."""
    exchange = _open_exchange(state)
    if exchange is None:
        return
    fleet = state.context.fleet
    for at in fleet.staying:
        if fleet.instances[at].state is InstanceState.DRAINING:
            exchange.larger(fleet.instances[at])
    for at in _small(state.context):
        offer = exchange.larger(fleet.instances[at]) if exchange.wanted else None
        if offer is None:
            return
        _drain(state, at, offer)


def _open_exchange(state: ProvisioningState) -> _Upsizing | None:
    """Return what lacks, or None while that is little."""
    counts: dict[int, int] = {}
    for _, group in state.capped:
        counts[group.place] = counts.get(group.place, 0) + group.wanted
    if not counts:
        return None
    fleet, groups = state.context.fleet, {group.place: group for _, group in state.capped}
    company = [(group, counts[place]) for place, group in groups.items()]
    lacking_vcpus = sum(count * float(group.demand[0]) for group, count in company)
    if lacking_vcpus < LONG_QUEUE * float(fleet.capacity[0, fleet.staying].sum()):
        return None
    left = MOST_DRAINED * len(fleet.staying)
    return _Upsizing(state, company, state.capped[0][0], lacking_vcpus, left, future_of(state).copy())


def _small(context: PlanContext) -> list[int]:
    """Return the machines that may be drained, smallest first: rented, awaited by nobody, and without services."""
    fleet, found = context.fleet, list[int]()
    for at in fleet.staying:
        instance, wanted = fleet.instances[at], at in context.kept or at in context.lazy
        rented = instance.offer.market is not Market.RESERVED and instance.state is InstanceState.READY
        endless = any(job.spec.target.kind == "service" for job, _ in fleet.holdings[at])
        if rented and fleet.placeable[at] and not wanted and not endless:
            found.append(at)
    return sorted(found, key=lambda at: (float(fleet.capacity[0, at]), at))


def _drain(state: ProvisioningState, at: int, offer: Offer) -> None:
    context, instance = state.context, state.context.fleet.instances[at]
    waiting, limit = len(state.capped), context.policy.caps.max_instances
    numbers: dict[str, Number] = {"waiting": waiting, "limit": limit, "larger": "/".join(offer.key)}
    text = f"replacing {instance.id} ({amount(instance.capacity)}) by a larger machine ({offer_words(offer)}):"
    text += f" {counted(waiting, 'job')} waiting at the limit of {limit} machines"
    context.fleet.placeable[at] = context.fleet.hopeful[at] = False
    context.add(Drain(instance_id=instance.id, reason=Reason(code="too_small", text=text, numbers=numbers)))
