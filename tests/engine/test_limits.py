"""Control groups of both versions. Version 2 is shown on a directory that looks like one, where the kernel has none."""

import os
import subprocess
from pathlib import Path

import pytest

from hcloud.engine import leftovers
from hcloud.engine.limits import (
    Bounds,
    CgroupV1,
    CgroupV2,
    find_instance_cgroup,
    group_for,
    remove_found_cgroup,
    remove_instance_cgroup,
)
from tests.machine import needs_cgroups_v1
from tests.waiting import wait_until

BOUNDS = Bounds(vcpus=1.5, memory_mib=64, pids=50, cpus=(0,))


@pytest.fixture
def parent_v2(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids io\n")
    (tmp_path / "u").mkdir()
    (tmp_path / "u" / "memory.swap.max").write_text("max")
    return tmp_path


def test_v2_limits_are_written_for_the_controllers_there_are(parent_v2: Path) -> None:
    CgroupV2(parent_v2, "u").make(BOUNDS)
    written = {path.name: path.read_text() for path in (parent_v2 / "u").iterdir()}
    assert written == {
        "cpu.max": "150000 100000",
        "memory.max": str(64 << 20),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "50",
    }
    assert (parent_v2 / "cgroup.subtree_control").read_text() == "+cpu +memory +pids +io"


def test_v2_limits_are_changed_while_it_runs(parent_v2: Path) -> None:
    group = CgroupV2(parent_v2, "u")
    group.make(BOUNDS)
    group.rebound(vcpus=2.5, memory_mib=128)
    assert (parent_v2 / "u" / "cpu.max").read_text() == "250000 100000"
    assert group.vcpus() == 2.5
    assert (parent_v2 / "u" / "memory.max").read_text() == str(128 << 20)


def test_limits_on_cpu_time_are_read_as_they_are_now(parent_v2: Path, tmp_path: Path) -> None:
    (tmp_path / "cpu" / "u").mkdir(parents=True)
    old, new = CgroupV1({"cpu": str(tmp_path / "cpu")}, "u"), CgroupV2(parent_v2, "u")
    assert (old.vcpus(), new.vcpus()) == (None, None), "there are no such files"
    for quota, limit in (("150000", 1.5), ("-1", None)):
        (tmp_path / "cpu" / "u" / "cpu.cfs_quota_us").write_text(quota + "\n")
        assert old.vcpus() == limit
    for quota, limit in (("25000 100000", 0.25), ("max 100000", None)):
        (parent_v2 / "u" / "cpu.max").write_text(quota + "\n")
        assert new.vcpus() == limit


def test_v2_usage_is_read(parent_v2: Path) -> None:
    group = parent_v2 / "u"
    (group / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (group / "memory.current").write_text(str(50 << 20))
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {20 << 20}\n")
    (group / "io.stat").write_text(f"8:0 rbytes={4 << 20} wbytes={2 << 20} rios=1\n8:16 rbytes={1 << 20} wbytes=0\n")
    (group / "memory.events").write_text("oom 2\noom_kill 1\n")
    usage = CgroupV2(parent_v2, "u").usage()
    assert (usage.cpu_s, usage.memory_mib, usage.read_mib, usage.written_mib) == (2.5, 30.0, 5.0, 2.0)
    assert CgroupV2(parent_v2, "u").oom_kills() == 1


def test_v2_missing_numbers_are_none_and_not_zero(parent_v2: Path) -> None:
    usage = CgroupV2(parent_v2, "u").usage()
    assert (usage.cpu_s, usage.memory_mib, usage.read_mib) == (None, None, None)


def test_handle_is_of_the_version_the_provider_made(tmp_path: Path) -> None:
    assert isinstance(group_for({"version": 1, "paths": {"cpu": str(tmp_path)}}, "u"), CgroupV1)
    assert isinstance(group_for({"version": 2, "paths": {"unified": str(tmp_path)}}, "u"), CgroupV2)
    assert group_for(None, "u") is None


@needs_cgroups_v1
def test_v1_group_holds_counts_and_kills_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"test.{os.getpid()}"
    cgroup = find_instance_cgroup(name, None)
    group = group_for(cgroup, "u")
    assert isinstance(group, CgroupV1)
    try:
        group.make(Bounds(vcpus=0.5, memory_mib=64, pids=20))
        script = "(setsid sleep 300 &) ; while :; do :; done"
        process = subprocess.Popen(["/bin/sh", "-c", script], preexec_fn=group.enter)
        wait_until(lambda: len(group.processes()) >= 2 and (group.usage().cpu_s or 0) > 0.05, timeout_s=60)
        assert group.usage().memory_mib is not None
        with monkeypatch.context() as patch:
            patch.setattr("time.sleep", lambda _: pytest.fail("a worker that boots waits for another one's units"))
            remove_found_cgroup(name)
        assert group.processes()
        assert group.kill(lambda: None)
        assert process.wait() == -9 and group.processes() == set()
    finally:
        group.kill(lambda: None)
        group.remove()
        remove_instance_cgroup(cgroup)
    assert all(not Path(path).exists() for path in (cgroup or {})["paths"].values())


def test_what_a_killed_slice_left_behind_is_taken_back_by_the_next_worker(tmp_path: Path) -> None:
    (tmp_path / "alive").mkdir()
    leftovers.note("inst-1.dead", tmp_path / "gone", tmp_path / "notes")
    leftovers.note("inst-2.alive", tmp_path / "alive", tmp_path / "notes")
    removed: list[str] = []
    leftovers.take_back(removed.append, tmp_path / "notes")
    leftovers.take_back(removed.append, tmp_path / "notes")
    assert removed == ["inst-1.dead"]
    assert [path.name for path in (tmp_path / "notes").iterdir()] == ["inst-2.alive"]
