"""The predefined machine types of Compute Engine: vCPUs, memory, and the billed amounts.

Google prices vCPUs and memory of a family separately; machine types are fixed combinations of them (Compute Engine
documentation, "General-purpose", "Compute-optimized" and "Memory-optimized machine family"). Price lists therefore
contain parts, not types. Custom types are not included, as their number is unlimited.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Final

from hcloud.catalog.prices import TypeSize

_COUNTS: Final[Mapping[str, tuple[int, ...]]] = {
    "n1": (2, 4, 8, 16, 32, 64, 96),
    "n2": (2, 4, 8, 16, 32, 48, 64, 80, 96),
    "n2d": (2, 4, 8, 16, 32, 48, 64, 80, 96),
    "n4": (2, 4, 8, 16, 32, 48, 64, 80),
    "e2": (2, 4, 8, 16),
    "c2": (4, 8, 16, 30, 60),
    "c2d": (2, 4, 8, 16, 32, 56, 112),
    "c3": (4, 8, 22, 44, 88, 176),
    "c3d": (4, 8, 16, 30, 60, 90, 180, 360),
    "t2d": (1, 2, 4, 8, 16, 32, 48, 60),
    "t2a": (1, 2, 4, 8, 16, 32, 48),
}
"""Numbers of vCPUs that every series of a family has."""
_MORE: Final[Mapping[tuple[str, str], tuple[int, ...]]] = {
    ("n1", "standard"): (1,),
    ("n2", "standard"): (128,),
    ("n2d", "standard"): (128, 224),
    ("n2d", "highcpu"): (128, 224),
    ("e2", "standard"): (32,),
    ("e2", "highcpu"): (32,),
}
_GIB_PER_VCPU: Final[Mapping[tuple[str, str], float]] = {
    ("n1", "standard"): 3.75, ("n1", "highmem"): 6.5, ("n1", "highcpu"): 0.9,
    ("n2", "standard"): 4, ("n2", "highmem"): 8, ("n2", "highcpu"): 1,
    ("n2d", "standard"): 4, ("n2d", "highmem"): 8, ("n2d", "highcpu"): 1,
    ("n4", "standard"): 4, ("n4", "highmem"): 8, ("n4", "highcpu"): 2,
    ("e2", "standard"): 4, ("e2", "highmem"): 8, ("e2", "highcpu"): 1,
    ("c2", "standard"): 4,
    ("c2d", "standard"): 4, ("c2d", "highmem"): 8, ("c2d", "highcpu"): 2,
    ("c3", "standard"): 4, ("c3", "highmem"): 8, ("c3", "highcpu"): 2,
    ("c3d", "standard"): 4, ("c3d", "highmem"): 8, ("c3d", "highcpu"): 2,
    ("t2d", "standard"): 4,
    ("t2a", "standard"): 4,
}  # fmt: skip
_OTHERS: Final[Mapping[str, tuple[str, float, float]]] = {
    "n2-highmem-128": ("n2", 128, 864),
    "m1-ultramem-40": ("m1", 40, 961),
    "m1-ultramem-80": ("m1", 80, 1922),
    "m1-ultramem-160": ("m1", 160, 3844),
    "m1-megamem-96": ("m1", 96, 1433.6),
}
_WITH_GPUS: Final[Mapping[str, tuple[str, float, float, str, int]]] = {
    # type: (family, vCPUs, GiB, GPU, number of GPUs); "GPU machine types". Types that bring local disks are not
    # included, as the disks are billed apart: a2-ultragpu, a3, a4, g4.
    **{f"a2-highgpu-{n}g": ("a2", 12.0 * n, 85.0 * n, "a100", n) for n in (1, 2, 4, 8)},
    "a2-megagpu-16g": ("a2", 96, 1360, "a100", 16),
    **{f"g2-standard-{n}": ("g2", n, 4.0 * n, "l4", gpus)
       for n, gpus in ((4, 1), (8, 1), (12, 1), (16, 1), (24, 2), (32, 1), (48, 4), (96, 8))},
}  # fmt: skip
_SHARED: Final[Mapping[str, tuple[str, float, float, float]]] = {
    # type: (family, vCPUs, billed vCPUs, GiB)
    "e2-micro": ("e2", 2, 0.25, 1),
    "e2-small": ("e2", 2, 0.5, 2),
    "e2-medium": ("e2", 2, 1, 4),
    "f1-micro": ("f1", 1, 1, 0.6),
    "g1-small": ("g1", 1, 1, 1.7),
}
WHOLE_MACHINE_FAMILIES: Final = frozenset({"f1", "g1"})
"""Families for which the price per vCPU is that of the whole machine, memory included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One machine type: its size, and the billed amounts of its family's vCPUs and memory."""

    family: str
    size: TypeSize
    billed_vcpus: float
    billed_gib: float
    gpu: str = ""
    """Kind of its GPUs, each of which is billed; empty: it has none."""


@cache
def shapes() -> Mapping[str, Shape]:
    """Return every predefined machine type by name."""
    made: dict[str, Shape] = {}
    for (family, series), gib_per_vcpu in _GIB_PER_VCPU.items():
        for count in (*_MORE.get((family, series), ()), *_COUNTS[family]):
            made[f"{family}-{series}-{count}"] = _shape(family, count, count * gib_per_vcpu)
    for name, (family, vcpus, gib) in _OTHERS.items():
        made[name] = _shape(family, vcpus, gib)
    for name, (family, vcpus, gib, gpu, count) in _WITH_GPUS.items():
        size = TypeSize(vcpus=vcpus, memory_mib=int(gib * 1024), gpus=count)
        made[name] = Shape(family=family, size=size, billed_vcpus=vcpus, billed_gib=gib, gpu=gpu)
    for name, (family, vcpus, billed, gib) in _SHARED.items():
        size = TypeSize(vcpus=vcpus, memory_mib=round(gib * 1024), burstable=True)
        made[name] = Shape(family=family, size=size, billed_vcpus=billed, billed_gib=gib)
    return MappingProxyType(dict(sorted(made.items())))


def _shape(family: str, vcpus: float, gib: float) -> Shape:
    size = TypeSize(vcpus=vcpus, memory_mib=int(gib * 1024), arch="arm64" if family == "t2a" else "x86_64")
    return Shape(family=family, size=size, billed_vcpus=vcpus, billed_gib=gib)


def whole_price(
    shape: Shape, vcpu_usd_per_h: float | None, gib_usd_per_h: float | None, gpu_usd_per_h: float | None = None
) -> float | None:
    """Return the price of a type from the prices of its family's parts and of a GPU, or None if one is unknown."""
    if shape.gpu:
        if vcpu_usd_per_h is None or gib_usd_per_h is None or gpu_usd_per_h is None:
            return None
        return shape.billed_vcpus * vcpu_usd_per_h + shape.billed_gib * gib_usd_per_h + shape.size.gpus * gpu_usd_per_h
    if vcpu_usd_per_h is None:
        return None
    if shape.family in WHOLE_MACHINE_FAMILIES:
        return shape.billed_vcpus * vcpu_usd_per_h
    if gib_usd_per_h is None:
        return None
    return shape.billed_vcpus * vcpu_usd_per_h + shape.billed_gib * gib_usd_per_h
