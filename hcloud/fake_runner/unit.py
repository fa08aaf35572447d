"""One unit on the fake engine: its state at any time follows from its work, its start and its stop."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hcloud.core.arrays import Interval, has_position
from hcloud.core.estimates import Findings
from hcloud.core.model import FailureCause, UnitId
from hcloud.core.task_runs import TaskProgress
from hcloud.engine.wire import unit_from_wire, unit_to_wire
from hcloud.fake_runner.profile import found_by
from hcloud.fake_runner.tasks import log_of, progress_of
from hcloud.fake_runner.work import Work
from hcloud.provider import PAUSED_MOST_S, ExitRecord, UnitReport, UnitSample, UnitSpec, UnitState, UnitStream

TERMINATED_CODE, KILLED_CODE = 143, 137
OUT_OF_MEMORY_AFTER_S = 0.2
SATURATED = 100.0
"""Maximum latency of an overloaded service, in multiples of its best latency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeUnit:
    """A unit's fence and history."""

    id: UnitId
    instance_id: str
    spec: UnitSpec | None
    """None for a fence without a unit."""
    started_at: float | None
    """None: it was fenced by a stop before its start, or refused, and can never run."""
    speed: float = 1.0
    """Speed since ``since_at``."""
    since_at: float | None = None
    """None: since its start."""
    done_s: float = 0.0
    """Work done by ``since_at``."""
    stop_at: float = math.inf
    stop_cause: FailureCause | None = None
    is_draining: bool = False
    """Whether the task that runs may end before the unit stops."""
    forgotten: bool = False
    """Its directory is deleted; its fence is not."""
    bounded_at: float | None = None
    """When its limits were last changed."""
    cpu_before_s: float = 0.0
    """CPU time used by ``bounded_at``."""
    refusal: str = ""
    """Why its start was refused."""
    bounded_in: int = 0
    """Epoch of the leader that last changed its limits."""
    paused_at: float | None = None
    """Since when it is paused; None: it runs."""
    paused_s: float = 0.0
    """How long its ended pauses were in sum."""
    resumed_at: float = 0.0
    """When its last pause ended."""

    @property
    def pace(self) -> float:
        """Work that it does in a second: none while it is paused."""
        return self.speed if self.paused_at is None else 0.0

    @property
    def works_from(self) -> float:
        """Since when it works at ``speed``; if it is paused, when its worker resumes it by itself."""
        if self.paused_at is not None:
            return self.paused_at + PAUSED_MOST_S
        return (self.started_at or 0.0) if self.since_at is None else self.since_at

    def total_paused_s(self, at: float) -> float:
        """Return how long it was paused up to a time."""
        return self.paused_s + (0.0 if self.paused_at is None else max(0.0, min(at, self.works_from) - self.paused_at))

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, without secrets: a unit that another process takes over has no values of these."""
        spec = self.spec
        if spec is not None and spec.secrets:
            spec = replace(spec, env={name: each for name, each in spec.env.items() if name not in spec.secrets})
        return {
            "id": self.id,
            "instance_id": self.instance_id,
            "spec": None if spec is None else unit_to_wire(spec),
            "started_at": self.started_at,
            "speed": self.speed,
            "since_at": self.since_at,
            "done_s": self.done_s,
            "stop_at": self.stop_at,
            "stop_cause": self.stop_cause,
            "is_draining": self.is_draining,
            "forgotten": self.forgotten,
            "bounded_at": self.bounded_at,
            "cpu_before_s": self.cpu_before_s,
            "refusal": self.refusal,
            "bounded_in": self.bounded_in,
            "paused_at": self.paused_at,
            "paused_s": self.paused_s,
            "resumed_at": self.resumed_at,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> FakeUnit:
        """Return the unit written by :meth:`to_json`."""
        spec, cause = row["spec"], row["stop_cause"]
        changes = {
            "spec": None if spec is None else unit_from_wire(spec),
            "stop_cause": None if cause is None else FailureCause(cause),
        }
        return cls(**{**row, **changes})


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedUnit:
    """A unit with its work, which together determine its state at any time."""

    unit: FakeUnit
    work: Work
    findings: Findings | None = None
    """What its profiling run finds if it is not stopped early."""
    ends_at: float = field(init=False)
    """When it ends without further intervention; may be infinite."""

    def __post_init__(self) -> None:
        """Compute the end once: it is read far more often than the unit changes."""
        object.__setattr__(self, "ends_at", _end_of(self.unit, self.work)[0])

    @property
    def record(self) -> ExitRecord:
        """Its exit record without further intervention, with its total resource use."""
        unit, (ended_at, code, cause, detail) = self.unit, _end_of(self.unit, self.work)
        ran = unit.spec is not None and unit.started_at is not None
        return ExitRecord(
            exit_code=code,
            cause=cause,
            started_at=ended_at if unit.started_at is None else unit.started_at,
            ended_at=ended_at,
            detail=detail,
            cpu_s=self.cpu_s(ended_at) if ran else None,
            memory_mib_max=self.work.memory_mib if ran else None,
            findings=self._found(ended_at, detail) if ran else None,
        )

    def _found(self, ended_at: float, detail: str) -> Findings | None:
        if self.findings is None:
            return None
        share = (ended_at - (self.unit.started_at or 0.0)) / max(self.work.duration_s, 1e-9)
        return found_by(self.findings, 1.0 if share >= 1 - 1e-6 else share, detail)

    def ended(self, now: float) -> bool:
        """Return whether it has ended."""
        return self.ends_at <= now

    def report(self, now: float, sampled_at: float | None, looks: int = 1) -> UnitReport:
        """Return its worker's report, with a sample taken at ``sampled_at`` that represents ``looks`` samples."""
        unit, sample = self.unit, None if sampled_at is None else self.sample(sampled_at, looks)
        if self.ended(now):
            state = UnitState.ENDED
            return UnitReport(
                id=unit.id,
                state=state,
                started_at=unit.started_at,
                sample=sample,
                exit=self.record,
                tasks=self.task_progress(now),
            )
        tasks = self.task_progress(now)
        return UnitReport(id=unit.id, state=UnitState.RUNNING, started_at=unit.started_at, sample=sample, tasks=tasks)

    def task_progress(self, now: float) -> TaskProgress | None:
        """Return what became of its tasks by a time; None: it is no unit with many."""
        unit, until = self.unit, min(now, self.ends_at)
        if unit.spec is None or unit.spec.tasks is None or unit.started_at is None:
            return None
        is_stopped = self.ended(now) and unit.stop_at <= self.ends_at
        stop = (unit.stop_cause or FailureCause.EVICTED) if is_stopped and not unit.is_draining else None
        done_s = self.done_s(until)
        found = progress_of(self.work.tasks, done_s, unit.started_at, until, stop, is_over=self.ended(now))
        return replace(found, begun=()) if is_stopped and unit.is_draining else found

    def end_of_other_task(self, now: float, tasks: Sequence[Interval]) -> float | None:
        """Return when the task that runs now ends at its present speed; None: none does, or it is one of ``tasks``."""
        done_s = self.done_s(now)
        running = next((each for each in self.work.tasks if each.begins_s <= done_s < each.ends_s), None)
        if running is None or has_position(tasks, running.position) or self.unit.speed <= 0:
            return None
        return now + (running.ends_s - done_s) / self.unit.speed

    def _task_log(self, now: float) -> str:
        progress = self.task_progress(now)
        if progress is None:
            return ""
        offsets = {
            each.position: (
                sum(len(text) for at_s, name, text in self.work.output if name == "stdout" and at_s <= each.ends_s),
                sum(len(text) for at_s, name, text in self.work.output if name == "stderr" and at_s <= each.ends_s),
            )
            for each in self.work.tasks
        }
        return log_of(progress, offsets)

    def sample(self, at: float, looks: int = 1) -> UnitSample | None:
        """Return its resource use and results up to a time; None before its start."""
        spec, started_at, work = self.unit.spec, self.unit.started_at, self.work
        if spec is None or started_at is None or at < started_at:
            return None
        until, served = min(at, self.ends_at), work.requests_per_s
        if served is not None:
            served *= self.serves()[0]
        return UnitSample(
            at=at,
            cpu_s=self.cpu_s(until),
            memory_mib=work.memory_mib,
            read_mib=0.0,
            written_mib=0.0,
            progress=self._progress(until) if spec.progress is not None else None,
            requests_per_s=served if spec.metrics is not None else None,
            latency_ms=self._latency_ms() if spec.metrics is not None else {},
            cpus=spec.cpus,
            paused_s=self.unit.total_paused_s(until),
            looks=looks,
        )

    def cpu_s(self, at: float) -> float:
        """Return the CPU time used up to ``at``, at which it must be running."""
        spec, since = self.unit.spec, self.unit.bounded_at or self.unit.started_at
        if self.unit.paused_at is not None:
            since = self.unit.works_from
        if spec is None or since is None:
            return 0.0
        busy_vcpus = self.work.cpu_share * min(spec.resources.vcpus, self.work.most_vcpus)
        return self.unit.cpu_before_s + max(0.0, at - since) * busy_vcpus

    def output(self, stream: UnitStream, now: float) -> bytes:
        """Return its output to a stream up to a time."""
        started_at = self.unit.started_at
        if started_at is None:
            return b""
        if stream == "tasks":
            return self._task_log(now).encode()
        done_s = self.done_s(min(now, self.ends_at))
        written = [text for at_s, name, text in self.work.output if name == stream and at_s <= done_s]
        if stream == "stdout" and self.ended(now) and self.record.exit_code == self.work.on_term:
            written.append(self.work.last_words)
        return "".join(written).encode()

    def done_s(self, at: float) -> float:
        """Return how much of its work is done by a time."""
        unit = self.unit
        worked_s = at - unit.works_from
        return unit.done_s + (worked_s if unit.paused_at is None else max(0.0, worked_s)) * unit.speed

    def _progress(self, at: float) -> float:
        if self.work.progress_at is not None:
            return self.work.progress_at
        return min(1.0, max(0.0, self.done_s(at) / max(self.work.duration_s, 1e-9)))

    def serves(self) -> tuple[float, float]:
        """Return the share of requests served, and the latency in multiples of its best.

        Latency grows as spare capacity shrinks (a queue with one server), up to ``SATURATED`` times.
        """
        load, speed = self.work.load, self.unit.speed
        times = (1.0 - load) / max(speed - load, (1.0 - load) / SATURATED)
        return 1.0 if not load else min(1.0, speed / load), times

    def keeps_promise(self) -> bool:
        """Return whether a service meets its latency target; True for all other units."""
        return not self.work.latency_ms or all(ms <= self.work.promised_ms for ms in self._latency_ms().values())

    def _latency_ms(self) -> Mapping[str, float]:
        times = self.serves()[1]
        return {name: ms * times for name, ms in self.work.latency_ms.items()}


_End = tuple[float, int | None, FailureCause | None, str]
"""End time, exit code, cause and detail of a unit."""


def _end_of(unit: FakeUnit, work: Work) -> _End:
    """Return the earliest of all possible ends of the unit."""
    spec, started_at = unit.spec, unit.started_at
    if started_at is None or spec is None:
        return unit.stop_at, None, unit.stop_cause, unit.refusal or "stopped before it was started"
    first = _own_end(unit, started_at, work)
    if work.memory_mib > spec.resources.memory_mib:
        at = started_at + min(OUT_OF_MEMORY_AFTER_S, work.duration_s)
        first = _earlier(first, (at, KILLED_CODE, FailureCause.OUT_OF_MEMORY, "used more memory than it asked for"))
    # The limit holds for each task where there are many, and not while the unit is paused.
    if spec.max_runtime_s is not None and spec.tasks is None:
        limit_at = started_at + spec.max_runtime_s + unit.total_paused_s(math.inf)
        first = _earlier(first, _end_after_term(spec, work, limit_at, FailureCause.TIMEOUT, "ran longer than allowed"))
    if unit.stop_at < math.inf:
        first = _earlier(first, _end_after_term(spec, work, unit.stop_at, unit.stop_cause, "stopped on request"))
    return first


def _earlier(one: _End, other: _End) -> _End:
    return other if other[0] < one[0] else one


def _own_end(unit: FakeUnit, started_at: float, work: Work) -> _End:
    cause = FailureCause.EXIT_CODE if work.exit_code else None
    left_s = max(0.0, work.duration_s - unit.done_s) / unit.speed
    since_at = unit.works_from
    resumed_at = unit.resumed_at if unit.paused_at is None else since_at
    ends_at = max(started_at + work.duration_s, resumed_at) if work.timed else since_at + left_s
    return ends_at, work.exit_code, cause, ""


def _end_after_term(spec: UnitSpec, work: Work, at: float, cause: FailureCause | None, detail: str) -> _End:
    if work.on_term == "ignores":
        return at + spec.stop_grace_s, KILLED_CODE, cause, detail + "; killed after its grace"
    return at, TERMINATED_CODE if work.on_term == "ends" else work.on_term, cause, detail
