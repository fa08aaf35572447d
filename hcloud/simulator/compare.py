"""Today's tools as planners: their *placement and buying rules*, re-implemented for comparison on equal terms.

None of this is those tools' code, and none of it says how well they run programs: only who is served first, where it
goes, what is bought and when it is let go. What becomes of jobs and machines (retries, leases, back-offs after a
stockout, caps and budgets) is ours for all of them, so that rules alone differ. Sources: ``docs/simulation.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hcloud.errors import BadInput
from hcloud.model import FailureCause, Job, JobState, Market, Offer, Reason
from hcloud.planner.adaptation import adapt
from hcloud.planner.draft import Draft, Group, open_draft
from hcloud.planner.fleet import SLACK, Amounts, Mask, vector
from hcloud.planner.leases import idle_as_long_as, tend_machines
from hcloud.planner.ledger import launch_shares, shares_cost
from hcloud.planner.offers import Counter, open_counter, why_not_obtainable
from hcloud.planner.placement import pay_for_claims, usable
from hcloud.planner.plan import Drain, Finish, Launch, Place, Plan, RankPlacement
from hcloud.planner.retention import is_idle
from hcloud.planner.snapshot import Snapshot
from hcloud.planner.wording import offer_words, seconds
from hcloud.policy import Admission, Placement, Policy, Profiling, Provisioning, Strategy
from hcloud.rows import number_of
from hcloud.sentences import nearest

PREFIX = "peer:"
ALL = (Market.RESERVED, Market.SPOT, Market.ON_DEMAND)
UNDERUSED = 0.5
"""A machine of which less than this part is in use is emptied by a peer that consolidates."""


@dataclass(slots=True, eq=False)
class New:
    """A machine that the plan launches: its offer's place at the counter, what is left of it, who it is for."""

    at: int
    room: Amounts
    jobs: list[Job] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Shop:
    """What a buying rule sees: the draft, the counter, and the jobs still to be served, in the peer's order."""

    draft: Draft
    counter: Counter
    markets: tuple[Market, ...]
    left: list[tuple[Job, Group]] = field(default_factory=list)
    machines: list[New] = field(default_factory=list)

    def choices(self, group: Group) -> list[int]:
        """Return offers that a rank of ``group`` fits on and that can be had now, cheapest first."""
        return [at for at in self.counter.obtainable(group) if self.counter.offers[at].market in self.markets]

    def market(self, at: int) -> Market:
        """Return how offer ``at`` is paid for."""
        return self.counter.offers[at].market


Order = Callable[[Job], tuple[object, ...]]
Prefer = Callable[[Draft, Mask], int]
Buy = Callable[[Shop, Group, list[int]], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One tool's rules. ``like``: whose they are. ``commits``: as which strategy it reserves machines beforehand.

    ``order``: sort key of waiting jobs. ``prefer``: which of the machines with room. ``buy``: which of the offers that
    can be had. ``idle_s``: how long an idle rented machine is kept. ``alone``: a machine for each job. ``blocks``:
    nobody passes a job for which nothing can be bought. ``consolidates``: underused machines are emptied.
    """

    name: str
    like: str
    rule: str
    commits: Strategy
    order: Order
    prefer: Prefer
    buy: Buy
    markets: tuple[Market, ...] = ALL
    idle_s: float = 0.0
    alone: bool = False
    blocks: bool = False
    consolidates: bool = False

    def plan(self, snapshot: Snapshot, policy: Policy, rng: np.random.Generator) -> Plan:
        """Return what to do now by this peer's rules; pure, as :func:`hcloud.planner.make_plan`."""
        draft = open_draft(snapshot, _plain(policy), rng)
        adapt(draft)
        tend_machines(draft)
        if not snapshot.paused:
            _serve(self, draft)
        _let_idle_go(self, draft)
        if self.consolidates:
            _consolidate(self, draft)
        return draft.plan()


def _plain(policy: Policy) -> Policy:
    """Return the policy with its limits and without what only our own rules know."""
    return replace(
        policy,
        provisioning=Provisioning(),
        placement=Placement(),
        admission=Admission(),
        profiling=Profiling(enabled="never"),
    )


# ------------------------------------------------------------------------------------------------------------- serving
def _serve(peer: Peer, draft: Draft) -> None:
    """Place who fits, let others wait for machines that are starting, buy for the rest; in the peer's order."""
    shop = Shop(draft=draft, counter=open_counter(draft), markets=peer.markets)
    draft.fleet.expect(draft.stopping)
    stuck: dict[int, Reason] = {}
    for job in sorted(draft.waiting, key=peer.order):
        group = draft.group_of(job)
        if job.not_before_at > draft.now:
            text = f"not before {seconds(job.not_before_at - draft.now)} from now"
            draft.wait(job, "backoff_until", lambda text=text: Reason(code="backoff_until", text=text))  # type: ignore[misc]
        elif (refusal := stuck.get(id(group)) or draft.user_cap(job)) is not None:
            _tell(draft, job, refusal)
        elif (peer.blocks and shop.left) or not _has_room(peer, draft, job, group):
            shop.left.append((job, group))
    _buy(peer, shop, stuck)


def _has_room(peer: Peer, draft: Draft, job: Job, group: Group) -> bool:
    """Start the job, or keep room for it; not where its user cannot pay (``group.stuck``)."""
    held = _start(peer, draft, job, group) or (group.stuck is None and _claim(peer, draft, job, group))
    if held:
        draft.count_active(job)
    return held


def _start(peer: Peer, draft: Draft, job: Job, group: Group) -> bool:
    """Start the job now on machines with room, all ranks of it or (an incremental one) as many as fit; or not."""
    places = _take(peer, draft, group, draft.fleet.placeable, group.wanted, draft.fleet.fitting_now)
    if len(places) < group.needed or not _renewed(draft, places) or not _paid(draft, job, group, places):
        _give_back(draft, group, places)
        return False
    instances = [draft.fleet.instances[at] for at in places]
    ranks = tuple(
        RankPlacement(rank=rank, instance_id=each.id, resources=job.spec.held_of(each.capacity))
        for rank, each in enumerate(instances)
    )
    draft.used.update(places)
    reason = Reason(code="placed_by_peer", text=f"{instances[0].id} has room for it, by the rules of {peer.name}")
    draft.add(Place(job_id=job.id, ranks=ranks, reason=reason))
    return True


def _claim(peer: Peer, draft: Draft, job: Job, group: Group) -> bool:
    """Keep room for the job on machines that are starting, or that units asked to end will leave; or keep none."""
    coming = draft.fleet.coming | draft.fleet.placeable
    places = _take(peer, draft, group, coming, group.needed, draft.fleet.fitting)
    if len(places) < group.needed:
        _give_back(draft, group, places)
        return False
    draft.used.update(places)
    text = f"has room on {draft.fleet.instances[places[-1]].id}, which is starting or being emptied"
    draft.wait(job, "booting", lambda: Reason(code="booting", text=text))
    return True


def _take(
    peer: Peer, draft: Draft, group: Group, among: Mask, count: int, fitting: Callable[[Amounts, Mask], Mask]
) -> list[int]:
    fleet, places = draft.fleet, list[int]()
    allowed = usable(draft, group, among)
    while len(places) < count:
        fits = fitting(group.demand, allowed)
        if peer.alone or group.exclusive:
            fits = fits & fleet.unshared(fleet.room)
        if not fits.any():
            break
        at = peer.prefer(draft, fits)
        fleet.use(at, draft.amount_on(group, at))
        places.append(at)
    return places


def _give_back(draft: Draft, group: Group, places: Sequence[int]) -> None:
    for at in places:
        draft.fleet.unuse(at, draft.amount_on(group, at))


def _renewed(draft: Draft, places: Sequence[int]) -> bool:
    """Renew idle machines near their horizon that are used again; return False where a limit forbids it."""
    for at in sorted(draft.lazy.intersection(places)):
        instance = draft.fleet.instances[at]
        if draft.ledger.renewal_refusal(instance, draft.renewed_until_at, {}) is not None:
            return False
        draft.ledger.book_renewal(instance, draft.renewed_until_at, {})
        draft.renew(at)
        draft.lazy.discard(at)
    return True


def _paid(draft: Draft, job: Job, group: Group, places: Sequence[int]) -> bool:
    """Count what the job's user is to hold of these machines, or note in ``group.stuck`` which limit forbids it."""
    before = draft.ledger
    group.stuck = pay_for_claims(draft, job, group, places)
    if group.stuck is not None:
        draft.ledger = before
    return group.stuck is None


# -------------------------------------------------------------------------------------------------------------- buying
def _buy(peer: Peer, shop: Shop, stuck: dict[int, Reason]) -> None:
    blocked: Reason | None = None
    while shop.left:
        job, group = shop.left[0]
        shop.left.pop(0)
        if (capped := shop.draft.user_cap(job)) is not None:
            _tell(shop.draft, job, capped)
            continue
        refusal = blocked or group.stuck or stuck.get(id(group))
        # Who stands behind somebody else has not been asked yet whether there is room.
        if refusal is None and not (peer.blocks and _has_room(peer, shop.draft, job, group)):
            refusal = group.stuck or _bought(peer, shop, job, group)
        if refusal is None:
            continue
        stuck[id(group)] = refusal
        _tell(shop.draft, job, refusal)
        if peer.blocks and refusal.code != "impossible":
            blocked = Reason(code="behind", text=f"waits behind {job.id}, for which nothing can be had")
    for machine in shop.machines:
        shop.draft.add(_launch(peer, shop, machine))


def _bought(peer: Peer, shop: Shop, job: Job, group: Group) -> Reason | None:
    """Give the job's ranks room on machines this plan launches; or take all back and return why not."""
    draft, taken = shop.draft, list[New]()
    before, ledger = len(shop.machines), draft.ledger
    draft.ledger = ledger.copy()
    refusal: Reason | None = None
    while len(taken) < group.needed and refusal is None:
        machine = None if peer.alone else _joined(shop, job, group)
        if machine is None:
            machine, refusal = _opened(peer, shop, job, group)
        if machine is not None:
            machine.room -= shop.counter.taken(group)[machine.at]
            machine.jobs.append(job)
            taken.append(machine)
    if refusal is None:
        text = f"{offer_words(shop.counter.offers[taken[-1].at])} is launched for it"
        draft.wait(job, "booting", lambda: Reason(code="booting", text=text))
        draft.count_active(job)
        return None
    for machine in taken:
        machine.room += shop.counter.taken(group)[machine.at]
        machine.jobs.remove(job)
    for machine in shop.machines[before:]:
        shop.counter.take(machine.at, -1)
    del shop.machines[before:]
    draft.ledger = ledger
    return refusal


def _joined(shop: Shop, job: Job, group: Group) -> New | None:
    """Return a machine that this plan launches and has room for a rank of the job, whose user pays a part of it."""
    for machine in shop.machines:
        taken = shop.counter.taken(group)[machine.at]
        roomy = shop.counter.serves(group, machine.at) and bool((machine.room + SLACK >= taken).all())
        if roomy and shares_cost(shop.draft.ledger, shop.counter.offers[machine.at], machine.jobs, job):
            return machine
    return None


def _opened(peer: Peer, shop: Shop, job: Job, group: Group) -> tuple[New | None, Reason | None]:
    """Book the offer that the peer's rule picks of those that can be had and paid."""
    draft, offers = shop.draft, shop.counter.offers
    choices, refusal = list[int](), None
    for at in shop.choices(group):
        refused = draft.ledger.refusal(offers[at], launch_shares([job], offers[at].instance_type.capacity))
        refusal = refusal or refused
        if refused is None:
            choices.append(at)
    if not choices:
        return None, refusal or _unobtainable(peer, shop, group)
    at = peer.buy(shop, group, choices)
    draft.ledger.book_launch(offers[at], launch_shares([job], offers[at].instance_type.capacity))
    shop.counter.take(at)
    machine = New(at=at, room=vector(offers[at].instance_type.capacity))
    shop.machines.append(machine)
    return machine, None


def _unobtainable(peer: Peer, shop: Shop, group: Group) -> Reason:
    """Return why nothing can be had: for now, or (``impossible``) ever."""
    reason = why_not_obtainable(shop.draft, shop.counter, group)
    fitting = (shop.counter.offers[int(at)] for at in np.flatnonzero(shop.counter.fitting(group)))
    if not shop.draft.snapshot.offers or sum(_most_ranks(peer, shop, group, each) for each in fitting) >= group.needed:
        return reason
    return Reason(code="impossible", text=f"can never run by these rules: {reason.text}")


def _most_ranks(peer: Peer, shop: Shop, group: Group, offer: Offer) -> float:
    """Return how many ranks of ``group`` the peer may ever have on this offer at a time: on reserved machines as many
    as all that are reserved hold, in use or not."""
    if offer.market is not Market.RESERVED or offer.market not in shop.markets or offer.available is None:
        return math.inf if offer.market in shop.markets else 0.0
    taken = sum(each.offer.key == offer.key for each in shop.draft.fleet.instances)
    has, needs = vector(offer.instance_type.capacity) + SLACK, np.maximum(vector(group.resources), SLACK)
    each_holds = 1 if peer.alone or group.exclusive else int((has / needs).min())
    return float((offer.available + taken) * each_holds)


def _tell(draft: Draft, job: Job, reason: Reason) -> None:
    if reason.code == "impossible":
        draft.add(Finish(job_id=job.id, state=JobState.FAILED, reason=reason))
    else:
        draft.wait(job, reason.code, lambda: reason)


def _launch(peer: Peer, shop: Shop, machine: New) -> Launch:
    offer: Offer = shop.counter.offers[machine.at]
    text = f"{offer_words(offer)} for {len(machine.jobs)} rank(s), by the rules of {peer.name}"
    reason = Reason(code="launched_by_peer", text=text, numbers={"price_usd_per_h": offer.price_usd_per_h})
    # Nobody is bound to it: each plan serves everybody anew, in the same order.
    return Launch(offer=offer, expires_at=shop.draft.renewed_until_at, for_jobs=(), reason=reason)


# ---------------------------------------------------------------------------------------------------------- letting go
def _let_idle_go(peer: Peer, draft: Draft) -> None:
    """End rented machines that were idle for as long as the peer keeps them; reserved ones are paid for anyway."""
    for at in [at for at in draft.fleet.staying if is_idle(draft, at)]:
        instance = draft.fleet.instances[at]
        if idle_as_long_as(draft, instance, peer.idle_s):
            draft.terminate(at, Reason(code="idle", text=f"{instance.id} is idle; {peer.name} keeps none for long"))


def _consolidate(peer: Peer, draft: Draft) -> None:
    """Empty one underused rented machine whose jobs may be interrupted and fit on others, the fewest jobs first; where
    there is none, launch one cheaper machine for what of one of them fits nowhere. Their work is lost.
    """
    fleet = draft.fleet
    if draft.stopping or draft.gone:
        return  # who was moved last has not found its new place yet
    rented = [at for at in fleet.staying if fleet.placeable[at] and fleet.holdings[at] and not _reserved(draft, at)]
    movable = [at for at in rented if fleet.load[at] < UNDERUSED and _may_move(draft, at)]
    movable.sort(key=lambda at: (len(fleet.holdings[at]), float(fleet.load[at])))
    emptied = next((at for at in movable if not _left_over(draft, at)), None)
    if emptied is not None:
        _empty(draft, emptied)
    elif not fleet.coming.any():
        _replace(peer, draft, movable)


def _may_move(draft: Draft, at: int) -> bool:
    return all(job.spec.interruptible and job.spec.nodes.count == 1 for job, _ in draft.fleet.holdings[at])


def _empty(draft: Draft, at: int) -> None:
    name = draft.fleet.instances[at].id
    reason = Reason(code="consolidated", text=f"{name} is underused; its jobs fit elsewhere")
    draft.add(Drain(instance_id=name, reason=reason))
    for job, _ in draft.fleet.holdings[at]:
        draft.stop(job, FailureCause.EVICTED, reason)


def _replace(peer: Peer, draft: Draft, movable: Sequence[int]) -> None:
    """Launch a cheaper machine for what does not fit elsewhere of the first machine for which there is one; that one is
    emptied when the new one is there."""
    counter = open_counter(draft)
    for at in movable:
        left = _left_over(draft, at)
        offer = _cheaper_for(peer, draft, counter, at, left)
        shares = launch_shares(left, counter.offers[offer].instance_type.capacity) if offer >= 0 else {}
        if offer < 0 or draft.ledger.refusal(counter.offers[offer], shares) is not None:
            continue
        draft.ledger.book_launch(counter.offers[offer], shares)
        text = f"{offer_words(counter.offers[offer])} replaces {draft.fleet.instances[at].id}, which is dearer"
        reason = Reason(code="consolidated", text=text)
        draft.add(Launch(offer=counter.offers[offer], expires_at=draft.renewed_until_at, for_jobs=(), reason=reason))
        return


def _cheaper_for(peer: Peer, draft: Draft, counter: Counter, at: int, jobs: Sequence[Job]) -> int:
    """Return the cheapest offer below the price of machine ``at`` that holds these jobs; -1: there is none.

    A spot machine is replaced by no other spot one: Karpenter does that behind a switch only, for 15 cheaper types.
    """
    groups = [draft.group_of(job) for job in jobs]
    price = draft.fleet.price_usd_per_h[at]
    spot = draft.fleet.instances[at].offer.market is Market.SPOT
    cheaper = [
        each for each in counter.obtainable(groups[0])
        if counter.offers[each].market in peer.markets and counter.price_usd_per_h[each] < price
        and not (spot and counter.offers[each].market is Market.SPOT)
    ]  # fmt: skip
    for each in cheaper:
        taken = sum((counter.taken(group)[each] for group in groups[1:]), counter.taken(groups[0])[each])
        serves = all(counter.serves(group, each) for group in groups)
        if serves and bool((counter.capacity[each] + SLACK >= taken).all()):
            return each
    return -1


def _reserved(draft: Draft, at: int) -> bool:
    return draft.fleet.instances[at].offer.market is Market.RESERVED


def _left_over(draft: Draft, at: int) -> list[Job]:
    """Return which jobs of machine ``at`` would fit on no other."""
    others, before = draft.fleet.placeable.copy(), draft.fleet.room.copy()
    others[at] = False
    left = list[Job]()
    for job in sorted((job for job, _ in draft.fleet.holdings[at]), key=_largest_first):
        group = draft.group_of(job)
        to = draft.fleet.first(group.demand, usable(draft, group, others))
        if to < 0:
            left.append(job)
        else:
            draft.fleet.room[:, to] -= draft.amount_on(group, to)
    draft.fleet.room[:] = before
    return left


# --------------------------------------------------------------------------------------------------------------- rules
def _as_submitted(job: Job) -> tuple[object, ...]:
    return (-job.spec.priority, job.submitted_at, number_of(job.id))


def _largest_first(job: Job) -> tuple[object, ...]:
    need = job.spec.resources
    return (-need.vcpus, -need.memory_mib, job.submitted_at, number_of(job.id))


def _first(draft: Draft, fits: Mask) -> int:
    """Reserved machines first, then by number."""
    return int(min(np.flatnonzero(fits), key=lambda at: (not _reserved(draft, int(at)), at)))


def _fullest(draft: Draft, fits: Mask) -> int:
    return int(np.where(fits, draft.fleet.load, -np.inf).argmax())


def _cheapest(shop: Shop, group: Group, choices: list[int]) -> int:
    """Reserved capacity costs nothing more; else the lowest price per hour."""
    return min(choices, key=lambda at: (shop.market(at) is not Market.RESERVED, choices.index(at)))


def _behind(shop: Shop, group: Group) -> list[Group]:
    """Return the groups of who is served after the first of ``shop.left`` (of ``group``), as far as they may share
    machines with it and find no room on those that are launched already: these would be bought for twice."""
    if group.exclusive:
        return []
    at = np.array([machine.at for machine in shop.machines], dtype=np.intp)
    room, found = np.array([machine.room for machine in shop.machines]).reshape(-1, 3), list[Group]()
    for _, each in shop.left[1:]:
        taken = shop.counter.taken(each)[at]
        roomy = np.logical_and.reduce(room + SLACK >= taken, axis=1) & shop.counter.serving(each)[at]
        if roomy.any():
            room[roomy.argmax()] -= taken[roomy.argmax()]
        elif each.spot_ok == group.spot_ok and not each.exclusive:
            found.append(each)
    return found


def _for_the_batch(shop: Shop, group: Group, choices: list[int]) -> int:
    """Add up who waits, as far as some type holds all of them; then the best market's cheapest type that does."""
    markets = {shop.market(at) for at in choices}
    tier = Market.RESERVED if Market.RESERVED in markets else Market.SPOT if Market.SPOT in markets else None
    own = [at for at in choices if tier is None or shop.market(at) is tier]
    sizes, total = shop.counter.capacity, shop.counter.taken(group)[own[0]]
    for each in _behind(shop, group):
        more = total + each.demand
        if any(bool((sizes[at] + SLACK >= more).all()) for at in own):
            total = more
    return next(at for at in own if bool((sizes[at] + SLACK >= total).all()))


def _best_used(shop: Shop, group: Group, choices: list[int]) -> int:
    """The type that would be used best by who waits (the scarcer of CPU and memory, then their mean), at any price.

    Reserved machines come first: who pays for them in any case writes them down as the least number of workers.
    """
    choices = [at for at in choices if shop.market(at) is Market.RESERVED] or choices
    waiting = [group, *_behind(shop, group)]

    def score(at: int) -> tuple[float, float, int]:
        """Fill one machine with who waits; return the used share (0..1) of the scarcer, their mean, and rank."""
        left = shop.counter.capacity[at].copy()
        for each in waiting:
            if bool((left + SLACK >= each.demand).all()):
                left -= each.demand
        used = 1 - left[:2] / shop.counter.capacity[at][:2]
        return (float(used.min()), float(used.mean()), -choices.index(at))

    return max(choices, key=score)


PEERS: dict[str, Peer] = {
    each.name: each
    for each in (
        Peer(
            name="reserved-only", like="a fleet of a fixed size", rule="reserved for the peak; first fit", commits="sr",
            order=_as_submitted, prefer=_first, buy=_cheapest, markets=(Market.RESERVED,),
        ),
        Peer(
            name="on-demand-only", like="an autoscaled group", rule="first fit; the cheapest on-demand type that fits",
            commits="odm", order=_as_submitted, prefer=_first, buy=_cheapest, markets=(Market.ON_DEMAND,), idle_s=60.0,
        ),
        Peer(
            name="skypilot-like", like="SkyPilot", rule="a machine per job, the cheapest offer that fits; then down",
            commits="odm", order=_as_submitted, prefer=_first, buy=_cheapest, alone=True,
        ),
        Peer(
            name="karpenter-like", like="Karpenter",
            rule="first fit decreasing; reserved, then spot, then on demand; consolidates; idle ones go after 30 s",
            commits="hf", order=_largest_first, prefer=_first, buy=_for_the_batch, idle_s=30.0, consolidates=True,
        ),
        Peer(
            name="ray-like", like="Ray's autoscaler",
            rule="fullest machine; reserved, then the type that would be used best",
            commits="hf", order=_as_submitted, prefer=_fullest, buy=_best_used, idle_s=300.0,
        ),
        Peer(
            name="slurm-like", like="Slurm in the cloud",
            rule="strictly by priority, run times unknown: nobody passes; nodes by price, spot ones for jobs that may "
            "be requeued; idle ones go after 600 s",
            commits="hf", order=_as_submitted, prefer=_first, buy=_cheapest, idle_s=600.0, blocks=True,
        ),
    )
}  # fmt: skip


def peer_named(name: str) -> Peer:
    """Return a peer by name, with or without ``peer:``. Raises BadInput, naming the nearest."""
    bare = name.removeprefix(PREFIX)
    if bare not in PEERS:
        raise BadInput(f"there is no peer {bare!r} to compare with; {nearest(bare, PEERS)}")
    return PEERS[bare]
