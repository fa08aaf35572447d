"""A predicted run time as it is recorded before the run, and judged after it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from hcloud.forecast.runtimes.distribution import RunTimes

PROBABILITIES = np.array([0.05, 0.1, 0.25, 0.5, 0.75, 0.8, 0.9, 0.95])
"""Which quantiles are recorded and judged."""
COVERED = (0.5, 0.8, 0.9, 0.95)
"""Those of which it is counted how many runs end within them."""
RECORDED_IN = "run_time"
"""Field of ATTEMPT_PLACED events with :meth:`RunTimePrediction.to_fields`."""
JUDGED_COLUMNS = ("runs", "within_factor_2_pct", *(f"within_{100 * each:.0f}_pct" for each in COVERED), "log_pinball")
"""Names of what :meth:`JudgedRuns.row` returns."""
_LISTED: list[float] = PROBABILITIES.tolist()
_COVERED_AT = [_LISTED.index(each) for each in COVERED]
_SHORTEST_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimePrediction:
    """What was predicted of one run."""

    source: str
    """See :attr:`RunTimes.source`."""
    likely_s: float
    """The best estimate of one run time."""
    quantiles_s: tuple[float, ...]
    """Of ``PROBABILITIES``."""

    @classmethod
    def of(cls, found: RunTimes) -> RunTimePrediction:
        """Return what is kept of a distribution."""
        quantiles_s = tuple(found.quantiles(PROBABILITIES).tolist())
        return cls(source=found.source, likely_s=found.likely_s, quantiles_s=quantiles_s)

    def quantile_s(self, probability: float) -> float:
        """Return one of the recorded quantiles. Raises ValueError for a probability not in ``PROBABILITIES``."""
        return self.quantiles_s[_LISTED.index(probability)]

    def to_fields(self) -> dict[str, object]:
        """Return it for an event, times with four significant digits."""
        quantiles_s = [float(f"{each:.4g}") for each in self.quantiles_s]
        return {"source": self.source, "likely_s": float(f"{self.likely_s:.4g}"), "quantiles_s": quantiles_s}

    @classmethod
    def from_fields(cls, recorded: object) -> RunTimePrediction | None:
        """Return what :meth:`to_fields` returned; None if it is anything else."""
        if not isinstance(recorded, Mapping):
            return None
        source, likely_s, quantiles_s = (recorded.get(name) for name in ("source", "likely_s", "quantiles_s"))
        if not isinstance(quantiles_s, list | tuple) or len(quantiles_s) != len(PROBABILITIES):
            return None
        numbers = [likely_s, *quantiles_s]
        if not all(isinstance(each, int | float) and math.isfinite(each) and each > 0.0 for each in numbers):
            return None
        first, *others = (float(each) for each in numbers)
        return cls(source=str(source), likely_s=first, quantiles_s=tuple(others))


@dataclass(slots=True)
class JudgedRuns:
    """Runs that ended, compared with what was predicted of them."""

    covered: list[list[bool]] = field(default_factory=list)
    """Of each run, whether it ended within each of ``COVERED``."""
    near: int = 0
    """Number of runs within a factor 2 of the best estimate."""
    losses: list[float] = field(default_factory=list)
    """Mean pinball loss of the quantiles of the logarithm of each run time."""

    def add(self, predicted: RunTimePrediction, run_s: float) -> None:
        """Compare one run with its prediction."""
        quantiles_s = np.maximum(predicted.quantiles_s, _SHORTEST_S)
        error = math.log(max(run_s, _SHORTEST_S)) - np.log(quantiles_s)
        self.losses.append(float(np.maximum(PROBABILITIES * error, (PROBABILITIES - 1.0) * error).mean()))
        self.covered.append([run_s <= quantiles_s[at] for at in _COVERED_AT])
        self.near += min(run_s, predicted.likely_s) >= 0.5 * max(run_s, predicted.likely_s)

    def row(self) -> tuple[float, ...]:
        """Return count, percent within a factor 2, percent within each of ``COVERED``, and mean pinball loss."""
        count = len(self.losses)
        covered = (100.0 * np.mean(self.covered, axis=0)).tolist()
        return (count, 100.0 * self.near / count, *covered, round(math.fsum(self.losses) / count, 4))
