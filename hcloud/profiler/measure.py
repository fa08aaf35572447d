"""Measure a program on one machine for itself: how fast, at which size, and how it bears and troubles neighbours.

``Bench`` answers single questions; ``measure`` is the whole profiling run (Quasar §4.3, Paragon §2, iBench ch. 5).
Runs alone and runs beside a source alternate within seconds (A B, B A, A B ...), and only their ratio counts, so
that slow drifts of a machine shared with others cancel.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from types import TracebackType

from hcloud.errors import HCloudError, Unmeasurable
from hcloud.known import Measure, Reading
from hcloud.profiler.host import Host
from hcloud.profiler.looking import Look, first_look
from hcloud.profiler.repeats import Interval, enough, interval
from hcloud.profiler.sources import Source, start
from hcloud.profiler.subject import Stage, Subject
from hcloud.profiler.tuning import FULL, Loss, next_intensity, tolerated

__all__ = ["Bench", "Rate", "Subject"]

TIGHT_RATE = 0.05
"""A rate is repeated until its 95 % limits are at most so far from it (as a fraction)."""
TIGHT_KEPT = 0.02
"""The share of performance kept beside a source, until they are so far from it: 5 % is the question."""
SETTLE_S = 0.2
RATE_RUNS, TOLERATED_RUNS = 2.0, 4.0
"""How many times ``run_s`` one answer may take where the caller does not say."""
SOURCE_MARGIN_S = 60.0
ROOM_MIN = 0.1
CAPACITY_MIN_MIB = 64
CAPACITY_SPARE_MIB = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Performance per second with its 95 % limits. ``use``: vCPUs busy, MiB held, MiB read and written per second."""

    value: float
    low: float
    high: float
    runs: int
    measure: Measure
    use: tuple[float, ...]


class Bench:
    """Measures one subject on this machine. Use it as a block, so that nothing stays at work behind it.

    ``run_s``: how long a copy is looked at before it counts as one that goes on. ``deadline_s``: how long all questions
    together may take. ``notes`` collects, in whole sentences, what readers of the answers should know.
    """

    def __init__(self, subject: Subject, host: Host, *, run_s: float, deadline_s: float) -> None:
        self.host, self.notes = host, list[str]()
        self._stage = Stage(subject, host, run_s=run_s, deadline=time.monotonic() + deadline_s)
        self._look: Look | None = None
        self._alone: dict[float, Rate] = {}

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End what is at work."""
        self._stage.clear()

    def look(self, vcpus: float) -> Look:
        """Run it once, for ``run_s`` at most, and say how it is measured. Raises Unmeasurable."""
        if self._look is None:
            self._look = first_look(self._stage, vcpus)
            for note in (*self._stage.lacks, *self._look.notes):
                self.note(note)
        return self._look

    def note(self, sentence: str) -> None:
        """Remember a sentence once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    # -------------------------------------------------------------------------------------------------------- answers
    def rate(self, vcpus: float, beside: tuple[Source, float] | None = None, *, within_s: float | None = None) -> Rate:
        """Return performance at a size, alone or beside a source at an intensity.

        Raises Unmeasurable: the program or the machine gives no number, or the time is over; the sentence says which.
        """
        if beside is not None:
            alone, kept = self.rate(vcpus, within_s=within_s), self.kept(*beside, vcpus, within_s=within_s)
            low, value, high = (each * alone.value for each in (kept.low, kept.value, kept.high))
            return replace(alone, value=value, low=max(0.0, low), high=high, runs=kept.runs)
        if vcpus not in self._alone:
            self._alone[vcpus] = self._rate_alone(vcpus, self._within(within_s, RATE_RUNS))
        return self._alone[vcpus]

    def _rate_alone(self, vcpus: float, within_s: float) -> Rate:
        began, look, values = time.monotonic(), self.look(vcpus), list[float]()
        while not values or not enough(values, TIGHT_RATE * interval(values).value):
            try:
                values.append(self._stage.sample(look.measure, vcpus))
            except Unmeasurable:
                if not values or self._stage.left_s() > 0:
                    raise
                break
            if time.monotonic() - began >= within_s:
                break
        found = interval(values)
        return Rate(
            value=found.value,
            low=max(0.0, found.low),
            high=found.high,
            runs=found.runs,
            measure=look.measure,
            use=self._stage.use,
        )

    def kept(self, source: Source, intensity: float, vcpus: float, *, within_s: float | None = None) -> Interval:
        """Return the share of its performance (1: all) that it keeps beside a source. Raises Unmeasurable."""
        measure = self.look(vcpus).measure
        ratios: list[float] = []
        began = time.monotonic()
        within_s = self._within(within_s, RATE_RUNS)
        ways = {"alone": nullcontext, "beside": lambda: self._pressed(source, intensity, vcpus)}
        with _Switch(ways) as switch:
            while not ratios or not enough(ratios, TIGHT_KEPT):
                round_at = time.monotonic()
                found = {}
                for way in ("alone", "beside") if len(ratios) % 2 == 0 else ("beside", "alone"):
                    if switch.to(way) and measure is not Measure.COMPLETION:
                        self._stage.attend(SETTLE_S)
                    found[way] = self._stage.sample(measure, vcpus)
                ratios.append(found["beside"] / found["alone"])
                now = time.monotonic()
                if now - began + (now - round_at) / 2 >= within_s:
                    break
        return interval(ratios)

    def tolerated(self, source: Source, vcpus: float, *, within_s: float | None = None) -> Reading:
        """Return the intensity at which performance is 5 % below alone; 100 if it never is. Raises Unmeasurable."""
        within_s = self._within(within_s, TOLERATED_RUNS)
        source, highest = self._placed(source, vcpus)
        until, points = time.monotonic() + within_s, list[Loss]()
        while (at := next_intensity(points, highest)) is not None:
            left_s = until - time.monotonic()
            if points and (left_s < within_s / 5 or (at != FULL and not self._tunable(source))):
                break
            try:
                kept = self.kept(source, at, vcpus, within_s=left_s / 2 if not points else left_s / 1.5)
            except Unmeasurable:
                if not points:
                    raise
                break
            points.append(Loss(intensity=at, loss=_lost(kept)))
        found = tolerated(points)
        return Reading(
            question="tolerated", column=source.name, value=found.value, low=found.low, high=found.high, runs=found.runs
        )

    # ------------------------------------------------------------------------------------------------------- pressing
    def _placed(self, source: Source, vcpus: float) -> tuple[Source, float]:
        """Return the source as large as this machine can hold, and its highest intensity here. Raises Unmeasurable."""
        subject = self._stage.subject
        if source.full_mib is not None:
            room = self.host.memory_mib - subject.memory_mib - CAPACITY_SPARE_MIB
            if source.meter == "memory_mib" and room < source.full_mib:
                if room < CAPACITY_MIN_MIB:
                    raise Unmeasurable(f"{source.name}: beside the program is no memory left for it on this machine")
                source = replace(source, full_mib=int(room))
                self.note(f"{source.name} is full at {int(room)} MiB, as this machine is small")
            return source, FULL
        if self.host.vcpus >= len(self._stage.cpus):
            return source, FULL
        room = self.host.vcpus - vcpus
        if room < ROOM_MIN:
            raise Unmeasurable(f"{source.name}: {vcpus:g} vCPU of the program leave no CPU time for it on this machine")
        highest = FULL * min(1.0, room)
        if highest < FULL:
            self.note(f"sources were tuned up to {highest:g} % only, the CPU time this machine has beside the program")
        return source, highest

    def _pressed(self, source: Source, intensity: float, vcpus: float) -> AbstractContextManager[object]:
        own = self._stage.cpus_of(vcpus)
        cpu = self._stage.cpus[-1] if source.cross_core else own[0]
        if source.cross_core and cpu in own:
            self.note("this instance has no CPU beside the program's: every source shared one with it")
        return start(
            source,
            intensity,
            (cpu,),
            host=self.host,
            max_s=max(1.0, self._stage.left_s()) + SOURCE_MARGIN_S,
            directory=self.host.directory,
        )

    def _tunable(self, source: Source) -> bool:
        if source.full_mib is None and not self._stage.bounded:
            self.note("without control groups sources are on or off: what is tolerated follows from full intensity")
            return False
        return True

    def _within(self, within_s: float | None, runs: float) -> float:
        wanted = runs * self._stage.run_s if within_s is None else within_s
        return max(0.0, min(wanted, self._stage.left_s()))


class _Switch:
    """One of several ways the machine can be in, entered at need; at the end the last one is left."""

    def __init__(self, ways: Mapping[str, Callable[[], AbstractContextManager[object]]]) -> None:
        self._ways, self._now = ways, ""
        self._stack = ExitStack()

    def __enter__(self) -> _Switch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def to(self, way: str) -> bool:
        """Bring the machine into a way; return whether it was in another. Raises Unmeasurable."""
        if way == self._now:
            return False
        self._stack.close()
        self._now = ""
        try:
            self._stack.enter_context(self._ways[way]())
        except Unmeasurable:
            raise
        except (HCloudError, OSError) as error:
            raise Unmeasurable(str(error)) from error
        self._now = way
        return True


def _lost(kept: Interval) -> Interval:
    return Interval(value=1 - kept.value, low=1 - kept.high, high=1 - kept.low, runs=kept.runs)
