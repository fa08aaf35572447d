"""Matrices of which each row has few entries: as much as plans need of them, without importing scipy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SparseRows:
    """The entries of a matrix, by row."""

    rows: Integers
    """Row of each entry, ascending."""
    columns: Integers
    values: Floats
    shape: tuple[int, int]

    def times(self, of_columns: Floats) -> Floats:
        """Return the sum over each row of its entries times the value of their column."""
        products = self.values * of_columns[self.columns]
        return np.bincount(self.rows, products, self.shape[0]).astype(np.float64)

    def summed(self, of_rows: Floats) -> Floats:
        """Return the sum over each column of its entries times the value of their row."""
        products = self.values * of_rows[self.rows]
        return np.bincount(self.columns, products, self.shape[1]).astype(np.float64)

    def chosen(self, rows: Integers) -> SparseRows:
        """Return these rows, numbers ascending, alone and numbered anew."""
        number = np.full(self.shape[0], -1)
        number[rows] = np.arange(len(rows))
        kept = number[self.rows] >= 0
        return SparseRows(
            rows=number[self.rows[kept]],
            columns=self.columns[kept],
            values=self.values[kept],
            shape=(len(rows), self.shape[1]),
        )


def sparse_rows_of(matrix: Floats) -> SparseRows:
    """Return the entries of ``matrix`` that are not 0."""
    rows, columns = matrix.nonzero()
    return SparseRows(rows=rows, columns=columns, values=matrix[rows, columns], shape=(len(matrix), matrix.shape[1]))
