"""Co-run records: how fast programs ran beside which neighbours, on which instance type, and for how long."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

MOST_CO_RUNS = 1500
"""Records kept; of more, those that were observed longest ago are deleted."""
MOST_NEIGHBOURS = 8
"""Beside more neighbours than these, nothing is recorded."""
MOST_COUNTED = 20
"""A record is a moving average over so many periods at most: programs and machines change."""
LEAST_SPEED, MOST_SPEED = 0.01, 1.1
"""Speeds beyond are artefacts of measuring, and count as these."""

CoRunKey = tuple[str, tuple[str, ...], str]
"""Application, neighbours, instance type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoRun:
    """What is known of one program among the same neighbours on one instance type."""

    application: str
    """Name of its row among the known applications."""
    neighbours: tuple[str, ...]
    """Those of its neighbours, one for each unit, sorted; empty: it ran alone."""
    type_column: str
    """The instance type, ``provider/type``."""
    log_speed: float
    """Mean logarithm of its speed, as a share of the speed that was expected of it alone."""
    doubt: float
    """Standard deviation of the logarithm of that expected speed."""
    shared_cpus: float | None = None
    """Share (0..1) of the CPUs it may run on that neighbours may run on, too; None: it ran alone, or not known."""
    seconds: float
    """How long it was observed."""
    periods: int = 1
    """How many periods were observed."""
    observed_at: float = 0.0
    """End of the last one (Unix seconds)."""

    @property
    def key(self) -> CoRunKey:
        """Identify the record."""
        return (self.application, self.neighbours, self.type_column)

    def lost(self, alone: CoRun | None) -> float:
        """Return the share (0..1) of its speed that the program lost to these neighbours.

        ``alone``: what was observed of it alone on the type; None: nothing, so that its expected speed counts.
        """
        base = 0.0 if alone is None else alone.log_speed
        return 1.0 - math.exp(min(0.0, self.log_speed - base))

    def then(self, later: CoRun) -> CoRun:
        """Return the record with a later period of the same program, neighbours and type added."""
        weight = later.periods / min(self.periods + later.periods, MOST_COUNTED)
        return replace(
            self,
            log_speed=self.log_speed + weight * (later.log_speed - self.log_speed),
            doubt=self.doubt + weight * (later.doubt - self.doubt),
            shared_cpus=_mean(self.shared_cpus, later.shared_cpus, weight),
            seconds=self.seconds + later.seconds,
            periods=self.periods + later.periods,
            observed_at=max(self.observed_at, later.observed_at),
        )


def _mean(before: float | None, later: float | None, weight: float) -> float | None:
    return later if before is None or later is None else before + weight * (later - before)


def shared_cpus_of(own: Sequence[int], others: Iterable[Sequence[int]], cpus: int) -> float | None:
    """Return the share (0..1) of the CPUs ``own`` of a machine with ``cpus`` that any of ``others`` may run on, too;
    None: there are no others. Each is the CPUs of one unit; empty: all."""
    used = list(others)
    if not used:
        return None
    if not all(used):
        return 1.0
    theirs, mine = {cpu for each in used for cpu in each}, set(own) or set(range(cpus))
    return len(mine & theirs) / len(mine)


def bounded_log_speed(speed: float) -> float:
    """Return the logarithm of a speed, within the limits that are believed."""
    return math.log(min(MOST_SPEED, max(LEAST_SPEED, speed)))
