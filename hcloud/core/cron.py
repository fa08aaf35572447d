"""When a schedule fires: cron expressions in a time zone, computed by APScheduler's ``CronTrigger``.

Differences from it, as cron has them: Sunday is 0 and 7; where both days of the month and of the week are named, either
will do; and a time of day that comes twice, when clocks are set back, counts once unless every hour is meant. A time of
day that does not exist, when clocks are set forward, counts as so long after midnight: 02:30 is then 03:30.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from apscheduler.triggers.cron import CronTrigger

NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
FIELDS: Final = ("minute", "hour", "day", "month", "day_of_week")
FORM: Final = "5 fields (minute hour day month weekday) such as '30 2 * * 1-5', or @hourly, @daily, @weekly, @monthly"
ENUMERATED_MOST: Final = 100_000
_WINDOWS_S: Final = (3600.0, 86_400.0, 32 * 86_400.0, 366 * 86_400.0)
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELD = re.compile(r"[0-9a-z*,/-]+")
_DAY_RANGE = re.compile(r"(?P<first>\*|[a-z]+|[0-9])(-(?P<last>[a-z]+|[0-9]))?(/(?P<step>[0-9]+))?")


def check_cron(cron: str, timezone: str) -> None:
    """Raise ValueError, with what would be right, if the expression or the time zone is wrong, or it never fires."""
    _triggers(cron, timezone)
    if next_fire_at(cron, timezone, 0.0) is None:
        raise ValueError(f"never fires: there is no such day ({cron!r})")


def next_fire_at(cron: str, timezone: str, after: float) -> float | None:
    """Return the first time after ``after`` (both Unix seconds) at which the schedule fires; None: it never does."""
    triggers, is_fixed_hour = _triggers(cron, timezone)
    at = int(after) + 1
    while True:
        now = datetime.fromtimestamp(at, UTC)
        found = [each for each in (trigger.get_next_fire_time(None, now) for trigger in triggers) if each is not None]
        if not found:
            return None
        first = min(found, key=datetime.timestamp)
        if not (is_fixed_hour and first.fold):
            return float(int(first.timestamp()))
        at = int(first.timestamp()) + 1


def last_fires(cron: str, timezone: str, first_at: float, until: float, most: int) -> list[float]:
    """Return the last ``most`` times from ``first_at``, which is one, up to ``until``, in order.

    A schedule that fires each minute may have been due a million times: only as far back as needed is looked.
    """
    for window_s in (*_WINDOWS_S, until - first_at + 1.0):
        since = max(first_at, until - window_s)
        found = list[float]()
        at = next_fire_at(cron, timezone, since - 1.0)
        while at is not None and at <= until and len(found) < ENUMERATED_MOST:
            found.append(at)
            at = next_fire_at(cron, timezone, at)
        if len(found) >= most or since == first_at:
            return found[-most:]
    return []


@lru_cache(maxsize=1024)
def _triggers(cron: str, timezone: str) -> tuple[Sequence[CronTrigger], bool]:
    """Return the triggers of which any fires, and whether the hours are named."""
    from zoneinfo import ZoneInfo  # these imports take 50 ms, which most commands save

    from apscheduler.triggers.cron import CronTrigger

    fields = dict(zip(FIELDS, _fields(cron), strict=True))
    try:
        zone = ZoneInfo(timezone)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"there is no time zone {timezone!r}; one looks like Europe/Berlin or UTC") from None
    chosen: list[dict[str, Any]] = [fields]
    if not fields["day"].startswith("*") and not _cron_weekday(cron).startswith("*"):
        chosen = [{**fields, "day_of_week": "*"}, {**fields, "day": "*"}]
    for name, text in fields.items():
        _check_field(name, text, zone)
    triggers = tuple(CronTrigger(timezone=zone, second="0", **each) for each in chosen)
    return triggers, not fields["hour"].startswith("*")


def _check_field(name: str, text: str, zone: Any) -> None:
    from apscheduler.triggers.cron import CronTrigger

    try:
        CronTrigger(timezone=zone, **{name: text})
    except (ValueError, TypeError) as error:
        why = str(error).removeprefix(f"Error validating expression {text!r}: ")
        raise ValueError(f"has {text!r} as {name.replace('_', ' ')}, which is not valid: {why}") from None


def _split(cron: str) -> list[str]:
    return NICKNAMES.get(cron.strip().lower(), cron).lower().replace("?", "*").split()


def _cron_weekday(cron: str) -> str:
    return _split(cron)[4]


def _fields(cron: str) -> list[str]:
    parts = _split(cron)
    if len(parts) != len(FIELDS) or not all(_FIELD.fullmatch(each) for each in parts):
        raise ValueError(f"must be {FORM}, not {cron[:60]!r}")
    return [*parts[:4], _weekdays(parts[4])]


def _weekdays(text: str) -> str:
    """Return days of the week as APScheduler names them; ``*`` stays."""
    if text == "*":
        return text
    days: set[int] = set()
    for part in text.split(","):
        found = _DAY_RANGE.fullmatch(part)
        if found is None:
            raise ValueError(f"has {text!r} as day of week; days are 0 to 7 (Sunday is both) or mon, tue, ..., sun")
        first, last = (0, 6) if found["first"] == "*" else (_day(found["first"]), _day(found["last"] or found["first"]))
        if found["step"] and not found["last"] and found["first"] != "*":
            last = 6
        if last < first:  # fri-mon, and 5-0
            last += 7
        step = int(found["step"] or 1)
        if step < 1:
            raise ValueError(f"has a step of 0 in {text!r}; a step is at least 1")
        days |= {each % 7 for each in range(first, last + 1, step)}
    return ",".join(_DAYS[each] for each in sorted(days))


def _day(text: str) -> int:
    if text in _DAYS:
        return _DAYS.index(text)
    if not text.isdigit() or int(text) > 7:
        raise ValueError(f"has {text!r} as day of week; days are 0 to 7 (Sunday is both) or mon, tue, ..., sun")
    return int(text)
