"""Outsiders of a soak run: operators who drain or destroy machines, and other tenants of the same cloud account."""

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
"""Owner tags of machines that are not ours: none, an arbitrary one, and those of other deployments."""
OPERATOR = "an operator"


def draw_foreign_launch(rng: np.random.Generator, offers: Sequence[Offer], number: int, now: float) -> LaunchRequest:
    """Return the ``number``-th launch by another tenant, tagged like ours except for the owner, or without tags."""
    tagged = bool(rng.random() < 0.5)
    return LaunchRequest(
        token=f"token-of-others-{number}",
        instance_id=f"inst-{int(rng.integers(1, 9))}" if tagged else "",
        owner=str(rng.choice(FOREIGN_OWNERS)),
        offer=offers[int(rng.integers(len(offers)))],
        expires_at=now + float(rng.choice([200.0, 1e7])),
    )


def draw_directive(rng: np.random.Generator, row: Instance, now: float) -> Directive:
    """Return a directive to drain a machine or its type, perhaps by a deadline, or to destroy the machine."""
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
    """Checks that directives are obeyed and that other tenants' machines are left alone."""

    owner: str
    clouds: Mapping[str, VirtualCloud]
    foreign_machines: dict[tuple[str, str], float] = field(default_factory=dict)
    """Expiry times of other tenants' machines, by cloud and provider id."""
    _directives: Collection[Directive] = ()
    """Those in force at the last check."""

    def check(
        self, seen: LiveView, moment: CycleContext, events: Sequence[Event], rows: Sequence[Instance]
    ) -> Iterator[str]:
        """Yield violations. ``rows``: all machines that ever existed."""
        known = [directive for directive in seen.directives if directive in self._directives]
        by_id = {row.id: row for row in rows} if known else {}
        for event in events if known else ():
            yield from _check_event(event, known, by_id)
        for directive in known if moment.undisturbed else ():
            yield from _check_directive(directive, seen, moment)
        self._directives = seen.directives
        yield from self._check_foreign_machines(moment.now, rows)

    def _check_foreign_machines(self, now: float, rows: Sequence[Instance]) -> Iterator[str]:
        """Machines of other owners are never terminated, renewed or taken for ours."""
        if not self.foreign_machines:
            return
        taken = {(row.offer.provider, row.provider_id): row.id for row in rows}
        for key, machine in self._foreign_truth(now):
            name = f"foreign machine: {machine.provider_id} of {machine.owner or 'no owner'}"
            if machine.detail in TERMINATED_ON_REQUEST:
                yield f"{name} was terminated"
            if machine.expires_at != self.foreign_machines[key]:
                yield f"{name} was renewed"
            if key in taken:
                yield f"{name} was taken for {taken[key]}"

    def _foreign_truth(self, now: float) -> list[tuple[tuple[str, str], MachineTruth]]:
        everything = [(name, machine) for name, cloud in self.clouds.items() for machine in cloud.machines(now)]
        return [((name, m.provider_id), m) for name, m in everything if m.owner != self.owner]


def _check_event(event: Event, directives: Sequence[Directive], rows: Mapping[str, Instance]) -> Iterator[str]:
    """No launch and no placement that a directive forbade before the last cycle."""
    launched = rows.get(event.instance_id or "") if event.kind is EventKind.INSTANCE_REQUESTED else None
    if launched is not None and any(directive.closes(launched.offer) for directive in directives):
        yield f"directive: {launched.id} was launched, though its type is drained"
    if event.kind is EventKind.ATTEMPT_PLACED:
        for held in cast(Sequence[str], event.fields["allocations"]):
            name = held.partition(":")[0]
            if name in rows and any(directive.covers(rows[name]) for directive in directives):
                yield f"directive: {event.job_id} was placed on {name}, which is to be drained"


def _check_directive(directive: Directive, seen: LiveView, moment: CycleContext) -> Iterator[str]:
    """A machine to be destroyed is terminating; after the deadline of a drain, its jobs have been asked to stop."""
    covered = {row.id: row for row in seen.instances if directive.covers(row)}
    for name, row in covered.items():
        if directive.destroy and row.state is not InstanceState.TERMINATING:
            yield f"directive: {name} is to be destroyed, but is {row.state}"
    late = directive.deadline_at is not None and moment.now > directive.deadline_at
    serving = {name for name, row in covered.items() if _serves_undisturbed(row, moment)}
    for job in seen.jobs if late else ():
        attempt = job.attempt
        if attempt is not None and not attempt.over and attempt.stop_requested_at is None:
            held = [part.instance_id for part in attempt.allocations if not part.released]
            if not serving.isdisjoint(held):
                deadline = f"{directive.deadline_at:.1f}"
                yield f"directive: {job.id} runs on, though {directive.name} was to be drained by {deadline}"


def _serves_undisturbed(row: Instance, moment: CycleContext) -> bool:
    return row.id in moment.reachable and row.preempt_at is None and row.state is not InstanceState.TERMINATING
