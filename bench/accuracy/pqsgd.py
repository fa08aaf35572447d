"""PQ-reconstruction with stochastic gradient descent, as Paragon §2.1 and Quasar (Dissertation §4.3.2) print it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hcloud.classifier.estimator import CompletesOne, Completion, Fitted, ObservedRows, completed, spread
from hcloud.classifier.gaussian import evenly
from hcloud.classifier.utility_matrix import Matrix, MeasuredRows, Scale

HELD_OUT_MAX = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class PqSgd:
    """``r_ui = mu + b_u + q_i . p_u``, started from the SVD of the matrix and improved by gradient steps.

    Where the print is unclear: unknown cells are filled with ``mu + b_u`` for the first SVD, and the descent runs over
    the **known entries only** (run over all of ``R``, as printed, it would fit the filling). ``b_u`` is the mean of the
    row's known cells less ``mu``; there is no column effect in the print. Steps are taken column by column, all of a
    column's entries together: each row's factors see exactly the printed sequence, a column's factors see their sum.

    The singular values are shared between both factors (the print gives them all to ``P``), and eta is taken relative
    to the largest, so that one rate is stable for matrices of every size.

    ``rank`` of the factors; ``rate`` (eta) and ``penalty`` (lambda) of the steps; ``sweeps_max`` over the entries,
    ended when the error falls by less than ``tolerance`` of itself. Uncertainty: some known rows are stripped to two
    cells and completed again at fit; the spread of their errors, column by column, is stated for every new row.
    """

    rank: int = 2
    rate: float = 0.5
    penalty: float = 0.02
    sweeps_max: int = 100
    tolerance: float = 1e-3

    def fit(self, rows: MeasuredRows) -> Fitted:
        """Measure how wrong the method is on rows stripped to two cells."""
        rows = rows.in_order()
        known = ~np.isnan(rows.values)
        dense = [int(i) for i in np.flatnonzero(known.sum(1) >= 3)]
        held = evenly(dense, min(HELD_OUT_MAX, max(0, len(dense) // 2)))
        stripped = rows.values.copy()
        for turn, i in enumerate(held):
            cells = np.flatnonzero(known[i])
            kept = {int(cells[turn % len(cells)]), int(cells[(turn // len(cells) + turn + 1) % len(cells)])}
            stripped[i, [j for j in range(len(rows.columns)) if j not in kept]] = np.nan
        errors = np.full_like(rows.values, np.nan)
        if held:
            errors[held] = np.where(
                np.isnan(stripped[held]), rows.values[held] - self.reconstruct(stripped)[held], np.nan
            )
        return FittedPqSgd(rows=rows, method=self, sd=spread(errors, rows.scale))

    def reconstruct(self, values: Matrix) -> Matrix:
        """Return the dense matrix (rows x columns) recovered from one with NaN cells; all finite."""
        known = ~np.isnan(values)
        count = np.maximum(known.sum(1), 1)
        mu = float(values[known].mean()) if known.any() else 0.0
        bias = np.where(known, values - mu, 0.0).sum(1) / count
        centred = np.where(known, values - mu - bias[:, None], 0.0)
        left, singular, right = np.linalg.svd(centred, full_matrices=False)
        rank = min(self.rank, len(singular))
        root = np.sqrt(singular[:rank])
        row_factors, column_factors = left[:, :rank] * root, (root[:, None] * right[:rank]).T
        rate = self.rate / max(float(singular[0]) if rank else 1.0, 1e-12)
        with np.errstate(all="ignore"):
            descended = self._descend(centred, known, row_factors.copy(), column_factors.copy(), rate)
            before, after = (
                np.where(known, centred - q @ p.T, 0.0) for q, p in ((row_factors, column_factors), descended)
            )
            helped = bool((after**2).sum() <= (before**2).sum())  # False where it ran away to NaN, too
        if helped:  # too large a rate runs away; the SVD alone is then better
            row_factors, column_factors = descended
        return np.asarray(mu + bias[:, None] + row_factors @ column_factors.T)

    def _descend(
        self, centred: Matrix, known: Matrix, rows: Matrix, columns: Matrix, rate: float
    ) -> tuple[Matrix, Matrix]:
        members = [np.flatnonzero(known[:, j]) for j in range(centred.shape[1])]
        last = np.inf
        for _ in range(self.sweeps_max):
            squared = 0.0
            for j, of in enumerate(members):
                error = centred[of, j] - rows[of] @ columns[j]
                squared += float(error @ error)
                step = rate * (np.outer(error, columns[j]) - self.penalty * rows[of])
                columns[j] += rate * (error @ rows[of] - self.penalty * columns[j])
                rows[of] += step
            if not np.isfinite(squared) or last - squared <= self.tolerance * squared:
                break
            last = squared
        return rows, columns


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedPqSgd(CompletesOne):
    """The rows and the method; every new row is appended and the whole matrix reconstructed, as in the papers."""

    rows: MeasuredRows
    method: PqSgd
    sd: Matrix

    def complete_many(self, seen: ObservedRows) -> Completion:
        """Append each row and reconstruct; one without an observed cell gets the mean of all, and their spread too."""
        mean = np.array([self.method.reconstruct(np.vstack([self.rows.values, row]))[-1] for row in seen.values])
        spread_of_all = np.nanstd(self.rows.values) if np.isfinite(self.rows.values).any() else 1.0
        nothing = ~seen.observed.any(1, keepdims=True)
        middle = 0.5 if self.rows.scale is Scale.SCORE and not len(self.rows) else 0.0
        sd = np.sqrt(self.sd**2 + np.where(nothing, spread_of_all**2, 0.0))
        return completed(self.rows, seen, mean + np.where(nothing, middle, 0.0), sd)
