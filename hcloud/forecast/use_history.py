"""How busy live machines were over the last day: CPU time of their units in slots of time, from the event log."""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from hcloud.core.model import Event, EventKind, Instance, InstanceId, Job

SLOT_S: Final = 600.0
SLOTS: Final = 144
"""Slots that are kept of each machine: a day."""
SILENT_S: Final = 600.0
"""A unit is taken to go on as it did for so long after its last sample; samples are at most half as far apart."""
USE_KINDS: Final = (EventKind.UNIT_STARTED, EventKind.SAMPLE, EventKind.UNIT_ENDED)
"""Event kinds from which earlier use is read back."""
_LARGEST: Final = 1e12
"""Times and CPU seconds beyond this are none."""
_UnitKey = tuple[object, object]
"""Attempt and rank."""


@dataclass(slots=True)
class _Reading:
    """The last reading of a unit's CPU time."""

    at: float
    cpu_s: float
    cpus: float = 0.0
    """vCPUs kept busy between the last two readings."""


@dataclass(slots=True)
class _MachineSlots:
    """CPU time on one machine, by slot modulo SLOTS."""

    newest: int = 0
    """Number of the newest slot; slot n begins at ``n * SLOT_S``."""
    cpu_s: array[float] = field(default_factory=lambda: array("f", bytes(4 * SLOTS)))
    units: dict[_UnitKey, _Reading] = field(default_factory=dict)
    """Units that run, by their last reading."""
    joined: dict[_UnitKey, _Reading] = field(default_factory=dict)
    """The first reading of each unit that had started before it was followed."""

    def add(self, since: float, until: float, cpus: float) -> None:
        """Add what was used between two times; slots that are too old are left out."""
        last = int(until // SLOT_S)
        self._turn_to(last)
        for slot in range(max(int(since // SLOT_S), self.newest - SLOTS + 1), last + 1):
            part_s = min(until, (slot + 1) * SLOT_S) - max(since, slot * SLOT_S)
            self.cpu_s[slot % SLOTS] += cpus * max(0.0, part_s)

    def _turn_to(self, slot: int) -> None:
        if slot > self.newest:
            for each in range(max(self.newest + 1, slot - SLOTS + 1), slot + 1):
                self.cpu_s[each % SLOTS] = 0.0
            self.newest = slot

    def take(self, event: Event, units: dict[_UnitKey, _Reading]) -> None:
        """Take in an event of a unit; ``units``: the last reading of each."""
        key = (event.fields.get("attempt"), event.fields.get("rank"))
        if not 0.0 <= event.at <= _LARGEST:
            return
        if event.kind is EventKind.UNIT_STARTED:
            units[key] = _Reading(event.at, 0.0)
            return
        value, before = event.fields.get("cpu_s"), units.get(key)
        if isinstance(value, int | float) and 0.0 <= value <= _LARGEST:
            reading = _Reading(event.at, float(value))
            if before is not None:
                self.between(before, reading)
            elif units is self.units:
                self.joined[key] = reading
            units[key] = reading
        if event.kind is EventKind.UNIT_ENDED and units.pop(key, None) is None:
            self.joined[key] = _Reading(event.at, -1.0)  # not measured: it only is no more

    def between(self, before: _Reading, reading: _Reading) -> None:
        """Add what was used between two readings of a unit, evenly."""
        if reading.at > before.at and reading.cpu_s >= before.cpu_s:
            reading.cpus = (reading.cpu_s - before.cpu_s) / (reading.at - before.at)
            self.add(before.at, reading.at, reading.cpus)


class UseHistory:
    """Follows the event log, a ``hcloud.controller.EventFollower``. Any thread may call.

    What happened before it followed can be read back once, in order, with :meth:`read_back` and :meth:`join`.
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self._lock = threading.Lock()
        self._machines: dict[InstanceId, _MachineSlots] = {}
        self._earlier: dict[InstanceId, dict[_UnitKey, _Reading]] = {}
        self.begun_seq: int | None = None
        """Number of the last event before those that are followed; None: none are."""
        self.known_since = math.inf
        """The use of live machines is known from then on (Unix seconds)."""

    def begin(self, jobs: Iterable[Job], instances: Iterable[Instance], seq: int) -> None:
        """Start anew: events after ``seq`` follow."""
        del jobs
        with self._lock:
            self._machines = {each.id: _MachineSlots() for each in instances}
            self._earlier, self.begun_seq, self.known_since = {}, seq, math.inf

    def follow(self, events: Sequence[Event]) -> None:
        """Take in the next events, in order, each once."""
        if not events:
            return
        with self._lock:
            self.known_since = min(self.known_since, events[0].at)
            for event in events:
                self._follow_one(event)

    def _follow_one(self, event: Event) -> None:
        name = event.instance_id or ""
        if event.kind is EventKind.INSTANCE_REQUESTED:
            self._machines[name] = _MachineSlots()
        elif event.kind is EventKind.INSTANCE_TERMINATED:
            self._machines.pop(name, None)
        elif event.kind in USE_KINDS and (machine := self._machines.get(name)) is not None:
            machine.take(event, machine.units)

    def read_back(self, events: Iterable[Event], begun_seq: int) -> None:
        """Take in earlier events of :data:`USE_KINDS`, in order; :meth:`join` must follow the last ones.

        Nothing is taken in if it has begun anew since ``begun_seq`` was read.
        """
        with self._lock:
            for event in events if begun_seq == self.begun_seq else ():
                name = event.instance_id or ""
                if (machine := self._machines.get(name)) is not None:
                    machine.take(event, self._earlier.setdefault(name, {}))

    def join(self, since: float, begun_seq: int) -> None:
        """Say that all events since ``since`` were read back: what was read and what is followed become one."""
        with self._lock:
            if begun_seq != self.begun_seq:
                return
            for name, units in self._earlier.items():
                if (machine := self._machines.get(name)) is None:
                    continue
                for key, reading in units.items():
                    if key in machine.joined:
                        machine.between(reading, machine.joined[key])
                    elif key not in machine.units:
                        machine.units[key] = reading
            self._earlier = {}
            self.known_since = min(self.known_since, since)

    def cpu_s(self, instance_id: InstanceId, now: float) -> list[float]:
        """Return the seconds of CPU time of a machine's units in each slot, the last one that of ``now``."""
        newest = int(now // SLOT_S)
        found = [0.0] * SLOTS
        with self._lock:
            machine = self._machines.get(instance_id)
            if machine is None:
                return found
            shown = _MachineSlots(machine.newest, machine.cpu_s[:])
            for each in machine.units.values():
                if each.cpus:
                    shown.add(each.at, min(now, each.at + SILENT_S), each.cpus)
        for at in range(SLOTS):
            slot = newest - SLOTS + 1 + at
            if shown.newest - SLOTS < slot <= shown.newest:
                found[at] = shown.cpu_s[slot % SLOTS]
        return found
