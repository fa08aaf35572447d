"""From events to stretches of instance time: which unit held which instance, at what price, from when to when.

One pass over the log. A machine's stretches are settled when it has ended, or from time to time while it lives on, so
that memory depends on what lives now and not on the length of the log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from hcloud.core.model import Event, EventKind
from hcloud.core.pricing import billed_until, dominant_share
from hcloud.report.grouping import JobFacts, number, text

_SETTLE_AT = 256
# What happened is written down at most so long after it happened, once its machine has been heard of again.
_LATENESS_S = 3600.0


@dataclass(slots=True, kw_only=True)
class UnitHold:
    """One unit's hold of a machine; ``share`` is its dominant share (0..1); ``ended_at`` None: still running."""

    job: JobFacts
    vcpus: float
    memory_mib: float
    share: float
    started_at: float
    ended_at: float | None = None


@dataclass(slots=True, kw_only=True)
class MachineHistory:
    """An instance as recorded in the log. ``prices`` are (since, USD/h), rising in time."""

    id: str
    provider: str
    zone: str
    type: str
    market: str
    vcpus: float
    memory_mib: float
    billing_minimum_s: float
    on_demand_usd_per_h: float
    priced_at: float
    prices: list[tuple[float, float]]
    launched_at: float | None = None
    ready_at: float | None = None
    ended_at: float | None = None
    settled_at: float = 0.0
    heard_at: float = 0.0
    holdings: list[UnitHold] = field(default_factory=list)
    settle_at_holdings: int = _SETTLE_AT

    @property
    def pool(self) -> str:
        """Return provider, zone and type in one text."""
        return f"{self.provider}/{self.zone}/{self.type}"

    @property
    def running(self) -> bool:
        """Whether a unit's end is not recorded yet."""
        return any(holding.ended_at is None for holding in self.holdings)

    def price_at(self, at: float) -> float:
        """Return the price in force at a moment, in USD per hour."""
        return self.prices[max(0, bisect_right(self.prices, (at, float("inf"))) - 1)][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A span of billed time in which nothing about a machine changed. ``booting``: it was not ready yet."""

    machine: MachineHistory
    since: float
    until: float
    price_usd_per_h: float
    holdings: tuple[UnitHold, ...]
    booting: bool

    @property
    def seconds(self) -> float:
        """Return its length."""
        return self.until - self.since


class FleetHistory:
    """Takes events in order and gives out stretches between ``since`` and ``until``, each once.

    ``machines`` are those not settled to their end yet; ``jobs`` those that have not finished.
    """

    def __init__(self, since: float, until: float) -> None:
        self.since = since
        self.until = until
        self.machines: dict[str, MachineHistory] = {}
        self.jobs: dict[str, JobFacts] = {}
        self.unknown_machines: set[str] = set()
        self.units: dict[str, tuple[MachineHistory, UnitHold]] = {}

    def take(self, event: Event) -> Iterator[Stretch]:
        """Take in one event; yields the stretches it settles."""
        handler = _HANDLERS.get(event.kind)
        if handler is None:
            return
        handler(self, event)
        machine = self.machines.get(event.instance_id or "")
        if machine is None:
            return
        machine.heard_at = max(machine.heard_at, event.at)
        if machine.ended_at is not None and not machine.running:
            del self.machines[machine.id]
            yield from self._settle(machine, self.until)
        elif len(machine.holdings) >= machine.settle_at_holdings:
            yield from self._settle(machine, machine.heard_at - _LATENESS_S)

    def finish(self) -> Iterator[Stretch]:
        """Yield what is left: machines that live, and stretches up to ``until``."""
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
        tags = event.fields.get("tags")
        self.jobs[event.job_id or ""] = JobFacts(
            id=event.job_id or "",
            name=text(event, "name"),
            user=event.user or "",
            tags={str(key): str(value) for key, value in tags.items()} if isinstance(tags, dict) else {},
        )

    def _finished(self, event: Event) -> None:
        self.jobs.pop(event.job_id or "", None)

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

    def _terminated(self, event: Event) -> None:
        machine = self._known(event)
        if machine is not None:
            machine.ended_at = max(number(event, "terminated_at", event.at), machine.launched_at or 0.0)

    def _started(self, event: Event) -> None:
        machine = self._known(event)
        if machine is None:
            return
        vcpus, memory_mib = number(event, "vcpus"), number(event, "memory_mib")
        holding = UnitHold(
            job=self.jobs.get(event.job_id or "") or JobFacts(id=event.job_id or "", user=event.user or ""),
            vcpus=vcpus,
            memory_mib=memory_mib,
            share=dominant_share(vcpus, memory_mib, machine.vcpus, machine.memory_mib),
            started_at=event.at,
        )
        machine.holdings.append(holding)
        self.units[unit_id(event)] = (machine, holding)

    def _ended(self, event: Event) -> None:
        _, holding = self.units.pop(unit_id(event), (None, None))
        if holding is not None:
            holding.ended_at = max(event.at, holding.started_at)

    def _resized(self, event: Event) -> None:
        if unit_id(event) in self.units:
            self._ended(event)
            self._started(event)

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
    EventKind.INSTANCE_TERMINATED: FleetHistory._terminated,
    EventKind.UNIT_STARTED: FleetHistory._started,
    EventKind.UNIT_RESIZED: FleetHistory._resized,
    EventKind.UNIT_ENDED: FleetHistory._ended,
}
FLEET_KINDS: frozenset[EventKind] = frozenset(_HANDLERS)
"""The events a FleetHistory needs."""


def unit_id(event: Event) -> str:
    """Return the unit of an event: attempt and rank."""
    return f"{event.fields.get('attempt')}.{event.fields.get('rank')}"


def _stretches(machine: MachineHistory, since: float, until: float) -> Iterator[Stretch]:
    """Cut ``since``..``until`` wherever the price, the readiness or the set of holdings changes."""
    if since >= until:
        return
    ready_at = until if machine.ready_at is None else machine.ready_at
    spans = [(max(h.started_at, since), _end_of(h, machine, until), h) for h in machine.holdings]
    starts: dict[float, list[UnitHold]] = defaultdict(list)
    ends: dict[float, list[UnitHold]] = defaultdict(list)
    for started_at, ended_at, holding in spans:
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


def _end_of(holding: UnitHold, machine: MachineHistory, until: float) -> float:
    """Return when a hold ended: with its machine at the latest, however late its end was reported."""
    return min(at for at in (until, holding.ended_at, machine.ended_at) if at is not None)
