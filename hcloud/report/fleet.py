"""From events to stretches of machine time: which units held which machine, at what price, from when to when.

The log is read once. The stretches of a machine are settled (yielded and forgotten) when it has ended, and now and then
while it is running. Memory therefore depends on the number of running machines, not on the length of the log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from hcloud.core.model import PROFILE_TAG, Event, EventKind, InstanceState, JobState, Market
from hcloud.core.pricing import billed_until, dominant_share
from hcloud.report.grouping import JobFacts, job_facts, number, text

_SETTLE_AT = 256
"""Holds of a machine at which its stretches are settled for the first time."""
# An event about a machine may be recorded this much later than it happened; stretches newer than that stay open.
_LATENESS_S = 3600.0


@dataclass(slots=True, eq=False)
class AttemptHistory:
    """What became of an attempt, as far as the log was read."""

    id: str
    running: int = 0
    """The number of its running units."""
    failed: bool = False
    """A unit of it ended for a cause of failure."""
    lost: bool | None = None
    """Its work was lost: it was followed by another attempt, or its job failed. None: it may still succeed."""

    @property
    def is_over(self) -> bool:
        """Whether it failed and none of its units is running, so that its job awaits another attempt."""
        return self.failed and not self.running


@dataclass(slots=True)
class UnitUse:
    """The most that a unit was measured to use; None if it was not measured."""

    read_at: float
    """The time of the last reading of its CPU counter."""
    cpu_s: float = 0.0
    """That reading: CPU time since its start."""
    vcpus_max: float | None = None
    """Of the mean vCPUs between two readings, the largest."""
    memory_mib_max: float | None = None

    def measure(self, event: Event) -> None:
        """Take the readings in a SAMPLE or UNIT_ENDED event into account."""
        cpu_s = number(event, "cpu_s", -1.0)
        if cpu_s >= self.cpu_s and event.at > self.read_at:
            self.vcpus_max = max(self.vcpus_max or 0.0, (cpu_s - self.cpu_s) / (event.at - self.read_at))
            self.cpu_s, self.read_at = cpu_s, event.at
        memory_mib = max(number(event, "memory_mib"), number(event, "memory_mib_max"))
        if memory_mib > 0.0:
            self.memory_mib_max = max(self.memory_mib_max or 0.0, memory_mib)


@dataclass(slots=True, kw_only=True)
class UnitHold:
    """Resources of a machine held by one unit."""

    job: JobFacts
    vcpus: float
    memory_mib: float
    share: float
    """The unit's dominant share of the machine, 0..1: of its vCPUs, memory or GPUs, the largest."""
    gpu_share: float = 0.0
    """Its share of the machine's GPUs."""
    attempt: AttemptHistory
    use: UnitUse
    """Of the whole unit, also before it was resized."""
    started_at: float
    ended_at: float | None = None
    """None while the unit is running."""


@dataclass(slots=True, kw_only=True)
class MachineHistory:
    """A machine as recorded in the log, with its holds that are not settled yet."""

    id: str
    provider: str
    zone: str
    type: str
    market: str
    """The market it was launched in."""
    vcpus: float
    memory_mib: float
    billing_minimum_s: float
    on_demand_usd_per_h: float
    priced_at: float
    prices: list[tuple[float, float]]
    """Pairs of a time and the price from then on in USD per hour, oldest first."""
    on_demand_from_at: float = inf
    """When its commitment ended, from which on it is on demand."""
    launched_at: float | None = None
    ready_at: float | None = None
    terminating_at: float | None = None
    """When its termination was requested."""
    ended_at: float | None = None
    has_run_jobs: bool = False
    """A unit has started on it that is no profiling run."""
    has_run_profiling: bool = False
    settled_at: float = 0.0
    """End of the last stretch that was yielded, Unix seconds."""
    last_event_at: float = 0.0
    holdings: list[UnitHold] = field(default_factory=list)
    settle_at_holdings: int = _SETTLE_AT
    """Number of holds at which stretches are settled next."""

    @property
    def pool(self) -> str:
        """Return ``provider/zone/type``."""
        return f"{self.provider}/{self.zone}/{self.type}"

    @property
    def has_running_units(self) -> bool:
        """Whether a unit is running, or its end is not recorded yet."""
        return any(holding.ended_at is None for holding in self.holdings)

    def price_at(self, at: float) -> float:
        """Return the price at a time (Unix seconds), in USD per hour."""
        return self.prices[max(0, bisect_right(self.prices, (at, float("inf"))) - 1)][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """An interval of billed time in which the price, the holds and the readiness of a machine did not change."""

    machine: MachineHistory
    since: float
    until: float
    price_usd_per_h: float
    holdings: tuple[UnitHold, ...]
    booting: bool
    """Whether the machine was not ready yet."""

    @property
    def seconds(self) -> float:
        """Return the length in seconds."""
        return self.until - self.since

    @property
    def market(self) -> str:
        """Return the market whose price was paid."""
        ended = self.since >= self.machine.on_demand_from_at
        return Market.ON_DEMAND.value if ended else self.machine.market


class FleetHistory:
    """Reads events in order and yields every stretch of machine time between ``since`` and ``until`` once."""

    def __init__(self, since: float, until: float) -> None:
        self.since = since
        self.until = until
        self.machines: dict[str, MachineHistory] = {}
        """Machines that are running or not fully settled, by id."""
        self.jobs: dict[str, JobFacts] = {}
        """Jobs that have not finished, by id."""
        self.unknown_machines: set[str] = set()
        """Machines of which the log has the launch but not the request; they are left out."""
        self.units: dict[str, tuple[MachineHistory, UnitHold]] = {}
        """Running units by ``unit_id``."""
        self.attempts: dict[str, AttemptHistory] = {}
        """The last attempt of each unfinished job that had one, by job id."""

    def take(self, event: Event) -> Iterator[Stretch]:
        """Apply one event; yield the stretches that it settles."""
        handler = _HANDLERS.get(event.kind)
        if handler is None:
            return
        handler(self, event)
        machine = self.machines.get(event.instance_id or "")
        if machine is None:
            return
        machine.last_event_at = max(machine.last_event_at, event.at)
        if machine.ended_at is not None and not machine.has_running_units:
            del self.machines[machine.id]
            yield from self._settle(machine, self.until)
        elif len(machine.holdings) >= machine.settle_at_holdings:
            yield from self._settle(machine, machine.last_event_at - _LATENESS_S)

    def finish(self) -> Iterator[Stretch]:
        """Yield the remaining stretches up to ``until``, after the last event."""
        for machine in self.machines.values():
            yield from self._settle(machine, self.until)

    def _settle(self, machine: MachineHistory, until: float) -> Iterator[Stretch]:
        if machine.launched_at is None:
            return
        end = self.until
        if machine.ended_at is not None:
            end = billed_until(machine.launched_at, machine.ended_at, machine.billing_minimum_s)
        since = max(machine.launched_at, machine.settled_at, self.since)
        until = min(until, end, self.until)
        yield from _stretches(machine, since, until)
        machine.settled_at = max(machine.settled_at, until)
        machine.holdings = [h for h in machine.holdings if h.ended_at is None or h.ended_at > machine.settled_at]
        machine.settle_at_holdings = max(_SETTLE_AT, 2 * len(machine.holdings))

    # ------------------------------------------------------------------------------------------------- event handlers
    def _submitted(self, event: Event) -> None:
        self.jobs[event.job_id or ""] = job_facts(event)

    def _finished(self, event: Event) -> None:
        self.jobs.pop(event.job_id or "", None)
        attempt = self.attempts.pop(event.job_id or "", None)
        if attempt is not None:
            state = event.fields.get("state")
            attempt.lost = state != JobState.SUCCEEDED.value and (state == JobState.FAILED.value or attempt.is_over)

    def _requested(self, event: Event) -> None:
        price = number(event, "price_usd_per_h")
        self.machines[event.instance_id or ""] = MachineHistory(
            id=event.instance_id or "",
            provider=text(event, "provider"),
            zone=text(event, "zone"),
            type=text(event, "type"),
            market=text(event, "market"),
            vcpus=number(event, "vcpus"),
            memory_mib=number(event, "memory_mib"),
            billing_minimum_s=number(event, "billing_minimum_s"),
            on_demand_usd_per_h=number(event, "on_demand_usd_per_h", price),
            priced_at=number(event, "priced_at", event.at),
            prices=[(0.0, price)],
        )

    def _launched(self, event: Event) -> None:
        machine = self._known(event)
        if machine is not None:
            machine.launched_at = number(event, "launched_at", event.at)
            machine.prices = [(0.0, number(event, "price_usd_per_h", machine.prices[0][1]))]

    def _ready(self, event: Event) -> None:
        machine = self._known(event)
        if machine is not None and machine.ready_at is None:
            machine.ready_at = event.at

    def _price(self, event: Event) -> None:
        machine = self._known(event)
        if machine is not None:
            at = max(event.at, machine.prices[-1][0])
            machine.prices.append((at, number(event, "price_usd_per_h")))
            machine.priced_at = at
            if event.fields.get("market") == Market.ON_DEMAND.value:
                machine.on_demand_from_at = at

    def _state(self, event: Event) -> None:
        machine = self._known(event)
        if machine is not None and event.fields.get("to") == InstanceState.TERMINATING.value:
            machine.terminating_at = event.at

    def _terminated(self, event: Event) -> None:
        machine = self._known(event)
        if machine is not None:
            machine.ended_at = max(number(event, "terminated_at", event.at), machine.launched_at or 0.0)

    def _started(self, event: Event) -> None:
        machine = self._known(event)
        if machine is None:
            return
        vcpus, memory_mib, gpu_share = (number(event, key) for key in ("vcpus", "memory_mib", "gpu_share"))
        job = self.jobs.get(event.job_id or "") or JobFacts(id=event.job_id or "", user=event.user or "")
        if PROFILE_TAG in job.tags:
            machine.has_run_profiling = True
        else:
            machine.has_run_jobs = True
        attempt = self._attempt(event)
        attempt.running += 1
        holding = UnitHold(
            job=job,
            vcpus=vcpus,
            memory_mib=memory_mib,
            share=max(dominant_share(vcpus, memory_mib, machine.vcpus, machine.memory_mib), gpu_share),
            gpu_share=gpu_share,
            attempt=attempt,
            use=UnitUse(event.at),
            started_at=event.at,
        )
        machine.holdings.append(holding)
        self.units[unit_id(event)] = (machine, holding)

    def _attempt(self, event: Event) -> AttemptHistory:
        """Return the attempt that a unit starts in; an earlier one of the same job is lost by that."""
        job_id, name = event.job_id or "", str(event.fields.get("attempt"))
        attempt = self.attempts.get(job_id)
        if attempt is None or attempt.id != name:
            if attempt is not None:
                attempt.lost = True
            attempt = self.attempts[job_id] = AttemptHistory(name)
        return attempt

    def _ended(self, event: Event) -> None:
        _, holding = self.units.pop(unit_id(event), (None, None))
        if holding is not None:
            holding.ended_at = max(event.at, holding.started_at)
            holding.attempt.running -= 1
            holding.attempt.failed |= event.fields.get("cause") is not None

    def _resized(self, event: Event) -> None:
        name = unit_id(event)
        _, before = self.units.get(name, (None, None))
        if before is not None:
            self._ended(event)
            self._started(event)
            if name in self.units:
                self.units[name][1].use = before.use

    def _known(self, event: Event) -> MachineHistory | None:
        machine = self.machines.get(event.instance_id or "")
        if machine is None and event.kind is EventKind.INSTANCE_LAUNCHED:
            self.unknown_machines.add(event.instance_id or "")
        return machine


_HANDLERS = {
    EventKind.JOB_SUBMITTED: FleetHistory._submitted,
    EventKind.JOB_FINISHED: FleetHistory._finished,
    EventKind.INSTANCE_REQUESTED: FleetHistory._requested,
    EventKind.INSTANCE_LAUNCHED: FleetHistory._launched,
    EventKind.INSTANCE_READY: FleetHistory._ready,
    EventKind.INSTANCE_PRICE: FleetHistory._price,
    EventKind.INSTANCE_STATE: FleetHistory._state,
    EventKind.INSTANCE_TERMINATED: FleetHistory._terminated,
    EventKind.UNIT_STARTED: FleetHistory._started,
    EventKind.UNIT_RESIZED: FleetHistory._resized,
    EventKind.UNIT_ENDED: FleetHistory._ended,
}
FLEET_KINDS: frozenset[EventKind] = frozenset(_HANDLERS)
"""Event kinds that a FleetHistory reads."""


def unit_id(event: Event) -> str:
    """Return the id of the unit in an event: ``ATTEMPT.RANK``."""
    return f"{event.fields.get('attempt')}.{event.fields.get('rank')}"


def _stretches(machine: MachineHistory, since: float, until: float) -> Iterator[Stretch]:
    """Split ``since``..``until`` where the price, the readiness or the set of holds changes."""
    if since >= until:
        return
    ready_at = until if machine.ready_at is None else machine.ready_at
    starts: dict[float, list[UnitHold]] = defaultdict(list)
    ends: dict[float, list[UnitHold]] = defaultdict(list)
    for holding in machine.holdings:
        started_at = max(holding.started_at, since)
        # No unit holds a machine beyond its termination, however late the end of the unit was recorded.
        ended_at = min(at for at in (until, holding.ended_at, machine.ended_at) if at is not None)
        if started_at < ended_at:
            starts[started_at].append(holding)
            ends[ended_at].append(holding)
    cuts = {at for at, _ in machine.prices} | {ready_at, until} | starts.keys() | ends.keys()
    held = {id(holding): holding for holding in starts[since]}
    for cut in sorted(at for at in cuts if since < at <= until):
        yield Stretch(
            machine=machine,
            since=since,
            until=cut,
            price_usd_per_h=machine.price_at(since),
            holdings=tuple(held.values()),
            booting=since < ready_at,
        )
        for holding in ends[cut]:
            del held[id(holding)]
        held.update((id(holding), holding) for holding in starts[cut])
        since = cut
