"""What running jobs have lately been measured to do, by rank: what is needed to see whether they keep their target.

Followed from the event log and handed to the plan, as all that lasts between plans. It may be lost without harm: it
is rebuilt from the last quarter of an hour of samples.
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

from hcloud.core.model import AttemptId, Event, EventKind, JobId

KEPT = 48
"""Last samples kept of each rank, one by one."""
SPARSER = 1.25
"""Of those before, each that is so many times as long after the first as the one before it: some 40 tell of a day."""
WINDOW = 2
"""The last so many times as many readings count as are needed at least: what was before is another phase."""
WATCHED_S = 900.0
"""A new book is filled from samples this old."""
KEPT_JOURNAL = 4096
"""So many jobs that were sampled are remembered before it is begun anew; who followed none looks at all once."""
STALLED_GAPS = 3.0
"""A counter that has not moved for so many times the longest time it ever took to move stands still."""
_LATENCY = "latency_ms_p"
_COUNTERS = ("progress", "cpu_s", "written_mib", "requests_per_s")


class Timed(NamedTuple):
    """A time, what was then, and for how many looks that stands: its own, and those before it that found the same."""

    at: float
    value: float
    looks: int = 1


Reading = tuple[float, int]
"""A pace or a rate, and for how many looks it stands."""
Counter = str
"""What of a sample is counted: progress, cpu_s, written_mib (totals), or requests_per_s (a rate)."""


_NO_LATENCY: Mapping[float, float] = MappingProxyType({})


class Sampled(NamedTuple):
    """One sample of one rank: totals since its start, its rate of requests, and latency by percentile (0..100).

    ``looks``: at how many it went on so, this one included.
    """

    at: float
    values: Mapping[Counter, float]
    latency_ms: Mapping[float, float] = _NO_LATENCY
    looks: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSamples:
    """The last samples of each rank of a job's attempt, oldest first; ``earlier``: few of those before them."""

    attempt: AttemptId
    ranks: Mapping[int, tuple[Sampled, ...]]
    earlier: Mapping[int, tuple[Sampled, ...]] = field(default_factory=dict)
    _paces: dict[tuple[int, Counter, float, int], Pace | None] = field(default_factory=dict, compare=False, repr=False)
    _moves: dict[tuple[int, Counter], _Moves] = field(default_factory=dict, compare=False, repr=False)
    _kept: dict[tuple[int, float, float], Sequence[Timed]] = field(default_factory=dict, compare=False, repr=False)

    def pace(self, rank: int, counter: Counter, since: float, readings: int) -> Pace | None:
        """Return :func:`pace_of_counter` of a rank; worked out once, however many plans ask before the next sample."""
        key = (rank, counter, since, readings)
        if key not in self._paces:
            moves = self._moves.get((rank, counter))
            if moves is None:
                moves = self._moves[rank, counter] = _moves_in(self.ranks[rank], counter)
            self._paces[key] = moves.pace(since, readings)
        return self._paces[key]

    def latency_kept(self, rank: int, percentile: float, promised_ms: float) -> Sequence[Timed]:
        """Return :func:`latency_kept` of a rank; from sample to sample only what is new is looked at."""
        key = (rank, percentile, promised_ms)
        if key not in self._kept:
            self._kept[key] = latency_kept(self.ranks[rank], percentile, promised_ms)
        return self._kept[key]

    def next(self, rank: int, samples: tuple[Sampled, ...], gone: Sampled | None) -> JobSamples:
        """Return it with one more sample of a rank, ``samples`` being all of that now and ``gone`` the one dropped."""
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

    def history(self, rank: int) -> tuple[Sampled, ...]:
        """Return what is left of all samples of a rank: ever fewer, the older they are."""
        return (*self.earlier.get(rank, ()), *self.ranks.get(rank, ()))


class Pace(NamedTuple):
    """Performance over a while: the mean, its standard error, from how many looks (``counted``); ``history``: all
    readings there are, also of before; ``readings``: how many looks are needed."""

    mean: float
    error: float
    counted: int
    history: Sequence[Reading]
    readings: int

    @property
    def best(self) -> float:
        """The best mean over as many looks as are needed, at any time; 0: there never were so many."""
        most = max(2, self.readings)  # a reading stands for at least one look
        lasts = [self.history[max(0, end - most) : end] for end in range(1, len(self.history) + 1)]
        means = (_mean(_last(each, self.readings)) for each in lasts)
        return max((mean for mean, looks in means if looks >= self.readings), default=0.0)

    def at_most(self, deviations: float) -> float:
        """Return what it surely does not exceed: the mean and so many standard errors."""
        return self.mean + deviations * self.error

    def at_least(self, deviations: float) -> float:
        """Return what it surely reaches."""
        return self.mean - deviations * self.error


def latency_kept(samples: Sequence[Sampled], percentile: float, promised_ms: float) -> list[Timed]:
    """Return promised over measured latency, by time: 1 is just kept; by the least percentile at or above that one."""
    found = []
    for sample in samples:
        enough = [p for p in sample.latency_ms if p >= percentile and sample.latency_ms[p] > 0]
        if enough:
            found.append(Timed(sample.at, promised_ms / sample.latency_ms[min(enough)], sample.looks))
    return found


def _kept_after(
    before: Sequence[Timed], gone: Sampled | None, added: Sampled, key: tuple[int, float, float]
) -> Sequence[Timed]:
    """Return what is kept with one more sample, and without the one that is ``gone`` for it."""
    drop = gone is not None and bool(before) and before[0][0] == gone.at
    return [*before[drop:], *latency_kept((added,), *key[1:])]


def pace_of_counter(samples: Sequence[Sampled], counter: Counter, since: float, readings: int) -> Pace | None:
    """Return the pace per second of a total in the samples after ``since``; None: fewer than ``readings`` contain it.

    A reading is the pace between two samples in which the total moved: a program that writes its progress down once an
    epoch is not taken for one that stands still in between.
    """
    return _moves_in(samples, counter).pace(since, readings)


@dataclass(slots=True)
class _Moves:
    """Where a total moved in a rank's samples: when each reading began, how fast it was and for how many looks, how
    long it stood still.

    ``at``, ``total``: where it moved last; ``last_at``: of the last sample that contains it.
    """

    starts: list[float]
    rates: list[Reading]
    stood_s: list[float]
    at: float = -math.inf
    total: float = -math.inf
    last_at: float = 0.0

    def take(self, at: float, total: float, looks: int) -> None:
        """Take in the next sample."""
        before_at, self.last_at = max(self.last_at, self.at), at
        if total > self.total:
            gap_s = at - self.at
            if 0.0 < gap_s < math.inf:
                self.starts.append(self.at)
                self.rates.append(((total - self.total) / gap_s, looks))
                self.stood_s.append(before_at - self.at + (at - before_at) / looks)
            self.at, self.total = at, total

    def after(self, gone: Sampled | None, samples: Sequence[Sampled], counter: Counter) -> _Moves:
        """Return what they are with the last of ``samples`` as well, and without the one that is ``gone`` for it."""
        if gone is not None and gone.values.get(counter) is not None:
            # What is left begins at the second sample: the first reading is another where it did not move there.
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
        """Return the pace of what began after ``since``."""
        rates = self.rates
        before = bisect_left(self.starts, since)  # they come in order
        stalled_s = self.last_at - max(self.at, since)
        if stalled_s > 0.0 and _looks(rates) >= readings and stalled_s > STALLED_GAPS * max(self.stood_s, default=0.0):
            return Pace(mean=0.0, error=0.0, counted=_looks(rates[before:]), history=rates, readings=readings)
        return _pace(rates[before:], rates, readings)


def _moves_in(samples: Sequence[Sampled], counter: Counter) -> _Moves:
    moves = _Moves([], [], [])
    for each in samples:
        if (total := each.values.get(counter)) is not None:
            moves.take(each.at, total, each.looks)
    return moves


def pace_of_rate(values: Sequence[Timed], since: float, readings: int) -> Pace | None:
    """Return the mean of ``values`` after ``since``; None: fewer than ``readings`` samples contain it."""
    history = [(each.value, each.looks) for each in values]
    fresh = bisect_right(values, since, key=attrgetter("at"))
    own = history[fresh:]
    if own and own[0][1] > 1:  # of the looks that the first one stands for some may lie before
        value, looks = own[0]
        at, before_at = values[fresh].at, values[fresh - 1].at if fresh else -math.inf
        own[0] = (value, max(1, int(looks * (at - since) / (at - before_at))))
    return _pace(own, history, readings)


def _pace(own: Sequence[Reading], history: Sequence[Reading], readings: int) -> Pace | None:
    """What stands for many looks is their mean, so it is that much surer than a single one; that there is no other to
    compare it with makes nothing sure."""
    if len(own) < 2 or _looks(own) < readings:
        return None
    lately = _last(own, WINDOW * readings)
    mean, count = _mean(lately)
    spread = math.fsum([looks * (each - mean) ** 2 for each, looks in lately]) / (len(lately) - 1)
    return Pace(mean=mean, error=math.sqrt(spread / count), counted=count, history=history, readings=readings)


def _last(own: Sequence[Reading], wanted: int) -> Sequence[Reading]:
    """Return the last of the readings, ``wanted`` looks of them if there are so many, but two readings at least."""
    taken: list[Reading] = []
    for value, looks in reversed(own):
        taken.append((value, min(looks, max(1, wanted))))
        wanted -= looks
        if wanted <= 0 and len(taken) > 1:
            break
    return taken


def _mean(own: Sequence[Reading]) -> Reading:
    """Return the mean of readings, and for how many looks it stands."""
    count = _looks(own)
    return math.fsum([looks * value for value, looks in own]) / count, count


def _looks(own: Sequence[Reading]) -> int:
    return sum([looks for _, looks in own])


def _with_earlier(earlier: tuple[Sampled, ...], gone: Sampled) -> tuple[Sampled, ...]:
    """Return it with one more, if that is far enough from the last."""
    first_at = earlier[0].at if earlier else gone.at
    if earlier and gone.at - first_at < SPARSER * (earlier[-1].at - first_at):
        return earlier
    return (*earlier, gone)


class Watching(dict[JobId, JobSamples]):
    """What is known at one moment of sampled jobs; immutable."""

    journal: list[JobId]
    """Of which job something was taken in, in order: up to ``taken_in`` before this moment, then after it."""
    taken_in: int


def sampled_since(before: Mapping[JobId, JobSamples], now: Mapping[JobId, JobSamples]) -> set[JobId] | None:
    """Return the jobs of which something is known ``now`` that was not ``before``; None where that is not known."""
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
        """Take in events in order, each once."""
        for event in events:
            if event.kind is EventKind.SAMPLE:
                self._sampled(event)
            elif event.kind is EventKind.JOB_FINISHED:
                self._journal.append(event.job_id or "")
                self._jobs.pop(event.job_id or "", None)
                self._samples.pop(event.job_id or "", None)

    def watched(self) -> Mapping[JobId, JobSamples]:
        """Return what is known of jobs that were sampled."""
        if len(self._journal) > KEPT_JOURNAL:
            self._journal = []
        watched = Watching(self._jobs)
        watched.journal, watched.taken_in = self._journal, len(self._journal)
        return watched

    def _sampled(self, event: Event) -> None:
        job_id, attempt = event.job_id or "", str(event.fields.get("attempt", ""))
        before = self._jobs.get(job_id)
        if before is None or before.attempt != attempt:
            self._samples[job_id], before = {}, None
        rank = int(_number(event.fields.get("rank")) or 0)
        kept = self._samples[job_id].setdefault(rank, deque(maxlen=KEPT))
        sample = _sample(event)
        if kept and _began_anew(kept[-1], sample):
            kept.clear()
            others = {each: held for each, held in before.earlier.items() if each != rank} if before else {}
            before = before and JobSamples(attempt=attempt, ranks=before.ranks, earlier=others)
        gone = kept[0] if len(kept) == KEPT else None
        kept.append(sample)
        watched = before or JobSamples(attempt=attempt, ranks={})
        self._jobs[job_id] = watched.next(rank, tuple(kept), gone)
        self._journal.append(job_id)


def _began_anew(before: Sampled, now: Sampled) -> bool:
    """Whether a total is lower than it was; one that could not be measured just now is not."""
    totals = now.values
    lower = [name for name, total in before.values.items() if totals.get(name, total) < total]
    return bool(lower) and lower != ["requests_per_s"]


WATCH_KINDS: tuple[EventKind, ...] = (EventKind.SAMPLE, EventKind.JOB_FINISHED)
"""The events a :class:`JobMonitor` needs; all others may be left out."""


def _sample(event: Event) -> Sampled:
    told, latency = event.fields, _NO_LATENCY
    values: dict[Counter, float] = {}
    for name in _COUNTERS:
        if name in told and (value := _number(told[name])) is not None:
            values[name] = value
    if names := _latencies(tuple(told)):
        latency = {part: ms for name, part in names if (ms := _number(told[name])) is not None}
    return Sampled(event.at, values, latency, int(_number(told.get("looks")) or 1))


@lru_cache(maxsize=64)
def _latencies(names: tuple[str, ...]) -> tuple[tuple[str, float], ...]:
    """Return which of the fields of a sample are latencies, each with its percentile."""
    return tuple((name, float(name[len(_LATENCY) :])) for name in names if name.startswith(_LATENCY))


def _number(value: object) -> float | None:
    if type(value) is float:
        return value
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
