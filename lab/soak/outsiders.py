"""People who come by in soak runs: operators who order machines away, and others with machines on the same account."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from hcloud.core.model import Event, EventKind, Instance, InstanceState, Offer
from hcloud.planner.snapshot import Directive, DirectiveScope
from hcloud.provider import LaunchRequest
from hcloud.simulator.ground_truth import TERMINATED_ON_REQUEST, CycleContext, MachineTruth, VirtualCloud
from hcloud.store import LiveView

FOREIGN_OWNERS = ("", "somebody", "hcloud-soak-2", "hcloud")
"""Owner tags of machines that are not ours: none at all, anybody's, those of other deployments."""
OPERATOR = "an operator"


def draw_foreign_launch(rng: np.random.Generator, offers: Sequence[Offer], number: int, now: float) -> LaunchRequest:
    """Return the launch of the ``number``-th machine of others: tagged as ours but for the owner, or not at all."""
    tagged = bool(rng.random() < 0.5)
    return LaunchRequest(
        token=f"token-of-others-{number}",
        instance_id=f"inst-{int(rng.integers(1, 9))}" if tagged else "",
        owner=str(rng.choice(FOREIGN_OWNERS)),
        offer=offers[int(rng.integers(len(offers)))],
        expires_at=now + float(rng.choice([200.0, 1e7])),
    )


def draw_directive(rng: np.random.Generator, row: Instance, now: float) -> Directive:
    """Return an order to drain a machine, or all of its type, by a time or whenever, or to destroy it."""
    kind = rng.random()
    whole_type = kind < 0.2
    return Directive(
        scope=DirectiveScope.TYPE if whole_type else DirectiveScope.INSTANCE,
        name=row.offer.instance_type.name if whole_type else row.id,
        by=OPERATOR,
        ordered_at=now,
        deadline_at=now + float(rng.uniform(0, 60)) if rng.random() < 0.5 else None,
        destroy=bool(kind > 0.7),
    )


@dataclass(slots=True)
class OutsiderChecks:
    """Promises to them. ``others`` are machines that are not ours, by cloud and provider id, with their expiry."""

    owner: str
    clouds: Mapping[str, VirtualCloud]
    foreign_machines: dict[tuple[str, str], float] = field(default_factory=dict)
    _directives: Collection[Directive] = ()
    """Those in force at the last look."""

    def check(
        self, seen: LiveView, moment: CycleContext, events: Sequence[Event], rows: Sequence[Instance]
    ) -> Iterator[str]:
        """Return what does not hold of orders, and of machines of others. ``rows``: of all machines ever."""
        standing = [order for order in seen.directives if order in self._directives]
        by_id = {row.id: row for row in rows} if standing else {}
        for event in events if standing else ():
            yield from _check_event(event, standing, by_id)
        for order in standing if moment.undisturbed else ():
            yield from _check_directive(order, seen, moment)
        self._directives = seen.directives
        yield from self._check_foreign_machines(moment.now, rows)

    def _check_foreign_machines(self, now: float, rows: Sequence[Instance]) -> Iterator[str]:
        """Machines of other owners on the accounts are never ended, renewed or taken for ours."""
        if not self.foreign_machines:
            return
        taken = {(row.offer.provider, row.provider_id): row.id for row in rows}
        for key, machine in self._foreign_truth(now):
            what = f"not ours: {machine.provider_id} of {machine.owner or 'nobody'}"
            if machine.detail in TERMINATED_ON_REQUEST:
                yield f"{what} was ended"
            if machine.expires_at != self.foreign_machines[key]:
                yield f"{what} was renewed"
            if key in taken:
                yield f"{what} is taken for {taken[key]}"

    def _foreign_truth(self, now: float) -> list[tuple[tuple[str, str], MachineTruth]]:
        everything = [(name, machine) for name, cloud in self.clouds.items() for machine in cloud.machines(now)]
        return [((name, m.provider_id), m) for name, m in everything if m.owner != self.owner]


def _check_event(event: Event, standing: Sequence[Directive], rows: Mapping[str, Instance]) -> Iterator[str]:
    """Nothing is launched, and nothing placed, that an operator forbade before the last cycle."""
    bought = rows.get(event.instance_id or "") if event.kind is EventKind.INSTANCE_REQUESTED else None
    if bought is not None and any(order.closes(bought.offer) for order in standing):
        yield f"ordered: {bought.id} was bought, though its type is drained"
    if event.kind is EventKind.ATTEMPT_PLACED:
        for held in cast(Sequence[str], event.fields["allocations"]):
            name = held.partition(":")[0]
            if name in rows and any(order.covers(rows[name]) for order in standing):
                yield f"ordered: {event.job_id} was placed on {name}, which is to be drained"


def _check_directive(order: Directive, seen: LiveView, moment: CycleContext) -> Iterator[str]:
    """Who is to be destroyed ends; by the deadline of a drain, whoever still runs there has been asked to end."""
    covered = {row.id: row for row in seen.instances if order.covers(row)}
    for name, row in covered.items():
        if order.destroy and row.state is not InstanceState.TERMINATING:
            yield f"ordered: {name} is to be destroyed, and is {row.state}"
    late = order.deadline_at is not None and moment.now > order.deadline_at
    serving = {name for name, row in covered.items() if _serves_undisturbed(row, moment)}
    for job in seen.jobs if late else ():
        attempt = job.attempt
        if attempt is not None and not attempt.over and attempt.stop_requested_at is None:
            here = [part.instance_id for part in attempt.allocations if not part.released]
            if not serving.isdisjoint(here):
                yield f"ordered: {job.id} runs on, though {order.name} was to be drained by {order.deadline_at:.1f}"


def _serves_undisturbed(row: Instance, moment: CycleContext) -> bool:
    """Whether nothing else befalls a machine than what an operator ordered."""
    return row.id in moment.reachable and row.preempt_at is None and row.state is not InstanceState.TERMINATING
