"""Amounts of an instance's resources: vCPUs, memory, disk, GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """GPUs of one kind: all that an instance has, or as many as a rank requests."""

    count: int = 1
    kind: str = ""
    """Model as in :func:`gpu_kind`. In a request a pattern (``*`` and ``?``); empty: any."""
    memory_gib: float = 0.0
    """Memory of each GPU; in a request at least so much."""

    def accepts(self, other: Gpus) -> bool:
        """Return whether ``other`` are of a kind and memory that this request permits, however many they are."""
        of_kind = not self.kind or fnmatchcase(other.kind, self.kind)
        return of_kind and self.memory_gib <= other.memory_gib + 1e-9

    def described(self) -> str:
        """Return one of them as text: ``a100 80 GiB``."""
        memory = _gib(self.memory_gib) if self.memory_gib else ""
        return " ".join(each for each in (self.kind, memory) if each) or "GPU"

    def words(self) -> str:
        """Return them as text: ``2 GPUs of kind a100 with 80 GiB``."""
        kind = f" of kind {self.kind}" if self.kind else ""
        memory = f" with {_gib(self.memory_gib)}" if self.memory_gib else ""
        return f"{self.count} GPU{'' if self.count == 1 else 's'}{kind}{memory}"


def _gib(size: float) -> str:
    return f"{size:.0f} GiB" if size >= 100 else f"{size:.3g} GiB"


GPUS_REPORTED_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDevice:
    """A GPU as a machine reports it."""

    number: int
    """Its device node is ``/dev/nvidia<number>``."""
    kind: str
    """As in :func:`gpu_kind`; empty: not known."""
    memory_mib: int
    """0: not known."""


def devices_words(devices: Sequence[GpuDevice]) -> str:
    """Return what a machine reports as text: ``2 x t4 15360 MiB``; empty without GPUs."""
    alike = Counter((each.kind or "GPU", each.memory_mib) for each in devices)
    return ", ".join(f"{count} x {kind}" + (f" {size} MiB" if size else "") for (kind, size), count in alike.items())


def devices_from(rows: object) -> tuple[GpuDevice, ...]:
    """Return what a machine says of its GPUs: rows of number, kind and MiB. Raises ValueError: that cannot be."""
    if not isinstance(rows, list | tuple) or len(rows) > GPUS_REPORTED_MAX:
        raise ValueError("no list of GPUs")
    found = []
    for row in rows:
        if not isinstance(row, list | tuple) or len(row) != 3:
            raise ValueError("a GPU has a number, a kind and a size")
        number, kind, memory_mib = row
        if not (isinstance(number, int) and isinstance(kind, str) and isinstance(memory_mib, int)):
            raise ValueError("a GPU has a number, a kind and a size")
        if not 0 <= number < 1000 or len(kind) > 64 or not kind.isprintable() or not 0 <= memory_mib < 2**31:
            raise ValueError("a GPU out of range")
        found.append(GpuDevice(number=number, kind=kind, memory_mib=memory_mib))
    return tuple(found)


def gpu_kind(name: str) -> str:
    """Return the kind of a GPU by a vendor's name for it: ``a100-80gb`` of ``nvidia-a100-80gb``, ``t4`` of
    ``NVIDIA Tesla T4``."""
    words = name.lower().replace("_", "-").replace(" ", "-").split("-")
    return "-".join(each for each in words if each and each not in ("nvidia", "tesla"))


def free_gpus(count: int, taken: Iterable[int], wanted: int) -> tuple[int, ...]:
    """Return the ``wanted`` lowest numbers of an instance's ``count`` GPUs that are not ``taken``; fewer if there are
    not so many."""
    used = set(taken)
    return tuple(number for number in range(count) if number not in used)[:wanted]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """An amount of an instance's resources; ``vcpus`` may be fractional."""

    vcpus: float = 1.0
    memory_mib: int = 512
    disk_gib: float = 1.0
    gpus: Gpus | None = None
    """None: no GPU."""

    @property
    def gpu_count(self) -> int:
        """How many GPUs."""
        return 0 if self.gpus is None else self.gpus.count

    def fits(self, other: Resources) -> bool:
        """Return whether this amount fits into ``other``, with tolerance for rounding in vCPUs and disk."""
        return (
            self.vcpus <= other.vcpus + 1e-9
            and self.memory_mib <= other.memory_mib
            and self.disk_gib <= other.disk_gib + 1e-9
            and (self.gpus is None or _gpus_fit(self.gpus, other.gpus))
        )

    def plus(self, other: Resources) -> Resources:
        """Return the sum; its GPUs are of the kind of this amount's, if that has any."""
        return Resources(
            vcpus=self.vcpus + other.vcpus,
            memory_mib=self.memory_mib + other.memory_mib,
            disk_gib=self.disk_gib + other.disk_gib,
            gpus=self.gpus if other.gpus is None else _added(self.gpus, other.gpus, 1),
        )

    def minus(self, other: Resources) -> Resources:
        """Return the difference; amounts may be negative."""
        return Resources(
            vcpus=self.vcpus - other.vcpus,
            memory_mib=self.memory_mib - other.memory_mib,
            disk_gib=self.disk_gib - other.disk_gib,
            gpus=self.gpus if other.gpus is None else _added(self.gpus, other.gpus, -1),
        )


def resources_from(plain: Mapping[str, Any]) -> Resources:
    """Return resources again of which a plain dictionary was made."""
    gpus = plain.get("gpus")
    return Resources(**{**plain, "gpus": Gpus(**gpus) if gpus is not None else None})


def _gpus_fit(wanted: Gpus, there: Gpus | None) -> bool:
    if there is None:
        return wanted.count <= 0
    return wanted.count <= there.count and wanted.accepts(there)


def _added(one: Gpus | None, other: Gpus, sign: int) -> Gpus | None:
    count = (0 if one is None else one.count) + sign * other.count
    return replace(one or other, count=count) if count else None


NOTHING = Resources(vcpus=0.0, memory_mib=0, disk_gib=0.0)
