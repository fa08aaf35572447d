"""Recent fleet history: growth of the queue, releases of reserved capacity, performance delivered by machines.

A plan is made from one snapshot and keeps no state. History that must last between plans (HCloud's soft limit follows
the queue, its expected wait follows releases of reserved capacity, broken machines are replaced) is collected here
from the event log and passed to the plan as :class:`FleetStats`. Losing it is harmless: all values then start from the
policy's defaults.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcloud.core.model import Event, EventKind, FailureCause, InstanceId, InstanceState, JobId, Market
from hcloud.core.quality import Observed, TypeQuality
from hcloud.forecast.reuse_times import Kind, ReuseTimes, ReuseTracker

_NOTHING_MEASURED = TypeQuality(by_key={})
_NOTHING_REUSED = ReuseTimes()
KEPT_S = 3600.0
"""History is kept for this long."""
SPOT_KEPT_S = 6 * 3600.0
"""That of spot machines is kept for so long; of the time before a daemon started, it reads ``KEPT_S``."""
READINGS_MINIMUM = 3
"""Number of performance readings needed to judge a machine."""
REFUSALS_MINIMUM = 2
"""A machine is broken if the units of this many jobs failed to start on it, and no unit ever started."""
PASSING_S = 10.0
"""Shorter waits do not count as queueing: cycles and launches take a moment."""
_RELEASES, _SAMPLES, _READINGS, _MACHINES, _BOOTS, _LIFETIMES = 256, 1024, 16, 400, 200, 1000
_CUT_SHORT = (FailureCause.PREEMPTED.value, FailureCause.INSTANCE_LOST.value)
_QUEUED, _NOT_FOR_ROOM = "queued", ("booting", "backoff_until", "secrets_unreadable")


class Release(NamedTuple):
    """A unit on a reserved machine ended and released ``vcpus``."""

    at: float
    vcpus: float


class SpotLifetime(NamedTuple):
    """A spot machine that was up for ``up_s`` until ``ended_at``, and whether its provider took it back."""

    ended_at: float
    provider: str
    region: str
    type: str
    up_s: float
    preempted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStats:
    """A summary of recent history; empty if nothing is known (new deployment, hypothetical snapshot)."""

    queue: tuple[tuple[float, int], ...] = ()
    """(time, number of jobs waiting for capacity without a machine on the way), ascending, one pair per change."""
    releases: tuple[Release, ...] = ()
    """Releases of reserved capacity, ascending by time."""
    broken: frozenset[InstanceId] = frozenset()
    """Live machines on which units of ``REFUSALS_MINIMUM`` jobs failed to start, and no unit ever started."""
    quality: TypeQuality = _NOTHING_MEASURED
    """Absolute performance delivered by instance types."""
    busy_s: tuple[float, ...] = ()
    """Run times of recently ended units, oldest first; without those that lost their machine."""
    busy_ended_at: tuple[float, ...] = ()
    """When each of these ended; empty: all of them were seen from their start."""
    busy_since: float = -inf
    """From when on all ends of units are known."""
    boots_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Recent boot times by provider, oldest first."""
    spot_lifetimes: tuple[SpotLifetime, ...] = ()
    """Spot machines that ended, oldest first."""
    reuse: ReuseTimes = _NOTHING_REUSED
    """How soon idle rented machines were needed again."""
    _released: list[NDArray[np.float64]] = field(default_factory=list, compare=False, repr=False)
    """The releases as an array, computed on first use."""

    def queue_growth(self, now: float, window_s: float) -> int:
        """Return by how many jobs the queue grew within ``window_s``; 0 if it shrank or nothing is known."""
        if not self.queue:
            return 0
        before = bisect_right(self.queue, now - window_s, key=lambda sample: sample[0])
        return max(0, self.queue[-1][1] - (self.queue[before - 1][1] if before else 0))

    def quiet_s(self, now: float) -> float:
        """Return for how long no job has waited; 0 while one does, or if nothing is known.

        Waits up to ``PASSING_S`` do not count.
        """
        until, ended = now, now
        for at, waiting in reversed(self.queue):
            if waiting > 0 and ended - at > PASSING_S:
                return max(0.0, now - ended)
            until, ended = at, ended if waiting > 0 else at
        return max(0.0, now - until)

    def release_interval_s(self, vcpus: float, quantile: float) -> float | None:
        """Return the ``quantile`` of the intervals between releases of at least ``vcpus`` at once (HCloud §8.4.2).

        Returns None if fewer than five such intervals were seen.
        """
        if not self._released:
            pairs = np.fromiter(chain.from_iterable(self.releases), np.float64, 2 * len(self.releases))
            self._released.append(pairs.reshape(-1, 2))
        released = self._released[0]
        intervals = np.diff(released[released[:, 1] >= vcpus - 1e-9, 0])
        if len(intervals) < 5:
            return None
        intervals.sort()
        return float(intervals[min(len(intervals) - 1, int(quantile * len(intervals)))])


NOTHING_RECENT = FleetStats()


@dataclass(slots=True)
class _MachineRecord:
    """A live machine, reconstructed from the event log."""

    provider: str
    region: str
    type: str
    market: str
    readings: deque[float] = field(default_factory=lambda: deque(maxlen=_READINGS))
    """Measured divided by predicted performance of its units."""
    refused: set[JobId] = field(default_factory=set)
    started: bool = False
    launched_at: float | None = None
    preempted: bool = False
    """Whether its provider has announced to take it back."""
    ratio: float | None = None
    """Median reading; None while there are too few."""
    observed: Observed | None = None
    """Its contribution to the quality of its type; None while there are too few readings."""

    @property
    def kind(self) -> Kind:
        """The key of comparable machines: provider and type."""
        return self.provider, self.type

    @property
    def is_rented(self) -> bool:
        """Whether it is paid for by the time that it is up."""
        return self.market != Market.RESERVED.value

    @property
    def is_broken(self) -> bool:
        """Whether it refused the units of too many jobs."""
        return len(self.refused) >= REFUSALS_MINIMUM and not self.started

    def read(self, reading: float) -> None:
        """Add a reading."""
        self.readings.append(reading)
        if len(self.readings) >= READINGS_MINIMUM:
            self.ratio = statistics.median(self.readings)
            self.observed = self.market, self.region, min(1.0, max(0.0, self.ratio))


@dataclass(slots=True)
class FleetTracker:
    """Follows the event log; can be rebuilt from the last hour of it and the requests of live machines.

    A type is only re-evaluated after new events about it.
    """

    _machines: dict[InstanceId, _MachineRecord] = field(default_factory=dict)
    _gone: deque[_MachineRecord] = field(default_factory=deque)
    _of_kind: dict[Kind, tuple[deque[_MachineRecord], dict[InstanceId, _MachineRecord]]] = field(default_factory=dict)
    """Per type, terminated machines (oldest first) and live ones."""
    _unjudged: set[Kind] = field(default_factory=set)
    _broken: frozenset[InstanceId] = frozenset()
    _quality: TypeQuality = _NOTHING_MEASURED
    _vcpus: dict[str, float] = field(default_factory=dict)
    _waiting: set[JobId] = field(default_factory=set)
    _queue: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    _releases: deque[Release] = field(default_factory=lambda: deque(maxlen=_RELEASES))
    _spot_lifetimes: deque[SpotLifetime] = field(default_factory=lambda: deque(maxlen=_LIFETIMES))
    _busy: deque[tuple[float, float]] = field(default_factory=deque)
    """When units ended, and their run times."""
    _busy_since: float | None = None
    _boots_s: dict[str, deque[float]] = field(default_factory=dict)
    _reuse: ReuseTracker = field(default_factory=ReuseTracker)
    _summary: FleetStats | None = None
    _parts: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Tuples used in summaries; the same objects until their content changes."""
    _released: list[NDArray[np.float64]] = field(default_factory=list)

    def follow(self, events: Iterable[Event]) -> None:
        """Process events in order, each once; irrelevant kinds are ignored."""
        for event in events:
            handler = _HANDLERS.get(event.kind)
            if handler is not None:
                self._busy_since = event.at if self._busy_since is None else self._busy_since
                handler(self, event)
                self._summary = None

    def recent(self, now: float) -> FleetStats:
        """Return the summary as of ``now``; the same object while nothing has changed."""
        while self._queue and self._queue[0][0] < now - KEPT_S and len(self._queue) > 1:
            self._queue.popleft()
            self._invalidate("queue")
        while self._releases and self._releases[0].at < now - KEPT_S:
            self._releases.popleft()
            self._invalidate("releases")
        while self._spot_lifetimes and self._spot_lifetimes[0].ended_at < now - SPOT_KEPT_S:
            self._spot_lifetimes.popleft()
            self._invalidate("spot")
        reuse = self._reuse.times(now)
        if self._summary is None or self._summary.reuse is not reuse:
            self._summary = self._summarise(reuse)
        return self._summary

    def _summarise(self, reuse: ReuseTimes) -> FleetStats:
        if self._unjudged:
            self._judge()
        if "releases" not in self._parts:
            self._released = []
        return FleetStats(
            queue=self._part("queue", self._queue),
            releases=self._part("releases", self._releases),
            broken=self._broken,
            quality=self._quality,
            busy_s=self._part("busy", [run_s for _, run_s in self._busy]),
            busy_ended_at=self._part("busy ended", [at for at, _ in self._busy]),
            busy_since=-inf if self._busy_since is None else self._busy_since,
            boots_s={provider: self._part(f"boots {provider}", each) for provider, each in self._boots_s.items()},
            spot_lifetimes=self._part("spot", self._spot_lifetimes),
            reuse=reuse,
            _released=self._released,
        )

    def _part(self, name: str, entries: Iterable[Any]) -> tuple[Any, ...]:
        part = self._parts.get(name)
        if part is None:
            part = self._parts[name] = tuple(entries)
        return part

    def _invalidate(self, name: str) -> None:
        self._parts.pop(name, None)
        self._summary = None

    def _judge(self) -> None:
        """Re-evaluate the types that changed; summaries returned earlier are not modified."""
        observed: dict[Kind, list[Observed]] = {}
        for kind in self._unjudged:
            gone, there = self._of_kind[kind]
            observed[kind] = [each.observed for each in (*gone, *there.values()) if each.observed is not None]
            if not gone and not there:
                del self._of_kind[kind]
        self._quality = self._quality.renewed(observed)
        self._unjudged.clear()

    # ------------------------------------------------------------------------------------------------- event handlers
    def _requested(self, event: Event) -> None:
        fields, name = event.fields, event.instance_id or ""
        self._forget(name)
        machine = self._machines[name] = _MachineRecord(
            provider=str(fields.get("provider", "")),
            region=str(fields.get("region", "")),
            type=str(fields.get("type", "")),
            market=str(fields.get("market", "on_demand")),
        )
        self._of_kind.setdefault(machine.kind, (deque(), {}))[1][name] = machine
        if machine.is_rented:
            self._reuse.requested(machine.kind, event.at)

    def _forget(self, name: InstanceId) -> _MachineRecord | None:
        machine = self._machines.pop(name, None)
        self._reuse.forget(name)
        if machine is not None:
            there = self._of_kind[machine.kind][1]
            del there[name]
            self._broken -= {name}
            if machine.ratio is not None or not there:
                self._unjudged.add(machine.kind)
        return machine

    def _launched(self, event: Event) -> None:
        machine = self._machines.get(event.instance_id or "")
        if machine is not None:
            machine.launched_at = _number(event, "launched_at")

    def _state(self, event: Event) -> None:
        machine = self._machines.get(event.instance_id or "")
        is_released = event.fields.get("to") == InstanceState.TERMINATING.value and event.fields.get("code") == "idle"
        if machine is not None and machine.is_rented and is_released:
            self._reuse.released(event.instance_id or "", machine.kind)

    def _notice(self, event: Event) -> None:
        machine = self._machines.get(event.instance_id or "")
        if machine is not None:
            machine.preempted = True

    def _ready(self, event: Event) -> None:
        machine = self._machines.get(event.instance_id or "")
        if machine is not None:
            seen_s = self._boots_s.setdefault(machine.provider, deque(maxlen=_BOOTS))
            seen_s.append(_number(event, "boot_s"))
            self._invalidate(f"boots {machine.provider}")

    def _terminated(self, event: Event) -> None:
        machine = self._forget(event.instance_id or "")
        if machine is None:
            return
        if machine.market == Market.SPOT.value and machine.launched_at is not None:
            ended_at = _number(event, "terminated_at") or event.at
            up_s = max(0.0, ended_at - machine.launched_at)
            preempted = machine.preempted or event.fields.get("code") == "preempted"
            lifetime = SpotLifetime(ended_at, machine.provider, machine.region, machine.type, up_s, preempted)
            self._spot_lifetimes.append(lifetime)
            self._invalidate("spot")
        if machine.ratio is None:
            return
        self._gone.append(machine)
        self._of_kind[machine.kind][0].append(machine)
        if len(self._gone) > _MACHINES:
            oldest = self._gone.popleft().kind
            self._of_kind[oldest][0].popleft()
            self._unjudged.add(oldest)

    def _unit_started(self, event: Event) -> None:
        self._vcpus[_unit(event)] = _number(event, "vcpus")
        machine = self._machines.get(event.instance_id or "")
        if machine is not None:
            machine.started = True
            self._broken -= {event.instance_id or ""}
            if machine.is_rented:
                self._reuse.unit_started(event.instance_id or "", machine.kind, _unit(event), event.at)

    def _unit_ended(self, event: Event) -> None:
        vcpus, machine = self._vcpus.pop(_unit(event), 0.0), self._machines.get(event.instance_id or "")
        started_at = _number(event, "started_at")
        if 0.0 < started_at <= event.at and event.fields.get("cause") not in _CUT_SHORT:
            self._busy.append((event.at, event.at - started_at))
            if len(self._busy) > _SAMPLES:
                self._busy_since = self._busy.popleft()[0]
            self._invalidate("busy")
            self._invalidate("busy ended")
        if machine is None:
            return
        self._reuse.unit_ended(event.instance_id or "", _unit(event), event.at)
        if event.fields.get("cause") == FailureCause.START_REFUSED.value:
            machine.refused.add(event.job_id or "")
            if machine.is_broken:
                self._broken |= {event.instance_id or ""}
        elif machine.market == Market.RESERVED.value and vcpus > 0:
            self._releases.append(Release(at=event.at, vcpus=vcpus))
            self._invalidate("releases")

    def _job_submitted(self, event: Event) -> None:
        if event.fields.get("array"):  # a task of an array is queued from the start
            self._count(event, waits=True)

    def _job_state(self, event: Event) -> None:
        # A job with a machine on the way, or in back-off, does not wait for capacity.
        fields = event.fields
        self._count(event, waits=fields.get("to") == _QUEUED and fields.get("code") not in _NOT_FOR_ROOM)

    def _job_finished(self, event: Event) -> None:
        self._count(event, waits=False)

    def _count(self, event: Event, *, waits: bool) -> None:
        """Record the queue length; at one moment only the last counts, because passing through is not waiting."""
        (self._waiting.add if waits else self._waiting.discard)(event.job_id or "")
        if self._queue and self._queue[-1][0] >= event.at:
            self._queue[-1] = (self._queue[-1][0], len(self._waiting))
            self._invalidate("queue")
        elif not self._queue or self._queue[-1][1] != len(self._waiting):
            self._queue.append((event.at, len(self._waiting)))
            self._invalidate("queue")

    def _measured(self, event: Event) -> None:
        """Record how a job ran alone on a machine. Runs slowed by co-located jobs say nothing about the machine."""
        machine = self._machines.get(event.instance_id or "")
        if event.fields.get("question", "run") != "run" or not event.fields.get("alone", True):
            return
        predicted, measured = _number(event, "predicted"), _number(event, "measured")
        if machine is not None and predicted > 0 and measured >= 0:
            machine.read(measured / predicted)
            if machine.ratio is not None:
                self._unjudged.add(machine.kind)


_HANDLERS = {
    EventKind.INSTANCE_REQUESTED: FleetTracker._requested,
    EventKind.INSTANCE_LAUNCHED: FleetTracker._launched,
    EventKind.INSTANCE_STATE: FleetTracker._state,
    EventKind.INSTANCE_NOTICE: FleetTracker._notice,
    EventKind.INSTANCE_READY: FleetTracker._ready,
    EventKind.INSTANCE_TERMINATED: FleetTracker._terminated,
    EventKind.UNIT_STARTED: FleetTracker._unit_started,
    EventKind.UNIT_ENDED: FleetTracker._unit_ended,
    EventKind.JOB_SUBMITTED: FleetTracker._job_submitted,
    EventKind.JOB_STATE: FleetTracker._job_state,
    EventKind.JOB_FINISHED: FleetTracker._job_finished,
    EventKind.PREDICTION: FleetTracker._measured,
}
RECENT_KINDS: tuple[EventKind, ...] = tuple(_HANDLERS)
"""Event kinds a :class:`FleetTracker` uses; all others may be omitted."""


def _unit(event: Event) -> str:
    return f"{event.fields.get('attempt')}.{event.fields.get('rank')}"


def _number(event: Event, key: str) -> float:
    value = event.fields.get(key)
    return float(value) if isinstance(value, (int, float)) else 0.0
