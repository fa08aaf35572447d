"""Several small classifications beside a single one of all combinations (Dissertation §4.3.2, table 4.3, fig. 4.4): on
public measurements of jobs on families of machine types in several sizes; how long both take, on matrices made here."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from bench.accuracy.lumos import Cloud, folds
from hcloud.classifier.estimator import Fitted
from hcloud.classifier.library import Question
from hcloud.classifier.utility_matrix import Matrix, MeasuredRows, Scale
from lab.papers.classification import ESTIMATORS, OURS, PRINTED, measured_clouds
from lab.papers.study import (
    Claim,
    Effect,
    Figure,
    Numbers,
    computed_cases,
    given,
    points_more,
)

METHODS = (PRINTED, OURS)
CLOUD = "huawei"
"""Five families in three sizes each, all measured; the other cloud has three."""
ENTRIES = 8
"""Entries of a row of the exhaustive classification (table 4.3)."""
TWO, SAME_RUNS, EXHAUSTIVE = "family and size", "all, as many runs", f"all, {ENTRIES} entries"
WAYS: Mapping[str, int] = {TWO: 3, SAME_RUNS: 3, EXHAUSTIVE: ENTRIES}
"""Runs of a job by way of classification; two entries for each of two classifications share one."""
QUESTIONS = (10, 8, 6, 10)
"""Columns of four classifications whose times are compared: types, sizes of one server, numbers of nodes, levels of
interference."""
ROWS = 40


def figures() -> Iterator[Figure]:
    """Yield the figures."""
    yield _errors()
    yield _times()


# --------------------------------------------------------------------------------------------------------------- errors
@cache
def _grid(folder: Path) -> tuple[Cloud, tuple[tuple[int, ...], ...]]:
    """Return a cloud with the jobs that were measured on all types of a grid, and its columns by family and size."""
    cloud, columns = measured_clouds(folder)[CLOUD], dict[str, dict[str, int]]()
    for at, name in enumerate(cloud.types):
        family, size, *rest = name.split(".")
        columns.setdefault(".".join([family, *rest]), {})[size] = at
    sizes = sorted({size for mine in columns.values() for size in mine})
    grid = tuple(tuple(mine[size] for size in sizes) for mine in columns.values() if set(sizes) <= set(mine))
    jobs = np.flatnonzero(~np.isnan(cloud.times[:, [at for row in grid for at in row]]).any(axis=1))
    kept = replace(
        cloud,
        jobs=tuple(cloud.jobs[at] for at in jobs),
        times=cloud.times[jobs],
        programs=tuple(cloud.programs[at] for at in jobs),
        use=None,
    )
    return kept, grid


def _part(rows: MeasuredRows, columns: Sequence[int]) -> MeasuredRows:
    return replace(rows, columns=tuple(rows.columns[at] for at in columns), values=rows.values[:, list(columns)])


class _Fits:
    """Estimators that are fitted to known rows, by their columns."""

    def __init__(self, method: str, rows: MeasuredRows) -> None:
        self.estimator, self.rows, self.found = ESTIMATORS[method](Question.TYPE), rows, dict[tuple[int, ...], Fitted]()

    def completed(self, columns: tuple[int, ...], truth: Matrix, measured: Sequence[int]) -> Matrix:
        """Return expected times in these columns from those that are measured among them."""
        if columns not in self.found:
            self.found[columns] = self.estimator.fit(_part(self.rows, columns))
        seen = {self.rows.columns[at]: float(truth[at]) for at in measured}
        return np.array(self.found[columns].complete(seen).values)


def _expected(
    fits: _Fits, way: str, grid: NDArray[np.int64], truth: Matrix, rng: Generator
) -> tuple[Matrix, Sequence[int]]:
    """Return expected times in all columns of the grid, and those that were measured."""
    expected = np.full(truth.shape, np.nan)
    if way != TWO:
        measured = rng.permutation(grid.ravel())[: WAYS[way]].tolist()
        columns = tuple(grid.ravel().tolist())
        expected[list(columns)] = fits.completed(columns, truth, measured)
        return expected, measured
    (family, other), (size, larger) = (rng.permutation(count)[:2] for count in grid.shape)
    base, beside, above = int(grid[family, size]), int(grid[other, size]), int(grid[family, larger])
    by_family = fits.completed(tuple(grid[:, size].tolist()), truth, (base, beside))
    by_size = fits.completed(tuple(grid[family].tolist()), truth, (base, above))
    expected[grid] = np.outer(by_family, by_size) / truth[base]
    return expected, (base, beside, above)


def error_numbers(method: str, way: str, folder: Path | None, seed: int) -> Numbers:
    """Return errors of expected times where nothing was measured."""
    cloud, columns = _grid(given(folder))
    grid, errors = np.array(columns), list[Matrix]()
    for fold in folds(cloud):
        fits = _Fits(method, fold.rows)
        for job in fold.held:
            truth = cloud.times[job]
            expected, measured = _expected(fits, way, grid, truth, default_rng((seed, job)))
            left = np.setdiff1d(grid.ravel(), measured)
            errors.append(100.0 * np.abs(expected[left] / truth[left] - 1.0))
    whole = np.concatenate(errors)
    return {
        "error_pct": float(whole.mean()),
        "p90_error_pct": float(np.quantile(whole, 0.9)),
        "most_error_pct": float(whole.max()),
    }


def _errors() -> Figure:
    def label(method: str, way: str) -> str:
        return f"{method}: {way}"

    def spread(method: str) -> Claim:
        several, single = label(method, TWO), label(method, EXHAUSTIVE)
        return Claim(
            text=f"all combinations at once have a largest error closer to the mean ({method})",
            published="at most 2 points, beside up to 9 (8 to 17 %)",
            ours=lambda seed: (
                seed[several]["most_error_pct"]
                - seed[several]["error_pct"]
                - (seed[single]["most_error_pct"] - seed[single]["error_pct"])
            ),
            holds=lambda value: value > 0.0,
            unit="points less",
        )

    def worse(method: str, way: str, published: str, holds: bool) -> Claim:
        return Claim(
            text=f"all combinations at once, {way.partition(', ')[2]}: mean error beside apart ({method})",
            published=published,
            ours=points_more(label(method, way), label(method, TWO), "error_pct"),
            effect=Effect(4.0) if holds else None,
            holds=lambda value: value > 0.0,
            unit="points more",
        )

    return Figure(
        name="classification-exhaustive",
        title="Families and sizes of machines apart, or all combinations at once: unknown programs, huawei",
        source="Dissertation §4.3.3, table 4.3",
        cases=computed_cases(
            error_numbers, of={label(method, way): (method, way) for method in METHODS for way in WAYS}
        ),
        columns=("error_pct", "p90_error_pct", "most_error_pct"),
        claims=tuple(
            claim
            for method in METHODS
            for claim in (
                worse(method, EXHAUSTIVE, "11.6 to 16.5 % beside less than 8 %: 4 points or more", True),
                worse(method, SAME_RUNS, "-", False),
                spread(method),
            )
        ),
        drawn="error_pct",
        of_data=measured_clouds,
    )


# ---------------------------------------------------------------------------------------------------------------- times
def time_numbers(method: str, together: bool, _: Path | None, seed: int) -> Numbers:
    """Return the processor time in which one job is classified from two entries for each question."""
    rng, spent_s = default_rng(seed), 0.0
    for count in (prod(QUESTIONS),) if together else QUESTIONS:
        rows = MeasuredRows(
            scale=Scale.RATIO,
            columns=tuple(str(at) for at in range(count)),
            names=tuple(f"p{row}" for row in range(ROWS)),
            values=rng.normal(size=(ROWS, 2)) @ rng.normal(size=(2, count)) * 0.2 + rng.normal(size=(ROWS, 1)),
            groups=tuple(f"p{row}" for row in range(ROWS)),
        )
        entries = rng.permutation(count)[: ENTRIES if together else 2].tolist()
        seen = {str(at): float(np.exp(rng.normal())) for at in entries}
        fitted = ESTIMATORS[method](Question.TOLERATED).fit(rows)
        began = time.process_time()
        fitted.complete(seen)
        spent_s += time.process_time() - began
    return {"classified_ms": 1000.0 * spent_s}


def _times() -> Figure:
    four, one = "four apart", "one of all combinations"
    return Figure(
        name="classification-times",
        title=f"Processor time of classifying a job: four classifications, or one of {prod(QUESTIONS):,} columns",
        source="Dissertation §4.3.4, fig. 4.4",
        cases=computed_cases(time_numbers, of={four: (PRINTED, False), one: (PRINTED, True)}),
        columns=("classified_ms",),
        claims=(
            Claim(
                text="one of all combinations takes longer",
                published="often by two orders of magnitude",
                ours=lambda seed: seed[one]["classified_ms"] / seed[four]["classified_ms"],
                effect=Effect(100.0, none=1.0),
                unit="times as long",
            ),
        ),
        drawn="classified_ms",
    )
