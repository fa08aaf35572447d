"""The cost and savings reports on small logs with obvious results."""

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from hcloud.core.errors import BadInput
from hcloud.report import ReportTable, build_report
from hcloud.report.grouping import age_of
from tests.report.log_builder import HOUR, LogBuilder


def rows(table: ReportTable, *names: str) -> dict[Any, tuple[Any, ...]]:
    """The given columns of each row, by the row's first column."""
    index = {column.name: place for place, column in enumerate(table.columns)}
    picked = {row[0]: tuple(row[index[name]] for name in names) for row in table.rows}
    if table.total is not None:
        picked["total"] = tuple(table.total[index[name]] for name in names)
    return picked


def report(log: LogBuilder, name: str = "cost", now: float = 4 * HOUR, **how: Any) -> ReportTable:
    return build_report(name, iter(log.events), now, **how)


@pytest.fixture
def log() -> LogBuilder:
    """One machine of $1/h for 4 h: boots 1 h, job 1 holds half of it for 1 h, job 2 all of it for 1 h, idle for 1 h."""
    log = LogBuilder()
    log.submit(1, user="ann", tags={"team": "x"})
    log.submit(2, user="bob")
    log.machine(1, launched_at=0.0, ready_at=HOUR)
    log.start(1, 1, HOUR)
    log.end(1, 1, 2 * HOUR)
    log.finish(1, 2 * HOUR)
    log.start(2, 1, 2 * HOUR, vcpus=0.1, memory_mib=4096)
    log.end(2, 1, 3 * HOUR)
    log.finish(2, 3 * HOUR)
    log.terminate(1, 4 * HOUR)
    return log


def test_cost_by_job_has_rows_for_idle_and_boot_time(log: LogBuilder) -> None:
    table = report(log, by="job")
    assert [row[:3] for row in table.rows] == [
        ("job-2", "n2", "bob"),
        ("job-1", "n1", "ann"),
        ("(idle)", "", ""),
        ("(boot)", "", ""),
    ]
    assert rows(table, "cost_usd", "unit_h") == {
        "job-1": (0.5, 1.0),
        "job-2": (1.0, 1.0),
        "(idle)": (1.5, None),
        "(boot)": (1.0, None),
        "total": (4.0, 2.0),
    }


def test_cost_by_user_and_tag(log: LogBuilder) -> None:
    assert rows(report(log), "cost_usd", "share_pct")["ann"] == (0.5, 12.5)
    assert report(log).title == "Cost by user, up to 1970-01-01 04:00 UTC"
    by_tag = report(log, by="tag:team")
    assert by_tag.columns[0].name == "tag:team"
    assert rows(by_tag, "cost_usd") == {
        "x": (0.5,),
        "(no team)": (1.0,),
        "(idle)": (1.5,),
        "(boot)": (1.0,),
        "total": (4.0,),
    }


def test_cost_by_machines_has_idle_and_boot_in_columns(log: LogBuilder) -> None:
    names = ("machine_h", "jobs_usd", "idle_usd", "boot_usd", "cost_usd", "share_pct")
    whole = (4.0, 1.5, 1.5, 1.0, 4.0, 100.0)
    assert rows(report(log, by="pool"), *names)["mock/r-a/small"] == whole
    assert rows(report(log, by="market"), *names)["on_demand"] == whole
    assert rows(report(log, by="day"), *names)["1970-01-01"] == whole


def test_cost_by_day_is_cut_at_utc_midnight() -> None:
    log = LogBuilder()
    log.machine(1, launched_at=22 * HOUR, ready_at=22 * HOUR)
    table = report(log, by="day", now=49 * HOUR)
    assert rows(table, "cost_usd") == {
        "1970-01-01": (2.0,),
        "1970-01-02": (24.0,),
        "1970-01-03": (1.0,),
        "total": (27.0,),
    }


def test_days_are_those_of_the_readers_zone_also_when_clocks_change() -> None:
    log = LogBuilder()
    begin = datetime(2026, 10, 25, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()  # this day has 25 hours
    log.machine(1, begin - HOUR, begin - HOUR)
    log.terminate(1, begin + 26 * HOUR)
    berlin = report(log, now=begin + 30 * HOUR, by="day", zone="Europe/Berlin")
    assert {row[0]: row[1] for row in berlin.rows} == {"2026-10-24": 1.0, "2026-10-25": 25.0, "2026-10-26": 1.0}
    assert berlin.title.endswith("2026-10-26 05:00 Europe/Berlin")
    assert rows(berlin, "cost_usd")["total"] == rows(report(log, now=begin + 30 * HOUR), "cost_usd")["total"]


def test_an_unknown_zone_is_refused(log: LogBuilder) -> None:
    with pytest.raises(BadInput, match="there is no time zone 'Berlin'; one looks like Europe/Berlin"):
        report(log, by="day", zone="Berlin")


def test_idle_and_boot_cost_can_be_shared_among_those_who_held_the_machine(log: LogBuilder) -> None:
    shared = report(log, by="job", shares_idle=True)
    assert rows(shared, "held_usd", "idle_usd", "cost_usd") == {
        "job-1": (0.5, pytest.approx(2.5 / 3), pytest.approx(4 / 3)),
        "job-2": (1.0, pytest.approx(5 / 3), pytest.approx(8 / 3)),
        "total": (1.5, pytest.approx(2.5), pytest.approx(4.0)),
    }


def test_a_machine_that_nothing_held_is_shared_by_all_and_stays_apart_without_jobs(log: LogBuilder) -> None:
    log.machine(2, 0.0, 0.0, price=3.0)
    log.terminate(2, HOUR)
    shared = rows(report(log, shares_idle=True), "cost_usd")
    assert shared == {"ann": (pytest.approx(7 / 3),), "bob": (pytest.approx(14 / 3),), "total": (pytest.approx(7.0),)}
    alone = LogBuilder()
    alone.machine(1, 0.0, 0.0)
    assert rows(report(alone, shares_idle=True), "cost_usd") == {"(idle)": (4.0,), "total": (4.0,)}


def test_idle_cost_is_shared_among_jobs_only(log: LogBuilder) -> None:
    with pytest.raises(BadInput, match="group by job, task, user or tag:KEY, not by pool"):
        report(log, by="pool", shares_idle=True)
    with pytest.raises(BadInput, match="only the cost report shares idle cost"):
        report(log, "savings", shares_idle=True)


def test_live_machine_and_running_unit_count_up_to_now() -> None:
    log = LogBuilder()
    log.submit(1)
    log.machine(1, launched_at=0.0, ready_at=0.0)
    log.start(1, 1, HOUR)
    assert rows(report(log, now=3 * HOUR), "cost_usd") == {"ann": (1.0,), "(idle)": (2.0,), "total": (3.0,)}


def test_only_the_requested_period_is_charged(log: LogBuilder) -> None:
    assert rows(report(log, since=1.5 * HOUR, until=2.5 * HOUR), "cost_usd") == {
        "ann": (0.25,),
        "bob": (0.5,),
        "(idle)": (0.25,),
        "total": (1.0,),
    }
    assert report(log, since=10 * HOUR, now=11 * HOUR).rows == ()


def test_until_in_the_future_means_now(log: LogBuilder) -> None:
    assert report(log, until=99 * HOUR) == report(log)


def test_spot_price_applies_from_the_time_of_its_change() -> None:
    log = LogBuilder()
    log.submit(1)
    log.machine(1, launched_at=0.0, ready_at=0.0, market="spot", price=0.2, on_demand_usd_per_h=1.0)
    log.start(1, 1, 0.0, vcpus=2.0)
    log.price(1, HOUR, 0.4)
    log.price(1, 2 * HOUR, 0.1)
    log.end(1, 1, 3 * HOUR)
    log.terminate(1, 3 * HOUR)
    assert rows(report(log), "cost_usd")["ann"] == pytest.approx((0.7,))
    assert rows(report(log, "savings"), "cost_usd", "on_demand_usd", "saved_usd", "saved_pct")["spot"] == pytest.approx(
        (0.7, 3.0, 2.3, 100 * 2.3 / 3)
    )


def test_savings_can_be_shown_by_job(log: LogBuilder) -> None:
    assert rows(report(log, "savings", by="job"), "saved_usd", "on_demand_usd")["job-1"] == (0.0, 0.5)


def test_price_at_launch_replaces_the_offered_one() -> None:
    log = LogBuilder()
    log.request(1, 0.0, price=9.0)
    log.launch(1, 0.0, price=1.0)
    assert rows(report(log, by="pool"), "cost_usd")["total"] == (4.0,)


def test_short_lived_machine_costs_the_billing_minimum() -> None:
    log = LogBuilder()
    log.machine(1, launched_at=0.0, ready_at=10.0, billing_minimum_s=HOUR)
    log.terminate(1, 600.0)
    assert rows(report(log, by="pool"), "machine_h", "cost_usd")["total"] == (1.0, 1.0)


def test_machine_that_was_never_launched_costs_nothing() -> None:
    log = LogBuilder()
    log.request(1)
    log.terminate(1, 50.0, billed=False)
    assert report(log).rows == ()


def test_machine_that_was_never_ready_costs_boot_time_only() -> None:
    log = LogBuilder()
    log.request(1)
    log.launch(1, 0.0)
    log.terminate(1, HOUR)
    assert rows(report(log, by="pool"), "boot_usd", "cost_usd")["total"] == (1.0, 1.0)


def test_units_recorded_late_hold_their_machine_only_while_it_ran() -> None:
    """The daemon was down while machine and unit ended; the unit's end is recorded after the machine's."""
    log = LogBuilder()
    log.submit(1)
    log.machine(1, launched_at=0.0, ready_at=0.0)
    log.start(1, 1, HOUR)
    log.terminate(1, 2 * HOUR, recorded_at=3 * HOUR)
    log.end(1, 1, 3 * HOUR, cause="instance_lost")
    assert rows(report(log), "cost_usd") == {"ann": (0.5,), "(idle)": (1.5,), "total": (2.0,)}


def test_units_on_an_overcommitted_machine_share_its_cost() -> None:
    log = LogBuilder()
    log.submit(1, user="ann")
    log.submit(2, user="bob")
    log.machine(1, launched_at=0.0, ready_at=0.0)
    log.start(1, 1, 0.0, vcpus=2.0, memory_mib=1)
    log.start(2, 1, 0.0, vcpus=0.1, memory_mib=4096)
    assert rows(report(log, now=2 * HOUR), "cost_usd") == {"ann": (1.0,), "bob": (1.0,), "total": (2.0,)}


def test_job_without_its_submission_in_the_log_is_charged_to_its_user() -> None:
    log = LogBuilder()
    log.machine(1, launched_at=0.0, ready_at=0.0)
    log.start(7, 1, 0.0, vcpus=2.0)
    assert rows(report(log, now=HOUR, by="job"), "cost_usd")["job-7"] == (1.0,)


def test_prices_of_over_thirty_days_are_warned_of() -> None:
    log = LogBuilder()
    log.machine(1, launched_at=600.0, ready_at=600.0)
    (note,) = report(log, now=600.0 + 31 * 86_400.0).notes
    assert note.endswith("the newest is 31 days old (warning: over 30 days; update with `hcloud catalog refresh`)")
    assert "warning" not in report(log, now=600.0 + 29 * 86_400.0).notes[0]


def test_machine_without_its_request_in_the_log_is_noted_as_left_out() -> None:
    log = LogBuilder()
    log.launch(1, 0.0)
    assert report(log).notes[-1] == "1 machine left out: launched before the start of the log"


def test_age_of_prices_is_noted() -> None:
    log = LogBuilder()
    log.machine(1, launched_at=600.0, ready_at=600.0, priced_at=0.0)
    log.machine(2, launched_at=HOUR, ready_at=HOUR)
    log.price(2, 2 * HOUR, 0.5)
    (note,) = report(log, now=2.5 * HOUR).notes
    assert note == ("prices: read between 1970-01-01 00:00 and 1970-01-01 02:00 UTC; the newest is 30 minutes old")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-1.0, "0 seconds"), (1.9, "1 second"), (119.0, "119 seconds"), (120.0, "2 minutes"), (3 * HOUR, "3 hours")],
)
def test_ages_use_the_largest_unit_with_at_least_two(seconds: float, said: str) -> None:
    assert age_of(seconds) == said


def test_cost_of_profiling_is_noted(log: LogBuilder) -> None:
    assert "profiling" not in " ".join(report(log).notes)
    profiled = LogBuilder()
    profiled.submit(1, tags={"hcloud.profile": "job-9"})
    profiled.machine(1, launched_at=0.0, ready_at=0.0)
    profiled.start(1, 1, 0.0)
    profiled.end(1, 1, HOUR)
    profiled.terminate(1, HOUR)
    notes = " | ".join(report(profiled, by="pool").notes)
    assert "profiling: $0.5 of this was spent on profiling 1 job; --by tag:hcloud.profile" in notes
