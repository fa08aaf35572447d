"""Mage's questions on the co-run data of ESP (see ``bench.neighbours``); its chapter is ``lab.papers.mage``.

A new program is known alone and beside two neighbours: how well is its speed among others predicted, by Mage's three
stages of PQ-reconstruction as printed (§3.2), by one sensitivity, and by the pair table that plans use? And how good is
the placement that a model learnt from smaller groups chooses, beside the best, a random and the worst one?
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bench.accuracy.pqsgd import PqSgd
from bench.neighbours import PAIR_TABLE, SERVER, MeasuredGroups, joined
from hcloud.classifier.slowdown.pair_table import PairTable
from hcloud.classifier.slowdown.staged import average_costs, by_sensitivity, staged_completion
from hcloud.classifier.slowdown.table import CoRunQuestion, ExpectedSlowdown

Floats = NDArray[np.float64]
Group = tuple[str, ...]
LEAST_SPEED = 0.02
"""Least speed that counts."""
AVERAGE, ONE_SENSITIVITY, STAGED = "like the average program", "one sensitivity", "three stages as printed"
PRODUCTS, RANDOM, WORST = "products of pairs", "random", "worst"
DRAWS = 4
"""Random choices of the programs that are to be placed."""


class SpeedTable:
    """Measured speeds by program and set of neighbours."""

    def __init__(self, groups: MeasuredGroups) -> None:
        questions = groups.table.questions
        self.programs = sorted({each.application for each in questions})
        self.sets = sorted({tuple(sorted(each.neighbours)) for each in questions}, key=lambda each: (len(each), each))
        rows, columns = ({name: at for at, name in enumerate(names)} for names in (self.programs, self.sets))
        self.speeds = np.full((len(rows), len(columns)), np.nan)
        for each, speed in zip(questions, groups.speed, strict=True):
            self.speeds[rows[each.application], columns[tuple(sorted(each.neighbours))]] = min(1.0, speed)
        self.size = np.array([len(each) for each in self.sets])


# --------------------------------------------------------------------------------------------------------- new programs
def new_program_errors(
    groups: MeasuredGroups, probes: int, rng: np.random.Generator, *, at_random: bool
) -> dict[str, float]:
    """Return by method the mean error in percent of the speeds of programs beside two or more, of which only
    ``probes`` single neighbours are known: random ones, or those that cost others most."""
    table, found = SpeedTable(groups), dict[str, list[float]]()
    for at, program in enumerate(table.programs):
        others = np.delete(table.speeds, at, axis=0)
        singles = np.flatnonzero((table.size == 1) & ~np.isnan(table.speeds[at]))
        asked = np.flatnonzero((table.size > 1) & ~np.isnan(table.speeds[at]))
        by_pressure = singles[np.argsort(-average_costs(others)[singles])]
        chosen = rng.choice(singles, probes, replace=False) if at_random else by_pressure[:probes]
        truth = table.speeds[at, asked]
        for name, predicted in _predictions(groups, table, program, others, at, chosen, rng):
            error = np.abs(np.clip(predicted[asked], LEAST_SPEED, 1.0) - truth) / truth
            found.setdefault(name, []).append(100.0 * float(error.mean()))
    return {name: float(np.mean(errors)) for name, errors in found.items()}


def _predictions(
    groups: MeasuredGroups,
    table: SpeedTable,
    program: str,
    others: Floats,
    at: int,
    chosen: NDArray[np.intp],
    rng: np.random.Generator,
) -> Iterator[tuple[str, Floats]]:
    """Yield each method's speeds of one program among all sets of neighbours."""
    own = np.full(others.shape[1], np.nan)
    own[chosen] = table.speeds[at, chosen]
    costs = average_costs(others)
    yield AVERAGE, 1.0 / (1.0 + costs)
    yield ONE_SENSITIVITY, by_sensitivity(costs, chosen.tolist(), 1.0 / own[chosen] - 1.0)
    known = np.vstack([others, own])
    profiles, tried = np.log(known[:, table.size == 1]), np.log(known[:, table.size > 1])
    alone = np.zeros((len(known), 1))
    untried = np.isnan(tried).all(axis=0)
    whole = staged_completion(
        np.hstack([alone, profiles]), tried[:, ~untried], int(untried.sum()), PqSgd().reconstruct, rng
    )
    staged = np.full(len(own), np.nan)
    larger = np.flatnonzero(table.size > 1)
    staged[np.concatenate([larger[~untried], larger[untried]])] = np.exp(whole[-1])
    yield STAGED, np.where(np.isnan(staged), 1.0, staged)
    names = np.array([each.application for each in groups.table.questions])
    sets = [tuple(sorted(each.neighbours)) for each in groups.table.questions]
    probed = {table.sets[column] for column in chosen}
    rows = [row for row, name in enumerate(names) if name != program or sets[row] in probed]
    fitted = PairTable().fit(groups.take(np.array(rows)).table)
    yield (
        PAIR_TABLE,
        np.array([_speed(fitted.slowdown(CoRunQuestion(program, each, SERVER, None))) for each in table.sets]),
    )


def _speed(answer: ExpectedSlowdown | None) -> float:
    return 1.0 if answer is None else float(np.exp(-answer.mean))


# ----------------------------------------------------------------------------------------------------------- placements
def partitions(programs: Sequence[int], size: int) -> Iterator[list[tuple[int, ...]]]:
    """Yield all ways to divide programs among machines of ``size`` each."""
    if not programs:
        yield []
        return
    first, rest = programs[0], programs[1:]
    for beside in itertools.combinations(rest, size - 1):
        left = [each for each in rest if each not in beside]
        for others in partitions(left, size):
            yield [(first, *beside), *others]


def placement_shares(
    truth: Mapping[Group, float],
    models: Mapping[str, Mapping[Group, float]],
    count: int,
    size: int,
    rng: np.random.Generator,
) -> dict[str, float]:
    """Return by model the geometric mean of speeds that its best placement reaches, in percent of the best one's.

    Ways with a group that ``truth`` lacks are left out: nothing is known of them.
    """
    programs = sorted({name for group in truth for name in group})
    places = list(itertools.combinations(range(count), size))
    at = {group: number for number, group in enumerate(places)}
    all_ways = np.array([[at[group] for group in way] for way in partitions(range(count), size)])
    found = dict[str, list[float]]()
    for _ in range(DRAWS):
        drawn = sorted(rng.choice(programs, count, replace=False).tolist())
        named = [tuple(drawn[each] for each in group) for group in places]
        is_measured = np.array([group in truth for group in named])
        ways = all_ways[is_measured[all_ways].all(axis=1)]
        reached = np.array([truth.get(group, 0.0) for group in named])[ways].sum(axis=1) / count
        for name, model in models.items():
            guess = np.array([model.get(group, 0.0) for group in named])[ways].sum(axis=1)
            found.setdefault(name, []).append(float(reached[guess.argmax()] - reached.max()))
        found.setdefault(RANDOM, []).append(float(reached.mean() - reached.max()))
        found.setdefault(WORST, []).append(float(reached.min() - reached.max()))
    return {name: 100.0 * float(np.exp(losses).mean()) for name, losses in found.items()}


def log_means(programs: Sequence[str], size: int, speed_of: Callable[[str, Group], float]) -> dict[Group, float]:
    """Return by group of programs the sum of the logarithms of their speeds in it."""
    return {
        group: sum(float(np.log(max(LEAST_SPEED, speed_of(each, _without(group, each))))) for each in group)
        for group in itertools.combinations(sorted(programs), size)
    }


def _without(group: Group, name: str) -> Group:
    return tuple(each for each in group if each != name)


def placements(
    groups: Mapping[int, MeasuredGroups], size: int, count: int, rng: np.random.Generator
) -> dict[str, float]:
    """Return what placements in groups of ``size`` reach by models that know smaller groups only."""
    measured = {
        (each.application, tuple(sorted(each.neighbours))): min(1.0, float(speed))
        for each, speed in zip(groups[size].table.questions, groups[size].speed, strict=True)
    }
    programs = sorted({name for name, _ in measured})
    pairs = {
        (each.application, each.neighbours[0]): min(1.0, float(speed))
        for each, speed in zip(groups[2].table.questions, groups[2].speed, strict=True)
    }
    fitted = PairTable().fit(joined([groups[each] for each in sorted(groups) if each < size]).table)

    def by_product(name: str, beside: Group) -> float:
        return float(np.prod([pairs.get((name, each), 0.5) for each in beside]))

    truth = {
        group: mean
        for group, mean in log_means(programs, size, lambda name, beside: measured.get((name, beside), 1.0)).items()
        if all((name, _without(group, name)) in measured for name in group)
    }
    models = {
        PAIR_TABLE: log_means(
            programs, size, lambda name, beside: _speed(fitted.slowdown(CoRunQuestion(name, beside, SERVER, None)))
        ),
        PRODUCTS: log_means(programs, size, by_product),
    }
    return placement_shares(truth, models, count, size, rng)
