"""The utility matrix: rows are applications, columns are configurations, most cells unknown (Paragon §2.1)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from hcloud.core.errors import BadInput

Matrix = NDArray[np.float64]
SCORE_MAX = 100.0
RIGHT_ANGLE = math.pi / 2
NORMAL_95 = 1.959963984540054
"""Half-width of a central 95 % interval, in standard deviations of a normal distribution."""


class Scale(StrEnum):
    """What a cell means, which determines the axis on which errors are additive."""

    RATIO = "ratio"
    """A positive amount (run time, rate), up to an unknown factor per application; its axis is the logarithm."""
    SCORE = "score"
    """A pressure 0..100 with the same meaning for every application. Its axis is the arcsine of the square root of its
    share, divided by a right angle (0..1), on which variances are similar across the range (Bartlett, Biometrics
    1947)."""

    def to_axis(self, value: float, where: str) -> float:
        """Return a measured value on the working axis.

        Raises BadInput, naming ``where``, for NaN, infinity, zero or less (RATIO) or outside 0..100 (SCORE).
        """
        if self is Scale.RATIO:
            if not (math.isfinite(value) and value > 0):
                raise BadInput(f"{where}: performance is {value}; it must be a finite number above 0")
            return math.log(value)
        if not 0 <= value <= SCORE_MAX:
            raise BadInput(f"{where}: interference is {value}; it must be a number from 0 to 100")
        return math.asin(math.sqrt(value / SCORE_MAX)) / RIGHT_ANGLE

    def encoded(self, values: Matrix) -> Matrix:
        """Return measured values on the working axis; NaN where :meth:`to_axis` raises BadInput."""
        if self is Scale.RATIO:
            return np.log(np.where(np.isfinite(values) & (values > 0), values, np.nan))
        return _score_axis(np.where((values >= 0) & (values <= SCORE_MAX), values, np.nan))

    def deviation(self, values: Matrix, half_widths: Matrix) -> Matrix:
        """Return the standard deviation on the working axis of cells with these 95 % half-widths.

        Half-widths are natural logarithms (RATIO) or points (SCORE).
        """
        if self is Scale.RATIO:
            return half_widths / NORMAL_95
        low, high = np.maximum(0.0, values - half_widths), np.minimum(SCORE_MAX, values + half_widths)
        return (_score_axis(high) - _score_axis(low)) / (2.0 * NORMAL_95)

    def from_axis(self, encoded: Matrix) -> Matrix:
        """Return values in the user's units. Logarithms are clipped to the range of a float, scores to 0..100."""
        if self is Scale.RATIO:
            return np.exp(np.minimum(np.maximum(encoded, -700.0), 700.0))
        return np.asarray(np.sin(np.minimum(np.maximum(encoded, 0.0), 1.0) * RIGHT_ANGLE) ** 2 * SCORE_MAX)


def _score_axis(values: Matrix) -> Matrix:
    return np.arcsin(np.sqrt(np.minimum(np.maximum(values, 0.0), SCORE_MAX) / SCORE_MAX)) / RIGHT_ANGLE


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRows:
    """Measured rows. Estimators sort them first, so that results do not depend on the order of measurement."""

    scale: Scale
    columns: tuple[str, ...]
    names: tuple[str, ...]
    values: Matrix
    """(rows x columns) on the working axis of ``scale``; NaN where not measured."""
    groups: tuple[str, ...]
    """One label per row. Rows of one group are inputs of one program and are never used to evaluate each other."""
    context: Matrix | None = None
    """(rows x columns x features), the resource use of each run; NaN where unknown. None if not recorded."""

    def __post_init__(self) -> None:
        """Raise BadInput for a duplicate column, inconsistent shapes, or an infinite cell."""
        if len(set(self.columns)) != len(self.columns):
            raise BadInput(f"columns {sorted(self.columns)} contain a duplicate; each column must appear once")
        if self.values.shape != (len(self.names), len(self.columns)) or len(self.groups) != len(self.names):
            named = f"{len(self.names)} rows and {len(self.columns)} columns"
            raise BadInput(f"the matrix has shape {self.values.shape}; expected {named}")
        if np.isinf(self.values).any():
            raise BadInput("the matrix has an infinite cell; a cell must be a finite number, or NaN where not measured")

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.names)

    def take(self, chosen: Sequence[int] | NDArray[np.int_]) -> MeasuredRows:
        """Return only the rows at these positions."""
        return MeasuredRows(
            scale=self.scale,
            columns=self.columns,
            names=tuple(self.names[i] for i in chosen),
            values=self.values[list(chosen)],
            groups=tuple(self.groups[i] for i in chosen),
            context=None if self.context is None else self.context[list(chosen)],
        )

    def in_order(self) -> MeasuredRows:
        """Return the rows sorted by name."""
        order = sorted(range(len(self)), key=self.names.__getitem__)
        return self if order == list(range(len(self))) else self.take(order)

    def with_columns(self, wanted: Sequence[str]) -> MeasuredRows:
        """Return these rows with unmeasured columns appended, all cells unknown."""
        new = tuple(sorted(set(wanted) - set(self.columns)))
        if not new:
            return self
        blank = np.full((len(self), len(new)), np.nan)
        context = self.context
        if context is not None:
            context = np.concatenate([context, np.full((len(self), len(new), context.shape[2]), np.nan)], axis=1)
        return MeasuredRows(
            scale=self.scale,
            columns=self.columns + new,
            names=self.names,
            values=np.hstack([self.values, blank]),
            groups=self.groups,
            context=context,
        )


def rows_of(
    scale: Scale,
    measured: Mapping[str, Mapping[str, float]],
    *,
    columns: Sequence[str] | None = None,
    groups: Mapping[str, str] | None = None,
    context: Mapping[str, Mapping[str, Sequence[float]]] | None = None,
) -> MeasuredRows:
    """Build rows from ``{application: {column: value}}`` in the user's units; absent cells are unknown.

    ``columns``: their order (default: all that occur, sorted). ``groups``: each row's program (default: itself).
    ``context``: resource use of each run, with the same number of features for every run.

    Raises BadInput, naming row and column, for an invalid value.
    """
    names = tuple(sorted(measured))
    order = tuple(columns) if columns is not None else tuple(sorted({c for row in measured.values() for c in row}))
    place = {column: j for j, column in enumerate(order)}
    values = np.full((len(names), len(order)), np.nan)
    for i, name in enumerate(names):
        for column, value in measured[name].items():
            if column not in place:
                raise BadInput(f"row {name!r} has a column {column!r}; known columns are {', '.join(order)}")
            values[i, place[column]] = scale.to_axis(value, f"row {name!r}, column {column!r}")
    groups = groups or {}
    return MeasuredRows(
        scale=scale,
        columns=order,
        names=names,
        values=values,
        groups=tuple(groups.get(name, name) for name in names),
        context=_context(names, place, context) if context else None,
    )


def _context(
    names: Sequence[str], place: Mapping[str, int], context: Mapping[str, Mapping[str, Sequence[float]]]
) -> Matrix:
    features = max((len(vector) for row in context.values() for vector in row.values()), default=0)
    filled = np.full((len(names), len(place), features), np.nan)
    for i, name in enumerate(names):
        for column, vector in context.get(name, {}).items():
            if len(vector) != features:
                raise BadInput(
                    f"row {name!r}, column {column!r}: resource use has {len(vector)} numbers; others have {features}"
                )
            if column in place:
                filled[i, place[column]] = vector
    filled[~np.isfinite(filled)] = np.nan
    return filled
