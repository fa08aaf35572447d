"""The agent bundle: one archive that holds all that a rented machine runs, so that nothing is installed there.

It holds the modules of HCloud that ``ENTRIES`` import, the packages in ``PACKAGES``, and ``bin/hcloud``, which starts
the agent with the machine's own Python. The compiled packages bind it to one architecture and one minor of Python.
An archive is named after its SHA-256; a JSON file beside it says what it is for.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import importlib.metadata
import io
import json
import logging
import os
import platform
import sys
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import hcloud
from hcloud.core.errors import ConfigError

ENTRIES = ("hcloud.agent", "hcloud.engine.link")
"""The modules that processes of an agent start with."""
PACKAGES = ("grpcio", "protobuf", "cryptography", "cffi", "pycparser", "typing_extensions")
"""What these modules import, and what that requires."""
KEPT = 2
"""Archives of one name that are kept: machines that boot now may still ask for the one before."""
_INSTALLERS_OWN = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"}
"""Files of a distribution that differ between installations of the same wheel."""
_START = """#!/bin/sh
# Start HCloud's agent with the Python that its compiled packages were made for.
root=$(dirname "$(dirname "$(readlink -f "$0")")")
for python in python@PYTHON@ python3; do
    if [ "$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = @PYTHON@ ]; then
        export PYTHONPATH="$root/lib" PYTHONSAFEPATH=1 PYTHONNOUSERSITE=1
        exec "$python" -S -m hcloud.agent "$@"
    fi
done
echo "hcloud: this agent needs Python @PYTHON@, which this machine does not have" >&2
exit 2
"""
_log = logging.getLogger("hcloud")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentBundle:
    """One archive of the agent."""

    name: str
    """Architecture (as ``uname -m`` prints it) and Python, as in ``x86_64-3.11``."""
    sha256: str
    """SHA-256 of the archive, in hexadecimal."""
    size_bytes: int
    """Size of the archive."""
    path: Path
    """Where it is: ``<sha256>.tar.gz`` in its directory."""


def build(directory: Path) -> AgentBundle:
    """Return the bundle of this installation, for machines like this one; write it to ``directory`` if it is missing.

    Raises ConfigError: a package that agents need is not installed, or the directory cannot be written.
    """
    files = {**agent_files(), **installed_files()}
    return write(directory, files, arch=platform.machine(), python="{}.{}".format(*sys.version_info))


def available(directory: Path) -> tuple[AgentBundle, ...]:
    """Return the usable bundles in ``directory``, the newest of each name, by name.

    Damaged files, and those that are no bundle of this version of HCloud, are left out, and the log says why.
    """
    found: dict[str, AgentBundle] = {}
    for path in _newest_first(directory):
        try:
            bundle = _read(path)
        except ValueError as error:
            _log.warning("%s is not used as an agent bundle: %s", path, error)
            continue
        found.setdefault(bundle.name, bundle)
    return tuple(found[name] for name in sorted(found))


def write(directory: Path, files: Mapping[str, bytes], *, arch: str, python: str) -> AgentBundle:
    """Write the archive of ``files`` (paths below ``lib/``) unless it is in ``directory``; equal files, equal archive.

    Older archives of that name are deleted. Raises ConfigError: the directory cannot be written.
    """
    name, content = f"{arch}-{python}", _tar(files, python)
    content_sha256 = hashlib.sha256(content).hexdigest()
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        for bundle in available(directory):
            if bundle.name == name and _label(bundle.path)["content_sha256"] == content_sha256:
                return bundle
        packed = io.BytesIO()
        with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=packed, mtime=0) as stream:
            stream.write(content)
        archive = packed.getvalue()
        sha256 = hashlib.sha256(archive).hexdigest()
        path = directory / f"{sha256}.tar.gz"
        label = {"arch": arch, "python": python, "hcloud": hcloud.__version__, "content_sha256": content_sha256}
        _replace(path, archive)
        _replace(_label_of(path), json.dumps(label, indent=1).encode() + b"\n")
        _delete_older(directory, name)
    except OSError as error:
        raise ConfigError(f"the agent bundle cannot be written: {error.strerror}", where=str(directory)) from error
    return AgentBundle(name=name, sha256=sha256, size_bytes=len(archive), path=path)


# ------------------------------------------------------------------------------------------------------------ contents
def agent_files() -> dict[str, bytes]:
    """Return the modules that an agent imports, and HCloud's licence, by their path below ``lib/``."""
    root = Path(hcloud.__file__).parents[1]
    files, waiting = dict[str, bytes](), list(ENTRIES)
    while waiting:
        module = waiting.pop()
        path = _source(root, module)
        if path is None or (name := path.relative_to(root).as_posix()) in files:
            continue
        files[name] = path.read_bytes()
        waiting += [module.rpartition(".")[0], *imported_modules(files[name].decode())]
    licences = {name: text for name, text in distribution_files("hcloud-daemon").items() if "LICENSE" in name}
    return files | licences


def imported_modules(source: str) -> Iterator[str]:
    """Yield the modules that a source file imports anywhere, except for types only.

    ``from a import b`` gives ``a`` and ``a.b``, since ``b`` may be a module.
    """
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)


def _source(root: Path, module: str) -> Path | None:
    """Return the file of a module of HCloud; None for any other name."""
    if module.partition(".")[0] != hcloud.__name__:
        return None
    place = root.joinpath(*module.split("."))
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


def installed_files() -> dict[str, bytes]:
    """Return the files of ``PACKAGES`` as they are installed here. Raises ConfigError: one is not installed."""
    files = {}
    for package in PACKAGES:
        files.update(distribution_files(package))
    return files


def distribution_files(package: str) -> dict[str, bytes]:
    """Return a package's files by their path below ``lib/``. Raises ConfigError: it is not installed."""
    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigError(f"the package {package} is not installed; agents need it") from error
    located = ((PurePosixPath(each), Path(str(each.locate()))) for each in distribution.files or ())
    return {str(name): path.read_bytes() for name, path in located if is_packed(name) and path.is_file()}


def is_packed(path: PurePosixPath) -> bool:
    """Return whether a file of a distribution belongs into a bundle: what its wheel puts beside modules."""
    return path.parts[0] != ".." and "__pycache__" not in path.parts and path.name not in _INSTALLERS_OWN


def _tar(files: Mapping[str, bytes], python: str) -> bytes:
    """Return an archive that depends on the content only: sorted, without times, owners or other modes."""
    entries = {f"lib/{path}": content for path, content in files.items()}
    entries["bin/hcloud"] = _START.replace("@PYTHON@", python).encode()
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path, content in sorted(entries.items()):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o755 if path == "bin/hcloud" else 0o644
            archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()


# ------------------------------------------------------------------------------------------------------- the directory
def _newest_first(directory: Path) -> list[Path]:
    archives = [path for path in directory.glob("*.tar.gz") if path.is_file()] if directory.is_dir() else []
    return sorted(archives, key=lambda path: (-path.stat().st_mtime_ns, path.name))


def _read(path: Path) -> AgentBundle:
    """Return the bundle of an archive. Raises ValueError, saying what is wrong with it."""
    label = _label(path)
    if label["hcloud"] != hcloud.__version__:
        raise ValueError(f"it is of HCloud {label['hcloud']}, and this is {hcloud.__version__}; make it again")
    sha256 = path.name.removesuffix(".tar.gz")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError("its content has another SHA-256 than its name says; delete it")
    return AgentBundle(name=f"{label['arch']}-{label['python']}", sha256=sha256, size_bytes=len(content), path=path)


def _label(path: Path) -> dict[str, str]:
    """Return what the JSON file beside an archive says. Raises ValueError."""
    file = _label_of(path)
    try:
        label: Any = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{file.name} beside it is missing or is not JSON") from error
    for key in ("arch", "python", "hcloud", "content_sha256"):
        if not isinstance(label, dict) or not isinstance(label.get(key), str):
            raise ValueError(f"{file.name} beside it lacks {key!r}")
    return dict(label)


def _label_of(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(".tar.gz") + ".json")


def _delete_older(directory: Path, name: str) -> None:
    """Delete all but the newest archives of that name."""
    of_name = []
    for path in _newest_first(directory):
        try:
            label = _label(path)
        except ValueError:  # not ours to delete
            continue
        of_name += [path] if f"{label['arch']}-{label['python']}" == name else []
    for path in of_name[KEPT:]:
        path.unlink(missing_ok=True)
        _label_of(path).unlink(missing_ok=True)


def _replace(path: Path, content: bytes) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_bytes(content)
    new.rename(path)
