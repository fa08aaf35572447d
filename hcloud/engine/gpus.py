"""The GPUs of a machine (NVIDIA's), and what a unit sees of them: the device nodes of its own and no others.

A unit's ``/dev`` holds only what is bound into it, its file systems are mounted without device nodes, and it may not
make any (no CAP_MKNOD). So no list of devices in a control group is needed, of whatever version.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hcloud.core.resources import GPUS_REPORTED_MAX, GpuDevice, gpu_kind

CONTROL_DEVICES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
"""Device nodes that all users of GPUs share: they give access to no GPU by themselves."""
DRIVER_PLACE = "/.hcloud/nvidia"
"""Where units in an image find the driver's libraries and ``nvidia-smi``, which match the machine's kernel module."""
_DRIVER_FOLDERS = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/local/nvidia/lib64")
_DRIVER_LIBRARIES = ("libcuda.so*", "libcudadebugger.so*", "libnvidia-*.so*", "libnvcuvid.so*")
_DRIVER_LIMIT_S = 30
_NODE = re.compile(r"nvidia([0-9]{1,3})")
_SIZES = ("--query-gpu=pci.bus_id,memory.total", "--format=csv,noheader,nounits")


def find_gpus(root: Path) -> tuple[GpuDevice, ...]:
    """Return the GPUs for which there are device nodes below ``root`` (``/``, in tests another), by number. Lets the
    driver make its nodes, which after a boot are missing until it is first used."""
    tools = f"{root}/usr/bin:{root}/bin:{root}/usr/sbin:{root}/sbin"
    smi = shutil.which("nvidia-smi", path=tools)
    sizes = dict(_sizes(_output([smi, *_SIZES]))) if smi is not None else {}
    if smi is not None and (modprobe := shutil.which("nvidia-modprobe", path=tools)) is not None:
        _output([modprobe, "-u", "-c=0"])  # makes nvidia-uvm
    known = dict(_informations(root / "proc/driver/nvidia/gpus", sizes))
    numbers = sorted(int(found[1]) for path in _listed(root / "dev") if (found := _NODE.fullmatch(path.name)))
    return tuple(
        known.get(number, GpuDevice(number=number, kind="", memory_mib=0)) for number in numbers[:GPUS_REPORTED_MAX]
    )


def devices_of(root: Path, gpus: Sequence[GpuDevice]) -> tuple[tuple[str, str], ...]:
    """Return the device nodes that a unit with these GPUs gets, each with where it finds them; without GPUs: none."""
    if not gpus:
        return ()
    names = (*(f"nvidia{each.number}" for each in gpus), *CONTROL_DEVICES)
    return tuple((str(root / "dev" / name), f"/dev/{name}") for name in names if (root / "dev" / name).exists())


def driver_files(root: Path) -> tuple[tuple[str, str], ...]:
    """Return the driver's files below ``root``, links resolved, each with where a unit in an image finds it."""
    found = dict[str, Path]()
    for folder in _DRIVER_FOLDERS:
        for pattern in _DRIVER_LIBRARIES:
            for path in sorted((root / folder).glob(pattern)):
                found.setdefault(path.name, path)
    tool = root / "usr/bin/nvidia-smi"
    if tool.exists():
        found[tool.name] = tool
    return tuple((str(path.resolve()), f"{DRIVER_PLACE}/{name}") for name, path in found.items() if path.is_file())


def driver_environment(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables by which programs find the driver's files, added to those of a unit in an image."""
    before = environment.get("LD_LIBRARY_PATH", "")
    found = {"LD_LIBRARY_PATH": f"{DRIVER_PLACE}:{before}" if before else DRIVER_PLACE}
    if path := environment.get("PATH", ""):
        found["PATH"] = f"{path}:{DRIVER_PLACE}"
    return found


def gpu_environment(there: Sequence[GpuDevice], own: Sequence[GpuDevice], *, is_sandboxed: bool) -> Mapping[str, str]:
    """Return the variables by which programs choose among the GPUs ``there``; empty if there are none.

    CUDA counts the GPUs that it can open, from 0: in a sandbox only its ``own`` ones.
    """
    if not there:
        return {}
    numbers = [str(each.number) for each in own]
    visible = list(map(str, range(len(own)))) if is_sandboxed else numbers
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(visible),
        "NVIDIA_VISIBLE_DEVICES": ",".join(numbers) or "void",
    }


def _informations(folder: Path, sizes: Mapping[str, int]) -> Iterator[tuple[int, GpuDevice]]:
    """Yield what the driver says of each GPU, by number: its folder has the name of its place on the bus."""
    for path in _listed(folder):
        with suppress(OSError, ValueError, KeyError):
            lines = (path / "information").read_text(errors="replace")[:4096].splitlines()
            facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            number = int(facts["Device Minor"])
            size = sizes.get(_bus_place(path.name), 0)
            yield number, GpuDevice(number=number, kind=gpu_kind(facts.get("Model", "")), memory_mib=size)


def _sizes(text: str) -> Iterator[tuple[str, int]]:
    for line in text.splitlines():
        place, _, size = line.partition(",")
        with suppress(ValueError):
            yield _bus_place(place), int(size)


def _bus_place(text: str) -> str:
    """Return a place on the bus in one spelling: the domain has four digits or eight."""
    domain, _, rest = text.strip().lower().partition(":")
    return f"{domain.lstrip('0') or '0'}:{rest}"


def _output(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=_DRIVER_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
