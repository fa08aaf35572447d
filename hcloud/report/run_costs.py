"""What tasks cost that ran in one unit: the unit's cost, shared by their run times."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hcloud.core.arrays import parse_ids
from hcloud.core.model import Event, EventKind, JobId
from hcloud.core.rows import number_of
from hcloud.core.task_runs import TaskEnds, ends_of_text
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
        for task_id, ended in ended_tasks(event):
            label = f"{array}[{task_id}]"
            self._tasks.setdefault(lead, []).append((label, ended.ended_at - ended.started_at))
            if ended.first == own:
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


def ended_tasks(event: Event) -> Iterator[tuple[int, TaskEnds]]:
    """Yield the id of each task of which a TASKS_ENDED event tells, with its end: those in a row ran equally long."""
    return zip(_ids(text(event, "ids")), _ended(event), strict=False)


def _ids(listed: str) -> Iterator[int]:
    for first, last, step in parse_ids(listed)[0] if listed else ():
        yield from range(first, last + 1, step)


def _ended(event: Event) -> Iterator[TaskEnds]:
    given = event.fields.get("ended")
    for each in map(ends_of_text, map(str, given if isinstance(given, list | tuple) else ())):
        lasted_s = (each.ended_at - each.started_at) / each.count
        for number in range(each.count):
            began_at, at = each.started_at + number * lasted_s, each.first + number
            yield replace(each, first=at, last=at, started_at=began_at, ended_at=began_at + lasted_s)
