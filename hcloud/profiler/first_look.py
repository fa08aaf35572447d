"""The first run of a subject: observe it for a few seconds and choose how to measure its performance."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from hcloud.core.errors import Unmeasurable
from hcloud.core.estimates import Measure
from hcloud.profiler.counters import INSTRUCTIONS, can_count
from hcloud.profiler.subject import READ_EVERY_S, SERVICE_PATIENCE_S, UNSEEN_S_MAX, ObservedSpan, Stage

LOOKS_MIN = 4
PROGRESS_STEPS_MIN = 5
OUTPUT_MIB_PER_S_MIN = 1 / 16
EVEN = 2.0
"""Output is a measure of performance only if its fastest quarter is at most this many times as fast as its slowest."""
SHORT_S = 0.2
IDLE_VCPUS = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLook:
    """The result of a first run."""

    measure: Measure
    duration_s: float | None
    """Seconds until it ended; None if it was still running."""
    notes: tuple[str, ...] = ()
    """What was missing, in sentences."""

    @property
    def short(self) -> bool:
        """Whether it ends too quickly for neighbours to matter."""
        return self.duration_s is not None and self.duration_s < SHORT_S


@dataclass(slots=True)
class _Seen:
    """Observations of a running copy so far."""

    progress: float = 0.0
    steps: int = 0
    fell: bool = False
    """Whether progress went backwards."""
    served: bool = False

    def take(self, stage: Stage) -> None:
        """Poll progress and service once."""
        now = stage.progress()
        if now is not None and now != self.progress:
            self.fell |= now < self.progress
            self.steps += 1
            self.progress = now
        self.served = self.served or stage.served() is not None


def first_look(stage: Stage, vcpus: float) -> FirstLook:
    """Run the subject for ``run_s`` (a service until it serves) and choose the best measure it offers.

    Raises Unmeasurable if it cannot be run, or no measure is available.
    """
    live = stage.play(vcpus)
    watched, seen = ObservedSpan(min(UNSEEN_S_MAX, stage.run_s / LOOKS_MIN)), _Seen()
    output, cpu_s = [live.output_mib()], list[float]()
    patience_s = max(stage.run_s, min(SERVICE_PATIENCE_S, stage.left_s() / 3)) if stage.subject.metrics else stage.run_s
    while (spent_s := watched.look()) < patience_s and not (spent_s >= stage.run_s and seen.served):
        stage.watch(READ_EVERY_S)
        seen.take(stage)
        if live.ended:
            return _of_ended(stage, stage.ended_well().duration_s, seen)
        if spent_s >= stage.run_s * len(output) / LOOKS_MIN and len(output) <= LOOKS_MIN:
            output.append(live.output_mib())
            cpu_s.append(live.cpu_s())
    output.append(live.output_mib())
    return _of_running(stage, seen, output, (live.cpu_s() - cpu_s[0]) / patience_s)


def _of_ended(stage: Stage, duration_s: float, seen: _Seen) -> FirstLook:
    lasts = duration_s >= 4 * stage.window_s
    if lasts and seen.steps >= PROGRESS_STEPS_MIN and not seen.fell:
        return FirstLook(measure=Measure.PROGRESS, duration_s=duration_s)
    notes = list(_missing(stage, seen))
    if duration_s < SHORT_S:
        notes.append(
            f"it ended after {duration_s * 1000:.0f} ms, mostly start-up: its readings are unreliable, and "
            "interference was not measured"
        )
    return FirstLook(measure=Measure.COMPLETION, duration_s=duration_s, notes=tuple(notes))


def _of_running(stage: Stage, seen: _Seen, output: list[float], busy: float) -> FirstLook:
    notes = _missing(stage, seen)
    if seen.steps >= 3 and not seen.fell:
        return FirstLook(measure=Measure.PROGRESS, duration_s=None)
    if seen.served:
        return FirstLook(measure=Measure.REQUESTS, duration_s=None, notes=notes)
    if _grows_evenly(output, stage.run_s):
        return FirstLook(measure=Measure.OUTPUT, duration_s=None, notes=notes)
    if busy < IDLE_VCPUS:
        raise Unmeasurable(
            f"it did not end within {stage.run_s:g} s, and neither progress, requests, output nor CPU time showed how "
            "fast it works" + "".join(f"; {note}" for note in notes)
        )
    if can_count(INSTRUCTIONS):
        return FirstLook(measure=Measure.INSTRUCTIONS, duration_s=None, notes=notes)
    limitation = (
        "its performance was taken from its CPU time, as no better measure was available: this shows neighbours on its "
        "own core, but not those on other cores (cache, memory, disk)"
    )
    return FirstLook(measure=Measure.CPU, duration_s=None, notes=(*notes, limitation))


def _missing(stage: Stage, seen: _Seen) -> tuple[str, ...]:
    """Return notes on hooks that gave no usable values."""
    subject, notes = stage.subject, []
    if subject.progress is not None:
        name = subject.progress.file
        if seen.fell:
            notes.append(f"the progress in its file {name} went backwards, so it was not used")
        elif seen.steps == 0:
            notes.append(f"its file {name} reported no progress (a number, or done/total, in its last line)")
        else:
            notes.append(f"its file {name} reported progress only {seen.steps} times, too rarely to measure")
    if subject.metrics is not None and not seen.served:
        notes.append("its metrics hook reported no requests served")
    return tuple(notes)


def _grows_evenly(output: list[float], run_s: float) -> bool:
    """Return whether output grew about equally in every part of the run but the first, which may be preparation."""
    grown = [after - before for before, after in pairwise(output[1:])][: LOOKS_MIN - 1]
    if len(grown) < LOOKS_MIN - 1:
        return False
    least = OUTPUT_MIB_PER_S_MIN * run_s / LOOKS_MIN
    return min(grown) >= least and max(grown) <= EVEN * min(grown)
