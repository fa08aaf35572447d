"""The archive of unit output: copied from the instance before its end is recorded, so that logs outlive machines."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hcloud.errors import NotFound, WorkerUnreachable
from hcloud.provider import Runner, Stream

CHUNK_BYTES = 1 << 20
CHUNKS_PER_CYCLE = 4
STREAMS: tuple[Stream, ...] = ("stdout", "stderr")
EARLIER = "earlier"
"""The folder for output of jobs that this database does not know."""
_GAP = re.compile(rb"\[hcloud: (\d+) bytes of older output were dropped\]\n")
_GAP_BYTES = 100
"""No line that tells of a gap is longer."""


@dataclass(frozen=True, slots=True)
class Gap:
    """What a kept file lacks at its beginning: ``dropped`` bytes, in whose place stands a ``line`` that says so.

    Whoever reads output counts what the program wrote, kept or not, and goes on so when it was archived.
    """

    line: bytes = b""
    dropped: int = 0

    @classmethod
    def at_the_start_of(cls, path: Path) -> Gap:
        """Read it from the file itself, which is all that a restarted daemon has. Raises OSError."""
        with path.open("rb") as file:
            found = _GAP.match(file.read(_GAP_BYTES))
        return cls(found.group(), int(found.group(1))) if found else cls()

    def place(self, offset: int) -> int:
        """Return where in the file the byte lies that is the program's at ``offset``, which was not dropped."""
        return offset - self.dropped + len(self.line)

    def offset(self, place: int) -> int:
        """Return which of the program's bytes is at a ``place`` in the file."""
        return place - len(self.line) + self.dropped


@dataclass(slots=True)
class LogArchive:
    """Files ``<folder>/<unit>.<stream>``, at most ``max_mib`` each. Copying continues where a part file ends."""

    folder: Path
    max_mib: int = 64
    trouble: str = ""
    """What kept output from being written lately, a full disk, say; who looks anew empties it before."""

    def collect(self, runner: Runner, unit: str, instance_id: str) -> bool:
        """Copy what is still missing, a few MiB per call; return whether all of it is here now."""
        try:
            complete = [self._collect_stream(runner, unit, instance_id, stream) for stream in STREAMS]
        except OSError as error:
            self.trouble = (
                f"output of ended jobs cannot be kept in {self.folder}: {error.strerror}; "
                "they count as running, and their machines are paid for, until it can"
            )
            return False
        return all(complete)

    def _collect_stream(self, runner: Runner, unit: str, instance_id: str, stream: Stream) -> bool:
        final = self.folder / f"{unit}.{stream}"
        if final.exists():
            return True
        part = final.with_suffix(f".{stream}.part")
        try:
            ended = self._copy(runner, unit, instance_id, stream, part)
        except WorkerUnreachable:
            return False
        except NotFound:
            ended = True
        if ended:
            if part.exists():
                part.replace(final)
            else:
                self.folder.mkdir(exist_ok=True)
                final.touch()
        return ended

    def _copy(self, runner: Runner, unit: str, instance_id: str, stream: Stream, part: Path) -> bool:
        gap, size = (Gap.at_the_start_of(part), part.stat().st_size) if part.exists() else (Gap(), 0)
        offset, kept = gap.offset(size), size - len(gap.line)
        for _ in range(CHUNKS_PER_CYCLE):
            room = self.max_mib * CHUNK_BYTES - kept
            chunk = runner.logs(unit, instance_id, stream, offset, min(CHUNK_BYTES, max(1, room)))
            if chunk.content:  # most streams of most jobs are empty
                part.parent.mkdir(exist_ok=True)  # somebody may have cleared up with a broad hand
                with part.open("ab") as file:
                    file.write(chunk.content)
            # The line in place of what was dropped is no part of what may be kept.
            kept += len(chunk.content) if chunk.next_offset == offset + len(chunk.content) else 0
            offset = chunk.next_offset
            if chunk.end or kept >= self.max_mib * CHUNK_BYTES or not chunk.content:
                return True
        return False

    def set_aside(self, foreign: Callable[[str], bool]) -> int:
        """Move the output of ``foreign`` units to ``earlier/``; return how many files.

        After an old database was restored, or a new one begun, numbers are given again: the output of the job that had
        the number before must not be shown as that of the one that has it now.
        """
        found = [p for p in self.folder.iterdir() if p.is_file() and foreign(_unit(p))]
        for path in found:
            (self.folder / EARLIER).mkdir(exist_ok=True)
            path.replace(self.folder / EARLIER / path.name)
        return len(found)

    def prune(self, before: float) -> int:
        """Delete files last written before ``before`` (Unix seconds); return how many."""
        old = [p for p in self.folder.rglob("*") if p.is_file() and p.stat().st_mtime < before]
        for path in old:
            path.unlink(missing_ok=True)
        return len(old)


@dataclass(slots=True)
class UnkeptLogs(LogArchive):
    """Where nobody will ever read what units wrote: nothing is kept of it."""

    def collect(self, runner: Runner, unit: str, instance_id: str) -> bool:
        """Return that all is here that is to be kept."""
        return True


def _unit(path: Path) -> str:
    """Return the unit whose output a file holds: ``job-7.1.0_19ab`` of ``job-7.1.0_19ab.stdout.part``."""
    return ".".join(path.name.split(".")[:3])
