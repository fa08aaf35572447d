"""Where a source runs beside a subject, how hard it can press there, and how it is switched on and off."""

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
"""What a source, and who measures, take of memory besides what the source is asked to hold."""
DISK_SHARE = 0.5
"""A source takes at most so much of the free disk: what else works here must not fail for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedSource:
    """A source as it runs beside a subject: of what size at most, how hard at most (0..100), and where.

    ``notes`` say what about that is not as it should be.
    """

    source: InterferenceSource
    highest: float
    cpu: int
    notes: tuple[str, ...]


def place(stage: Stage, source: InterferenceSource, vcpus: float) -> PlacedSource:
    """Choose another CPU than the subject's for a source felt across cores, the subject's own for all others.

    Raises Unmeasurable: this machine has no memory, or no CPU time, left for it beside the subject.
    """
    own, notes = stage.cpus_of(vcpus), list[str]()
    cpu = stage.cpus[-1] if source.cross_core else own[0]
    if source.cross_core and cpu in own:
        notes.append(
            f"beside {vcpus:g} vCPU this instance has no other CPU, so sources that work across cores shared one with "
            "the program"
        )
    highest = FULL
    if source.full_mib is not None:
        source = _as_large_as_fits(stage, source, notes)
    elif stage.host.vcpus < len(stage.cpus):  # a CPU quota holds for the program and the source together
        room = stage.host.vcpus - vcpus
        if room < ROOM_VCPUS_MIN:
            raise Unmeasurable(f"{source.name}: {vcpus:g} vCPU of the program leave no CPU time for it on this machine")
        highest = FULL * min(1.0, room)
        if highest < FULL:
            notes.append(f"sources pressed up to {highest:g} % only: the CPU time that {vcpus:g} vCPU leave here")
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
    notes.append(f"{source.name} is full at {room} MiB here, what may be taken of the {what} beside the program")
    return replace(source, full_mib=room)


def pressing(
    stage: Stage, placed: PlacedSource, intensity: float, cpu: int | None = None
) -> AbstractContextManager[RunningSource]:
    """Press while a block lasts, from another CPU if one is given. Raises what ``sources.start`` raises."""
    return start(
        placed.source,
        intensity,
        (placed.cpu if cpu is None else cpu,),
        host=stage.host,
        max_s=max(1.0, stage.left_s()) + SOURCE_MARGIN_S,
        directory=stage.host.directory,
    )


class SourceSwitch:
    """The machine in one of several ways, each a block that is entered at need; the last one is left at the end."""

    def __init__(self, ways: Mapping[str, Callable[[], AbstractContextManager[object]]]) -> None:
        """Take the ways by name, each a function that returns a block to enter; none is entered yet."""
        self._ways, self._now = ways, ""
        self._stack = ExitStack()

    def __enter__(self) -> SourceSwitch:
        """Begin in no way."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Leave the way the machine is in."""
        self._stack.close()

    def to(self, way: str) -> bool:
        """Bring the machine into a way; return whether it was in another. Raises Unmeasurable."""
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
