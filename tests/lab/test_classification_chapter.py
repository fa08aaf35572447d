"""The chapter on how well unknown programs are classified: on small clouds made here, and on the shipped library."""

import csv
from pathlib import Path

import numpy as np
import pytest

from hcloud.core.errors import BadInput
from lab.papers.classification import (
    CLOUDS,
    OURS,
    OURS_CHOSEN,
    PRINTED,
    interference_numbers,
    measured_clouds,
    measured_curves,
    node_numbers,
    type_numbers,
)
from lab.papers.parallel_classification import EXHAUSTIVE, TWO, error_numbers, time_numbers

TYPES = tuple(f"t{number}" for number in range(6))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which each program takes so long on a type as the sum of two of its needs says."""
    folder, rng = tmp_path_factory.mktemp("clouds"), np.random.default_rng(3)
    of_types = rng.uniform(0.5, 3.0, (2, len(TYPES)))
    for name in CLOUDS:
        rows = []
        for program in range(14):
            needs = rng.uniform(0.1, 1.0, 2)
            for size in ("small", "large"):
                times = (needs @ of_types) * rng.uniform(50.0, 500.0)
                rows.append((f"spark_p{program}_{size}", *np.round(times, 3)))
        with (folder / f"matrix_{name}.csv").open("w") as file:
            csv.writer(file).writerows([("job", *TYPES), *rows])
    with (folder / "runs.csv").open("w") as file:
        rows = [("job", "params", "data_size_mb", "vm_type", "nodes", "runtime_s")]
        for job in range(6):
            for size in (100, 200):
                rows += [
                    (f"j{job}", "-", size, "m", nodes, size * (1.0 + job / nodes))  # type: ignore[misc]
                    for nodes in (2, 4, 6, 8)
                ]
        csv.writer(file).writerows(rows)
    return folder


def test_our_estimators_rank_types_of_unknown_programs_better_than_the_printed_one(measured: Path) -> None:
    printed, ours = (type_numbers("aws", method, measured, 0) for method in (PRINTED, OURS))
    assert ours["ranked_pct"] <= ours["ranked_but_two_pct"] <= ours["half_ranked_pct"]
    assert ours["best_pct"] <= ours["within_5_of_best_pct"]
    assert ours["error_pct"] < printed["error_pct"] and ours["half_ranked_pct"] > printed["half_ranked_pct"]
    assert 0.0 < ours["probed_best_pct"] == printed["probed_best_pct"], "both were shown the same types"


def test_other_numbers_of_nodes_follow_from_two(measured: Path) -> None:
    numbers = node_numbers(OURS, measured, 0)
    assert numbers["error_pct"] <= numbers["p90_error_pct"] <= numbers["most_error_pct"] < 60.0


def test_sources_that_decisions_count_are_known_best_where_the_product_chooses(measured: Path) -> None:
    drawn, chosen = (interference_numbers(method, None, 0) for method in (OURS, OURS_CHOSEN))
    assert chosen["counted_error_pct"] < 0.5 * drawn["counted_error_pct"]
    assert chosen["within_5_pct"] <= chosen["within_10_pct"] <= chosen["within_20_pct"]


def test_folder_of_other_measurements_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"lacks matrix_aws\.csv"):
        measured_clouds(tmp_path)
    (tmp_path / "matrix_aws.csv").write_text("job,a\nx,not-a-number\n")
    with pytest.raises(BadInput, match="not times of jobs by type"):
        measured_clouds(tmp_path)
    with pytest.raises(BadInput, match="not times of jobs by number of nodes"):
        measured_curves(tmp_path)


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which a family and a size each have a speed for a program, without anything else."""
    folder, rng = tmp_path_factory.mktemp("grid"), np.random.default_rng(4)
    families, sizes = ("a1.2", "a1.4", "b1.8"), ("large", "xlarge", "2xlarge")
    types = [f"{family.split('.')[0]}.{size}.{family.split('.')[1]}" for family in families for size in sizes]
    for name in CLOUDS:
        rows = []
        for program in range(12):
            needs = rng.uniform(0.0, 1.0, 2)
            by_family, by_size = np.exp(needs[0] * np.arange(3)), np.exp(-needs[1] * np.arange(3))
            rows.append((f"spark_p{program}_small", *np.round(100.0 * np.outer(by_family, by_size).ravel(), 4)))
        with (folder / f"matrix_{name}.csv").open("w") as file:
            csv.writer(file).writerows([("job", *types), *rows])
    return folder


@pytest.mark.parametrize("way", [TWO, EXHAUSTIVE])
def test_families_and_sizes_that_do_not_depend_on_each_other_follow_from_few_runs(grid: Path, way: str) -> None:
    numbers = error_numbers(OURS, way, grid, 0)
    assert numbers["error_pct"] < 10.0 <= 10.0 * numbers["most_error_pct"]


def test_one_classification_of_all_combinations_takes_longer_than_four() -> None:
    four, one = (time_numbers(PRINTED, together, None, 0)["classified_ms"] for together in (False, True))
    assert one > four > 0.0
