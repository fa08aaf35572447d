"""What slowdown models learn from and are asked: programs, their neighbours, and how much longer they took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Company = tuple[str, ...]
"""Names of the neighbours, one for each unit."""


class CoRunQuestion(NamedTuple):
    """A program among neighbours."""

    application: str
    neighbours: Company
    type_column: str
    longer_by_pressure: float | None
    """Additional run time (0: none, 1: twice as long) expected from pressures on shared resources; None: unknown."""


class ExpectedSlowdown(NamedTuple):
    """Natural logarithm of by how much a run is lengthened: 0 alone, ln 2 for twice as long."""

    mean: float
    deviation: float
    """Standard deviation."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CoRunTable:
    """Observed slowdowns, one a row."""

    questions: Sequence[CoRunQuestion]
    log_longer: Floats
    """Observed, shape ``(n,)``."""
    doubt: Floats
    """Standard deviations of ``log_longer``, shape ``(n,)``."""
    features: Mapping[str, Floats]
    """What is known of programs run alone, each of shape ``(F,)``; may lack some."""

    def __len__(self) -> int:
        return len(self.questions)

    @property
    def groups(self) -> list[Company]:
        """The programs that ran together in each row, sorted: rows of one group are held out together."""
        return [tuple(sorted((each.application, *each.neighbours))) for each in self.questions]

    def take(self, places: npt.NDArray[np.intp]) -> CoRunTable:
        """Return some of the rows."""
        return CoRunTable(
            questions=[self.questions[at] for at in places.tolist()],
            log_longer=self.log_longer[places],
            doubt=self.doubt[places],
            features=self.features,
        )


class FittedSlowdown(Protocol):
    """A fitted model. The same question always has the same answer."""

    def slowdown(self, question: CoRunQuestion) -> ExpectedSlowdown | None:
        """Return the expected slowdown of a program among neighbours; None: it knows too little of them."""
        ...


class SlowdownModel(Protocol):
    """A way to learn slowdowns."""

    def fit(self, table: CoRunTable) -> FittedSlowdown:
        """Return the model fitted to a table, which may be empty."""
        ...
