"""Files of reference profiles: the shipped library and imported ones."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml

from hcloud.classifier.library import Library
from hcloud.classifier.profiles import ReferenceProfile, document, library_of, parse_profile
from hcloud.config.document import read_documents
from hcloud.core.errors import ConfigError

IMPORTED = "profiles"
"""Directory of imported profiles, below the state directory."""


def load_profiles(path: Path) -> tuple[ReferenceProfile, ...]:
    """Return the profiles of a file, one per document.

    Raises:
        ConfigError: names file, line, key, what is wrong and what would be right.
    """
    return tuple(parse_profile(each.value, locate=each.where) for each in read_documents(path))


def library_profiles(paths: Iterable[Path]) -> Iterator[tuple[Path, ReferenceProfile]]:
    """Yield every profile with its file, in the order of the paths and of the names in each directory.

    A path is a file, or a directory, of which the ``*.yaml`` files are read; paths that do not exist are skipped.

    Raises:
        ConfigError: a file is not a profile, or a directory cannot be read.
    """
    for path in paths:
        for file in _files(path):
            for profile in load_profiles(file):
                yield file, profile


def load_library(paths: Iterable[Path]) -> Library:
    """Return the library of the applications in files and directories; later ones replace earlier ones of one name.

    Raises:
        ConfigError: a file is not a profile, or a directory cannot be read.
    """
    return library_of(profile for _, profile in library_profiles(paths))


def _files(path: Path) -> list[Path]:
    try:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            return [path]
        return sorted(each for each in path.iterdir() if each.suffix == ".yaml")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from None


def profile_yaml(profile: ReferenceProfile) -> str:
    """Return a profile as YAML that reads back as the same profile, one line per cell."""
    whole = document(profile)
    return str(yaml.safe_dump(whole, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None))


def write_profile(directory: Path, profile: ReferenceProfile) -> Path:
    """Write a profile atomically into a directory, which is created if necessary; return its file.

    Raises:
        OSError: the directory or the file cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{profile.profile}.yaml"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as stream:
            stream.write(profile_yaml(profile))
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
