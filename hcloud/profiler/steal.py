"""What counts of a measurement during which the host took CPU time from the program.

A reading taken meanwhile describes the host, not the program, so its window is discarded, or its limits are wider.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hcloud.core.cpu_window import TAKEN_MAX
from hcloud.profiler.repeats import RUNS_MIN, Interval, interval


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
