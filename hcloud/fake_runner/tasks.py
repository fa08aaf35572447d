"""Tasks that run one after the other in a unit of the fake engine: their work is that of the unit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hcloud.core.arrays import with_positions
from hcloud.core.failures import FailureCause
from hcloud.core.task_runs import TaskEnds, TaskProgress, joined
from hcloud.provider import UnitSpec

OUT_OF_MEMORY_AFTER_S, KILLED_CODE, TERMINATED_CODE = 0.2, 137, 143


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWork:
    """One task of a unit."""

    position: int
    begins_s: float
    """How much of the unit's work is done when it begins."""
    ends_s: float
    """How much of it is done when it has ended."""
    exit_code: int
    cause: FailureCause | None


def task_spec(unit: UnitSpec, environment: dict[str, str]) -> UnitSpec:
    """Return the unit that would run one of its tasks alone."""
    return replace(unit, tasks=None, env={**unit.env, **environment})


def end_of_task(
    unit: UnitSpec, duration_s: float, exit_code: int, memory_mib: float
) -> tuple[float, int, FailureCause | None]:
    """Return how long a task runs, its exit code and why it fails."""
    cause = FailureCause.EXIT_CODE if exit_code else None
    if memory_mib > unit.resources.memory_mib:
        duration_s, exit_code = min(OUT_OF_MEMORY_AFTER_S, duration_s), KILLED_CODE
        cause = FailureCause.OUT_OF_MEMORY
    if unit.max_runtime_s is not None and duration_s > unit.max_runtime_s:
        duration_s, exit_code, cause = unit.max_runtime_s, TERMINATED_CODE, FailureCause.TIMEOUT
    return duration_s, exit_code, cause


def progress_of(
    tasks: Sequence[TaskWork],
    done_s: float,
    started_at: float,
    until: float,
    stop: FailureCause | None,
    *,
    is_over: bool,
) -> TaskProgress:
    """Return what became of tasks when ``done_s`` of the unit's work is done, at ``until``.

    ``stop``: why the unit was stopped, if it was. ``is_over``: it has ended.
    """
    pace = (until - started_at) / done_s if done_s > 0 else 0.0
    ended, running = list[TaskEnds](), list[int]()
    for each in tasks:
        began_at, ended_at = started_at + each.begins_s * pace, started_at + each.ends_s * pace
        if each.ends_s <= done_s * (1 + 1e-9):
            ended.append(
                TaskEnds(
                    first=each.position,
                    last=each.position,
                    started_at=began_at,
                    ended_at=ended_at,
                    exit_code=each.exit_code,
                    cause=each.cause,
                )
            )
        elif each.begins_s < done_s and stop is not None and is_over:
            ended.append(
                TaskEnds(
                    first=each.position,
                    last=each.position,
                    started_at=began_at,
                    ended_at=until,
                    exit_code=TERMINATED_CODE,
                    cause=stop,
                    detail="stopped on request",
                )
            )
        elif each.begins_s <= done_s and not math.isinf(done_s):
            running.append(each.position)
            break
    return TaskProgress(ended=joined(ended), begun=with_positions((), running))


def log_of(progress: TaskProgress, offsets: dict[int, tuple[int, int]]) -> str:
    """Return the log of tasks as a worker writes it. ``offsets``: by position, where both outputs end."""
    lines = ["boot simulated"]
    for each in progress.ended:
        for position in range(each.first, each.last + 1):
            out, err = offsets[position]
            code, cause = each.exit_code, each.cause.value if each.cause is not None else "-"
            lines.append(f"begin {position} {each.started_at:.6f}")
            lines.append(f"end {position} {code} {cause} {each.ended_at:.6f} {out} {err} {each.detail}")
    lines += [f"begin {first} 0.0" for first, _ in progress.begun]
    return "\n".join(lines) + "\n"
