"""Workloads: which jobs arrive when, and how long each runs alone on a machine of nominal speed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import accumulate
from typing import Any, cast

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
from hcloud.planner.run_times import EXECUTABLE_TAG, GROUP_TAG, QUEUE_TAG, REQUESTED_TAG
from hcloud.simulator.input_table import (
    LATEST_AT,
    YES_OR_NO,
    InputColumn,
    Problems,
    number_within,
    printable,
    read_rows,
)
from hcloud.spec.jobfile import NODES_MOST, REQUESTS_MOST, VCPUS_MOST
from hcloud.spec.validation import counted

MIB_PER_VCPU = 1024
LONGEST_DAYS = 3650
"""The longest run time, and the longest time between arrivals. Beyond that, the unit is probably wrong."""
LATENCY_MOST_MS = 1e9
"""Eleven days."""
MEMORY_MOST_MIB, NUMBER_MOST = 1e9, 1e15
"""Upper limits: a PiB of memory, and any number of a job log (times in seconds, memory in KiB)."""
SWF_COLUMNS = (
    "job", "submit time", "wait time", "run time", "allocated processors", "used CPU time", "used memory",
    "requested processors", "requested time", "requested memory", "status", "user", "group", "executable", "queue",
    "partition", "preceding job", "think time",
)  # fmt: skip
"""Of a job log."""
SWF_COLUMNS_MOST, SWF_COLUMNS_LEAST, UNKNOWN = len(SWF_COLUMNS), 12, -1.0
"""Of a job log: columns of a line, required columns, and the value for unknown."""
SUBMITTED, WAITED, RAN, ALLOCATED, REQUESTED, STATUS, USER = 1, 2, 3, 4, 7, 10, 11
"""Places of columns of a job log."""
SWF_TAGS = ((8, REQUESTED_TAG), (12, GROUP_TAG), (13, EXECUTABLE_TAG), (14, QUEUE_TAG))
"""Columns of a job log that predict run times, by their place, and the tags they become."""
SWF_LINE = 1000
"""Of a job log: more characters than any usual line has."""
PARTS = (2.0, 3.0, 4.0)
"""Of a job log: statuses of lines about parts of a job that was stopped and resumed. Another line describes the whole
job."""
NAME_MOST = 255
"""The longest name, in characters."""
COMMAND = ("simulated",)
NODE_VCPUS = 16
"""A wider job of a log is spread over nodes of this size."""
PROBE_EVERY_S = 60.0
"""How often a service is probed."""
DAY_S = 86_400.0


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
    paid_usd: float | None = None
    """What was really paid for it; None if unknown."""

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
        paid_usd = self.paid_usd if share == 1 else None
        return replace(self, name=name or self.name, arrivals=kept, paid_usd=paid_usd)


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
    if first_s:
        ordered = [
            Arrival(at_s=each.at_s - first_s, run_s=each.run_s, spec=each.spec, needs_vcpus=each.needs_vcpus)
            for each in ordered
        ]
    return Workload(name=name, arrivals=tuple(ordered), notes=tuple(notes))


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
    flops_per_s: float | None = None
    """Floating-point operations that a host computes per second, for workloads that count these."""


def read_swf(lines: Iterable[str], name: str, reading: LogReading) -> Workload:
    """Read a job log in the Standard Workload Format (18 columns, -1 for unknown, ``;`` starts a comment).

    Invalid lines are left out, with a note of what is wrong with which. Raises BadInput, which says the same, if there
    is nothing else; NoJobs if there is no job.
    """
    arrivals, numbers, never_ran, parts, zero_at = list[Arrival](), list[int](), 0, 0, 0.0
    problems, user = Problems(name), cache(lambda number: f"user{number:.0f}" if number >= 0 else "unknown")
    for at, line in enumerate(lines, 1):
        if not (stripped := line.strip()) or stripped.startswith(";"):
            stated_at = _start_time(stripped, f"{name}:{at}")
            zero_at = zero_at or stated_at
            continue
        columns = _swf_numbers(stripped, at, problems)
        if columns is None:
            continue
        if columns[STATUS] in PARTS:  # only the first part of a job states its submission
            parts += 1
        elif columns[SUBMITTED] == UNKNOWN:
            problems.add(_swf_column(SUBMITTED), "-1, unknown; it must be known", at)
        elif columns[RAN] <= 0 or max(columns[ALLOCATED], columns[REQUESTED]) <= 0:
            never_ran += 1
        elif (size := _swf_size(columns, reading, at, problems)) is not None:
            arrivals.append(_swf_arrival(columns, *size, user(columns[USER]), reading))
            numbers.append(at)
    if not arrivals:
        problems.check()
    made = workload_of(name, arrivals, _swf_notes(never_ran, parts, problems), numbers)
    return replace(made, began_at=_began_at(zero_at, arrivals, name, numbers)) if zero_at else made


def _began_at(zero_at: float, arrivals: Sequence[Arrival], name: str, lines: Sequence[int]) -> float:
    """Return when a log's first job was submitted (Unix seconds). Raises BadInput if that is not a plausible date."""
    first = min(range(len(arrivals)), key=lambda at: arrivals[at].at_s)
    began_at = zero_at + arrivals[first].at_s
    if began_at >= LATEST_AT:
        what = f"with UnixStartTime {plain(zero_at)} this job was submitted after the year 2200"
        raise BadInput(f"{name}:{lines[first]}: {what}; times are seconds since UnixStartTime")
    return began_at


def _swf_notes(never_ran: int, parts: int, problems: Problems) -> list[str]:
    skipped = f"{counted(never_ran, 'job')} never ran or requested nothing; left out"
    of_jobs = "a job that was" if parts == 1 else "jobs that were"
    partial = f"{counted(parts, 'line')} about parts of {of_jobs} stopped and resumed; only lines of whole jobs count"
    notes = [note for count, note in ((never_ran, skipped), (parts, partial)) if count]
    return notes + ([f"{counted(problems.wrong_lines, 'line')} left out as invalid: {problems}"] if problems else [])


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


def _swf_column(place: int) -> str:
    return f"column {place + 1} ({SWF_COLUMNS[place]})"


def _swf_numbers(line: str, at: int, problems: Problems) -> list[float] | None:
    """Return the numbers of a line, or None if they cannot be right, which is added to the problems."""
    words = line.split(None, SWF_COLUMNS_MOST)
    if not SWF_COLUMNS_LEAST <= len(words) <= SWF_COLUMNS_MOST:
        found = f"more than {SWF_COLUMNS_MOST}" if len(words) > SWF_COLUMNS_MOST else str(len(words))
        problems.add("", f"expected {SWF_COLUMNS_MOST} numbers, not {found}", at)
        return None
    numbers = list(map(_swf_number if len(line) < SWF_LINE else parse_number, words))
    if None not in numbers and max(cast(list[float], numbers)) <= NUMBER_MOST:
        below = {number for place, number in enumerate(cast(list[float], numbers)) if number < 0 and place != WAITED}
        if below <= {UNKNOWN}:
            return cast(list[float], numbers)
    for place, (number, word) in enumerate(zip(numbers, words, strict=True)):
        if number is None:
            problems.add(_swf_column(place), f"{shown(word)} is not a number", at)
        elif number > NUMBER_MOST:
            problems.add(_swf_column(place), f"{number:g} is too large; times are in seconds, memory in KiB", at)
        elif number < 0 and number != UNKNOWN and place != WAITED:  # clocks that were set make waits negative
            problems.add(_swf_column(place), f"{number:g} is negative; only -1 (unknown) may be", at)
    return None


_swf_number = lru_cache(100_000)(parse_number)
"""Most numbers of a log occur many times. Longer lines than usual would fill the memory."""


def _swf_size(
    columns: Sequence[float], reading: LogReading, at: int, problems: Problems
) -> tuple[Resources, Nodes] | None:
    """Return what each node of a job requests and the nodes, or None if that is too much."""
    processors = math.ceil(max(columns[ALLOCATED], columns[REQUESTED]))
    kib_per_processor = max(columns[6], columns[9] if len(columns) > 9 else UNKNOWN)
    mib_per_vcpu = math.ceil(kib_per_processor / 1024) if kib_per_processor > 0 else MIB_PER_VCPU
    resources, nodes = spread_over_nodes(processors, mib_per_vcpu, reading.node_vcpus)
    if nodes.count > NODES_MOST:
        what = f"needs more than {NODES_MOST} nodes of --node-vcpus {reading.node_vcpus}; increase --node-vcpus"
        problems.add("", f"a job of {processors} processors {what}", at)
        return None
    if resources.memory_mib > MEMORY_MOST_MIB:
        what = f"a node of this job has {resources.memory_mib:.3g} MiB; memory is in KiB per processor"
        problems.add("", what, at)
        return None
    return resources, nodes


def _swf_arrival(
    columns: Sequence[float], resources: Resources, nodes: Nodes, user: str, reading: LogReading
) -> Arrival:
    spec = JobSpec(
        name=f"log-{columns[0]:.0f}",
        user=user,
        command=COMMAND,
        target=BatchTarget(finish_within_s=columns[RAN] * (1 + reading.slack) + reading.slack_s),
        resources=resources,
        nodes=nodes,
        tags=_swf_tags(tuple(columns[place] if place < len(columns) else UNKNOWN for place, _ in SWF_TAGS)),
    )
    return Arrival(at_s=columns[SUBMITTED], run_s=columns[RAN], spec=spec)


@lru_cache(10_000)
def _swf_tags(values: tuple[float, ...]) -> Mapping[str, str]:
    """Return what is known of the columns of ``SWF_TAGS``; jobs with the same values share it."""
    return {tag: plain(value) for (_, tag), value in zip(SWF_TAGS, values, strict=True) if value >= 0}


@lru_cache(10_000)
def request(vcpus: float, memory_mib: int, nodes: int) -> tuple[Resources, Nodes]:
    """Return what each of ``nodes`` nodes requests, and the nodes; jobs of one size share these objects."""
    return Resources(vcpus=vcpus, memory_mib=memory_mib), Nodes(count=nodes, minimum=nodes)


def spread_over_nodes(vcpus: int, mib_per_vcpu: int, node_vcpus: int) -> tuple[Resources, Nodes]:
    """Return what each node of a job requests and the nodes, as few as possible of at most ``node_vcpus`` each."""
    count = -(-vcpus // node_vcpus)
    each = math.ceil(vcpus / count)
    return request(each, each * mib_per_vcpu, count)


# ----------------------------------------------------------------------------------------------------------------- CSV
_NAME = printable(NAME_MOST)
COLUMNS = (
    InputColumn(name="at_s", parse=number_within(0.0), required=True),
    InputColumn(name="run_s", parse=number_within(0.001), required=True),
    InputColumn(name="vcpus", parse=number_within(0.001, VCPUS_MOST), required=True),
    InputColumn(name="memory_mib", parse=number_within(1.0, MEMORY_MOST_MIB)),
    InputColumn(name="name", parse=_NAME),
    InputColumn(name="user", parse=_NAME),
    InputColumn(name="nodes", parse=number_within(1.0, NODES_MOST, whole=True)),
    InputColumn(name="priority", parse=number_within(-1000.0, 1000.0, whole=True)),
    InputColumn(name="interruptible", parse=YES_OR_NO),
    InputColumn(name="within_s", parse=number_within(0.001, LONGEST_DAYS * DAY_S)),
    InputColumn(name="requests_per_s", parse=number_within(0.001, REQUESTS_MOST)),
    InputColumn(name="latency_ms", parse=number_within(0.001, LATENCY_MOST_MS)),
    InputColumn(name=REQUESTED_TAG, parse=number_within(0.001, LONGEST_DAYS * DAY_S)),
    InputColumn(name=GROUP_TAG, parse=_NAME),
    InputColumn(name=EXECUTABLE_TAG, parse=_NAME),
    InputColumn(name=QUEUE_TAG, parse=_NAME),
)
"""Of a list of arrivals."""
_TAGS = (REQUESTED_TAG, GROUP_TAG, EXECUTABLE_TAG, QUEUE_TAG)
NEEDED = tuple(each.name for each in COLUMNS if each.required)
OPTIONAL = tuple(each.name for each in COLUMNS if not each.required)


def read_csv(lines: Iterable[str], name: str) -> Workload:
    """Read arrivals from CSV: a header, then one line per job. Lines that start with ``#`` and empty lines are skipped.

    ``within_s`` makes a batch job with a deadline, ``requests_per_s`` and ``latency_ms`` a service; otherwise it is
    best effort. Raises BadInput, which names all wrong columns with their lines; NoJobs without a job.
    """
    problems, arrivals, numbers = Problems(name), list[Arrival](), list[int]()
    for at, row in read_rows(lines, COLUMNS, problems, table="a list of arrivals"):
        if (what := _contradiction(row)) is not None:
            problems.add("", what, at)
        elif not problems:
            arrivals.append(_csv_arrival(row))
            numbers.append(at)
    problems.check()
    if not numbers:
        raise NoJobs(f"{name}: there is no job below the header; write one line per job")
    return workload_of(name, arrivals, lines=numbers)


def arrival_of(row: Mapping[str, str], where: str) -> Arrival:
    """Return the job that a row of texts describes. Raises BadInput, which names ``where`` and all wrong columns."""
    values, wrong = dict[str, Any](), []
    for column in COLUMNS:
        if not (text := row.get(column.name, "").strip()):
            continue
        try:
            values[column.name] = column.parse(text)
        except ValueError as error:
            wrong.append(f"{column.name}: {error}")
    if not wrong and (what := _contradiction(values)) is not None:
        wrong.append(what)
    if wrong:
        raise BadInput(f"{where}: {'; '.join(wrong)}")
    return _csv_arrival(values)


def _contradiction(row: Mapping[str, Any]) -> str | None:
    serves = [each in row for each in ("requests_per_s", "latency_ms")]
    if any(serves) and ("within_s" in row or not all(serves)):
        return "a service needs both requests_per_s and latency_ms, and no within_s"
    return None


def _csv_arrival(row: Mapping[str, Any]) -> Arrival:
    vcpus = row["vcpus"]
    target = _target(row)
    resources, nodes = request(vcpus, round(row.get("memory_mib", vcpus * MIB_PER_VCPU)), int(row.get("nodes", 1)))
    spec = JobSpec(
        name=row.get("name", "job"),
        user=row.get("user", "unknown"),
        command=COMMAND,
        target=target,
        metrics=MetricsHook(probe=COMMAND, every_s=PROBE_EVERY_S) if isinstance(target, ServiceTarget) else None,
        resources=resources,
        nodes=nodes,
        priority=int(row.get("priority", 0)),
        interruptible=row.get("interruptible", True),
        tags={tag: row[tag] if isinstance(row[tag], str) else plain(row[tag]) for tag in _TAGS if tag in row},
    )
    return Arrival(at_s=row["at_s"], run_s=row["run_s"], spec=spec)


def _target(row: Mapping[str, Any]) -> Target:
    if "latency_ms" in row:
        return ServiceTarget(requests_per_s=row["requests_per_s"], latency_ms=row["latency_ms"])
    return BatchTarget(finish_within_s=row["within_s"]) if "within_s" in row else BestEffortTarget()


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
