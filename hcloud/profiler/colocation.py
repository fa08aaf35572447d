"""Place a source of interference next to a subject, limit its intensity to what fits, and switch it on and off."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from types import TracebackType

from hcloud.core.errors import HCloudError, Unmeasurable
from hcloud.profiler.sources import MIB, InterferenceSource, RunningSource, start
from hcloud.profiler.subject import Stage
from hcloud.profiler.tuning import FULL

SOURCE_MARGIN_S = 60.0
ROOM_VCPUS_MIN = 0.1
CAPACITY_MIB_MIN = 64
SPARE_MIB = 96
"""Memory used by a source and by the measurement itself, in addition to what the source is to hold."""
DISK_SHARE = 0.5
"""Maximum share of the free disk a source uses, so that other work on the machine does not fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedSource:
    """A source as it runs next to a subject."""

    source: InterferenceSource
    highest: float
    """Maximum intensity (0..100) on this machine."""
    cpu: int
    """CPU the source runs on."""
    notes: tuple[str, ...]
    """Limitations, in sentences."""


def place(stage: Stage, source: InterferenceSource, vcpus: float) -> PlacedSource:
    """Choose the CPU of a source: another one than the subject's if it is felt across cores, otherwise the same.

    Raises Unmeasurable if this machine has no memory or CPU time left for it.
    """
    own, notes = stage.cpus_of(vcpus), list[str]()
    cpu = stage.cpus[-1] if source.cross_core else own[0]
    if source.cross_core and cpu in own:
        notes.append(
            f"this instance has no CPU besides the {vcpus:g} vCPU of the program, so sources that work across cores "
            "shared one with it"
        )
    highest = FULL
    if source.full_mib is not None:
        source = _as_large_as_fits(stage, source, notes)
    elif stage.host.vcpus < len(stage.cpus):  # a CPU quota covers both the program and the source
        room = stage.host.vcpus - vcpus
        if room < ROOM_VCPUS_MIN:
            raise Unmeasurable(f"{source.name}: the program's {vcpus:g} vCPU leave no CPU time for it on this machine")
        highest = FULL * min(1.0, room)
        if highest < FULL:
            notes.append(f"sources ran at up to {highest:g} % only: the program's {vcpus:g} vCPU leave no more")
    return PlacedSource(source=source, highest=highest, cpu=cpu, notes=tuple(notes))


def _as_large_as_fits(stage: Stage, source: InterferenceSource, notes: list[str]) -> InterferenceSource:
    assert source.full_mib is not None
    if source.meter == "memory_mib":
        held = stage.use[1] if stage.use else stage.subject.memory_mib
        what, room = "memory", int(stage.host.memory_mib - held - SPARE_MIB)
    else:
        disk = os.statvfs(stage.host.directory or tempfile.gettempdir())
        what, room = "disk", int(disk.f_bavail * disk.f_frsize / MIB * DISK_SHARE)
    if room < CAPACITY_MIB_MIN:
        raise Unmeasurable(f"{source.name}: the program leaves no {what} for it on this machine")
    if room >= source.full_mib:
        return source
    notes.append(f"{source.name} is full at {room} MiB here: the program leaves no more {what}")
    return replace(source, full_mib=room)


def pressing(
    stage: Stage, placed: PlacedSource, intensity: float, cpu: int | None = None
) -> AbstractContextManager[RunningSource]:
    """Run the source while the block lasts, on ``cpu`` if given. Raises the errors of ``sources.start``."""
    return start(
        placed.source,
        intensity,
        (placed.cpu if cpu is None else cpu,),
        host=stage.host,
        max_s=max(1.0, stage.left_s()) + SOURCE_MARGIN_S,
        directory=stage.host.directory,
    )


class SourceSwitch:
    """Switches the machine between several setups, each a context manager; the last one is exited at the end."""

    def __init__(self, ways: Mapping[str, Callable[[], AbstractContextManager[object]]]) -> None:
        """Accept the setups by name, each a function that returns a context manager; none is entered yet."""
        self._ways, self._now = ways, ""
        self._stack = ExitStack()

    def __enter__(self) -> SourceSwitch:
        """Start without any setup."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Exit the current setup."""
        self._stack.close()

    def to(self, way: str) -> bool:
        """Switch to a setup; return whether it was another one before. Raises Unmeasurable."""
        if way == self._now:
            return False
        self._stack.close()
        self._now = ""
        try:
            self._stack.enter_context(self._ways[way]())
        except Unmeasurable:
            raise
        except (HCloudError, OSError) as error:
            raise Unmeasurable(str(error)) from error
        self._now = way
        return True
