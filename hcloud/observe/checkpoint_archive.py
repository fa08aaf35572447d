"""Checkpoints of units: copied from their machines at intervals, when a machine is to be taken back, and at their end.

Copying goes on in threads beside the daemon's loop. What did not arrive whole leaves the checkpoint before in place.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hcloud.apply.kept_checkpoints import KeptCheckpoint, keep_checkpoint, kept_bytes_of, kept_checkpoint
from hcloud.core.clock import Clock
from hcloud.core.errors import WorkerUnreachable
from hcloud.core.model import InstanceId, Job, UnitId
from hcloud.observe.archive_receiver import ArchiveReceiver
from hcloud.provider import OutputsPiece

_log = logging.getLogger("hcloud")
PACKING_S, PACKING_LOOK_S = 60.0, 0.1
"""How long and how often a machine is asked for what it is still packing."""
PATIENCE_S = 1800.0
"""A copy that takes longer is given up."""
AT_ONCE = 8
"""Units that are copied at one time."""

ReadCheckpoint = Callable[[UnitId, InstanceId, int, int, int], OutputsPiece]
"""Unit, instance, number, offset, limit; as ``Runner.read_checkpoint``."""


@dataclass(slots=True)
class _Followed:
    """A running unit whose job keeps checkpoints."""

    job: Job
    rank: int
    instance_id: InstanceId
    due_at: float
    was_noticed: bool = False
    """Whether it was copied because its machine is to be taken back."""


@dataclass(slots=True)
class CheckpointArchive:
    """Follows running units whose jobs keep checkpoints, and copies what they wrote."""

    folder: Path
    read: ReadCheckpoint
    clock: Clock
    max_mib: int
    """Largest archive of a unit."""
    max_user_mib: int
    """Of all that is kept for a user; what is beyond is not kept."""
    on_done: Callable[[], object] = lambda: None
    """Called when the last copy of a unit is over."""
    _followed: dict[UnitId, _Followed] = field(default_factory=dict)
    _copying: dict[UnitId, threading.Thread] = field(default_factory=dict)
    _last: set[UnitId] = field(default_factory=set)
    """Ended units whose last checkpoint was begun to be copied."""
    _room: threading.Lock = field(default_factory=threading.Lock)

    def follow(self, unit: UnitId, job: Job, rank: int, instance_id: InstanceId) -> None:
        """Copy what a running unit keeps from now on, until :meth:`leave`."""
        wanted = job.spec.checkpoint
        if wanted is not None and unit not in self._followed:
            due_at = self.clock.now() + wanted.every_s
            self._followed[unit] = _Followed(job, rank, instance_id, due_at)

    def leave(self, unit: UnitId) -> None:
        """Copy no more of a unit."""
        self._followed.pop(unit, None)
        self._last.discard(unit)

    def copy_last(self, unit: UnitId, job: Job, rank: int, instance_id: InstanceId) -> bool:
        """Copy what a unit kept that ended before its work was done; return whether that is over. Never waits."""
        thread = self._copying.get(unit)
        if thread is not None and thread.is_alive():
            return False
        if unit in self._last:
            return True
        if len(self._copying) < AT_ONCE:
            self._last.add(unit)
            self._begin(unit, _Followed(job, rank, instance_id, due_at=0.0))
        return False

    def copy_due(self, is_noticed: Callable[[InstanceId], bool]) -> None:
        """Begin to copy what is due. ``is_noticed``: whether the machine is to be taken back. Never waits."""
        now = self.clock.now()
        self._copying = {unit: thread for unit, thread in self._copying.items() if thread.is_alive()}
        for unit, each in self._followed.items():
            notice = not each.was_noticed and is_noticed(each.instance_id)
            if unit in self._copying or len(self._copying) >= AT_ONCE or (now < each.due_at and not notice):
                continue
            wanted = each.job.spec.checkpoint
            each.due_at = now + (wanted.every_s if wanted is not None else 0.0)
            each.was_noticed = each.was_noticed or notice
            self._begin(unit, each)

    def _begin(self, unit: UnitId, followed: _Followed) -> None:
        thread = threading.Thread(target=self._copy, args=(unit, followed), name="checkpoint", daemon=True)
        self._copying[unit] = thread
        thread.start()

    def _copy(self, unit: UnitId, followed: _Followed) -> None:
        part = self.folder / f"{unit}.part"
        try:
            self.folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            if (why := self._copied(unit, followed, part)) != "":
                _log.warning("no checkpoint of %s was kept: %s", unit, why)
        except WorkerUnreachable:
            pass  # the next one is due soon, and the one before is here
        except OSError as error:
            _log.warning("cannot store checkpoints in %s: %s", self.folder, error.strerror)
        except Exception:  # noqa: BLE001 any defect: other units go on
            _log.exception("copying the checkpoint of %s failed, a defect; tried again", unit)
        finally:
            part.unlink(missing_ok=True)
            if unit in self._last:
                self.on_done()

    def _copied(self, unit: UnitId, followed: _Followed, part: Path) -> str:
        """Copy and keep a checkpoint; return why it could not be kept, empty if it was. Raises OSError."""
        at, job = self.clock.now(), followed.job
        number = int(at * 1000)
        part.unlink(missing_ok=True)  # of another moment
        receiver = ArchiveReceiver(
            clock=self.clock,
            max_mib=self.max_mib,
            packing_s=PACKING_S,
            look_s=PACKING_LOOK_S,
            patience_s=PATIENCE_S,
        )
        received = receiver.receive(partial(self.read, unit, followed.instance_id, number), part)
        manifest = received.manifest
        match received.outcome:
            case "not_packed":
                return f"it was not packed within {PACKING_S:.0f} s"
            case "nothing":
                return manifest.note or "there is nothing yet"
            case "too_large":
                return f"{manifest.bytes >> 20} MiB are more than {self.max_mib} (engine.max_outputs_mib)"
            case "too_late":
                return f"it took more than {PATIENCE_S / 60:.0f} min to arrive"
            case "damaged":
                return "it arrived damaged"
        kept = KeptCheckpoint(
            unit=unit,
            user=job.spec.user,
            number=number,
            at=at,
            files=manifest.files,
            bytes=manifest.bytes,
            sha256=manifest.sha256,
        )
        with self._room:
            before = kept_checkpoint(self.folder, job.id, followed.rank)
            others = kept_bytes_of(self.folder, job.spec.user) - (before.bytes if before is not None else 0)
            if others + manifest.bytes > self.max_user_mib << 20:
                return f"its user keeps {others >> 20} MiB besides (engine.max_user_outputs_mib {self.max_user_mib})"
            keep_checkpoint(self.folder, job.id, followed.rank, kept, part)
        return ""
