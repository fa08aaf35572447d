"""What simulated workers tell of their units, and when: a sample at each look, or only what does not just go on."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from hcloud.engine.fakeunit import Life
from hcloud.model import InstanceId, UnitId
from hcloud.provider import UnitReport

Gap = Callable[[float, float], float]
"""How long a worker keeps to itself what began so long ago and has gone on evenly for so long, all in seconds."""
UNEVEN = 0.03
"""A unit that has become faster or slower by more than this part of its speed does not go on evenly; a service never
does then: its latency may have changed by more."""
SEEN_CLOSELY = 2
"""After that so many looks in a row are told: from one to the next it is seen how fast it is now."""


@dataclass(slots=True)
class _Telling:
    """What was told last of a unit, and how it has gone on: evenly at ``speed`` since ``since``."""

    life: Life
    at: float
    report: UnitReport
    speed: float
    since: float
    next_at: float
    began_at: float = math.inf
    closely: int = SEEN_CLOSELY


@dataclass(slots=True)
class Tellings:
    """Chooses when workers look at their units (every ``every_s``, each worker at moments of its own) and what of that
    they tell: all, or with a ``gap`` only what is new. A sample stands for the looks before it that were not told.
    """

    every_s: float
    gap: Gap | None = None
    _of: dict[UnitId, _Telling] = field(default_factory=dict)
    _changed_at: dict[UnitId, float] = field(default_factory=dict)
    _phases_s: dict[InstanceId, float] = field(default_factory=dict)

    def changed(self, unit: UnitId, at: float) -> None:
        """Note that a unit goes on otherwise from ``at`` on."""
        if unit in self._of:
            self._changed_at.setdefault(unit, at)

    def forget(self, unit: UnitId) -> None:
        """Nothing more is told of a unit."""
        self._of.pop(unit, None)
        self._changed_at.pop(unit, None)

    def tell(self, life: Life, instance_id: InstanceId, now: float) -> tuple[UnitReport, float]:
        """Return what is told of a unit that runs, the same object while that is the same, and when it may be other."""
        unit, known = life.unit.id, self._of.get(life.unit.id)
        if known is None or known.life.unit.started_at != life.unit.started_at:
            at = self._look_at(instance_id, now)
            known = _Telling(life, at, life.report(now, at), life.unit.speed, at, at + self.every_s)
            self._of[unit] = known
        elif known.life is not life:
            self._go_on(known, life, instance_id, self._changed_at.pop(unit, now))
        elif known.next_at <= now:
            self._tell(known, self._look_at(instance_id, now))
        return known.report, known.next_at

    def _go_on(self, known: _Telling, life: Life, instance_id: InstanceId, changed_at: float) -> None:
        """Tell of the last look before a change; the next look is told as well. Whoever goes on evenly just does."""
        changed = abs(life.unit.speed - known.speed) > (0.0 if life.work.load else UNEVEN * known.speed)
        before, known.life = known.life, life
        if not changed and life.unit.spec is before.unit.spec:
            return
        at = self._look_at(instance_id, changed_at)
        if at > known.at and known.report.sample is not None:
            known.life = before
            self._tell(known, at)
            known.life = life
        known.next_at = known.at + self.every_s
        known.speed, known.since, known.closely = life.unit.speed, changed_at, SEEN_CLOSELY

    def _tell(self, known: _Telling, at: float) -> None:
        looks = max(1, round((at - known.at) / self.every_s)) if known.report.sample is not None else 1
        known.at, known.report = at, known.life.report(at, at, looks)
        known.began_at = min(known.began_at, at)
        known.closely = max(0, known.closely - 1)
        waits = 1
        if self.gap is not None and not known.closely:
            waits = max(1, math.ceil(self.gap(at - known.began_at, at - known.since) / self.every_s - 1e-9))
        known.next_at = at + waits * self.every_s

    def _look_at(self, instance_id: InstanceId, now: float) -> float:
        """Return when a worker looked last."""
        phase_s = self._phase_s(instance_id)
        return math.floor((now - phase_s) / self.every_s) * self.every_s + phase_s

    def _phase_s(self, instance_id: InstanceId) -> float:
        found = self._phases_s.get(instance_id)
        if found is None:
            # A binary fraction, so that sums of it are exact: a look is never taken for one that came too soon.
            found = self._phases_s[instance_id] = zlib.crc32(instance_id.encode()) % 1024 / 1024 * self.every_s
        return found
