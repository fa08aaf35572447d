"""Profiles fitted to public measurements: typical programs, never single ones, with wide limits and their source."""

import csv
import itertools
from pathlib import Path

import numpy as np
import pytest

from bench.accuracy.fit_rows import FEWEST_JOBS, cells_of, fitted_profiles, groups
from hcloud.classifier.belief_store import BeliefStore
from hcloud.classifier.library import Library
from hcloud.config import package_data
from hcloud.config.profiles import library_profiles, load_library, write_profile
from tests.classifier.test_unmeasured_types import profiled

TYPES = [f"{family}.{size}" for family in ("c5", "m5", "r5") for size in ("large", "xlarge", "2xlarge")]
NODES = (2, 4, 8)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Made-up measurements in the form of the public ones: 24 jobs on types, 12 on nodes, between flat and linear."""
    rng = np.random.default_rng(0)
    (tmp_path / "lumos").mkdir()
    (tmp_path / "c3o").mkdir()
    with (tmp_path / "lumos/matrix_aws.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["job", *TYPES])
        for job in range(24):
            speed = [(2 ** (i % 3)) ** (job / 24) * (1.1 if i < 3 else 1.0) for i in range(len(TYPES))]
            out.writerow([f"kind_{job}_small", *(100 * rng.uniform(0.97, 1.03) / each for each in speed)])
    with (tmp_path / "c3o/runs.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["job", "nodes", "vm_type", "data_size_mb", "runtime_s", "params"])
        for job, nodes in itertools.product(range(12), NODES):
            out.writerow([f"j{job}", nodes, "m4.2xlarge", 100, 500 / nodes ** (job / 12), ""])
    return tmp_path


def test_profiles_are_of_several_jobs_and_say_where_they_are_from(data: Path) -> None:
    found = list(fitted_profiles(data, "2026-11-25"))
    assert {each.profile.rpartition("-")[0] for each in found} == {"fitted-ec2", "fitted-nodes"}
    for each in found:
        assert each.fitted is not None and each.provenance is None
        assert "none stated" in each.fitted.licence and each.fitted.fitted_at == "2026-11-25"
        cells = [*each.cells.type.values(), *each.cells.nodes.values()]
        assert cells and all(cell.runs >= FEWEST_JOBS for cell in cells)
        assert all(cell.high / cell.low >= 1.2 for cell in cells)
    assert set(found[0].cells.type) == {f"aws/{each}" for each in TYPES}
    assert set(found[-1].cells.nodes) == {str(each) for each in NODES}


def test_fitted_rows_show_how_programs_differ(data: Path) -> None:
    found = [each for each in fitted_profiles(data, "2026-11-25") if each.cells.step]
    gains = sorted(each.cells.step["8 vCPU"].value / each.cells.step["2 vCPU"].value for each in found)
    assert gains[0] < 1.4 and gains[-1] > 2.8


def test_job_profiled_on_local_types_alone_gets_wide_limits_for_fitted_types(data: Path) -> None:
    for each in fitted_profiles(data, "2026-11-25"):
        write_profile(data / "made", each)
    store = BeliefStore(library=load_library([package_data.path("profiles"), data / "made"]))
    row = profiled()
    store.follow({row.name: row})
    known = store.believe([row.name])[row.name]
    for name in TYPES:
        estimate = known.by_type[f"aws/{name}"]
        # Fitted rows say how these types compare with each other, not with the machine it was profiled on.
        assert estimate.low < 18.0 / 1.4 and estimate.high > 18.0 * 1.4
    assert known.by_type["aws/c5.large"].value > known.by_type["aws/m5.large"].value


def test_jobs_that_lack_a_column_are_left_out_and_few_make_no_profile() -> None:
    logs = np.log(np.arange(1.0, 25.0).reshape(6, 4))
    logs[0, 0] = np.nan
    assert [len(each) for each in groups(logs, 8)] == [5]
    assert groups(logs[:4], 8) == []
    (cell,) = cells_of({"a": np.zeros(5)}).values()
    assert cell.low < 0.92 and cell.high > 1.1  # equal jobs too leave doubt about the next


def test_no_fitted_profile_is_shipped() -> None:
    assert [each.profile for _, each in library_profiles([package_data.path("profiles")]) if each.fitted] == []
    assert isinstance(load_library([package_data.path("profiles")]), Library)
