"""CPU time that the host took from a program while it was measured: by a hypervisor, or for other work on its CPUs.

A reading taken meanwhile describes the host, not the program, so its window is discarded, or its limits are wider.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hcloud.profiler.repeats import RUNS_MIN, Interval, interval

TAKEN_MAX = 0.1
"""Share of a program's CPU time that may be taken away in a window that counts. Meters tick at 100 Hz, windows of 0.2 s
have 20 ticks."""
PROMISE_KEPT = 0.97
"""From this share of its CPU limit on, a program has got what it was promised, whatever else ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuWindow:
    """What a program and its CPUs did in one window, in seconds."""

    took_s: float
    cpu_s: float
    """CPU time of the program."""
    waited_s: float
    """Sum of the time its threads were runnable without a CPU."""
    throttled_s: float
    """Part of that for which its own quota is the reason."""
    busy_s: float
    """CPU time of everything on the program's CPUs, itself included."""
    stolen_s: float
    """Time for which the hypervisor ran something else on them."""
    source_s: float = 0.0
    """CPU time of our own source of interference on them: it is there on purpose."""

    def taken(self, vcpus: float) -> float:
        """Return the share (0..1) of its CPU time that others had although it wanted and was promised it."""
        got = max(0.0, self.cpu_s) / self.took_s
        others_s = max(0.0, self.busy_s - self.cpu_s - self.source_s)
        lost_s = min(max(0.0, self.waited_s - self.throttled_s), others_s)
        if self.busy_s > 0:
            lost_s += self.stolen_s * min(1.0, max(0.0, self.cpu_s) / self.busy_s)
        lost = min(lost_s / self.took_s, max(0.0, vcpus - got))
        return lost / (got + lost) if lost > 0 and got < PROMISE_KEPT * vcpus else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The windows of a measurement that count."""

    values: tuple[float, ...]
    discarded: int
    taken: float
    """Share of CPU time that was taken away in the worst window that counts; 0 if that is negligible."""

    def widened(self, *, both: bool) -> Interval:
        """Return value and limits. What was taken away may have slowed the program: it may be that much faster.

        ``both``: of a ratio of two windows, either may have been slowed.
        """
        found = interval(self.values)
        left = 1 - self.taken
        low = min(found.low, found.value * left) if both and self.taken else found.low
        high = max(found.high, found.value / left) if self.taken else found.high
        return Interval(value=found.value, low=low, high=high, runs=found.runs)

    @property
    def note(self) -> str | None:
        """A sentence about what the host took away; None if nothing."""
        if self.taken:
            return (
                f"the host took up to {self.taken:.0%} of the CPU time that the program was promised, in nearly every "
                "window: its limits are wider for it"
            )
        if self.discarded:
            return "windows were discarded in which the host gave the program less CPU time than promised"
        return None


def undisturbed(values: Sequence[float], taken: Sequence[float]) -> Kept:
    """Return the windows in which little was taken away; if there are fewer than three, those with the least.

    ``taken`` holds the share taken away in each window.
    """
    order = sorted(range(len(values)), key=lambda at: taken[at])
    clean = sum(share <= TAKEN_MAX for share in taken)
    kept = sorted(order[: max(clean, min(RUNS_MIN, len(values)))])
    worst = max((taken[at] for at in kept), default=0.0)
    return Kept(
        values=tuple(values[at] for at in kept),
        discarded=len(values) - len(kept),
        taken=min(0.9, worst) if worst > TAKEN_MAX else 0.0,
    )
