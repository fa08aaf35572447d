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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlottedRows:
    """A matrix of which each row is the outer product of two short ones: what it takes of each of ``U`` pools, and what
    of that it takes in each of ``T`` slots. Column ``u * T + t`` is pool ``u`` in slot ``t``."""

    spread: Floats
    """Of each pool, shape ``(G, U)``; many rows may share one."""
    group_of: Integers
    """Which of ``spread`` is that of each row, shape ``(n,)``."""
    parts: Floats
    """Of each slot, shape ``(n, T)``."""

    def times(self, of_columns: Floats) -> Floats:
        """Return the sum over each row of its entries times the value of their column."""
        by_slot = of_columns.reshape(self.spread.shape[1], -1)
        found: Floats = np.einsum("nt,nt->n", self.parts, (self.spread @ by_slot)[self.group_of])
        return found

    def summed(self, of_rows: Floats) -> Floats:
        """Return the sum over each column of its entries times the value of their row."""
        rows = of_rows.nonzero()[0]
        taken = of_rows[rows, None] * self.parts[rows]
        found: Floats = (self.spread[self.group_of[rows]].T @ taken).ravel()
        return found

    def chosen(self, rows: Integers) -> SparseRows:
        """Return these rows, numbers ascending, alone and numbered anew."""
        groups, parts, slots = self.group_of[rows], self.parts[rows], self.parts.shape[1]
        row, slot = parts.nonzero()
        entry, pool = (self.spread[groups] != 0.0)[row].nonzero()
        row, slot = row[entry], slot[entry]
        return SparseRows(
            rows=row,
            columns=pool * slots + slot,
            values=self.spread[groups[row], pool] * parts[row, slot],
            shape=(len(rows), self.spread.shape[1] * slots),
        )


def sparse_rows_of(matrix: Floats) -> SparseRows:
    """Return the entries of ``matrix`` that are not 0."""
    rows, columns = matrix.nonzero()
    return SparseRows(rows=rows, columns=columns, values=matrix[rows, columns], shape=(len(matrix), matrix.shape[1]))
