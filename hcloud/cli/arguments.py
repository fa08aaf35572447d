"""Durations and moments as arguments: bare numbers are seconds there, as in files."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime

from hcloud.core.errors import BadInput
from hcloud.core.units import DURATION_PATTERN, parse_duration_s, parse_number, parse_utc_s, shown

_DATE_IN_DIGITS = re.compile(r"(19|20)[0-9]{6}")
_YEAR = re.compile(r"(19|20)[0-9]{2}")


def seconds_or_text(given: str) -> float | str:
    """Return a bare number as seconds, and anything else as it is."""
    number = parse_number(given.strip())
    return given if number is None else number


def duration_s(given: str, option: str) -> float:
    """Return the seconds that a duration means.

    Raises:
        BadInput: it is none, or out of range.
    """
    try:
        return parse_duration_s(seconds_or_text(given))
    except ValueError as error:
        raise BadInput(f"{option} {shown(given)}: {error}") from error


def moment_of(given: str, option: str, zone: str = "UTC") -> Callable[[float], float]:
    """Return what, of the present Unix time, makes the one that ``7d`` or ``600`` (so long before) or a date or time
    in a time zone means.

    Raises:
        BadInput: it is none of these, out of range, or a number that could as well be a year; there is no such zone.
    """
    text = given.strip()
    if _YEAR.fullmatch(text):
        raise BadInput(f"{option} {text}: is a year or so many seconds; write {text}-01-01 or {text}s")
    if not (_DATE_IN_DIGITS.fullmatch(text) and _is_date(text)) and _is_duration(text):
        back_s = duration_s(text, option)
        return lambda now: now - back_s
    try:
        at = _in_zone_s(text, zone) if zone != "UTC" else None
        at = parse_utc_s(text if "T" in text or " " in text else f"{text}T00:00:00Z") if at is None else at
    except ValueError as error:
        raise BadInput(
            f"{option} {given!r}: write a duration such as 7d, or a UTC date or time such as 2026-11-21T08:00Z"
        ) from error
    return lambda now: at


def _in_zone_s(text: str, zone: str) -> float | None:
    """Return the Unix time of a date or time that names no offset, in a zone; None if it names one, or is none.

    Raises BadInput if there is no such zone.
    """
    from hcloud.report.grouping import zone_of

    found = zone_of(zone)
    try:
        stated = datetime.fromisoformat(text)
    except ValueError:
        return None
    return parse_utc_s(stated.replace(tzinfo=found).isoformat()) if stated.tzinfo is None else None


def _is_duration(text: str) -> bool:
    return re.match(DURATION_PATTERN, text) is not None or parse_number(text) is not None


def _is_date(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
