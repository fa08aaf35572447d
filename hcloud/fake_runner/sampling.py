"""When simulated workers sample their units, and which samples they report: all, or only those with news."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from hcloud.core.model import InstanceId, UnitId
from hcloud.fake_runner.unit import SimulatedUnit
from hcloud.provider import UnitReport

Gap = Callable[[float, float, bool, int], float]
"""Returns how long a worker skips samples, in seconds. Arguments: time since the unit began, time it has run evenly
(both in seconds), whether it is a service that misses its latency target, and the number of running units."""
UNEVEN = 0.05
"""A relative change of speed, request rate or latency above this counts as news, as it does for the daemon."""


@dataclass(slots=True)
class _LastReport:
    """The last report of a unit, and since when it has run evenly."""

    life: SimulatedUnit
    at: float
    report: UnitReport
    even: SimulatedUnit
    """The unit when it began to run evenly."""
    since: float
    """Since when it has run evenly."""
    next_at: float
    began_at: float = math.inf
    changed: bool = True
    """The next sample must be reported; its new speed is measured from there."""


@dataclass(slots=True)
class FakeSamplePolicy:
    """Chooses when workers sample their units, and which samples they report.

    A reported sample represents the skipped ones before it.
    """

    every_s: float
    """Sampling interval; each worker has its own phase."""
    gap: Gap | None = None
    """How long to skip samples; None: report all."""
    _of: dict[UnitId, _LastReport] = field(default_factory=dict)
    _changed_at: dict[UnitId, float] = field(default_factory=dict)
    _phases_s: dict[InstanceId, float] = field(default_factory=dict)

    def changed(self, unit: UnitId, at: float) -> None:
        """Record that a unit runs differently from ``at`` on."""
        if unit in self._of:
            self._changed_at.setdefault(unit, at)

    def forget(self, unit: UnitId) -> None:
        """Drop all state of a unit."""
        self._of.pop(unit, None)
        self._changed_at.pop(unit, None)

    def report(self, life: SimulatedUnit, instance_id: InstanceId, now: float) -> tuple[UnitReport, float]:
        """Return the report of a running unit, the same object while it is unchanged, and when it may change next."""
        unit, known = life.unit.id, self._of.get(life.unit.id)
        if known is None or known.life.unit.started_at != life.unit.started_at:
            at = self._last_sample_at(instance_id, now)
            known = _LastReport(life, at, life.report(now, at), life, at, at + self.every_s)
            self._of[unit] = known
        elif known.life is not life:
            self._go_on(known, life, instance_id, self._changed_at.pop(unit, now))
        elif known.next_at <= now:
            self._renew(known, self._last_sample_at(instance_id, now))
        return known.report, known.next_at

    def end(self, life: SimulatedUnit, instance_id: InstanceId, now: float) -> UnitReport:
        """Return the last report of an ended unit and drop its state.

        It contains a last sample, unless the exit record already contains all of its values.
        """
        known = self._of.get(life.unit.id)
        self.forget(life.unit.id)
        at = self._last_sample_at(instance_id, life.ends_at)
        has_more = life.work.latency_ms or life.unit.stop_at < math.inf
        if known is None or not has_more or at <= known.at or at < (life.unit.since_at or 0.0):
            return life.report(now, None)
        return life.report(now, at, self._looks(known, at))

    def _go_on(self, known: _LastReport, life: SimulatedUnit, instance_id: InstanceId, changed_at: float) -> None:
        """Report the last sample before a change, and the next one; insignificant changes are ignored."""
        before, known.life = known.life, life
        bounded = life.unit.spec is not before.unit.spec
        if not bounded and _goes_on(known.even, life):
            return
        at = self._last_sample_at(instance_id, changed_at)
        if at > known.at and known.report.sample is not None:
            known.life = before
            self._renew(known, at)
            known.life = life
        known.next_at = known.at + self.every_s
        known.even, known.changed = life, True
        if bounded:
            known.began_at = math.inf

    def _renew(self, known: _LastReport, at: float) -> None:
        known.at, known.report = at, known.life.report(at, at, self._looks(known, at))
        known.even, waits = known.life, 1
        if known.changed:
            known.began_at, known.since, known.changed = min(known.began_at, at), at, False
        if self.gap is not None:
            gap_s = self.gap(at - known.began_at, at - known.since, not known.life.keeps_promise(), len(self._of))
            waits = max(1, math.ceil(gap_s / self.every_s - 1e-9))
        known.next_at = at + waits * self.every_s

    def _looks(self, known: _LastReport, at: float) -> int:
        return max(1, round((at - known.at) / self.every_s)) if known.report.sample is not None else 1

    def _last_sample_at(self, instance_id: InstanceId, now: float) -> float:
        """Return when a worker sampled last."""
        phase_s = self._phase_s(instance_id)
        return math.floor((now - phase_s) / self.every_s) * self.every_s + phase_s

    def _phase_s(self, instance_id: InstanceId) -> float:
        found = self._phases_s.get(instance_id)
        if found is None:
            # A binary fraction makes sums exact, so that no sample seems to come too early.
            found = self._phases_s[instance_id] = zlib.crc32(instance_id.encode()) % 1024 / 1024 * self.every_s
        return found


def _goes_on(before: SimulatedUnit, now: SimulatedUnit) -> bool:
    """Return whether a unit runs as before, up to ``UNEVEN`` and without a change in meeting its target."""
    serves = bool(now.work.latency_ms)
    was, now_is = (before.serves(), now.serves()) if serves else ((before.unit.pace,), (now.unit.pace,))
    if any(abs(new - old) > UNEVEN * old for old, new in zip(was, now_is, strict=True)):
        return False
    return before.keeps_promise() is now.keeps_promise()
