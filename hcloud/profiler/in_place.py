"""Measure a running unit where it runs: what it tolerates and causes in its present phase (Paragon §3.4).

The unit goes on with its work. Sources press beside it no harder than it is expected to tolerate, and lightly first:
a unit that suffers from a lighter pressure is not put under the full one. To measure what it causes, it is halted for
parts of a second: a probe is compared with and without it.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable

from hcloud.core.errors import NotFound, Unmeasurable
from hcloud.core.estimates import Findings, Measure, Reading
from hcloud.core.model import ProfileRequest
from hcloud.profiler.host import MeasuredUnit, ProfilingHost
from hcloud.profiler.measure import Bench
from hcloud.profiler.sandbox import TICK_S, CopyResult, CopyUse, output_mib
from hcloud.profiler.sources import source_named
from hcloud.profiler.subject import LiveSubject, Stage, Subject
from hcloud.profiler.tuning import FULL

HALTED_SHARE = 1 / 12
"""For each source a unit is halted for at most this part of a run in place."""
HALTED_PER_ROUND = 2 / 3
"""Part of the time of a measured round for which a unit is halted while its pressure is measured."""
_SHOWS_NEIGHBOURS = (Measure.PROGRESS, Measure.REQUESTS, Measure.OUTPUT, Measure.INSTRUCTIONS)


class RunningSubject:
    """A running unit in the role of a copy (:class:`hcloud.profiler.subject.LiveSubject`); never started or ended."""

    lacks: tuple[str, ...] = ()
    bounded = True

    def __init__(self, host: ProfilingHost, unit: MeasuredUnit) -> None:
        """Refer to a unit of this machine."""
        self._host, self._unit, self.job = host, unit, unit.job

    @property
    def pid(self) -> int:
        """Its first process."""
        return self._unit.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._unit.ended

    def attend(self, seconds: float, *also: int) -> list[int]:
        """Let time pass until it ends, or until any of ``also`` are readable: return those."""
        deadline = time.monotonic() + seconds
        while not self._host.stopping() and (left_s := deadline - time.monotonic()) > 0:
            if ready := select.select(also, [], [], min(TICK_S, left_s))[0]:
                return ready
            if self.ended:
                return []
        return []

    def use(self) -> CopyUse:
        """Return what it has used so far."""
        used, tree = self._unit.usage(), self._host.tree_usage(self.processes())
        cpus = self._host.cpu_times(self._unit.cpus or ())
        return CopyUse(
            throttled_s=used.throttled_s or 0.0,
            cpus_busy_s=cpus.busy_s,
            cpus_stolen_s=cpus.stolen_s,
            cpu_s=used.cpu_s if used.cpu_s is not None else tree.cpu_s,
            waited_s=tree.waited_s,
            memory_mib=used.memory_mib if used.memory_mib is not None else tree.memory_mib,
            read_mib=tree.read_mib,
            written_mib=tree.written_mib,
        )

    def cpu_s(self) -> float:
        """Return the CPU time it has used so far."""
        return self.use().cpu_s

    def output_mib(self) -> float:
        """Return how much output it has produced so far: its streams, and files in its work directory."""
        return output_mib(self._unit.log, self.job)

    def processes(self) -> set[int]:
        """Return the ids of its processes."""
        return self._unit.processes()

    def pause(self) -> None:
        """Halt it. Raises Unmeasurable where that is not possible."""
        self._freeze(True)

    def resume(self) -> None:
        """Continue it. Raises Unmeasurable where that is not possible."""
        self._freeze(False)

    def _freeze(self, frozen: bool) -> None:
        try:
            self._unit.freeze(frozen)
        except OSError as error:
            raise Unmeasurable(f"it could not be halted: {error.strerror or error}") from error

    def end(self) -> CopyResult:
        """Raise Unmeasurable: it is only looked at, and has ended by itself."""
        raise Unmeasurable("it ended before this was measured")


class StageInPlace(Stage):
    """A stage on which a running unit is, from the beginning on. Its CPUs are the first ones of the machine."""

    def __init__(
        self, subject: Subject, host: ProfilingHost, unit: MeasuredUnit, *, run_s: float, deadline: float
    ) -> None:
        """Prepare a stage around ``unit``."""
        super().__init__(subject, host, run_s=run_s, deadline=deadline)
        self._unit = unit
        self.cpus = tuple(sorted(unit.cpus or os.sched_getaffinity(0)))

    def held_mib(self) -> float:
        """Return 0: the unit has memory of its own."""
        return 0.0

    def in_its_place(self, highest: float) -> float:
        """Return 100: while the unit is halted its CPU time is free."""
        return FULL

    def clear(self) -> None:
        """Leave the unit alone."""

    def close(self) -> None:
        """Stop reading its metrics."""
        self._stack.close()

    def _begun(self, vcpus: float) -> LiveSubject:
        self._vcpus = vcpus
        self._reader = self._reader or self._read_service_metrics()
        return RunningSubject(self.host, self._unit)


def measure_in_place(
    request: ProfileRequest, subject: Subject, host: ProfilingHost, *, report: Callable[[Findings], None]
) -> Findings:
    """Measure ``host.running`` as far as the request's time allows; ``report`` receives interim findings.

    Never raises for failures of the unit or the machine: the findings contain the available readings, and notes in
    whole sentences.
    """
    assert host.running is not None
    began, deadline = time.monotonic(), time.monotonic() + request.total_s
    stage = StageInPlace(subject, host, host.running, run_s=request.run_s, deadline=deadline)
    readings, notes = list[Reading](), list[str]()
    found = Findings()
    with Bench(subject, host, run_s=request.run_s, deadline_s=request.total_s, stage=stage) as bench:
        left = list(request.expected)
        while left:
            each = left.pop(0)
            within_s = stage.left_s() / (len(left) + 1)
            try:
                readings.append(_answer(bench, each, request.steps_vcpus[0], within_s, request.total_s))
            except (Unmeasurable, NotFound, OSError) as reason:
                notes.append(str(reason))
            measure = bench.measure
            found = Findings(
                measure=measure,
                readings=tuple(readings),
                duration_s=time.monotonic() - began,
                notes=(*bench.notes, *dict.fromkeys(notes)),
            )
            report(found)
    return found


def _answer(bench: Bench, expected: Reading, vcpus: float, within_s: float, total_s: float) -> Reading:
    source = source_named(expected.column)
    if expected.question == "caused":
        halted_s = HALTED_SHARE * total_s / HALTED_PER_ROUND
        return bench.caused(source, vcpus, within_s=min(within_s, halted_s))
    if bench.look(vcpus).measure not in _SHOWS_NEIGHBOURS:
        raise Unmeasurable("nothing shows how fast it works, so what it tolerates cannot be measured in place")
    return bench.tolerated_up_to(expected.value, source, vcpus, within_s=within_s)
