"""How far predictions were from what was measured, from the event log alone."""

import pytest

from hcloud.core.errors import BadInput
from hcloud.core.model import EventKind
from hcloud.report import ReportTable, build_report
from tests.report.story import Story

DAY = 86_400.0


@pytest.fixture
def story() -> Story:
    """Two runs (one 10 % too fast, one 20 % too slow and outside), a pressure off by 5 points, and one of no use."""
    told = Story()
    for at, changes in (
        (10.0, {"predicted": 11.0, "low": 9.0, "high": 13.0, "measured": 10.0}),
        (DAY, {"predicted": 8.0, "low": 7.0, "high": 9.0, "measured": 10.0, "alone": False}),
        (DAY, {"predicted": 45.0, "low": 40.0, "high": 50.0, "measured": 40.0, "question": "caused",
               "application": "b"}),
        (DAY, {"predicted": 1.0, "low": 1.0, "high": 1.0, "measured": 0.0}),
    ):  # fmt: skip
        plain = {"application": "a", "question": "run", "instance_type": "mock/small", "alone": True}
        told.add(EventKind.PREDICTION, at, user="ann", **{**plain, **changes})
    return told


def report(story: Story, by: str | None = None, **span: float) -> ReportTable:
    return build_report("accuracy", iter(story.events), 3 * DAY, by=by, **span)


def test_errors_are_told_by_question_with_the_share_within_limits(story: Story) -> None:
    table = report(story)
    assert [column.name for column in table.columns] == [
        "question", "predictions", "mean_error_pct", "p90_error_pct", "bias_pct", "within_limits_pct",
    ]  # fmt: skip
    caused, run = table.rows
    assert caused == ("caused", 1, pytest.approx(5.0), pytest.approx(5.0), pytest.approx(5.0), 100.0)
    assert run == ("run", 2, pytest.approx(15.0), pytest.approx(20.0), pytest.approx(-5.0), 50.0)
    assert table.total is not None
    assert table.total[:2] == ("total", 3)


def test_notes_say_what_was_left_out_and_who_was_not_alone(story: Story) -> None:
    notes = " | ".join(report(story).notes)
    assert "1 of the jobs did not have their machine to themselves" in notes
    assert "1 predictions are left out" in notes


@pytest.mark.parametrize(
    ("by", "rows"),
    [("application", ["a", "b"]), ("type", ["mock/small"]), ("user", ["ann"]), ("day", ["1970-01-01", "1970-01-02"])],
)
def test_rows_stand_for_what_was_asked(story: Story, by: str, rows: list[str]) -> None:
    assert [row[0] for row in report(story, by).rows] == rows


def test_only_the_time_asked_for_counts(story: Story) -> None:
    total = report(story, since=DAY / 2).total
    assert total is not None
    assert total[1] == 2


def test_other_groupings_are_refused_and_the_nearest_named(story: Story) -> None:
    with pytest.raises(BadInput, match="did you mean application"):
        report(story, "aplication")
    with pytest.raises(BadInput, match="application, question, type, user or day, not by 'job'"):
        report(story, "job")


def test_nothing_predicted_gives_an_empty_table() -> None:
    assert report(Story()).rows == ()
