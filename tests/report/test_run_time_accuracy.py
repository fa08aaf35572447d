"""How well predictions held that were recorded when jobs started."""

import numpy as np
import pytest

from hcloud.core.errors import BadInput
from hcloud.core.model import Event, EventKind
from hcloud.forecast.runtimes.distribution import RunTimes
from hcloud.forecast.runtimes.features import RunFeatures
from hcloud.forecast.runtimes.prediction import PROBABILITIES, RECORDED_IN, RunTimePrediction
from hcloud.report import ReportTable, build_report

HOUR_S = 3600.0
TEN = RunTimes(np.array([1.0, 100.0]), np.array([0.0, 1.0]), source="user+name")
"""Log-uniform from 1 to 100 s: half of the runs take at most 10 s."""


def placed(number: int, attempt: int = 1, predicted: RunTimes | None = TEN) -> Event:
    """Return the start of an attempt."""
    fields: dict[str, object] = {"attempt": f"job-{number}.{attempt}"}
    if predicted is not None:
        fields[RECORDED_IN] = RunTimePrediction.of(predicted).to_fields()
    return Event(at=HOUR_S * number, kind=EventKind.ATTEMPT_PLACED, job_id=f"job-{number}", user="ann", fields=fields)


def finished(number: int, run_s: float, *, stopped: bool = False) -> Event:
    """Return the end of a job."""
    features = RunFeatures(user="ann", application="ann:x").to_fields()
    return Event(
        at=HOUR_S * number + run_s,
        kind=EventKind.JOB_FINISHED,
        job_id=f"job-{number}",
        user="ann",
        fields={"run_s": run_s, "stopped": stopped, "features": features},
    )


def reported(*events: Event, **asked: object) -> ReportTable:
    """Return the report up to the end of time."""
    return build_report("accuracy", iter(events), 1e9, of="runtime", **asked)  # type: ignore[arg-type]


def cells(table: ReportTable, row: int = 0) -> dict[str, object]:
    """Return a row by column name."""
    return dict(zip((each.name for each in table.columns), table.rows[row], strict=True))


def test_runs_are_compared_with_the_recorded_quantiles() -> None:
    times_s = [4.0, 9.0, 20.0, 90.0]
    table = reported(*(each for n, run_s in enumerate(times_s, 1) for each in (placed(n), finished(n, run_s))))
    found = cells(table)
    assert (found["feature"], found["runs"], found["within_50_pct"], found["within_95_pct"]) == (
        "user+name", 4, 50.0, 75.0,
    )  # fmt: skip
    errors = np.log(times_s)[:, None] - np.log(TEN.quantiles(PROBABILITIES))[None, :]
    loss = np.maximum(PROBABILITIES * errors, (PROBABILITIES - 1.0) * errors).mean()
    assert found["log_pinball"] == pytest.approx(loss, abs=1e-3)
    assert table.total is not None and table.total[1:] == table.rows[0][1:]


def test_the_log_alone_decides_and_no_outcome_changes_a_prediction() -> None:
    # Were it predicted again, forty runs of 5 s would have taught that the last one takes 5 s.
    log = [each for n in range(1, 42) for each in (placed(n), finished(n, 5.0))]
    assert cells(reported(*log, since=HOUR_S * 41))["within_50_pct"] == 100.0
    assert cells(reported(*log))["log_pinball"] == cells(reported(*log, since=HOUR_S * 41))["log_pinball"]


def test_rows_are_what_predictions_followed_from() -> None:
    other = RunTimes(TEN.times_s, TEN.cumulative, source="profile")
    table = reported(placed(1), finished(1, 5.0), placed(2, predicted=other), finished(2, 5.0))
    assert [row[:2] for row in table.rows] == [("profile", 1), ("user+name", 1)]
    assert table.total is not None and table.total[1] == 2


def test_a_run_counts_with_the_prediction_of_its_last_attempt() -> None:
    never = RunTimes(1e4 * TEN.times_s, TEN.cumulative, source="name")
    joined = Event(at=HOUR_S, kind=EventKind.ATTEMPT_PLACED, job_id="job-1", fields={"attempt": "job-1.2"})
    table = reported(placed(1, 1, never), placed(1, 2), joined, finished(1, 50.0))
    assert table.rows[0][:2] == ("user+name", 1)
    # Of the last attempt nothing was known: what the first one was predicted says nothing about it.
    table = reported(placed(1, 1), placed(1, 2, None), finished(1, 50.0))
    assert table.rows == () and any("1 run left out: no prediction was recorded" in note for note in table.notes)


def test_stopped_runs_and_those_outside_the_period_are_left_out() -> None:
    table = reported(placed(1), finished(1, 5.0, stopped=True), placed(9), finished(9, 5.0), until=HOUR_S * 8)
    assert (table.rows, table.total) == ((), None)
    assert any("1 stopped run left out" in note for note in table.notes)


def test_rows_are_users_programs_or_days() -> None:
    log = (placed(1), finished(1, 5.0), placed(30), finished(30, 5.0))
    for by, rows in {"user": [("ann", 2)], "application": [("ann:x", 2)]}.items():
        assert [row[:2] for row in reported(*log, by=by).rows] == rows
    assert [row[:2] for row in reported(*log, by="day").rows] == [("1970-01-01", 1), ("1970-01-02", 1)]


@pytest.mark.parametrize(
    "damaged", [None, "text", {"source": "name"}, {"source": "name", "likely_s": 1.0, "quantiles_s": ["a"] * 8}]
)
def test_a_damaged_record_counts_as_none(damaged: object) -> None:
    event = Event(
        at=1.0, kind=EventKind.ATTEMPT_PLACED, job_id="job-1", fields={"attempt": "job-1.1", RECORDED_IN: damaged}
    )
    assert reported(event, finished(1, 5.0)).rows == ()


def test_only_accuracy_is_reported_of_run_times() -> None:
    for name, of in (("cost", "runtime"), ("accuracy", "nothing")):
        with pytest.raises(BadInput, match="leave it out, or choose: accuracy of runtime"):
            build_report(name, iter(()), 1.0, of=of)
    with pytest.raises(BadInput, match="grouped by feature, user, application or day, not by 'quantity'"):
        reported(by="quantity")
