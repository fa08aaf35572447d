"""Dependencies: jobs that wait for others to end, named within one submission or by id.

Pure. Jobs are given by their position in a submission, so that names are resolved before any of them has an id.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

Ending = Literal["succeeded", "finished", "failed"]
"""How another job must end: ``finished`` is any end, ``failed`` excludes a cancellation."""
ENDINGS_AWAITED: Final[tuple[Ending, ...]] = ("succeeded", "finished", "failed")
DEPENDENCY: Final = "dependency"
"""Code of the reason of a job that waits for others."""
DEPENDENCIES_MOST: Final = 1000
"""Jobs that one job may wait for."""
_VERBS: Final[Mapping[Ending, str]] = {"succeeded": "succeed", "finished": "end", "failed": "fail"}
_ID = re.compile(r"job-[1-9][0-9]{0,17}")

Upstream = int | str
"""A job that another one waits for: its position in the same submission, or the id of an earlier job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """A job that another one waits for."""

    job_id: str
    ending: Ending
    name: str = ""
    """The job's name, for messages."""

    @property
    def words(self) -> str:
        """The dependency as text: ``job-3 prepare to succeed``."""
        return f"{shown(self.job_id, self.name)} to {_VERBS[self.ending]}"


class DependencyError(ValueError):
    """A dependency that cannot be; the message says why."""

    def __init__(self, position: int, key: str, text: str) -> None:
        """``position``: of the job in its submission; ``key``: what it calls the other job."""
        super().__init__(text)
        self.position = position
        self.key = key


def shown(job_id: str, name: str) -> str:
    """Return a job as messages name it."""
    return f"{job_id} {name}".rstrip()


def holds(ending: Ending, state: str) -> bool:
    """Return whether a job that ended in ``state`` ended as awaited."""
    return ending == "finished" or ending == state


def wait_words(waits_for: Sequence[Dependency]) -> str:
    """Return why a job waits, in one sentence."""
    others = len(waits_for) - 1
    more = f" and for {others} more job{'s' if others > 1 else ''}" if others else ""
    return f"waits for {waits_for[0].words}{more}"


def resolve_names(names: Sequence[str], after: Sequence[Mapping[str, Ending]]) -> list[dict[Upstream, Ending]]:
    """Return what each job of a submission waits for. ``after``: for each, the endings by name or id.

    Raises DependencyError: a name is unknown or not unique, or jobs wait for each other.
    """
    positions: dict[str, list[int]] = {}
    for position, name in enumerate(names):
        positions.setdefault(name, []).append(position)
    resolved: list[dict[Upstream, Ending]] = []
    for position, wanted in enumerate(after):
        found: dict[Upstream, Ending] = {}
        for key, ending in wanted.items():
            same = positions.get(key, [])
            if len(same) > 1:
                raise DependencyError(position, key, f"{len(same)} jobs are named {key}; give each a name of its own")
            if not same and not _ID.fullmatch(key):
                others = ", ".join(sorted(positions.keys() - {names[position]})[:5])
                hint = f"the others of this submission are {others}" if others else "no other job is submitted with it"
                raise DependencyError(position, key, f"is no job of this submission and no id such as job-7; {hint}")
            found[same[0] if same else key] = ending
        resolved.append(found)
    _refuse_cycle(names, resolved)
    return resolved


def _refuse_cycle(names: Sequence[str], resolved: Sequence[Mapping[Upstream, Ending]]) -> None:
    waits = [{each for each in found if isinstance(each, int)} for found in resolved]
    downstream: list[list[int]] = [[] for _ in names]
    for position, found in enumerate(waits):
        for each in found:
            downstream[each].append(position)
    free = [position for position, found in enumerate(waits) if not found]
    while free:
        ended = free.pop()
        for each in downstream[ended]:
            waits[each].discard(ended)
            if not waits[each]:
                free.append(each)
    stuck = next((position for position, found in enumerate(waits) if found), None)
    if stuck is None:
        return
    path = [stuck]
    while (following := min(waits[path[-1]])) not in path:
        path.append(following)
    cycle = [*path[path.index(following) :], following]
    text = " -> ".join(names[each] for each in cycle[:6]) + (" -> ..." if len(cycle) > 6 else "")
    raise DependencyError(cycle[0], names[cycle[1]], f"is a cycle: {text}; none of these jobs could ever start")
