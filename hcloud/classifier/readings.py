"""Readings of many jobs on the axes of the estimators: coding, doubt, and performance between measured amounts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from hcloud.classifier.estimator import ObservedRows, rows_by_pattern
from hcloud.classifier.library import MeasuredApplication, Question
from hcloud.classifier.scaling import node_count
from hcloud.classifier.step_curve import vcpus_of
from hcloud.classifier.utility_matrix import Matrix, Scale
from hcloud.core.errors import BadInput

NEAR_APART = 2.5
"""Performance is interpolated between two measured amounts whose ratio is at most this."""
Index = NDArray[np.int_]
_NONE: Mapping[str, float] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """Usable readings of one question, of some jobs."""

    jobs: Index
    """Position of each row's job."""
    columns: tuple[str, ...]
    """The library's columns, then those that were never measured before."""
    known: int
    """Number of the library's columns."""
    cells: ObservedRows
    """(jobs x columns), performance as time."""
    spreads: Matrix
    """(jobs x columns), 95 % half-width in points or as natural logarithm; 0 where not stated."""

    @property
    def new(self) -> tuple[str, ...]:
        """The columns that were never measured before."""
        return self.columns[self.known :]

    def by_new_columns(self) -> Iterator[Readings]:
        """Yield the jobs with the same new columns, without those of others."""
        if not self.new:
            yield self
            return
        for new, rows in rows_by_pattern(self.cells.observed[:, self.known :]):
            columns = np.concatenate([np.arange(self.known), self.known + new])
            part = np.ix_(rows, columns)
            yield Readings(
                jobs=self.jobs[rows],
                columns=tuple(self.columns[j] for j in columns.tolist()),
                known=self.known,
                cells=ObservedRows(values=self.cells.values[part], noise=self.cells.noise[part]),
                spreads=self.spreads[part],
            )


def readings_of(
    question: Question, seen: Sequence[MeasuredApplication], known: Sequence[str], notes: Sequence[list[str]]
) -> Readings:
    """Return the usable readings of all jobs; ``known``: the library's columns.

    Invalid values (NaN, zero, a crash) are left out and named in the job's list of ``notes``.
    """
    rows = [each.cells.get(question, _NONE) for each in seen]
    counts = list(map(len, rows))
    names = list(chain.from_iterable(rows))
    measured = list(chain.from_iterable([row.values() for row in rows]))
    spreads = [each.spreads.get(question, _NONE) for each in seen]
    stated = [given.get(name, 0.0) for row, given in zip(rows, spreads, strict=True) for name in row]
    scale, values, widths = question.scale, np.array(measured, dtype=np.float64), np.array(stated, dtype=np.float64)
    with np.errstate(divide="ignore", over="ignore"):
        on_axis = scale.encoded(1.0 / values if scale is Scale.RATIO else values)
    place = {column: j for j, column in enumerate(known)}
    new = sorted(set(names) - place.keys())
    place |= {column: len(known) + j for j, column in enumerate(new)}
    jobs, columns = np.repeat(np.arange(len(seen)), counts), np.array([place[each] for each in names], dtype=np.int_)
    unusable = np.isnan(on_axis)
    if question is Question.NODES and new:
        unusable |= np.isin(columns, [place[column] for column in new if not _is_node_count(column)])
    for job, column, value in sorted((jobs[i], names[i], measured[i]) for i in np.flatnonzero(unusable).tolist()):
        notes[job].append(f"left out: {_fault(question, column, value)}")
    noise = np.where(widths > 0.0, scale.deviation(values, widths), 0.0)
    usable, shape = ~unusable, (len(seen), len(place))
    at, found = (jobs[usable], columns[usable]), (np.full(shape, np.nan), np.zeros(shape), np.zeros(shape))
    for matrix, cells in zip(found, (on_axis, noise, widths), strict=True):
        matrix[at] = cells[usable]
    return Readings(
        jobs=np.arange(len(seen)),
        columns=(*known, *new),
        known=len(known),
        cells=ObservedRows(values=found[0], noise=found[1]),
        spreads=found[2],
    )


def _is_node_count(column: str) -> bool:
    try:
        node_count(column)
    except BadInput:
        return False
    return True


def _fault(question: Question, column: str, value: float) -> str:
    """Return why a reading cannot be used."""
    where = f"{question} {column!r}"
    try:
        question.scale.to_axis(value, where)
        if question.scale is Scale.RATIO:
            question.scale.to_axis(1.0 / value, f"{where}, as time")
        if question is Question.NODES:
            node_count(column)
    except BadInput as reason:
        return str(reason)
    return f"{where}: {value} cannot be used"


def with_between(cells: ObservedRows, columns: Sequence[str]) -> ObservedRows:
    """Return rows with performance interpolated between two near observed amounts, both axes logarithmic.

    The library may have no application measured at 0.3 and 0.6 vCPUs, but many at 0.5, from which curves can be
    continued. An interpolated cell is no surer than the least sure one of its row.
    """
    named = sorted((amount, j) for j, column in enumerate(columns) if (amount := vcpus_of(column)) is not None)
    order, vcpus = [j for _, j in named], np.array([amount for amount, _ in named])
    if len(order) < 3:
        return cells
    values, place = cells.values[:, order], np.arange(len(order))
    seen = ~np.isnan(values)
    less = np.maximum.accumulate(np.where(seen, place, -1), 1)
    more = np.minimum.accumulate(np.where(seen, place, len(order))[:, ::-1], 1)[:, ::-1]
    rows, at = np.nonzero(~seen & (less >= 0) & (more < len(order)))
    less, more = less[rows, at], more[rows, at]
    near = (vcpus[more] <= NEAR_APART * vcpus[less]) & (vcpus[less] < vcpus[at]) & (vcpus[at] < vcpus[more])
    if not near.any():
        return cells
    rows, at, less, more = (each[near] for each in (rows, at, less, more))
    part = np.log(vcpus[at] / vcpus[less]) / np.log(vcpus[more] / vcpus[less])
    filled, noise, target = cells.values.copy(), cells.noise.copy(), (rows, np.array(order)[at])
    filled[target] = values[rows, less] + part * (values[rows, more] - values[rows, less])
    noise[target] = cells.noise.max(1)[rows]
    return replace(cells, values=filled, noise=noise)


def use_of(rows: Sequence[MeasuredApplication], columns: Sequence[str], features: int) -> Matrix | None:
    """Return the resource use of runs (jobs x columns x features), NaN where unknown; None if no job has any.

    A run with another number of features is left out.
    """
    place, found = {column: j for j, column in enumerate(columns)}, list[tuple[int, int, Sequence[float]]]()
    for job, each in enumerate(rows):
        found += [
            (job, place[column], use) for column, use in each.use.items() if len(use) == features and column in place
        ]
    if not found:
        return None
    filled = np.full((len(rows), len(columns), features), np.nan)
    for job, column, use in found:
        filled[job, column] = [each if math.isfinite(each) else math.nan for each in use]
    return filled
