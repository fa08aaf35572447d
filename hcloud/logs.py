"""The archive of unit output: copied from the instance before its end is recorded, so that logs outlive machines."""

from __future__ import annotations

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


@dataclass(slots=True)
class LogArchive:
    """Files ``<folder>/<unit>.<stream>``, at most ``max_mib`` each. Copying continues where a part file ends."""

    folder: Path
    max_mib: int = 64

    def collect(self, runner: Runner, unit: str, instance_id: str) -> bool:
        """Copy what is still missing, a few MiB per call; return whether all of it is here now."""
        complete = [self._collect_stream(runner, unit, instance_id, stream) for stream in STREAMS]
        return all(complete)

    def _collect_stream(self, runner: Runner, unit: str, instance_id: str, stream: Stream) -> bool:
        final = self.folder / f"{unit}.{stream}"
        if final.exists():
            return True
        part = final.with_suffix(f".{stream}.part")
        offset = part.stat().st_size if part.exists() else 0
        try:
            ended = self._copy(runner, unit, instance_id, stream, part, offset)
        except WorkerUnreachable:
            return False
        except NotFound:
            ended = True
        if ended:
            if part.exists():
                part.replace(final)
            else:
                final.touch()
        return ended

    def _copy(self, runner: Runner, unit: str, instance_id: str, stream: Stream, part: Path, offset: int) -> bool:
        for _ in range(CHUNKS_PER_CYCLE):
            room = self.max_mib * CHUNK_BYTES - offset
            chunk = runner.logs(unit, instance_id, stream, offset, min(CHUNK_BYTES, max(1, room)))
            if chunk.content:  # most streams of most jobs are empty
                with part.open("ab") as file:
                    file.write(chunk.content)
            offset = chunk.next_offset
            if chunk.end or offset >= self.max_mib * CHUNK_BYTES or not chunk.content:
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
