"""The archive of unit output: copied from the instance before a unit's end is recorded, so that logs outlive it."""

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
"""The folder for output of jobs that are not in this database."""


@dataclass(frozen=True, slots=True)
class Gap:
    """The bytes that an archived file lacks because the worker dropped them, kept in a ``.gap`` file next to it.

    Readers count the bytes that the program wrote, dropped or not. Only a separate file can say which are missing: a
    program may itself write a line like the notice.
    """

    dropped: int = 0
    """The number of bytes missing at the beginning."""
    told: int = 0
    """The length of the notice that replaces them, in bytes."""

    @classmethod
    def of(cls, archive: Path) -> Gap:
        """Return the gap of ``<unit>.<stream>``, empty if none is stored. Raises OSError."""
        try:
            dropped, told = _gap_file(archive).read_text().split()
        except FileNotFoundError:
            return cls()
        return cls(int(dropped), int(told))

    def save(self, archive: Path) -> None:
        """Store it next to ``archive``."""
        # Before the notice is written, which alone would be taken for output.
        new = _gap_file(archive).with_suffix(".new")
        new.write_text(f"{self.dropped} {self.told}\n")
        new.replace(_gap_file(archive))

    def place(self, offset: int) -> int:
        """Return the position in the file of the program's byte at ``offset``, which was not dropped."""
        return offset - self.dropped + self.told

    def offset(self, place: int) -> int:
        """Return which of the program's bytes is at position ``place`` in the file, behind the notice."""
        return place - self.told + self.dropped


def _gap_file(archive: Path) -> Path:
    return archive.with_name(f"{archive.name}.gap")


def _part(archive: Path) -> Path:
    return archive.with_name(f"{archive.name}.part")


def _copied(archive: Path, part: Path) -> tuple[int, int]:
    """Return up to which of the program's bytes a part file was copied, and how many of them it holds.

    Both are 0 if a daemon was killed while it wrote the notice.
    """
    gap, size = Gap.of(archive), part.stat().st_size if part.exists() else 0
    return (gap.offset(size), size - gap.told) if size >= max(gap.told, 1) else (0, 0)


@dataclass(slots=True)
class LogArchive:
    """Files ``<folder>/<unit>.<stream>``, at most ``max_mib`` each; copying continues where a part file ends."""

    folder: Path
    max_mib: int = 64
    trouble: str = ""
    """Why output could not be stored in this round, such as a full disk; the observer resets it before each round."""

    def collect(self, runner: Runner, unit: str, instance_id: str) -> bool:
        """Copy the next few MiB of a unit's output; return whether all of it is archived."""
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
            # The notice for dropped bytes does not count towards max_mib.
            is_gap = offset == 0 and chunk.next_offset != len(chunk.content)
            if chunk.content:  # most streams of most jobs are empty
                self.folder.mkdir(exist_ok=True)  # an operator may have deleted it
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
        """Move the output of ``foreign`` units to ``earlier/``; return the number of files.

        Job numbers repeat after a database is restored or created: output must not be shown for another job.
        """
        moved = [p for p in self.folder.iterdir() if p.is_file() and foreign(_unit(p))]
        for path in moved:
            (self.folder / EARLIER).mkdir(exist_ok=True)
            path.replace(self.folder / EARLIER / path.name)
        return len(moved)

    def prune(self, before: float) -> int:
        """Delete files last written before ``before`` (Unix seconds); return how many."""
        old = [p for p in self.folder.rglob("*") if p.is_file() and p.stat().st_mtime < before]
        for path in old:
            path.unlink(missing_ok=True)
        return len(old)


@dataclass(slots=True)
class NoLogArchive(LogArchive):
    """An archive that keeps nothing, for simulations."""

    def collect(self, runner: Runner, unit: str, instance_id: str) -> bool:
        """Return True: there is nothing to copy."""
        return True


def _unit(path: Path) -> str:
    """Return the unit of an archived file: ``job-7.1.0_19ab`` for ``job-7.1.0_19ab.stdout.part``."""
    return ".".join(path.name.split(".")[:3])
