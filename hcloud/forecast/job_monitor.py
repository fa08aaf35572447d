"""Recent samples of running jobs, by rank: what is needed to see whether they meet their target.

Collected from the event log and passed to the plan. Losing it is harmless: it is rebuilt from the last quarter of an
hour of samples.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

from hcloud.core.cpu_window import share_taken
from hcloud.core.model import AttemptId, Event, EventKind, JobId

KEPT = 48
"""Number of latest samples kept of each rank."""
SPARSER = 1.25
"""Older samples are kept when their age since the first has grown by this factor: about 40 cover a day."""
WINDOW = 2
"""The last ``WINDOW`` times the needed readings count; older ones belong to another phase of the job."""
WATCHED_S = 900.0
"""A new monitor is filled from samples of this age."""
KEPT_JOURNAL = 4096
"""Entries kept in the journal before it is restarted; readers that fall behind must read everything once."""
STALLED_GAPS = 3.0
"""A counter has stalled once it has not moved for this many times the longest gap it ever had."""
_LATENCY = "latency_ms_p"
_COUNTERS = ("progress", "cpu_s", "taken_s", "written_mib", "requests_per_s")


class Timed(NamedTuple):
    """A value at a time."""

    at: float
    value: float
    looks: int = 1
    """Number of polls it represents: its own and earlier ones with the same value."""


Reading = tuple[float, int]
"""A pace or rate, and the number of polls it represents."""
Counter = str
"""A counter of a sample: progress, cpu_s, taken_s, written_mib (totals), or requests_per_s (a rate)."""


_NO_LATENCY: Mapping[float, float] = MappingProxyType({})


class Sampled(NamedTuple):
    """One sample of one rank."""

    at: float
    values: Mapping[Counter, float]
    """Totals since the rank's start, and its request rate."""
    latency_ms: Mapping[float, float] = _NO_LATENCY
    """Latency by percentile (0..100)."""
    looks: int = 1
    """Number of polls with these values, this one included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSamples:
    """Samples of each rank of a job's attempt."""

    attempt: AttemptId
    ranks: Mapping[int, tuple[Sampled, ...]]
    """The latest samples, oldest first."""
    earlier: Mapping[int, tuple[Sampled, ...]] = field(default_factory=dict)
    """A thinned history of the samples before them."""
    _paces: dict[tuple[int, Counter, float, int], Pace | None] = field(default_factory=dict, compare=False, repr=False)
    _moves: dict[tuple[int, Counter], _Moves] = field(default_factory=dict, compare=False, repr=False)
    _kept: dict[tuple[int, float, float], Sequence[Timed]] = field(default_factory=dict, compare=False, repr=False)

    def pace(self, rank: int, counter: Counter, since: float, readings: int) -> Pace | None:
        """Return :func:`pace_of_counter` of a rank; cached until the next sample."""
        key = (rank, counter, since, readings)
        if key not in self._paces:
            self._paces[key] = self._moves_of(rank, counter).pace(since, readings)
        return self._paces[key]

    def _moves_of(self, rank: int, counter: Counter) -> _Moves:
        moves = self._moves.get((rank, counter))
        if moves is None:
            moves = self._moves[rank, counter] = _moves_in(self.ranks[rank], counter)
        return moves

    def before_and_now(self, rank: int, counter: Counter, since: float, readings: int) -> tuple[Pace, Pace] | None:
        """Return the paces of a counter after ``since``: of the readings before the last ``WINDOW`` times ``readings``
        polls, and of those; None with too few."""
        return self._moves_of(rank, counter).before_and_now(since, readings)

    def latency_kept(self, rank: int, percentile: float, promised_ms: float) -> Sequence[Timed]:
        """Return :func:`latency_kept` of a rank; updated incrementally with each sample."""
        key = (rank, percentile, promised_ms)
        if key not in self._kept:
            self._kept[key] = latency_kept(self.ranks[rank], percentile, promised_ms)
        return self._kept[key]

    def next(self, rank: int, samples: tuple[Sampled, ...], gone: Sampled | None) -> JobSamples:
        """Return a copy with one more sample of a rank.

        ``samples``: all samples of the rank now; ``gone``: the one dropped, if any.
        """
        moves = {
            key: each.after(gone, samples, key[1]) if key[0] == rank else each for key, each in self._moves.items()
        }
        kept = {
            key: _kept_after(each, gone, samples[-1], key) if key[0] == rank else each
            for key, each in self._kept.items()
        }
        earlier = self.earlier
        if gone is not None:
            earlier = {**earlier, rank: _with_earlier(earlier.get(rank, ()), gone)}
        ranks = {**self.ranks, rank: samples}
        return JobSamples(attempt=self.attempt, ranks=ranks, earlier=earlier, _moves=moves, _kept=kept)

    def taken(self, rank: int, since: float, readings: int) -> float:
        """Return the share (0..1) of a rank's CPU time that the host took in the last ``WINDOW`` times ``readings``
        polls after ``since``."""
        samples, polls = self.ranks[rank], 0
        last = first = samples[-1]
        if not last.values.get("taken_s"):  # the host took nothing since the start
            return 0.0
        for each in reversed(samples[:-1]):
            if polls >= WINDOW * readings or first.at <= since:
                break
            polls, first = polls + first.looks, each
        taken_s, cpu_s = (last.values.get(name, 0.0) - first.values.get(name, 0.0) for name in ("taken_s", "cpu_s"))
        return share_taken(taken_s, cpu_s)

    def history(self, rank: int) -> tuple[Sampled, ...]:
        """Return all samples kept of a rank, thinned with age."""
        return (*self.earlier.get(rank, ()), *self.ranks.get(rank, ()))


class Pace(NamedTuple):
    """Performance over a period."""

    mean: float
    error: float
    """Standard error of the mean."""
    counted: int
    """Number of polls used."""
    history: Sequence[Reading]
    """All readings available, including earlier ones."""
    readings: int
    """Number of polls needed."""

    @property
    def best(self) -> float:
        """The highest mean over ``readings`` polls at any time; 0 if there never were that many."""
        most = max(2, self.readings)  # a reading stands for at least one look
        lasts = [self.history[max(0, end - most) : end] for end in range(1, len(self.history) + 1)]
        means = (_mean(_last(each, self.readings)) for each in lasts)
        return max((mean for mean, looks in means if looks >= self.readings), default=0.0)

    def at_most(self, deviations: float) -> float:
        """Return the upper bound: the mean plus that many standard errors."""
        return self.mean + deviations * self.error

    def at_least(self, deviations: float) -> float:
        """Return the lower bound: the mean minus that many standard errors."""
        return self.mean - deviations * self.error


def latency_kept(samples: Sequence[Sampled], percentile: float, promised_ms: float) -> list[Timed]:
    """Return promised over measured latency over time (1: just met), at the least percentile from the given on."""
    tails = [(each, tail_ms(each.latency_ms, percentile)) for each in samples]
    return [Timed(each.at, promised_ms / tail, each.looks) for each, tail in tails if tail is not None]


def tail_ms(latency_ms: Mapping[float, float], percentile: float) -> float | None:
    """Return the latency at the least known percentile from the given on; None: none is known."""
    enough = [each for each, ms in latency_ms.items() if each >= percentile and ms > 0]
    return latency_ms[min(enough)] if enough else None


def _kept_after(
    before: Sequence[Timed], gone: Sampled | None, added: Sampled, key: tuple[int, float, float]
) -> Sequence[Timed]:
    """Return ``before`` with one more sample, and without the one that was dropped."""
    drop = gone is not None and bool(before) and before[0][0] == gone.at
    return [*before[drop:], *latency_kept((added,), *key[1:])]


def pace_of_counter(samples: Sequence[Sampled], counter: Counter, since: float, readings: int) -> Pace | None:
    """Return the pace per second of a total in the samples after ``since``; None with fewer than ``readings`` polls.

    A reading is the pace between two samples in which the total moved, so a program that reports progress once per
    epoch does not count as stalled in between.
    """
    return _moves_in(samples, counter).pace(since, readings)


@dataclass(slots=True)
class _Moves:
    """Where a total moved in a rank's samples."""

    starts: list[float]
    """Start time of each reading."""
    rates: list[Reading]
    """Rate of each reading, and the polls it represents."""
    stood_s: list[float]
    """How long the total stood still before each move."""
    at: float = -math.inf
    """Time of the last move."""
    total: float = -math.inf
    """Total at the last move."""
    last_at: float = 0.0
    """Time of the last sample that has the total."""

    def take(self, at: float, total: float, looks: int) -> None:
        """Add the next sample."""
        before_at, self.last_at = max(self.last_at, self.at), at
        if total > self.total:
            gap_s = at - self.at
            if 0.0 < gap_s < math.inf:
                self.starts.append(self.at)
                self.rates.append(((total - self.total) / gap_s, looks))
                self.stood_s.append(before_at - self.at + (at - before_at) / looks)
            self.at, self.total = at, total

    def after(self, gone: Sampled | None, samples: Sequence[Sampled], counter: Counter) -> _Moves:
        """Return the moves with the last of ``samples`` added, and without the dropped sample ``gone``."""
        if gone is not None and gone.values.get(counter) is not None:
            # The rest begins at the second sample; if the total did not move there, the first reading changes.
            second = samples[0].values.get(counter)
            if second is None or len(self.starts) < 2 or (self.starts[0], self.starts[1]) != (gone.at, samples[0].at):
                return _moves_in(samples, counter)
        drop = gone is not None and gone.values.get(counter) is not None
        moves = _Moves(self.starts[drop:], self.rates[drop:], self.stood_s[drop:], self.at, self.total)
        moves.last_at, added = self.last_at, samples[-1]
        if (total := added.values.get(counter)) is not None:
            moves.take(added.at, total, added.looks)
        return moves

    def pace(self, since: float, readings: int) -> Pace | None:
        """Return the pace of the readings that began after ``since``."""
        rates = self.rates
        before = bisect_left(self.starts, since)  # starts are ascending
        stalled_s = self.last_at - max(self.at, since)
        if stalled_s > 0.0 and _looks(rates) >= readings and stalled_s > STALLED_GAPS * max(self.stood_s, default=0.0):
            return Pace(mean=0.0, error=0.0, counted=_looks(rates[before:]), history=rates, readings=readings)
        return _pace_of(_last(rates[before:], WINDOW * readings), rates, readings)

    def before_and_now(self, since: float, readings: int) -> tuple[Pace, Pace] | None:
        """Return the pace of the readings that began after ``since``, before and in the last polls that count."""
        own = self.rates[bisect_left(self.starts, since) :]
        polls, split = 0, len(own)
        while split and polls < WINDOW * readings:
            split -= 1
            polls += own[split][1]
        before, now = (_pace_of(each, own, readings) for each in (own[:split], own[split:]))
        return None if before is None or now is None else (before, now)


def _moves_in(samples: Sequence[Sampled], counter: Counter) -> _Moves:
    moves = _Moves([], [], [])
    for each in samples:
        if (total := each.values.get(counter)) is not None:
            moves.take(each.at, total, each.looks)
    return moves


def pace_of_rate(values: Sequence[Timed], since: float, readings: int, *, window: int = 0) -> Pace | None:
    """Return the mean of ``values`` after ``since``; None with fewer than ``readings`` polls.

    ``window``: how many of the last polls count; 0: ``WINDOW`` times ``readings``.
    """
    history = [(each.value, each.looks) for each in values]
    fresh = bisect_right(values, since, key=attrgetter("at"))
    own = history[fresh:]
    if own and own[0][1] > 1:  # some polls of the first reading may lie before `since`
        value, looks = own[0]
        at, before_at = values[fresh].at, values[fresh - 1].at if fresh else -math.inf
        own[0] = (value, max(1, int(looks * (at - since) / (at - before_at))))
    return _pace_of(_last(own, window or WINDOW * readings), history, readings)


def _pace_of(own: Sequence[Reading], history: Sequence[Reading], readings: int) -> Pace | None:
    """Return the pace of ``own``. A reading of many polls is their mean and weighs accordingly.

    A single reading is never enough, since its error is unknown.
    """
    if len(own) < 2 or _looks(own) < readings:
        return None
    mean, count = _mean(own)
    spread = math.fsum([looks * (each - mean) ** 2 for each, looks in own]) / (len(own) - 1)
    return Pace(mean=mean, error=math.sqrt(spread / count), counted=count, history=history, readings=readings)


def _last(own: Sequence[Reading], wanted: int) -> Sequence[Reading]:
    """Return the last readings covering ``wanted`` polls if available, but at least two readings."""
    taken: list[Reading] = []
    for value, looks in reversed(own):
        taken.append((value, min(looks, max(1, wanted))))
        wanted -= looks
        if wanted <= 0 and len(taken) > 1:
            break
    return taken


def _mean(own: Sequence[Reading]) -> Reading:
    """Return the mean of readings, and the number of polls it represents."""
    count = _looks(own)
    return math.fsum([looks * value for value, looks in own]) / count, count


def _looks(own: Sequence[Reading]) -> int:
    return sum([looks for _, looks in own])


def _with_earlier(earlier: tuple[Sampled, ...], gone: Sampled) -> tuple[Sampled, ...]:
    """Return the thinned history with one more sample, if that is far enough from the last."""
    first_at = earlier[0].at if earlier else gone.at
    if earlier and gone.at - first_at < SPARSER * (earlier[-1].at - first_at):
        return earlier
    return (*earlier, gone)


class Watching(dict[JobId, JobSamples]):
    """The samples of all jobs at one moment. Must not be modified."""

    journal: list[JobId]
    """Jobs that received data, in order: up to ``taken_in`` before this moment, after it later."""
    taken_in: int


def sampled_since(before: Mapping[JobId, JobSamples], now: Mapping[JobId, JobSamples]) -> set[JobId] | None:
    """Return the jobs with data in ``now`` that ``before`` did not have; None if that cannot be determined."""
    if not isinstance(before, Watching) or not isinstance(now, Watching) or before.journal is not now.journal:
        return None
    return set(now.journal[before.taken_in : now.taken_in]) if before.taken_in <= now.taken_in else None


@dataclass(slots=True)
class JobMonitor:
    """Follows samples of live jobs."""

    _jobs: dict[JobId, JobSamples] = field(default_factory=dict)
    _journal: list[JobId] = field(default_factory=list)
    _samples: dict[JobId, dict[int, deque[Sampled]]] = field(default_factory=dict)

    def follow(self, events: Iterable[Event]) -> None:
        """Process events in order, each once."""
        for event in events:
            if event.kind is EventKind.SAMPLE:
                self._sampled(event)
            elif event.kind is EventKind.UNIT_RESUMED:
                self._resumed(event)
            elif event.kind is EventKind.JOB_FINISHED:
                self._journal.append(event.job_id or "")
                self._jobs.pop(event.job_id or "", None)
                self._samples.pop(event.job_id or "", None)

    def watched(self) -> Mapping[JobId, JobSamples]:
        """Return the samples of all live jobs."""
        if len(self._journal) > KEPT_JOURNAL:
            self._journal = []
        watched = Watching(self._jobs)
        watched.journal, watched.taken_in = self._journal, len(self._journal)
        return watched

    def _resumed(self, event: Event) -> None:
        """Forget the samples of a rank from before its pause: the time in between is no slow progress."""
        job_id, rank = event.job_id or "", int(_number(event.fields.get("rank")) or 0)
        before = self._jobs.get(job_id)
        if before is None or rank not in before.ranks:
            return
        self._samples.get(job_id, {}).pop(rank, None)
        ranks = {each: held for each, held in before.ranks.items() if each != rank}
        earlier = {each: held for each, held in before.earlier.items() if each != rank}
        self._jobs[job_id] = JobSamples(attempt=before.attempt, ranks=ranks, earlier=earlier)
        self._journal.append(job_id)

    def _sampled(self, event: Event) -> None:
        job_id, attempt = event.job_id or "", str(event.fields.get("attempt", ""))
        before = self._jobs.get(job_id)
        if before is None or before.attempt != attempt:
            self._samples[job_id], before = {}, None
        rank = int(_number(event.fields.get("rank")) or 0)
        kept = self._samples[job_id].setdefault(rank, deque(maxlen=KEPT))
        sample = _sample(event)
        if kept and _has_restarted(kept[-1], sample):
            kept.clear()
            others = {each: held for each, held in before.earlier.items() if each != rank} if before else {}
            before = before and JobSamples(attempt=attempt, ranks=before.ranks, earlier=others)
        gone = kept[0] if len(kept) == KEPT else None
        kept.append(sample)
        watched = before or JobSamples(attempt=attempt, ranks={})
        self._jobs[job_id] = watched.next(rank, tuple(kept), gone)
        self._journal.append(job_id)


def _has_restarted(before: Sampled, now: Sampled) -> bool:
    """Return whether a total has decreased, which means the rank restarted. A missing total is ignored."""
    totals = now.values
    lower = [name for name, total in before.values.items() if totals.get(name, total) < total]
    return bool(lower) and lower != ["requests_per_s"]


WATCH_KINDS: tuple[EventKind, ...] = (EventKind.SAMPLE, EventKind.UNIT_RESUMED, EventKind.JOB_FINISHED)
"""Event kinds a :class:`JobMonitor` uses; all others may be omitted."""


def _sample(event: Event) -> Sampled:
    fields, latency = event.fields, _NO_LATENCY
    values: dict[Counter, float] = {}
    for name in _COUNTERS:
        if name in fields:
            value = fields[name]
            if type(value) is float or (value := _number(value)) is not None:
                values[name] = value
    if names := _latencies(tuple(fields)):
        latency = {part: ms for name, part in names if (ms := _number(fields[name])) is not None}
    return Sampled(event.at, values, latency, int(_number(fields.get("looks")) or 1))


@lru_cache(maxsize=64)
def _latencies(names: tuple[str, ...]) -> tuple[tuple[str, float], ...]:
    """Return which fields of a sample are latencies, each with its percentile."""
    return tuple((name, float(name[len(_LATENCY) :])) for name in names if name.startswith(_LATENCY))


def _number(value: object) -> float | None:
    if type(value) is float:
        return value
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
