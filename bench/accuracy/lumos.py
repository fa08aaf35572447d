"""Heterogeneity: jobs on the VM types of a cloud; every program is held out with all its sizes."""

from __future__ import annotations

import csv
import gzip
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.random import Generator, default_rng

from bench.accuracy.pqsgd import PqSgd
from bench.accuracy.probes import choose_probes, random_probes
from bench.accuracy.score import COVERAGE, HEADER, MAE_MAX, P90_MAX, REGRET_MAX, Score
from bench.rows import Row
from hcloud.classifier.classify import METHODS as PRODUCT
from hcloud.classifier.estimator import AdditiveLog, ColumnMean, Estimator, Fitted, ProbeMean
from hcloud.classifier.gaussian import FittedGaussian, GaussianFoldIn
from hcloud.classifier.library import Question
from hcloud.classifier.neighbours import NeighbourFoldIn
from hcloud.classifier.utility_matrix import Matrix, MeasuredRows, Scale

RANDOM_DRAWS = 5
SLOW_DRAWS = 3
NOT_RESOURCE_USE = 12
"""The first columns of runs.csv.gz say which run it was and how long it took; resource use follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """One cloud's matrix: times (jobs x types) in seconds, each job's program, and the use of every cell's runs."""

    name: str
    jobs: tuple[str, ...]
    types: tuple[str, ...]
    times: Matrix
    programs: tuple[str, ...]
    use: Matrix | None

    def rows(self, chosen: Sequence[int]) -> MeasuredRows:
        """Return some jobs as known rows."""
        return MeasuredRows(
            scale=Scale.RATIO,
            columns=self.types,
            names=tuple(self.jobs[i] for i in chosen),
            values=np.log(self.times[list(chosen)]),
            groups=tuple(self.programs[i] for i in chosen),
            context=None if self.use is None else self.use[list(chosen)],
        )

    def observed(self, job: int, probes: Sequence[str]) -> dict[str, float]:
        """Return what probing a job on some types shows."""
        return {probe: float(self.times[job, self.types.index(probe)]) for probe in probes}

    def use_of(self, job: int, probes: Sequence[str]) -> dict[str, list[float]] | None:
        """Return the resource use seen in those runs."""
        if self.use is None:
            return None
        return {probe: self.use[job, self.types.index(probe)].tolist() for probe in probes}


def clouds(folder: Path) -> list[Cloud]:
    """Read every ``matrix_*.csv`` of the folder, and resource use from ``runs.csv.gz`` where it is there."""
    return [_cloud(path, folder / "runs.csv.gz") for path in sorted(folder.glob("matrix_*.csv"))]


def _cloud(path: Path, runs: Path) -> Cloud:
    with path.open(newline="") as file:
        table = list(csv.reader(file))
    name, types, jobs = path.stem.removeprefix("matrix_"), tuple(table[0][1:]), tuple(row[0] for row in table[1:])
    times = np.array([[float(cell) if cell else np.nan for cell in row[1:]] for row in table[1:]])
    programs = tuple(job.rpartition("_")[0] for job in jobs)
    return Cloud(name=name, jobs=jobs, types=types, times=times, programs=programs, use=_use(runs, name, jobs, types))


def _use(path: Path, cloud: str, jobs: Sequence[str], types: Sequence[str]) -> Matrix | None:
    if not path.exists():
        return None
    seen: dict[tuple[str, str], list[list[float]]] = {}
    with gzip.open(path, "rt", newline="") as file:
        reader = csv.DictReader(file)
        features = list(reader.fieldnames or [])[NOT_RESOURCE_USE:]
        for run in reader:
            if run["provider"] == cloud:
                job = f"{run['framework']}_{run['workload']}_{run['datasize']}"
                numbers = [float(run[each]) if run[each] else np.nan for each in features]
                seen.setdefault((job, run["vm_type"]), []).append(numbers)
    use = np.full((len(jobs), len(types), len(features)), np.nan)
    for (job, vm_type), found in seen.items():
        if job in jobs and vm_type in types:
            use[jobs.index(job), types.index(vm_type)] = np.nanmean(np.array(found), axis=0)
    return use


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One line of the table. ``slow``: fewer random draws, because every answer is a whole fit."""

    name: str
    estimator: Estimator
    with_use: bool = False
    slow: bool = False


METHODS = (
    Method(name="mean of the probes", estimator=ProbeMean()),
    Method(name="column mean", estimator=ColumnMean()),
    Method(name="additive log model", estimator=AdditiveLog()),
    Method(name="PQ-SGD as printed", estimator=PqSgd(), slow=True),
    Method(name="Gaussian fold-in, no heavy tails", estimator=GaussianFoldIn(tail=None)),
    Method(name="Gaussian fold-in", estimator=GaussianFoldIn()),
    Method(name="the product's", estimator=PRODUCT[Question.TYPE]),
    Method(name="the product's, with resource use", estimator=PRODUCT[Question.TYPE], with_use=True),
    Method(name="  + likeness by size", estimator=NeighbourFoldIn(use_level=True)),
    Method(name="  + likeness by size, resource use", estimator=NeighbourFoldIn(use_level=True), with_use=True),
)
MAIN = METHODS[6]
WITH_USE = METHODS[7]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """One program held out: its jobs, the rows left, and the fitted Gaussian that chooses probes."""

    cloud: Cloud
    held: tuple[int, ...]
    rows: MeasuredRows
    chooser: FittedGaussian

    def random(self, rng: Generator, count: int, job: int) -> tuple[str, ...]:
        """Return random probes among the types the job was measured on."""
        return random_probes(self.measured(job), count, rng)

    def chosen(self, rng: Generator, count: int, job: int) -> tuple[str, ...]:
        """Return the probes chosen among the types the job was measured on."""
        return choose_probes(self.chooser, count, rng, candidates=self.measured(job))

    def measured(self, job: int) -> tuple[str, ...]:
        """Return the types this job was measured on."""
        times = self.cloud.times[job]
        return tuple(each for each, time in zip(self.cloud.types, times, strict=True) if not np.isnan(time))


Choice = Callable[[Fold, Generator, int, int], tuple[str, ...]]


def folds(cloud: Cloud, groups: Sequence[str] | None = None) -> Iterator[Fold]:
    """Hold out each program (or group) in turn."""
    labels = groups or cloud.programs
    for label in sorted(set(labels)):
        held = tuple(i for i, each in enumerate(labels) if each == label)
        rows = cloud.rows([i for i, each in enumerate(labels) if each != label])
        yield Fold(cloud=cloud, held=held, rows=rows, chooser=GaussianFoldIn(calibrate=False).fit(rows))


def judge(fold: Fold, method: Method, fitted: Fitted, count: int, chosen: bool, score: Score) -> None:
    """Predict the held-out jobs from ``count`` probes; random probes are drawn several times over."""
    cloud = fold.cloud
    draws = 1 if chosen else SLOW_DRAWS if method.slow else RANDOM_DRAWS
    for job in fold.held:
        measured = len(fold.measured(job))
        for draw in range(draws if measured >= count + 1 else 0):
            rng = default_rng([0 if chosen else 1, draw, job])
            probes = (fold.chosen if chosen else fold.random)(rng, count, job)
            use = cloud.use_of(job, probes) if method.with_use else None
            score.add(fitted.complete(cloud.observed(job, probes), use), cloud.times[job])


def two_probes(cloud: Cloud) -> Mapping[tuple[str, bool], Score]:
    """Print every method's figures for two probes, random and chosen."""
    scores = {(method.name, chosen): Score() for method in METHODS for chosen in (False, True)}
    for fold in folds(cloud):
        for method in METHODS:
            fitted = method.estimator.fit(fold.rows)
            for chosen in (False, True):
                judge(fold, method, fitted, 2, chosen, scores[method.name, chosen])
    surprise = surprise_scores(cloud)
    print(f"\n{cloud.name}: two probes, every program held out with all its sizes ({len(cloud.jobs)} jobs)")
    for chosen, title in ((False, "random probes"), (True, "chosen probes")):
        print(f"  {title:<36} {HEADER}")
        for method in METHODS:
            print(f"  {method.name:<36} {scores[method.name, chosen].line()}")
        if surprise is not None:
            print(f"  {'scikit-surprise SVD':<36} {surprise[chosen].line()}")
    if surprise is None:
        print("  scikit-surprise is not installed here, so its SVD is left out (pip install scikit-surprise)")
    return scores


def rows(cloud: Cloud, scores: Mapping[tuple[str, bool], Score]) -> list[Row]:
    """Return figures for two chosen probes beside their targets: from times alone, and with the runs' resource use."""
    made = []
    for method, how in ((MAIN, "times alone"), (WITH_USE, "with resource use")):
        mae, p90, regret, cover = scores[method.name, True].figures()
        name = f"{cloud.name}, two chosen probes, {how}"
        made += [
            Row(name=f"{name}: mean error", value=mae, unit="%", target=MAE_MAX),
            Row(name=f"{name}: 90th percentile", value=p90, unit="%", target=P90_MAX),
            Row(name=f"{name}: regret", value=regret, unit="%", target=REGRET_MAX),
            Row(name=f"{name}: limits hold", value=cover, unit="%", target=COVERAGE[0], better="higher"),
            Row(name=f"{name}: limits hold", value=cover, unit="%", target=COVERAGE[1]),
        ]
    return made


def by_number_of_probes(cloud: Cloud) -> None:
    """Print the error from one to five probes."""
    methods = (MAIN, WITH_USE)
    scores = {(m.name, c, n): Score() for m in methods for c in (False, True) for n in range(1, 6)}
    for fold in folds(cloud):
        fitted = {method.name: method.estimator.fit(fold.rows) for method in methods}
        for (name, chosen, count), score in scores.items():
            method = next(each for each in methods if each.name == name)
            judge(fold, method, fitted[name], count, chosen, score)
    print(f"\n{cloud.name}: mean error % (90th percentile) by number of probes")
    print(f"  {'':<46}" + "".join(f"{count:>15}" for count in range(1, 6)))
    for method in methods:
        for chosen in (False, True):
            cells = [scores[method.name, chosen, count].figures() for count in range(1, 6)]
            text = "".join(f"{mae:7.2f} ({p90:5.1f})" for mae, p90, _, _ in cells)
            print(f"  {method.name.strip():<36} {'chosen' if chosen else 'random':<9} {text}")


def strictly(cloud: Cloud) -> None:
    """Print the figures where a workload is held out in every framework at once: no near twin is left to learn from."""
    workloads = [program.partition("_")[2] or program for program in cloud.programs]
    scores = {method.name: Score() for method in (MAIN, WITH_USE)}
    for fold in folds(cloud, workloads):
        for method in (MAIN, WITH_USE):
            judge(fold, method, method.estimator.fit(fold.rows), 2, True, scores[method.name])
    print(f"\n{cloud.name}: two chosen probes, every workload held out in all frameworks at once")
    print(f"  {'':<36} {HEADER}")
    for name, score in scores.items():
        print(f"  {name.strip():<36} {score.line()}")


def surprise_scores(cloud: Cloud) -> dict[bool, Score] | None:
    """Return the figures of scikit-surprise's SVD in log time, or None where it is not installed."""
    if importlib.util.find_spec("surprise") is None:
        return None
    scores = {False: Score(), True: Score()}
    for fold in folds(cloud):
        for chosen, score in scores.items():
            for job in fold.held:
                for draw in range(1 if chosen else SLOW_DRAWS):
                    rng = default_rng([0 if chosen else 1, draw, job])
                    if len(fold.measured(job)) < 3:
                        continue
                    probes = (fold.chosen if chosen else fold.random)(rng, 2, job)
                    values, observed = _surprise(fold, job, probes)
                    score.add_values(values, cloud.times[job], observed)
    return scores


def _surprise(fold: Fold, job: int, probes: Sequence[str]) -> tuple[Matrix, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    from surprise import SVD  # type: ignore[import-not-found]  # an optional yardstick; nothing of ours needs it

    types = fold.cloud.types
    known = np.vstack([fold.rows.values, np.full(len(types), np.nan)])
    observed = np.array([each in probes for each in types])
    known[-1, observed] = np.log(fold.cloud.times[job, observed])
    # Its defaults (20 sweeps, 100 factors) do not even find a row's scale on so few cells; these do.
    model = SVD(n_factors=3, n_epochs=300, lr_all=0.02, reg_all=0.002, random_state=0).fit(trainset(known))
    values = [model.predict(len(known) - 1, j, clip=False).est for j in range(len(types))]
    return np.exp(np.array(values)), observed


def trainset(values: Matrix) -> object:
    """Return known cells as scikit-surprise wants them: users are rows, items are columns."""
    from surprise import Trainset

    by_row: dict[int, list[tuple[int, float]]] = {}
    by_column: dict[int, list[tuple[int, float]]] = {}
    for i, j in zip(*np.nonzero(~np.isnan(values)), strict=True):
        by_row.setdefault(int(i), []).append((int(j), float(values[i, j])))
        by_column.setdefault(int(j), []).append((int(i), float(values[i, j])))
    shape = values.shape
    limits = (float(np.nanmin(values)), float(np.nanmax(values)))
    rows, columns = {i: i for i in range(shape[0])}, {j: j for j in range(shape[1])}
    return Trainset(by_row, by_column, shape[0], shape[1], int((~np.isnan(values)).sum()), limits, rows, columns)
