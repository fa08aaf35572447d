"""Decisions report: how placements compare in hindsight with the alternatives known at the time (regret).

The log stores with each placement the candidate types, their prices and predicted performance. Once the job succeeded,
each candidate is evaluated again. Performance there is the median measured since for jobs of the same application on
that type; else the prediction, scaled by the prediction error on the chosen type. The best candidate is one that keeps
the deadline, then the cheapest, then the fastest. Regret is the additional cost and run time of the chosen one; it is
negative in seconds if the best candidate is cheaper but slower.

A job that waited for a machine that suits it, while others had room, is judged on that too: it would have run longer
there, by the share of performance that it was expected to lose. The regret of waiting is the wait minus that.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from hcloud.core.model import PROFILE_TAG, Event, EventKind
from hcloud.report.grouping import Grouping, JobFacts, job_facts, number, text
from hcloud.report.table import ReportTable, Row, columns
from hcloud.spec.validation import counted

DECISION_KINDS: frozenset[EventKind] = frozenset(
    {
        EventKind.JOB_SUBMITTED,
        EventKind.JOB_STATE,
        EventKind.ATTEMPT_PLACED,
        EventKind.UNIT_STARTED,
        EventKind.PREDICTION,
        EventKind.JOB_FINISHED,
    }
)
"""Event kinds that the report reads."""
GROUPINGS = ("job", "user", "type", "constraint", "day")
"""What a row may stand for."""
_JOB_COLUMNS = columns(
    *("job", "name", "user", "taken", "run_s", "cost_usd"),
    *("best", "why_not", "best_run_s", "best_cost_usd", "regret_s", "regret_usd", "held_s", "wait_regret_s", "target"),
)
_SUM_COLUMNS = (
    *("jobs", "best_taken", "target_avoidable", "cost_usd", "regret_usd", "mean_regret_s"),
    *("held", "held_s", "wait_regret_s"),
)
HOLDS_OUT = "holds_out"
"""Code of the reason of a job that waits for a machine that suits it although others have room."""
LEAST_QUALITY = 0.05
"""Quality below which a longer run is not computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCandidate:
    """A placement candidate as stored in the log."""

    column: str
    """Its type, as ``provider/type``."""
    market: str
    """Empty in logs of versions that did not store it."""
    usd_per_h: float
    """Price of one rank."""
    predicted: float | None
    """Predicted performance, if there was a prediction."""
    rejected: str
    """Why it was not chosen; empty for the chosen one."""

    @property
    def shape(self) -> str:
        """Return type and market, separated by a space."""
        return f"{self.column} {self.market}".rstrip()


@dataclass(slots=True)
class _PlacementRecord:
    """One job and the placement of its last attempt."""

    facts: JobFacts
    deadline_at: float | None
    attempt: str = ""
    rank_numbers: frozenset[str] = frozenset()
    candidates: tuple[StoredCandidate, ...] = ()
    """The chosen candidate first."""
    started_at: float | None = None
    ended_at: float = 0.0
    run_s: float = 0.0
    application: str = ""
    measured: float | None = None
    """Measured performance, if any."""
    holds_since_at: float | None = None
    """Since when it waits for a machine that suits it although others have room; None: it does not."""
    held_s: float = 0.0
    """How long it did that in all."""
    quality_there: float | None = None
    """Share of its performance (0..1) it was expected to keep on a machine that had room then."""

    @property
    def ranks(self) -> int:
        """Return the number of ranks; a rank that was placed again counts once."""
        return max(1, len(self.rank_numbers))

    @property
    def wait_regret_s(self) -> float:
        """Return by how much its waits for a suitable machine exceeded the run time that they saved."""
        if self.held_s <= 0.0 or self.quality_there is None:
            return 0.0
        return self.held_s - self.run_s * (1.0 / max(LEAST_QUALITY, self.quality_there) - 1.0)

    def end_hold(self, at: float) -> None:
        """Add the wait that ends at ``at``, if it was for a suitable machine."""
        if self.holds_since_at is not None:
            self.held_s += at - self.holds_since_at
            self.holds_since_at = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateVerdict:
    """A candidate evaluated in hindsight."""

    stored: StoredCandidate
    run_s: float
    """How long the job ran, or would have run, on it."""
    usd: float
    """Cost of that time on all ranks."""
    kept: bool
    """Whether the job meets its deadline on it; true without a deadline."""


@dataclass(slots=True)
class _Sums:
    """Sums over the jobs of a row."""

    jobs: int = 0
    best: int = 0
    """Jobs for which the best candidate was chosen."""
    avoidable: int = 0
    """Missed deadlines that the best candidate would have met."""
    usd: float = 0.0
    regret_usd: float = 0.0
    regret_s: list[float] = field(default_factory=list)
    held: int = 0
    """Jobs that waited for a suitable machine although others had room."""
    held_s: float = 0.0
    wait_regret_s: float = 0.0

    def add(self, record: _PlacementRecord, chosen: CandidateVerdict, best: CandidateVerdict) -> None:
        """Add one job; its regret is the chosen candidate minus the best, in USD and in seconds of run time."""
        self.jobs += 1
        self.held += record.held_s > 0.0
        self.held_s += record.held_s
        self.wait_regret_s += record.wait_regret_s
        self.best += chosen.stored is best.stored
        self.avoidable += best.kept and not chosen.kept
        self.usd += chosen.usd
        self.regret_usd += chosen.usd - best.usd
        self.regret_s.append(chosen.run_s - best.run_s)

    def row(self) -> Row:
        """Return the columns after the name; the mean regret in seconds is None without jobs."""
        mean_s = statistics.fmean(self.regret_s) if self.regret_s else None
        waits = (self.held, self.held_s, self.wait_regret_s)
        return (self.jobs, self.best, self.avoidable, self.usd, self.regret_usd, mean_s, *waits)

    def job_total(self) -> Row:
        """Return the total row of a table with one row per job."""
        best = ("", None, self.usd - self.regret_usd, sum(self.regret_s), self.regret_usd)
        taken, avoidable = f"{self.best} of {self.jobs} taken", f"{self.avoidable} avoidable"
        return ("total", "", "", "", None, self.usd, taken, *best, self.held_s, self.wait_regret_s, avoidable)


@dataclass(slots=True)
class _DecisionLog:
    """State while reading the log. Succeeded jobs are evaluated at its end, as later measurements count too."""

    live: dict[str, _PlacementRecord] = field(default_factory=dict)
    """Jobs that have not finished, by id."""
    ended: list[_PlacementRecord] = field(default_factory=list)
    """Jobs that succeeded in the period."""
    measured: dict[tuple[str, str, int], list[float]] = field(default_factory=dict)
    """Measured performance by application, type and number of nodes."""
    unknown: int = 0
    """Jobs that could not be evaluated."""

    def take(self, event: Event, since: float) -> None:
        """Apply one event; jobs that finished before ``since`` are dropped."""
        record = self.live.get(event.job_id or "")
        if event.kind is EventKind.JOB_SUBMITTED and PROFILE_TAG not in _tags(event):
            deadline = number(event, "deadline_at", -1.0)
            facts = job_facts(event)
            self.live[facts.id] = _PlacementRecord(facts, deadline if deadline >= 0 else None)
        elif event.kind is EventKind.PREDICTION:
            self._add_measurement(event, record)
        elif record is not None and event.kind is EventKind.JOB_STATE:
            _apply_state(record, event)
        elif record is not None and event.kind is EventKind.ATTEMPT_PLACED:
            record.end_hold(event.at)
            _apply_placement(record, event)
        elif record is not None and event.kind is EventKind.UNIT_STARTED:
            record.started_at = event.at if record.started_at is None else record.started_at
        elif record is not None and event.kind is EventKind.JOB_FINISHED:
            del self.live[record.facts.id]
            record.ended_at, record.run_s = event.at, number(event, "run_s")
            if event.at >= since and text(event, "state") == "succeeded" and record.run_s > 0:
                self.ended.append(record)

    def _add_measurement(self, event: Event, record: _PlacementRecord | None) -> None:
        if text(event, "question") not in ("run", ""):
            return
        application, column, value = text(event, "application"), text(event, "instance_type"), number(event, "measured")
        nodes = int(number(event, "nodes", 1.0))
        if value > 0:
            self.measured.setdefault((application, column, nodes), []).append(value)
            if record is not None:
                record.application, record.measured = application, value

    def judge(self, record: _PlacementRecord) -> tuple[CandidateVerdict, ...]:
        """Return the verdicts on the chosen candidate and then the others; empty if too little is known."""
        if not record.candidates or (record.candidates[0].predicted is None and record.measured is None):
            return ()
        chosen = record.candidates[0]
        own = record.measured or chosen.predicted or 0.0
        correction = own / chosen.predicted if chosen.predicted else None
        verdicts = [_candidate_verdict(record, chosen, record.run_s)]
        for other in record.candidates[1:]:
            measurements = self.measured.get((record.application, other.column, record.ranks))
            performance = statistics.median(measurements) if measurements and record.measured is not None else None
            if performance is None and other.predicted is not None and correction is not None:
                performance = other.predicted * correction
            if performance is not None and performance > 0:
                verdicts.append(_candidate_verdict(record, other, record.run_s * own / performance))
        return tuple(verdicts)


def _tags(event: Event) -> Mapping[str, object]:
    tags = event.fields.get("tags")
    return tags if isinstance(tags, Mapping) else {}


def _apply_state(record: _PlacementRecord, event: Event) -> None:
    record.end_hold(event.at)
    if text(event, "code") == HOLDS_OUT:
        record.holds_since_at = event.at
        if "quality_there" in event.fields:
            record.quality_there = number(event, "quality_there", 1.0)


def _apply_placement(record: _PlacementRecord, event: Event) -> None:
    attempt, allocations, candidates = (event.fields.get(key) for key in ("attempt", "allocations", "candidates"))
    allocations = allocations if isinstance(allocations, list | tuple) else ()
    rank_numbers = frozenset(str(each).split(":")[1] for each in allocations)  # "inst:rank:vcpus:memory_mib"
    if attempt == record.attempt:  # more ranks of the same attempt, or a rank placed again
        record.rank_numbers |= rank_numbers
        return
    record.attempt, record.rank_numbers, record.started_at = str(attempt), rank_numbers, None
    record.candidates = tuple(map(_parse_candidate, candidates)) if isinstance(candidates, list | tuple) else ()


def _parse_candidate(field_text: object) -> StoredCandidate:
    shape, usd_per_h, predicted, _, _, rejected = str(field_text).split("|", 5)
    column, _, market = shape.partition(" ")
    return StoredCandidate(
        column=column,
        market=market,
        usd_per_h=float(usd_per_h),
        predicted=float(predicted) if predicted else None,
        rejected=rejected,
    )


def _candidate_verdict(record: _PlacementRecord, stored: StoredCandidate, run_s: float) -> CandidateVerdict:
    started_at = record.started_at if record.started_at is not None else record.ended_at - record.run_s
    kept = record.deadline_at is None or started_at + run_s <= record.deadline_at
    return CandidateVerdict(stored=stored, run_s=run_s, usd=stored.usd_per_h * record.ranks * run_s / 3600.0, kept=kept)


def decisions_table(events: Iterable[Event], grouping: Grouping, since: float, until: float, now: float) -> ReportTable:
    """Return the regret of the placements of jobs that succeeded between ``since`` and ``until``."""
    log = _DecisionLog()
    for event in events:
        log.take(event, since)
    judgements = list(_judgements(log))
    whole = _Sums()
    for record, chosen, best in judgements:
        whole.add(record, chosen, best)
    total: Row
    if grouping.kind == "job":
        names, rows = _JOB_COLUMNS, tuple(_job_row(*each) for each in judgements)
        total = whole.job_total()
    else:
        names, rows = columns(grouping.text, *_SUM_COLUMNS), tuple(_grouped(judgements, grouping))
        total = ("total", *whole.row())
    return ReportTable(
        title=f"Decisions by {grouping.text}",
        columns=names,
        rows=rows,
        total=total if judgements else None,
        notes=tuple(_notes(log)),
    )


def _grouped(
    judgements: Iterable[tuple[_PlacementRecord, CandidateVerdict, CandidateVerdict]], grouping: Grouping
) -> Iterator[Row]:
    groups: dict[str, _Sums] = {}
    for record, chosen, best in judgements:
        groups.setdefault(_key(grouping, record, chosen, best), _Sums()).add(record, chosen, best)
    for key in sorted(groups):
        yield (key, *groups[key].row())


def _judgements(log: _DecisionLog) -> Iterator[tuple[_PlacementRecord, CandidateVerdict, CandidateVerdict]]:
    for record in sorted(log.ended, key=lambda each: int(each.facts.id.rpartition("-")[2])):
        verdicts = log.judge(record)
        if not verdicts:
            log.unknown += 1
            continue
        best = min(verdicts, key=lambda v: (not v.kept, round(v.usd, 9), round(v.run_s, 6)))
        yield record, verdicts[0], best


def _key(grouping: Grouping, record: _PlacementRecord, chosen: CandidateVerdict, best: CandidateVerdict) -> str:
    if grouping.kind == "user":
        return record.facts.user
    if grouping.kind == "type":
        return chosen.stored.column
    if grouping.kind == "day":
        return grouping.day_of(record.ended_at)
    return best.stored.rejected or "(best taken)"


def _job_row(record: _PlacementRecord, chosen: CandidateVerdict, best: CandidateVerdict) -> Row:
    facts, target = record.facts, ""
    if record.deadline_at is not None:
        target = "kept" if chosen.kept else "missed; the best keeps it" if best.kept else "missed"
    return (
        facts.label,
        facts.name,
        facts.user,
        chosen.stored.shape,
        chosen.run_s,
        chosen.usd,
        best.stored.shape,
        best.stored.rejected,
        best.run_s,
        best.usd,
        chosen.run_s - best.run_s,
        chosen.usd - best.usd,
        record.held_s,
        record.wait_regret_s,
        target,
    )


def _notes(log: _DecisionLog) -> list[str]:
    notes = [
        "best: the candidate type that keeps the deadline, then the cheapest, then the fastest; neighbours are ignored",
        "run time on other types: from measurements on that type, else from the prediction, scaled by the prediction "
        "error on the type taken",
        "held: time in which it waited for a machine that suits it although others had room; the regret of waiting is "
        "that time minus what the job would have run longer there",
    ]
    if log.unknown:
        notes.append(f"{counted(log.unknown, 'job')} left out: performance unknown")
    return notes
