"""Decide whether a running job has entered another phase: what it shows now departs from what was expected of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hcloud.classifier.needed_quality import SD_PER_95
from hcloud.core.estimates import Reading

DEPARTS = 0.2
"""A pressure in another phase differs by at least this share of the expected one (Quasar §4.4)."""
DEPARTS_MIN = 2.0
"""And by at least so many points of the scale (0..100)."""
DEVIATIONS = 3.09
"""And by so many standard deviations of both (one-sided confidence 0.999). At 2.33, 91 instead of 83 % of changes are
found, but 8.3 instead of 5.8 % of checks are mistaken (``make bench-phases``, seeds 4 to 15)."""


def departures(expected: Iterable[Reading], found: Iterable[Reading]) -> tuple[Reading, ...]:
    """Return the readings of ``found`` that surely differ from what was expected, each of one question and source.

    A source never presses harder than it was expected to be tolerated, so more tolerance than expected is not seen.
    """
    before = {(each.question, each.column): each for each in expected}
    pairs = ((before[key], each) for each in found if (key := (each.question, each.column)) in before)
    return tuple(now for was, now in pairs if _departs(was, now))


def _departs(was: Reading, now: Reading) -> bool:
    difference = now.value - was.value
    if was.question == "tolerated" and difference >= 0:
        return False
    toward = (
        (was.high - was.value, now.value - now.low) if difference > 0 else (was.value - was.low, now.high - now.value)
    )
    doubt = math.hypot(*toward) * SD_PER_95
    return abs(difference) >= max(DEPARTS_MIN, DEPARTS * was.value, DEVIATIONS * doubt)


def describe_departures(expected: Iterable[Reading], changed: Sequence[Reading]) -> str:
    """Return which pressures changed, as a phrase."""
    before = {(each.question, each.column): each for each in expected}
    return ", ".join(
        f"{each.question} {each.column} {before[each.question, each.column].value:.0f} before, {each.value:.0f} now"
        for each in changed
    )
