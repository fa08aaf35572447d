"""Slowdowns are judged on groups that were not learnt from, and what cannot be measured is said."""

import csv
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from bench import neighbours
from bench.neighbours import main, read_features, read_groups, score
from hcloud.classifier.slowdown.table import CoRunQuestion, ExpectedSlowdown
from tests.classifier.slowdown.worlds import PairWorld

PROGRAMS = "abcde"


def write(path: Path, rows: Sequence[dict[str, object]]) -> None:
    with path.open("w") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Five programs, alone, in pairs and in triples."""
    world = PairWorld()
    features: list[dict[str, object]] = [
        {"app": each, "ipc": world.features[each][0], "l3miss": 10.0 * world.features[each][1]} for each in PROGRAMS
    ]
    write(tmp_path / "features.csv", features)
    for size in (2, 3):
        rows = list[dict[str, object]]()
        for combo, group in enumerate(combinations(PROGRAMS, size)):
            for app in group:
                others = [each for each in group if each != app]
                ratio = float(np.exp(-world.longer(app, others)))
                rows.append(
                    {"combo": combo, "k": size, "app": app, "others": ";".join(others), "perf_ratio": ratio}
                    | {"perf_ratio_std": 0.01}
                )
        rows[0]["perf_ratio"] = 4.2
        write(tmp_path / f"interference_k{size}.csv", rows)
    return tmp_path


def test_artefacts_are_left_out_and_features_are_shares(data: Path) -> None:
    features = read_features(data / "features.csv")
    assert max(each.max() for each in features.values()) == 1.0
    pairs = read_groups(data / "interference_k2.csv", features)
    assert len(pairs.table) == 19 and pairs.speed.max() < 1.1


def test_a_score_is_relative_to_what_was_measured(data: Path) -> None:
    pairs = read_groups(data / "interference_k2.csv", read_features(data / "features.csv"))
    truth = dict(zip(pairs.table.questions, pairs.table.log_longer, strict=True))

    class Off:
        def slowdown(self, asked: CoRunQuestion) -> ExpectedSlowdown:
            return ExpectedSlowdown(float(truth[asked]) - np.log(1.1), 0.01)

    found = score(Off(), pairs)
    assert found.error_pct == pytest.approx(10.0)
    assert found.within_pct == 0.0 and found.r2 < 1.0


def test_all_that_is_there_is_measured_and_what_is_not_is_said(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(neighbours, "SPLITS", 1)
    monkeypatch.setattr("sys.argv", ["bench.neighbours", "--data", str(data)])
    main()
    printed = capsys.readouterr().out
    assert "larger groups: not measured" in printed
    for title in ("pairs -> triples: R2", "70/30 by group, triples: error", "new program, 3 probe neighbours"):
        assert title in printed


def test_a_folder_without_the_data_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench.neighbours", "--data", str(tmp_path)])
    assert main() == 2
    assert "lacks features.csv" in capsys.readouterr().err
