"""What tasks cost that ran in one unit: the unit's cost, shared by their run times."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hcloud.core.arrays import parse_ids
from hcloud.core.model import Event, EventKind, JobId
from hcloud.core.rows import number_of
from hcloud.core.task_runs import ends_of_text
from hcloud.report.grouping import text

if TYPE_CHECKING:
    from hcloud.report.cost import CostLine


@dataclass(slots=True)
class RunCosts:
    """The tasks of each unit with many, by the task that led it: the log has the unit as its."""

    _tasks: dict[JobId, list[tuple[str, float]]] = field(default_factory=dict)
    """By leading task: the label of each task of its unit, and how long it ran, in seconds."""
    _labels: dict[JobId, str] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        """Read what an event says of tasks that ended."""
        array, lead = event.job_id or "", text(event, "attempt").rpartition(".")[0]
        if event.kind is not EventKind.TASKS_ENDED or not array or not lead:
            return
        own = number_of(lead) - number_of(array) - 1
        for task_id, (position, lasted_s) in zip(_ids(text(event, "ids")), _ended(event), strict=False):
            label = f"{array}[{task_id}]"
            self._tasks.setdefault(lead, []).append((label, lasted_s))
            if position == own:
                self._labels[lead] = label

    def share(self, lines: MutableMapping[tuple[str, ...], CostLine]) -> None:
        """Divide the rows of leading tasks among the tasks of their units."""
        keys = {key[0]: key for key in lines}
        for lead, tasks in self._tasks.items():
            key = keys.get(self._labels.get(lead, ""))
            whole_s = sum(lasted_s for _, lasted_s in tasks)
            if key is None or whole_s <= 0.0:
                continue
            whole = lines.pop(key)
            for label, lasted_s in tasks:
                row = (label, *key[1:])
                part = whole.part(lasted_s / whole_s)
                lines[row] = lines[row].plus(part) if row in lines else part


def _ids(listed: str) -> Iterator[int]:
    for first, last, step in parse_ids(listed)[0] if listed else ():
        yield from range(first, last + 1, step)


def _ended(event: Event) -> Iterator[tuple[int, float]]:
    """Yield the position of each task that ended, and how long it ran: those in a row equally long."""
    given = event.fields.get("ended")
    for each in map(ends_of_text, map(str, given if isinstance(given, list | tuple) else ())):
        for position in range(each.first, each.last + 1):
            yield position, (each.ended_at - each.started_at) / each.count
