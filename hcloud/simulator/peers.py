"""Other tools as planners: their placement and purchasing rules, re-implemented for comparison on equal terms.

This is not those tools' code, and it says nothing about how well they run programs. A peer only decides which job is
served first, on which machine it runs, which machine is launched, and when one is terminated. Job outcomes and machine
life cycles (retries, leases, back-offs after a stockout, caps and budgets) are HCloud's for all peers, so that only the
rules differ. Sources: ``docs/simulation.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hcloud.core.errors import BadInput
from hcloud.core.model import FailureCause, Job, JobState, Market, Offer, Reason
from hcloud.core.rows import number_of
from hcloud.planner.budget import cost_is_shared, launch_shares
from hcloud.planner.context import PlanContext, open_context
from hcloud.planner.fleet import SLACK, Amounts, Mask, vector
from hcloud.planner.instance_lifecycle import idle_as_long_as, is_idle, reconcile_instances
from hcloud.planner.job_groups import JobGroup
from hcloud.planner.job_outcomes import decide_outcomes
from hcloud.planner.market import OfferMarket, open_market
from hcloud.planner.offer_refusals import why_not_obtainable
from hcloud.planner.placement.open_instances import usable
from hcloud.planner.plan import Drain, Finish, Launch, Place, Plan, RankPlacement
from hcloud.planner.snapshot import Snapshot
from hcloud.planner.text import offer_words, seconds
from hcloud.spec.policy import Policy, Strategy, simple_policy
from hcloud.spec.validation import counted, nearest

PREFIX = "peer:"
ALL_MARKETS = (Market.RESERVED, Market.SPOT, Market.ON_DEMAND)
UNDERUSED = 0.5
"""A peer that consolidates empties machines with less than this share of their capacity in use."""


@dataclass(slots=True, eq=False)
class RentedMachine:
    """A machine that the plan launches."""

    at: int
    """The index of its offer."""
    room: Amounts
    """The capacity left on it."""
    jobs: list[Job] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class BuyingView:
    """What a purchasing rule sees: the plan so far, the market, and the jobs not served yet."""

    context: PlanContext
    offer_market: OfferMarket
    markets: tuple[Market, ...]
    unserved: list[tuple[Job, JobGroup]] = field(default_factory=list)
    """In the peer's order."""
    machines: list[RentedMachine] = field(default_factory=list)
    """Machines this plan launches."""

    def offers_for(self, group: JobGroup) -> list[int]:
        """Return the available offers on which a rank of ``group`` fits, cheapest first."""
        return [at for at in self.offer_market.obtainable(group) if self.offer_market.offers[at].market in self.markets]

    def market(self, at: int) -> Market:
        """Return how offer ``at`` is paid for."""
        return self.offer_market.offers[at].market


Order = Callable[[Job], tuple[object, ...]]
Prefer = Callable[[PlanContext, Mask], int]
Buy = Callable[[BuyingView, JobGroup, list[int]], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTool:
    """One tool's rules."""

    name: str
    like: str
    """The tool."""
    rule: str
    """A summary for reports."""
    commits: Strategy
    """The strategy by which it reserves machines beforehand."""
    order: Order
    """Sort key of waiting jobs."""
    prefer: Prefer
    """Chooses among machines with room."""
    buy: Buy
    """Chooses among available offers."""
    markets: tuple[Market, ...] = ALL_MARKETS
    idle_s: float = 0.0
    """How long an idle rented machine is kept."""
    alone: bool = False
    """One machine per job."""
    blocks: bool = False
    """No job passes one for which no machine is available."""
    consolidates: bool = False
    """Underused machines are emptied."""

    def plan(self, snapshot: Snapshot, policy: Policy, rng: np.random.Generator) -> Plan:
        """Return a plan by this peer's rules; pure, like :func:`hcloud.planner.make_plan`."""
        context = open_context(snapshot, _rules_off(policy), rng)
        decide_outcomes(context)
        reconcile_instances(context)
        if not snapshot.paused:
            _serve(self, context)
        _terminate_idle(self, context)
        if self.consolidates:
            _consolidate(self, context)
        return context.plan()


def _rules_off(policy: Policy) -> Policy:
    """Return the policy with its limits, but without the rules that only HCloud has."""
    plain = simple_policy()
    return replace(
        policy,
        provisioning=plain.provisioning,
        placement=plain.placement,
        admission=plain.admission,
        profiling=plain.profiling,
    )


# ------------------------------------------------------------------------------------------------------------- serving
def _serve(peer: PeerTool, context: PlanContext) -> None:
    """Place jobs that fit, let others wait for booting machines, launch machines for the rest, in the peer's order."""
    view = BuyingView(context=context, offer_market=open_market(context), markets=peer.markets)
    context.fleet.expect_release(context.decisions.stopping)
    refusals: dict[JobGroup, Reason] = {}
    for job in sorted(context.waiting.all_jobs(), key=peer.order):
        group = context.group_of(job)
        if job.not_before_at > context.now:
            text = f"retrying in {seconds(job.not_before_at - context.now)}"
            context.decisions.wait(job, "backoff_until", lambda text=text: Reason(code="backoff_until", text=text))  # type: ignore[misc]
        elif (refusal := refusals.get(group) or context.reservations.user_cap(job)) is not None:
            _record_refusal(context, job, refusal)
        elif (peer.blocks and view.unserved) or not _place_or_claim(peer, context, job, group):
            view.unserved.append((job, group))
    _buy(peer, view, refusals)


def _place_or_claim(peer: PeerTool, context: PlanContext, job: Job, group: JobGroup) -> bool:
    """Place the job, or reserve room for it; not if its user cannot pay (``group.state.stuck``)."""
    served = _place_now(peer, context, job, group) or (
        group.state.stuck is None and _claim_room(peer, context, job, group)
    )
    if served:
        context.reservations.count_active(job)
    return served


def _place_now(peer: PeerTool, context: PlanContext, job: Job, group: JobGroup) -> bool:
    """Place all ranks of the job on machines with room, or as many as fit of an incremental job; return whether it
    started."""
    places = _take_room(peer, context, group, context.fleet.placeable, group.wanted, context.fleet.fitting_now)
    if len(places) < group.needed or not _renew(context, places) or not _paid(context, job, group, places):
        _release_room(context, group, places)
        return False
    instances = [context.fleet.instances[at] for at in places]
    ranks = tuple(
        RankPlacement(rank=rank, instance_id=each.id, resources=job.spec.resources_on(each.capacity))
        for rank, each in enumerate(instances)
    )
    context.reservations.used.update(places)
    reason = Reason(code="placed_by_peer", text=f"{instances[0].id} has room (rules of {peer.name})")
    context.decisions.add(Place(job_id=job.id, ranks=ranks, reason=reason))
    return True


def _claim_room(peer: PeerTool, context: PlanContext, job: Job, group: JobGroup) -> bool:
    """Reserve room for the job on machines that are booting or draining; return False if there is not enough."""
    coming = context.fleet.coming | context.fleet.placeable
    places = _take_room(peer, context, group, coming, group.needed, context.fleet.fitting)
    if len(places) < group.needed:
        _release_room(context, group, places)
        return False
    context.reservations.used.update(places)
    text = f"waiting for room on {context.fleet.instances[places[-1]].id}, which is booting or draining"
    context.decisions.wait(job, "booting", lambda: Reason(code="booting", text=text))
    return True


def _take_room(
    peer: PeerTool,
    context: PlanContext,
    group: JobGroup,
    among: Mask,
    count: int,
    fitting: Callable[[Amounts, Mask], Mask],
) -> list[int]:
    fleet, places = context.fleet, list[int]()
    allowed = usable(context, group, among)
    while len(places) < count:
        fits = fitting(group.demand, allowed)
        if peer.alone or group.exclusive:
            fits = fits & fleet.unshared(fleet.room)
        if not fits.any():
            break
        at = peer.prefer(context, fits)
        fleet.use(at, context.reservations.amount_on(group, at))
        places.append(at)
    return places


def _release_room(context: PlanContext, group: JobGroup, places: Sequence[int]) -> None:
    for at in places:
        context.fleet.unuse(at, context.reservations.amount_on(group, at))


def _renew(context: PlanContext, places: Sequence[int]) -> bool:
    """Renew the leases of idle machines that are used again; return False if a limit forbids it."""
    for at in sorted(context.reservations.renewed_if_used.intersection(places)):
        instance = context.fleet.instances[at]
        if context.ledger.renewal_refusal(instance, context.renewed_until_at, {}) is not None:
            return False
        context.ledger.book_renewal(instance, context.renewed_until_at, {})
        context.renew(at)
        context.reservations.renewed([at])
    return True


def _paid(context: PlanContext, job: Job, group: JobGroup, places: Sequence[int]) -> bool:
    """Book the job's shares of these machines, or set ``group.state.stuck`` to the limit that forbids it."""
    group.state.stuck = context.reservations.book_claims(job, group, places)
    return group.state.stuck is None


# -------------------------------------------------------------------------------------------------------------- buying
def _buy(peer: PeerTool, view: BuyingView, refusals: dict[JobGroup, Reason]) -> None:
    blocked: Reason | None = None
    while view.unserved:
        job, group = view.unserved[0]
        view.unserved.pop(0)
        if (capped := view.context.reservations.user_cap(job)) is not None:
            _record_refusal(view.context, job, capped)
            continue
        refusal = blocked or group.state.stuck or refusals.get(group)
        # Behind a blocking job, room for this one has not been tried yet.
        if refusal is None and not (peer.blocks and _place_or_claim(peer, view.context, job, group)):
            refusal = group.state.stuck or _buy_for(peer, view, job, group)
        if refusal is None:
            continue
        refusals[group] = refusal
        _record_refusal(view.context, job, refusal)
        if peer.blocks and refusal.code != "impossible":
            blocked = Reason(code="behind", text=f"queued behind {job.id}, for which no machine is available")
    for machine in view.machines:
        view.context.decisions.add(_launch(peer, view, machine))


def _buy_for(peer: PeerTool, view: BuyingView, job: Job, group: JobGroup) -> Reason | None:
    """Give the job's ranks room on machines that this plan launches; if that fails, undo it and return why."""
    context, taken = view.context, list[RentedMachine]()
    before, ledger = len(view.machines), context.reservations.fork_ledger()
    refusal: Reason | None = None
    while len(taken) < group.needed and refusal is None:
        machine = None if peer.alone else _find_shared(view, job, group)
        if machine is None:
            machine, refusal = _open_machine(peer, view, job, group)
        if machine is not None:
            machine.room -= view.offer_market.taken(group)[machine.at]
            machine.jobs.append(job)
            taken.append(machine)
    if refusal is None:
        text = f"launching {offer_words(view.offer_market.offers[taken[-1].at])}"
        context.decisions.wait(job, "booting", lambda: Reason(code="booting", text=text))
        context.reservations.count_active(job)
        return None
    for machine in taken:
        machine.room += view.offer_market.taken(group)[machine.at]
        machine.jobs.remove(job)
    for machine in view.machines[before:]:
        view.offer_market.take(machine.at, -1)
    del view.machines[before:]
    context.reservations.adopt(ledger)
    return refusal


def _find_shared(view: BuyingView, job: Job, group: JobGroup) -> RentedMachine | None:
    """Return a machine launched by this plan with room for a rank of the job and a share for its user."""
    for machine in view.machines:
        taken = view.offer_market.taken(group)[machine.at]
        roomy = view.offer_market.serves(group, machine.at) and bool((machine.room + SLACK >= taken).all())
        if roomy and cost_is_shared(view.context.ledger, view.offer_market.offers[machine.at], machine.jobs, job):
            return machine
    return None


def _open_machine(
    peer: PeerTool, view: BuyingView, job: Job, group: JobGroup
) -> tuple[RentedMachine | None, Reason | None]:
    """Book the offer that the peer's rule picks of those that are available and affordable."""
    context, offers = view.context, view.offer_market.offers
    choices, refusal = list[int](), None
    for at in view.offers_for(group):
        refused = context.ledger.refusal(offers[at], launch_shares([job], offers[at].instance_type.capacity))
        refusal = refusal or refused
        if refused is None:
            choices.append(at)
    if not choices:
        return None, refusal or _unobtainable(peer, view, group)
    at = peer.buy(view, group, choices)
    context.ledger.book_launch(offers[at], launch_shares([job], offers[at].instance_type.capacity))
    view.offer_market.take(at)
    machine = RentedMachine(at=at, room=vector(offers[at].instance_type.capacity))
    view.machines.append(machine)
    return machine, None


def _unobtainable(peer: PeerTool, view: BuyingView, group: JobGroup) -> Reason:
    """Return why no machine is available: now, or (``impossible``) ever."""
    reason = why_not_obtainable(view.context, view.offer_market, group)
    fitting = (view.offer_market.offers[int(at)] for at in np.flatnonzero(view.offer_market.fitting(group)))
    if (
        not view.context.snapshot.offers
        or sum(_most_ranks(peer, view, group, each) for each in fitting) >= group.needed
    ):
        return reason
    return Reason(code="impossible", text=f"can never run under these rules: {reason.text}")


def _most_ranks(peer: PeerTool, view: BuyingView, group: JobGroup, offer: Offer) -> float:
    """Return how many ranks of ``group`` the peer may ever run on this offer at a time.

    For reserved machines this counts all of them, in use or not.
    """
    if offer.market is not Market.RESERVED or offer.market not in view.markets or offer.available is None:
        return math.inf if offer.market in view.markets else 0.0
    taken = sum(each.offer.key == offer.key for each in view.context.fleet.instances)
    has, needs = vector(offer.instance_type.capacity) + SLACK, np.maximum(vector(group.resources), SLACK)
    each_holds = 1 if peer.alone or group.exclusive else int((has / needs).min())
    return float((offer.available + taken) * each_holds)


def _record_refusal(context: PlanContext, job: Job, reason: Reason) -> None:
    if reason.code == "impossible":
        context.decisions.add(Finish(job_id=job.id, state=JobState.FAILED, reason=reason))
    else:
        context.decisions.wait(job, reason.code, lambda: reason)


def _launch(peer: PeerTool, view: BuyingView, machine: RentedMachine) -> Launch:
    offer: Offer = view.offer_market.offers[machine.at]
    text = f"{offer_words(offer)} for {counted(len(machine.jobs), 'rank')} (rules of {peer.name})"
    reason = Reason(code="launched_by_peer", text=text, numbers={"price_usd_per_h": offer.price_usd_per_h})
    # No job is bound to it: each plan serves all jobs again, in the same order.
    return Launch(offer=offer, expires_at=view.context.renewed_until_at, for_jobs=(), reason=reason)


# ---------------------------------------------------------------------------------------------------------- letting go
def _terminate_idle(peer: PeerTool, context: PlanContext) -> None:

    for at in [at for at in context.fleet.staying if is_idle(context, at)]:
        instance = context.fleet.instances[at]
        if idle_as_long_as(context, instance, peer.idle_s):
            text = f"{instance.id} is idle; {peer.name} keeps idle machines for {seconds(peer.idle_s)}"
            context.terminate(at, Reason(code="idle", text=text))


def _consolidate(peer: PeerTool, context: PlanContext) -> None:
    """Empty one underused rented machine if its jobs are interruptible and fit elsewhere, fewest jobs first.

    If there is none, launch one cheaper machine for jobs that fit nowhere else. Evicted jobs lose their work.
    """
    fleet = context.fleet
    if context.decisions.stopping or context.decisions.terminating:
        return  # jobs evicted by the last consolidation have not been placed yet
    rented = [at for at in fleet.staying if fleet.placeable[at] and fleet.holdings[at] and not _reserved(context, at)]
    underused = [at for at in rented if fleet.load[at] < UNDERUSED]
    movable = [
        at
        for at in underused
        if all(job.spec.interruptible and job.spec.nodes.count == 1 for job, _ in fleet.holdings[at])
    ]
    movable.sort(key=lambda at: (len(fleet.holdings[at]), float(fleet.load[at])))
    emptied = next((at for at in movable if not _jobs_without_room(context, at)), None)
    if emptied is not None:
        name = fleet.instances[emptied].id
        reason = Reason(code="consolidated", text=f"{name} is underused and its jobs fit on other machines")
        context.decisions.add(Drain(instance_id=name, reason=reason))
        for job, _ in fleet.holdings[emptied]:
            context.decisions.stop(job, FailureCause.EVICTED, reason)
    elif not fleet.coming.any():
        _launch_replacement(peer, context, movable)


def _launch_replacement(peer: PeerTool, context: PlanContext, movable: Sequence[int]) -> None:
    """Launch a cheaper machine for the jobs of the first machine that has one; the old one is emptied once it is up."""
    offer_market = open_market(context)
    for at in movable:
        left = _jobs_without_room(context, at)
        offer = _cheaper_offer(peer, context, offer_market, at, left)
        shares = launch_shares(left, offer_market.offers[offer].instance_type.capacity) if offer >= 0 else {}
        if offer < 0 or context.ledger.refusal(offer_market.offers[offer], shares) is not None:
            continue
        context.ledger.book_launch(offer_market.offers[offer], shares)
        text = f"{offer_words(offer_market.offers[offer])} replaces {context.fleet.instances[at].id}, which costs more"
        reason = Reason(code="consolidated", text=text)
        context.decisions.add(
            Launch(offer=offer_market.offers[offer], expires_at=context.renewed_until_at, for_jobs=(), reason=reason)
        )
        return


def _cheaper_offer(
    peer: PeerTool, context: PlanContext, offer_market: OfferMarket, at: int, jobs: Sequence[Job]
) -> int:
    """Return the cheapest offer below the price of machine ``at`` that holds these jobs; -1 if there is none.

    A spot machine is never replaced by another: Karpenter does that only behind a switch, with 15 cheaper types.
    """
    groups = [context.group_of(job) for job in jobs]
    price = context.fleet.price_usd_per_h[at]
    spot = context.fleet.instances[at].offer.market is Market.SPOT
    cheaper = [
        each for each in offer_market.obtainable(groups[0])
        if offer_market.offers[each].market in peer.markets and offer_market.price_usd_per_h[each] < price
        and not (spot and offer_market.offers[each].market is Market.SPOT)
    ]  # fmt: skip
    for each in cheaper:
        taken = sum((offer_market.taken(group)[each] for group in groups[1:]), offer_market.taken(groups[0])[each])
        serves = all(offer_market.serves(group, each) for group in groups)
        if serves and bool((offer_market.capacity[each] + SLACK >= taken).all()):
            return each
    return -1


def _reserved(context: PlanContext, at: int) -> bool:
    return context.fleet.instances[at].offer.market is Market.RESERVED


def _jobs_without_room(context: PlanContext, at: int) -> list[Job]:
    """Return the jobs of machine ``at`` that fit on no other."""
    others, before = context.fleet.placeable.copy(), context.fleet.room.copy()
    others[at] = False
    left = list[Job]()
    for job in sorted((job for job, _ in context.fleet.holdings[at]), key=_largest_first):
        group = context.group_of(job)
        to = context.fleet.first(group.demand, usable(context, group, others))
        if to < 0:
            left.append(job)
        else:
            context.fleet.room[:, to] -= context.reservations.amount_on(group, to)
    context.fleet.room[:] = before
    return left


# --------------------------------------------------------------------------------------------------------------- rules
def _submission_order(job: Job) -> tuple[object, ...]:
    return (-job.spec.priority, job.submitted_at, number_of(job.id))


def _largest_first(job: Job) -> tuple[object, ...]:
    need = job.spec.resources
    return (-need.vcpus, -need.memory_mib, job.submitted_at, number_of(job.id))


def _first(context: PlanContext, fits: Mask) -> int:
    """Reserved machines first, then by number."""
    return int(min(np.flatnonzero(fits), key=lambda at: (not _reserved(context, int(at)), at)))


def _fullest(context: PlanContext, fits: Mask) -> int:
    return int(np.where(fits, context.fleet.load, -np.inf).argmax())


def _cheapest(view: BuyingView, group: JobGroup, choices: list[int]) -> int:
    """Reserved capacity costs nothing extra; else the lowest price per hour."""
    return min(choices, key=lambda at: (view.market(at) is not Market.RESERVED, choices.index(at)))


def _later_groups(view: BuyingView, group: JobGroup) -> list[JobGroup]:
    """Return the groups of jobs after the first of ``view.unserved`` that may share a machine with it (``group``).

    Jobs with room on a machine that this plan launches already are left out, as they would be counted twice.
    """
    if group.exclusive:
        return []
    at = np.array([machine.at for machine in view.machines], dtype=np.intp)
    room, groups = np.array([machine.room for machine in view.machines]).reshape(len(at), 4), list[JobGroup]()
    for _, each in view.unserved[1:]:
        taken = view.offer_market.taken(each)[at]
        roomy = np.logical_and.reduce(room + SLACK >= taken, axis=1) & view.offer_market.serving(each)[at]
        if roomy.any():
            room[roomy.argmax()] -= taken[roomy.argmax()]
        elif each.spot_ok == group.spot_ok and not each.exclusive:
            groups.append(each)
    return groups


def _cheapest_for_batch(view: BuyingView, group: JobGroup, choices: list[int]) -> int:
    """Add up waiting jobs while one type holds them all; then take the best market's cheapest type that does."""
    markets = {view.market(at) for at in choices}
    tier = Market.RESERVED if Market.RESERVED in markets else Market.SPOT if Market.SPOT in markets else None
    own = [at for at in choices if tier is None or view.market(at) is tier]
    sizes, total = view.offer_market.capacity, view.offer_market.taken(group)[own[0]]
    for each in _later_groups(view, group):
        more = total + each.demand
        if any(bool((sizes[at] + SLACK >= more).all()) for at in own):
            total = more
    return next(at for at in own if bool((sizes[at] + SLACK >= total).all()))


def _best_utilised(view: BuyingView, group: JobGroup, choices: list[int]) -> int:
    """The type that waiting jobs would use best (the scarcer of CPU and memory, then their mean), at any price.

    Reserved machines come first: they are paid in any case, so they form the minimum number of workers.
    """
    choices = [at for at in choices if view.market(at) is Market.RESERVED] or choices
    waiting = [group, *_later_groups(view, group)]

    def score(at: int) -> tuple[float, float, int]:
        left = view.offer_market.capacity[at].copy()
        for each in waiting:
            if bool((left + SLACK >= each.demand).all()):
                left -= each.demand
        used = 1 - left[:2] / view.offer_market.capacity[at][:2]
        return (float(used.min()), float(used.mean()), -choices.index(at))

    return max(choices, key=score)


PEERS: dict[str, PeerTool] = {
    each.name: each
    for each in (
        PeerTool(
            name="reserved-only", like="a fleet of a fixed size", rule="reserved for the peak; first fit", commits="sr",
            order=_submission_order, prefer=_first, buy=_cheapest, markets=(Market.RESERVED,),
        ),
        PeerTool(
            name="on-demand-only", like="an autoscaled group", rule="first fit; the cheapest on-demand type that fits",
            commits="odm", order=_submission_order, prefer=_first, buy=_cheapest, markets=(Market.ON_DEMAND,),
            idle_s=60.0,
        ),
        PeerTool(
            name="skypilot-like", like="SkyPilot",
            rule="one machine per job, the cheapest offer that fits; terminated after the job",
            commits="odm", order=_submission_order, prefer=_first, buy=_cheapest, alone=True,
        ),
        PeerTool(
            name="karpenter-like", like="Karpenter",
            rule="first fit decreasing; reserved, then spot, then on-demand; consolidates; idle machines kept 30 s",
            commits="hf", order=_largest_first, prefer=_first, buy=_cheapest_for_batch, idle_s=30.0, consolidates=True,
        ),
        PeerTool(
            name="ray-like", like="Ray's autoscaler",
            rule="fullest machine first; reserved, then the type with the best utilisation",
            commits="hf", order=_submission_order, prefer=_fullest, buy=_best_utilised, idle_s=300.0,
        ),
        PeerTool(
            name="slurm-like", like="Slurm in the cloud",
            rule="strict priority order without backfill, as run times are unknown; cheapest nodes, spot for jobs "
            "that may be requeued; idle nodes kept 600 s",
            commits="hf", order=_submission_order, prefer=_first, buy=_cheapest, idle_s=600.0, blocks=True,
        ),
    )
}  # fmt: skip


def peer_named(name: str) -> PeerTool:
    """Return a peer by name, with or without ``peer:``. Raises BadInput, which suggests the nearest name."""
    bare = name.removeprefix(PREFIX)
    if bare not in PEERS:
        raise BadInput(f"unknown peer {bare!r}; {nearest(bare, PEERS)}")
    return PEERS[bare]
