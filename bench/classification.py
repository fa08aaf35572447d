"""How fast jobs are classified from a short profile each: ``python -m bench classification``.

A profile is one machine type, two sizes, and two sources of interference both ways, each with its limits, of programs
that resemble the shipped ones.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from statistics import median

import numpy as np
from numpy.random import Generator, default_rng

from bench.rows import Row
from hcloud.classifier.classify import Classifier
from hcloud.classifier.library import Library, MeasuredApplication, Question
from hcloud.classifier.utility_matrix import Scale
from hcloud.config import load_library, package_data
from hcloud.core.estimates import Classification
from hcloud.core.gc_tuning import infrequent_gc

JOBS, OWN_ROWS, REPEATS = 1_000, 1_000, 15
CELLS = {Question.TYPE: 1, Question.STEP: 2, Question.TOLERATED: 2, Question.CAUSED: 2}
"""Readings of a short profile, by question."""
HALF_WIDTH = {Scale.RATIO: 0.05, Scale.SCORE: 8.0}
"""95 % half-width of each reading: as natural logarithm, in points."""


def run() -> list[Row]:
    """Return the processor time that classifying takes, with the shipped library and with many own rows."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # small matrices lose by sharing
    shipped, rng = load_library([package_data.path("profiles")]), default_rng(0)
    jobs = [_profiled(shipped, rng, f"job-{number}") for number in range(JOBS)]
    own = {f"own-{number}": _profiled(shipped, rng, f"own-{number}") for number in range(OWN_ROWS)}
    few, many = Classifier().fit(shipped), Classifier().fit(Library(known={**shipped.known, **own}))
    with infrequent_gc():  # as the daemon does
        at_once = _median_ms(lambda: few.classify_many(jobs))
        read = _median_ms(lambda: [_read(each) for each in few.classify_many(jobs)])
        one_by_one = _median_ms(lambda: [few.classify(job) for job in jobs])
        among_many = _median_ms(lambda: many.classify_many(jobs))
    programs = f"{len(shipped.known)} programs known"
    return [
        Row(name=f"{JOBS:,} jobs classified, {programs}", value=at_once, unit="ms", target=20.0),
        Row(name="the same, and every estimate read once", value=read, unit="ms"),
        Row(name="the same, one by one", value=one_by_one, unit="ms"),
        Row(name=f"{JOBS:,} jobs classified, {OWN_ROWS:,} own programs known too", value=among_many, unit="ms"),
    ]


def _read(found: Classification) -> list[object]:
    rows = (found.by_type, found.by_step, found.by_nodes, found.tolerated, found.caused)
    return [list(row.values()) for row in rows]


def _profiled(shipped: Library, rng: Generator, name: str) -> MeasuredApplication:
    """Return the readings of a short profile of a program that resembles a shipped one."""
    program = shipped.known[sorted(shipped.known)[rng.integers(len(shipped.known))]]
    cells: dict[Question, dict[str, float]] = {}
    for question, count in CELLS.items():
        columns = sorted(program.cells[question])
        chosen = [columns[at] for at in sorted(rng.permutation(len(columns))[:count].tolist())]
        cells[question] = {column: _nearby(question, program.cells[question][column], rng) for column in chosen}
    spreads = {question: dict.fromkeys(row, HALF_WIDTH[question.scale]) for question, row in cells.items()}
    return MeasuredApplication(name=name, cells=cells, spreads=spreads)


def _nearby(question: Question, value: float, rng: Generator) -> float:
    if question.scale is Scale.RATIO:
        return value * float(np.exp(0.2 * rng.normal()))
    return float(np.clip(value + 10.0 * rng.normal(), 0.0, 100.0))


def _median_ms(work: Callable[[], object]) -> float:
    took = []
    for _ in range(REPEATS):
        began = time.process_time()
        kept = work()  # as the daemon keeps it; giving it up is no part of the time
        took.append(1e3 * (time.process_time() - began))
        del kept
    return median(took)
