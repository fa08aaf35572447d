"""What a newcomer and the residents of each machine cost each other, where these programs were observed together.

Elsewhere it follows from pressures on shared resources (:mod:`hcloud.planner.fit.expected_performance`): with no
co-run record, plans are exactly those by pressures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hcloud.classifier.slowdown.forecasts import SlowdownForecasts
from hcloud.planner.fit.expected_performance import longer_beside

if TYPE_CHECKING:
    from hcloud.planner.fit.interference import Floats, Sensitivity

    Company = tuple[Sensitivity, ...]
    CostKey = tuple[str, Sensitivity, Company, str]

COSTS_KEPT = 200_000
"""Answers kept from plan to plan."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ObservedSlowdowns:
    """Answers about the machines of one plan, by their residents."""

    forecasts: SlowdownForecasts
    type_columns: Sequence[str]
    """Instance type of each machine, ``provider/type``."""
    known: dict[CostKey, float] = field(default_factory=dict)
    """Earlier answers of the same forecasts about the same sensitivities."""

    def knows(self, newcomer: Sensitivity) -> bool:
        """Return whether the program was observed among others, or others beside it."""
        return self.forecasts.is_known(newcomer.name)

    def own(self, newcomer: Sensitivity, residents: Sequence[Company], places: Iterable[int]) -> Floats:
        """Return by machine of ``places`` the natural logarithm of by how much its residents lengthen the newcomer's
        run; NaN where it follows from pressures."""
        return self._answers("own", newcomer, residents, places, self._own)

    def harm(self, newcomer: Sensitivity, residents: Sequence[Company], places: Iterable[int]) -> Floats:
        """Return by machine of ``places`` by how much the newcomer lengthens the residents' runs, as the sum of natural
        logarithms; NaN where it follows from pressures."""
        return self._answers("harm", newcomer, residents, places, self._harm)

    def _answers(
        self,
        question: str,
        newcomer: Sensitivity,
        residents: Sequence[Company],
        places: Iterable[int],
        compute: Callable[[Sensitivity, Company, str], float],
    ) -> Floats:
        found = list[float]()
        for at in places:
            key = (question, newcomer, residents[at], self.type_columns[at])
            answer = self.known.get(key)
            if answer is None:
                if len(self.known) >= COSTS_KEPT:
                    self.known.clear()
                answer = self.known[key] = compute(*key[1:])
            found.append(answer)
        return np.array(found, dtype=np.float64)

    def _own(self, newcomer: Sensitivity, residents: Company, type_column: str) -> float:
        if not self.forecasts.has_met(newcomer.name, [each.name for each in residents]):
            return math.nan
        return self._lengthened(newcomer, residents, type_column, observed=True)

    def _harm(self, newcomer: Sensitivity, residents: Company, type_column: str) -> float:
        met = [self.forecasts.has_met(each.name, [newcomer.name]) for each in residents]
        if not any(met):
            return math.nan
        total = 0.0
        for at, (resident, observed) in enumerate(zip(residents, met, strict=True)):
            others = (*residents[:at], *residents[at + 1 :])
            after = self._lengthened(resident, (*others, newcomer), type_column, observed=observed)
            # A newcomer never speeds residents up.
            total += max(0.0, after - self._lengthened(resident, others, type_column, observed=observed))
        return total

    def _lengthened(self, resident: Sensitivity, company: Company, type_column: str, *, observed: bool) -> float:
        if not company:
            return 0.0
        longer = longer_beside(resident, np.add.reduce([each.expected for each in company]))
        if not observed:
            return math.log1p(self.forecasts.calibration.longer(type_column, longer))
        return self.forecasts.slowdown(resident.name, [each.name for each in company], type_column, longer).mean


def or_else(observed: Floats, by_pressure: Floats) -> Floats:
    """Return ``observed`` where it is known, else ``by_pressure``."""
    return np.where(np.isnan(observed), by_pressure, observed)
