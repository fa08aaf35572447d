"""The interface of every estimator, its result type, and the baselines that any method has to beat."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass, replace
from functools import partial
from statistics import NormalDist
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hcloud.classifier.utility_matrix import Matrix, MeasuredRows, Scale
from hcloud.core.errors import BadInput
from hcloud.core.estimates import Estimate

INTERVAL = 0.8
Z80 = 1.2815515655446004
"""Half-width of a central 80 % interval, in standard deviations of a normal distribution."""
WIDE = {Scale.RATIO: 0.7, Scale.SCORE: 0.3}
"""Standard deviation of an unknown cell: a factor of two either way (RATIO), or 40 points around 50 (SCORE)."""
NOISE = {Scale.RATIO: 0.02, Scale.SCORE: 0.02}
"""Standard deviation of a repeated measurement on idle machines: about 2 %; scores 1 (of 3) to 3 points (of 50)."""
LEAST_SD = 1e-4
"""Smallest standard deviation of a cell, whatever its measurement states."""

Key = TypeVar("Key", str, int)
Context = Mapping[str, Sequence[float]]
Noise = Mapping[str, float]
"""Standard deviation of observed cells on the working axis; cells it does not name are taken as measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRows:
    """The observed cells of rows that are to be completed, which may be any number."""

    values: Matrix
    """(rows x columns) on the working axis; NaN where not observed."""
    noise: Matrix
    """(rows x columns), standard deviation of each; 0 where not stated or not observed."""
    context: Matrix | None = None
    """(rows x columns x features), resource use of each run; NaN where not observed or unknown."""

    @property
    def observed(self) -> NDArray[np.bool_]:
        """Which cells were observed, (rows x columns)."""
        return ~np.isnan(self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Completed rows on the working axis of ``scale``; all values are finite.

    Arrays are (rows x columns); those of one row (:meth:`row`) are (columns).
    """

    scale: Scale
    columns: tuple[str, ...]
    mean: Matrix
    """Estimates."""
    sd: Matrix
    """Effective standard deviation, positive: ``mean +- 1.28 sd`` should cover 80 % of true values."""
    observed: NDArray[np.bool_]
    """Which cells were measured."""

    @property
    def values(self) -> Matrix:
        """Estimates in the user's units."""
        return self.scale.from_axis(self.mean)

    def interval(self, level: float = INTERVAL) -> tuple[Matrix, Matrix]:
        """Return the central interval of probability ``level``, in the user's units."""
        reach = Z80 if level == INTERVAL else NormalDist().inv_cdf(0.5 + level / 2)
        return self.scale.from_axis(self.mean - reach * self.sd), self.scale.from_axis(self.mean + reach * self.sd)

    def row(self, place: int) -> Completion:
        """Return one of the rows."""
        return replace(self, mean=self.mean[place], sd=self.sd[place], observed=self.observed[place])


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """Values with their 80 % limits, of many rows in the user's units; arrays are (rows x columns)."""

    columns: tuple[str, ...]
    values: Matrix
    low: Matrix
    high: Matrix
    observed: NDArray[np.bool_]

    @classmethod
    def of(cls, completion: Completion, *, as_rates: bool) -> Estimates:
        """Return the estimates of completed rows; ``as_rates``: of work per time, the rows being times."""
        (low, high), values = completion.interval(), completion.values
        if as_rates:
            values, low, high = 1.0 / values, 1.0 / high, 1.0 / low
        return cls(columns=completion.columns, values=values, low=low, high=high, observed=completion.observed)

    def by_row(self, columns: Sequence[Key]) -> list[EstimatedRow[Key]]:
        """Return each row's estimates by ``columns``, which name those of the arrays."""
        # Most rows are never read whole before the next classification, and an estimate per cell takes long.
        return list(map(partial(EstimatedRow, tuple(columns), self), range(len(self.values))))


class EstimatedRow(Mapping[Key, Estimate]):
    """One row of estimates by column: an immutable mapping, made from the arrays when it is first read."""

    __slots__ = ("_cells", "_columns", "_place", "_rows")

    def __init__(self, columns: tuple[Key, ...], rows: Estimates, place: int) -> None:
        """``columns`` name those of ``rows``; ``place`` is the row."""
        self._columns: tuple[Key, ...] = columns
        self._rows: Estimates | None = rows
        self._place = place
        self._cells: dict[Key, Estimate] | None = None

    def _read(self) -> dict[Key, Estimate]:
        if self._cells is None:
            rows, place = self._rows, self._place
            if rows is None:  # read by another thread meanwhile
                return self._read()
            arrays = (rows.values, rows.low, rows.high, rows.observed)
            cells = zip(*(each[place].tolist() for each in arrays), strict=True)
            self._cells = dict(zip(self._columns, map(partial(tuple.__new__, Estimate), cells), strict=True))
            self._rows = None
        return self._cells

    def __getitem__(self, column: Key) -> Estimate:
        return self._read()[column]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __contains__(self, column: object) -> bool:
        return column in self._read()

    def get(self, column: Key, default: Any = None) -> Any:
        """Return the estimate of a column, or ``default``."""
        return self._read().get(column, default)

    def items(self) -> ItemsView[Key, Estimate]:
        """Return columns and estimates."""
        return self._read().items()

    def values(self) -> ValuesView[Estimate]:
        """Return the estimates."""
        return self._read().values()

    def __eq__(self, other: object) -> bool:
        return self._read() == (other._read() if isinstance(other, EstimatedRow) else other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._read())

    def __reduce__(self) -> tuple[type[dict[Key, Estimate]], tuple[dict[Key, Estimate]]]:
        return dict, (self._read(),)  # a copy does not hold the arrays of all rows


class Fitted(Protocol):
    """A fitted estimator; completes new rows. Each row is completed by itself, whatever the others are."""

    @property
    def rows(self) -> MeasuredRows:
        """The rows it was fitted to."""

    def complete_many(self, seen: ObservedRows) -> Completion:
        """Complete rows from their observed cells (none: from the prior alone).

        Observed cells with noise are estimated as well, between the measurement and what the others predict.
        Estimators that cannot use noise or context ignore it.
        """

    def complete(
        self, observed: Mapping[str, float], context: Context | None = None, noise: Noise | None = None
    ) -> Completion:
        """Complete one row from ``{column: value}`` in the user's units; see :func:`observed_row`."""


class CompletesOne:
    """A fitted estimator that completes one row as a batch of one."""

    __slots__ = ()

    def complete(
        self: Fitted, observed: Mapping[str, float], context: Context | None = None, noise: Noise | None = None
    ) -> Completion:
        """Complete one row from ``{column: value}`` in the user's units; see :func:`observed_row`."""
        return self.complete_many(observed_row(self.rows, observed, context, noise)).row(0)


class Estimator(Protocol):
    """A method with frozen parameters; all learning happens in :meth:`fit`."""

    def fit(self, rows: MeasuredRows) -> Fitted:
        """Learn from rows with missing cells. Empty rows are ignored; without any rows the prior is wide."""


@runtime_checkable
class Renewing(Estimator, Protocol):
    """A method that can reuse cross-validated choices of an earlier fit, which take most of its time."""

    def renew(self, rows: MeasuredRows, before: Fitted | None) -> Fitted:
        """Fit as :meth:`fit` does, but reuse the calibration of ``before`` unless there are many more rows now."""


@runtime_checkable
class Widening(Fitted, Protocol):
    """A fit that can add unmeasured columns without refitting, because they carry no information on others."""

    def with_columns(self, new: Sequence[str]) -> Fitted:
        """Return what :meth:`Estimator.fit` returns for the same rows with these columns added, all cells unknown."""


CALIBRATED_FOR = 1.5
"""A calibration stays valid until there are this many times as many rows."""


def still_judged(rows: MeasuredRows, before: MeasuredRows, judged_by: int) -> bool:
    """Return whether a calibration done with ``judged_by`` rows, last used for ``before``, is valid for ``rows``."""
    return set(before.columns) <= set(rows.columns) and len(rows) <= CALIBRATED_FOR * judged_by


def observed_row(
    rows: MeasuredRows, observed: Mapping[str, float], context: Context | None = None, noise: Noise | None = None
) -> ObservedRows:
    """Return one row of observed cells, ``{column: value}`` in the user's units.

    ``context``: resource use of each observed run, in the features of the rows' context. ``noise``: standard deviation
    of cells on the working axis. Raises BadInput for an unknown column or an invalid value.
    """
    place = {column: j for j, column in enumerate(rows.columns)}
    values, doubts = np.full((1, len(place)), np.nan), np.zeros((1, len(place)))
    for column, value in observed.items():
        if column not in place:
            known = ", ".join(rows.columns[:20]) + (", ..." if len(rows.columns) > 20 else "")
            raise BadInput(f"column {column!r} is not known; known columns are {known or 'none'}")
        values[0, place[column]] = rows.scale.to_axis(value, f"column {column!r}")
        doubts[0, place[column]] = noise.get(column, 0.0) if noise else 0.0
    if rows.context is None or not context:
        return ObservedRows(values=values, noise=doubts)
    use = np.full((1, *rows.context.shape[1:]), np.nan)
    for column in observed.keys() & context.keys():
        if len(context[column]) != use.shape[2]:
            raise BadInput(
                f"column {column!r}: resource use has {len(context[column])} numbers; known runs have {use.shape[2]}"
            )
        use[0, place[column]] = context[column]
    use[~np.isfinite(use)] = np.nan
    return ObservedRows(values=values, noise=doubts, context=use)


def completed(rows: MeasuredRows, seen: ObservedRows, mean: Matrix, sd: Matrix, *, shrunk: bool = False) -> Completion:
    """Return the completion: cells without stated noise as measured, with the usual noise; all others as estimated.

    ``mean`` and ``sd`` are (rows x columns). ``shrunk``: they hold estimates of observed cells with stated noise too.
    """
    observed, least = seen.observed, NOISE[rows.scale]
    stated = observed & (seen.noise > 0.0)
    own_sd = np.maximum(np.minimum(sd, seen.noise) if shrunk else seen.noise, LEAST_SD)
    return Completion(
        scale=rows.scale,
        columns=rows.columns,
        mean=np.where(observed & ~(stated & shrunk), seen.values, mean),
        sd=np.where(stated, own_sd, np.where(observed, least, np.maximum(sd, least))),
        observed=observed,
    )


def rows_by_pattern(observed: NDArray[np.bool_]) -> Iterator[tuple[NDArray[np.int_], NDArray[np.int_]]]:
    """Yield, for each set of observed columns in (rows x columns), these columns and the rows, both as indices."""
    found: dict[bytes, list[int]] = {}
    for place, row in enumerate(observed):
        found.setdefault(row.tobytes(), []).append(place)
    for places in found.values():
        yield np.flatnonzero(observed[places[0]]), np.array(places)


def row_effects(values: Matrix, *, sweeps: int = 30) -> tuple[Matrix, Matrix]:
    """Return row effects (rows) and column effects (columns) of the additive model, by alternating means.

    Means are over known cells. Column effects have mean 0 over measured columns. Columns without any measurement, and
    rows without a cell, have effect 0.
    """
    known = ~np.isnan(values)
    filled = np.where(known, values, 0.0)
    per_row, per_column = np.maximum(known.sum(1), 1), np.maximum(known.sum(0), 1)
    row, column = np.zeros(values.shape[0]), np.zeros(values.shape[1])
    seen = known.any(0)
    anything = bool(seen.any())
    for _ in range(sweeps):
        row = np.add.reduce(filled - known * column, 1) / per_row
        column = np.add.reduce(filled - known * row[:, None], 0) / per_column
        column = np.where(seen, column - (column[seen].mean() if anything else 0.0), 0.0)
    return row, column


def spread(residuals: Matrix, scale: Scale, *, prior_cells: float = 5.0) -> Matrix:
    """Return an effective standard deviation per column from (rows x columns) residuals, ignoring NaN.

    It is scaled from the 80th percentile of absolute residuals, so that 80 % intervals have that coverage. Columns with
    few residuals are blended with ``prior_cells`` of the wide prior.
    """
    known = ~np.isnan(residuals)
    count = known.sum(0)
    reach = np.full(residuals.shape[1], WIDE[scale])
    for j in np.flatnonzero(count):
        reach[j] = np.quantile(np.abs(residuals[known[:, j], j]), INTERVAL) / Z80
    blend = prior_cells * (count < prior_cells)
    total = np.maximum(count + blend, 1.0)
    return np.asarray(np.sqrt((count * reach**2 + blend * WIDE[scale] ** 2) / total))


# ----------------------------------------------------------------------------------------------------------- baselines
@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeMean:
    """Baseline: every unknown cell is the arithmetic mean of the observed ones, regardless of its column."""

    def fit(self, rows: MeasuredRows) -> Fitted:
        """Compute residuals from each row's mean over its known cells."""
        rows = rows.in_order()
        _, column = row_effects(rows.values)
        row, _ = row_effects(rows.values, sweeps=1)
        return FittedOffsets(
            rows=rows,
            offsets=np.zeros_like(column),
            level=_level(rows, row),
            sd=spread(rows.values - row[:, None], rows.scale),
            arithmetic=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdditiveLog:
    """Baseline: row effect plus column effect on the working axis; the row effect is the mean of the observed cells."""

    def fit(self, rows: MeasuredRows) -> Fitted:
        """Fit both effects by alternating means over known cells."""
        rows = rows.in_order()
        row, column = row_effects(rows.values)
        residuals = rows.values - row[:, None] - column
        return FittedOffsets(rows=rows, offsets=column, level=_level(rows, row), sd=spread(residuals, rows.scale))


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMean:
    """Baseline: every unknown cell is its column's mean over the rows, regardless of the observed cells."""

    def fit(self, rows: MeasuredRows) -> Fitted:
        """Compute column means; a column's deviation is its spread between applications."""
        rows = rows.in_order()
        known = ~np.isnan(rows.values)
        overall = float(rows.values[known].mean()) if known.any() else _middle(rows.scale)
        means = np.where(known, rows.values, 0.0).sum(0) / np.maximum(known.sum(0), 1)
        means = np.where(known.any(0), means, overall)
        return FittedOffsets(
            rows=rows, offsets=means - overall, level=overall, sd=spread(rows.values - means, rows.scale), follows=False
        )


def _middle(scale: Scale) -> float:
    return 0.0 if scale is Scale.RATIO else 0.5


def _level(rows: MeasuredRows, row: Matrix) -> float:
    has = (~np.isnan(rows.values)).any(1)
    return float(row[has].mean()) if has.any() else _middle(rows.scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedOffsets(CompletesOne):
    """A fitted baseline: one offset per column around a level, from the library or from the observed cells."""

    rows: MeasuredRows
    offsets: Matrix
    level: float
    sd: Matrix
    follows: bool = True
    arithmetic: bool = False

    def complete_many(self, seen: ObservedRows) -> Completion:
        """Return level plus offsets; the fewer cells are observed, the less certain the level."""
        observed, level = seen.observed, np.full((len(seen.values), 1), self.level)
        extra = np.zeros_like(level)
        if self.follows:
            count = observed.sum(1, keepdims=True)
            alone = (WIDE[self.rows.scale] / max(float(self.sd.mean()), 1e-9)) ** 2
            extra = np.where(count > 0, 1.0 / np.maximum(count, 1), alone)
            around = seen.values - self.offsets
            if self.arithmetic and self.rows.scale is Scale.RATIO:
                total = np.logaddexp.reduce(np.where(observed, around, -np.inf), 1, keepdims=True)
                followed = total - np.log(np.maximum(count, 1))
            else:
                followed = np.where(observed, around, 0.0).sum(1, keepdims=True) / np.maximum(count, 1)
            level = np.where(count > 0, followed, level)
        return completed(self.rows, seen, level + self.offsets, self.sd * np.sqrt(1.0 + extra))
