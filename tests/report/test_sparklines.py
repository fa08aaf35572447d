"""Shares over time as characters, in slots that grow with the period."""

import pytest

from hcloud.report.sparklines import LEVELS, SLOTS_MOST, SharesOverTime, sparkline

HOUR = 3600.0


def test_a_character_is_the_higher_the_larger_the_share_and_blank_without_one() -> None:
    assert sparkline([0.0, 0.13, 0.5, 0.99, 1.0, None]) == "▁▂▅██ "
    assert sparkline([at / len(LEVELS) for at in range(len(LEVELS))]) == LEVELS


@pytest.mark.parametrize("hours", [0.05, 1.0, 5.0, 1000.0])
def test_however_long_the_period_the_line_stays_short_and_keeps_its_shape(hours: float) -> None:
    over_time, end = SharesOverTime(), hours * HOUR
    pieces = [(end * at / 100, end * (at + 1) / 100) for at in range(100)]
    for since, until in reversed(pieces):  # stretches are settled in any order
        over_time.add(("a",), since, until, 0.0 if until <= end / 2 else 1.0)
    [shares] = over_time.shares().values()
    assert SLOTS_MOST / 2 <= len(shares) <= SLOTS_MOST
    assert shares[0] == 0.0 and shares[-1] == pytest.approx(1.0)
    assert sum(share for share in shares if share is not None) == pytest.approx(len(shares) / 2, abs=1.0)


def test_rows_stand_in_the_same_time() -> None:
    over_time = SharesOverTime()
    over_time.add(("early",), 0.0, 8 * HOUR, 1.0)
    over_time.add(("late",), 8 * HOUR, 16 * HOUR, 0.5)
    early, late = (sparkline(over_time.shares()[name,]) for name in ("early", "late"))
    assert (early, late) == ("█" * 8 + " " * 8, " " * 8 + "▅" * 8)
