"""Replace small instances by larger ones while jobs wait only because no more instances are allowed.

Below the cap each job gets the best value, often a small instance. At the cap, new jobs fill whatever room becomes
free, so a small instance never empties and is never replaced, however many jobs wait. Therefore, once the waiting jobs
lack half as many vCPUs as all instances have, the smallest rented ones are drained. No unit is stopped, nothing new is
placed there, and the replacement launched once they are empty is at least twice as large
(:func:`hcloud.planner.offer_ranking.rank_choices` prefers large instances then). At most half of all instances drain at
one time. Instances with services stay, because services do not end; so do all instances for which limits allow no
larger one.
"""

from __future__ import annotations

from dataclasses import dataclass

from hcloud.core.model import Instance, InstanceState, Job, Market, Number, Offer, Reason
from hcloud.planner.budget import BudgetLedger, Shares
from hcloud.planner.context import PlanContext
from hcloud.planner.job_groups import JobGroup
from hcloud.planner.offer_ranking import rank_for
from hcloud.planner.plan import Drain, Place
from hcloud.planner.provisioning.state import ProvisioningState, future_of
from hcloud.planner.text import amount, offer_words
from hcloud.spec.validation import counted

LONG_QUEUE = 0.5
"""Small instances are drained only if this part of all vCPUs is lacking: a shorter queue ends sooner anyway."""
MOST_DRAINED = 0.5
"""At most this part of all instances drains at one time."""
LARGER = 2.0
"""A replacement has at least this many times the vCPUs."""


@dataclass(slots=True)
class _Upsizing:
    """Waiting jobs, and how their need shrinks with each planned replacement."""

    state: ProvisioningState
    company: list[tuple[JobGroup, int]]
    """Groups that wait, with their number of ranks."""
    job: Job
    """The first waiting job."""
    lacking_vcpus: float
    """vCPUs still lacking once the draining instances are replaced."""
    left: float
    """How many more instances may drain."""
    future: BudgetLedger
    """The account after the planned replacements."""

    @property
    def wanted(self) -> bool:
        """Whether one more instance should be replaced."""
        return self.lacking_vcpus > 0.0 and self.left >= 1.0

    def larger(self, instance: Instance) -> Offer | None:
        """Book and return the offer that would replace ``instance``; None, with nothing booked, if it is too small."""
        future = self.future.copy()
        future.release(instance)
        at = self._best(future)
        if at is None:
            return None
        offer = self.state.offer_market.offers[at]
        if offer.instance_type.capacity.vcpus < LARGER * instance.capacity.vcpus:
            return None
        future.book_launch(offer, self._shares(offer))
        self.state.offer_market.take(at)
        self.future, self.left = future, self.left - 1.0
        self.lacking_vcpus -= offer.instance_type.capacity.vcpus - instance.capacity.vcpus
        return offer

    def _best(self, future: BudgetLedger) -> int | None:
        """Return the best offer that limits allow, or None."""
        offer_market = self.state.offer_market
        for choice in rank_for(
            self.state.context, offer_market, self.company, offer_market.obtainable(self.company[0][0])
        ):
            offer = offer_market.offers[choice.at]
            if future.refusal(offer, self._shares(offer)) is None:
                return choice.at
        return None

    def _shares(self, offer: Offer) -> Shares:
        return self.future.shares([self.job], offer.instance_type.capacity)


def upsize_machines(state: ProvisioningState) -> None:
    """Drain small instances for jobs that wait at the cap on instances; to be called after launches are planned."""
    upsizing = _open_upsizing(state)
    if upsizing is None:
        return
    fleet = state.context.fleet
    for at in fleet.staying:
        if fleet.instances[at].state is InstanceState.DRAINING:
            upsizing.larger(fleet.instances[at])
    for at in _small(state.context):
        offer = upsizing.larger(fleet.instances[at]) if upsizing.wanted else None
        if offer is None:
            return
        _drain(state, at, offer)


def _open_upsizing(state: ProvisioningState) -> _Upsizing | None:
    """Return the state of the replacement, or None if little is lacking."""
    if state.first_capped is None:
        return None
    fleet = state.context.fleet
    company = [(group, jobs * group.wanted) for group, jobs in state.capped.items()]
    lacking_vcpus = sum(count * float(group.demand[0]) for group, count in company)
    if lacking_vcpus < LONG_QUEUE * float(fleet.capacity[0, fleet.staying].sum()):
        return None
    left = MOST_DRAINED * len(fleet.staying)
    return _Upsizing(state, company, state.first_capped, lacking_vcpus, left, future_of(state).copy())


def _small(context: PlanContext) -> list[int]:
    """Return the instances that may be drained, smallest first: rented, not awaited, and without services.

    None where this plan places a job or promises it room: draining it would refuse that.
    """
    fleet, places = context.fleet, list[int]()
    placed = {
        each.instance_id for action in context.decisions.actions if isinstance(action, Place) for each in action.ranks
    }
    for at in fleet.staying:
        instance = fleet.instances[at]
        in_use = (
            at in context.reservations.awaited
            or at in context.reservations.renewed_if_used
            or at in context.reservations.used
            or instance.id in placed
        )
        rented = instance.offer.market is not Market.RESERVED
        endless = any(job.spec.target.kind == "service" for job, _ in fleet.holdings[at])
        if rented and fleet.placeable[at] and not in_use and not endless:
            places.append(at)
    return sorted(places, key=lambda at: (float(fleet.capacity[0, at]), at))


def _drain(state: ProvisioningState, at: int, offer: Offer) -> None:
    context, instance = state.context, state.context.fleet.instances[at]
    waiting, limit = sum(state.capped.values()), context.policy.caps.max_instances
    numbers: dict[str, Number] = {"waiting": waiting, "limit": limit, "larger": "/".join(offer.key)}
    text = f"replacing {instance.id} ({amount(instance.capacity)}) by a larger machine ({offer_words(offer)}):"
    text += f" caps.max_instances ({limit}) keeps {counted(waiting, 'job')} waiting"
    context.fleet.set_placeable(at, False)
    context.decisions.add(Drain(instance_id=instance.id, reason=Reason(code="too_small", text=text, numbers=numbers)))
