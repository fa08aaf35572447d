"""Gangs of two nodes for tests: what they run, and what that needs of the machine."""

import importlib.metadata
import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

from hcloud.core.model import FailureCause, Resources
from hcloud.provider import UnitSpec
from tests.engine.site import Site, Watch, new_unit_id
from tests.machine import needs

NODES = ("inst-1", "inst-2")
SAME_PYTHON = Path("/usr/bin/python3").exists() and subprocess.run(
    ["/usr/bin/python3", "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True, check=False
).stdout.strip() == str(sys.version_info[:2])
needs_same_python = needs(SAME_PYTHON, "the machine's own Python cannot load the packages of the tests")
DASK_CLIENT = (
    "import os, sys; from distributed import Client; client = Client(); client.wait_for_workers(2, timeout=60); "
    "print(sorted(each['name'] for each in client.scheduler_info()['workers'].values()), "
    "client.submit(sum, range(100)).result(), os.environ['DASK_SCHEDULER_ADDRESS'].partition(':')[0]); sys.exit(7)"
)
MPI_PROGRAM = (
    "import os, sys; from mpi4py import MPI; world = MPI.COMM_WORLD; total = world.allreduce(world.rank + 1); "
    "print(world.rank, 'of', world.size, 'on node', os.environ['HCLOUD_RANK'], 'sum', total, flush=True); sys.exit(3)"
)


def watched(site: Site) -> Watch:
    """What the engine says once both machines have registered."""
    watch = Watch(site.runner())
    watch.registered(*NODES)
    return watch


def packages(name: str, found: dict[str, importlib.metadata.Distribution]) -> None:
    """Add a package and what it requires."""
    name = re.sub(r"[-_.]+", "-", name).lower()
    if name in found:
        return
    try:
        found[name] = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:  # of another version of Python
        return
    for each in found[name].requires or ():
        if "extra ==" not in each:
            packages(re.split(r"[^A-Za-z0-9_.-]", each)[0], found)


def work_directory(path: Path, names: tuple[str, ...] = (), programs: Mapping[str, str] | None = None) -> str:
    """An archive with installed packages, and programs in bin/."""
    found: dict[str, importlib.metadata.Distribution] = {}
    for name in names:
        packages(name, found)
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for each in found.values():
            for file in each.files or ():
                if not str(file).startswith("..") and "tests" not in file.parts:
                    tar.add(str(file.locate()), arcname=str(file), recursive=False)
        for name, text in (programs or {}).items():
            entry = tarfile.TarInfo(f"bin/{name}")
            entry.mode, entry.size = 0o755, len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return str(path)


def gang(framework: str, *command: str, workdir: str | None = None) -> list[UnitSpec]:
    """The units of a gang on both machines."""
    nodes, attempt = NODES, new_unit_id().rpartition(".")[0]
    return [
        UnitSpec(
            id=f"{attempt}.{rank}_mark", instance_id=name, rank=rank, command=command, workdir=workdir, network="host",
            resources=Resources(vcpus=2, memory_mib=512, disk_gib=0.2), framework=framework,  # type: ignore[arg-type]
            peers=nodes, addresses=("127.0.0.1",) * len(nodes),
            env={"PATH": "/job/bin:/usr/bin:/bin", "PYTHONPATH": "/job", "HCLOUD_NODES": str(len(nodes))},
        )
        for rank, name in enumerate(nodes)
    ]  # fmt: skip


def run(watch: Watch, units: list[UnitSpec]) -> list[int | None]:
    """Start a gang; return each rank's exit code."""
    assert {each.outcome for each in watch.runner.start(units).values()} == {"started"}
    ended = [watch.ended(unit) for unit in units]
    assert {each.cause for each in ended} <= {None, FailureCause.EXIT_CODE}, ended
    return [each.exit_code for each in ended]
