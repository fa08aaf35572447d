"""Files of profiles: the shipped library and what users import, read with line numbers and written to be read."""

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
"""Directory below the state directory that holds what was imported."""


def load_profiles(path: Path) -> tuple[ReferenceProfile, ...]:
    """Return the profiles of a file, one per document.

    Raises:
        ConfigError: names file, line, key, what is wrong and what would be right.
    """
    return tuple(parse_profile(each.value, locate=each.where) for each in read_documents(path))


def library_profiles(paths: Iterable[Path]) -> Iterator[tuple[Path, ReferenceProfile]]:
    """Yield every profile and its file, in the order of the paths and of the names in each directory.

    A path is a file, or a directory whose ``*.yaml`` are read; one that does not exist holds nothing.

    Raises:
        ConfigError: a file is no profile, or a directory cannot be read.
    """
    for path in paths:
        for file in _files(path):
            for profile in load_profiles(file):
                yield file, profile


def load_library(paths: Iterable[Path]) -> Library:
    """Return the library of known applications in files and directories, later ones in place of earlier ones.

    Raises:
        ConfigError: a file is no profile (with line and key), or a directory cannot be read.
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
    """Return a profile as YAML that reads back as the same, one line per cell."""
    whole = document(profile)
    return str(yaml.safe_dump(whole, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None))


def write_profile(directory: Path, profile: ReferenceProfile) -> Path:
    """Write a profile into a directory (made where it is not there), whole or not at all; return its file.

    Raises OSError where that cannot be done.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{profile.profile}.yaml"
    context = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with context.open("w", encoding="utf-8") as stream:
            stream.write(profile_yaml(profile))
            stream.flush()
            os.fsync(stream.fileno())
        context.replace(path)
    finally:
        context.unlink(missing_ok=True)
    return path
