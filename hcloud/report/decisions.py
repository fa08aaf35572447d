"""Decisions: what placing jobs elsewhere would have meant, by what is known now that they have ended (regret).

With each placement the types at hand were stored, with price and expected performance. Once a job has ended well, each
of them is looked at again: its performance there is what jobs of the same application were measured to do on that type
since, else what was expected, off by as much as the expectation for the chosen type was. The best candidate keeps the
target, where one does; then it is the cheapest, then the quickest. Regret is how much dearer and longer the chosen one
was than that; a candidate that is cheaper and slower gives regret in dollars and a gain in seconds.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from hcloud.core.model import PROFILE_TAG, Event, EventKind
from hcloud.report.grouping import Grouping, JobFacts, day_of, number, text
from hcloud.report.table import ReportTable, Row, columns

DECISION_KINDS: frozenset[EventKind] = frozenset(
    {
        EventKind.JOB_SUBMITTED,
        EventKind.ATTEMPT_PLACED,
        EventKind.UNIT_STARTED,
        EventKind.PREDICTION,
        EventKind.JOB_FINISHED,
    }
)
"""The events this report needs."""
GROUPINGS = ("job", "user", "type", "constraint", "day")
"""What a row of it may stand for."""
_JOB_COLUMNS = columns(
    *("job", "name", "user", "taken", "run_s", "cost_usd"),
    *("best", "why_not", "best_run_s", "best_cost_usd", "regret_s", "regret_usd", "target"),
)
_SUM_COLUMNS = ("jobs", "best_taken", "target_avoidable", "cost_usd", "regret_usd", "mean_regret_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCandidate:
    """A candidate as it was stored: type and market (empty where it was stored without), US dollars per hour of a rank,
    expected performance, why it was not taken."""

    column: str
    market: str
    usd_per_h: float
    predicted: float | None
    rejected: str

    @property
    def shape(self) -> str:
        """Return type and market."""
        return f"{self.column} {self.market}".rstrip()


@dataclass(slots=True)
class _PlacementRecord:
    """A job on its way: the candidates of its present attempt, its ranks by number, and what it was measured to do."""

    facts: JobFacts
    deadline_at: float | None
    attempt: str = ""
    numbers: frozenset[str] = frozenset()
    candidates: tuple[StoredCandidate, ...] = ()
    started_at: float | None = None
    ended_at: float = 0.0
    run_s: float = 0.0
    application: str = ""
    measured: float | None = None

    @property
    def ranks(self) -> int:
        """Return on how many ranks it runs; one that was started anew elsewhere is still one."""
        return max(1, len(self.numbers))


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateVerdict:
    """One candidate by the now-known numbers."""

    stored: StoredCandidate
    run_s: float
    usd: float
    kept: bool


@dataclass(slots=True)
class _Sums:
    """What is added up over the jobs of a row."""

    jobs: int = 0
    best: int = 0
    avoidable: int = 0
    usd: float = 0.0
    regret_usd: float = 0.0
    regret_s: list[float] = field(default_factory=list)

    def add(self, chosen: CandidateVerdict, best: CandidateVerdict) -> None:
        """Count one job: regret is what was chosen less the best, in USD and in seconds of running."""
        self.jobs += 1
        self.best += chosen.stored is best.stored
        self.avoidable += best.kept and not chosen.kept
        self.usd += chosen.usd
        self.regret_usd += chosen.usd - best.usd
        self.regret_s.append(chosen.run_s - best.run_s)

    def row(self) -> Row:
        """Return the columns after the name; the mean regret in seconds is None where there are no jobs."""
        mean_s = statistics.fmean(self.regret_s) if self.regret_s else None
        return (self.jobs, self.best, self.avoidable, self.usd, self.regret_usd, mean_s)

    def job_total(self) -> Row:
        """Return the last row of a table with a row a job."""
        best = ("", None, self.usd - self.regret_usd, sum(self.regret_s), self.regret_usd)
        taken, avoidable = f"{self.best} of {self.jobs} taken", f"{self.avoidable} avoidable"
        return ("total", "", "", "", None, self.usd, taken, *best, avoidable)


@dataclass(slots=True)
class _DecisionLog:
    """Follows the log: jobs that have ended well wait for its end, as later measurements judge them too."""

    live: dict[str, _PlacementRecord] = field(default_factory=dict)
    ended: list[_PlacementRecord] = field(default_factory=list)
    measured: dict[tuple[str, str, int], list[float]] = field(default_factory=dict)
    unknown: int = 0

    def take(self, event: Event, since: float) -> None:
        """Take in one event."""
        story = self.live.get(event.job_id or "")
        if event.kind is EventKind.JOB_SUBMITTED and PROFILE_TAG not in _tags(event):
            deadline = number(event, "deadline_at", -1.0)
            facts = JobFacts(id=event.job_id or "", name=text(event, "name"), user=event.user or "")
            self.live[facts.id] = _PlacementRecord(facts, deadline if deadline >= 0 else None)
        elif event.kind is EventKind.PREDICTION:
            self._measured(event, story)
        elif story is not None and event.kind is EventKind.ATTEMPT_PLACED:
            _placed(story, event)
        elif story is not None and event.kind is EventKind.UNIT_STARTED:
            story.started_at = event.at if story.started_at is None else story.started_at
        elif story is not None and event.kind is EventKind.JOB_FINISHED:
            del self.live[story.facts.id]
            story.ended_at, story.run_s = event.at, number(event, "run_s")
            if event.at >= since and text(event, "state") == "succeeded" and story.run_s > 0:
                self.ended.append(story)

    def _measured(self, event: Event, story: _PlacementRecord | None) -> None:
        if text(event, "question") not in ("run", ""):
            return
        application, column, value = text(event, "application"), text(event, "instance_type"), number(event, "measured")
        nodes = int(number(event, "nodes", 1.0))
        if value > 0:
            self.measured.setdefault((application, column, nodes), []).append(value)
            if story is not None:
                story.application, story.measured = application, value

    def judge(self, story: _PlacementRecord) -> tuple[CandidateVerdict, ...]:
        """Return the chosen candidate and the others by the now-known numbers; nothing where too little is known."""
        if not story.candidates or (story.candidates[0].predicted is None and story.measured is None):
            return ()
        chosen = story.candidates[0]
        own = story.measured or chosen.predicted or 0.0
        off = own / chosen.predicted if chosen.predicted else None
        found = [_verdict(story, chosen, story.run_s)]
        for other in story.candidates[1:]:
            since = self.measured.get((story.application, other.column, story.ranks))
            would = statistics.median(since) if since and story.measured is not None else None
            if would is None and other.predicted is not None and off is not None:
                would = other.predicted * off
            if would is not None and would > 0:
                found.append(_verdict(story, other, story.run_s * own / would))
        return tuple(found)


def _tags(event: Event) -> Mapping[str, object]:
    tags = event.fields.get("tags")
    return tags if isinstance(tags, Mapping) else {}


def _placed(story: _PlacementRecord, event: Event) -> None:
    attempt, allocations, given = (event.fields.get(key) for key in ("attempt", "allocations", "candidates"))
    told = allocations if isinstance(allocations, list | tuple) else ()
    numbers = frozenset(str(each).split(":")[1] for each in told)  # "inst:rank:vcpus:memory_mib"
    if attempt == story.attempt:  # ranks that came later, or again
        story.numbers |= numbers
        return
    story.attempt, story.numbers, story.started_at = str(attempt), numbers, None
    story.candidates = tuple(map(_stored, given)) if isinstance(given, list | tuple) else ()


def _stored(given: object) -> StoredCandidate:
    shape, usd_per_h, predicted, _, _, rejected = str(given).split("|", 5)
    column, _, market = shape.partition(" ")
    return StoredCandidate(
        column=column,
        market=market,
        usd_per_h=float(usd_per_h),
        predicted=float(predicted) if predicted else None,
        rejected=rejected,
    )


def _verdict(story: _PlacementRecord, stored: StoredCandidate, run_s: float) -> CandidateVerdict:
    started_at = story.started_at if story.started_at is not None else story.ended_at - story.run_s
    kept = story.deadline_at is None or started_at + run_s <= story.deadline_at
    return CandidateVerdict(stored=stored, run_s=run_s, usd=stored.usd_per_h * story.ranks * run_s / 3600.0, kept=kept)


def decisions_table(events: Iterable[Event], grouping: Grouping, since: float, until: float, now: float) -> ReportTable:
    """Return the regret of placements of jobs that ended well between ``since`` and ``until``."""
    book = _DecisionLog()
    for event in events:
        book.take(event, since)
    judged = list(_judged(book))
    whole = _Sums()
    for _, chosen, best in judged:
        whole.add(chosen, best)
    total: Row
    if grouping.kind == "job":
        names, rows = _JOB_COLUMNS, tuple(_job_row(*each) for each in judged)
        total = whole.job_total()
    else:
        names, rows = columns(grouping.text, *_SUM_COLUMNS), tuple(_grouped(judged, grouping))
        total = ("total", *whole.row())
    return ReportTable(
        title=f"Decisions by {grouping.text}",
        columns=names,
        rows=rows,
        total=total if judged else None,
        notes=tuple(_notes(book)),
    )


def _grouped(
    judged: Iterable[tuple[_PlacementRecord, CandidateVerdict, CandidateVerdict]], grouping: Grouping
) -> Iterator[Row]:
    groups = dict[str, _Sums]()
    for story, chosen, best in judged:
        groups.setdefault(_key(grouping, story, chosen, best), _Sums()).add(chosen, best)
    for key in sorted(groups):
        yield (key, *groups[key].row())


def _judged(book: _DecisionLog) -> Iterator[tuple[_PlacementRecord, CandidateVerdict, CandidateVerdict]]:
    for story in sorted(book.ended, key=lambda each: int(each.facts.id.rpartition("-")[2])):
        verdicts = book.judge(story)
        if not verdicts:
            book.unknown += 1
            continue
        best = min(verdicts, key=lambda v: (not v.kept, round(v.usd, 9), round(v.run_s, 6)))
        yield story, verdicts[0], best


def _key(grouping: Grouping, story: _PlacementRecord, chosen: CandidateVerdict, best: CandidateVerdict) -> str:
    if grouping.kind == "user":
        return story.facts.user
    if grouping.kind == "type":
        return chosen.stored.column
    if grouping.kind == "day":
        return day_of(story.ended_at)
    return best.stored.rejected or "(best taken)"


def _job_row(story: _PlacementRecord, chosen: CandidateVerdict, best: CandidateVerdict) -> Row:
    facts, target = story.facts, ""
    if story.deadline_at is not None:
        target = "kept" if chosen.kept else "missed; the best keeps it" if best.kept else "missed"
    return (
        facts.id,
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
        target,
    )


def _notes(book: _DecisionLog) -> list[str]:
    notes = [
        "best: keeps the deadline where one does, then the cheapest, then the quickest; of types, neighbours aside",
        "run times elsewhere: measured since on that type, else as expected, off by as much as it was here",
    ]
    if book.unknown:
        notes.append(f"{book.unknown} jobs are left out, as nothing was known of their performance")
    return notes
