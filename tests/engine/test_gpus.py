"""GPUs on a machine: reported, seen by the units that were given them and by no others, and one unit's at a time."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hcloud.core.resources import GpuDevice, Gpus, devices_from, devices_words
from hcloud.engine.gpus import devices_of, find_gpus, gpu_environment
from hcloud.engine.wire import unit_from_wire, unit_to_wire
from hcloud.provider import UnitSpec
from tests.engine.site import SMALL, Site, Watch, new_unit_id
from tests.machine import needs_bwrap

NAME = "inst-gpu"
T4, A100 = GpuDevice(number=0, kind="t4", memory_mib=15360), GpuDevice(number=1, kind="a100-pcie-40gb", memory_mib=0)
LOOK = 'ls /dev | grep nvidia | tr "\\n" " "; echo "$CUDA_VISIBLE_DEVICES/$NVIDIA_VISIBLE_DEVICES"'


def machine_root(folder: Path) -> Path:
    """Return a directory with what the driver of two GPUs shows, one of them of known size."""
    for place, model, number in (("0000:00:1e.0", "Tesla T4", 0), ("0000:00:1f.0", "NVIDIA A100-PCIE-40GB", 1)):
        shown = folder / "proc/driver/nvidia/gpus" / place
        shown.mkdir(parents=True)
        (shown / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 10\nDevice Minor: \t {number}\n")
    (folder / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (folder / "dev" / name).touch()
    tool = folder / "usr/bin/nvidia-smi"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\necho '00000000:00:1E.0, 15360'\necho 'unreadable'\n")
    tool.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    """What an engine says that has one machine with two GPUs."""
    root = machine_root(tmp_path_factory.mktemp("gpus"))
    site = Site(tmp_path_factory.mktemp("site"), isolation="best_effort", settings={"gpu_root": str(root)})
    try:
        site.machine(NAME)
        watch = Watch(site.runner())
        watch.registered(NAME)
        yield watch
    finally:
        site.close()


def unit(script: str, *gpus: int) -> UnitSpec:
    wanted = replace(SMALL, gpus=Gpus(count=len(gpus)) if gpus else None)
    command = ("/bin/sh", "-c", script)
    return UnitSpec(id=new_unit_id(), instance_id=NAME, rank=0, command=command, resources=wanted, gpus=gpus)


def test_a_machine_reports_its_gpus(watch: Watch) -> None:
    [worker] = watch.runner.observe().workers
    assert worker.gpus == (T4, A100)
    assert devices_words(worker.gpus) == "1 x t4 15360 MiB, 1 x a100-pcie-40gb"


@needs_bwrap
def test_a_unit_sees_its_own_gpus_and_another_unit_none(watch: Watch) -> None:
    second, plain = unit(LOOK, 1), unit(LOOK)
    watch.runner.start([second, plain])
    assert [watch.ended(each).exit_code for each in (second, plain)] == [0, 0]
    assert watch.output(second) == "nvidia-uvm nvidia1 nvidiactl 0/1\n", "programs count what they can open, from 0"
    assert watch.output(plain) == "/void\n"


def test_a_gpu_runs_one_unit_at_a_time_and_one_that_is_not_there_is_refused(watch: Watch) -> None:
    first, again, absent = unit("sleep 1000", 0), unit("true", 0), unit("true", 2)
    watch.runner.start([first])
    watch.running(first)
    results = watch.runner.start([again, absent])
    assert (results[again.id].outcome, results[again.id].detail) == ("refused", "another unit runs on GPU 0")
    assert results[absent.id].detail == "there is no GPU 2: its driver shows 2"
    watch.runner.stop({first.id: NAME}, cause=None)
    watch.ended(first)
    after = unit("true", 0)
    watch.runner.start([after])
    assert watch.ended(after).exit_code == 0


def test_what_is_found_below_a_root(tmp_path: Path) -> None:
    assert find_gpus(tmp_path) == ()
    root = machine_root(tmp_path)
    assert find_gpus(root) == (T4, A100)
    assert [place for _, place in devices_of(root, [A100])] == ["/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"]
    assert devices_of(root, []) == ()
    assert gpu_environment((), (), is_sandboxed=True) == {}
    bare = gpu_environment((T4, A100), (A100,), is_sandboxed=False)
    assert bare["CUDA_VISIBLE_DEVICES"] == "1", "without a sandbox programs can open all"


def test_a_spec_with_gpus_travels_and_one_without_looks_as_before() -> None:
    asked = replace(unit("true", 0, 1), resources=replace(SMALL, gpus=Gpus(count=2, kind="t4", memory_gib=16.0)))
    assert unit_from_wire(unit_to_wire(asked)) == asked
    plain = unit_to_wire(unit("true"))
    assert "gpus" not in plain and "gpus" not in plain["resources"]


@pytest.mark.parametrize(
    "rows", [None, "ab", [1], [[0, "t4"]], [[-1, "t4", 1]], [["0", "t4", 1]], [[0, "t" * 65, 1]], [[0, "\n", 1]]]
)
def test_a_machine_that_reports_nonsense_of_its_gpus_is_taken_to_have_none(rows: object) -> None:
    with pytest.raises(ValueError):
        devices_from(rows)
    assert devices_from([[0, "t4", 15360]]) == (T4,)
