"""What running jobs have lately been measured to do, by rank: what is needed to see whether they keep their target.

Followed from the event log and handed to the plan, as all that lasts between plans. It may be lost without harm: it
is rebuilt from the last quarter of an hour of samples.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from types import MappingProxyType

from hcloud.model import AttemptId, Event, EventKind, JobId

KEPT = 48
"""Samples kept of each rank."""
WINDOW = 2
"""The last so many times as many readings count as are needed at least: what was before is another phase."""
WATCHED_S = 900.0
"""A new book is filled from samples this old."""
STALLED_GAPS = 3.0
"""A counter that has not moved for so many times the longest time it ever took to move stands still."""
_LATENCY = "latency_ms_p"
Counter = str
"""What of a sample is counted: progress, cpu_s, written_mib (totals), or requests_per_s (a rate)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """One sample of one rank: totals since its start, its rate of requests, and latency by percentile (0..100)."""

    at: float
    values: Mapping[Counter, float]
    latency_ms: Mapping[float, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The last samples of each rank of a job's attempt, oldest first."""

    attempt: AttemptId
    ranks: Mapping[int, tuple[Sampled, ...]]
    _paces: dict[tuple[int, Counter, float, int], Pace | None] = field(default_factory=dict, compare=False, repr=False)
    _calm: dict[str, tuple[tuple[object, ...], float]] = field(default_factory=dict, compare=False, repr=False)

    def pace(self, rank: int, counter: Counter, since: float, readings: int) -> Pace | None:
        """Return :func:`pace_of_counter` of a rank; worked out once, however many plans ask before the next sample."""
        key = (rank, counter, since, readings)
        if key not in self._paces:
            self._paces[key] = pace_of_counter(self.ranks[rank], counter, since, readings)
        return self._paces[key]

    def calm_at(self, now: float) -> bool:
        """Return whether some earlier plan found that nothing is to be done before ``now`` passes its time."""
        return bool(self._calm) and now < self._calm[""][1]

    def calm(self, facts: tuple[object, ...]) -> bool:
        """Return whether it found that from the very same ``facts``."""
        known = self._calm[""][0]
        return len(known) == len(facts) and all(map(is_, known, facts))

    def calm_until(self, facts: tuple[object, ...], until: float) -> None:
        """Remember that these samples and ``facts`` call for nothing before ``until``, so that nobody asks again."""
        self._calm[""] = (facts, until)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Performance over a while: the mean, its standard error, from how many readings; ``history``: all readings there
    are, also of before."""

    mean: float
    error: float
    count: int
    history: Sequence[float]
    readings: int

    @property
    def best(self) -> float:
        """The best mean over as many readings as are needed, at any time; 0: there never were so many."""
        starts = range(len(self.history) - self.readings + 1)
        return max((math.fsum(self.history[at : at + self.readings]) / self.readings for at in starts), default=0.0)

    def at_most(self, deviations: float) -> float:
        """Return what it surely does not exceed: the mean and so many standard errors."""
        return self.mean + deviations * self.error

    def at_least(self, deviations: float) -> float:
        """Return what it surely reaches."""
        return self.mean - deviations * self.error


def pace_of_counter(samples: Sequence[Sampled], counter: Counter, since: float, readings: int) -> Pace | None:
    """Return the pace per second of a total in the samples after ``since``; None: fewer than ``readings`` tell of it.

    A reading is the pace between two samples in which the total moved: a program that writes its progress down once an
    epoch is not taken for one that stands still in between.
    """
    rates: list[float] = []
    fresh, longest_s = 0, 0.0
    at, total, last_at = -math.inf, -math.inf, 0.0
    for each in samples:
        value = each.values.get(counter)
        if value is None:
            continue
        last_at = each.at
        if value > total:
            gap_s = each.at - at
            if 0.0 < gap_s < math.inf:
                rates.append((value - total) / gap_s)
                longest_s = max(longest_s, gap_s)
                fresh += at >= since
            at, total = each.at, value
    if len(rates) >= readings and last_at - max(at, since) > STALLED_GAPS * longest_s:
        return Pace(mean=0.0, error=0.0, count=fresh, history=rates, readings=readings)
    return _pace(rates[len(rates) - fresh :], rates, readings)


def pace_of_rate(values: Sequence[tuple[float, float]], since: float, readings: int) -> Pace | None:
    """Return the mean of ``values`` (pairs of time and rate) after ``since``; None: fewer than ``readings``."""
    return _pace([value for at, value in values if at > since], [value for _, value in values], readings)


def _pace(own: Sequence[float], history: Sequence[float], readings: int) -> Pace | None:
    if len(own) < readings:
        return None
    lately = own[-WINDOW * readings :]
    count = len(lately)
    mean = math.fsum(lately) / count
    error = math.sqrt(math.fsum((each - mean) ** 2 for each in lately) / (count - 1) / count)
    return Pace(mean=mean, error=error, count=count, history=history, readings=readings)


@dataclass(slots=True)
class WatchBook:
    """Follows samples of live jobs."""

    _jobs: dict[JobId, Watched] = field(default_factory=dict)
    _samples: dict[JobId, dict[int, deque[Sampled]]] = field(default_factory=dict)

    def follow(self, events: Iterable[Event]) -> None:
        """Take in events in order, each once."""
        for event in events:
            if event.kind is EventKind.SAMPLE:
                self._sampled(event)
            elif event.kind is EventKind.JOB_FINISHED:
                self._jobs.pop(event.job_id or "", None)
                self._samples.pop(event.job_id or "", None)

    def watched(self) -> Mapping[JobId, Watched]:
        """Return what is known of jobs that were sampled."""
        return MappingProxyType(dict(self._jobs))

    def _sampled(self, event: Event) -> None:
        job_id, attempt = event.job_id or "", str(event.fields.get("attempt", ""))
        before = self._jobs.get(job_id)
        if before is None or before.attempt != attempt:
            self._samples[job_id], before = {}, None
        rank = int(_number(event.fields.get("rank")) or 0)
        kept = self._samples[job_id].setdefault(rank, deque(maxlen=KEPT))
        sample = _sample(event)
        if any(
            sample.values.get(name, 0.0) < total
            for name, total in (kept[-1].values.items() if kept else ())
            if name != "requests_per_s"
        ):
            kept.clear()  # it began anew
        kept.append(sample)
        ranks = {**(before.ranks if before is not None else {}), rank: tuple(kept)}
        self._jobs[job_id] = Watched(attempt=attempt, ranks=ranks)


WATCH_KINDS: tuple[EventKind, ...] = (EventKind.SAMPLE, EventKind.JOB_FINISHED)
"""The events a :class:`WatchBook` needs; all others may be left out."""


def _sample(event: Event) -> Sampled:
    counters = ("progress", "cpu_s", "written_mib", "requests_per_s")
    values = {name: value for name in counters if (value := _number(event.fields.get(name))) is not None}
    latency = {
        float(name.removeprefix(_LATENCY)): ms
        for name, value in event.fields.items()
        if name.startswith(_LATENCY) and (ms := _number(value)) is not None
    }
    return Sampled(at=event.at, values=values, latency_ms=latency)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
