"""The performance and utilisation reports on small logs with obvious results, and what all reports share."""

from dataclasses import replace
from typing import Any

import pytest

from hcloud.core.errors import BadInput
from hcloud.core.model import Checkpoint, Event, EventKind
from hcloud.report import REPORT_NAMES, ReportTable, build_report, report_kinds
from hcloud.simulator.outcome import outcome_of
from hcloud.store.event_fields import submitted_fields
from tests.planner.scenes import job, spec
from tests.report.log_builder import HOUR, LogBuilder
from tests.report.test_cost import rows


def performance(log: LogBuilder, now: float = 1000.0, **how: Any) -> ReportTable:
    return build_report("performance", iter(log.events), now, **how)


def utilisation(log: LogBuilder, now: float, **how: Any) -> ReportTable:
    return build_report("utilisation", iter(log.events), now, **how)


@pytest.fixture
def log() -> LogBuilder:
    """job-1 met its deadline, job-2 missed it on its second attempt, job-3 was cancelled, job-4 waits, job-5 runs."""
    log = LogBuilder()
    log.machine(1, 0.0, 0.0)
    for number in range(1, 6):
        log.submit(number, at=10.0, user="bob" if number == 2 else "ann", target_kind="batch", deadline_at=110.0)
    log.start(1, 1, 20.0)
    log.end(1, 1, 50.0)
    log.finish(1, 51.0, deadline_at=110.0, target_met=True, run_s=30.0)
    log.start(2, 1, 60.0)
    log.end(2, 1, 70.0, cause="preempted")
    log.start(2, 1, 100.0, attempt=2)
    log.end(2, 1, 200.0, attempt=2)
    log.finish(2, 200.0, deadline_at=110.0, target_met=False, run_s=100.0)
    log.finish(3, 40.0, state="cancelled")
    log.state(4, 11.0, "queued")
    log.start(5, 1, 40.0)
    log.state(5, 40.0, "running")
    return log


def test_jobs_are_grouped_by_what_they_ask_for() -> None:
    log, plain = LogBuilder(), spec()
    own = replace(plain, image="debian:12", framework="dask", checkpoint=Checkpoint(path="x", every_s=30.0))
    for number, asks in ((1, plain), (2, own), (3, own)):
        log.submit(number, **submitted_fields(job(number, asks=asks)))
    for by, value in (("image", "debian:12"), ("framework", "dask"), ("checkpoint", "every 30 s")):
        for report in ("performance", "cost", "savings"):
            table = build_report(report, iter(log.events), 1000.0, by=by)
            assert table.columns[0].name == by
        assert rows(performance(log, by=by), "jobs") == {value: (2,), f"(no {by})": (1,), "total": (3,)}


def test_performance_by_job(log: LogBuilder) -> None:
    table = performance(log, now=100.0, by="job")
    names = ("state", "queue_s", "run_s", "total_s", "attempts", "target_met_pct")
    assert rows(table, *names) == {
        "job-1": ("succeeded", 10.0, 30.0, 41.0, 1, 100.0),
        "job-2": ("submitted", 50.0, 0.0, 90.0, 2, None),
        "job-3": ("cancelled", 30.0, None, 30.0, 0, None),
        "job-4": ("queued", 90.0, None, 90.0, 0, None),
        "job-5": ("running", 30.0, 60.0, 90.0, 1, None),
    }
    later = rows(performance(log, by="job"), *names)
    assert later["job-2"] == ("succeeded", 50.0, 100.0, 190.0, 2, 0.0)
    assert later["job-5"][-1] == later["job-4"][-1] == 0.0, "a live job past its deadline has missed it"
    assert table.rows[0][:4] == ("job-1", "n1", "ann", "within 100 s")


def test_groups_count_jobs_and_targets(log: LogBuilder) -> None:
    table = performance(log)
    names = ("jobs", "live", "succeeded", "failed", "cancelled", "with_target", "target_met_pct")
    assert rows(table, *names) == {
        "ann": (4, 2, 1, 0, 1, 3, pytest.approx(100 / 3)),
        "bob": (1, 0, 1, 0, 0, 1, 0.0),
        "total": (5, 2, 2, 0, 1, 4, 25.0),
    }
    assert rows(performance(log, by="pool"), "jobs") == {
        "mock/r-a/small": (3,),
        "(never started)": (2,),
        "total": (5,),
    }
    assert rows(performance(log, by="market"), "jobs")["on_demand"] == (3,)
    assert rows(performance(log, by="day"), "jobs") == {"1970-01-01": (3,), "(not ended)": (2,), "total": (5,)}


def test_profiling_runs_are_reported_only_by_their_own_tag(log: LogBuilder) -> None:
    alone = performance(log, HOUR, by="user")
    log.submit(6, at=10.0, user="ann", tags={"hcloud.profile": "job-1"}, target_kind="batch")
    log.start(6, 1, 12.0)
    log.finish(6, 20.0, run_s=8.0)
    table = performance(log, HOUR, by="user")
    assert table.rows == alone.rows
    assert (set(table.notes) - set(alone.notes)) == {"profiling runs are left out; --by tag:hcloud.profile shows them"}
    assert "job-6" not in rows(performance(log, HOUR, by="job"), "name")
    by_tag = performance(log, HOUR, by="tag:hcloud.profile")
    assert rows(by_tag, "jobs", "run_p50_s")["job-1"] == (1, 8.0)
    assert by_tag.notes == alone.notes


def test_work_that_is_done_again_and_waits_for_other_jobs_are_reported() -> None:
    log = LogBuilder()
    log.machine(1, 0.0, 0.0)
    log.submit(1, at=0.0)
    for attempt, (start, end, restored) in enumerate(((10.0, 50.0, {}), (60.0, 90.0, {"restored_at": 40.0})), 1):
        for rank in (0, 1):
            log.start(1, 1, start + rank, attempt=attempt, rank=rank, **restored)
            log.end(1, 1, end - rank, attempt=attempt, rank=rank, cause="preempted")
    log.start(1, 1, 95.0, attempt=3, restored_at=40.0)  # the second one kept nothing
    log.finish(1, 100.0, run_s=5.0)
    log.submit(2, at=0.0, after=["job-1:succeeded"])
    log.submit(3, at=0.0, after=["job-1:succeeded"])
    log.state(3, 100.0, "queued", code="released")
    log.start(3, 1, 130.0)
    log.finish(3, 140.0, run_s=10.0)
    names = ("held_s", "queue_s", "redone_s")
    assert rows(performance(log, 200.0, by="job"), *names) == {
        "job-1": (0.0, 10.0, 10.0 + 30.0),
        "job-2": (200.0, 0.0, 0.0),
        "job-3": (100.0, 30.0, 0.0),
    }
    assert rows(performance(log, 200.0), "held_s", "redone_s")["ann"] == (300.0, 40.0)


def test_percentiles_are_computed_per_group() -> None:
    log = LogBuilder()
    log.machine(1, 0.0, 0.0)
    for number in range(1, 101):
        log.submit(number)
        log.start(number, 1, float(number))
        log.end(number, 1, float(number) + 5)
        log.finish(number, float(number) + 5, run_s=5.0)
    values = rows(performance(log), "queue_p50_s", "queue_p95_s", "run_p50_s", "run_p95_s")
    assert values["ann"] == values["total"] == (50.0, 95.0, 5.0, 5.0)


def test_period_includes_jobs_that_ended_in_it_and_live_ones(log: LogBuilder) -> None:
    table = performance(log, by="job", since=45.0, until=150.0)
    assert [row[0] for row in table.rows] == ["job-1", "job-2", "job-4", "job-5"]


def test_service_is_judged_by_its_samples() -> None:
    log = LogBuilder()
    log.machine(1, 0.0, 0.0)
    log.submit(1, target_kind="service", requests_per_s=50.0, latency_ms=20.0, percentile=95.0)
    log.start(1, 1, 10.0)
    log.sample(1, 1, 20.0, latency_ms_p95=19.0, latency_ms_p99=99.0)
    log.sample(1, 1, 30.0, latency_ms_p95=21.0, latency_ms_p99=99.0)
    log.sample(1, 1, 40.0, latency_ms_p50=1.0, latency_ms_p99=20.0)  # p95 is not above p99
    log.sample(1, 1, 50.0, latency_ms_p50=1.0)  # says nothing of p95
    log.sample(1, 1, 60.0, cpu_s=1.0, latency_ms_pxx=3.0)
    (row,) = performance(log, by="job").rows
    assert row[3] == "50/s, p95 <= 20 ms"
    assert row[-1] == pytest.approx(100 * 2 / 3)
    assert performance(log, by="job", since=35.0).rows[0][-1] == 100.0


def test_downtime_between_attempts_counts_as_missed() -> None:
    log = LogBuilder()
    log.machine(1, 0.0, 0.0)
    log.submit(1, target_kind="service", requests_per_s=50.0, latency_ms=20.0, percentile=99.0)
    log.start(1, 1, 10.0)
    log.sample(1, 1, 20.0, latency_ms_p99=10.0)
    log.end(1, 1, 30.0, cause="exit_code")
    assert performance(log, by="job", until=50.0).rows[0][-1] == pytest.approx(100 * 20 / 40)  # still down
    log.start(1, 1, 60.0, attempt=2)
    log.sample(1, 1, 70.0, attempt=2, latency_ms_p99=10.0)
    assert performance(log, by="job", until=110.0).rows[0][-1] == pytest.approx(100 * 70 / 100)
    assert performance(log, by="job", since=50.0, until=110.0).rows[0][-1] == pytest.approx(100 * 50 / 60)
    log.end(1, 1, 110.0, attempt=2)
    log.finish(1, 200.0)
    assert performance(log, by="job", until=300.0).rows[0][-1] == pytest.approx(100 * 70 / 100)


@pytest.mark.parametrize("state", ["cancelled", "failed"])
@pytest.mark.parametrize(("cause", "met_pct"), [("preempted", 100 * 20 / 100), (None, 100.0)])
def test_time_after_the_last_unit_is_downtime_only_if_it_was_lost(
    state: str, cause: str | None, met_pct: float
) -> None:
    log = LogBuilder()
    log.machine(1, 0.0, 0.0)
    log.submit(1, target_kind="service", requests_per_s=50.0, latency_ms=20.0, percentile=99.0)
    log.start(1, 1, 10.0)
    log.sample(1, 1, 20.0, latency_ms_p99=10.0)
    log.end(1, 1, 30.0, cause=cause)
    log.finish(1, 110.0, state=state)
    assert performance(log, by="job", until=300.0).rows[0][-1] == pytest.approx(met_pct)
    assert outcome_of("replayed", lambda: iter(log.events)).service_met_pct == pytest.approx(met_pct)


def test_failed_service_without_samples_missed_its_target() -> None:
    log = LogBuilder()
    log.submit(1, target_kind="service", requests_per_s=50.0, latency_ms=20.0, percentile=99.0)
    log.finish(1, 110.0, state="failed")
    assert performance(log, by="job", until=300.0).rows[0][-1] == 0.0


# --------------------------------------------------------------------------------------------------------- utilisation
@pytest.fixture
def half_used() -> LogBuilder:
    """Two vCPUs and 4 GiB for 4 h: 1 h boot, then job-1 holds half of the vCPUs for 2 h and uses a quarter of them."""
    log = LogBuilder()
    log.submit(1)
    log.machine(1, launched_at=0.0, ready_at=HOUR)
    log.start(1, 1, HOUR, vcpus=1.0, memory_mib=1024)
    log.sample(1, 1, 2 * HOUR, cpu_s=HOUR / 8)
    log.end(1, 1, 3 * HOUR, cpu_s=HOUR / 2)
    log.terminate(1, 4 * HOUR)
    return log


def test_utilisation_of_machines(half_used: LogBuilder) -> None:
    table = utilisation(half_used, 5 * HOUR)
    (*row, over_time), total = table.rows[0], table.total
    assert row == ["mock/r-a/small", 4.0, 25.0, 50.0, 25.0, 25.0, 12.5, 6.25]
    assert total == ("total", 4.0, 25.0, 50.0, 25.0, 25.0, 12.5, 6.25, None)
    # An hour of booting, two of which half is held, one that is idle.
    assert over_time == "▁" * 4 + "▅" * 8 + "▁" * 4
    assert "a character for 15 minutes, from 1970-01-01 00:00 to 1970-01-01 04:00 UTC" in table.notes[0]


def test_utilisation_by_job(half_used: LogBuilder) -> None:
    assert rows(utilisation(half_used, 5 * HOUR, by="job"), "unit_h", "held_vcpu_h", "used_cpu_h", "used_pct") == {
        "job-1": (2.0, 2.0, 0.5, 25.0),
        "total": (2.0, 2.0, 0.5, 25.0),
    }


def test_cpu_time_between_readings_is_split_at_the_period(half_used: LogBuilder) -> None:
    # Half of the first interval between readings lies in the period, and all of the second.
    table = utilisation(half_used, 5 * HOUR, by="user", since=1.5 * HOUR)
    assert rows(table, "used_cpu_h", "held_vcpu_h")["ann"] == pytest.approx((1 / 16 + 3 / 8, 1.5))


def test_units_without_cpu_readings_are_noted() -> None:
    log = LogBuilder()
    log.submit(1)
    log.machine(1, 0.0, 0.0)
    log.start(1, 1, 0.0)
    log.end(1, 1, HOUR, cpu_s=None)
    assert "1 unit ended without a CPU measurement" in utilisation(log, HOUR).notes[-1]


def test_cpu_time_of_a_running_unit_counts() -> None:
    log = LogBuilder()
    log.submit(1)
    log.machine(1, 0.0, 0.0)
    log.start(1, 1, 0.0, vcpus=2.0)
    log.sample(1, 1, HOUR, cpu_s=HOUR)
    log.sample(1, 1, 1.5 * HOUR, cpu_s=10.0)  # a counter that fell back says nothing
    assert utilisation(log, 2 * HOUR).rows[0][-2] == 25.0


# --------------------------------------------------------------------------------------------------------- any report
@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"name": "costs"}, "no report 'costs'; known reports: cost, performance, savings, utilisation"),
        (
            {"by": "usr"},
            "tag:KEY, image, framework, checkpoint, gpus, pool, market or day, not by 'usr'; did you mean user\\?",
        ),
        ({"by": "tag"}, "did you mean tag:KEY with the tag's name\\?"),
        ({"by": "tag:"}, "not by 'tag:'"),
        ({"by": "job:3"}, "not by 'job:3'; did you mean job\\?"),
        ({"by": "\x00"}, "or day, not by '.x00'$"),
        ({"since": 2000.0}, "the start of the report .* is after its end"),
    ],
)
def test_invalid_report_is_refused_in_one_sentence(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        build_report(asked.pop("name", "cost"), iter(()), 1000.0, **asked)


def test_report_survives_json_and_csv(log: LogBuilder) -> None:
    for name in REPORT_NAMES:
        own = {"accuracy": ("question", "day"), "decisions": ("job", "constraint", "day")}
        own |= {"run-times": ("history", "application", "day"), "right-sizing": ("program", "job"), "focus": ("day",)}
        own["neighbours"] = ("program",)
        for by in own.get(name, ("job", "tag:cost_usd", "day")):
            table = build_report(name, iter(log.events), 1000.0, by=by)
            assert ReportTable.from_json(table.to_json()) == table
            header, *lines = table.to_csv().splitlines()
            assert header.split(",") == [column.name for column in table.columns]
            assert len({column.name for column in table.columns}) == len(table.columns)
            assert len(lines) == len(table.rows)


def test_events_of_other_kinds_change_nothing(log: LogBuilder) -> None:
    noise = [Event(seq=1, at=1.0, kind=kind, fields={"cpu_s": 5}) for kind in EventKind]
    for name in REPORT_NAMES:
        other = [event for event in noise if event.kind not in report_kinds(name)]
        assert build_report(name, iter(other + log.events), 1000.0) == build_report(name, iter(log.events), 1000.0)
