"""The log of a unit that runs many tasks: begin and end of each, and where its output ends, in one file.

It is a third stream beside the unit's output. A line is written before a task is started and after it has ended, so
that whatever is killed, no task is started twice. Lines, with positions and Unix seconds::

    boot <id>                      the machine's boot
    fence <position>               tasks up to this one may begin; on the disk before the first of them does
    begin <position> <at>
    end <position> <code> <cause> <at> <stdout> <stderr> <detail>    with the offsets at which its output ends
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from hcloud.core.arrays import Interval, positions_in, with_positions
from hcloud.core.failures import FailureCause
from hcloud.core.task_runs import DETAIL_CHARACTERS_MOST, RUN_TASKS_MOST, TaskEnds, TaskProgress, joined

STREAM: Final = "tasks"
LOG_BYTES_MOST: Final = RUN_TASKS_MOST * 512
FENCED_MOST, FENCE_LASTS_S = 256, 1.0
"""Tasks of one fence: as many as run in about a second, since a fence waits for the disk."""
_NO_CAUSE = "-"


class TaskLogWriter:
    """Writes the log of one unit. Raises OSError where the disk does not take a line: then no task may begin."""

    def __init__(self, folder: Path, boot: str, positions: Sequence[Interval]) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / f"{STREAM}.{0:015d}"
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._left = list(positions_in(positions))[::-1]
        self._fenced, self._window, self._fenced_at = 0, 0, 0.0
        self._write(f"boot {boot}\n")

    def begin(self, position: int, at: float) -> None:
        """Write that the task at ``position`` begins; it must be the next one."""
        if not self._fenced:
            self._fence()
        self._fenced -= 1
        self._left.pop()
        self._write(f"begin {position} {at:.6f}\n")

    def _fence(self) -> None:
        now = time.monotonic()
        is_quick = now - self._fenced_at < FENCE_LASTS_S
        self._window = min(FENCED_MOST, 2 * self._window) if self._window and is_quick else 1
        self._fenced, self._fenced_at = min(self._window, len(self._left)), now
        self._write(f"fence {self._left[-self._fenced]}\n")
        os.fdatasync(self._handle)

    def end(self, ended: TaskEnds, offsets: tuple[int, int]) -> None:
        """Write how one task ended. ``offsets``: how much there is of both outputs by now."""
        code = _NO_CAUSE if ended.exit_code is None else ended.exit_code
        detail = "".join(each if each.isprintable() else "?" for each in ended.detail)[:DETAIL_CHARACTERS_MOST]
        cause = ended.cause.value if ended.cause is not None else _NO_CAUSE
        self._write(f"end {ended.first} {code} {cause} {ended.ended_at:.6f} {offsets[0]} {offsets[1]} {detail}\n")

    def close(self) -> None:
        """Make all of it durable."""
        os.fdatasync(self._handle)
        os.close(self._handle)

    def _write(self, line: str) -> None:
        content = line.encode()
        if os.write(self._handle, content) != len(content):
            raise OSError("the log of tasks could not be written: the disk is full")


class TaskSlice(NamedTuple):
    """Where in both outputs of its unit a task's own output is; None as an end: it still writes."""

    stdout: tuple[int, int | None]
    stderr: tuple[int, int | None]


@dataclass(frozen=True, slots=True)
class TaskLog:
    """What a log says."""

    progress: TaskProgress
    slices: dict[int, TaskSlice]
    """By position, of the tasks that began."""


def read_task_log(folder: Path, boot: str) -> TaskLog | None:
    """Return what the log in ``folder`` says; None: there is none. ``boot``: the machine's present boot."""
    try:
        with (folder / f"{STREAM}.{0:015d}").open("rb") as file:
            return parse_task_log(file.read(LOG_BYTES_MOST), boot)
    except FileNotFoundError:
        return None


def parse_task_log(content: bytes, boot: str = "") -> TaskLog:
    """Return what a log says, of a machine that may lie: what is not in order is left out.

    ``boot``: with another one than the log's, all tasks behind a fence may have begun; empty: it is the same.
    """
    lines = content[:LOG_BYTES_MOST].decode(errors="replace").split("\n")[:-1]  # a torn last line counts as not written
    is_rebooted = bool(boot) and bool(lines) and lines[0] != f"boot {boot}"
    ended, slices, begun = list[TaskEnds](), dict[int, TaskSlice](), dict[int, float]()
    fenced, at = list[int](), (0, 0)
    for kind, words in _split(lines):
        if kind == "fence":
            fenced.append(words[0])
        elif kind == "begin" and words[0] not in slices:
            begun[words[0]] = words[1]
            slices[words[0]] = TaskSlice((at[0], None), (at[1], None))
        elif kind == "end" and words[0] in begun:
            position, code, cause, ended_at, out, err, detail = words
            started_at = begun.pop(position)
            times = {"started_at": started_at, "ended_at": max(started_at, ended_at)}
            ended.append(TaskEnds(first=position, last=position, **times, exit_code=code, cause=cause, detail=detail))
            slices[position] = TaskSlice((at[0], max(out, at[0])), (at[1], max(err, at[1])))
            at = (max(out, at[0]), max(err, at[1]))
    may_have_begun = set(begun)
    if is_rebooted and fenced:
        may_have_begun |= set(range(min([*slices, *fenced]), max(fenced) + 1)) - slices.keys()
    progress = TaskProgress(ended=joined(ended), begun=with_positions((), sorted(may_have_begun)))
    return TaskLog(progress=progress, slices=slices)


def _split(lines: Sequence[str]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for line in lines:
        words = line.split(" ", 7)
        try:
            if words[0] == "fence":
                yield "fence", (int(words[1]),)
            elif words[0] == "begin":
                yield "begin", (int(words[1]), float(words[2]))
            elif words[0] == "end":
                code = None if words[2] == _NO_CAUSE else int(words[2])
                cause = None if words[3] == _NO_CAUSE else FailureCause(words[3])
                yield "end", (int(words[1]), code, cause, float(words[4]), int(words[5]), int(words[6]), words[7])
        except (ValueError, IndexError):
            continue
