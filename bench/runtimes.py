"""``python -m bench.runtimes --logs FOLDER``: how well run times are predicted on public job logs, beside 3Sigma.

Each log is replayed once, in the order in which things became known: a job is predicted when it is submitted, from
those that had ended by then. Three predictors see the same: ours, 3Sigma's as printed, and the mean of the user's last
two runs. Ours was tuned on the first half in time of the log ``kth_sp2``; what counts are its second half and the
other logs.

A log is a ``.csv.gz`` with the columns submit_s, runtime_s, req_procs, req_time_s, user and, where known, wait_s, group
and executable (-1: not known); seconds count from midnight of some day. Jobs that ran for no time are left out.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import sys
import time
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.rows import Row, machine
from hcloud.forecast.runtimes.distribution import Predictor, RunTimes, unknown_run_time
from hcloud.forecast.runtimes.features import RunFeatures
from hcloud.forecast.runtimes.mixture import MixturePredictor
from hcloud.forecast.runtimes.printed import PrintedPredictor
from hcloud.forecast.runtimes.state import dump

LOGS = Path(__file__).resolve().parents[2] / "shared" / "data" / "jobs"
COLUMNS = ("submit_s", "runtime_s", "req_procs", "req_time_s", "user")
TUNED_ON = "kth_sp2"
"""The log on whose first half parameters were tuned."""
WITHIN_GOALS = {"kth_sp2": 68.0, "cea_curie_sample": 53.0}
"""Percent of jobs within a factor 2 of the estimate, by log."""
PROBABILITIES = np.array([0.05, 0.1, 0.25, 0.5, 0.75, 0.8, 0.9, 0.95])
"""Of the quantiles judged by pinball loss."""
COVERED = (0.5, 0.8, 0.9, 0.95)
"""Of the quantiles whose coverage is shown."""
AGE_S = 600.0
"""Jobs that still run at this age are predicted again."""
COVERAGE_GOAL, PINBALL_GOAL, TIME_GOAL_MS, MEMORY_GOAL_MB = 2.0, -20.0, 0.2, 20.0
REMEMBERED_JOBS = 100_000
"""Jobs after which memory is measured."""
OURS, PRINTED, LAST_TWO, LATE = "ours", "3Sigma as printed", "user's last two", "ours, judged late"

Floats = NDArray[np.float64]


# ---------------------------------------------------------------------------------------------------------------- logs
@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedJob:
    """One job of a log."""

    submit_s: float
    end_s: float
    run_s: float
    features: Mapping[str, str | float | int | None]
    """Arguments of RunFeatures."""


def read_log(path: Path) -> list[LoggedJob]:
    """Return the jobs of a log in the order of their submission; none if it lacks a column."""
    with gzip.open(path, "rt") as file:
        rows = csv.DictReader(file)
        if not set(COLUMNS) <= set(rows.fieldnames or ()):
            return []
        jobs = [_job(row) for row in rows if float(row["runtime_s"]) > 0.0]
    return sorted(jobs, key=lambda job: job.submit_s)


def _job(row: Mapping[str, str]) -> LoggedJob:
    def known(column: str) -> str | None:
        return None if row.get(column, "-1") in ("-1", "") else row[column]

    submit_s, run_s, requested_s = float(row["submit_s"]), float(row["runtime_s"]), float(row["req_time_s"])
    return LoggedJob(
        submit_s=submit_s,
        end_s=submit_s + max(0.0, float(row.get("wait_s") or 0.0)) + run_s,
        run_s=run_s,
        features={
            "user": known("user"),
            "group": known("group"),
            "executable": known("executable"),
            "size": float(row["req_procs"]),
            "requested_s": requested_s if requested_s > 0.0 else None,
            "submit_hour": int(submit_s // 3600) % 24,
            "submit_weekday": int(submit_s // 86400) % 7,
        },
    )


def in_causal_order(jobs: Sequence[LoggedJob]) -> Iterator[tuple[int, bool]]:
    """Yield each job's number at its submission (False) and at its end (True); ends come first at the same time."""
    moments = [(job.submit_s, 1, number) for number, job in enumerate(jobs)]
    moments += [(job.end_s, 0, number) for number, job in enumerate(jobs)]
    for _, submitted, number in sorted(moments):
        yield number, not submitted


# ---------------------------------------------------------------------------------------------------------- predictors
@dataclass(slots=True, eq=False)
class LastTwo:
    """Predicts the mean of the user's last two runs, as if it were certain."""

    runs_s: dict[str | None, list[float]] = field(default_factory=dict)
    """Of each user, latest last."""

    def predict(self, features: RunFeatures, age_s: float = 0.0) -> RunTimes:
        """Return a distribution of one time."""
        runs = self.runs_s.get(features.user)
        if not runs:
            return unknown_run_time()
        return RunTimes(np.full(2, np.mean(runs)), np.array([0.0, 1.0])).after(age_s)

    def observe(
        self, features: RunFeatures, run_s: float, censored: bool = False, *, predicted: RunTimes | None = None
    ) -> None:
        """Remember the run."""
        self.runs_s[features.user] = [*self.runs_s.get(features.user, [])[-1:], run_s]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a predictor said of each job of a log."""

    likely_s: Floats
    """Estimate of one time, shape ``(jobs,)``."""
    quantiles_s: Floats
    """Shape ``(jobs, PROBABILITIES)``."""
    aged_s: Floats
    """The same once a job ran for ``AGE_S``, as known at its submission."""
    predict_ms: float
    """Processor time per prediction, the features included."""
    observe_ms: float
    """Processor time per run learnt from."""


def replay(jobs: Sequence[LoggedJob], predictor: Predictor, *, judged_late: bool = False) -> Replayed:
    """Predict each job of a log from those that ended before.

    ``judged_late``: predictions are not handed back, so the predictor judges itself by what it knows at the end.
    """
    likely = np.zeros(len(jobs))
    quantiles, aged = np.zeros((2, len(jobs), len(PROBABILITIES)))
    made: dict[int, tuple[RunFeatures, RunTimes]] = {}
    spent = [0.0, 0.0]
    for number, ended in in_causal_order(jobs):
        job, begun = jobs[number], time.thread_time()
        if ended:
            features, predicted = made.pop(number)
            predictor.observe(features, job.run_s, predicted=None if judged_late else predicted)
        else:
            features = RunFeatures(**job.features)  # type: ignore[arg-type]
            made[number] = features, predictor.predict(features)
        spent[ended] += time.thread_time() - begun
        if not ended:
            likely[number] = made[number][1].likely_s
            quantiles[number] = made[number][1].quantiles(PROBABILITIES)
            aged[number] = made[number][1].after(AGE_S).quantiles(PROBABILITIES)
    per_job_ms = [1000.0 * each / max(1, len(jobs)) for each in spent]
    return Replayed(
        likely_s=likely, quantiles_s=quantiles, aged_s=aged, predict_ms=per_job_ms[0], observe_ms=per_job_ms[1]
    )


# -------------------------------------------------------------------------------------------------------------- scores
@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimeScore:
    """How good predictions of some jobs were."""

    within_pct: float
    """Percent of jobs that ran for between half and twice the estimate."""
    covered_pct: tuple[float, ...]
    """Percent of jobs that ran no longer than each quantile of ``COVERED``."""
    covered_aged_pct: tuple[float, ...]
    """The same of jobs that ran longer than ``AGE_S``, by what was predicted for that age; nan where none did."""
    pinball: float
    """Mean pinball loss of the logarithms, over ``PROBABILITIES``."""


def score(run_s: Floats, replayed: Replayed, part: slice) -> RunTimeScore:
    """Judge what was predicted for a part of a log's jobs."""
    ran, likely = run_s[part], replayed.likely_s[part]
    quantiles = np.maximum(replayed.quantiles_s[part], 0.01)
    error = np.log(ran)[:, None] - np.log(quantiles)
    old = ran > AGE_S
    return RunTimeScore(
        within_pct=100.0 * float((np.minimum(ran, likely) >= 0.5 * np.maximum(ran, likely)).mean()),
        covered_pct=_covered_pct(ran, quantiles),
        covered_aged_pct=_covered_pct(ran[old], replayed.aged_s[part][old]),
        pinball=float(np.maximum(PROBABILITIES * error, (PROBABILITIES - 1.0) * error).mean()),
    )


def _covered_pct(ran_s: Floats, quantiles_s: Floats) -> tuple[float, ...]:
    if not ran_s.size:
        return (float("nan"),) * len(COVERED)
    covered = 100.0 * (ran_s[:, None] <= quantiles_s).mean(axis=0)
    return tuple(float(covered[PROBABILITIES.tolist().index(each)]) for each in COVERED)


def remembered_mb(jobs: Sequence[LoggedJob], count: int = REMEMBERED_JOBS) -> tuple[float, float]:
    """Return what ours takes after ``count`` jobs, in MB of memory and of its state written out.

    The log is repeated for that; each time with users of other names, sizes and requested times.
    """
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    predictor = MixturePredictor()
    for number in range(count):
        turn, at = divmod(number, len(jobs))
        job = jobs[at]
        numbers = {name: value * 1.01**turn for name in ("size", "requested_s") if (value := job.features[name])}  # type: ignore[operator]
        features = RunFeatures(**{**job.features, **numbers, "user": f"{job.features['user']}-{turn}"})  # type: ignore[arg-type]
        predictor.observe(features, job.run_s)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (taken - before) / 1e6, len(dump(predictor)) / 1e6


# ------------------------------------------------------------------------------------------------------------- command
def parts_of(name: str, jobs: Sequence[LoggedJob]) -> dict[str, slice]:
    """Return the parts of a log that are judged apart: halves of the one that was tuned on, else all of it."""
    half_s = 0.5 * (jobs[0].submit_s + jobs[-1].submit_s)
    half = sum(job.submit_s < half_s for job in jobs)
    if name != TUNED_ON:
        return {name: slice(None)}
    return {f"{name}, 1st half (tuned on)": slice(half), f"{name}, 2nd half": slice(half, None)}


def measured(name: str, jobs: Sequence[LoggedJob], *, judged_late: bool = False) -> Iterator[Row]:
    """Print the scores of all predictors on a log, and yield the figures that have goals."""
    predictors: dict[str, Predictor] = {OURS: MixturePredictor(), PRINTED: PrintedPredictor(), LAST_TWO: LastTwo()}
    replays = {label: replay(jobs, predictor) for label, predictor in predictors.items()}
    if judged_late:
        replays[LATE] = replay(jobs, MixturePredictor(), judged_late=True)
    run_s = np.array([job.run_s for job in jobs])
    for title, part in parts_of(name, jobs).items():
        scores = {label: score(run_s, each, part) for label, each in replays.items()}
        print(f"{title}: {len(run_s[part]):,} jobs")
        heads = " ".join(f"<= q{100 * each:<3.0f}" for each in COVERED)
        print(f"  {'':<18} within x2  {heads}  log pinball       after {AGE_S:g} s: {heads}")
        for label, each in scores.items():
            covered, aged = (
                " ".join(f"{percent:6.1f}" for percent in shown) for shown in (each.covered_pct, each.covered_aged_pct)
            )
            beside = 100.0 * (each.pinball / scores[PRINTED].pinball - 1.0)
            print(
                f"  {label:<18} {each.within_pct:7.1f} %  {covered}  {each.pinball:.4f} ({beside:+5.1f} %)  {aged:>34}"
            )
        if "tuned on" not in title:
            yield from _goals(name, title, scores)
    for label in (OURS, PRINTED):
        yield Row(
            name=f"{name}: one prediction, {label}",
            value=replays[label].predict_ms,
            unit="ms",
            target=TIME_GOAL_MS if label == OURS else None,
            note=f"learning {replays[label].observe_ms:.3f} ms",
        )


def _goals(name: str, title: str, scores: Mapping[str, RunTimeScore]) -> Iterator[Row]:
    ours, printed = scores[OURS], scores[PRINTED]
    goal = WITHIN_GOALS.get(name)
    yield Row(name=f"{title}: within a factor 2", value=ours.within_pct, unit="%", target=goal, better="higher")
    worst = max(abs(percent - 100.0 * each) for percent, each in zip(ours.covered_pct, COVERED, strict=True))
    yield Row(name=f"{title}: worst coverage of a quantile", value=worst, unit="points", target=COVERAGE_GOAL)
    beside = 100.0 * (ours.pinball / printed.pinball - 1.0)
    yield Row(name=f"{title}: log pinball beside the printed", value=beside, unit="%", target=PINBALL_GOAL)


def main() -> int:
    """Measure on the logs of a folder; ends with 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.runtimes", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--logs", type=Path, default=LOGS, help="folder of job logs, *.csv.gz (default: %(default)s)")
    parser.add_argument("--only", nargs="*", default=[], help="names of logs, without .csv.gz")
    parser.add_argument("--memory-jobs", type=int, default=REMEMBERED_JOBS, help="jobs for the memory; 0: not measured")
    parser.add_argument(
        "--judged-late", action="store_true", help="also ours, if it judges itself by what is known when jobs end"
    )
    arguments = parser.parse_args()
    logs = {path.name.removesuffix(".csv.gz"): path for path in sorted(arguments.logs.glob("*.csv.gz"))}
    found = {name: jobs for name, path in logs.items() if name in (arguments.only or logs) and (jobs := read_log(path))}
    if not found:
        print(f"bench.runtimes: no job log with the columns {', '.join(COLUMNS)} in {arguments.logs}", file=sys.stderr)
        return 2
    print(f"machine: {machine()}")
    rows = [row for name, jobs in found.items() for row in measured(name, jobs, judged_late=arguments.judged_late)]
    if arguments.memory_jobs:
        longest = max(found.values(), key=len)
        memory_mb, written_mb = remembered_mb(longest, arguments.memory_jobs)
        what = f"after {arguments.memory_jobs:,} jobs"
        rows.append(Row(name=f"memory {what}", value=memory_mb, unit="MB", target=MEMORY_GOAL_MB))
        rows.append(Row(name=f"state written out {what}", value=written_mb, unit="MB", target=MEMORY_GOAL_MB))
    for row in rows:
        print(row.line())
    missed = sum(row.holds is False for row in rows)
    print(f"{missed} goal(s) missed" if missed else "every goal met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
