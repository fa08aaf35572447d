"""Workloads: which jobs arrive when, and how long each runs alone on a machine of nominal speed."""

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
"""The longest run time, and the longest time between arrivals. Beyond that, the unit is probably wrong."""
LATENCY_MOST_MS = 1e9
"""Eleven days."""
MEMORY_MOST_MIB, NUMBER_MOST = 1e9, 1e15
"""Upper limits: a PiB of memory, and any number of a job log (times in seconds, memory in KiB)."""
SWF_COLUMNS, SWF_COLUMNS_LEAST, SUBMITTED, WAITED, UNKNOWN = 18, 12, 1, 2, -1.0
"""Of a job log: columns of a line, required columns, the column of the submission time, and the value for unknown."""
STATUS, PARTS = 10, (2.0, 3.0, 4.0)
"""Of a job log: the column of a job's status, and its values for lines about parts of a job that was stopped and
resumed. Another line describes the whole job."""
NAME_MOST = 255
"""The longest name, in characters."""
COMMAND = ("simulated",)
NODE_VCPUS = 16
"""A wider job of a log is spread over nodes of this size."""
PROBE_EVERY_S = 60.0
"""How often a service is probed."""
DAY_S = 86_400.0
LATEST_AT = 7_258_118_400.0
"""The year 2200; a workload that starts later has a wrong date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A job of a workload."""

    at_s: float
    """Submission, in seconds from the start."""
    run_s: float
    """Run time on the resources it requests."""
    spec: JobSpec
    needs_vcpus: float | None = None
    """The vCPUs with which it runs for ``run_s``, whatever is requested. None: the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Arrivals in order of time."""

    name: str
    arrivals: tuple[Arrival, ...]
    notes: tuple[str, ...] = ()
    """Sentences on what was left out of the source."""
    began_at: float | None = None
    """When it really began (Unix seconds), so that days and months end when they did; None if unknown."""

    @property
    def span_s(self) -> float:
        """Seconds from the start to the last arrival."""
        return self.arrivals[-1].at_s if self.arrivals else 0.0

    def cores(self, step_s: float = 60.0) -> tuple[float, ...]:
        """Return the cores in use at each step if every job started at once.

        Sampled once per step. If that misstates the load by more than a tenth (short jobs at regular times), each value
        is the mean over its step.
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
        """Add what is held from the beginning to the end of each step, corrected for jobs that begin or end within
        it."""
        held, partly = [0.0] * (steps + 1), [0.0] * (steps + 1)
        for each in self.arrivals:
            for at_s, by in ((each.at_s, _vcpus(each)), (each.at_s + each.run_s, -_vcpus(each))):
                step = min(steps, int(at_s / step_s))
                held[step] += by
                partly[step] -= by * (min(steps, at_s / step_s) - step)
        return tuple(max(0.0, used + part) for used, part in zip(accumulate(held[:steps]), partly, strict=False))

    def scaled(self, share: float, name: str = "") -> Workload:
        """Return about this share (0..1] of the jobs, picked evenly. Raises BadInput if no job is left."""
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
    """Return a workload with the arrivals in order, the first at 0. ``lines``: their lines in file ``name``, if any.

    Raises NoJobs without arrivals; BadInput if a run, or the whole, is longer than LONGEST_DAYS.
    """
    if not arrivals:
        raise NoJobs(f"{name}: there is no job to simulate" + "".join(f"; {note}" for note in notes))
    first_s = min(each.at_s for each in arrivals)
    _check_span("this job arrives %s days after the first", [each.at_s - first_s for each in arrivals], name, lines)
    _check_span("a job runs for %s days", [each.run_s for each in arrivals], name, lines)
    ordered = sorted(arrivals, key=lambda each: each.at_s)
    return Workload(
        name=name, arrivals=tuple(replace(each, at_s=each.at_s - first_s) for each in ordered), notes=tuple(notes)
    )


def _check_span(what: str, spans_s: Sequence[float], name: str, lines: Sequence[int]) -> None:
    """Raise BadInput if the longest span exceeds LONGEST_DAYS; the error names its line, if any."""
    longest_s = max(spans_s)
    if longest_s > LONGEST_DAYS * DAY_S:
        where = f"{name}:{lines[spans_s.index(longest_s)]}" if lines else name
        text = what % f"{longest_s / DAY_S:.3g}"
        raise BadInput(f"{where}: {text}; it must be at most {LONGEST_DAYS} days, and times are in seconds")


# ------------------------------------------------------------------------------------------------------------ job logs
@dataclass(frozen=True, slots=True, kw_only=True)
class LogReading:
    """How jobs of a log are converted."""

    node_vcpus: int = NODE_VCPUS
    """A wider job is spread over nodes of this size."""
    slack: float = 1.0
    """A job's deadline is its run time x (1 + slack) + ``slack_s`` after its submission."""
    slack_s: float = 600.0


def read_swf(text: str, name: str, reading: LogReading) -> Workload:
    """Read a job log in the Standard Workload Format (18 columns, -1 for unknown, ``;`` starts a comment).

    Invalid lines are left out, with a note that names the first. Raises BadInput, which names that line, if there is
    nothing else; NoJobs if there is no job.
    """
    arrivals, lines, never_ran, parts, zero_at = list[Arrival](), list[int](), 0, 0, 0.0
    wrong: list[BadInput] = []
    # Comments may contain form feeds and the like, at which str.splitlines would break a line.
    for number, line in enumerate(io.StringIO(text, newline=None), 1):
        if not line.strip() or line.lstrip().startswith(";"):
            stated_at = _start_time(line, f"{name}:{number}")
            zero_at = zero_at or stated_at
            continue
        try:
            columns = _swf_numbers(line, f"{name}:{number}")
            if columns[STATUS] in PARTS:  # only the first part of a job states its submission
                parts += 1
                continue
            if columns[SUBMITTED] == UNKNOWN:
                raise BadInput(f"{name}:{number}: the submission time of this job is unknown (-1)")
            if columns[3] <= 0 or max(columns[4], columns[7]) <= 0:
                never_ran += 1
                continue
            arrivals.append(_swf_arrival(columns, reading, f"{name}:{number}"))
        except BadInput as error:
            wrong.append(error)
            continue
        lines.append(number)
    if wrong and not arrivals:
        raise wrong[0]
    made = workload_of(name, arrivals, _swf_notes(never_ran, parts, wrong), lines)
    return replace(made, began_at=_began_at(zero_at, arrivals, name, lines)) if zero_at else made


def _began_at(zero_at: float, arrivals: Sequence[Arrival], name: str, lines: Sequence[int]) -> float:
    """Return when a log's first job was submitted (Unix seconds). Raises BadInput if that is not a plausible date."""
    first = min(range(len(arrivals)), key=lambda at: arrivals[at].at_s)
    began_at = zero_at + arrivals[first].at_s
    if began_at >= LATEST_AT:
        what = f"with UnixStartTime {plain(zero_at)} this job was submitted after the year 2200"
        raise BadInput(f"{name}:{lines[first]}: {what}; times are seconds since UnixStartTime")
    return began_at


def _swf_notes(never_ran: int, parts: int, wrong: Sequence[BadInput]) -> list[str]:
    skipped = f"{counted(never_ran, 'job')} never ran or requested nothing; left out"
    of_jobs = "a job that was" if parts == 1 else "jobs that were"
    partial = f"{counted(parts, 'line')} about parts of {of_jobs} stopped and resumed; only lines of whole jobs count"
    notes = [note for count, note in ((never_ran, skipped), (parts, partial)) if count]
    return notes + ([f"{counted(len(wrong), 'line')} left out that cannot be right: {wrong[0]}"] if wrong else [])


def _start_time(comment: str, where: str) -> float:
    """Return the start of a log's time (Unix seconds) if this comment states it, else 0.

    Generated logs write 0, and -1 is the format's value for unknown. Raises BadInput for any other implausible value,
    as budgets of days and months would end at the wrong hour.
    """
    key, _, value = comment.lstrip("; \t").partition(":")
    if key.strip().lower() != "unixstarttime":
        return 0.0
    zero_at = parse_number(value.strip() or "0")
    if zero_at is None or not (zero_at == UNKNOWN or 0.0 <= zero_at < LATEST_AT):
        what = f"UnixStartTime is {shown(value.strip())}"
        raise BadInput(f"{where}: {what}; it must be in seconds since 1970, before the year 2200, or 0 if unknown")
    return max(0.0, zero_at)


def _swf_numbers(line: str, where: str) -> list[float]:
    words = line.split()
    numbers = [number for word in words if (number := parse_number(word)) is not None]
    if len(numbers) < len(words):
        wrong = next(word for word in words if parse_number(word) is None)
        raise BadInput(f"{where}: expected {SWF_COLUMNS} numbers; {shown(wrong)} is not a number")
    if largest := next((each for each in numbers if abs(each) > NUMBER_MOST), None):
        raise BadInput(f"{where}: {largest:g} is too large for a job log; times are in seconds, memory in KiB")
    if not SWF_COLUMNS_LEAST <= len(numbers) <= SWF_COLUMNS:
        raise BadInput(f"{where}: expected {SWF_COLUMNS} numbers, not {len(numbers)}")
    all_but_wait = (
        numbers[:WAITED] + numbers[WAITED + 1 :]
    )  # clocks that were set make waits negative; they are not used
    if negative := next((each for each in all_but_wait if each < 0 and each != UNKNOWN), None):
        raise BadInput(f"{where}: {negative:g} is negative; the only negative number of a job log is -1, unknown")
    return numbers


def _swf_arrival(columns: Sequence[float], reading: LogReading, where: str) -> Arrival:
    run_s, processors = columns[3], math.ceil(max(columns[4], columns[7]))
    count = -(-processors // reading.node_vcpus)
    if count > NODES_MOST:
        raise BadInput(
            f"{where}: a job of {processors} processors needs more than {NODES_MOST} nodes of --node-vcpus "
            f"{reading.node_vcpus}; increase --node-vcpus"
        )
    vcpus = math.ceil(processors / count)
    kib_per_processor = max(columns[6], columns[9] if len(columns) > 9 else -1)
    memory_mib = vcpus * (math.ceil(kib_per_processor / 1024) if kib_per_processor > 0 else MIB_PER_VCPU)
    if memory_mib > MEMORY_MOST_MIB:
        raise BadInput(f"{where}: a node of this job has {memory_mib:.3g} MiB; memory is in KiB per processor")
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
    """Read arrivals from CSV: a header, then one line per job. Lines that start with ``#`` and empty lines are skipped.

    ``within_s`` makes a batch job with a deadline, ``requests_per_s`` and ``latency_ms`` a service; otherwise it is
    best effort. Raises BadInput, which names line and column; NoJobs without a job.
    """
    whole = enumerate(io.StringIO(text, newline=""), 1)
    # Spreadsheets write an empty row as commas.
    lines = [(at, line) for at, line in whole if line.strip(", \t\r\n") and not line.startswith("#")]
    if not lines:
        what = "contains only comments" if text.strip(", \t\r\n") else "is empty"
        raise NoJobs(f"{name}:1: {what}; a list of arrivals starts with a header, such as {','.join(NEEDED)}")
    numbered = list(_csv_arrivals(lines, name))
    if not numbered:
        raise NoJobs(f"{name}:{lines[0][0]}: there is no job below the header; write one line per job")
    return workload_of(name, [job for job, _ in numbered], lines=[at for _, at in numbered])


def _csv_arrivals(lines: Sequence[tuple[int, str]], name: str) -> Iterator[tuple[Arrival, int]]:
    """Yield jobs with their line numbers. Raises BadInput, which names line and column."""
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
        raise BadInput(f"{name}:{at}: is not valid CSV ({error})") from None


def _check_header(columns: Sequence[str], where: str) -> None:
    unknown = sorted(set(columns) - {*NEEDED, *OPTIONAL})
    missing = [each for each in NEEDED if each not in columns]
    twice = [each for each in columns if columns.count(each) > 1]
    if len(columns) == 1 and (by := next((each for each in ";\t|" if each in columns[0]), None)):
        raise BadInput(f"{where}: columns are separated by {by!r}; separate columns and values by commas")
    if unknown or missing:
        what = f"unknown column {unknown[0]!r}" if unknown else f"column {missing[0]!r} is missing"
        raise BadInput(f"{where}: {what}; columns are {', '.join(NEEDED)} and optionally {', '.join(OPTIONAL)}")
    if twice:
        raise BadInput(f"{where}: column {twice[0]!r} appears twice; name each once")


def arrival_of(row: Mapping[str, str], where: str) -> Arrival:
    """Return the job that a CSV row describes. Raises BadInput, which names ``where``."""

    def number(column: str, otherwise: float | None = None, least: float = 0.0, most: float = math.inf) -> float:
        text = row.get(column) or ""
        if not text and otherwise is not None:
            return otherwise
        return _parsed(text, column, where, least, most)

    if (more := row.get(cast(str, None))) is not None:  # DictReader's key of values without a column
        raise BadInput(f"{where}: {counted(len(more), 'value')} more than columns; the first is {shown(more[0])}")
    if lacking := [each for each in NEEDED if row.get(each, "") is None]:  # DictReader's value of missing columns
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
        raise BadInput(f"{where}: a service needs both requests_per_s and latency_ms, and no within_s")
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
    """A job that was submitted to a daemon."""

    submitted_at: float
    spec: JobSpec
    run_s: float | None
    """None if it has not succeeded, so that its run time is unknown."""


def from_past(jobs: Iterable[PastJob]) -> Workload:
    """Return past jobs as a workload, each with its real run time. Raises BadInput without any."""
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
    have, its = ("has", "its run time is") if unknown == 1 else ("have", "their run times are")
    why = "succeeded (failed, cancelled or still active)"
    notes = [f"{counted(unknown, 'job')} {have} not {why}, so {its} unknown; left out"] if unknown else []
    made = workload_of("history", arrivals, notes)
    return replace(made, began_at=min(each.at_s for each in arrivals))


def _relative(spec: JobSpec, submitted_at: float) -> JobSpec:
    # A deadline moves with the submission, and there are no files to upload.
    spec = replace(spec, workdir_sha256=None, setup=None, progress=None)
    target = spec.target
    if isinstance(target, BatchTarget) and (by := target.deadline_at(submitted_at)) is not None:
        spec = replace(spec, target=BatchTarget(finish_within_s=max(1.0, by - submitted_at)))
    return spec
