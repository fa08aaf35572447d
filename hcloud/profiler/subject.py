"""A program under measurement: run in its sandbox, restarted when it ends, its performance read in windows."""

from __future__ import annotations

import math
import os
import select
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from hcloud.core.cpu_window import CpuWindow
from hcloud.core.errors import BadInput, Unmeasurable
from hcloud.core.estimates import Measure
from hcloud.core.model import MetricsHook, ProgressHook
from hcloud.core.service_rate import rate_in_time
from hcloud.profiler.counters import INSTRUCTIONS, counted
from hcloud.profiler.host import ProfilingHost, ServiceReader
from hcloud.profiler.namespaces import loopback_network
from hcloud.profiler.sandbox import Copy, CopyResult, CopyUse, live_copy

READ_EVERY_S = 0.02
WINDOW_S_MIN, WINDOW_S_MAX = 0.2, 0.5
"""Length of a window: many short ones in alternation leave less doubt than few long ones, as the machine drifts."""
WINDOWS_PER_RUN = 8
THROTTLED_WINDOW_S_MIN = 1.0
"""A CPU quota is granted in periods of 0.1 s; with a fractional CPU limit a window must cover several."""
PATIENCE_S_MIN, PATIENCE_S_MAX = 1.6, 16.0
"""A window without enough changes is extended to the length of the first run, within these limits."""
COUNTED_WINDOWS_MAX = 8
UNSEEN_S_MAX = 0.25
"""Maximum time between two polls that counts as observed (:class:`ObservedSpan`)."""
SERVICE_PATIENCE_S = 20.0
SERVICE_WINDOW_S_MIN = 0.9
COPY_S_MAX = 86400.0
TAIL_PERCENTILE = 99.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A program as the profiler runs it: many times, each time on a throw-away view of ``workdir``."""

    name: str
    command: tuple[str, ...]
    workdir: Path
    env: Mapping[str, str] = field(default_factory=dict)
    network: bool = False
    """Whether it uses a network: its copies then share one with sources and probes, with a loopback interface only."""
    progress: ProgressHook | None = None
    metrics: MetricsHook | None = None
    memory_mib: int = 512
    """Memory limit of each copy."""
    disk_mib: int = 1024
    """Disk limit of each copy."""
    stateful: bool = False
    """Whether it is measured only after ``warm_up_s``."""
    warm_up_s: float = 0.0
    promised_ms: float | None = None
    """The latency within which its requests count; None: any."""


class LiveSubject(Protocol):
    """A running subject: a copy, or a unit that is measured where it runs."""

    job: Path
    """Where its writes to the work directory appear."""
    lacks: tuple[str, ...]
    """What is not isolated, in sentences."""

    @property
    def pid(self) -> int:
        """Its first process."""

    @property
    def ended(self) -> bool:
        """Whether it has ended."""

    @property
    def bounded(self) -> bool:
        """Whether it has its own control group."""

    def attend(self, seconds: float, *also: int) -> list[int]:
        """Serve it for ``seconds``, until it ends, or until any of ``also`` are readable: return those."""

    def use(self) -> CopyUse:
        """Return what it has used so far."""

    def cpu_s(self) -> float:
        """Return the CPU time it has used so far."""

    def output_mib(self) -> float:
        """Return how much output it has produced so far."""

    def processes(self) -> set[int]:
        """Return the ids of its processes."""

    def pause(self) -> None:
        """Halt it; it keeps its memory."""

    def resume(self) -> None:
        """Continue it."""

    def end(self) -> CopyResult:
        """End it and return its result."""


class ObservedSpan:
    """Seconds in which a copy was observed.

    Hosts sometimes take the CPU away from a whole instance for seconds. Then neither the program nor the profiler runs,
    and that time must not count as time without progress.
    """

    def __init__(self, unseen_s_max: float = UNSEEN_S_MAX) -> None:
        """Start now; ``unseen_s_max``: how much of the time since the last poll counts (s)."""
        self._unseen_s_max, self._looked_at, self._seen_s = unseen_s_max, time.monotonic(), 0.0

    def look(self) -> float:
        """Poll once more; return the observed time so far (s)."""
        now = time.monotonic()
        self._seen_s += min(now - self._looked_at, self._unseen_s_max)
        self._looked_at = now
        return self._seen_s


class Stage:
    """Runs at most one copy of a subject.

    ``starts`` counts copies started; ``use`` is the resource use of the last complete window, ``taken`` the share of
    CPU time that the host took from it meanwhile. ``source_cpu_s`` returns the CPU time of a source on the copy's CPUs.
    """

    def __init__(self, subject: Subject, host: ProfilingHost, *, run_s: float, deadline: float) -> None:
        """Prepare a stage; ``run_s``: seconds of a first run, ``deadline``: monotonic time of the end."""
        self.subject, self.host, self.run_s, self.deadline = subject, host, run_s, deadline
        self.window_s = min(WINDOW_S_MAX, max(WINDOW_S_MIN, run_s / WINDOWS_PER_RUN))
        self._patience_s = min(PATIENCE_S_MAX, max(PATIENCE_S_MIN, run_s))
        # Each reading of a hook is a process of its own; more of them would disturb the measurement.
        self._service_window_s = max(SERVICE_WINDOW_S_MIN, self.window_s)
        # A CPU quota below the CPUs that may be used: the machine is as many of them as the quota keeps busy.
        self.cpus = tuple(sorted(os.sched_getaffinity(0)))[: max(1, math.ceil(host.vcpus - 1e-9))]
        self.starts = 0
        self.lacks: tuple[str, ...] = ()
        self.use: tuple[float, ...] = ()
        self.taken = self._source_before_s = 0.0
        self.source_cpu_s: Callable[[], float] = lambda: 0.0
        self._stack, self._network_stack = ExitStack(), ExitStack()
        self._network: list[Callable[[], None] | None] = []
        self._live: LiveSubject | None = None
        self._reader: ServiceReader | None = None
        self._vcpus = 0.0
        self._tail_ms: float | None = None
        self._requests: float | None = None
        self.bounded = True
        self._is_paused = False

    # ------------------------------------------------------------------------------------------------------ the copy
    def held_mib(self) -> float:
        """Return the memory that the subject holds, or may hold, of what all that is measured may."""
        return self.use[1] if self.use else float(self.subject.memory_mib)

    def in_its_place(self, highest: float) -> float:
        """Return up to which intensity (0..100) a source may run on the subject's CPUs while that is paused, if it may
        run up to ``highest`` beside it."""
        return highest

    def left_s(self) -> float:
        """Return the time left until the deadline, in seconds."""
        return self.deadline - time.monotonic()

    def cpus_of(self, vcpus: float) -> tuple[int, ...]:
        """Return the CPUs that a copy of this size is pinned to: the first ones of this instance."""
        return self.cpus[: max(1, math.ceil(vcpus - 1e-9))]

    def play(self, vcpus: float) -> LiveSubject:
        """Return the running copy of this size, starting one if needed. Raises Unmeasurable."""
        if self._live is None or vcpus != self._vcpus:
            self.clear()
            self._live = self._begun(vcpus)
            if self.subject.stateful and self.subject.warm_up_s > 0:
                self.attend(self.subject.warm_up_s)
        return self._live

    def enter_network(self) -> Callable[[], None] | None:
        """Return what makes a child join the network that copies of a networked subject share; None if there is none.

        It is created at the first call and ends with ``close``.
        """
        if self.subject.network and not self._network:
            self._network.append(self._network_stack.enter_context(loopback_network(self.host)))
        return self._network[0] if self._network else None

    def close(self) -> None:
        """Stop the running copy and end the network."""
        self.clear()
        self._network.clear()
        self._network_stack.close()

    def clear(self) -> None:
        """Stop the running copy, if any."""
        self._live = None
        self._reader = None
        self._stack.close()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the running copy while a block lasts."""
        live = self._live
        if live is None or live.ended:
            yield
            return
        live.pause()
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False
            if self._live is live:
                live.resume()

    def _begun(self, vcpus: float) -> LiveSubject:
        subject = self.subject
        copy = Copy(
            command=subject.command,
            workdir=subject.workdir,
            max_s=COPY_S_MAX,
            vcpus=vcpus,
            memory_mib=subject.memory_mib,
            disk_mib=subject.disk_mib,
            cpus=self.cpus_of(vcpus),
            enter=self.enter_network(),
            env={**subject.env, "HCLOUD_VCPUS": f"{vcpus:g}", "HCLOUD_MEMORY_MIB": str(subject.memory_mib)},
        )
        try:
            live = self._stack.enter_context(live_copy(copy, self.host))
        except (OSError, BadInput) as error:
            raise Unmeasurable(f"a copy of it could not be started: {error}") from error
        self._vcpus, self.lacks, self.bounded = vcpus, live.lacks, live.bounded
        self.starts += 1
        self._reader = self._read_service_metrics()
        return live

    def _read_service_metrics(self) -> ServiceReader | None:
        if (hook := self.subject.metrics) is None:
            return None
        often = replace(hook, every_s=min(hook.every_s, self._service_window_s / 3))
        return self._stack.enter_context(closing(self.host.service_reader(often)))

    def attend(self, seconds: float, *also: int) -> list[int]:
        """Let time pass while serving the running copy; one that ended successfully is restarted.

        Returns which of the descriptors ``also`` became readable. Raises Unmeasurable if the copy failed, or the time
        is over.
        """
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            if ready := self.watch(left_s, *also):
                return ready
            if self._live is not None and self._live.ended:
                vcpus = self._vcpus
                self.ended_well()
                self.play(vcpus)
        return []

    def watch(self, seconds: float, *also: int) -> list[int]:
        """Let time pass as ``attend`` does, but return when the copy ends."""
        if self.host.stopping():
            raise Unmeasurable("it was asked to end before this was measured")
        if self.left_s() <= 0:
            raise Unmeasurable("the time for profiling was over before this was measured")
        if self._live is None:
            return select.select(also, [], [], min(seconds, READ_EVERY_S))[0]
        ready = self._live.attend(seconds, *also)
        self._read_service()
        return ready

    def _read_service(self) -> None:
        if self._reader is not None and self._live is not None and not (self._live.ended or self._is_paused):
            try:
                self._reader.step(self._live.pid)
            except OSError:  # it ends right now
                return

    def ended_well(self) -> CopyResult:
        """Remove the copy that ended by itself and return its result. Raises Unmeasurable if it failed."""
        assert self._live is not None
        outcome = self._live.end()
        self.clear()
        if outcome.missing:
            raise Unmeasurable(f"there is no command {self.subject.command[0]!r} on this machine")
        if outcome.overrun:
            raise Unmeasurable(outcome.overrun)
        if outcome.exit_code != 0:
            last = outcome.stderr.decode(errors="replace").strip().rpartition("\n")[2][:200]
            output = f": {last}" if last else ""
            if self.subject.network:
                output += "; copies have no network but loopback, in case it needs another"
            raise Unmeasurable(f"it ended with code {outcome.exit_code} after {outcome.duration_s:.2f} s{output}")
        return outcome

    # ------------------------------------------------------------------------------------------------------- counters
    def progress(self) -> float | None:
        """Return the progress of the running copy (0..1); None if it is not readable."""
        hook = self.subject.progress
        if hook is None or self._live is None:
            return None
        return self.host.last_progress(self._live.job, hook.file, hook.total)

    def served(self) -> tuple[float, float | None, float] | None:
        """Return the last reading of a service: requests per second, tail latency (ms), and its start time."""
        if self._reader is None or not self._reader.latest.get("requests_per_s"):
            return None
        latency = {float(name): ms for name, ms in self._reader.latest["latency_ms"].items() if ms > 0}
        tail = max((each for each in latency if each <= TAIL_PERCENTILE), default=min(latency, default=None))
        rate = float(self._reader.latest["requests_per_s"])
        return rate, latency[tail] if tail is not None else None, self._reader.span[0]

    # -------------------------------------------------------------------------------------------------------- windows
    def sample(self, measure: Measure, vcpus: float) -> float:
        """Return performance per second over one window (or one whole run). Raises Unmeasurable."""
        match measure:
            case Measure.COMPLETION:
                return 1 / self.whole_run(vcpus)
            case Measure.REQUESTS:
                return self._service_window(vcpus)
            case Measure.PROGRESS:
                return self._window(vcpus, self.progress)
            case Measure.OUTPUT:
                return self._window(vcpus, lambda: self.play(vcpus).output_mib())
            case Measure.INSTRUCTIONS:
                return self._counted_window(vcpus)
            case _:
                return self._window(vcpus, lambda: self.play(vcpus).cpu_s())

    def whole_run(self, vcpus: float) -> float:
        """Run a new copy to its end; return its seconds. Raises Unmeasurable if it failed, or the time is over."""
        self.clear()
        live = self.play(vcpus)
        began, last, source_s = time.monotonic(), live.use(), self.source_cpu_s()
        self.taken, first = 0.0, last
        while not live.ended:
            self.watch(5 * READ_EVERY_S)
            if not live.ended:
                last = live.use()
                self._note_taken(first, last, time.monotonic() - began, self.source_cpu_s() - source_s, vcpus)
        outcome = self.ended_well()
        took = max(outcome.duration_s, 1e-3)
        moved = (last.read_mib / took, last.written_mib / took)
        self.use = (outcome.cpu_s / took, outcome.memory_mib_max, *moved)
        return max(time.monotonic() - began, 1e-3) if outcome.duration_s <= 0 else took

    def _window(self, vcpus: float, read: Callable[[], float | None]) -> float:
        """Return a counter's rate from its first change in the window to its last, independent of its granularity.

        If a whole copy starts and ends within the window, it is the rate of that copy.
        """
        live = self.play(vcpus)
        began, first_use, starts, watched = time.monotonic(), self._begin_window(live), self.starts, ObservedSpan()
        window_s = self.window_s if vcpus == round(vcpus) else max(self.window_s, THROTTLED_WINDOW_S_MIN)
        patience_s = min(PATIENCE_S_MAX, self._patience_s / min(1.0, vcpus))
        first: tuple[float, float] | None = None
        whole = False
        last = seen = (began, read() or 0.0)
        while (spent_s := watched.look()) < window_s or ((first is None or first == last) and spent_s < patience_s):
            self.attend(READ_EVERY_S)
            if self.starts != starts:  # the copy ended and was restarted
                if whole and first is not None and last[0] > first[0]:
                    return (last[1] - first[1]) / (last[0] - first[0])
                whole = True
                live = self.play(vcpus)
                began, first_use, starts, first, watched = (
                    time.monotonic(),
                    self._begin_window(live),
                    self.starts,
                    None,
                    ObservedSpan(),
                )
                last = seen = (began, 0.0)
                continue
            value = read()
            if value is not None and value > seen[1]:
                seen = (time.monotonic(), value)
                first, last = first or seen, seen
                if whole:  # it may have ended when it is looked at next
                    self._note_use(live, first_use, began, vcpus)
        if first is None or last[0] <= first[0]:
            raise Unmeasurable(f"no progress of it was observed for {patience_s:.1f} s")
        self._note_use(live, first_use, began, vcpus)
        return (last[1] - first[1]) / (last[0] - first[0])

    def _counted_window(self, vcpus: float) -> float:
        """Return instructions per second; a window in which the copy was restarted is repeated."""
        for _ in range(COUNTED_WINDOWS_MAX):
            live = self.play(vcpus)
            began, first_use, starts = time.monotonic(), self._begin_window(live), self.starts
            with counted(live.processes(), INSTRUCTIONS) as counter:
                self.attend(self.window_s)
                if self.starts == starts and (total := counter.total()) > 0:
                    self._note_use(live, first_use, began, vcpus)
                    return total / (time.monotonic() - began)
        raise Unmeasurable(f"no instructions of it could be counted for {self._patience_s:.1f} s")

    def _begin_window(self, live: LiveSubject) -> CopyUse:
        self._source_before_s = self.source_cpu_s()
        return live.use()

    def _note_use(self, live: LiveSubject, before: CopyUse, began: float, vcpus: float) -> None:
        now, took = live.use(), max(time.monotonic() - began, 1e-3)
        self._note_taken(before, now, took, self.source_cpu_s() - self._source_before_s, vcpus)
        moved = (max(0.0, now.read_mib - before.read_mib) / took, max(0.0, now.written_mib - before.written_mib) / took)
        busy = busy_alone(now.cpu_s - before.cpu_s, now.waited_s - before.waited_s, took, vcpus)
        self.use = (busy, now.memory_mib, *moved)

    def _note_taken(self, before: CopyUse, now: CopyUse, took_s: float, source_s: float, vcpus: float) -> None:
        window = CpuWindow(
            took_s=max(took_s, 1e-3),
            cpu_s=now.cpu_s - before.cpu_s,
            waited_s=now.waited_s - before.waited_s,
            throttled_s=now.throttled_s - before.throttled_s,
            busy_s=now.cpus_busy_s - before.cpus_busy_s,
            stolen_s=now.cpus_stolen_s - before.cpus_stolen_s,
            own_s=source_s,
        )
        self.taken = window.taken(vcpus)

    def _service_window(self, vcpus: float) -> float:
        """Return requests per second in time, scaled down if latency exceeds that of the first window.

        With a closed-loop load the rate falls as latency grows; with an open-loop load only latency changes. The worse
        of the two relative losses is right for both.
        """
        live = self.play(vcpus)
        began, first_use = time.monotonic(), self._begin_window(live)
        values: list[float] = []
        read_at = 0.0
        while (now := time.monotonic()) < began + self._service_window_s or (
            not values and now < began + max(SERVICE_PATIENCE_S, self._patience_s)
        ):
            self.attend(READ_EVERY_S)
            reading = self.served()
            if reading is not None and reading[2] >= began and reading[2] != read_at:
                read_at = reading[2]
                values.append(self._service_value(reading[0], reading[1]))
        if not values:
            raise Unmeasurable("its metrics hook reported no requests served")
        self._note_use(self.play(vcpus), first_use, began, vcpus)
        return sum(values) / len(values)

    def _service_value(self, requests_per_s: float, tail_ms: float | None) -> float:
        if self._requests is None:
            self._requests, self._tail_ms = requests_per_s, tail_ms
        in_time = rate_in_time(1.0, self._tail_ms, self.subject.promised_ms)
        if tail_ms is None or self._tail_ms is None:
            return requests_per_s * in_time
        return in_time * min(requests_per_s, self._requests * self._tail_ms / tail_ms)


def busy_alone(cpu_s: float, waited_s: float, took_s: float, vcpus: float) -> float:
    """Return the CPUs it would have kept busy on an otherwise idle machine: CPU time divided by time not spent waiting.

    At most ``vcpus``, at least what it got. With a fractional limit it also waits for its own quota, so what it got is
    returned. If several threads wait, ``(cpu_s + waited_s) / took_s`` of them wanted to run on average, and each waits
    its share.
    """
    got = max(0.0, cpu_s) / took_s
    waited_s = max(0.0, waited_s)
    if got == 0 or vcpus != round(vcpus):
        return got
    wanting = max(1.0, (cpu_s + waited_s) / took_s)
    return max(got, min(vcpus, cpu_s / max(took_s - waited_s / wanting, cpu_s / wanting)))
