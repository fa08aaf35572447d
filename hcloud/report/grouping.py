"""What a report's rows stand for: jobs, users, values of a tag, pools, markets or days."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hcloud.core.errors import BadInput
from hcloud.core.model import Event

DAY_S = 86400.0
OF_JOBS = ("job", "user", "tag")
OF_MACHINES = ("pool", "market", "day")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """What groupings need to know of a job."""

    id: str
    name: str = ""
    user: str = ""
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """``kind`` is one of OF_JOBS or OF_MACHINES; ``tag`` is the key for kind ``tag``."""

    kind: str
    tag: str = ""

    @property
    def of_jobs(self) -> bool:
        """Whether rows are (sets of) jobs, not (sets of) machines."""
        return self.kind in OF_JOBS

    @property
    def text(self) -> str:
        """Return the grouping as it is asked for."""
        return f"tag:{self.tag}" if self.kind == "tag" else self.kind

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that ``job_key`` or a machine's key fills."""
        if self.kind == "job":
            return ("job", "name", "user")
        return (self.text,)

    def job_key(self, job: JobFacts) -> tuple[str, ...]:
        """Return what a job's row begins with."""
        if self.kind == "job":
            return (job.id, job.name, job.user)
        return (job.user,) if self.kind == "user" else (job.tags.get(self.tag, f"(no {self.tag})"),)

    def filler(self, text: str) -> tuple[str, ...]:
        """Return the beginning of a row that stands for no job."""
        return (text, *("" for _ in self.columns[1:]))


def parse_grouping(by: str | None, default: str) -> Grouping:
    """Return the grouping asked for.

    Raises:
        BadInput: there is no such grouping; the message names all and the nearest.
    """
    kind, colon, tag = (by or default).partition(":")
    if (kind in OF_JOBS + OF_MACHINES and kind != "tag" and not colon) or (kind == "tag" and tag):
        return Grouping(kind=kind, tag=tag)
    near = difflib.get_close_matches(kind, OF_JOBS + OF_MACHINES, n=1)
    meant = {"tag": "tag:KEY with the tag's name"}.get(near[0], near[0]) if near else None
    hint = f"did you mean {meant}?" if meant else ""
    raise BadInput(
        f"a report is grouped by job, user, tag:KEY, pool, market or day, not by {by!r}; {hint}".rstrip("; ")
    )


def choose_grouping(by: str | None, default: str, among: tuple[str, ...]) -> Grouping:
    """Return the grouping asked for, of a report that has its own. Raises BadInput, which names them."""
    kind = by or default
    if kind in among:
        return Grouping(kind=kind)
    near = difflib.get_close_matches(kind, among, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise BadInput(f"this report is grouped by {', '.join(among[:-1])} or {among[-1]}, not by {by!r}{hint}")


def day_of(at: float) -> str:
    """Return the UTC date of a Unix time."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def minute_of(at: float) -> str:
    """Return the UTC date and time of a Unix time, to the minute."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")


_AGES = ((2 * DAY_S, DAY_S, "day"), (2 * 3600.0, 3600.0, "hour"), (120.0, 60.0, "minute"), (0.0, 1.0, "second"))


def age_of(seconds: float) -> str:
    """Return how old something is, in the largest unit of which it is at least two, else in seconds."""
    for least_s, unit_s, name in _AGES:
        if seconds >= least_s:
            count = int(seconds // unit_s)
            return f"{count} {name}" if count == 1 else f"{count} {name}s"
    return "0 seconds"


def days(since: float, until: float) -> Iterator[tuple[float, float]]:
    """Cut a stretch of time at every UTC midnight."""
    while since < until:
        midnight = since - since % DAY_S + DAY_S
        yield since, min(until, midnight)
        since = midnight


def number(event: Event, key: str, default: float = 0.0) -> float:
    """Return a numeric field of an event; ``default`` where it is absent or no number."""
    value: Any = event.fields.get(key)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else default


def text(event: Event, key: str) -> str:
    """Return a text field of an event, empty where it is absent."""
    value = event.fields.get(key)
    return value if isinstance(value, str) else ""
