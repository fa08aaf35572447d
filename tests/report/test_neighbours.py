"""Neighbours: how fast programs ran beside which others, from co-run records."""

from math import log

import pytest

from hcloud.cli.report import show
from hcloud.core.co_runs import CoRun
from hcloud.core.errors import BadInput
from hcloud.report import build_report
from hcloud.report.table import ReportTable


def record(name: str, *neighbours: str, speed: float, at: float = 100.0) -> CoRun:
    return CoRun(
        application=name, neighbours=neighbours, type_column="mock/small", log_speed=log(speed), doubt=0.1,
        shared_cpus=0.5 if neighbours else None, seconds=60.0, periods=2, observed_at=at,
    )  # fmt: skip


RECORDS = [record("sort", speed=0.8), record("sort", "grep", speed=0.4), record("grep", "sort", "sort", speed=0.9)]


def report(**how: object) -> ReportTable:
    return build_report("neighbours", iter(()), 1000.0, co_runs=iter(RECORDS), **how)  # type: ignore[arg-type]


def test_programs_that_lost_most_come_first_beside_its_own_speed_alone() -> None:
    rows = report().rows
    assert [row[:2] for row in rows] == [("sort", "grep"), ("grep", "sort, sort"), ("sort", "alone")]
    assert [row[3] for row in rows] == pytest.approx([40.0, 90.0, 80.0])
    assert rows[0][4] == pytest.approx(50.0), "it reached 80 % alone"
    assert rows[0][5:] == (50.0, 60.0, 2)
    assert rows[2][5] is None, "alone"
    assert rows[1][4] == pytest.approx(10.0) and rows[2][4] is None


def test_an_empty_report_says_what_is_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    empty, full = report(since=200.0), report()
    assert ReportTable.from_json(empty.to_json()) == empty
    assert "when_empty" not in full.to_json()
    show(ReportTable.from_json(empty.to_json()))
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("Neighbours of programs, and what they cost")
    assert "programs with progress or output whose speed alone is known" in said


def test_records_of_another_time_are_left_out_and_other_groupings_refused() -> None:
    assert report(since=200.0).rows == ()
    assert len(report(since=50.0, until=150.0).rows) == 3
    with pytest.raises(BadInput, match="grouped by program, not by 'job'"):
        report(by="job")
