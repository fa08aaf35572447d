"""CPU time that was taken from a program over a span of time: by a hypervisor, or for other work on its CPUs."""

from __future__ import annotations

from dataclasses import dataclass

PROMISE_KEPT = 0.97
"""From this share of its CPU limit on, a program has got what it was promised, whatever else ran."""
TAKEN_MAX = 0.1
"""Share of a program's CPU time that may be taken away in a window that counts. Meters tick at 100 Hz, windows of 0.2 s
have 20 ticks."""


def share_taken(taken_s: float, cpu_s: float) -> float:
    """Return what was taken from a program as a share (0..1) of what it would have had; it got ``cpu_s``."""
    return taken_s / (max(0.0, cpu_s) + taken_s) if taken_s > 0 else 0.0


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
    own_s: float = 0.0
    """CPU time of what else HCloud runs on them: it is there on purpose."""

    def lost_s(self, vcpus: float) -> float:
        """Return the CPU time in seconds that others had although the program wanted and was promised it."""
        got = max(0.0, self.cpu_s) / self.took_s
        if got >= PROMISE_KEPT * vcpus:
            return 0.0
        others_s = max(0.0, self.busy_s - self.cpu_s - self.own_s)
        lost_s = min(max(0.0, self.waited_s - self.throttled_s), others_s)
        if self.busy_s > 0:
            lost_s += self.stolen_s * min(1.0, max(0.0, self.cpu_s) / self.busy_s)
        return min(lost_s, max(0.0, vcpus - got) * self.took_s)

    def taken(self, vcpus: float) -> float:
        """Return :meth:`lost_s` as a share (0..1) of what the program would have had."""
        return share_taken(self.lost_s(vcpus), self.cpu_s)
