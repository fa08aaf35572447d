"""Place a source of interference next to a subject, limit its intensity to what fits, and switch it on and off."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from hcloud.core.errors import HCloudError, Unmeasurable
from hcloud.profiler.sources import MIB, InterferenceSource, RunningSource, start
from hcloud.profiler.subject import Stage
from hcloud.profiler.tuning import FULL

SOURCE_MARGIN_S = 60.0
ROOM_VCPUS_MIN = 0.1
CAPACITY_MIB_MIN = 64
SPARE_MIB, SPARE_SHARE = 96, 0.03
"""Memory used by a source and by the measurement itself, in addition to what the source is to hold: so much, and this
share of the machine's (page tables, workers)."""
GROWTH = 1.1
"""The program is left room for so many times what it held when it ran alone."""
FREE_SHARE = 0.8
"""Maximum share of the memory that is free now: what runs beside the measured group must not be killed for it."""
DISK_SHARE = 0.5
"""Maximum share of the free disk a source uses, so that other work on the machine does not fail."""
START_S = 0.7
"""Time until a started source presses fully: its workers allocate and fill their buffers first."""
DISK_TRIAL_MIB, DISK_FILL_S = 64, 1.0
"""The disk's speed of allocation is tried with so much; a source takes no more than it allocates within that time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedSource:
    """A source as it runs next to a subject."""

    source: InterferenceSource
    highest: float
    """Maximum intensity (0..100) on this machine."""
    cpus: tuple[int, ...]
    """CPUs the source runs on: all of them are busy at intensity 100."""
    notes: tuple[str, ...]
    """Limitations, in sentences."""
    shares_cpus: bool = False
    """Whether some of its CPUs are the subject's."""


def place(stage: Stage, source: InterferenceSource, vcpus: float) -> PlacedSource:
    """Choose the CPUs of a source: all but the subject's if it is felt across cores, otherwise the subject's.

    Raises Unmeasurable if this machine has no memory or CPU time left for it.
    """
    own, notes = stage.cpus_of(vcpus), list[str]()
    cpus = own
    if source.cross_core:
        cpus = tuple(cpu for cpu in stage.cpus if cpu not in own) or own[-1:]
    if source.cross_core and cpus[0] in own:
        notes.append(
            f"this instance has no CPU besides the {vcpus:g} vCPU of the program, so sources that work across cores "
            "shared one with it"
        )
    highest = FULL
    if source.full_mib is not None:
        source = _as_large_as_fits(stage, source, len(cpus))
    elif stage.host.vcpus < vcpus + len(cpus):  # a CPU quota covers both the program and the source
        room = stage.host.vcpus - vcpus
        if room < ROOM_VCPUS_MIN:
            raise Unmeasurable(f"{source.name}: the program's {vcpus:g} vCPU leave no CPU time for it on this machine")
        highest = min(FULL, FULL * room / len(cpus))
        if highest < FULL:
            notes.append(f"sources ran at up to {highest:.3g} % only: the program's {vcpus:g} vCPU leave no more")
    return PlacedSource(
        source=source, highest=highest, cpus=cpus, notes=tuple(notes), shares_cpus=bool({*cpus} & {*own})
    )


def _as_large_as_fits(stage: Stage, source: InterferenceSource, workers: int) -> InterferenceSource:
    """Return the source whose full amount is what this machine has besides the subject."""
    if source.meter == "memory_mib":
        spare = max(SPARE_MIB + 4 * workers, SPARE_SHARE * stage.host.memory_mib)
        left = stage.host.memory_mib - GROWTH * stage.held_mib() - spare
        what, room = "memory", int(min(left, FREE_SHARE * stage.host.free_mib))
    else:
        what, room = "disk", disk_room_mib(stage.host.directory or Path(tempfile.gettempdir()))
    if room < CAPACITY_MIB_MIN:
        raise Unmeasurable(f"{source.name}: the program leaves no {what} for it on this machine")
    return replace(source, full_mib=room)


def disk_room_mib(directory: Path) -> int:
    """Return how much disk a source may take below a directory: a share of what is free, as far as it is fast enough.

    Some file systems allocate by writing zeros; its speed is tried on a small file.
    """
    disk = os.statvfs(directory)
    room = int(disk.f_bavail * disk.f_frsize / MIB * DISK_SHARE)
    if room <= DISK_TRIAL_MIB:
        return room
    with tempfile.TemporaryFile(dir=directory) as file:
        began = time.perf_counter()
        os.posix_fallocate(file.fileno(), 0, DISK_TRIAL_MIB * MIB)
        took_s = max(1e-6, time.perf_counter() - began)
    return min(room, max(DISK_TRIAL_MIB, int(DISK_TRIAL_MIB * DISK_FILL_S / took_s)))


@contextmanager
def pressing(
    stage: Stage, placed: PlacedSource, intensity: float, cpus: tuple[int, ...] = ()
) -> Iterator[RunningSource]:
    """Run the source while the block lasts, on ``cpus`` if given; the block begins once it holds what it is to hold.

    Raises the errors of ``sources.start``, and Unmeasurable if the subject fails meanwhile.
    """
    with start(
        placed.source,
        intensity,
        cpus or placed.cpus,
        host=stage.host,
        max_s=max(1.0, stage.left_s()) + SOURCE_MARGIN_S,
        directory=stage.host.directory,
        enter=stage.enter_network(),
    ) as running:
        if not running.fill(stage.attend):
            raise Unmeasurable(
                f"{placed.source.name}: this machine did not fill {running.holds_mib:.0f} MiB within "
                f"{running.fill_s_max:.0f} s"
            )
        if placed.shares_cpus:
            stage.source_cpu_s = lambda: running.used().cpu_s
        try:
            yield running
        finally:
            stage.source_cpu_s = lambda: 0.0


@contextmanager
def switchable(
    stage: Stage, placed: PlacedSource, intensity: float, cpus: tuple[int, ...] = ()
) -> Iterator[Callable[[], AbstractContextManager[object]]]:
    """Yield what makes the source press while a block lasts, as often as needed.

    It is started once and halted in between: a start takes most of a second until all presses. One that holds memory
    would go on to hold it, so it is started each time. Raises as ``pressing`` does.
    """
    if placed.source.meter == "memory_mib":
        yield lambda: pressing(stage, placed, intensity, cpus)
        return
    with pressing(stage, placed, intensity, cpus) as running:
        stage.attend(START_S)
        with running.at_rest() as presses:
            yield presses


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
