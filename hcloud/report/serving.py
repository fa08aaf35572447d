"""How a service did: at how many looks it kept its latency, and for how much of its time it was there at all."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from hcloud.core.model import Event
from hcloud.report.grouping import number

_LATENCY = "latency_ms_p"


@dataclass(slots=True, kw_only=True)
class Serving:
    """One job, as far as its log was read; only what is later than ``since`` (Unix seconds) counts.

    ``latency_ms``: what it promised at the ``percentile``, None where it is no service. At ``kept`` of ``looks`` it
    kept that; it was down for ``down_s`` between its units, and is since ``down_since``: ``lost``, if its last unit did
    not end well and was not asked to end for good.
    """

    latency_ms: float | None = None
    percentile: float = 99.0
    since: float = -inf
    looks: int = 0
    kept: int = 0
    started_at: float | None = None
    units: int = 0
    down_since: float | None = None
    down_s: float = 0.0
    lost: bool = False

    def look(self, event: Event) -> None:
        """Count the looks a sample stands for, by the smallest measured percentile at or above the promised one."""
        if self.latency_ms is None or event.at < self.since:
            return
        measured = {
            float(key.removeprefix(_LATENCY)): number(event, key)
            for key in event.fields
            if key.startswith(_LATENCY) and key.removeprefix(_LATENCY).replace(".", "", 1).isdigit()
        }
        enough = [percentile for percentile in measured if percentile >= self.percentile]
        if enough:
            looks = int(number(event, "looks", 1.0))
            self.looks += looks
            self.kept += looks * (measured[min(enough)] <= self.latency_ms)

    def unit_started(self, at: float) -> None:
        """Count a running unit; the downtime ends."""
        self.units += 1
        self.started_at = at if self.started_at is None else self.started_at
        if self.down_since is not None:
            self.down_s += self._within(self.down_since, at)
            self.down_since = None

    def unit_ended(self, event: Event) -> None:
        """Count a unit that ended; without another one the service is down."""
        self.units -= 1
        if self.units <= 0:
            self.units, self.down_since, self.lost = 0, event.at, bool(event.fields.get("cause"))

    def share(self, until: float, *, over: bool) -> float | None:
        """Return the part (0..1) of its looks up to ``until`` that kept the promise; while it was down nothing did.
        None without samples.

        One that is ``over`` was there up to the end of its last unit, if that was meant to end; one that lost it was
        down from then on.
        """
        if not self.looks:
            return None
        down_s = self.down_s
        if self.down_since is not None and over and not self.lost:
            until = self.down_since
        elif self.down_since is not None:
            down_s += self._within(self.down_since, until)
        served_s = self._within(until if self.started_at is None else self.started_at, until)
        up = max(0.0, 1.0 - down_s / served_s) if served_s > 0.0 else 1.0
        return up * self.kept / self.looks

    def _within(self, began: float, ended: float) -> float:
        return max(0.0, ended - max(began, self.since))
