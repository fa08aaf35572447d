"""How far programs alone are from the speed expected of them, by instance type, learnt from all their co-run records.

A record compares a program among neighbours with the speed expected of it alone. That expectation errs for all records
of a program on a type alike, and machines in use are slower than those that programs are measured on. Taken for the
neighbours' doing, such errors make the same neighbours cheap on one type and dear on the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hcloud.classifier.slowdown.table import ExpectedSlowdown, Floats

PERIOD_NOISE = 0.1
"""Standard deviation of the logarithm of a program's speed from one period to another."""
COMMON_SD = 0.15
"""Prior deviation of how much slower than expected all programs are."""
ACROSS_TYPES = 0.5
"""Share of the variance of a program's error that all its types have in common."""
PAIR_SD = 0.5
"""Prior deviation of what each group of neighbours costs beside a program's sensitivity, as a share of what is expected
of them."""
MOST_ROWS_EACH = 250
"""Rows of one program that are used, latest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRecord:
    """How fast a program was in one co-run record."""

    application: str
    type_column: str
    log_longer: float
    """By how much it was slower than expected of it alone (natural logarithm)."""
    log_longer_beside: float
    """The same, as far as its neighbours are expected to cause it; 0 without neighbours."""
    sensitivity_sd: float
    """Prior deviation of the program's sensitivity to all neighbours, as a share of what is expected."""
    doubt: float
    """Standard deviation of the logarithm of the speed expected of it alone."""
    periods: int


BaseKey = tuple[str, str]
"""Application and instance type."""


def base_errors(records: Sequence[SpeedRecord]) -> Mapping[BaseKey, ExpectedSlowdown]:
    """Return by how much each program alone is slower than expected on each type it was observed on.

    A Gaussian process for each program: an error for each type, partly shared, with the doubt of the expectation as
    its deviation; beside it what neighbours cost, which may be more or less than expected. The mean of all programs'
    errors is estimated first.
    """
    by_program = dict[str, list[SpeedRecord]]()
    for each in records:
        by_program.setdefault(each.application, []).append(each)
    parts = [_OwnRecords.of(rows[-MOST_ROWS_EACH:]) for rows in by_program.values()]
    precision = 1.0 / COMMON_SD**2 + sum(part.weight for part in parts)
    common = sum(part.weighted for part in parts) / precision
    return {key: error for part in parts for key, error in part.errors(common)}


@dataclass(frozen=True, slots=True)
class _OwnRecords:
    """The records of one program."""

    rows: Sequence[SpeedRecord]
    inverse: Floats
    """Inverse of the covariance of the records, (n x n)."""
    surprise: Floats
    """What was observed beyond what neighbours are expected to cost, shape ``(n,)``."""

    @classmethod
    def of(cls, rows: Sequence[SpeedRecord]) -> _OwnRecords:
        beside = np.array([each.log_longer_beside for each in rows])
        noise = PERIOD_NOISE**2 / np.array([each.periods for each in rows]) + (PAIR_SD * beside) ** 2
        all_beside = beside * np.array([each.sensitivity_sd for each in rows])
        covariance = np.outer(all_beside, all_beside) + np.diag(noise)
        covariance += np.array([[_covariance(one, other) for other in rows] for one in rows])
        inverse = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
        return cls(rows, inverse, np.array([each.log_longer for each in rows]) - beside)

    @property
    def weight(self) -> float:
        """Precision of the mean error by these records alone."""
        return float(self.inverse.sum())

    @property
    def weighted(self) -> float:
        """That mean, times its precision."""
        return float((self.inverse @ self.surprise).sum())

    def errors(self, common: float) -> list[tuple[BaseKey, ExpectedSlowdown]]:
        """Return the error on each type, where ``common`` is the mean of all programs."""
        found, solved = list[tuple[BaseKey, ExpectedSlowdown]](), self.inverse @ (self.surprise - common)
        for type_column, row in {each.type_column: each for each in self.rows}.items():
            covariance = np.array([_covariance(row, other) for other in self.rows])
            variance = row.doubt**2 - float(covariance @ self.inverse @ covariance)
            mean = common + float(covariance @ solved)
            found.append(((row.application, type_column), ExpectedSlowdown(mean, math.sqrt(max(0.0, variance)))))
        return found


def _covariance(one: SpeedRecord, other: SpeedRecord) -> float:
    """Return the prior covariance of two records' errors."""
    return one.doubt * other.doubt * (1.0 if one.type_column == other.type_column else ACROSS_TYPES)
