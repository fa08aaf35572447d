"""When schedules fire: cron's rules, also where clocks are set forward or back."""

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from hcloud.core.cron import check_cron, last_fires, next_fire_at
from hcloud.core.schedules import ALL_MOST, Recurrence, runs_due

BERLIN = "Europe/Berlin"


def at(text: str) -> float:
    """Return a time of UTC as Unix seconds."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def fires(cron: str, after: str, count: int, timezone: str = "UTC") -> list[str]:
    """Return the next times, in UTC."""
    found, moment = list[str](), at(after)
    for _ in range(count):
        coming = next_fire_at(cron, timezone, moment)
        if coming is None:
            return [*found, "never"]
        found.append(datetime.fromtimestamp(coming, UTC).strftime("%Y-%m-%d %H:%M"))
        moment = coming
    return found


@pytest.mark.parametrize(
    ("cron", "wanted"),
    [
        ("30 2 * * *", ["2026-11-28 02:30", "2026-11-29 02:30"]),
        ("*/20 * * * *", ["2026-11-28 00:20", "2026-11-28 00:40"]),
        ("@hourly", ["2026-11-28 01:00", "2026-11-28 02:00"]),
        ("@weekly", ["2026-11-29 00:00", "2026-12-06 00:00"]),  # Sundays
        ("0 0 * * 0", ["2026-11-29 00:00", "2026-12-06 00:00"]),
        ("0 0 * * 7", ["2026-11-29 00:00", "2026-12-06 00:00"]),
        ("0 0 * * MON-FRI", ["2026-11-30 00:00", "2026-12-01 00:00"]),
        ("0 0 * * 1-5", ["2026-11-30 00:00", "2026-12-01 00:00"]),
        ("0 0 * * 5-0", ["2026-11-29 00:00", "2026-12-04 00:00"]),
        ("0 0 * * fri-mon", ["2026-11-29 00:00", "2026-11-30 00:00"]),
        ("0 0 * * 1-5/2", ["2026-11-30 00:00", "2026-12-02 00:00"]),
        ("0 0 13 * 5", ["2026-12-04 00:00", "2026-12-11 00:00"]),  # the 13th, or a Friday
        ("0 0 1 */2 *", ["2027-01-01 00:00", "2027-03-01 00:00"]),
        ("0 0 29 feb ?", ["2028-02-29 00:00", "2032-02-29 00:00"]),
        ("0 9-11 * * *", ["2026-11-28 09:00", "2026-11-28 10:00"]),
    ],
)
def test_expressions_mean_what_cron_means(cron: str, wanted: Sequence[str]) -> None:
    assert fires(cron, "2026-11-28T00:00:00", 2) == wanted


def test_a_time_of_day_that_comes_twice_counts_once_and_one_that_is_left_out_counts_an_hour_later() -> None:
    # On 2026-10-25, 03:00 is set back to 02:00; on 2027-03-28, 02:00 is set forward to 03:00.
    assert fires("30 2 * * *", "2026-10-24T12:00:00", 2, BERLIN) == ["2026-10-25 00:30", "2026-10-26 01:30"]
    assert fires("30 2 * * *", "2027-03-27T12:00:00", 2, BERLIN) == ["2027-03-28 01:30", "2027-03-29 00:30"]


def test_every_hour_is_every_hour_on_the_days_of_23_and_of_25_hours() -> None:
    assert fires("0 * * * *", "2026-10-24T23:30:00", 4, BERLIN)[1:] == [
        "2026-10-25 01:00", "2026-10-25 02:00", "2026-10-25 03:00",
    ]  # fmt: skip
    assert fires("*/30 * * * *", "2027-03-28T00:15:00", 3, BERLIN) == [
        "2027-03-28 00:30", "2027-03-28 01:00", "2027-03-28 01:30",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cron", "timezone", "wanted"),
    [
        ("0 0 30 2 *", "UTC", "never fires: there is no such day"),
        ("* * * *", "UTC", "must be 5 fields (minute hour day month weekday) such as '30 2 * * 1-5'"),
        ("0 0 0 * * *", "UTC", "must be 5 fields"),
        ("60 * * * *", "UTC", "has '60' as minute, which is not valid: the last value (60) is"),
        ("0 24 * * *", "UTC", "has '24' as hour, which is not valid"),
        ("0 0 0 * *", "UTC", "has '0' as day, which is not valid"),
        ("0 0 * * 8", "UTC", "has '8' as day of week; days are 0 to 7"),
        ("0 0 * * monday", "UTC", "has 'monday' as day of week"),
        ("0 0 * * mon/0", "UTC", "has a step of 0"),
        ("*/0 * * * *", "UTC", "has '*/0' as minute"),
        ("0 0 last * *", "UTC", ""),
        ("@often", "UTC", "must be 5 fields"),
        ("0 0 * * * ; rm", "UTC", "must be 5 fields"),
        ("0 0 * * *", "Mars/Olympus", "there is no time zone 'Mars/Olympus'; one looks like Europe/Berlin or UTC"),
        ("0 0 * * *", "../../etc/passwd", "there is no time zone"),
        ("0 0 * * *", "", "there is no time zone"),
    ],
)
def test_what_is_wrong_is_refused_with_one_sentence(cron: str, timezone: str, wanted: str) -> None:
    if not wanted:
        check_cron(cron, timezone)
        return
    with pytest.raises(ValueError) as refused:
        check_cron(cron, timezone)
    assert wanted in str(refused.value) and "\n" not in str(refused.value)


def test_only_as_many_past_times_are_found_as_are_asked_for() -> None:
    first, now = at("2020-01-01T00:00:00"), at("2026-11-28T00:00:30")
    assert last_fires("* * * * *", "UTC", first, now, 2) == [at("2026-11-27T23:59:00"), at("2026-11-28T00:00:00")]
    assert last_fires("@yearly", "UTC", first, now, 100) == [at(f"{year}-01-01T00:00:00") for year in range(2020, 2027)]
    assert last_fires("@yearly", "UTC", first, first, 3) == [first]


@pytest.mark.parametrize(
    ("missed", "wanted"),
    [("skip", ([], 3)), ("once", (["02"], 2)), ("all", (["00", "01", "02"], 0))],
)
def test_runs_that_were_due_while_no_daemon_ran_are_left_out_or_made_up_for(
    missed: str, wanted: tuple[list[str], int]
) -> None:
    rule = Recurrence(cron="@hourly", missed=missed)  # type: ignore[arg-type]
    runs, left_out = runs_due(rule, at("2026-11-28T00:00:00"), at("2026-11-28T02:30:00"))
    assert ([datetime.fromtimestamp(each, UTC).strftime("%H") for each in runs], left_out) == wanted


def test_a_run_within_a_minute_is_on_time_whatever_is_missed() -> None:
    for missed in ("skip", "once"):
        rule = Recurrence(cron="@hourly", missed=missed)
        runs, left_out = runs_due(rule, at("2026-11-28T00:00:00"), at("2026-11-28T02:00:59"))
        assert (runs, left_out) == ([at("2026-11-28T02:00:00")], 2)
    rule = Recurrence(cron="* * * * *", missed="all")
    assert len(runs_due(rule, at("2026-01-01T00:00:00"), at("2026-11-28T02:00:59"))[0]) == ALL_MOST
