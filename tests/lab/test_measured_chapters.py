"""The chapters that follow from measurements of others, or are computed: on a small folder made here."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from hcloud.core.errors import BadInput
from lab.papers import CHAPTERS
from lab.papers.__main__ import reproduce
from lab.papers.esp import ORACLE, filtering_numbers, one_server_numbers, servers_numbers
from lab.papers.mage import placement_numbers
from lab.papers.measured import measured_groups
from lab.papers.study import ComputedCase, RunSize, run_case
from lab.papers.tarcil import BUCKETS, COSINE, DrawnServers, bucket_numbers, encoded

PROGRAMS = tuple(f"p{number:02}" for number in range(12))
COUNTERS = ("mem_read_total", "mem_write_total", "ipc_total", "l2miss_total")


def _write(path: Path, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with path.open("w") as file:
        csv.writer(file).writerows([head, *rows])


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with twelve programs of which those with odd numbers press hard, alone, in pairs and triples."""
    folder = tmp_path_factory.mktemp("measured")
    rng = np.random.default_rng(5)
    _write(folder / "features.csv", ("app", *COUNTERS), [(name, *rng.uniform(1, 9, 4)) for name in PROGRAMS])
    for size in (2, 3):
        rows = []
        for combo, group in enumerate(itertools.combinations(range(12), size)):
            for at in group:
                beside = [each for each in group if each != at]
                speed = 1.0 / (1.0 + 0.05 * (at + 1) * sum(each % 2 for each in beside))
                names = ";".join(PROGRAMS[each] for each in beside)
                rows.append((combo, size, PROGRAMS[at], names, speed, 0.01))
        head = ("combo", "k", "app", "others", "perf_ratio", "perf_ratio_std")
        _write(folder / f"interference_k{size}.csv", head, rows)
    return folder


def test_schedules_that_know_neighbours_beat_random_ones(measured: Path) -> None:
    numbers = {rule: one_server_numbers(rule, measured, 0) for rule in (ORACLE, "pair table", "random", "MEM")}
    assert numbers[ORACLE]["times_oracle"] == pytest.approx(1.0)
    assert 1.0 <= numbers["pair table"]["times_oracle"] < numbers["random"]["times_oracle"]
    assert numbers["MEM"]["k3_times_oracle"] > 1.0
    assert 0.0 < filtering_numbers(measured, 0)["k2_error_pct"] < 50.0


def test_servers_are_filled_by_activity_vectors_and_at_random(measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.papers.esp.SERVERS", (2,))
    monkeypatch.setattr("lab.papers.esp.JOBS", 6)
    monkeypatch.setattr("lab.papers.esp.SIZES", (2,))
    for rule in ("random", "IPC"):
        assert servers_numbers(rule, measured, 0)["times_oracle"] > 0.9


def test_placements_learnt_from_pairs_come_near_the_best(measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.papers.mage.COUNT", 6)
    shares = {
        name: placement_numbers(name, measured, 0)["6_programs_pct"] for name in ("pair table", "random", "worst")
    }
    assert shares["worst"] < shares["random"] < shares["pair table"] <= 100.0


def test_buckets_by_quality_hold_like_machines_and_cosine_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.papers.tarcil.SERVERS", 1_000)
    monkeypatch.setattr("lab.papers.tarcil.JOBS", 50)
    by_quality, by_cosine = (bucket_numbers(kind, None, 1) for kind in (BUCKETS, COSINE))
    assert by_quality["variance_left_pct"] < 20.0 < 90.0 < by_cosine["variance_left_pct"]


def test_quality_keeps_the_order_of_pressures_and_satisfied_jobs_come_first() -> None:
    two = np.zeros((2, 10))
    two[0, 3], two[1, 7] = 84.0, 31.0
    assert encoded(two)[0] > encoded(two)[1] == pytest.approx(0.31)
    servers = DrawnServers(pressures=two, quality=np.array([0.2, 0.6]), types=np.array([0, 0]))
    assert servers.values(0.3, np.ones(1)).tolist() == pytest.approx([0.2, 1.7])


def test_figures_of_measurements_are_not_simulated_and_need_no_cloud() -> None:
    figures = [each for name in ("esp", "mage", "tarcil") for each in CHAPTERS[name][1]()]
    for figure in (each for each in figures if each.of_data):
        assert all(isinstance(case, ComputedCase) for case in figure.cases), figure.name
    case = ComputedCase(label="one", numbers=lambda folder, seed: {"n": float(seed)})
    assert run_case(case, 3, RunSize()) == {"n": 3.0}


def test_folder_without_measurements_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match=r"lacks features\.csv"):
        measured_groups(tmp_path)
    for name in ("features.csv", "interference_k2.csv", "interference_k3.csv"):
        (tmp_path / name).write_text("app,a\nx,not-a-number\n")
    monkeypatch.chdir(tmp_path)
    words = ["--figure", "esp-accuracy", "--no-pictures"]
    for more, sentence in (
        (["--data", "."], "these are not ESP's measurements"),
        ([], "give their folder with --data"),
    ):
        with pytest.raises(BadInput, match=sentence):
            CliRunner().invoke(reproduce, [*words, *more], catch_exceptions=False, standalone_mode=False)
    assert not Path("results").exists()
