"""A running job is in another phase if what it shows surely departs from what was expected of it."""

import pytest

from hcloud.classifier.phases import departures, describe_departures
from hcloud.core.estimates import Reading


def reading(question: str, value: float, width: float) -> Reading:
    low, high = max(0.0, value - width), min(100.0, value + width)
    return Reading(question=question, column="llc-capacity", value=value, low=low, high=high)


@pytest.mark.parametrize(
    ("question", "before", "now", "width", "departs"),
    [
        ("caused", 20.0, 40.0, 5.0, True),
        ("caused", 40.0, 20.0, 5.0, True),
        ("caused", 20.0, 40.0, 20.0, False),  # too uncertain
        ("caused", 50.0, 58.0, 1.0, False),  # sure, but less than a fifth
        ("caused", 1.0, 2.5, 0.1, False),  # more than a fifth, but of nothing
        ("tolerated", 60.0, 20.0, 10.0, True),
        ("tolerated", 20.0, 60.0, 10.0, False),  # it was not pressed so hard
    ],
)
def test_a_departure_is_sure_and_large(question: str, before: float, now: float, width: float, departs: bool) -> None:
    expected, found = reading(question, before, width), reading(question, now, width)
    assert departures([expected], [found]) == ((found,) if departs else ())


def test_what_was_not_expected_is_not_compared() -> None:
    assert departures([reading("tolerated", 60.0, 5.0)], [reading("caused", 5.0, 1.0)]) == ()


def test_a_departure_is_described_by_both_values() -> None:
    expected, found = reading("caused", 20.0, 5.0), reading("caused", 40.0, 5.0)
    assert describe_departures([expected], [found]) == "caused llc-capacity 20 before, 40 now"
