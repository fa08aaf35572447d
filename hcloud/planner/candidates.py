"""What there was to choose from when a job was placed: types of machines, with what was expected of the job there.

Stored with the decision, so that it can be explained, and judged once it is known how the job did. Types by market,
which sets their price, not single machines: what else sets machines of one type apart are their neighbours, which the
reason tells. The chosen one is told with the price of the very machine, others with the least price there was. Worked
out once per plan for jobs that ask for the same, and for so many kinds of jobs only that planning does not slow down.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

import numpy as np

from hcloud.known import Classification
from hcloud.model import Job, Market, Offer
from hcloud.planner.context import JobGroup, PlanContext
from hcloud.planner.fleet import SLACK, Fleet, Mask, OfferShape, offer_shape_of
from hcloud.planner.offers import may_use
from hcloud.planner.plan import Candidate
from hcloud.planner.sizing import ExpectedPerformance, expected
from hcloud.planner.wording import seconds, size_share

MOST = 8
"""So many candidates are stored, the chosen one among them."""
KINDS = 256
"""Kinds of jobs in one plan whose candidates are worked out."""
NO_ROOM, DISTURBED, RANKED = "no room", "neighbours", "ranked after"


def candidates_of(context: PlanContext, job: Job, group: JobGroup, at: int) -> tuple[Candidate, ...]:
    """Return the types at hand for ``job``, which goes to machine ``at``: the chosen one, then the cheapest first."""
    if group.candidates is None:
        if context.kinds_told >= KINDS:
            return ()
        context.kinds_told += 1
        found = _all(context, job, group)
        group.candidates = tuple(sorted(found, key=lambda c: (c.usd_per_h, c.column, c.market)))
    offer = context.fleet.instances[at].offer
    shape = context.fleet.shapes[int(context.fleet.shape_at[at])]
    key = (shape, offer.price_usd_per_h)
    if key not in group.told:
        others = (each for each in group.candidates if (each.column, each.market) != shape)
        group.told[key] = (_candidate(context, job, offer, ""), *others)[:MOST]
    return group.told[key]


def _all(context: PlanContext, job: Job, group: JobGroup) -> Iterator[Candidate]:
    fleet, may = context.fleet, _may_be(context, group)
    room = context.fitting_now(group, may)
    known = context.suit is not None and group.application
    suited = context.suit.suited(group.application, room) if context.suit is not None and known else room
    levels = ((suited, RANKED), (room, DISTURBED), (may, NO_ROOM))
    # What of each is told: the first of these that any machine of the ware is of.
    some = np.array([(fleet.of_shape & mask).any(axis=1) for mask, _ in levels])
    there: list[int] = np.flatnonzero(some.any(axis=0)).tolist()
    for number, level in zip(there, some.argmax(axis=0)[there].tolist(), strict=True):
        mask, why = levels[level]
        yield _candidate(context, job, _cheapest(fleet, fleet.of_shape[number] & mask), why)
    for offer in _not_there(context, group, {fleet.shapes[number] for number in there}):
        yield _candidate(context, job, offer, f"not there yet, {seconds(offer.instance_type.boot_delay_s)} to start")


def _may_be(context: PlanContext, group: JobGroup) -> Mask:
    """Return the machines that are large enough for a rank of ``group``, and of a kind that it may run on."""
    fleet = context.fleet
    large = np.logical_and.reduce(fleet.capacity >= group.demand[:, None] - SLACK, axis=0)
    may: Mask = large & fleet.placeable & fleet.of_types(group.instance_types)
    if not group.spot_ok:
        may &= fleet.steady
    if group.constraints is not None:
        may &= context.topology.admitted(group.constraints)
    return may


def _cheapest(fleet: Fleet, among: Mask) -> Offer:
    """Return the offer of the cheapest machine of ``among``, which has one: of equals the first."""
    places = among.nonzero()[0]
    return fleet.instances[int(places[fleet.price_usd_per_h[places].argmin()])].offer


def _not_there(context: PlanContext, group: JobGroup, there: Set[OfferShape]) -> Iterable[Offer]:
    """Return the cheapest offer for ``group`` of each ware but those of which machines are ``there``."""
    found, demand = dict[OfferShape, Offer](), group.demand.tolist()
    for offer in context.to_be_had():
        shape = offer_shape_of(offer)
        dearer = shape in found and offer.price_usd_per_h >= found[shape].price_usd_per_h
        if shape not in there and not dearer and _fits(group, offer, demand):
            found[shape] = offer
    return found.values()


def _fits(group: JobGroup, offer: Offer, demand: list[float]) -> bool:
    has, (vcpus, memory_mib, disk_gib) = offer.instance_type.capacity, demand
    fits = has.vcpus >= vcpus - SLACK and has.memory_mib >= memory_mib - SLACK and has.disk_gib >= disk_gib - SLACK
    return fits and (group.spot_ok or offer.market is not Market.SPOT) and may_use(group, offer)


def _candidate(context: PlanContext, job: Job, offer: Offer, why: str) -> Candidate:
    capacity, known = offer.instance_type.capacity, context.snapshot.applications.get(job.application)
    usd_per_h = offer.price_usd_per_h * size_share(job.spec.held_of(capacity), capacity)
    shape = offer_shape_of(offer)
    if known is None:
        return _told(shape, usd_per_h, why, None)
    question = ("candidate", shape, usd_per_h, why, job.spec.resources.vcpus, job.spec.nodes.count)
    return known.answer(question, lambda: _expecting(known, *question[1:]))


def _expecting(
    known: Classification, shape: OfferShape, usd_per_h: float, why: str, vcpus: float, nodes: int
) -> Candidate:
    return _told(shape, usd_per_h, why, expected(known, shape[0], vcpus=vcpus, asked_vcpus=vcpus, nodes=nodes))


def _told(shape: OfferShape, usd_per_h: float, why: str, would: ExpectedPerformance | None) -> Candidate:
    (column, market), (low, high) = shape, would.limits() if would is not None else (None, None)
    value = would.value if would is not None else None
    return Candidate(
        column=column, market=market, usd_per_h=usd_per_h, predicted=value, low=low, high=high, rejected=why
    )
