"""The bench of run-time predictors: what is known when, how predictions are judged, and what the command says."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from bench import runtimes
from bench.runtimes import COVERED, PROBABILITIES, LastTwo, LoggedJob, Replayed, in_causal_order, main, read_log, score
from hcloud.forecast.runtimes.distribution import RunTimes
from hcloud.forecast.runtimes.features import RunFeatures

HEADER = "job_id,submit_s,wait_s,runtime_s,req_procs,req_time_s,user,group,executable"


def log(folder: Path, *rows: str, header: str = HEADER) -> Path:
    path = folder / "kth_sp2.csv.gz"
    path.write_bytes(gzip.compress("\n".join([header, *rows]).encode()))
    return path


def job(submit_s: float, end_s: float) -> LoggedJob:
    return LoggedJob(submit_s=submit_s, end_s=end_s, run_s=end_s - submit_s, features={"user": "ann"})


def test_rows_become_jobs_in_order_and_unknown_is_none(tmp_path: Path) -> None:
    found = read_log(log(tmp_path, "2,90000,10,5,4,-1,7,-1,3", "1,3600,-1,60,8,600,-1,2,-1", "3,95000,0,0,1,60,7,2,3"))
    assert [each.end_s for each in found] == [3660.0, 90015.0]
    assert found[0].features["user"] is None
    assert found[1].features == {
        "user": "7", "group": None, "executable": "3", "size": 4.0, "requested_s": None, "submit_hour": 1,
        "submit_weekday": 1,
    }  # fmt: skip


def test_file_without_users_is_no_job_log(tmp_path: Path) -> None:
    assert read_log(log(tmp_path, "0,60,4", header="arrival_s,length_s,cpus")) == []


def test_only_what_ended_before_is_known() -> None:
    jobs = [job(0.0, 50.0), job(10.0, 20.0), job(20.0, 60.0)]
    order = list(in_causal_order(jobs))
    assert order == [(0, False), (1, False), (1, True), (2, False), (0, True), (2, True)]

    known = list[int]()

    class Careful(LastTwo):
        """Records how many runs it knew at each prediction."""

        def predict(self, features: RunFeatures, age_s: float = 0.0) -> RunTimes:
            known.append(len(self.runs_s.get(features.user, [])))
            return super().predict(features, age_s)

    runtimes.replay(jobs, Careful())
    assert known == [0, 0, 1]


def test_last_two_runs_of_the_user_are_averaged() -> None:
    predictor = LastTwo()
    for run_s in (1000.0, 10.0, 30.0):
        predictor.observe(RunFeatures(user="ann"), run_s)
    assert predictor.predict(RunFeatures(user="ann")).likely_s == pytest.approx(20.0)
    assert predictor.predict(RunFeatures(user="ben")).quantile(0.9) > 1e5


def test_score_counts_factors_coverage_and_loss() -> None:
    quantiles = np.tile(np.exp(PROBABILITIES), (4, 1))
    said = Replayed(
        likely_s=np.ones(4), quantiles_s=quantiles, aged_s=1000.0 * quantiles, predict_ms=0.0, observe_ms=0.0
    )
    run_s = np.array([2.0, 2.1, 0.4, 0.5])
    found = score(run_s, said, slice(None))
    assert found.within_pct == 50.0
    assert dict(zip(COVERED, found.covered_pct, strict=True))[0.8] == 100.0  # e^0.8 is 2.2
    assert dict(zip(COVERED, found.covered_pct, strict=True))[0.5] == 50.0
    assert all(np.isnan(found.covered_aged_pct))
    old = score(np.array([601.0, 2000.0, 3000.0, 1.0]), said, slice(None))
    assert dict(zip(COVERED, old.covered_aged_pct, strict=True))[0.8] == pytest.approx(200.0 / 3.0)
    exact = score(np.exp(np.array([0.5])), said, slice(0, 1))
    loss = np.mean([max(p * (0.5 - p), (p - 1.0) * (0.5 - p)) for p in PROBABILITIES])
    assert exact.pinball == pytest.approx(loss)


def test_command_shows_the_predictors_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(1)
    rows = [
        f"{n},{100 * n},0,{rng.lognormal(2.0 + n % 3, 0.2):.3f},{n % 3},{600 * (n % 3 + 1)},{n % 3},-1,-1"
        for n in range(150)
    ]
    log(tmp_path, *rows)
    monkeypatch.setattr("sys.argv", ["bench.runtimes", "--logs", str(tmp_path), "--memory-jobs", "200"])
    assert main() in (0, 1)  # the goals are for real logs
    shown = capsys.readouterr().out
    assert shown.count("3Sigma as printed ") >= 2
    assert "2nd half: 75 jobs" in shown
    assert "memory after 200 jobs" in shown


def test_folder_without_job_logs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench.runtimes", "--logs", str(tmp_path)])
    assert main() == 2
    assert str(tmp_path) in capsys.readouterr().err
