"""How well a service met its latency target: the share of samples within the target, and its downtime."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from hcloud.core.model import Event
from hcloud.report.grouping import number

_LATENCY = "latency_ms_p"


@dataclass(slots=True, kw_only=True)
class Serving:
    """Latency samples and downtime of one job, as far as its log has been read."""

    latency_ms: float | None = None
    """Target latency at ``percentile``; None if the job is not a service."""
    percentile: float = 99.0
    since: float = -inf
    """Start of the period (Unix seconds); earlier samples and downtime do not count."""
    samples: int = 0
    met: int = 0
    """Number of samples within the target."""
    started_at: float | None = None
    """Start of the first unit, Unix seconds."""
    units: int = 0
    """Number of running units."""
    down_since: float | None = None
    """Since when no unit is running, if any ran before."""
    down_s: float = 0.0
    """Downtime between units, without the one since ``down_since``."""
    lost: bool = False
    """Whether the last unit failed or was lost, and was not stopped on purpose."""

    def count_sample(self, event: Event) -> None:
        """Count a sample event by its smallest percentile at or above the target's; one event may hold many samples."""
        if self.latency_ms is None or event.at < self.since:
            return
        measured = {
            float(key.removeprefix(_LATENCY)): number(event, key)
            for key in event.fields
            if key.startswith(_LATENCY) and key.removeprefix(_LATENCY).replace(".", "", 1).isdigit()
        }
        enough = [percentile for percentile in measured if percentile >= self.percentile]
        if enough:
            samples = int(number(event, "looks", 1.0))
            self.samples += samples
            self.met += samples * (measured[min(enough)] <= self.latency_ms)

    def unit_started(self, at: float) -> None:
        """Record the start of a unit; downtime ends."""
        self.units += 1
        self.started_at = at if self.started_at is None else self.started_at
        if self.down_since is not None:
            self.down_s += self._within(self.down_since, at)
            self.down_since = None

    def unit_ended(self, event: Event) -> None:
        """Record the end of a unit; the service is down if it was the last one."""
        self.units -= 1
        if self.units <= 0:
            self.units, self.down_since, self.lost = 0, event.at, bool(event.fields.get("cause"))

    def share(self, until: float, *, over: bool) -> float | None:
        """Return the share (0..1) of samples within the target, times the share of uptime up to ``until``.

        Returns None without samples. ``over``: the job has ended. Time after its last unit is then downtime only if
        that unit was lost.
        """
        if not self.samples:
            return None
        down_s = self.down_s
        if self.down_since is not None and over and not self.lost:
            until = self.down_since
        elif self.down_since is not None:
            down_s += self._within(self.down_since, until)
        served_s = self._within(until if self.started_at is None else self.started_at, until)
        up = max(0.0, 1.0 - down_s / served_s) if served_s > 0.0 else 1.0
        return up * self.met / self.samples

    def _within(self, began: float, ended: float) -> float:
        return max(0.0, ended - max(began, self.since))
