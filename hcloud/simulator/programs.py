"""The programs that simulated jobs run: a few, each submitted repeatedly on several inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

PROGRAMS, INPUTS = 6, 5
"""Programs per kind and size, and inputs per program."""
SPREAD, AGAIN_SPREAD = 0.6, 0.05
"""Standard deviations of log run times: between programs and inputs, and between runs of one program. Assumptions of
ours; the papers state means only."""
USERS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a program on an input."""

    kind: str
    user: str
    command: tuple[str, ...]
    run_s: float
    """At its best."""


@dataclass(slots=True)
class Programs:
    """The programs of one workload, drawn from ``rng``."""

    rng: np.random.Generator
    programs: int = PROGRAMS
    """Per kind and size."""
    inputs: int = INPUTS
    """Per program."""
    _factors: dict[str, Sequence[float]] = field(default_factory=dict)

    def pick(
        self,
        kind: str,
        cores: int,
        mean_run_s: float,
        *,
        name: str = "",
        programs: int | None = None,
        inputs: int | None = None,
        under_way: bool = False,
    ) -> Run:
        """Return a run of a random program of a kind and size.

        ``name`` replaces the kind in program names. ``under_way`` returns the rest of a run that has already begun;
        such runs are longer on average.
        """
        programs, inputs = programs or self.programs, inputs or self.inputs
        program, given = int(self.rng.integers(programs)), int(self.rng.integers(inputs))
        pool, middle = f"{name or kind}-{cores:g}", math.log(mean_run_s) - 0.5 * SPREAD**2
        if under_way:
            run_s = max(1.0, float(self.rng.lognormal(middle + SPREAD**2, SPREAD) * self.rng.random()))
            words = ("--resume", str(self.rng.integers(10**9)))
        else:
            usual_s = mean_run_s * self._usual(pool, programs * inputs)[program * inputs + given]
            run_s, words = usual_s * float(self.rng.lognormal(0.0, AGAIN_SPREAD)), ("--input", str(given))
        return Run(kind=kind, user=f"user{program % USERS}", command=(f"{pool}-{program}", *words), run_s=run_s)

    def _usual(self, pool: str, count: int) -> Sequence[float]:
        """Return the usual run time of each program and input, normalised to a mean of 1."""
        found = self._factors.get(pool)
        if found is None:
            quantiles = self.rng.permutation((np.arange(count) + 0.5) / count)
            times = np.exp([SPREAD * NormalDist().inv_cdf(each) for each in quantiles.tolist()])
            found = self._factors[pool] = (times / times.mean()).tolist()
        return found
