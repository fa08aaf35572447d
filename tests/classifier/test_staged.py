"""Mage's staged completion, and one sensitivity, on programs that are what these assume."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from bench.accuracy.pqsgd import PqSgd
from hcloud.classifier.slowdown.staged import (
    average_costs,
    best_placement,
    by_sensitivity,
    sensitivity,
    staged_completion,
)
from lab.mage import partitions, placement_shares

COSTS = np.array([0.1, 0.3, 0.05, 0.6, 0.2])
"""Additional run time that each of five sets of neighbours costs an average program."""
SENSITIVE = np.array([0.5, 1.0, 2.0])


def test_two_probes_show_how_sensitive_a_program_is_to_all_neighbours() -> None:
    speeds = 1.0 / (1.0 + 3.0 * COSTS)
    assert sensitivity(COSTS, [0, 2], 3.0 * COSTS[[0, 2]]) == pytest.approx(3.0)
    assert by_sensitivity(COSTS, [0, 2], 3.0 * COSTS[[0, 2]]) == pytest.approx(speeds)
    assert sensitivity(COSTS, [], np.array([])) == 1.0
    assert sensitivity(COSTS, [1], np.array([-0.2])) == 0.0, "a program that is faster beside others feels nothing"


def test_costs_are_those_of_the_average_program_also_where_cells_lack() -> None:
    speeds = 1.0 / (1.0 + SENSITIVE[:, None] * COSTS)
    assert average_costs(speeds) == pytest.approx(COSTS)
    speeds[0, 3] = np.nan
    assert average_costs(speeds) == pytest.approx(COSTS, rel=0.35)


def test_stages_complete_placements_of_programs_of_one_kind() -> None:
    speed = np.log(1.0 / (1.0 + np.outer(np.linspace(0.5, 2.0, 12), COSTS)))
    profiles, tried = speed[:, :2].copy(), speed[:, 2:].copy()
    tried[-1, 1:] = np.nan
    found = staged_completion(profiles, tried, 2, PqSgd().reconstruct, np.random.default_rng(0))
    assert found.shape == (12, 5) and np.isfinite(found).all()
    assert np.abs(found[-1, :3] - speed[-1, 2:]).mean() < 0.6 * np.abs(speed[-1, 2:]).mean()
    assert found[:, 3:].min() >= 2 * speed.min() and found[:, 3:].max() <= 0.5


def test_the_best_placement_has_the_highest_geometric_mean() -> None:
    assert best_placement(np.array([[0.9, 0.7, 1.0], [0.5, 0.7, 0.1]]), [0, 1, 2]) == 1
    assert best_placement(np.array([[0.9, 0.7, 1.0], [0.5, 0.7, 0.1]]), [0, 2]) == 0


def test_every_way_to_divide_programs_is_tried_once() -> None:
    ways = list(partitions(range(6), 3))
    assert len(ways) == 10 == len({frozenset(map(frozenset, way)) for way in ways})


def test_a_model_that_knows_reaches_the_best_placement_and_a_seeded_fault_does_not() -> None:
    rng = np.random.default_rng(1)
    truth = {group: float(rng.uniform(-2.0, 0.0)) for group in itertools.combinations("abcdef", 3)}
    models = {"knows": truth, "reversed": {group: -value for group, value in truth.items()}}
    shares = placement_shares(truth, models, 6, 3, np.random.default_rng(0))
    assert shares["knows"] == pytest.approx(100.0)
    assert shares["reversed"] == pytest.approx(shares["worst"]) and shares["worst"] < shares["random"] < 100.0
    lacking = {group: value for group, value in truth.items() if group != ("a", "b", "c")}
    shares = placement_shares(lacking, {"knows": truth}, 6, 3, np.random.default_rng(0))
    assert shares["knows"] == pytest.approx(100.0), "a way of which nothing is known is not judged"
