"""What a report's rows stand for: jobs, users, values of a tag, what jobs ask for, pools, markets or days."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any

from hcloud.core.errors import BadInput
from hcloud.core.model import Event

DAY_S = 86400.0
ASKED_FOR = ("image", "framework", "checkpoint", "gpus")
"""Groupings by what jobs ask for."""
OF_JOBS = ("job", "task", "user", "tag", *ASKED_FOR)
OF_MACHINES = ("pool", "market", "day")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """The attributes of a job that groupings use."""

    id: str
    name: str = ""
    user: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    target_kind: str = ""
    """``batch``, ``service`` or ``best_effort``; empty if the log does not say."""
    array: str = ""
    """The array of which it is a task; empty: it is none."""
    task: int = 0
    """Id of the task in its array."""
    asked: dict[str, str] = field(default_factory=dict)
    """Of ASKED_FOR what it asks for, in words."""

    @property
    def label(self) -> str:
        """The id as users write it: of a task ``job-7[3]``."""
        return f"{self.array}[{self.task}]" if self.array else self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """What the rows of a report stand for."""

    kind: str
    """One of OF_JOBS or OF_MACHINES, or a grouping of one report only."""
    tag: str = ""
    """The tag's key, for kind ``tag``."""
    zone: str = "UTC"
    """The time zone of days."""

    @property
    def of_jobs(self) -> bool:
        """Whether a row stands for one or more jobs, not for machines."""
        return self.kind in OF_JOBS

    @property
    def text(self) -> str:
        """Return the grouping as in ``--by``."""
        return f"tag:{self.tag}" if self.kind == "tag" else self.kind

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the key columns, which ``job_key`` or the key of a machine fills."""
        if self.kind in ("job", "task"):
            return (self.kind, "name", "user")
        return (self.text,)

    def job_key(self, job: JobFacts) -> tuple[str, ...]:
        """Return the values of the key columns for a job; by job, tasks count to their array."""
        if self.kind in ("job", "task"):
            return (job.array or job.id if self.kind == "job" else job.label, job.name, job.user)
        if self.kind == "user":
            return (job.user,)
        found = job.asked.get(self.kind) if self.kind in ASKED_FOR else job.tags.get(self.tag)
        return (f"(no {self.tag or self.kind})" if found is None else found,)

    def day_of(self, at: float) -> str:
        """Return the date of a Unix time in the zone of the reader."""
        return datetime.fromtimestamp(at, zone_of(self.zone)).strftime("%Y-%m-%d")

    def days(self, since: float, until: float) -> Iterator[tuple[float, float]]:
        """Split a period at every midnight of the zone; yield start and end of each part."""
        zone = zone_of(self.zone)
        while since < until:
            day = datetime.fromtimestamp(since, zone).date() + timedelta(days=1)
            starts = [datetime(day.year, day.month, day.day, tzinfo=zone, fold=fold).timestamp() for fold in (0, 1)]
            midnight = next((at for at in starts if at > since), starts[1])  # clocks may be set back over midnight
            yield since, min(until, midnight)
            since = midnight

    def filler(self, text: str) -> tuple[str, ...]:
        """Return key columns for a row that stands for no job: ``text`` and empty values."""
        return (text, *("" for _ in self.columns[1:]))


def parse_grouping(by: str | None, default: str, further: tuple[str, ...] = (), zone: str = "UTC") -> Grouping:
    """Return the grouping named ``by``, or ``default`` without one; ``further``: groupings of this report only.

    ``zone``: the time zone of days.

    Raises:
        BadInput: unknown grouping; the message lists all and suggests the closest.
    """
    kind, colon, tag = (by or default).partition(":")
    known = OF_JOBS + OF_MACHINES + further
    if (kind in known and kind != "tag" and not colon) or (kind == "tag" and tag):
        return Grouping(kind=kind, tag=tag, zone=zone)
    near = difflib.get_close_matches(kind, known, n=1)
    suggestion = {"tag": "tag:KEY with the tag's name"}.get(near[0], near[0]) if near else None
    hint = f"; did you mean {suggestion}?" if suggestion else ""
    *names, last = ("job", "task", "user", "tag:KEY", *ASKED_FOR, *OF_MACHINES, *further)
    raise BadInput(f"a report is grouped by {', '.join(names)} or {last}, not by {by!r}{hint}")


def choose_grouping(by: str | None, default: str, among: tuple[str, ...], zone: str = "UTC") -> Grouping:
    """Return the grouping named ``by`` of a report with its own groupings (``among``). Raises BadInput."""
    kind = by or default
    if kind in among:
        return Grouping(kind=kind, zone=zone)
    near = difflib.get_close_matches(kind, among, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    known = " or ".join(filter(None, (", ".join(among[:-1]), among[-1])))
    raise BadInput(f"this report is grouped by {known}, not by {by!r}{hint}")


@lru_cache(maxsize=64)
def zone_of(name: str) -> tzinfo:
    """Return a time zone. Raises BadInput if there is none of that name."""
    from zoneinfo import ZoneInfo  # a few milliseconds, which most commands save

    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise BadInput(f"there is no time zone {name[:60]!r}; one looks like Europe/Berlin or UTC") from None


def minute_of(at: float, zone: str = "UTC") -> str:
    """Return the date and time of a Unix time in a zone, to the minute."""
    return datetime.fromtimestamp(at, zone_of(zone)).strftime("%Y-%m-%d %H:%M")


_AGES = ((2 * DAY_S, DAY_S, "day"), (2 * 3600.0, 3600.0, "hour"), (120.0, 60.0, "minute"), (0.0, 1.0, "second"))


def age_of(seconds: float) -> str:
    """Return an age in words, in the largest unit of which there are at least two: ``119 seconds``, ``2 minutes``."""
    for least_s, unit_s, name in _AGES:
        if seconds >= least_s:
            count = int(seconds // unit_s)
            return f"{count} {name}" if count == 1 else f"{count} {name}s"
    return "0 seconds"


def job_facts(event: Event) -> JobFacts:
    """Return what a JOB_SUBMITTED event says of a job or a task."""
    tags, task = event.fields.get("tags"), event.fields.get("task")
    return JobFacts(
        id=event.job_id or "",
        name=text(event, "name"),
        user=event.user or "",
        tags={str(key): str(value) for key, value in tags.items()} if isinstance(tags, dict) else {},
        target_kind=text(event, "target_kind"),
        array=text(event, "array"),
        task=task if isinstance(task, int) else 0,
        asked={each: text(event, each) for each in ASKED_FOR if each in event.fields},
    )


def number(event: Event, key: str, default: float = 0.0) -> float:
    """Return a numeric field of an event; ``default`` if it is missing or not a number."""
    value: Any = event.fields.get(key)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else default


def text(event: Event, key: str) -> str:
    """Return a text field of an event; empty if it is missing or not text."""
    value = event.fields.get(key)
    return value if isinstance(value, str) else ""
