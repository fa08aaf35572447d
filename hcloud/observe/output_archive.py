"""Outputs of ended units: copied from their machines beside the daemon's loop, before the units' ends are recorded.

Per unit ``<folder>/<unit>.tar`` and ``<unit>.json`` (a :class:`StoredOutputs`), the latter written last: it says that
all is here, also where a unit left nothing. Until then a ``.part`` file grows, which another daemon continues.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from hcloud.core.clock import Clock
from hcloud.core.errors import WorkerUnreachable
from hcloud.core.model import InstanceId, UnitId
from hcloud.observe.archive_receiver import ArchiveReceiver
from hcloud.observe.bucket_outputs import BucketOutputs, Delivery
from hcloud.provider import OutputsManifest, OutputsPiece

_log = logging.getLogger("hcloud")
PACKING_S, PACKING_LOOK_S = 20.0, 0.05
"""How long and how often a machine is asked for what it is still packing; then others have their turn."""
PATIENCE_S = 1800.0
"""A unit of which nothing came for so long has left nothing."""
AT_ONCE = 4
"""Units that are copied at one time."""
SPOILT_MAX = 3
"""So often an archive may arrive damaged until it is given up."""
OUTPUTS_FOLDER = "outputs"
"""Its name in the state directory."""
EARLIER = "earlier"
"""The folder for outputs of jobs that are not in this database."""

ReadOutputs = Callable[[UnitId, InstanceId, int, int], OutputsPiece]
"""Unit, instance, offset, limit; as ``Runner.read_outputs``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftUnit:
    """An ended unit whose job wants outputs."""

    instance_id: InstanceId
    user: str
    delivery: Delivery | None = None
    """What of it goes to buckets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOutputs:
    """What is kept of one unit."""

    user: str
    files: int
    bytes: int
    """Size of the archive; 0: there is none."""
    sha256: str
    note: str
    """What is missing and why; empty if nothing is."""


def stored_outputs(folder: Path, unit: UnitId) -> StoredOutputs | None:
    """Return what is kept of a unit; None if it is not here, or not in full."""
    try:
        return StoredOutputs(**json.loads((folder / f"{unit}.json").read_bytes()))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def archive_of(folder: Path, unit: UnitId) -> Path:
    """Return the path of a unit's archive."""
    return folder / f"{unit}.tar"


@dataclass(slots=True)
class OutputArchive:
    """Copies outputs in threads of its own, so that a slow machine delays no other."""

    folder: Path
    read: ReadOutputs
    clock: Clock
    max_mib: int
    """Largest archive of a unit."""
    max_user_mib: int
    """Of all that is kept for a user; beyond, the oldest are deleted."""
    buckets: BucketOutputs | None = None
    """Sends files to buckets; None: nothing does."""
    on_done: Callable[[], object] = lambda: None
    """Called when a unit's outputs are all here."""
    trouble: str = ""
    """Why outputs cannot be stored, such as a full disk."""
    _copying: dict[UnitId, threading.Thread] = field(default_factory=dict)
    _asked: dict[UnitId, int] = field(default_factory=dict)
    _spoilt: dict[UnitId, int] = field(default_factory=dict)
    _moved_at: dict[UnitId, tuple[float, int]] = field(default_factory=dict)
    """By unit, when more of its outputs had come than before (Unix seconds), and how many bytes."""
    _room: threading.Lock = field(default_factory=threading.Lock)

    def collect(self, units: Mapping[UnitId, LeftUnit]) -> frozenset[UnitId]:
        """Go on copying; return the units whose outputs are all here. Never waits."""
        done = {unit for unit in units if (self.folder / f"{unit}.json").exists()}
        self._copying = {unit: thread for unit, thread in self._copying.items() if thread.is_alive()}
        left = sorted(units.keys() - done - self._copying.keys(), key=lambda unit: (self._asked.get(unit, 0), unit))
        for unit in left[: max(0, AT_ONCE - len(self._copying))]:
            self._asked[unit] = self._asked.get(unit, 0) + 1
            thread = threading.Thread(target=self._copy, args=(unit, units[unit]), name="outputs", daemon=True)
            self._copying[unit] = thread
            thread.start()
        return frozenset(done)

    def _copy(self, unit: UnitId, left: LeftUnit) -> None:
        try:
            self.folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            if self._copied(unit, left) or self._gives_up(unit, left):
                self.trouble = ""
                self.on_done()
        except WorkerUnreachable:
            pass  # asked again, until the machine itself counts as lost
        except OSError as error:
            self.trouble = (
                f"cannot store outputs of ended jobs in {self.folder}: {error.strerror}; "
                "until it can, they count as running and their machines are paid"
            )
        except Exception:  # noqa: BLE001 any defect: other units go on
            _log.exception("copying the outputs of %s failed, a defect; tried again", unit)

    def _copied(self, unit: UnitId, left: LeftUnit) -> bool:
        """Copy until the end; return whether that came. False: it is not packed yet, or was damaged on its way."""
        delivered = ""
        if left.delivery is not None and self.buckets is not None:
            words = self.buckets.deliver(unit, left.delivery)
            if words is None:
                self._moved_at.pop(unit, None)  # which has limits of its own
                return False
            delivered = words
        part = self.folder / f"{unit}.part"
        receiver = ArchiveReceiver(clock=self.clock, max_mib=self.max_mib, packing_s=PACKING_S, look_s=PACKING_LOOK_S)
        received = receiver.receive(partial(self.read, unit, left.instance_id), part)
        manifest = received.manifest
        match received.outcome:
            case "not_packed" | "too_late":
                return False
            case "too_large":
                size = f"{manifest.bytes >> 20} MiB of outputs"
                manifest = OutputsManifest(note=f"{size} are more than {self.max_mib} (engine.max_outputs_mib)")
            case "damaged":
                part.unlink()
                self._spoilt[unit] = self._spoilt.get(unit, 0) + 1
                if self._spoilt[unit] < SPOILT_MAX:
                    return False
                manifest = OutputsManifest(note="its outputs arrived damaged every time, so none is kept")
        manifest = replace(manifest, note="; ".join(each for each in (delivered, manifest.note) if each))
        self._keep(unit, left, manifest, part)
        return True

    def _gives_up(self, unit: UnitId, left: LeftUnit) -> bool:
        """Give up a unit of which nothing has come for long: its machine is paid, and may be hostile."""
        part, now = self.folder / f"{unit}.part", self.clock.now()
        size = part.stat().st_size if part.exists() else 0
        moved_at, before = self._moved_at.get(unit, (now, -1))
        self._moved_at[unit] = (now, size) if size > before else (moved_at, before)
        if now - self._moved_at[unit][0] <= PATIENCE_S:
            return False
        note = f"its machine sent nothing of its outputs for {PATIENCE_S / 60:.0f} min, so none is kept"
        self._keep(unit, left, OutputsManifest(note=note), part)
        return True

    def _keep(self, unit: UnitId, left: LeftUnit, manifest: OutputsManifest, part: Path) -> None:
        with self._room:
            manifest = self._with_room(left.user, manifest)
            if manifest.bytes:
                part.rename(archive_of(self.folder, unit))
            else:
                part.unlink(missing_ok=True)
            kept = StoredOutputs(user=left.user, **asdict(manifest))
            new = self.folder / f"{unit}.json.new"
            new.write_text(json.dumps(asdict(kept)))
            new.rename(self.folder / f"{unit}.json")
        self._spoilt.pop(unit, None)
        self._asked.pop(unit, None)
        self._moved_at.pop(unit, None)
        if self.buckets is not None:
            self.buckets.forget(unit)

    def _with_room(self, user: str, manifest: OutputsManifest) -> OutputsManifest:
        """Delete the user's oldest outputs until this one fits their share."""
        limit = self.max_user_mib << 20
        if manifest.bytes > limit:
            note = (
                f"its outputs are larger than all that is kept for a user (engine.max_user_outputs_mib {limit >> 20})"
            )
            return OutputsManifest(note=note)
        own = list[tuple[float, UnitId, StoredOutputs]]()
        for path in self.folder.glob("*.json"):
            stored = stored_outputs(self.folder, path.stem)
            if stored is not None and stored.user == user and stored.bytes:
                own.append((path.stat().st_mtime, path.stem, stored))
        used = manifest.bytes + sum(stored.bytes for _, _, stored in own)
        for _, unit, stored in sorted(own, key=lambda each: each[:2]):
            if used <= limit:
                break
            note = "deleted, as newer outputs needed the room (engine.max_user_outputs_mib)"
            gone = replace(stored, files=0, bytes=0, sha256="", note=note)
            (self.folder / f"{unit}.json").write_text(json.dumps(asdict(gone)))
            archive_of(self.folder, unit).unlink(missing_ok=True)
            used -= stored.bytes
        return manifest

    def set_aside(self, foreign: Callable[[str], bool]) -> int:
        """Move the outputs of ``foreign`` units to ``earlier/``; return the number of files."""
        if not self.folder.exists():
            return 0
        moved = [path for path in self.folder.iterdir() if path.is_file() and foreign(_unit(path))]
        for path in moved:
            (self.folder / EARLIER).mkdir(exist_ok=True)
            path.replace(self.folder / EARLIER / path.name)
        return len(moved)

    def prune(self, before: float) -> int:
        """Delete files last written before ``before`` (Unix seconds); return how many."""
        pruned = 0
        for path in self.folder.rglob("*") if self.folder.exists() else ():
            if path.is_file() and path.stat().st_mtime < before:
                path.unlink(missing_ok=True)
                pruned += 1
        return pruned


def _unit(path: Path) -> str:
    """Return the unit of a file: ``job-7.1.0_19ab`` for ``job-7.1.0_19ab.tar``."""
    return ".".join(path.name.split(".")[:3])
