"""Checkpoints on the daemon's host: what running units wrote so that the next attempt of their job goes on from there.

Per rank ``<folder>/<job>.<rank>.json`` (a :class:`KeptCheckpoint`), which names its archive ``<unit>.<number>.tar``.
The former is replaced by one rename, so there is always one whole checkpoint or none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from hcloud.core.model import Job, JobId, UnitId

CHECKPOINTS_FOLDER = "checkpoints"
"""Its name in the state directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCheckpoint:
    """The last checkpoint of one rank."""

    unit: UnitId
    """The unit that wrote it."""
    user: str
    number: int
    at: float
    """When it began to be copied (Unix seconds)."""
    files: int
    bytes: int
    """Size of the archive."""
    sha256: str

    @property
    def attempt(self) -> int:
        """Number of the attempt that wrote it."""
        return int(self.unit.split(".")[1])


def archive_of(folder: Path, unit: UnitId, number: int) -> Path:
    """Return the path of an archive."""
    return folder / f"{unit}.{number}.tar"


def kept_checkpoint(folder: Path, job: JobId, rank: int) -> KeptCheckpoint | None:
    """Return the last checkpoint of a rank whose archive is here; None if there is none."""
    return _read(folder, folder / f"{job}.{rank}.json")


def restored_checkpoint_at(folder: Path | None, job: Job, rank: int) -> float | None:
    """Return from when the checkpoint is that a rank goes on from (Unix seconds); None if it begins anew.

    To be asked when its attempt begins: what that keeps itself later takes its place.
    """
    if folder is None or job.spec.checkpoint is None:
        return None
    kept = kept_checkpoint(folder, job.id, rank)
    return kept.at if kept is not None else None


def keep_checkpoint(folder: Path, job: JobId, rank: int, kept: KeptCheckpoint, part: Path) -> None:
    """Make a copied archive the last checkpoint of a rank, and delete the one before. Raises OSError."""
    before, path = kept_checkpoint(folder, job, rank), folder / f"{job}.{rank}.json"
    part.rename(archive_of(folder, kept.unit, kept.number))
    new = path.with_suffix(".new")
    with new.open("w") as file:
        file.write(json.dumps(asdict(kept)))
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
    if before is not None and (before.unit, before.number) != (kept.unit, kept.number):
        archive_of(folder, before.unit, before.number).unlink(missing_ok=True)


def kept_bytes_of(folder: Path, user: str) -> int:
    """Return how much is kept for a user."""
    return sum(kept.bytes for _, kept in _all(folder) if kept.user == user)


def drop_checkpoints(folder: Path, is_over: Callable[[JobId, KeptCheckpoint], bool], before: float) -> int:
    """Delete checkpoints of jobs that need them no more; return how many.

    So are other files from ``before`` (Unix seconds), which no checkpoint names: what is newer may just be arriving.
    """
    dropped, named = 0, set[str]()
    for path, kept in _all(folder):
        if is_over(path.stem.rpartition(".")[0], kept):
            path.unlink(missing_ok=True)
            archive_of(folder, kept.unit, kept.number).unlink(missing_ok=True)
            dropped += 1
        else:
            named.add(archive_of(folder, kept.unit, kept.number).name)
    for path in folder.glob("*"):
        if path.suffix != ".json" and path.name not in named and path.stat().st_mtime < before:
            path.unlink(missing_ok=True)
    return dropped


def _all(folder: Path) -> Iterator[tuple[Path, KeptCheckpoint]]:
    for path in sorted(folder.glob("*.json")):
        kept = _read(folder, path)
        if kept is not None:
            yield path, kept


def _read(folder: Path, path: Path) -> KeptCheckpoint | None:
    try:
        kept = KeptCheckpoint(**json.loads(path.read_bytes()))
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        return None
    return kept if archive_of(folder, kept.unit, kept.number).exists() else None
