"""Held-out predictions collected over many applications, and the four figures they are judged by."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hcloud.classifier.estimator import Completion
from hcloud.classifier.utility_matrix import Matrix

MAE_MAX, P90_MAX, REGRET_MAX = 7.0, 13.0, 4.0
COVERAGE = (75.0, 85.0)
HEADER = f"{'MAE %':>7} {'p90 %':>7} {'regret %':>9} {'cover %':>8}"


@dataclass(slots=True)
class Score:
    """Relative errors and interval hits of unobserved cells; per application, the regret of the type taken for best."""

    errors: list[Matrix] = field(default_factory=list)
    hits: list[NDArray[np.bool_]] = field(default_factory=list)
    regrets: list[float] = field(default_factory=list)

    def add(self, found: Completion, truth: Matrix) -> None:
        """Judge one completed row of times against the true one (columns), NaN where nobody measured."""
        low, high = found.interval()
        self.add_values(found.values, truth, np.array(found.observed), (low, high))

    def add_values(
        self,
        values: Matrix,
        truth: Matrix,
        observed: NDArray[np.bool_],
        limits: tuple[Matrix, Matrix] | None = None,
    ) -> None:
        """Judge plain values; without limits nothing is said of coverage."""
        judged = ~np.isnan(truth) & ~observed
        self.errors.append(np.abs(values / truth - 1.0)[judged])
        if limits is not None:
            self.hits.append(((limits[0] <= truth) & (truth <= limits[1]))[judged])
        believed = np.where(observed, truth, values)
        taken = int(np.argmin(np.where(np.isnan(truth), np.inf, believed)))
        self.regrets.append(float(truth[taken] / np.nanmin(truth) - 1.0))

    def figures(self) -> tuple[float, float, float, float]:
        """Return mean error, its 90th percentile, mean regret and coverage in percent; coverage NaN where unstated."""
        errors = np.concatenate(self.errors)
        cover = float(np.concatenate(self.hits).mean()) if self.hits else np.nan
        figures = (errors.mean(), np.quantile(errors, 0.9), np.mean(self.regrets), cover)
        return tuple(100.0 * float(each) for each in figures)  # type: ignore[return-value]

    def line(self) -> str:
        """Return the figures as part of a table's row, and which targets they miss."""
        mae, p90, regret, cover = self.figures()
        missed = [
            name
            for name, bad in (
                ("MAE", mae > MAE_MAX),
                ("p90", p90 > P90_MAX),
                ("regret", regret > REGRET_MAX),
                ("cover", not COVERAGE[0] <= cover <= COVERAGE[1]),
            )
            if bad
        ]
        shown = "      --" if np.isnan(cover) else f"{cover:8.1f}"
        return (
            f"{mae:7.2f} {p90:7.2f} {regret:9.2f} {shown}  {'ALL MET' if not missed else 'misses ' + ', '.join(missed)}"
        )
