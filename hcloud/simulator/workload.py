"""Workloads: which jobs arrive when, and how long each runs alone on a machine as fast as its type should be."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import cast

from hcloud.core.errors import BadInput, NoJobs
from hcloud.core.model import (
    BatchTarget,
    BestEffortTarget,
    JobSpec,
    MetricsHook,
    Nodes,
    Resources,
    ServiceTarget,
    Target,
)
from hcloud.core.units import parse_number, plain, shown
from hcloud.spec.jobfile import NODES_MOST, REQUESTS_MOST, VCPUS_MOST
from hcloud.spec.validation import counted

MIB_PER_VCPU = 1024
LONGEST_DAYS = 3650
"""The longest run, and the longest time from the first arrival to the last: beyond it, somebody mistook the unit."""
LATENCY_MOST_MS = 1e9
"""Eleven days."""
MEMORY_MOST_MIB, NUMBER_MOST = 1e9, 1e15
"""A PiB: no job has more; and what no number of a job log exceeds, times in seconds and memory in KiB."""
SWF_COLUMNS, SWF_COLUMNS_LEAST, SUBMITTED, UNKNOWN = 18, 12, 1, -1.0
"""Of a job log: numbers in a line, those that must be there, which says when a job was submitted, and what says that
nobody knows."""
STATUS, PARTS = 10, (2.0, 3.0, 4.0)
"""Of a job log: the column that says how a job ended, and what stands there where the line is about a part of one that
was stopped and went on later; another line tells the whole of it."""
NAME_MOST = 255
"""Characters of a name."""
COMMAND = ("simulated",)
NODE_VCPUS = 16
"""A job of a log that is wider is spread over nodes of that size."""
PROBE_EVERY_S = 60.0
"""So often a service is asked how it does."""
DAY_S = 86_400.0
LATEST_AT = 7_258_118_400.0
"""The year 2200: what begins later is no date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A job that is submitted ``at_s`` after the beginning and runs for ``run_s`` on what it asks for.

    ``needs_vcpus``: so many it can use, and for ``run_s`` on these, whatever its user asks for; None: what it asks for.
    """

    at_s: float
    run_s: float
    spec: JobSpec
    needs_vcpus: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Arrivals in order of time. ``notes`` say in sentences what of the source was left out.

    ``began_at``: when it really began (Unix seconds), so that days and months end when they did; None: it is not known.
    """

    name: str
    arrivals: tuple[Arrival, ...]
    notes: tuple[str, ...] = ()
    began_at: float | None = None

    @property
    def span_s(self) -> float:
        """Return when the last job arrives."""
        return self.arrivals[-1].at_s if self.arrivals else 0.0

    def cores(self, step_s: float = 60.0) -> tuple[float, ...]:
        """Return how many cores would be in use at each step if every job began at once: the load itself.

        Looked at once a step, or, where that misses more than a tenth of the load or shows so much more (short jobs
        that come at regular times), the mean over each step.
        """
        steps = int(self.span_s / step_s) + 1
        looked = self._sampled_cores(step_s, steps)
        held = sum(_vcpus(each) * min(each.run_s, steps * step_s - each.at_s) for each in self.arrivals) / step_s
        return looked if abs(sum(looked) - held) <= 0.1 * held else self._mean_cores(step_s, steps)

    def _sampled_cores(self, step_s: float, steps: int) -> tuple[float, ...]:
        changes = [0.0] * steps
        for each in self.arrivals:
            for at_s, by in ((each.at_s, _vcpus(each)), (each.at_s + each.run_s, -_vcpus(each))):
                if (step := int(at_s / step_s)) < steps:
                    changes[step] += by
        return tuple(max(0.0, used) for used in accumulate(changes))

    def _mean_cores(self, step_s: float, steps: int) -> tuple[float, ...]:
        """Add up for each step what is held at its beginning to its end, and correct it for jobs that begin or end in
        between."""
        held, partly = [0.0] * (steps + 1), [0.0] * (steps + 1)
        for each in self.arrivals:
            for at_s, by in ((each.at_s, _vcpus(each)), (each.at_s + each.run_s, -_vcpus(each))):
                step = min(steps, int(at_s / step_s))
                held[step] += by
                partly[step] -= by * (min(steps, at_s / step_s) - step)
        return tuple(max(0.0, used + part) for used, part in zip(accumulate(held[:steps]), partly, strict=False))

    def scaled(self, share: float, name: str = "") -> Workload:
        """Return about this share (0..1] of the jobs, evenly picked. Raises BadInput where that is none."""
        if not 0 < share <= 1:
            raise BadInput(f"the share of a workload is {share:g}; it must be more than 0 and at most 1")
        kept = tuple(
            each for n, each in enumerate(self.arrivals) if math.floor((n + 1) * share) > math.floor(n * share)
        )
        if not kept:
            raise BadInput(f"{self.name}: a share of {share:g} of {len(self.arrivals)} jobs leaves none")
        return replace(self, name=name or self.name, arrivals=kept)


def _vcpus(job: Arrival) -> float:
    return job.spec.resources.vcpus * job.spec.nodes.count


def workload_of(
    name: str, arrivals: Sequence[Arrival], notes: Sequence[str] = (), lines: Sequence[int] = ()
) -> Workload:
    """Bring arrivals into order, the first at zero. ``lines``: on which of the file ``name`` each stands, if in one.

    Raises NoJobs where there are none; BadInput where a run or all of them together last longer than LONGEST_DAYS.
    """
    if not arrivals:
        raise NoJobs(f"{name}: there is no job in it that could be simulated" + "".join(f"; {note}" for note in notes))
    first_s = min(each.at_s for each in arrivals)
    _check_span("this job comes %s days after the first", [each.at_s - first_s for each in arrivals], name, lines)
    _check_span("a job runs for %s days", [each.run_s for each in arrivals], name, lines)
    ordered = sorted(arrivals, key=lambda each: each.at_s)
    return Workload(
        name=name, arrivals=tuple(replace(each, at_s=each.at_s - first_s) for each in ordered), notes=tuple(notes)
    )


def _check_span(what: str, spans_s: Sequence[float], name: str, lines: Sequence[int]) -> None:
    """Raise BadInput, naming the line of the longest if it has one, where that is longer than LONGEST_DAYS."""
    longest_s = max(spans_s)
    if longest_s > LONGEST_DAYS * DAY_S:
        where = f"{name}:{lines[spans_s.index(longest_s)]}" if lines else name
        told = what % f"{longest_s / DAY_S:.3g}"
        raise BadInput(f"{where}: {told}; it must be at most {LONGEST_DAYS} days, and times are in seconds")


# ------------------------------------------------------------------------------------------------------------ job logs
@dataclass(frozen=True, slots=True, kw_only=True)
class LogReading:
    """How jobs of a log become jobs here. A job wider than ``node_vcpus`` is spread over nodes of that size.

    ``slack``: a job is to be done within its run time x (1 + slack) + ``slack_s`` of its submission.
    """

    node_vcpus: int = NODE_VCPUS
    slack: float = 1.0
    slack_s: float = 600.0


def read_swf(text: str, name: str, reading: LogReading) -> Workload:
    """Read a job log in the Standard Workload Format (18 columns, -1 for unknown, ``;`` begins a comment).

    Raises BadInput, naming the line, for one that is no line of such a log; NoJobs where it has no job.
    """
    arrivals, lines, never_ran, parts, zero_at = list[Arrival](), list[int](), 0, 0, 0.0
    # Comments may hold form feeds and the like, at which str.splitlines would end a line.
    for number, line in enumerate(io.StringIO(text, newline=None), 1):
        if not line.strip() or line.lstrip().startswith(";"):
            said_at = _start_time(line, f"{name}:{number}")
            zero_at = zero_at or said_at
            continue
        columns = _swf_numbers(line, f"{name}:{number}")
        if columns[STATUS] in PARTS:  # of these only the first tells when it was submitted
            parts += 1
            continue
        if columns[SUBMITTED] == UNKNOWN:
            raise BadInput(
                f"{name}:{number}: nobody knows when this job was submitted (-1); leave it out or write when"
            )
        if columns[3] <= 0 or max(columns[4], columns[7]) <= 0:
            never_ran += 1
            continue
        arrivals.append(_swf_arrival(columns, reading, f"{name}:{number}"))
        lines.append(number)
    made = workload_of(name, arrivals, _swf_notes(never_ran, parts), lines)
    return replace(made, began_at=_began_at(zero_at, arrivals, name, lines)) if zero_at else made


def _began_at(zero_at: float, arrivals: Sequence[Arrival], name: str, lines: Sequence[int]) -> float:
    """Return when the first job of a log was submitted (Unix seconds). Raises BadInput where that is no date."""
    first = min(range(len(arrivals)), key=lambda at: arrivals[at].at_s)
    began_at = zero_at + arrivals[first].at_s
    if began_at >= LATEST_AT:
        what = f"with UnixStartTime {plain(zero_at)} this job was submitted after the year 2200"
        raise BadInput(f"{name}:{lines[first]}: {what}; times count from that moment, in seconds")
    return began_at


def _swf_notes(never_ran: int, parts: int) -> list[str]:
    """Return what is said of lines that are no jobs."""
    of_those = "is" if never_ran == 1 else "are"
    left_out = f"{counted(never_ran, 'job')} never ran or asked for nothing and {of_those} left out"
    of_parts = "line tells a part of a job that was" if parts == 1 else "lines tell parts of jobs that were"
    told = f"{parts} {of_parts} stopped and went on; those of the whole jobs count"
    return [each for count, each in ((never_ran, left_out), (parts, told)) if count]


def _start_time(comment: str, where: str) -> float:
    """Return when a log's times count from (Unix seconds), where a comment says so; else 0.

    Models of logs write 0, and -1 is what the format has for unknown. Raises BadInput for any other that is no time:
    budgets of days and months would end at another hour than whoever wrote it believes.
    """
    key, _, value = comment.lstrip("; \t").partition(":")
    if key.strip().lower() != "unixstarttime":
        return 0.0
    zero_at = parse_number(value.strip() or "0")
    if zero_at is None or not (zero_at == UNKNOWN or 0.0 <= zero_at < LATEST_AT):
        what = f"UnixStartTime is {shown(value.strip())}"
        raise BadInput(f"{where}: {what}; write seconds from 1970 on, before the year 2200, or 0 where nobody knows")
    return max(0.0, zero_at)


def _swf_numbers(line: str, where: str) -> list[float]:
    words = line.split()
    numbers = [number for word in words if (number := parse_number(word)) is not None]
    if len(numbers) < len(words):
        wrong = next(word for word in words if parse_number(word) is None)
        raise BadInput(f"{where}: a line of a job log holds {SWF_COLUMNS} numbers, and {shown(wrong)} is none")
    if largest := next((each for each in numbers if abs(each) > NUMBER_MOST), None):
        raise BadInput(f"{where}: {largest:g} is none of a job log's numbers; times are in seconds, memory in KiB")
    if not SWF_COLUMNS_LEAST <= len(numbers) <= SWF_COLUMNS:
        raise BadInput(f"{where}: a line of a job log holds {SWF_COLUMNS} numbers, not {len(numbers)}")
    if negative := next((each for each in numbers if each < 0 and each != UNKNOWN), None):
        raise BadInput(f"{where}: {negative:g} is none of a job log's numbers; of those below 0 there is -1, unknown")
    return numbers


def _swf_arrival(columns: Sequence[float], reading: LogReading, where: str) -> Arrival:
    run_s, processors = columns[3], math.ceil(max(columns[4], columns[7]))
    count = -(-processors // reading.node_vcpus)
    if count > NODES_MOST:
        raise BadInput(
            f"{where}: a job of {processors} processors takes more than {NODES_MOST} nodes of --node-vcpus "
            f"{reading.node_vcpus}; make nodes wider"
        )
    vcpus = math.ceil(processors / count)
    kib_per_processor = max(columns[6], columns[9] if len(columns) > 9 else -1)
    memory_mib = vcpus * (math.ceil(kib_per_processor / 1024) if kib_per_processor > 0 else MIB_PER_VCPU)
    if memory_mib > MEMORY_MOST_MIB:
        raise BadInput(f"{where}: a node of this job has {memory_mib:.3g} MiB; the log tells KiB per processor")
    spec = JobSpec(
        name=f"log-{columns[0]:.0f}",
        user=f"user{columns[11]:.0f}" if columns[11] >= 0 else "unknown",
        command=COMMAND,
        target=BatchTarget(finish_within_s=run_s * (1 + reading.slack) + reading.slack_s),
        resources=Resources(vcpus=vcpus, memory_mib=memory_mib),
        nodes=Nodes(count=count, minimum=count),
    )
    return Arrival(at_s=columns[1], run_s=run_s, spec=spec)


# ----------------------------------------------------------------------------------------------------------------- CSV
NEEDED = ("at_s", "run_s", "vcpus")
OPTIONAL = (
    "memory_mib", "name", "user", "nodes", "priority", "interruptible", "within_s", "requests_per_s", "latency_ms",
)  # fmt: skip


YES, NO = ("true", "yes", "1"), ("false", "no", "0")


def read_csv(text: str, name: str) -> Workload:
    """Read arrivals: a header, then a line per job. ``within_s`` makes it a batch job with a deadline,
    ``requests_per_s`` and ``latency_ms`` a service; neither: best effort. Lines that begin with ``#`` are comments,
    empty ones are passed over.

    Raises BadInput, naming line and column; NoJobs where there is only a header.
    """
    whole = enumerate(io.StringIO(text, newline=""), 1)
    # Spreadsheets write an empty row as commas.
    lines = [(at, line) for at, line in whole if line.strip(", \t\r\n") and not line.startswith("#")]
    if not lines:
        what = "holds comments only" if text.strip(", \t\r\n") else "is empty"
        raise NoJobs(f"{name}:1: {what}; a list of arrivals begins with a header, such as {','.join(NEEDED)}")
    found = list(_csv_arrivals(lines, name))
    if not found:
        raise NoJobs(f"{name}:{lines[0][0]}: no job stands below the header; write a line for each")
    return workload_of(name, [job for job, _ in found], lines=[at for _, at in found])


def _csv_arrivals(lines: Sequence[tuple[int, str]], name: str) -> Iterator[tuple[Arrival, int]]:
    """Yield jobs, each with the number of its line. Raises BadInput, naming line and column."""
    rows = csv.DictReader((line for _, line in lines), skipinitialspace=True, strict=True)
    try:
        columns = [each.strip() for each in rows.fieldnames or []]
        rows.fieldnames = columns
        _check_header(columns, f"{name}:{lines[0][0]}")
        for row in rows:
            at = lines[rows.line_num - 1][0]
            yield arrival_of(row, f"{name}:{at}"), at
    except csv.Error as error:
        at = lines[min(rows.line_num, len(lines) - 1)][0]
        raise BadInput(f"{name}:{at}: is no line of a list of arrivals ({error})") from None


def _check_header(columns: Sequence[str], where: str) -> None:
    unknown = sorted(set(columns) - {*NEEDED, *OPTIONAL})
    missing = [each for each in NEEDED if each not in columns]
    twice = [each for each in columns if columns.count(each) > 1]
    if len(columns) == 1 and (by := next((each for each in ";\t|" if each in columns[0]), None)):
        raise BadInput(f"{where}: columns are separated by {by!r}; separate them, and all values, by commas")
    if unknown or missing:
        what = f"there is no column {unknown[0]!r}" if unknown else f"the column {missing[0]!r} is missing"
        raise BadInput(f"{where}: {what}; columns are {', '.join(NEEDED)} and, if wanted, {', '.join(OPTIONAL)}")
    if twice:
        raise BadInput(f"{where}: the column {twice[0]!r} is there twice; name each once")


def arrival_of(row: Mapping[str, str], where: str) -> Arrival:
    """Return the job that a line of a list of arrivals describes, by column. Raises BadInput, which names ``where``."""

    def number(column: str, otherwise: float | None = None, least: float = 0.0, most: float = math.inf) -> float:
        """Return a column as a number, ``otherwise`` where it is empty. Raises BadInput with the row's place."""
        text = row.get(column) or ""
        if not text and otherwise is not None:
            return otherwise
        return _parsed(text, column, where, least, most)

    if (more := row.get(cast(str, None))) is not None:  # where DictReader puts what has no column
        are = "is 1 value" if len(more) == 1 else f"are {len(more)} values"
        raise BadInput(f"{where}: there {are} more than columns; the first is {shown(more[0])}")
    if lacking := [each for each in NEEDED if row.get(each, "") is None]:  # so DictReader tells what is not there
        raise BadInput(f"{where}: the line ends before {lacking[0]}; values are separated by commas")
    vcpus = number("vcpus", None, 0.001, VCPUS_MOST)
    memory_mib = number("memory_mib", vcpus * MIB_PER_VCPU, 1.0, MEMORY_MOST_MIB)
    nodes = _whole("nodes", number("nodes", 1.0, 1.0, NODES_MOST), where)
    target = _target(row, number, where)
    spec = JobSpec(
        name=_name(row, "name", where) or "job",
        user=_name(row, "user", where) or "unknown",
        command=COMMAND,
        target=target,
        metrics=MetricsHook(probe=COMMAND, every_s=PROBE_EVERY_S) if isinstance(target, ServiceTarget) else None,
        resources=Resources(vcpus=vcpus, memory_mib=round(memory_mib)),
        nodes=Nodes(count=nodes, minimum=nodes),
        priority=_whole("priority", number("priority", 0.0, -1000.0, 1000.0), where),
        interruptible=_flag(row, "interruptible", where),
    )
    return Arrival(at_s=number("at_s"), run_s=number("run_s", least=0.001), spec=spec)


def _parsed(text: str, column: str, where: str, least: float, most: float) -> float:
    value = parse_number(text.strip())
    if value is None:
        raise BadInput(f"{where}: {column} is {shown(text)}; it must be a number")
    if not least <= value <= most:
        limits = f"of at least {plain(least)}" if math.isinf(most) else f"from {plain(least)} to {plain(most)}"
        raise BadInput(f"{where}: {column} is {value:g}; it must be a number {limits}")
    return value


def _whole(column: str, value: float, where: str) -> int:
    if value != int(value):
        raise BadInput(f"{where}: {column} is {value:g}; it must be a whole number")
    return int(value)


def _name(row: Mapping[str, str], column: str, where: str) -> str:
    text = row.get(column) or ""
    if len(text) > NAME_MOST:
        raise BadInput(f"{where}: {column} is {len(text)} characters long; it must be at most {NAME_MOST}")
    if not text.isprintable():
        raise BadInput(f"{where}: {column} is {shown(text)}; it must be of printable characters")
    return text


def _flag(row: Mapping[str, str], column: str, where: str) -> bool:
    text = (row.get(column) or "true").strip()
    if text.lower() not in YES + NO:
        raise BadInput(f"{where}: {column} is {text!r}; it must be one of {', '.join(YES + NO)}")
    return text.lower() in YES


def _target(row: Mapping[str, str], number: Callable[..., float], where: str) -> Target:
    serves = [bool(row.get(each)) for each in ("requests_per_s", "latency_ms")]
    if any(serves) and (row.get("within_s") or not all(serves)):
        raise BadInput(f"{where}: a service has requests_per_s and latency_ms, and no within_s")
    if all(serves):
        return ServiceTarget(
            requests_per_s=number("requests_per_s", None, 0.001, REQUESTS_MOST),
            latency_ms=number("latency_ms", None, 0.001, LATENCY_MOST_MS),
        )
    most_s = LONGEST_DAYS * DAY_S
    return (
        BatchTarget(finish_within_s=number("within_s", None, 0.001, most_s))
        if row.get("within_s")
        else BestEffortTarget()
    )


# ------------------------------------------------------------------------------------------------------------- history
@dataclass(frozen=True, slots=True, kw_only=True)
class PastJob:
    """A job a daemon was given; ``run_s`` None: it has not succeeded, so its run time is unknown."""

    submitted_at: float
    spec: JobSpec
    run_s: float | None


def from_past(jobs: Iterable[PastJob]) -> Workload:
    """Return what a daemon was given, each job as long as it really ran. Raises BadInput where that is nothing."""
    arrivals, unknown = [], 0
    for job in jobs:
        if job.spec.profile is not None:
            continue
        if job.run_s is None:
            unknown += 1
            continue
        arrivals.append(
            Arrival(at_s=job.submitted_at, run_s=max(0.001, job.run_s), spec=_relative(job.spec, job.submitted_at))
        )
    why = "succeeded (failed, cancelled, or not over), so that nobody knows how long"
    have, they = ("has", "it runs") if unknown == 1 else ("have", "they run")
    notes = [f"{counted(unknown, 'job')} {have} not {why} {they}; left out"] if unknown else []
    made = workload_of("history", arrivals, notes)
    return replace(made, began_at=min(each.at_s for each in arrivals))


def _relative(spec: JobSpec, submitted_at: float) -> JobSpec:
    """Return the job with a deadline that moves with its submission; it has no files to take along."""
    spec = replace(spec, workdir_sha256=None, setup=None, progress=None)
    target = spec.target
    if isinstance(target, BatchTarget) and (by := target.deadline_at(submitted_at)) is not None:
        spec = replace(spec, target=BatchTarget(finish_within_s=max(1.0, by - submitted_at)))
    return spec
