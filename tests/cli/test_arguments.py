"""Durations and moments on the command line."""

import pytest

from hcloud.cli.arguments import duration_s, moment_of
from hcloud.cli.history import back_s_of
from hcloud.cli.job_flags import mappings_of_jobs
from hcloud.core.errors import BadInput
from hcloud.core.units import parse_utc_s
from tests.cli.conftest import Shell

NOW = parse_utc_s("2026-11-25T00:00:00Z")
DAY_S = 86400.0


@pytest.mark.parametrize(
    ("given", "ago_s"),
    [
        ("600", 600.0),
        ("0.5", 0.5),
        ("1h30m", 5400.0),
        ("7d", 7 * DAY_S),
        ("99999", 99999.0),
        ("12345678", 12345678.0),  # no date
        ("2026-11-24", DAY_S),
        ("20261124", DAY_S),
        ("2026-11-24T12:00Z", DAY_S / 2),
        ("2026-11-24 12:00+00:00", DAY_S / 2),
    ],
)
def test_a_moment_is_so_long_ago_or_a_date_or_time(given: str, ago_s: float) -> None:
    assert moment_of(given, "--since")(NOW) == NOW - ago_s
    assert back_s_of(given, lambda: NOW) == ago_s


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("99999d", "--since '99999d': must be a duration between 0 and ten years"),
        ("1e12", "--since '1e12': must be a duration between 0 and ten years"),
        ("-5", "--since '-5': must be a duration between 0 and ten years"),
        ("2026", "--since 2026: is a year or so many seconds; write 2026-01-01 or 2026s"),
        ("soon", "--since 'soon': write a duration such as 7d, or a UTC date or time"),
        ("2026-11-24T12:00", "--since '2026-11-24T12:00': write a duration"),
        ("2026-13-01", "write a duration"),
        ("", "--since '': write a duration"),
    ],
)
def test_what_is_no_moment_is_told_in_one_sentence(given: str, says: str) -> None:
    with pytest.raises(BadInput) as raised:
        moment_of(given, "--since")
    assert says in str(raised.value)


@pytest.mark.parametrize("given", ["0", "2026-11-26"])
def test_the_past_has_a_length(given: str) -> None:
    with pytest.raises(BadInput, match="must be in the past"):
        back_s_of(given, lambda: NOW)


def test_bare_numbers_are_seconds_as_in_files() -> None:
    assert duration_s("600", "--deadline") == 600.0
    (made,) = mappings_of_jobs((), ("true",), {"within": "600", "max_runtime": "7200"})
    (same,) = mappings_of_jobs((), ("true",), {"within": "10m", "max_runtime": "2h"})
    assert made == same


def test_a_wrong_time_of_a_report_is_told_also_where_no_daemon_runs(lonely: Shell) -> None:
    assert "--until 'soon'" in lonely.run("report", "--until", "soon", exit_code=2)[1]


def test_dates_are_of_the_zone_unless_they_state_an_offset() -> None:
    assert moment_of("2026-11-21", "--since", "Europe/Berlin")(NOW) == moment_of("2026-11-20T23:00Z", "--since")(NOW)
    assert moment_of("2026-11-21T08:00Z", "--since", "Europe/Berlin")(NOW) == moment_of("2026-11-21T08:00Z", "-")(NOW)
    assert moment_of("7d", "--since", "Europe/Berlin")(NOW) == NOW - 7 * 86_400
    with pytest.raises(BadInput, match="no time zone 'Mars'"):
        moment_of("2026-11-21", "--since", "Mars")
