"""Made-up programs that slow each other down by a known rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations

import numpy as np

from hcloud.classifier.slowdown.table import CoRunQuestion, CoRunTable, Floats

PROGRAMS = tuple("abcdefgh")
TYPE = "mock/small"


class PairWorld:
    """Programs of which each lengthens each other's run by a fixed amount; amounts add up."""

    def __init__(self, number: int = 0, noise: float = 0.0) -> None:
        self.rng, self.noise = np.random.default_rng(number), noise
        sensitivity, pressure = self.rng.lognormal(-0.3, 0.7, (2, len(PROGRAMS)))
        self.excess = np.outer(sensitivity, pressure) * self.rng.lognormal(0.0, 0.3, (len(PROGRAMS), len(PROGRAMS)))
        self.features: Mapping[str, Floats] = {
            name: np.array([sensitivity[at], pressure[at]]) for at, name in enumerate(PROGRAMS)
        }

    def longer(self, application: str, neighbours: Iterable[str]) -> float:
        """The natural logarithm of by how much a run is lengthened."""
        own = PROGRAMS.index(application)
        return float(np.log1p(sum(self.excess[own, PROGRAMS.index(each)] for each in neighbours)))

    def groups(self, size: int) -> list[tuple[str, ...]]:
        """All groups of different programs."""
        return list(combinations(PROGRAMS, size))

    def table(self, groups: Iterable[tuple[str, ...]], *, type_column: str = TYPE) -> CoRunTable:
        """What is observed of each program of these groups."""
        questions = [question(each, group, type_column) for group in groups for each in group]
        longer = np.array([self.longer(each.application, each.neighbours) for each in questions])
        longer += self.noise * self.rng.normal(size=len(longer))
        return CoRunTable(
            questions=questions,
            log_longer=np.maximum(longer, 0.0),
            doubt=np.full(len(longer), max(self.noise, 0.01)),
            features=self.features,
        )


class CurvedWorld(PairWorld):
    """Programs to which several neighbours cost a power of their summed pressure: more than
    it for one half of them, less for the other."""

    def longer(self, application: str, neighbours: Iterable[str]) -> float:
        """The natural logarithm of by how much a run is lengthened."""
        own = PROGRAMS.index(application)
        sensitivity, _ = self.features[application]
        pressure = sum(float(self.features[each][1]) for each in neighbours)
        return float(np.log1p(0.6 * sensitivity * pressure ** (1.4 if own % 2 else 0.7)))


class CombinationWorld(PairWorld):
    """Programs to which ``b`` and ``c`` together cost twice what they cost one by one: they fill a cache."""

    def longer(self, application: str, neighbours: Iterable[str]) -> float:
        """The natural logarithm of by how much a run is lengthened."""
        present = list(neighbours)
        more = {"b", "c"} if {"b", "c"} <= set(present) else set[str]()
        return super().longer(application, [*present, *more])


def question(
    application: str, group: Iterable[str], type_column: str = TYPE, by_pressure: float | None = None
) -> CoRunQuestion:
    """A program among the others of its group."""
    return CoRunQuestion(application, tuple(each for each in group if each != application), type_column, by_pressure)
