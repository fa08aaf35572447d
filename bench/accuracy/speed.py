"""How fast, at 10,000 known applications and 50 columns; made-up rows, because no real library is that large."""

from __future__ import annotations

import importlib.util
import time
import tracemalloc
from collections.abc import Callable, Mapping
from statistics import median

import numpy as np
from numpy.random import Generator, default_rng

from bench.accuracy.lumos import trainset
from bench.accuracy.pqsgd import PqSgd
from bench.rows import Row
from hcloud.classifier.classify import METHODS
from hcloud.classifier.estimator import Estimator
from hcloud.classifier.library import Question
from hcloud.classifier.neighbours import FittedNeighbours
from hcloud.classifier.utility_matrix import Matrix, MeasuredRows, Scale

APPLICATIONS, COLUMNS, DENSE, QUESTIONS = 10_000, 50, 2_000, 300
PQ_APPLICATIONS, PQ_SWEEPS = 2_000, 20


def library(rng: Generator, applications: int, question: Question = Question.TYPE) -> MeasuredRows:
    """Return made-up rows of a question: a fifth dense, the others known in 2 to 10 cells.

    Rank 2, bent (so that neighbours have something to correct, and are not left out), and noise.
    """
    traits = rng.normal(size=(applications, 2))
    bent = np.abs(traits @ rng.normal(size=(2, COLUMNS))) * 0.3
    values = rng.normal(size=(applications, 1)) + bent + traits @ rng.normal(size=(2, COLUMNS)) * 0.3
    values += 0.03 * rng.normal(size=(applications, COLUMNS))
    for row in values[DENSE * applications // APPLICATIONS :]:
        row[rng.permutation(COLUMNS)[rng.integers(2, 11) :]] = np.nan
    names = tuple(f"application-{i:05d}" for i in range(applications))
    columns = tuple(f"type-{j:02d}" if question is not Question.NODES else f"{j + 1}" for j in range(COLUMNS))
    if question.scale is Scale.SCORE:
        values = np.clip(0.5 + values / 4, 0.0, 1.0)
    return MeasuredRows(scale=question.scale, columns=columns, names=names, values=values, groups=names)


def _seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    began = clock()
    work()
    return clock() - began


def _questions(rng: Generator, rows: MeasuredRows, *, same: bool) -> list[Mapping[str, float]]:
    fixed = tuple(int(j) for j in rng.permutation(COLUMNS)[:2])
    asked: list[Mapping[str, float]] = []
    for _ in range(QUESTIONS):
        pair = fixed if same else tuple(int(j) for j in rng.permutation(COLUMNS)[:2])
        asked.append({rows.columns[j]: float(rows.scale.from_axis(np.array(rng.random()))) for j in pair})
    return asked


def measure() -> list[Row]:
    """Return speed and memory of the product's estimator for each question, and PQ-SGD beside scikit-surprise."""
    found = []
    for question, estimator in METHODS.items():
        name, rng = question.value, default_rng(0)
        rows = library(rng, APPLICATIONS, question)
        refit_s = median(_seconds(lambda e=estimator, r=rows: e.fit(r)) for _ in range(3))  # type: ignore[misc]
        processor_s = _seconds(lambda e=estimator, r=rows: e.fit(r), time.process_time)  # type: ignore[misc]
        fitted = estimator.fit(rows)
        if isinstance(fitted, FittedNeighbours) and fitted.plain is None:
            raise RuntimeError("no neighbour correction was learned, so its speed cannot be measured on these rows")
        for same, title in ((True, "same two columns"), (False, "any two columns")):
            asked = _questions(rng, rows, same=same)
            took = [_seconds(lambda f=fitted, a=each: f.complete(a)) for each in asked]  # type: ignore[misc]
            found.append(Row(name=f"{name}: fold-in, {title}", value=median(took) * 1e3, unit="ms", target=1.0))
        note = f"{processor_s:.2f} s of processor time"
        found.append(Row(name=f"{name}: refit", value=refit_s, unit="s", target=2.0, note=note))
        peak_mb = _peak_mb(estimator, question)
        found.append(Row(name=f"{name}: most memory, rows included", value=peak_mb, unit="MB", target=100.0))
    return found + _pq_sgd()


def _peak_mb(estimator: Estimator, question: Question) -> float:
    tracemalloc.start()
    rng = default_rng(0)
    fitted = estimator.fit(library(rng, APPLICATIONS, question))
    for each in _questions(rng, fitted.rows, same=False):
        fitted.complete(each)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


def _pq_sgd() -> list[Row]:
    values = library(default_rng(0), PQ_APPLICATIONS).values
    method = PqSgd(rank=10, sweeps_max=PQ_SWEEPS, tolerance=-1.0)
    ours = median(_seconds(lambda: method.reconstruct(values)) for _ in range(3))
    name = f"PQ-SGD, {PQ_APPLICATIONS} applications, {PQ_SWEEPS} sweeps, rank 10"
    theirs = _surprise_s(values)
    if theirs is None:
        return [Row(name=name, value=ours, unit="s", note="scikit-surprise is not installed: no comparison")]
    return [
        Row(name=name, value=ours, unit="s", note=f"scikit-surprise SVD: {theirs:.3f} s"),
        Row(name="PQ-SGD time over scikit-surprise's", value=ours / theirs, unit="x", target=10.0),
    ]


def _surprise_s(values: Matrix) -> float | None:
    if importlib.util.find_spec("surprise") is None:
        return None
    from surprise import SVD  # type: ignore[import-not-found]

    cells = trainset(values)
    return median(_seconds(lambda: SVD(n_factors=10, n_epochs=PQ_SWEEPS, random_state=0).fit(cells)) for _ in range(3))
