"""Which known programs resemble a job: the distance of its estimates from what was measured of each of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from hcloud.classifier.estimator import WIDE, Completion
from hcloud.classifier.library import Question
from hcloud.classifier.utility_matrix import Matrix, MeasuredRows, Scale
from hcloud.core.estimates import Neighbour

NEAREST = 5
Index = NDArray[np.int_]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPrograms:
    """The measured cells of all known programs, prepared for distances."""

    names: NDArray[np.object_]
    """Ascending."""
    place: Mapping[str, int]
    """Positions of the names."""
    columns: Mapping[Question, int]
    """How many there are."""
    rows: Mapping[Question, Sequence[_Rows]]

    @classmethod
    def of(cls, measured: Mapping[Question, MeasuredRows]) -> KnownPrograms:
        """Prepare the rows of each question."""
        names = sorted({name for rows in measured.values() for name in rows.names})
        place = {name: at for at, name in enumerate(names)}
        return cls(
            names=np.array(names, dtype=object),
            place=place,
            columns={question: len(rows.columns) for question, rows in measured.items()},
            rows={question: list(_by_count(rows, place)) for question, rows in measured.items()},
        )

    @property
    def cells(self) -> int:
        """Number of cells that a job is compared with at once; at least 1."""
        return max([1, len(self.names), *(each.values.size for rows in self.rows.values() for each in rows)])

    def nearest(
        self, own_names: Sequence[str], completions: Iterable[tuple[Question, Index, Completion]]
    ) -> list[tuple[Neighbour, ...]]:
        """Return up to ``NEAREST`` programs for each job, the most similar first, without the job's own row.

        ``completions`` are those of some of the jobs each, known columns first. Distances are means over the questions
        that were measured.
        """
        shape = len(self.names), len(own_names)
        total, count = np.zeros(shape), np.zeros(shape, dtype=np.int_)
        for question, (mean, measured) in self._means(len(own_names), completions).items():
            for rows in self.rows[question] if measured.any() else ():
                total[rows.places] += np.where(measured, rows.distances(mean), 0.0)
                count[rows.places] += measured
        for job, own in enumerate(own_names):
            if own in self.place:
                count[self.place[own], job] = 0
        if not total.size:
            return [()] * len(own_names)
        distance = np.where(count > 0, total / np.maximum(count, 1), np.inf)
        last = min(NEAREST, len(self.names)) - 1
        # Fewer than all are sorted: those no further than the last that is wanted.
        places, jobs = np.nonzero((distance <= np.partition(distance, last, axis=0)[last]) & (count > 0))
        order = np.lexsort((places, distance[places, jobs], jobs))
        similarity = np.exp(-distance[places, jobs])[order].tolist()
        named = zip(self.names[places[order]].tolist(), similarity, strict=True)
        neighbours = map(partial(tuple.__new__, Neighbour), named)
        found = np.bincount(jobs, minlength=len(own_names)).tolist()
        return [tuple(islice(neighbours, each))[:NEAREST] for each in found]

    def _means(
        self, jobs: int, completions: Iterable[tuple[Question, Index, Completion]]
    ) -> dict[Question, tuple[Matrix, NDArray[np.bool_]]]:
        """Return, by question, the estimates at the known columns (columns x jobs), and which jobs were measured."""
        found: dict[Question, tuple[Matrix, NDArray[np.bool_]]] = {}
        for question, some, completion in completions:
            blank = np.zeros((self.columns[question], jobs)), np.zeros(jobs, dtype=bool)
            mean, measured = found.setdefault(question, blank)
            mean[:, some] = completion.mean[:, : len(mean)].T
            measured[some] = completion.observed.any(axis=1)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Rows of one question with equally many known cells."""

    scale: Scale
    places: Index
    """Positions of the rows' names, (rows)."""
    columns: Index
    """Of the known cells, (cells x rows)."""
    values: Matrix
    """(cells x rows x 1)."""

    def distances(self, mean: Matrix) -> Matrix:
        """Return each row's distance from each job, (rows x jobs); ``mean`` is (columns x jobs).

        It is the root mean square over the row's known cells, in widths of an unknown cell. For RATIO rows the
        difference in overall scale is removed, so only the shape counts.
        """
        cells = mean[self.columns]
        cells -= self.values
        if self.scale is Scale.RATIO:
            cells -= cells.mean(axis=0)
        cells *= cells
        return np.asarray(np.sqrt(cells.mean(axis=0)) / WIDE[self.scale])


def _by_count(rows: MeasuredRows, place: Mapping[str, int]) -> Iterable[_Rows]:
    """Yield the rows by their number of known cells; a RATIO row with one cell has no shape, and is left out."""
    known = ~np.isnan(rows.values)
    counts = known.sum(axis=1)
    for count in sorted(set(counts[counts >= (2 if rows.scale is Scale.RATIO else 1)].tolist())):
        alike = np.flatnonzero(counts == count)
        columns = np.nonzero(known[alike])[1].reshape(-1, count).T
        yield _Rows(
            scale=rows.scale,
            places=np.array([place[rows.names[row]] for row in alike], dtype=np.int_),
            columns=columns,
            values=rows.values[alike, columns][:, :, None],
        )
