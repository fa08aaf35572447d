"""Cost and savings from small histories whose answer is obvious, and from random ones whose total is."""

from typing import Any

import pytest

from hcloud.report import ReportTable, build_report
from hcloud.report.grouping import age_of
from tests.report.story import HOUR, Story


def rows(table: ReportTable, *names: str) -> dict[Any, tuple[Any, ...]]:
    """Rows by their first column, reduced to the columns asked for."""
    index = {column.name: place for place, column in enumerate(table.columns)}
    picked = {row[0]: tuple(row[index[name]] for name in names) for row in table.rows}
    if table.total is not None:
        picked["total"] = tuple(table.total[index[name]] for name in names)
    return picked


def report(story: Story, name: str = "cost", now: float = 4 * HOUR, **how: Any) -> ReportTable:
    return build_report(name, iter(story.events), now, **how)


@pytest.fixture
def story() -> Story:
    """One machine of $1/h for 4 h: boots 1 h, job 1 holds half of it for 1 h, job 2 all of it for 1 h, idle for 1 h."""
    story = Story()
    story.submit(1, user="ann", tags={"team": "x"})
    story.submit(2, user="bob")
    story.machine(1, launched_at=0.0, ready_at=HOUR)
    story.start(1, 1, HOUR)
    story.end(1, 1, 2 * HOUR)
    story.finish(1, 2 * HOUR)
    story.start(2, 1, 2 * HOUR, vcpus=0.1, memory_mib=4096)
    story.end(2, 1, 3 * HOUR)
    story.finish(2, 3 * HOUR)
    story.terminate(1, 4 * HOUR)
    return story


def test_cost_by_job_shows_idle_and_boot_apart(story: Story) -> None:
    table = report(story, by="job")
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


def test_cost_by_user_and_tag(story: Story) -> None:
    assert rows(report(story), "cost_usd", "share_pct")["ann"] == (0.5, 12.5)
    assert report(story).title == "Cost by user, up to 1970-01-01 04:00 UTC"
    by_tag = report(story, by="tag:team")
    assert by_tag.columns[0].name == "tag:team"
    assert rows(by_tag, "cost_usd") == {
        "x": (0.5,),
        "(no team)": (1.0,),
        "(idle)": (1.5,),
        "(boot)": (1.0,),
        "total": (4.0,),
    }


def test_cost_by_machines_has_idle_and_boot_in_columns(story: Story) -> None:
    names = ("machine_h", "jobs_usd", "idle_usd", "boot_usd", "cost_usd", "share_pct")
    whole = (4.0, 1.5, 1.5, 1.0, 4.0, 100.0)
    assert rows(report(story, by="pool"), *names)["mock/r-a/small"] == whole
    assert rows(report(story, by="market"), *names)["on_demand"] == whole
    assert rows(report(story, by="day"), *names)["1970-01-01"] == whole


def test_cost_by_day_is_cut_at_utc_midnight() -> None:
    story = Story()
    story.machine(1, launched_at=22 * HOUR, ready_at=22 * HOUR)
    table = report(story, by="day", now=49 * HOUR)
    assert rows(table, "cost_usd") == {
        "1970-01-01": (2.0,),
        "1970-01-02": (24.0,),
        "1970-01-03": (1.0,),
        "total": (27.0,),
    }


def test_live_machine_and_running_unit_count_up_to_now() -> None:
    story = Story()
    story.submit(1)
    story.machine(1, launched_at=0.0, ready_at=0.0)
    story.start(1, 1, HOUR)
    assert rows(report(story, now=3 * HOUR), "cost_usd") == {"ann": (1.0,), "(idle)": (2.0,), "total": (3.0,)}


def test_window_counts_only_what_lies_in_it(story: Story) -> None:
    assert rows(report(story, since=1.5 * HOUR, until=2.5 * HOUR), "cost_usd") == {
        "ann": (0.25,),
        "bob": (0.5,),
        "(idle)": (0.25,),
        "total": (1.0,),
    }
    assert report(story, since=10 * HOUR, now=11 * HOUR).rows == ()


def test_until_in_the_future_means_now(story: Story) -> None:
    assert report(story, until=99 * HOUR) == report(story)


def test_spot_price_counts_from_when_it_changed() -> None:
    story = Story()
    story.submit(1)
    story.machine(1, launched_at=0.0, ready_at=0.0, market="spot", price=0.2, on_demand_usd_per_h=1.0)
    story.start(1, 1, 0.0, vcpus=2.0)
    story.price(1, HOUR, 0.4)
    story.price(1, 2 * HOUR, 0.1)
    story.end(1, 1, 3 * HOUR)
    story.terminate(1, 3 * HOUR)
    assert rows(report(story), "cost_usd")["ann"] == pytest.approx((0.7,))
    assert rows(report(story, "savings"), "cost_usd", "on_demand_usd", "saved_usd", "saved_pct")[
        "spot"
    ] == pytest.approx((0.7, 3.0, 2.3, 100 * 2.3 / 3))


def test_savings_can_be_shown_by_job(story: Story) -> None:
    assert rows(report(story, "savings", by="job"), "saved_usd", "on_demand_usd")["job-1"] == (0.0, 0.5)


def test_price_at_launch_replaces_the_offered_one() -> None:
    story = Story()
    story.request(1, 0.0, price=9.0)
    story.launch(1, 0.0, price=1.0)
    assert rows(report(story, by="pool"), "cost_usd")["total"] == (4.0,)


def test_short_life_costs_the_billing_minimum() -> None:
    story = Story()
    story.machine(1, launched_at=0.0, ready_at=10.0, billing_minimum_s=HOUR)
    story.terminate(1, 600.0)
    assert rows(report(story, by="pool"), "machine_h", "cost_usd")["total"] == (1.0, 1.0)


def test_machine_that_never_was_costs_nothing() -> None:
    story = Story()
    story.request(1)
    story.terminate(1, 50.0, billed=False)
    assert report(story).rows == ()


def test_machine_that_never_got_ready_is_all_boot() -> None:
    story = Story()
    story.request(1)
    story.launch(1, 0.0)
    story.terminate(1, HOUR)
    assert rows(report(story, by="pool"), "boot_usd", "cost_usd")["total"] == (1.0, 1.0)


def test_units_told_of_late_count_when_they_ran() -> None:
    """After the daemon was away, and after their machine was gone: no unit holds a machine longer than it lived."""
    story = Story()
    story.submit(1)
    story.machine(1, launched_at=0.0, ready_at=0.0)
    story.start(1, 1, HOUR)
    story.terminate(1, 2 * HOUR, told_at=3 * HOUR)
    story.end(1, 1, 3 * HOUR, cause="instance_lost")
    assert rows(report(story), "cost_usd") == {"ann": (0.5,), "(idle)": (1.5,), "total": (2.0,)}


def test_neighbours_share_a_machine_they_overfill() -> None:
    story = Story()
    story.submit(1, user="ann")
    story.submit(2, user="bob")
    story.machine(1, launched_at=0.0, ready_at=0.0)
    story.start(1, 1, 0.0, vcpus=2.0, memory_mib=1)
    story.start(2, 1, 0.0, vcpus=0.1, memory_mib=4096)
    assert rows(report(story, now=2 * HOUR), "cost_usd") == {"ann": (1.0,), "bob": (1.0,), "total": (2.0,)}


def test_job_whose_submission_is_forgotten_counts_for_its_user() -> None:
    story = Story()
    story.machine(1, launched_at=0.0, ready_at=0.0)
    story.start(7, 1, 0.0, vcpus=2.0)
    assert rows(report(story, now=HOUR, by="job"), "cost_usd")["job-7"] == (1.0,)


def test_machine_whose_request_is_forgotten_is_said_to_be_left_out() -> None:
    story = Story()
    story.launch(1, 0.0)
    assert "1 machines are left out" in report(story).notes[-1]


def test_age_of_prices_is_told() -> None:
    story = Story()
    story.machine(1, launched_at=600.0, ready_at=600.0, priced_at=0.0)
    story.machine(2, launched_at=HOUR, ready_at=HOUR)
    story.price(2, 2 * HOUR, 0.5)
    (note,) = report(story, now=2.5 * HOUR).notes
    assert note == (
        "these machines are counted at prices read between 1970-01-01 00:00 and 1970-01-01 02:00 UTC; "
        "the newest of these prices is 30 minutes old"
    )


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-1.0, "0 seconds"), (1.9, "1 second"), (119.0, "119 seconds"), (120.0, "2 minutes"), (3 * HOUR, "3 hours")],
)
def test_ages_are_told_in_units_of_which_there_are_several(seconds: float, said: str) -> None:
    assert age_of(seconds) == said


def test_what_profiling_cost_is_told_apart(story: Story) -> None:
    assert "profiling" not in " ".join(report(story).notes)
    profiled = Story()
    profiled.submit(1, tags={"hcloud.profile": "job-9"})
    profiled.machine(1, launched_at=0.0, ready_at=0.0)
    profiled.start(1, 1, 0.0)
    profiled.end(1, 1, HOUR)
    profiled.terminate(1, HOUR)
    notes = " | ".join(report(profiled, by="pool").notes)
    assert "profiling: $0.5 of this was spent on profiling 1 job(s); --by tag:hcloud.profile" in notes
