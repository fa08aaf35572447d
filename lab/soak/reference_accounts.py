"""A reference implementation of cost accounting, against which ledgers are checked.

It sums stretches of the log in the simplest way. ``hcloud.spend_ledger`` keeps running sums, which it might lose.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf

from hcloud.core.model import Event, EventKind

HOUR_S = 3600.0
NONE_ENDED: Mapping[str, float] = {}


@dataclass(slots=True)
class _MachineCost:
    vcpus: float
    memory_mib: float
    minimum_s: float
    prices: list[tuple[float, float]] = field(default_factory=list)
    """Price per hour from a time on; empty if it was never launched."""
    ended_at: float = inf

    def cost_usd(self, since: float, until: float) -> float:
        """Return the cost between two times, whether or not it is up."""
        ends = [at for at, _ in self.prices[1:]] + [inf]
        stretches = ((max(since, at), min(until, end), usd) for (at, usd), end in zip(self.prices, ends, strict=True))
        return sum(usd * max(0.0, to - at) / HOUR_S for at, to, usd in stretches)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Holding:
    user: str
    job_id: str
    instance_id: str
    machine: _MachineCost
    share: float
    started_at: float
    ended_at: float = inf

    def within(self, since: float, until: float) -> tuple[float, float]:
        """Return the part of a time range in which it is held."""
        return max(since, self.started_at), min(until, self.ended_at, self.machine.ended_at)


@dataclass(slots=True)
class ReferenceAccounts:
    """Follows the events of ``hcloud.spend_ledger.SPEND_KINDS``, each once and in order."""

    _machines: dict[str, _MachineCost] = field(default_factory=dict)
    _holdings: list[_Holding] = field(default_factory=list)
    _open: dict[str, int] = field(default_factory=dict)
    """Index in the holdings of each unit's current one."""

    def follow(self, events: Iterable[Event]) -> ReferenceAccounts:
        """Add events; return these accounts."""
        for event in events:
            handler = _HANDLERS.get(event.kind)
            if handler is not None:
                handler(self, event)
        return self

    def total_usd(self, since: float, until: float, ends_at: float) -> float:
        """Return the cost of all machines from ``since`` to ``until`` in a period that ends at ``ends_at``.

        A terminated machine costs at least the part of its billing minimum within the period, even if that lies in the
        future.
        """
        launched = [each for each in self._machines.values() if each.prices]
        total_usd = 0.0
        for each in launched:
            minimum_until = each.prices[0][0] + each.minimum_s
            billed_until = until if each.ended_at == inf else min(max(each.ended_at, minimum_until), ends_at)
            total_usd += each.cost_usd(since, billed_until)
        return total_usd

    def user_usd(self, since: float, until: float, gone: Mapping[str, float] = NONE_ENDED) -> Mapping[str, float]:
        """Return, by user, the cost of what units held between two times. ``gone``: end times that the log may not have
        yet."""
        usd: defaultdict[str, float] = defaultdict(float)
        for each, its_usd in self._parts(since, until, gone):
            usd[each.user] += its_usd
        return usd

    def job_usd(self, until: float) -> Mapping[str, float]:
        """Return, by job, the cost of what its units have held so far."""
        usd: defaultdict[str, float] = defaultdict(float)
        for each, its_usd in self._parts(-inf, until, NONE_ENDED):
            usd[each.job_id] += its_usd
        return usd

    def _parts(self, since: float, until: float, gone: Mapping[str, float]) -> Iterator[tuple[_Holding, float]]:
        """Yield the cost of each holding between two times, stretch by stretch; overcommitted machines are split by
        share."""
        machines: defaultdict[str, list[tuple[_Holding, float, float]]] = defaultdict(list)
        for each in self._holdings:
            began_at, ended_at = each.within(since, min(until, gone.get(each.instance_id, inf)))
            if began_at < ended_at:
                machines[each.instance_id].append((each, began_at, ended_at))
        for held in machines.values():
            for at, to in pairwise(sorted({moment for _, *times in held for moment in times})):
                present = [each for each, began_at, ended_at in held if began_at <= at and ended_at >= to]
                whole = max(1.0, sum(each.share for each in present))
                yield from ((each, each.share / whole * each.machine.cost_usd(at, to)) for each in present)

    # -------------------------------------------------------------------------------------------------------- handlers
    def _requested(self, event: Event) -> None:
        self._machines[event.instance_id or ""] = _MachineCost(
            vcpus=_number(event, "vcpus"),
            memory_mib=_number(event, "memory_mib"),
            minimum_s=_number(event, "billing_minimum_s"),
        )

    def _launched(self, event: Event) -> None:
        machine = self._machines[event.instance_id or ""]
        machine.prices = [(_number(event, "launched_at"), _number(event, "price_usd_per_h"))]

    def _price(self, event: Event) -> None:
        prices = self._machines[event.instance_id or ""].prices
        prices.append((max(event.at, prices[-1][0]), _number(event, "price_usd_per_h")))

    def _terminated(self, event: Event) -> None:
        self._machines[event.instance_id or ""].ended_at = min(event.at, _number(event, "terminated_at"))

    def _started(self, event: Event) -> None:
        machine = self._machines[event.instance_id or ""]
        parts = _number(event, "vcpus") / machine.vcpus, _number(event, "memory_mib") / machine.memory_mib
        self._open[_unit(event)] = len(self._holdings)
        self._holdings.append(
            _Holding(
                user=event.user or "",
                job_id=event.job_id or "",
                instance_id=event.instance_id or "",
                machine=machine,
                share=min(1.0, max(parts)),
                started_at=event.at,
            )
        )

    def _ended(self, event: Event) -> None:
        at = self._open.pop(_unit(event), None)
        if at is not None:
            self._holdings[at] = replace(self._holdings[at], ended_at=event.at)

    def _resized(self, event: Event) -> None:
        if _unit(event) in self._open:
            self._ended(event)
            self._started(event)


_HANDLERS = {
    EventKind.INSTANCE_REQUESTED: ReferenceAccounts._requested,
    EventKind.INSTANCE_LAUNCHED: ReferenceAccounts._launched,
    EventKind.INSTANCE_PRICE: ReferenceAccounts._price,
    EventKind.INSTANCE_TERMINATED: ReferenceAccounts._terminated,
    EventKind.UNIT_STARTED: ReferenceAccounts._started,
    EventKind.UNIT_RESIZED: ReferenceAccounts._resized,
    EventKind.UNIT_ENDED: ReferenceAccounts._ended,
}


def _unit(event: Event) -> str:
    return f"{event.fields['attempt']}.{event.fields['rank']}"


def _number(event: Event, name: str) -> float:
    value = event.fields[name]
    assert isinstance(value, (int, float)), f"{event.kind}: {name}={value!r} is not a number"
    return float(value)
