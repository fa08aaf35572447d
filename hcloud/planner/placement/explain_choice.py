"""Explain a placement: its reason, the alternatives considered, and the constraints that excluded instances.

Alternatives are instance types by market, since that determines price and estimate; single instances of a type differ
only by their neighbours, which the reason covers. They are stored with the decision, to be shown, and judged once the
job's performance is known. They are computed once per plan for jobs with the same requirements, and for a limited
number of groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np

from hcloud.core.model import Job, Market, Number, Offer, Reason
from hcloud.planner.context import PlanContext
from hcloud.planner.fit.expected_performance import ExpectedPerformance, expected
from hcloud.planner.fleet import SLACK, Mask, OfferShape, amounts_of, offer_shape_of
from hcloud.planner.job_groups import JobGroup
from hcloud.planner.market import may_use
from hcloud.planner.plan import Candidate
from hcloud.planner.text import amount, deadline_numbers, percent, seconds, size_share
from hcloud.spec.validation import counted

MOST_CANDIDATES = 8
"""Number of candidates stored, including the chosen one."""
MOST_GROUPS = 256
"""Number of groups in one plan for which candidates are computed."""
NO_ROOM, DISTURBED, RANKED = "no room", "neighbours", "ranked lower"
"""Why a candidate was not chosen."""


def exclusion_reason(context: PlanContext, group: JobGroup, refusal: Reason | None) -> Reason | None:
    """Return ``refusal``, extended by the constraints that exclude ``group`` from instances with room, if any do."""
    if refusal is None or not (bound := excluded(context, group)):
        return refusal
    named = "; ".join(f"{key} excludes machines with room ({', '.join(names[:3])})" for key, names in bound.items())
    numbers: dict[str, Number] = {"bound": ", ".join(bound), "refused": refusal.code, **refusal.numbers}
    if refusal.code == "impossible":
        return Reason(code=refusal.code, text=f"{refusal.text}; {named}", numbers=numbers)
    return Reason(code="placement_demands", text=f"{named}; no new machine: {refusal.text}", numbers=numbers)


def excluded(context: PlanContext, group: JobGroup, but: Sequence[int] = ()) -> dict[str, list[str]]:
    """Return, by key of the job file, the instances with room that a constraint of ``group`` excludes, except
    ``but``."""
    fleet, where = context.fleet, group.constraints
    if where is None and group.company is None:
        return {}
    roomy = fleet.fitting_now(group.asks, fleet.placeable if group.spot_ok else fleet.placeable & fleet.steady)
    if group.instance_types or group.resources.gpus is not None or fleet.has_gpus:
        roomy = roomy & fleet.of_kinds(group.instance_types, group.resources.gpus)
    roomy[list(but)] = False
    by_zone = replace(where, labels=(), gang_network=False) if where is not None else None
    by_label = replace(where, zones=(), gang_network=False) if where is not None else None
    by_network = replace(where, zones=(), labels=()) if where is not None else None
    allowed = {
        "placement.zones": context.topology.admitted(by_zone) if by_zone is not None else roomy,
        "placement.labels": context.topology.admitted(by_label) if by_label is not None else roomy,
        "network": context.topology.admitted(by_network) if by_network is not None else roomy,
        "placement.apart_from": context.topology.without_conflicts(group.company)
        if group.company is not None
        else roomy,
    }
    places_excluded = {key: np.flatnonzero(roomy & ~mask).tolist() for key, mask in allowed.items()}
    return {key: [fleet.instances[at].id for at in places] for key, places in places_excluded.items() if places}


@dataclass(slots=True, eq=False)
class Alternatives:
    """The types considered in one plan, which :func:`candidates_of` computes."""

    candidates: dict[JobGroup, tuple[Candidate, ...]] = field(default_factory=dict)
    by_offer: dict[tuple[JobGroup, OfferShape, float], tuple[Candidate, ...]] = field(default_factory=dict)
    """The same by the chosen type, market and price too."""


def candidates_of(
    context: PlanContext, known: Alternatives, job: Job, group: JobGroup, at: int
) -> tuple[Candidate, ...]:
    """Return the types considered for ``job``, which is placed on instance ``at``: the chosen one, then cheapest first.
    ``known`` are those of other jobs."""
    candidates = known.candidates.get(group)
    if candidates is None:
        if len(known.candidates) >= MOST_GROUPS:
            return ()
        found = _all_candidates(context, job, group)
        candidates = known.candidates[group] = tuple(sorted(found, key=lambda c: (c.usd_per_h, c.column, c.market)))
    offer = context.fleet.instances[at].offer
    shape = context.fleet.shapes[int(context.fleet.shape_at[at])]
    key = (group, shape, offer.price_usd_per_h)
    if key not in known.by_offer:
        others = (each for each in candidates if (each.column, each.market) != shape)
        known.by_offer[key] = (_candidate(context, job, offer, ""), *others)[:MOST_CANDIDATES]
    return known.by_offer[key]


def _all_candidates(context: PlanContext, job: Job, group: JobGroup) -> Iterator[Candidate]:
    fleet, permitted = context.fleet, _may_be(context, group)
    room = context.reservations.fitting_now(group, permitted)
    known = context.suit is not None and group.application
    suited = context.suit.suited(group.application, room) if context.suit is not None and known else room
    levels = ((suited, RANKED), (room, DISTURBED), (permitted, NO_ROOM))
    # The level of a shape is the first one that any of its instances reaches.
    some = np.array([(fleet.of_shape & mask).any(axis=1) for mask, _ in levels])
    ready: list[int] = np.flatnonzero(some.any(axis=0)).tolist()
    for number, level in zip(ready, some.argmax(axis=0)[ready].tolist(), strict=True):
        mask, why = levels[level]
        places = (fleet.of_shape[number] & mask).nonzero()[0]
        cheapest = fleet.instances[int(places[fleet.price_usd_per_h[places].argmin()])]
        yield _candidate(context, job, cheapest.offer, why)
    for offer in _offers_to_launch(context, group, {fleet.shapes[number] for number in ready}):
        yield _candidate(context, job, offer, f"would have to boot, {seconds(offer.instance_type.boot_delay_s)}")


def _may_be(context: PlanContext, group: JobGroup) -> Mask:
    """Return the instances that are large enough for a rank of ``group`` and of a kind it may run on."""
    fleet = context.fleet
    large = np.logical_and.reduce(fleet.capacity >= group.demand[:, None] - SLACK, axis=0)
    permitted: Mask = large & fleet.placeable & fleet.of_kinds(group.instance_types, group.resources.gpus)
    if not group.spot_ok:
        permitted &= fleet.steady
    if group.constraints is not None:
        permitted &= context.topology.admitted(group.constraints)
    return permitted


def _offers_to_launch(context: PlanContext, group: JobGroup, ready: Set[OfferShape]) -> Iterable[Offer]:
    """Return the cheapest offer for ``group`` of each shape that is not ``ready``."""
    cheapest, demand = dict[OfferShape, Offer](), group.demand.tolist()
    for offer in context.available_offers():
        shape = offer_shape_of(offer)
        pricier = shape in cheapest and offer.price_usd_per_h >= cheapest[shape].price_usd_per_h
        if shape not in ready and not pricier and _fits(group, offer, demand):
            cheapest[shape] = offer
    return cheapest.values()


def _fits(group: JobGroup, offer: Offer, demand: list[float]) -> bool:
    amounts = zip(amounts_of(offer.instance_type.capacity), demand, strict=True)
    fits = all(has >= wanted - SLACK for has, wanted in amounts)
    return fits and (group.spot_ok or offer.market is not Market.SPOT) and may_use(group, offer)


def _candidate(context: PlanContext, job: Job, offer: Offer, rejected: str) -> Candidate:
    capacity, known = offer.instance_type.capacity, context.snapshot.applications.get(job.application)
    usd_per_h = offer.price_usd_per_h * size_share(job.spec.resources_on(capacity), capacity)
    shape = offer_shape_of(offer)
    if known is None:
        return _make_candidate(shape, usd_per_h, rejected, None)
    vcpus, nodes = job.spec.resources.vcpus, job.spec.nodes.count

    def candidate() -> Candidate:
        estimate = expected(known, shape[0], vcpus=vcpus, asked_vcpus=vcpus, nodes=nodes)
        return _make_candidate(shape, usd_per_h, rejected, estimate)

    return known.answer(("candidate", shape, usd_per_h, rejected, vcpus, nodes), candidate)


def _make_candidate(
    shape: OfferShape, usd_per_h: float, rejected: str, estimate: ExpectedPerformance | None
) -> Candidate:
    (column, market), (low, high) = shape, estimate.limits() if estimate is not None else (None, None)
    value = estimate.value if estimate is not None else None
    return Candidate(
        column=column, market=market, usd_per_h=usd_per_h, predicted=value, low=low, high=high, rejected=rejected
    )


def placement_reason(context: PlanContext, job: Job, group: JobGroup, places: Sequence[int]) -> Reason:
    """Return why ``job`` of ``group`` was placed on the instances ``places``; the first one represents all."""
    first, load = context.fleet.instances[places[0]], float(context.fleet.load[places[0]])
    waited_s = context.now - job.eligible_at
    numbers: dict[str, Number] = {
        "instance": first.id,
        "vcpu_share_after": round(load, 4),
        "ranks": len(places),
        "waited_s": round(waited_s, 3),
        **deadline_numbers(job, context.now),
    }
    chosen: dict[str, Number] = {}
    if group.portions is not None and context.suit is not None:
        chosen = context.suit.size_numbers(group.portions, places[0], float(group.asks_on(places[0])[0]))
    numbers |= chosen
    if bound := excluded(context, group, places):
        numbers["bound"] = "; ".join(f"{key}: not {', '.join(names[:3])}" for key, names in bound.items())
    code, why = context.order_for(group).explain(context, group)
    if context.suit is not None and group.application:
        decided = context.suit.numbers(group.application)
        numbers |= decided
        if "relaxed" in decided:
            code, why = "least_disturbed", f"smallest interference beyond tolerance ({decided['relaxed']})"
    room = amount(context.reservations.granted(group, places[0]))
    text = f"{first.id}: {'whole machine (exclusive)' if group.exclusive else why}; takes {room}"
    text += f", {percent(load)} of its vCPUs then in use"
    text += f"; {counted(len(places) - 1, 'more rank')} placed likewise" if len(places) > 1 else ""
    if "probability" in chosen:
        text += f"; sized to {chosen['vcpus']:g} vCPU (allowed: {chosen['vcpus_within']}),"
        text += f" {percent(float(chosen['probability'] or 0))} likely to meet its target"
    mapped, of_mapping = _mapping(context, group, places[0])
    text += mapped
    numbers |= of_mapping
    text += f"; other machines with room excluded by {', '.join(bound)}" if bound else ""
    return Reason(code=code, text=text, numbers=numbers)


def _mapping(context: PlanContext, group: JobGroup, at: int) -> tuple[str, dict[str, Number]]:
    """Return why the hybrid strategy allows instance ``at``, as text and numbers; nothing without reserved capacity."""
    hybrid = context.strategy.hybrid
    if hybrid is None or hybrid.paid_vcpus <= 0.0:
        return "", {}
    needed, delivered, in_use = group.mapping_need.quality, float(hybrid.quality[at]), hybrid.utilisation
    where = "reserved" if hybrid.reserved[at] else "rented"
    text = (
        f"; mapped to {where} room: needs quality {needed:.2f}, {delivered:.2f} is delivered there; {percent(in_use)}"
    )
    numbers: dict[str, Number] = {
        "mapped_to": where,
        "quality_needed": needed,
        "quality_delivered": round(delivered, 4),
        "reserved_in_use": round(in_use, 4),
    }
    return f"{text} of the reserved vCPUs are in use", numbers
