"""Scale-out: Spark jobs over node counts, the other node counts predicted from two."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from bench.accuracy.score import Score
from hcloud.classifier.classify import METHODS
from hcloud.classifier.estimator import AdditiveLog, Completion, Estimator
from hcloud.classifier.gaussian import GaussianFoldIn
from hcloud.classifier.library import Question
from hcloud.classifier.neighbours import NeighbourFoldIn
from hcloud.classifier.scaling import ernest
from hcloud.classifier.utility_matrix import Matrix, Scale, rows_of

ESTIMATORS: Mapping[str, Estimator] = {
    "additive log model": AdditiveLog(),
    "Gaussian fold-in": GaussianFoldIn(),
    "neighbours by cells and size": NeighbourFoldIn(use_level=True),
    "the product's": METHODS[Question.NODES],
}
Curves = Mapping[tuple[str, ...], Mapping[str, float]]
Pairs = Callable[[Sequence[str]], Sequence[tuple[str, ...]]]
PAIRS: Mapping[str, Pairs] = {
    "the two smallest": lambda nodes: [tuple(nodes[:2])],
    "smallest and largest": lambda nodes: [(nodes[0], nodes[-1])],
    "any two": lambda nodes: list(itertools.combinations(nodes, 2)),
}


def curves(path: Path) -> Curves:
    """Return median times ``{(job, parameters, size, VM type): {nodes: seconds}}`` of curves of three or more."""
    runs: dict[tuple[str, ...], dict[str, list[float]]] = {}
    with path.open(newline="") as file:
        for run in csv.DictReader(file):
            key = (run["job"], run["params"], run["data_size_mb"], run["vm_type"])
            runs.setdefault(key, {}).setdefault(run["nodes"], []).append(float(run["runtime_s"]))
    return {key: {n: median(v) for n, v in by.items()} for key, by in runs.items() if len(by) >= 3}


def report(path: Path) -> None:
    """Print the table: for each way of holding out and of choosing two node counts, every method's error."""
    known = curves(path)
    print(f"\nc3o: other node counts from two ({len(known)} curves); mean error %, 90th percentile %, coverage %")
    for title, depth in (("every program held out", 1), ("every job held out on all VM types", 3)):
        print(f"  {title:<40}" + "".join(f"{each:>26}" for each in PAIRS))
        lines = _held_out(known, depth)
        for name, scores in lines.items():
            print(f"    {name:<38}" + "".join(f"{_cell(score):>26}" for score in scores))


def _cell(score: Score) -> str:
    mae, p90, _, cover = score.figures()
    return f"{mae:.2f}  {p90:.1f}  " + ("--" if np.isnan(cover) else f"{cover:.0f}")


def _held_out(known: Curves, depth: int) -> dict[str, list[Score]]:
    nodes = sorted({n for curve in known.values() for n in curve}, key=int)
    lines = {name: [Score() for _ in PAIRS] for name in ("Ernest, least squares", *ESTIMATORS)}
    for group in sorted({key[:depth] for key in known}):
        kept = {"|".join(key): curve for key, curve in known.items() if key[:depth] != group}
        groups = {name: "|".join(name.split("|")[:depth]) for name in kept}
        rows = rows_of(Scale.RATIO, kept, columns=nodes, groups=groups)
        fitted = {name: estimator.fit(rows) for name, estimator in ESTIMATORS.items()}
        for curve in (curve for key, curve in known.items() if key[:depth] == group):
            truth = np.array([curve.get(n, np.nan) for n in nodes])
            for place, pairs in enumerate(PAIRS.values()):
                for pair in pairs(sorted(curve, key=int)):
                    seen = {n: curve[n] for n in pair}
                    _judge_ernest(seen, nodes, truth, lines["Ernest, least squares"][place])
                    for name, each in fitted.items():
                        found: Completion = each.complete(seen)
                        lines[name][place].add(found, truth)
    return lines


def _judge_ernest(seen: Mapping[str, float], nodes: Sequence[str], truth: Matrix, score: Score) -> None:
    values = ernest([int(n) for n in seen], list(seen.values()), [int(n) for n in nodes])
    score.add_values(values, truth, np.array([n in seen for n in nodes]))
