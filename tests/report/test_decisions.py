"""The decisions report: placements compared in hindsight with their alternatives."""

import pytest

from hcloud.api.operations import ReportName
from hcloud.core.errors import BadInput
from hcloud.core.model import EventKind
from hcloud.report import REPORT_NAMES, ReportTable, build_report
from tests.report.log_builder import LogBuilder

DAY = 86_400.0


def placed(log: LogBuilder, job: int, at: float, *candidates: str, attempt: int = 1, ranks: int = 1) -> None:
    held = [f"inst-1:{rank}:1.0:512" for rank in range(ranks)]
    log.add(
        EventKind.ATTEMPT_PLACED,
        at,
        job_id=f"job-{job}",
        user="ann",
        attempt=f"job-{job}.{attempt}",
        allocations=held,
        candidates=list(candidates),
    )


def measured(log: LogBuilder, job: int, at: float, column: str, value: float, application: str = "app") -> None:
    log.add(
        EventKind.PREDICTION,
        at,
        job_id=f"job-{job}",
        user="ann",
        application=application,
        question="run",
        instance_type=column,
        nodes=1,
        vcpus=1.0,
        predicted=1.0,
        low=1.0,
        high=1.0,
        measured=value,
    )


@pytest.fixture
def log() -> LogBuilder:
    """Four jobs, the first two of the same program.

    job-1 ran an hour on a small machine, half as fast as predicted, past its deadline. job-2 ran on a large machine,
    five times as fast. The performance of job-3 is unknown. job-4 is a profiling run.
    """
    log = LogBuilder()
    for job in (1, 2, 3):
        log.submit(job, 0.0, **({"deadline_at": 3000.0} if job == 1 else {}))
    placed(
        log,
        1,
        0.0,
        "mock/small|0.1|1.0|0.9|1.1|",
        "mock/large|0.4|3.0|2.0|4.0|no room",
        "mock/new|0.05|0.5|0.4|0.6|would have to boot, 30 s",
    )
    placed(log, 2, 0.0, "mock/large|0.4|3.0|2.0|4.0|", "mock/small|0.1|1.0|0.9|1.1|ranked after")
    placed(log, 3, 0.0, "mock/small|0.1||||")
    for job in (1, 2, 3):
        log.start(job, 1, 0.0)
    measured(log, 2, 720.0, "mock/large", 2.5)
    log.finish(2, 720.0, run_s=720.0)
    measured(log, 1, 3600.0, "mock/small", 0.5)
    log.finish(1, 3600.0, run_s=3600.0)
    log.finish(3, DAY + 10.0, run_s=10.0)
    log.submit(4, DAY, tags={"hcloud.profile": "job-3"})
    placed(log, 4, DAY, "mock/small|0.1||||")
    log.finish(4, DAY + 10.0, run_s=10.0)
    return log


def report(log: LogBuilder, by: str | None = None, **span: float) -> ReportTable:
    return build_report("decisions", iter(log.events), 3 * DAY, by=by, **span)


def test_regret_uses_later_measurements(log: LogBuilder) -> None:
    first, second = (dict(zip((c.name for c in report(log).columns), row, strict=True)) for row in report(log).rows)
    assert (first["taken"], first["best"], first["why_not"]) == ("mock/small", "mock/large", "no room")
    assert first["best_run_s"] == pytest.approx(3600 * 0.5 / 2.5)  # as measured there for job-2, not as predicted
    assert first["regret_s"] == pytest.approx(3600 - 720)
    assert first["regret_usd"] == pytest.approx(0.1 - 0.4 * 720 / 3600)
    assert first["target"] == "missed; the best keeps it"
    assert (second["best"], second["regret_usd"], second["target"]) == ("mock/large", 0.0, "")


def test_prediction_is_scaled_by_the_error_on_the_chosen_type(log: LogBuilder) -> None:
    log.events = [e for e in log.events if e.job_id != "job-2"]
    row = dict(zip((c.name for c in report(log).columns), report(log).rows[0], strict=True))
    assert row["best_run_s"] == pytest.approx(3600 * 0.5 / 1.5)


def test_jobs_are_summed_and_unknown_ones_are_noted(log: LogBuilder) -> None:
    table = report(log, "constraint")
    assert [row[0] for row in table.rows] == ["(best taken)", "no room"]
    assert table.total is not None
    assert table.total[:4] == ("total", 2, 1, 1)
    assert table.total[5] == pytest.approx(0.02)
    assert "1 job left out: performance unknown" in table.notes
    assert [row[0] for row in report(log, "type").rows] == ["mock/large", "mock/small"]
    assert [row[0] for row in report(log, "user").rows] == ["ann"]
    assert [row[0] for row in report(log, "day").rows] == ["1970-01-01"]


def test_regret_of_waiting_is_the_wait_less_what_the_job_would_have_run_longer_elsewhere() -> None:
    waits = LogBuilder()
    for job, held_s, quality in ((1, 100.0, 0.5), (2, 30.0, 0.9), (3, 0.0, None)):
        waits.submit(job, 0.0)
        if quality is not None:
            fields = {"from": "queued", "to": "queued", "code": "holds_out", "quality_there": quality}
            waits.add(EventKind.JOB_STATE, 10.0, job_id=f"job-{job}", user="ann", **fields)
        placed(waits, job, 10.0 + held_s, "mock/small|0.1|1.0|0.9|1.1|")
        waits.finish(job, 90.0 + held_s, run_s=80.0)
    found = report(waits)
    names = [column.name for column in found.columns]
    held = [(row[names.index("held_s")], row[names.index("wait_regret_s")]) for row in found.rows]
    # It would have run 80 s longer at half the quality, 8.9 s longer at 90 %.
    assert held == [(100.0, pytest.approx(20.0)), (30.0, pytest.approx(30 - 80 / 9)), (0.0, 0.0)]
    total = dict(zip((c.name for c in report(waits, "user").columns), report(waits, "user").total or (), strict=True))
    assert (total["held"], total["held_s"]) == (2, 130.0)
    assert total["wait_regret_s"] == pytest.approx(20.0 + 30 - 80 / 9)


def test_only_the_last_attempt_and_jobs_of_the_period_count(log: LogBuilder) -> None:
    assert [row[0] for row in report(log, since=1000.0).rows] == ["job-1"]
    again = LogBuilder()
    again.submit(1)
    placed(again, 1, 0.0, "mock/small|0.1|1.0|0.9|1.1|", "mock/large|0.4|9.0|8.0|10|no room")
    placed(again, 1, 50.0, "mock/large|0.4|9.0|8.0|10|", attempt=2)
    again.start(1, 1, 50.0, attempt=2)
    again.finish(1, 60.0, run_s=10.0)
    [row] = report(again).rows
    assert (row[3], row[6]) == ("mock/large", "mock/large")


def test_rank_that_was_placed_again_is_charged_once() -> None:
    log = LogBuilder()
    log.submit(1, 0.0)
    placed(log, 1, 0.0, "mock/small|0.1|1.0|0.9|1.1|", ranks=2)
    placed(log, 1, 60.0, "mock/small|0.1|1.0|0.9|1.1|")  # rank 0 again, elsewhere
    log.finish(1, 3600.0, run_s=3600.0)
    found = report(log)
    cost = [column.name for column in found.columns].index("cost_usd")
    assert [row[cost] for row in found.rows] == [pytest.approx(0.2)]


def test_other_groupings_are_refused() -> None:
    with pytest.raises(BadInput, match="job, user, type, constraint or day, not by 'pool'"):
        report(LogBuilder(), "pool")
    assert report(LogBuilder()).total is None
    table = report(LogBuilder())
    assert ReportTable.from_json(table.to_json()) == table
    assert table.to_csv().startswith("job,name,user,taken,run_s")


def test_every_report_is_available_over_the_api() -> None:
    assert tuple(ReportName) == REPORT_NAMES


def test_markets_of_a_type_are_candidates_of_their_own_with_shared_measurements() -> None:
    log = LogBuilder()
    log.submit(1, 0.0)
    other = "mock/small spot|0.03|1.0|0.9|1.1|would have to boot, 30 s"
    placed(log, 1, 0.0, "mock/small on_demand|0.1|1.0|0.9|1.1|", other)
    log.start(1, 1, 0.0)
    measured(log, 1, 3600.0, "mock/small", 0.5)
    log.finish(1, 3600.0, run_s=3600.0)
    row = dict(zip((c.name for c in report(log).columns), report(log).rows[0], strict=True))
    assert (row["taken"], row["best"]) == ("mock/small on_demand", "mock/small spot")
    assert (row["best_run_s"], row["regret_usd"]) == (3600.0, pytest.approx(0.07))
    assert [each[0] for each in report(log, "type").rows] == ["mock/small"]
