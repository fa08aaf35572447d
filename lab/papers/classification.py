"""How well unknown programs are classified (Dissertation tables 3.1, 3.2, 4.2, fig. 4.3): on public measurements of
jobs on types and node counts of machines, and on the shipped library for sources of interference.

Every program is left out with all its sizes and inputs, so none is known by a near twin. The papers' own programs and
servers are not to be had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
from numpy.random import default_rng

from bench.accuracy import c3o
from bench.accuracy.interference import COUNTED, QUESTIONS, chosen_sources, fitted_without
from bench.accuracy.lumos import Cloud, clouds, folds
from bench.accuracy.pqsgd import PqSgd
from hcloud.classifier.classify import METHODS
from hcloud.classifier.estimator import Estimator
from hcloud.classifier.library import Library, Question
from hcloud.classifier.utility_matrix import Matrix, Scale, rows_of
from hcloud.config import load_library, package_data
from hcloud.core.errors import BadInput
from lab.papers.study import (
    Claim,
    Effect,
    Figure,
    Numbers,
    computed_cases,
    given,
    number,
    percent_more,
)

PRINTED, OURS, OURS_CHOSEN = "PQ-SGD as printed", "ours", "ours, types chosen"
ESTIMATORS: Mapping[str, Callable[[Question], Estimator]] = {
    PRINTED: lambda _: PqSgd(),
    OURS: METHODS.__getitem__,
    OURS_CHOSEN: METHODS.__getitem__,
}
CLOUDS = ("aws", "huawei")
MOST_TYPES = 10
"""As many server configurations as the paper's; of more, these are drawn."""
RANKS = (
    "best_pct", "within_5_of_best_pct", "ranked_pct", "ranked_but_two_pct", "half_ranked_pct", "probed_best_pct",
)  # fmt: skip
ENTRIES = tuple(range(1, 7))
"""Entries of a row that are measured."""
LEFT_OUT = {"network-bandwidth"}


def figures() -> Iterator[Figure]:
    """Yield the figures."""
    yield _types()
    yield _density()
    yield _nodes()
    yield _interference()


def measured_clouds(folder: Path) -> Mapping[str, Cloud]:
    """Return the clouds of ``folder`` by name. Raises BadInput where it does not hold them."""
    try:
        found = {each.name: each for each in clouds(folder)}
    except (ValueError, KeyError, IndexError, OSError) as error:
        raise BadInput(f"--data {folder}: these are not times of jobs by type: {error!r}") from None
    if missing := [name for name in CLOUDS if name not in found]:
        raise BadInput(f"--data {folder}: lacks matrix_{missing[0]}.csv, times of jobs by machine type")
    return found


def measured_curves(folder: Path) -> c3o.Curves:
    """Return times by number of nodes. Raises BadInput where ``folder`` does not hold them."""
    try:
        return c3o.curves(folder / "runs.csv")
    except (ValueError, KeyError, OSError) as error:
        raise BadInput(f"--data {folder}: these are not times of jobs by number of nodes: {error!r}") from None


# ---------------------------------------------------------------------------------------------------------------- types
@cache
def _drawn(folder: Path, name: str, seed: int) -> Cloud:
    """Return a cloud with ``MOST_TYPES`` types, and the jobs that were measured on all of them."""
    cloud = measured_clouds(folder)[name]
    kept = np.sort(default_rng(seed).permutation(len(cloud.types))[:MOST_TYPES])
    times = cloud.times[:, kept]
    jobs = np.flatnonzero(~np.isnan(times).any(axis=1))
    return replace(
        cloud,
        jobs=tuple(cloud.jobs[at] for at in jobs),
        types=tuple(cloud.types[at] for at in kept),
        times=times[jobs],
        programs=tuple(cloud.programs[at] for at in jobs),
        use=None,
    )


def _completed(cloud: Cloud, method: str, count: int, seed: int) -> Iterator[tuple[Matrix, Matrix, tuple[int, ...]]]:
    """Yield expected and measured times of each job by type, and the types that were measured."""
    for fold in folds(cloud):
        fitted = ESTIMATORS[method](Question.TYPE).fit(fold.rows)
        chosen = fold.chosen(default_rng(seed), count, fold.held[0]) if method == OURS_CHOSEN else ()
        for job in fold.held:
            probes = chosen or fold.random(default_rng((seed, job)), count, job)
            completion = fitted.complete(cloud.observed(job, probes))
            at = tuple(cloud.types.index(each) for each in probes)
            expected, truth = np.array(completion.values), cloud.times[job]
            expected[list(at)] = truth[list(at)]
            yield expected, truth, at


def type_numbers(name: str, method: str, folder: Path | None, seed: int) -> Numbers:
    """Return how well the types of a cloud are ranked from two of them (table 3.1), and errors of their times."""
    met, errors = list[tuple[float, ...]](), list[Matrix]()
    for expected, truth, probes in _completed(_drawn(given(folder), name, seed), method, 2, seed):
        order, right = np.argsort(expected, kind="stable"), np.argsort(truth, kind="stable")
        in_place = float((order == right).mean())
        best = int(right[0])
        met.append((
            order[0] == best,
            truth[order[0]] <= 1.05 * truth[best],
            in_place == 1.0,
            in_place >= 1.0 - 2.0 / len(truth),
            in_place >= 0.5,
            best in probes,
        ))  # fmt: skip
        errors.append(_errors(expected, truth, probes))
    shares = 100.0 * np.array(met, dtype=np.float64).mean(axis=0)
    return {**dict(zip(RANKS, shares.tolist(), strict=True)), **_summary(errors)}


def _errors(expected: Matrix, truth: Matrix, measured: Sequence[int]) -> Matrix:
    """Return relative errors in percent where nothing was measured."""
    left = np.setdiff1d(np.flatnonzero(~np.isnan(truth)), measured)
    return np.asarray(100.0 * np.abs(expected[left] / truth[left] - 1.0))


def _summary(errors: Sequence[Matrix]) -> dict[str, float]:
    whole = np.concatenate(errors)
    p90 = float(np.quantile(whole, 0.9))
    return {"error_pct": float(whole.mean()), "p90_error_pct": p90, "most_error_pct": float(whole.max())}


def _types() -> Figure:
    labels = {f"{method}, {cloud}": (cloud, method) for cloud in CLOUDS for method in ESTIMATORS}

    def share(text: str, name: str, published: float) -> Iterator[Claim]:
        for method in (PRINTED, OURS_CHOSEN):
            label = f"{method}, aws"
            yield Claim(
                text=f"{text} ({label})",
                published=f"{published:g} % of programs",
                ours=number(label, name),
                effect=Effect(published),
                unit="% of programs",
            )

    return Figure(
        name="classification-types",
        title="Machine types of unknown programs, two of up to ten types measured",
        source="Dissertation §3.2.2, table 3.1",
        cases=computed_cases(type_numbers, of=labels),
        columns=(
            *RANKS, "error_pct", "p90_error_pct",
        ),
        claims=(
            *share("the best type is recognised", "best_pct", 84.0),
            *share("a type within 5 % of the best is chosen", "within_5_of_best_pct", 90.0),
            *share("all types are ranked right", "ranked_pct", 58.0),
            *share("all are but two that changed places", "ranked_but_two_pct", 65.0),
            *share("half of the types are ranked right", "half_ranked_pct", 91.0),
            *(
                Claim(
                    text=f"mean error of expected performance ({label})",
                    published="3.8 % at most",
                    ours=number(label, "error_pct"),
                    holds=lambda value: value <= 3.8,
                    unit="%",
                    )
                for label in (f"{PRINTED}, aws", f"{OURS_CHOSEN}, aws")
            ),
        ),
        drawn="within_5_of_best_pct",
        published={f"{PRINTED}, aws": 90.0},
        of_data=measured_clouds,
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- density
def density_numbers(method: str, count: int, folder: Path | None, seed: int) -> Numbers:
    """Return errors of times on other types from a number of measured types, on the first cloud."""
    cloud = _drawn(given(folder), CLOUDS[0], seed)
    whole = _summary([_errors(expected, truth, at) for expected, truth, at in _completed(cloud, method, count, seed)])
    return {"error_pct": whole["error_pct"], "p90_error_pct": whole["p90_error_pct"]}


def _measured(method: str, count: int) -> str:
    return f"{method}, {count} measured"


def _density() -> Figure:
    def falls(method: str, text: str, few: int, many: int, holds: Callable[[float], bool], published: str) -> Claim:
        return Claim(
            text=f"{text} ({method})",
            published=published,
            ours=lambda seed: -percent_more(_measured(method, many), _measured(method, few), "p90_error_pct")(seed),
            holds=holds,
            unit="% lower",
        )  # fmt: skip

    return Figure(
        name="classification-density",
        title="Errors by measured entries of a row: machine types, aws",
        source="Dissertation §4.3.4, fig. 4.3, and §4.3.3, table 4.3",
        cases=computed_cases(density_numbers, of={_measured(*each): each for each in product(ESTIMATORS, ENTRIES)}),
        columns=("error_pct", "p90_error_pct"),
        claims=(
            *(
                falls(name, "two entries have lower errors than one (90th percentile)", 1, 2, lambda by: by > 20.0,
                      "one entry has high errors")
                for name in (PRINTED, OURS)
            ),
            *(
                falls(name, "beyond four entries little is gained", 4, 6, lambda by: by < 25.0,
                      "diminishing returns after four to five")
                for name in (PRINTED, OURS)
            ),
            *(
                Claim(
                    text=f"mean error with two entries ({name})",
                    published="less than 8 %, all kinds of classification",
                    ours=number(_measured(name, 2), "error_pct"),
                    holds=lambda value: value < 8.0,
                    unit="%",
                )
                for name in (PRINTED, OURS_CHOSEN)
            ),
        ),
        drawn="p90_error_pct",
        of_data=measured_clouds,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------- nodes
def node_numbers(method: str, folder: Path | None, seed: int) -> Numbers:
    """Return errors of times on other numbers of nodes, from two drawn ones (table 4.2, scale-out)."""
    known = measured_curves(given(folder))
    nodes, errors = sorted({n for curve in known.values() for n in curve}, key=int), list[Matrix]()
    for program in sorted({key[0] for key in known}):
        kept = {"|".join(key): curve for key, curve in known.items() if key[0] != program}
        groups = {name: name.split("|")[0] for name in kept}
        fitted = ESTIMATORS[method](Question.NODES).fit(rows_of(Scale.RATIO, kept, columns=nodes, groups=groups))
        for at, curve in enumerate(curve for key, curve in known.items() if key[0] == program):
            drawn = default_rng((seed, at)).permutation(sorted(curve, key=int))[:2]
            truth = np.array([curve.get(each, np.nan) for each in nodes])
            values = np.array(fitted.complete({each: curve[each] for each in drawn.tolist()}).values)
            errors.append(_errors(values, truth, [nodes.index(each) for each in drawn.tolist()]))
    return _summary(errors)


def _nodes() -> Figure:
    return Figure(
        name="classification-nodes",
        title="Numbers of nodes of unknown Spark jobs, two measured",
        source="Dissertation §4.3.3, table 4.2 (scale-out)",
        cases=computed_cases(node_numbers, (PRINTED, OURS)),
        columns=("error_pct", "p90_error_pct", "most_error_pct"),
        claims=tuple(
            Claim(
                text=f"{text} ({name})",
                published=f"less than {most:g} %",
                ours=number(name, of),
                holds=lambda value, most=most: value < most,  # type: ignore[misc]
                unit="%",
            )
            for name in (PRINTED, OURS)
            for text, of, most in (("mean error", "error_pct", 8.0), ("largest error", "most_error_pct", 17.0))
        ),
        drawn="error_pct",
        of_data=measured_curves,
    )


# --------------------------------------------------------------------------------------------------------- interference
@cache
def _library() -> Library:
    return load_library([package_data.path("profiles")])


def interference_numbers(method: str, _: Path | None, seed: int) -> Numbers:
    """Return errors of tolerated pressure in points (table 3.2), of all sources and of those that decisions count; what
    was measured counts as known. Two are drawn and measured, or two chosen on each of two machines, as the product
    does."""
    library, asked = _library(), Question.TOLERATED
    errors, levels, counts = list[float](), list[float](), list[bool]()
    by_program = list[float]()
    methods = {question: ESTIMATORS[method](question) for question in QUESTIONS}
    for at, (name, truth) in enumerate(library.known.items()):
        known, row = fitted_without(library, name, methods), truth.cells[asked]
        measured = tuple(default_rng((seed, at)).permutation(sorted(set(row) - LEFT_OUT))[:2].tolist())
        if method == OURS_CHOSEN:
            measured = chosen_sources(known, machines=2)
        completion = known.fitted[asked].complete({each: row[each] for each in measured if each in row})
        values = dict(zip(completion.columns, completion.values, strict=True))
        sources = [each for each in row if each in values and each not in LEFT_OUT]
        found = [abs(float(np.clip(values[each], 0.0, 100.0)) - row[each]) for each in sources]
        errors += found
        levels += [row[each] for each in sources]
        counts += [each in COUNTED for each in sources]
        by_program.append(float(np.mean(found)))
    wrong, level, mean = np.array(errors), np.array(levels), np.array(by_program)
    parts = {
        "all": level >= 0.0, "counted": np.array(counts), "below_30": level < 30.0, "below_60": level < 60.0,
        "above_60": level > 60.0,
    }  # fmt: skip
    shown = {f"{part}_error_pct": float(wrong[of].mean()) if of.any() else 0.0 for part, of in parts.items()}
    return {**shown, **{f"within_{most}_pct": 100.0 * float((mean < most).mean()) for most in (5, 10, 20)}}


def _interference() -> Figure:
    shares = {"within_5_pct": 61.0, "within_10_pct": 72.0, "within_20_pct": 89.0}
    return Figure(
        name="classification-interference",
        title="Pressure that unknown programs tolerate, two or four sources measured: the shipped library",
        source="Dissertation §3.2.3, table 3.2",
        cases=computed_cases(interference_numbers, ESTIMATORS),
        columns=(
            "all_error_pct", "counted_error_pct", "below_30_error_pct", "below_60_error_pct", "above_60_error_pct",
            "within_5_pct", "within_10_pct", "within_20_pct",
        ),
        claims=tuple(
            claim
            for name in (PRINTED, OURS_CHOSEN)
            for claim in (
                Claim(
                    text=f"mean error across all sources ({name})",
                    published="5.3 %",
                    ours=number(name, "all_error_pct"),
                    holds=lambda value: value <= 5.3,
                    unit="points",
                ),
                Claim(
                    text=f"what bears much is known better than what bears little ({name})",
                    published="3.4 % above 60, 7.1 % below 30",
                    ours=lambda seed, name=name: _below_30_more(seed[name]),  # type: ignore[misc]
                    effect=Effect(3.7),
                    unit="points",
                ),
                *(
                    Claim(
                        text=f"programs known within {of.split('_')[1]} points in the mean ({name})",
                        published=f"{published:g} % (mean of single- and multi-threaded)",
                        ours=number(name, of),
                        effect=Effect(published),
                        unit="% of programs",
                    )
                    for of, published in shares.items()
                ),
            )
        ),
        drawn="all_error_pct",
        published={PRINTED: 5.3},
    )  # fmt: skip


def _below_30_more(numbers: Numbers) -> float:
    return numbers["below_30_error_pct"] - numbers["above_60_error_pct"]
