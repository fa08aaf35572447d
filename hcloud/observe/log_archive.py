"""The archive of unit output: copied from the instance before its end is recorded, so that logs outlive machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hcloud.core.errors import NotFound, WorkerUnreachable
from hcloud.provider import Runner, Stream

CHUNK_BYTES = 1 << 20
CHUNKS_PER_CYCLE = 4
STREAMS: tuple[Stream, ...] = ("stdout", "stderr")
EARLIER = "earlier"
"""The folder for output of jobs that this database does not know."""


@dataclass(frozen=True, slots=True)
class Gap:
    """What a kept file lacks at its beginning: ``dropped`` bytes, in whose place stand ``told`` bytes that say so.

    Whoever reads output counts what the program wrote, kept or not, and goes on so when it was archived. It lies in a
    file beside, as a program may write such a line itself (one that copies the output of another job, say).
    """

    dropped: int = 0
    told: int = 0

    @classmethod
    def of(cls, archive: Path) -> Gap:
        """Return the gap of ``<unit>.<stream>``: all that a restarted daemon has. Raises OSError."""
        try:
            dropped, told = _gap_file(archive).read_text().split()
        except FileNotFoundError:
            return cls()
        return cls(int(dropped), int(told))

    def save(self, archive: Path) -> None:
        """Keep it beside ``archive``, at once: before the line is written, which alone would be taken for output."""
        new = _gap_file(archive).with_suffix(".new")
        new.write_text(f"{self.dropped} {self.told}\n")
        new.replace(_gap_file(archive))

    def place(self, offset: int) -> int:
        """Return where in the file the byte lies that is the program's at ``offset``, which was not dropped."""
        return offset - self.dropped + self.told

    def offset(self, place: int) -> int:
        """Return which of the program's bytes is at a ``place`` in the file, behind what is told of the gap."""
        return place - self.told + self.dropped


def _gap_file(archive: Path) -> Path:
    return archive.with_name(f"{archive.name}.gap")


def _part(archive: Path) -> Path:
    return archive.with_name(f"{archive.name}.part")


def _copied(archive: Path, part: Path) -> tuple[int, int]:
    """Return up to which of the program's bytes a part was copied, and how many of them are in it; nothing, where a
    daemon was killed while it told of the gap."""
    gap, size = Gap.of(archive), part.stat().st_size if part.exists() else 0
    return (gap.offset(size), size - gap.told) if size >= max(gap.told, 1) else (0, 0)


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
                f"cannot store output of ended jobs in {self.folder}: {error.strerror}; "
                "until it can, they count as running and their machines are paid"
            )
            return False
        return all(complete)

    def _collect_stream(self, runner: Runner, unit: str, instance_id: str, stream: Stream) -> bool:
        final = self.folder / f"{unit}.{stream}"
        if final.exists():
            return True
        part = _part(final)
        try:
            ended = self._copy(runner, unit, instance_id, stream, final)
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

    def _copy(self, runner: Runner, unit: str, instance_id: str, stream: Stream, final: Path) -> bool:
        part = _part(final)
        offset, kept = _copied(final, part)
        for _ in range(CHUNKS_PER_CYCLE):
            room = self.max_mib * CHUNK_BYTES - kept
            chunk = runner.logs(unit, instance_id, stream, offset, min(CHUNK_BYTES, max(1, room)))
            # What is told in place of what was dropped is no part of what may be kept.
            is_gap = offset == 0 and chunk.next_offset != len(chunk.content)
            if chunk.content:  # most streams of most jobs are empty
                self.folder.mkdir(exist_ok=True)  # somebody may have cleared up with a broad hand
                if is_gap:
                    Gap(dropped=chunk.next_offset, told=len(chunk.content)).save(final)
                with part.open("ab" if offset else "wb") as file:
                    file.write(chunk.content)
            kept += 0 if is_gap else len(chunk.content)
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
class NoLogArchive(LogArchive):
    """Where nobody will ever read what units wrote: nothing is kept of it."""

    def collect(self, runner: Runner, unit: str, instance_id: str) -> bool:
        """Return that all is here that is to be kept."""
        return True


def _unit(path: Path) -> str:
    """Return the unit whose output a file holds: ``job-7.1.0_19ab`` of ``job-7.1.0_19ab.stdout.part``."""
    return ".".join(path.name.split(".")[:3])
