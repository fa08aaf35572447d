"""What there was to choose from when a job was placed: types of machines, with what was expected of the job there.

Stored with the decision, so that it can be explained, and judged once it is known how the job did. Types, not single
machines: what sets machines of one type apart are their neighbours, which the reason tells. Worked out once per plan
for jobs that ask for the same, and for so many kinds of jobs only that planning does not slow down.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hcloud.known import Classification
from hcloud.model import Instance, Job, Offer
from hcloud.planner.draft import Draft, Group
from hcloud.planner.fleet import SLACK
from hcloud.planner.offers import may_use
from hcloud.planner.plan import Candidate
from hcloud.planner.sizing import expected
from hcloud.planner.wording import seconds, size_share

MOST = 8
"""So many candidates are stored, the chosen one among them."""
KINDS = 256
"""Kinds of jobs in one plan whose candidates are worked out."""
NO_ROOM, DISTURBED, RANKED = "no room", "neighbours", "ranked after"


def candidates_of(draft: Draft, job: Job, group: Group, at: int) -> tuple[Candidate, ...]:
    """Return the types at hand for ``job``, which goes to machine ``at``: the chosen one, then the cheapest first."""
    if group.candidates is None:
        if draft.kinds_told >= KINDS:
            return ()
        draft.kinds_told += 1
        group.candidates = tuple(sorted(_all(draft, job, group), key=lambda c: (c.usd_per_h, c.column)))
    column = draft.fleet.type_columns[int(draft.fleet.type_at[at])]
    if column not in group.told:
        chosen = [replace(each, rejected="") for each in group.candidates if each.column == column]
        group.told[column] = (*chosen, *(each for each in group.candidates if each.column != column))[:MOST]
    return group.told[column]


def _all(draft: Draft, job: Job, group: Group) -> Iterator[Candidate]:
    fleet, seen = draft.fleet, set[str]()
    large = np.logical_and.reduce(fleet.capacity >= group.demand[:, None] - SLACK, axis=0)
    may = large & fleet.placeable & fleet.of_types(group.instance_types)
    may = may & draft.whereabouts.admitted(group.constraints) if group.constraints is not None else may
    room = draft.fitting_now(group, may)
    known = draft.suit is not None and group.application
    suited = draft.suit.suited(group.application, room) if draft.suit is not None and known else room
    of_type = fleet.of_type & may
    first, there = of_type.argmax(axis=1).tolist(), of_type.any(axis=1)
    suit_some, have_some = ((of_type & mask).any(axis=1).tolist() for mask in (suited, room))
    for number in there.nonzero()[0].tolist():
        column = fleet.type_columns[number]
        seen.add(column)
        why = RANKED if suit_some[number] else DISTURBED if have_some[number] else NO_ROOM
        yield _candidate(draft, job, column, fleet.instances[first[number]], why)
    demand = group.demand.tolist()
    for offer in draft.snapshot.offers:
        column = f"{offer.provider}/{offer.instance_type.name}"
        if column not in seen and _could_be_had(draft, group, offer, demand):
            seen.add(column)
            boot = seconds(offer.instance_type.boot_delay_s)
            yield _candidate(draft, job, column, offer, f"not there yet, {boot} to start")


def _could_be_had(draft: Draft, group: Group, offer: Offer, demand: list[float]) -> bool:
    has, (vcpus, memory_mib, disk_gib) = offer.instance_type.capacity, demand
    fits = has.vcpus >= vcpus - SLACK and has.memory_mib >= memory_mib - SLACK and has.disk_gib >= disk_gib - SLACK
    return fits and may_use(group, offer) and offer.available != 0 and draft.policy.allow.refusal(offer) is None


def _candidate(draft: Draft, job: Job, column: str, machine: Instance | Offer, why: str) -> Candidate:
    offer = machine.offer if isinstance(machine, Instance) else machine
    capacity, known = offer.instance_type.capacity, draft.snapshot.applications.get(job.application)
    usd_per_h = offer.price_usd_per_h * size_share(job.spec.held_of(capacity), capacity)
    if known is None:
        return Candidate(column=column, usd_per_h=usd_per_h, predicted=None, low=None, high=None, rejected=why)
    question = ("candidate", column, usd_per_h, why, job.spec.resources.vcpus, job.spec.nodes.count)
    return known.answer(question, lambda: _expecting(known, *question[1:]))


def _expecting(known: Classification, column: str, usd_per_h: float, why: str, vcpus: float, nodes: int) -> Candidate:
    would = expected(known, column, vcpus=vcpus, asked_vcpus=vcpus, nodes=nodes)
    low, high = would.limits() if would is not None else (None, None)
    value = would.value if would is not None else None
    return Candidate(column=column, usd_per_h=usd_per_h, predicted=value, low=low, high=high, rejected=why)
