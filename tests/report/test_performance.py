"""Waiting, running, promises kept, and use of machines, from small histories whose answer is obvious."""

from typing import Any

import pytest

from hcloud.core.errors import BadInput
from hcloud.core.model import Event, EventKind
from hcloud.report import REPORT_NAMES, ReportTable, build_report, report_kinds
from hcloud.simulator.outcome import outcome_of
from tests.report.story import HOUR, Story
from tests.report.test_cost import rows


def performance(story: Story, now: float = 1000.0, **how: Any) -> ReportTable:
    return build_report("performance", iter(story.events), now, **how)


def utilisation(story: Story, now: float, **how: Any) -> ReportTable:
    return build_report("utilisation", iter(story.events), now, **how)


@pytest.fixture
def story() -> Story:
    """job-1 kept its deadline, job-2 missed it after a second attempt, job-3 was cancelled, job-4 waits, job-5 runs."""
    story = Story()
    story.machine(1, 0.0, 0.0)
    for number in range(1, 6):
        story.submit(number, at=10.0, user="bob" if number == 2 else "ann", target_kind="batch", deadline_at=110.0)
    story.start(1, 1, 20.0)
    story.end(1, 1, 50.0)
    story.finish(1, 51.0, deadline_at=110.0, target_met=True, run_s=30.0)
    story.start(2, 1, 60.0)
    story.end(2, 1, 70.0, cause="preempted")
    story.start(2, 1, 100.0, attempt=2)
    story.end(2, 1, 200.0, attempt=2)
    story.finish(2, 200.0, deadline_at=110.0, target_met=False, run_s=100.0)
    story.finish(3, 40.0, state="cancelled")
    story.state(4, 11.0, "queued")
    story.start(5, 1, 40.0)
    story.state(5, 40.0, "running")
    return story


def test_each_job_tells_how_it_fared(story: Story) -> None:
    table = performance(story, now=100.0, by="job")
    names = ("state", "queue_s", "run_s", "total_s", "attempts", "target_met_pct")
    assert rows(table, *names) == {
        "job-1": ("succeeded", 10.0, 30.0, 41.0, 1, 100.0),
        "job-2": ("submitted", 50.0, 0.0, 90.0, 2, None),
        "job-3": ("cancelled", 30.0, None, 30.0, 0, None),
        "job-4": ("queued", 90.0, None, 90.0, 0, None),
        "job-5": ("running", 30.0, 60.0, 90.0, 1, None),
    }
    later = rows(performance(story, by="job"), *names)
    assert later["job-2"] == ("succeeded", 50.0, 100.0, 190.0, 2, 0.0)
    assert later["job-5"][-1] == later["job-4"][-1] == 0.0, (
        "a live job past its deadline has broken its promise already"
    )
    assert table.rows[0][:4] == ("job-1", "n1", "ann", "within 100 s")


def test_groups_count_jobs_and_promises(story: Story) -> None:
    table = performance(story)
    names = ("jobs", "live", "succeeded", "failed", "cancelled", "with_target", "target_met_pct")
    assert rows(table, *names) == {
        "ann": (4, 2, 1, 0, 1, 3, pytest.approx(100 / 3)),
        "bob": (1, 0, 1, 0, 0, 1, 0.0),
        "total": (5, 2, 2, 0, 1, 4, 25.0),
    }
    assert rows(performance(story, by="pool"), "jobs") == {
        "mock/r-a/small": (3,),
        "(never started)": (2,),
        "total": (5,),
    }
    assert rows(performance(story, by="market"), "jobs")["on_demand"] == (3,)
    assert rows(performance(story, by="day"), "jobs") == {"1970-01-01": (3,), "(not ended)": (2,), "total": (5,)}


def test_profiling_runs_are_told_only_by_their_own_tag(story: Story) -> None:
    alone = performance(story, HOUR, by="user")
    story.submit(6, at=10.0, user="ann", tags={"hcloud.profile": "job-1"}, target_kind="batch")
    story.start(6, 1, 12.0)
    story.finish(6, 20.0, run_s=8.0)
    table = performance(story, HOUR, by="user")
    assert table.rows == alone.rows
    assert (set(table.notes) - set(alone.notes)) == {
        "profiling runs are left out; --by tag:hcloud.profile tells of them"
    }
    assert "job-6" not in rows(performance(story, HOUR, by="job"), "name")
    by_tag = performance(story, HOUR, by="tag:hcloud.profile")
    assert rows(by_tag, "jobs", "run_p50_s")["job-1"] == (1, 8.0)
    assert by_tag.notes == alone.notes


def test_percentiles_are_of_the_group() -> None:
    story = Story()
    story.machine(1, 0.0, 0.0)
    for number in range(1, 101):
        story.submit(number)
        story.start(number, 1, float(number))
        story.end(number, 1, float(number) + 5)
        story.finish(number, float(number) + 5, run_s=5.0)
    values = rows(performance(story), "queue_p50_s", "queue_p95_s", "run_p50_s", "run_p95_s")
    assert values["ann"] == values["total"] == (50.0, 95.0, 5.0, 5.0)


def test_window_takes_jobs_that_ended_in_it_and_those_that_live(story: Story) -> None:
    table = performance(story, by="job", since=45.0, until=150.0)
    assert [row[0] for row in table.rows] == ["job-1", "job-2", "job-4", "job-5"]


def test_service_is_judged_by_its_samples() -> None:
    story = Story()
    story.machine(1, 0.0, 0.0)
    story.submit(1, target_kind="service", requests_per_s=50.0, latency_ms=20.0, percentile=95.0)
    story.start(1, 1, 10.0)
    story.sample(1, 1, 20.0, latency_ms_p95=19.0, latency_ms_p99=99.0)
    story.sample(1, 1, 30.0, latency_ms_p95=21.0, latency_ms_p99=99.0)
    story.sample(1, 1, 40.0, latency_ms_p50=1.0, latency_ms_p99=20.0)  # p95 is not above p99
    story.sample(1, 1, 50.0, latency_ms_p50=1.0)  # says nothing of p95
    story.sample(1, 1, 60.0, cpu_s=1.0, latency_ms_pxx=3.0)
    (row,) = performance(story, by="job").rows
    assert row[3] == "50/s, p95 <= 20 ms"
    assert row[-1] == pytest.approx(100 * 2 / 3)
    assert performance(story, by="job", since=35.0).rows[0][-1] == 100.0


def test_service_that_was_down_between_attempts_kept_no_promise_meanwhile() -> None:
    story = Story()
    story.machine(1, 0.0, 0.0)
    story.submit(1, target_kind="service", requests_per_s=50.0, latency_ms=20.0, percentile=99.0)
    story.start(1, 1, 10.0)
    story.sample(1, 1, 20.0, latency_ms_p99=10.0)
    story.end(1, 1, 30.0, cause="exit_code")
    assert performance(story, by="job", until=50.0).rows[0][-1] == pytest.approx(100 * 20 / 40)  # still down
    story.start(1, 1, 60.0, attempt=2)
    story.sample(1, 1, 70.0, attempt=2, latency_ms_p99=10.0)
    assert performance(story, by="job", until=110.0).rows[0][-1] == pytest.approx(100 * 70 / 100)
    assert performance(story, by="job", since=50.0, until=110.0).rows[0][-1] == pytest.approx(100 * 50 / 60)
    story.end(1, 1, 110.0, attempt=2)
    story.finish(1, 200.0)
    assert performance(story, by="job", until=300.0).rows[0][-1] == pytest.approx(100 * 70 / 100)


@pytest.mark.parametrize("state", ["cancelled", "failed"])
@pytest.mark.parametrize(("cause", "met_pct"), [("preempted", 100 * 20 / 100), (None, 100.0)])
def test_service_that_was_lost_is_down_until_it_is_over_and_one_that_was_let_end_is_not(
    state: str, cause: str | None, met_pct: float
) -> None:
    story = Story()
    story.machine(1, 0.0, 0.0)
    story.submit(1, target_kind="service", requests_per_s=50.0, latency_ms=20.0, percentile=99.0)
    story.start(1, 1, 10.0)
    story.sample(1, 1, 20.0, latency_ms_p99=10.0)
    story.end(1, 1, 30.0, cause=cause)
    story.finish(1, 110.0, state=state)
    assert performance(story, by="job", until=300.0).rows[0][-1] == pytest.approx(met_pct)
    assert outcome_of("replayed", lambda: iter(story.events)).service_met_pct == pytest.approx(met_pct)


def test_service_that_failed_and_was_never_seen_to_serve_broke_its_promise() -> None:
    story = Story()
    story.submit(1, target_kind="service", requests_per_s=50.0, latency_ms=20.0, percentile=99.0)
    story.finish(1, 110.0, state="failed")
    assert performance(story, by="job", until=300.0).rows[0][-1] == 0.0


# --------------------------------------------------------------------------------------------------------- utilisation
@pytest.fixture
def half_used() -> Story:
    """Two vCPUs, 4 GiB for 4 h: boots 1 h; job-1 holds half of the vCPUs for 2 h, uses a quarter of what it holds."""
    story = Story()
    story.submit(1)
    story.machine(1, launched_at=0.0, ready_at=HOUR)
    story.start(1, 1, HOUR, vcpus=1.0, memory_mib=1024)
    story.sample(1, 1, 2 * HOUR, cpu_s=HOUR / 8)
    story.end(1, 1, 3 * HOUR, cpu_s=HOUR / 2)
    story.terminate(1, 4 * HOUR)
    return story


def test_utilisation_of_machines(half_used: Story) -> None:
    table = utilisation(half_used, 5 * HOUR)
    assert table.rows == (("mock/r-a/small", 4.0, 25.0, 50.0, 25.0, 25.0, 12.5, 6.25),)
    assert table.total == ("total", 4.0, 25.0, 50.0, 25.0, 25.0, 12.5, 6.25)


def test_utilisation_of_what_jobs_asked_for(half_used: Story) -> None:
    assert rows(utilisation(half_used, 5 * HOUR, by="job"), "unit_h", "held_vcpu_h", "used_cpu_h", "used_pct") == {
        "job-1": (2.0, 2.0, 0.5, 25.0),
        "total": (2.0, 2.0, 0.5, 25.0),
    }


def test_cpu_time_is_counted_where_it_was_used(half_used: Story) -> None:
    """Half of the first interval lies in the window, and all of the second."""
    table = utilisation(half_used, 5 * HOUR, by="user", since=1.5 * HOUR)
    assert rows(table, "used_cpu_h", "held_vcpu_h")["ann"] == pytest.approx((1 / 16 + 3 / 8, 1.5))


def test_unmeasured_units_are_told_of() -> None:
    story = Story()
    story.submit(1)
    story.machine(1, 0.0, 0.0)
    story.start(1, 1, 0.0)
    story.end(1, 1, HOUR, cpu_s=None)
    assert "1 units ended without a measurement" in utilisation(story, HOUR).notes[-1]


def test_cpu_counter_is_read_on_for_a_live_unit() -> None:
    story = Story()
    story.submit(1)
    story.machine(1, 0.0, 0.0)
    story.start(1, 1, 0.0, vcpus=2.0)
    story.sample(1, 1, HOUR, cpu_s=HOUR)
    story.sample(1, 1, 1.5 * HOUR, cpu_s=10.0)  # a counter that fell back says nothing
    assert utilisation(story, 2 * HOUR).rows[0][-1] == 25.0


# --------------------------------------------------------------------------------------------------------- any report
@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"name": "costs"}, "no report 'costs'; there are cost, performance, savings, utilisation"),
        ({"by": "usr"}, "by job, user, tag:KEY, pool, market or day, not by 'usr'; did you mean user\\?"),
        ({"by": "tag"}, "did you mean tag:KEY with the tag's name\\?"),
        ({"by": "tag:"}, "not by 'tag:'"),
        ({"by": "job:3"}, "not by 'job:3'; did you mean job\\?"),
        ({"by": "\x00"}, "or day, not by '.x00'$"),
        ({"since": 2000.0}, "would begin .* after its end"),
    ],
)
def test_what_cannot_be_reported_is_said_in_one_sentence(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        build_report(asked.pop("name", "cost"), iter(()), 1000.0, **asked)


def test_report_goes_through_json_and_csv(story: Story) -> None:
    for name in REPORT_NAMES:
        own = {"accuracy": ("question", "day"), "decisions": ("job", "constraint", "day")}
        for by in own.get(name, ("job", "tag:cost_usd", "day")):
            table = build_report(name, iter(story.events), 1000.0, by=by)
            assert ReportTable.from_json(table.to_json()) == table
            header, *lines = table.to_csv().splitlines()
            assert header.split(",") == [column.name for column in table.columns]
            assert len({column.name for column in table.columns}) == len(table.columns)
            assert len(lines) == len(table.rows)


def test_events_that_are_not_needed_change_nothing(story: Story) -> None:
    noise = [Event(seq=1, at=1.0, kind=kind, fields={"cpu_s": 5}) for kind in EventKind]
    for name in REPORT_NAMES:
        other = [event for event in noise if event.kind not in report_kinds(name)]
        assert build_report(name, iter(other + story.events), 1000.0) == build_report(name, iter(story.events), 1000.0)
