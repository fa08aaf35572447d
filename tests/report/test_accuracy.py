"""The accuracy report: prediction errors from the event log alone."""

import pytest

from hcloud.core.errors import BadInput
from hcloud.core.model import EventKind
from hcloud.report import ReportTable, build_report
from tests.report.log_builder import LogBuilder

DAY = 86_400.0


@pytest.fixture
def log() -> LogBuilder:
    """Two runs (10 % too fast; 20 % too slow, outside the limits), one interference cell, one unusable prediction."""
    log = LogBuilder()
    for at, changes in (
        (10.0, {"predicted": 11.0, "low": 9.0, "high": 13.0, "measured": 10.0}),
        (DAY, {"predicted": 8.0, "low": 7.0, "high": 9.0, "measured": 10.0, "alone": False}),
        (DAY, {"predicted": 45.0, "low": 40.0, "high": 50.0, "measured": 40.0, "question": "caused",
               "application": "b"}),
        (DAY, {"predicted": 1.0, "low": 1.0, "high": 1.0, "measured": 0.0}),
    ):  # fmt: skip
        plain = {"application": "a", "question": "run", "instance_type": "mock/small", "alone": True}
        log.add(EventKind.PREDICTION, at, user="ann", **{**plain, **changes})
    return log


def report(log: LogBuilder, by: str | None = None, **span: float) -> ReportTable:
    return build_report("accuracy", iter(log.events), 3 * DAY, by=by, **span)


def test_errors_by_quantity_with_the_share_within_limits(log: LogBuilder) -> None:
    plain = {"application": "a", "instance_type": "mock/small", "alone": False, "low": 0.0, "high": 20.0}
    log.add(EventKind.PREDICTION, DAY, user="ann", question="loss", predicted=10.0, measured=-2.0, **plain)
    log.add(EventKind.PREDICTION, DAY, user="ann", question="type", predicted=12.0, measured=10.0, **plain)
    table = report(log)
    assert [column.name for column in table.columns] == [
        "quantity", "predictions", "mean_error_pct", "p90_error_pct", "bias_pct", "within_limits_pct",
    ]  # fmt: skip
    speed, caused, loss = table.rows
    assert speed == (
        "speed",
        3,
        pytest.approx(50 / 3),
        pytest.approx(20.0),
        pytest.approx(10 / 3),
        pytest.approx(200 / 3),
    )
    assert caused == ("caused", 1, pytest.approx(5.0), pytest.approx(5.0), pytest.approx(5.0), 100.0)
    assert loss == ("loss", 1, pytest.approx(12.0), pytest.approx(12.0), pytest.approx(12.0), 0.0)
    assert table.total == ("total", 5, None, None, None, 60.0)  # percent and points have no mean


def test_errors_by_question_have_a_total_where_they_are_of_one_kind(log: LogBuilder) -> None:
    caused, run = report(log, "question").rows
    assert (caused[0], run[0]) == ("caused", "run")
    assert run == ("run", 2, pytest.approx(15.0), pytest.approx(20.0), pytest.approx(-5.0), 50.0)
    total = report(log, "question", until=DAY / 2).total
    assert total == ("total", 1, pytest.approx(10.0), pytest.approx(10.0), pytest.approx(10.0), 100.0)


def test_notes_count_jobs_that_shared_a_machine_and_predictions_left_out(log: LogBuilder) -> None:
    notes = " | ".join(report(log).notes)
    assert "1 job shared a machine" in notes
    assert "1 prediction left out: no usable measurement" in notes


@pytest.mark.parametrize(
    ("by", "rows"),
    [("application", ["a", "b"]), ("type", ["mock/small"]), ("user", ["ann"]), ("day", ["1970-01-01", "1970-01-02"])],
)
def test_rows_are_grouped_as_requested(log: LogBuilder, by: str, rows: list[str]) -> None:
    assert [row[0] for row in report(log, by).rows] == rows


def test_only_the_requested_period_counts(log: LogBuilder) -> None:
    total = report(log, since=DAY / 2).total
    assert total is not None
    assert total[1] == 2


def test_unknown_grouping_is_refused_with_the_closest_one(log: LogBuilder) -> None:
    with pytest.raises(BadInput, match="did you mean application"):
        report(log, "aplication")
    with pytest.raises(BadInput, match="quantity, application, question, type, user or day, not by 'job'"):
        report(log, "job")


def test_without_predictions_the_table_is_empty() -> None:
    assert report(LogBuilder()).rows == ()
