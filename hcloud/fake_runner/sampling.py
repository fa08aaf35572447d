"""What simulated workers report of their units: a sample at each interval, or only samples with news."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from hcloud.core.model import InstanceId, UnitId
from hcloud.fake_runner.unit import SimulatedUnit
from hcloud.provider import UnitReport

Gap = Callable[[float, float, bool, int], float]
"""How long a worker keeps to itself what began so long ago and has gone on evenly for so long, all in seconds; whether
it is a service that is slower than it should be; and how many units run."""
UNEVEN = 0.05
"""A unit whose speed, rate of requests or latency has changed by more than this part of it does not go on evenly: what
the daemon takes for news as well."""


@dataclass(slots=True)
class _Telling:
    """What was last reported of a unit, and how it has gone on: evenly, as ``even`` did, since ``since``.

    ``changed``: the next sample is reported, and its new rate measured from there.
    """

    life: SimulatedUnit
    at: float
    report: UnitReport
    even: SimulatedUnit
    since: float
    next_at: float
    began_at: float = math.inf
    changed: bool = True


@dataclass(slots=True)
class FakeSamplePolicy:
    """Chooses when workers look at their units (every ``every_s``, each worker at moments of its own) and what of that
    they report: all, or with a ``gap`` only what is new. A sample stands for the unreported ones before it.
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
        """Report nothing more of a unit."""
        self._of.pop(unit, None)
        self._changed_at.pop(unit, None)

    def tell(self, life: SimulatedUnit, instance_id: InstanceId, now: float) -> tuple[UnitReport, float]:
        """Return the report of a running unit, the same object while it is unchanged, and when it may change."""
        unit, known = life.unit.id, self._of.get(life.unit.id)
        if known is None or known.life.unit.started_at != life.unit.started_at:
            at = self._look_at(instance_id, now)
            known = _Telling(life, at, life.report(now, at), life, at, at + self.every_s)
            self._of[unit] = known
        elif known.life is not life:
            self._go_on(known, life, instance_id, self._changed_at.pop(unit, now))
        elif known.next_at <= now:
            self._tell(known, self._look_at(instance_id, now))
        return known.report, known.next_at

    def end(self, life: SimulatedUnit, instance_id: InstanceId, now: float) -> UnitReport:
        """Return the report of a unit that has ended, and forget it: with its last sample, unless all it would
        say is in the end itself."""
        known = self._of.get(life.unit.id)
        self.forget(life.unit.id)
        at = self._look_at(instance_id, life.ends_at)
        says_more = life.work.latency_ms or life.unit.stop_at < math.inf
        if known is None or not says_more or at <= known.at or at < (life.unit.since_at or 0.0):
            return life.report(now, None)
        return life.report(now, at, self._looks(known, at))

    def _go_on(self, known: _Telling, life: SimulatedUnit, instance_id: InstanceId, changed_at: float) -> None:
        """Report the last sample before a change, and the next one."""
        before, known.life = known.life, life
        bounded = life.unit.spec is not before.unit.spec
        if not bounded and _goes_on(known.even, life):
            return
        at = self._look_at(instance_id, changed_at)
        if at > known.at and known.report.sample is not None:
            known.life = before
            self._tell(known, at)
            known.life = life
        known.next_at = known.at + self.every_s
        known.even, known.changed = life, True
        if bounded:
            known.began_at = math.inf

    def _tell(self, known: _Telling, at: float) -> None:
        known.at, known.report = at, known.life.report(at, at, self._looks(known, at))
        known.even, waits = known.life, 1
        if known.changed:
            known.began_at, known.since, known.changed = min(known.began_at, at), at, False
        if self.gap is not None:
            gap_s = self.gap(at - known.began_at, at - known.since, not known.life.keeps_promise(), len(self._of))
            waits = max(1, math.ceil(gap_s / self.every_s - 1e-9))
        known.next_at = at + waits * self.every_s

    def _looks(self, known: _Telling, at: float) -> int:
        return max(1, round((at - known.at) / self.every_s)) if known.report.sample is not None else 1

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


def _goes_on(before: SimulatedUnit, now: SimulatedUnit) -> bool:
    """Whether a unit does as it did, but for little that keeps or breaks no promise."""
    serves = bool(now.work.latency_ms)
    was, now_is = (before.serves(), now.serves()) if serves else ((before.unit.speed,), (now.unit.speed,))
    if any(abs(new - old) > UNEVEN * old for old, new in zip(was, now_is, strict=True)):
        return False
    return before.keeps_promise() is now.keeps_promise()
