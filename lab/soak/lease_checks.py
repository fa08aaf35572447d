"""Checks of machine leases: renewed while in use, terminated when idle, and expiring without a daemon."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from hcloud.core.model import Event, EventKind, InstanceState, JobState, Market
from hcloud.simulator.ground_truth import SELF_TERMINATED, CycleContext, MachineTruth
from hcloud.store import LiveView

UNDISTURBED_S = 100.0
"""A daemon undisturbed for this long has renewed, stopped or terminated what it should: longer than a grace period, its
margin, and a cycle."""
LONGEST_GAP_S = 31.0
"""After a longer gap between checks, the daemon no longer counts as undisturbed."""
PATIENCE_S = 90.0
"""Longer than idle machines are kept (30 s) and machines may boot (60 s) in these worlds."""
UNUSED_RENEWALS_MAX = 2
_SERVING = (InstanceState.READY, InstanceState.DRAINING)
_UNIT_EVENTS = (EventKind.UNIT_STARTED, EventKind.UNIT_ENDED)


@dataclass(slots=True)
class LeaseChecks:
    """Tracks since when each machine's daemon and worker have been undisturbed, and what was in use then."""

    longest_lease_s: float = 0.0
    """The longest ``lease.horizon_s`` of the world's policies: so long an idle machine may have its room reserved."""
    _checked_at: float = -inf
    _undisturbed_since: float | None = None
    _reachable_since: dict[str, float] = field(default_factory=dict)
    _in_use: Mapping[str, bool] = field(default_factory=dict)
    """Machines that were serving at the last check, and whether units ran there that were not asked to stop."""
    _wanted_machines: frozenset[str] = frozenset()
    """Machines that a job held or awaited at the last check."""
    _claimed_idle: int = 0
    """How many idle machines were needed at the last check by gangs that still await others."""
    _unused_renewals: dict[str, int] = field(default_factory=dict)
    _ended: set[str] = field(default_factory=set)

    def check(
        self, seen: LiveView, moment: CycleContext, events: Sequence[Event], machines: Sequence[MachineTruth]
    ) -> Iterator[str]:
        """Yield violations. ``machines``: all of ours that ever existed."""
        in_demand = _machines_wanted(seen)
        yield from self._check_self_terminations(machines)
        yield from self._check_renewals(events, seen, in_demand)
        self._track_reachability(moment)
        # A gang requeued in this cycle needed them until then.
        idle, claimed = list(self._check_idle(seen, moment, in_demand)), _count_claimed_idle(seen)
        yield from idle[max(claimed, self._claimed_idle) :]
        self._in_use, self._wanted_machines, self._claimed_idle = _machines_in_use(seen), in_demand, claimed

    def _track_reachability(self, moment: CycleContext) -> None:
        if not moment.undisturbed or moment.now > self._checked_at + LONGEST_GAP_S:
            self._reachable_since, self._undisturbed_since = {}, None
        if moment.undisturbed:
            self._undisturbed_since = moment.now if self._undisturbed_since is None else self._undisturbed_since
            self._reachable_since = {each: self._reachable_since.get(each, moment.now) for each in moment.reachable}
        self._checked_at = moment.now

    def _check_self_terminations(self, machines: Sequence[MachineTruth]) -> Iterator[str]:
        """No machine in use terminates itself while its daemon runs and its worker answers."""
        for machine in machines:
            ended_at, name = machine.terminated_at, machine.instance_id
            if ended_at is None or machine.token in self._ended:
                continue
            self._ended.add(machine.token)
            steady = self._reachable_since.get(name, inf) <= ended_at - UNDISTURBED_S
            steady = steady and ended_at <= self._checked_at + LONGEST_GAP_S
            if steady and self._in_use.get(name) and machine.detail.startswith(SELF_TERMINATED):
                yield f"lease lapsed: {name} {machine.detail} in use"

    def _check_renewals(self, events: Sequence[Event], seen: LiveView, in_demand: frozenset[str]) -> Iterator[str]:
        """No unused machine is renewed twice."""
        rows = {each.id: each for each in seen.instances}
        # A unit may be placed there and refused within one cycle: then no job holds it at either check.
        used = (
            in_demand
            | self._wanted_machines
            | {event.instance_id or "" for event in events if event.kind in _UNIT_EVENTS}
        )
        for name in used:
            self._unused_renewals.pop(name, None)
        for event in events:
            row = rows.get(event.instance_id or "")
            if event.kind is not EventKind.INSTANCE_RENEWED or row is None or row.offer.market is Market.RESERVED:
                continue
            if row.id not in used:
                self._unused_renewals[row.id] = self._unused_renewals.get(row.id, 0) + 1
                if self._unused_renewals[row.id] >= UNUSED_RENEWALS_MAX:
                    yield f"unused renewal: {row.id} was renewed, but not used since its last renewal"

    def _check_idle(self, seen: LiveView, moment: CycleContext, in_demand: frozenset[str]) -> Iterator[str]:
        """Idle machines are terminated in time: later where their room is reserved, but not in vain."""
        reserved = {name for job in seen.jobs for name in job.reserved}
        for row in seen.instances:
            if self._undisturbed_since is None or row.offer.market is Market.RESERVED or row.id in in_demand:
                continue
            idle_since = row.idle_since if row.state is InstanceState.READY else None
            since = max(self._reachable_since.get(row.id, inf), idle_since or inf)
            patience_s = PATIENCE_S + (self.longest_lease_s if row.id in reserved else 0.0)
            if idle_since is not None and moment.now > since + patience_s:
                yield f"kept: {row.id} has been idle for {moment.now - idle_since:.0f} s"

    def check_booting(self, seen: LiveView, moment: CycleContext) -> Iterator[str]:
        """Yield machines that have been booting for too long."""
        for row in seen.instances if self._undisturbed_since is not None else ():
            if row.state is InstanceState.BOOTING and row.launched_at is not None:
                waited_s = moment.now - max(self._undisturbed_since or 0.0, row.launched_at, row.requested_at)
                if waited_s > PATIENCE_S:
                    yield f"kept: {row.id} has been booting for {waited_s:.0f} s"


def check_abandoned(now: float, machines: Sequence[MachineTruth]) -> Iterator[str]:
    """Yield our machines that outlive every lease although no daemon renewed them."""
    for machine in machines:
        if machine.terminated_at is None:
            left_s = machine.expires_at - now
            yield f"outlives: {machine.instance_id} would live {left_s:.0f} s longer, without a daemon"


def _machines_wanted(seen: LiveView) -> frozenset[str]:
    held = [part.instance_id for job in seen.jobs if job.attempt is not None for part in job.attempt.allocations
            if not part.released]  # fmt: skip
    awaited = [name for job in seen.jobs for name in job.awaiting]
    coming = [each.id for each in seen.instances if each.for_running]
    return frozenset([*held, *awaited, *coming])


def _count_claimed_idle(seen: LiveView) -> int:
    """Return how many nodes of jobs that await machines will go on idle ones; no row says on which."""
    awaiting = [job for job in seen.jobs if job.state is JobState.AWAITING_INSTANCE]
    return sum(max(0, job.spec.nodes.needed - len(job.awaiting)) for job in awaiting)


def _machines_in_use(seen: LiveView) -> Mapping[str, bool]:
    busy = {
        part.instance_id
        for job in seen.jobs
        if job.attempt is not None and job.attempt.stop_requested_at is None
        for part in job.attempt.allocations
        if part.started_at is not None and not part.released
    }
    return {each.id: each.id in busy for each in seen.instances if each.state in _SERVING}
