"""How often runs ended within the limits that were predicted for them."""

import numpy as np
import pytest

from hcloud.core.model import Event, EventKind
from hcloud.forecast.runtimes.features import RunFeatures
from hcloud.report import ReportTable, build_report

DAY_S = 86400.0


def log_of(run_times_s: list[float], user: str = "ann", *, stopped: bool = False) -> list[Event]:
    """Return the log of jobs of one program, one an hour, each submitted when the one before ended."""
    features = RunFeatures(user=user, application=f"{user}:x", size=1.0).to_fields()
    events = list[Event]()
    for number, run_s in enumerate(run_times_s, 1):
        job, at, fields = f"job-{number}", 3600.0 * number, {"features": features, "run_s": run_s, "stopped": stopped}
        kinds = (EventKind.JOB_SUBMITTED, EventKind.JOB_FINISHED)
        for kind in kinds:
            events.append(Event(seq=len(events) + 1, at=at, kind=kind, job_id=job, user=user, fields=fields))
    return events


def reported(events: list[Event], **asked: object) -> ReportTable:
    """Return the report up to the end of time."""
    return build_report("run-times", iter(events), 1e9, **asked)  # type: ignore[arg-type]


def test_limits_hold_as_often_as_they_promise_once_a_program_is_known() -> None:
    times_s = np.random.default_rng(3).lognormal(5.0, 0.8, 300).tolist()
    table = reported(log_of(times_s))
    assert [row[:2] for row in table.rows] == [
        ("none", 1), ("1 to 3 runs", 3), ("4 to 15 runs", 12), ("16 runs or more", 284),
    ]  # fmt: skip
    names = [column.name for column in table.columns]
    known = dict(zip(names, table.rows[-1], strict=True))
    for promised in (50, 80, 90, 95):
        assert known[f"within_{promised}_pct"] == pytest.approx(promised, abs=6.0)
    assert 40.0 < float(str(known["within_factor_2_pct"])) < 80.0
    assert table.total is not None and table.total[1] == 300


def test_a_run_is_judged_before_it_is_learnt() -> None:
    sudden = reported(log_of([60.0] * 30 + [60_000.0]), since=3600.0 * 31)
    [row] = sudden.rows
    assert row[:6] == ("16 runs or more", 1, 0.0, 0.0, 0.0, 0.0)


def test_stopped_runs_are_learnt_from_and_counted_apart() -> None:
    table = reported(log_of([100.0] * 4, stopped=True))
    assert (table.rows, table.total) == ((), None)
    assert any("4 stopped runs left out" in note for note in table.notes)


def test_rows_are_users_programs_or_days() -> None:
    events = log_of([100.0] * 30)
    assert [row[0] for row in reported(events, by="user").rows] == ["ann"]
    assert [row[0] for row in reported(events, by="application").rows] == ["ann:x"]
    assert [row[:2] for row in reported(events, by="day").rows] == [("1970-01-01", 23), ("1970-01-02", 7)]
