"""The archive of unit output: copied from the instance before a unit's end is recorded, so that logs outlive it.

A unit's standard output is stored last, also if it is empty: its file says that all output is archived. Standard error
without a file next to it was empty, as that of most units is: creating files is most of what archiving costs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from hcloud.core.model import InstanceId, UnitId
from hcloud.provider import LogChunk, LogPiece, Runner, UnitStream

CHUNK_BYTES = 1 << 20
CHUNKS_PER_CYCLE = 4
PIECES_AT_ONCE = 64
"""The number of pieces that are read together: they are held in memory."""
STREAMS: tuple[UnitStream, ...] = ("stderr", "stdout")
"""In the order in which they are stored."""
TASKS: UnitStream = "tasks"
"""The log of the tasks of a unit with many, stored before its output."""
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
    notice_bytes: int = 0
    """The length of the notice that replaces them, in bytes."""

    @classmethod
    def of(cls, archive: Path) -> Gap:
        """Return the gap of ``<unit>.<stream>``, empty if none is stored. Raises OSError."""
        try:
            dropped, notice_bytes = _gap_file(archive).read_text().split()
        except FileNotFoundError:
            return cls()
        return cls(int(dropped), int(notice_bytes))

    def save(self, archive: Path) -> None:
        """Store it next to ``archive``."""
        # Before the notice is written, which alone would be taken for output.
        new = _gap_file(archive).with_suffix(".new")
        new.write_text(f"{self.dropped} {self.notice_bytes}\n")
        new.replace(_gap_file(archive))

    def place(self, offset: int) -> int:
        """Return the position in the file of the program's byte at ``offset``, which was not dropped."""
        return offset - self.dropped + self.notice_bytes

    def offset(self, place: int) -> int:
        """Return which of the program's bytes is at position ``place`` in the file, behind the notice."""
        return place - self.notice_bytes + self.dropped


def _gap_file(archive: Path) -> Path:
    return archive.with_name(f"{archive.name}.gap")


def _part(archive: Path) -> Path:
    return archive.with_name(f"{archive.name}.part")


def _copied(archive: Path, part: Path) -> tuple[int, int]:
    """Return up to which of the program's bytes a part file was copied, and how many of them it holds.

    Both are 0 if a daemon was killed while it wrote the notice.
    """
    try:
        size = os.stat(part).st_size
    except FileNotFoundError:
        return 0, 0
    gap = Gap.of(archive)
    return (gap.offset(size), size - gap.notice_bytes) if size >= max(gap.notice_bytes, 1) else (0, 0)


@dataclass(slots=True)
class LogArchive:
    """Files ``<folder>/<unit>.<stream>``, at most ``max_mib`` each; copying continues where a part file ends."""

    folder: Path
    max_mib: int = 64
    trouble: str = ""
    """Why output could not be stored in this round, such as a full disk; the observer resets it before each round."""

    def collect(
        self, runner: Runner, units: Mapping[UnitId, InstanceId], runs: Set[UnitId] = frozenset()
    ) -> frozenset[UnitId]:
        """Copy the next few MiB of units' output; return the units whose output is all archived.

        ``runs``: those of them that run many tasks, and have a log of these.
        What their workers have not answered in time goes on, and is stored by a later call.
        """
        new = [unit for unit in units if not self._is_archived(unit)]
        left = [(unit, stream) for unit in new for stream in (*((TASKS,) if unit in runs else ()), *STREAMS)]
        incomplete = set(left)
        for _ in range(CHUNKS_PER_CYCLE):
            copied = set[tuple[UnitId, UnitStream]]()
            for at in range(0, len(left), PIECES_AT_ONCE):
                came, complete = self._copy(runner, units, left[at : at + PIECES_AT_ONCE])
                copied |= came
                incomplete -= complete
            left = [each for each in left if each in copied and each in incomplete]
        done = [unit for unit in new if not any((unit, stream) in incomplete for stream in (TASKS, *STREAMS))]
        return frozenset(units).difference(new).union(unit for unit in done if self._finished(unit))

    def _is_archived(self, unit: UnitId) -> bool:
        # Earlier versions stored standard output first.
        base = f"{self.folder}/{unit}"
        return os.path.exists(f"{base}.stdout") and not os.path.exists(f"{base}.stderr.part")

    def _copy(
        self, runner: Runner, units: Mapping[UnitId, InstanceId], streams: Sequence[tuple[UnitId, UnitStream]]
    ) -> tuple[set[tuple[UnitId, UnitStream]], set[tuple[UnitId, UnitStream]]]:
        """Copy one piece of each stream; return the streams of which a piece came, and those that are complete."""
        copied, complete = set[tuple[UnitId, UnitStream]](), set[tuple[UnitId, UnitStream]]()
        kept = dict[LogPiece, int]()
        try:
            for unit, stream in streams:
                piece, bytes_kept = self._next_piece(unit, units[unit], stream)
                kept[piece] = bytes_kept
            for piece, chunk in runner.read_logs(list(kept)).items():
                copied.add((piece.unit, piece.stream))
                if self._store(piece, chunk, kept[piece]):
                    complete.add((piece.unit, piece.stream))
        except OSError as error:
            self._note_trouble(error)
        return copied, complete

    def _note_trouble(self, error: OSError) -> None:
        self.trouble = (
            f"cannot store output of ended jobs in {self.folder}: {error.strerror}; "
            "until it can, they count as running and their machines are paid"
        )

    def _file(self, unit: UnitId, stream: UnitStream) -> Path:
        return self.folder / f"{unit}.{stream}"

    def _next_piece(self, unit: UnitId, instance_id: InstanceId, stream: UnitStream) -> tuple[LogPiece, int]:
        """Return the piece to read next, and how many of the program's bytes are stored already."""
        final = self._file(unit, stream)
        offset, kept = _copied(final, _part(final))
        limit = min(CHUNK_BYTES, max(1, self.max_mib * CHUNK_BYTES - kept))
        return LogPiece(unit=unit, instance_id=instance_id, stream=stream, offset=offset, limit=limit), kept

    def _store(self, piece: LogPiece, chunk: LogChunk, kept: int) -> bool:
        """Store what came of a stream after ``kept`` bytes; return whether that was all that is kept of it."""
        # The notice for dropped bytes does not count towards max_mib.
        is_gap = piece.offset == 0 and chunk.next_offset != len(chunk.content)
        if chunk.content and kept < self.max_mib * CHUNK_BYTES:
            final = self._file(piece.unit, piece.stream)
            self.folder.mkdir(exist_ok=True)  # an operator may have deleted it
            if is_gap:
                Gap(dropped=chunk.next_offset, notice_bytes=len(chunk.content)).save(final)
            with _part(final).open("ab" if piece.offset else "wb") as file:
                file.write(chunk.content)
        kept += 0 if is_gap else len(chunk.content)
        return chunk.end or kept >= self.max_mib * CHUNK_BYTES or not chunk.content

    def _finished(self, unit: UnitId) -> bool:
        """Give a unit's files their final names; return whether that succeeded."""
        try:
            for stream in (TASKS, *STREAMS):
                final = f"{self.folder}/{unit}.{stream}"
                try:
                    os.replace(f"{final}.part", final)
                except FileNotFoundError:
                    if stream == "stdout":
                        os.makedirs(self.folder, exist_ok=True)  # an operator may have deleted it
                        os.close(os.open(final, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))
        except OSError as error:
            self._note_trouble(error)
            return False
        return True

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
        old = {p for p in self.folder.rglob("*") if p.is_file() and p.stat().st_mtime < before}
        # Standard output goes first: next to it, missing standard error is taken for empty, and without the log of its
        # tasks all of it for that of each.
        pruned = 0
        for path in sorted(old, key=lambda each: each.suffix != ".stdout"):
            output = path.with_suffix(".stdout")
            if path.suffix not in (".stderr", ".tasks") or output in old or not output.exists():
                path.unlink(missing_ok=True)
                pruned += 1
        return pruned


@dataclass(slots=True)
class NoLogArchive(LogArchive):
    """An archive that keeps nothing, for simulations."""

    def collect(
        self, runner: Runner, units: Mapping[UnitId, InstanceId], runs: Set[UnitId] = frozenset()
    ) -> frozenset[UnitId]:
        """Return all units: there is nothing to copy."""
        return frozenset(units)


def _unit(path: Path) -> str:
    """Return the unit of an archived file: ``job-7.1.0_19ab`` for ``job-7.1.0_19ab.stdout.part``."""
    return ".".join(path.name.split(".")[:3])
