"""Unpacking an uploaded work directory: nothing may land outside it, and it has an upper size."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path, PurePosixPath

from hcloud.core.errors import UnitRefused

FILES_MAX = 100_000
# Compressed archives are capped at upload; this is how much larger they may become on disk.
EXPANSION_MAX = 20


def unpack(archive: int, limit_bytes: int, below: str = ".") -> None:
    """Unpack a tar, compressed or not, given as a readable descriptor, into the current directory.

    ``below``: all but plain files and directories below this path are left out.

    Raises:
        UnitRefused: it is no archive, or a member is absolute, leads outside, is a device, or the whole is too large.
    """
    total, here = 0, Path.cwd().resolve()
    try:
        with os.fdopen(archive, "rb") as file, tarfile.open(fileobj=file, mode="r|*") as source:
            # Python's own filters came with 3.11.4; Debian 12 has an older one. These rules are the same everywhere.
            source.extraction_filter = lambda member, _path: member
            for number, member in enumerate(source):
                if below != "." and not _is_below(member, below):
                    continue
                total += member.size
                if total > limit_bytes or number >= FILES_MAX:
                    raise UnitRefused(
                        f"the work directory's archive holds more than {limit_bytes >> 20} MiB or {FILES_MAX} files"
                    )
                source.extract(_checked(member, here))
    except MemoryError as error:
        raise UnitRefused("the work directory's archive needs too much memory to be read") from error
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError) as error:
        raise UnitRefused(f"the work directory's archive cannot be read: {error}") from error


def _is_below(member: tarfile.TarInfo, below: str) -> bool:
    name = PurePosixPath(os.path.normpath(member.name))
    # No links: what is written through one lands elsewhere.
    return (member.isreg() or member.isdir()) and name.is_relative_to(os.path.normpath(below))


def _checked(member: tarfile.TarInfo, here: Path) -> tarfile.TarInfo:
    """Return the member with its mode made harmless, if it and what it points to lie below ``here``."""
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        raise UnitRefused(f"the work directory's archive holds {member.name!r}, which is not a file or directory")
    if member.name.startswith("/"):
        raise UnitRefused(f"the work directory's archive holds the absolute path {member.name!r}")
    leads_to = [here / member.name]
    if member.issym():
        leads_to.append((here / member.name).parent / member.linkname)
    elif member.islnk():
        leads_to.append(here / member.linkname)
    # Resolved on disk, so that links unpacked before cannot lead out either.
    if not all(path.resolve().is_relative_to(here) for path in leads_to):
        raise UnitRefused(f"the work directory's archive holds {member.name!r}, which leads outside")
    # No set-user-id, no writing by others; the owner may always read and change.
    member.mode = member.mode & 0o755 | (0o700 if member.isdir() else 0o600)
    return member
