"""Where slices may be limited, on trees of files that look like the kernel's: this machine may have either version."""

from pathlib import Path

import pytest

from providers.local.cgroups import CgroupSetup, SliceLimits, find_cgroups, remove_cgroup

LIMITS = SliceLimits(vcpus=1.5, memory_mib=512, pids=100, cpus=(0, 2))


def version_2(root: Path, controllers: str) -> Path:
    """A directory like a version 2 mount, or group, with these controllers."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "cgroup.controllers").write_text(controllers)
    return root


def find(tmp_path: Path, mounts: list[str], own: str = "0::/") -> CgroupSetup:
    """What is found with these lines in the kernel's two files."""
    (tmp_path / "mounts").write_text("\n".join(mounts) + "\n")
    (tmp_path / "own").write_text(own + "\n")
    return find_cgroups("hcloud", mounts_file=tmp_path / "mounts", own_file=tmp_path / "own")


def test_version_2_is_preferred_and_its_values_are_the_kernels(tmp_path: Path) -> None:
    mount = version_2(tmp_path / "unified", "cpuset cpu io memory pids")
    room = find(tmp_path, [f"cgroup2 {mount} cgroup2 rw 0 0"])
    assert (room.version, room.controllers) == (2, ("cpu", "cpuset", "memory", "pids"))
    group = mount / "hcloud" / "local-1"
    group.mkdir(parents=True)
    files = ("cpu.max", "cpu.weight", "memory.max", "memory.swap.max", "pids.max", "cpuset.cpus")
    for file in files:
        (group / file).write_text("")
    room.create("local-1", LIMITS)
    assert [(group / file).read_text() for file in files] == ["150000 100000", "150", "536870912", "0", "100", "0,2"]
    assert (group / "cgroup.subtree_control").read_text() == "+cpu +cpuset +memory +pids"
    assert room.groups("local-1").procs_files == (f"{group}/worker/cgroup.procs",)
    assert (group / "worker").is_dir()


def test_delegated_subgroup_is_divided_beside_the_daemon(tmp_path: Path) -> None:
    mount = version_2(tmp_path / "unified", "cpu memory pids")
    service = version_2(mount / "system.slice" / "hcloud.service", "cpu memory pids")
    room = find(tmp_path, [f"cgroup2 {mount} cgroup2 rw 0 0"], own="0::/system.slice/hcloud.service/daemon")
    assert room.parents == {"unified": service / "hcloud"}


def test_version_1_is_used_where_version_2_lacks_controllers(tmp_path: Path) -> None:
    unified = version_2(tmp_path / "unified", "hugetlb")
    lines = [f"cgroup2 {unified} cgroup2 rw 0 0"]
    for name in ("cpu,cpuacct", "memory", "pids"):
        (tmp_path / name).mkdir()
        lines.append(f"cgroup {tmp_path / name} cgroup rw,relatime,{name} 0 0")
    room = find(tmp_path, lines)
    assert (room.version, room.controllers) == (1, ("cpu", "cpuacct", "memory", "pids"))
    assert len(room.groups("local-1").procs_files) == 3


def test_version_1_values_are_the_kernels(tmp_path: Path) -> None:
    room = CgroupSetup(
        version=1, parents={name: tmp_path / name / "hcloud" for name in ("cpu", "cpuset", "memory", "pids")}
    )
    files = {
        "cpu": ("cpu.cfs_period_us", "cpu.cfs_quota_us", "cpu.shares"),
        "memory": ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
        "pids": ("pids.max",),
        "cpuset": ("cpuset.cpus", "cpuset.mems"),
    }
    for name, each in files.items():
        for level in (tmp_path / name, tmp_path / name / "hcloud", tmp_path / name / "hcloud" / "local-1"):
            level.mkdir(parents=True, exist_ok=True)
            for file in each:
                (level / file).write_text("0-3" if level.name == "cpuset" else "")
    room.create("local-1", LIMITS)
    wrote = {
        file: (tmp_path / name / "hcloud/local-1" / file).read_text() for name, each in files.items() for file in each
    }
    assert wrote == {
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "150000",
        "cpu.shares": "1536",
        "memory.limit_in_bytes": "536870912",
        "memory.memsw.limit_in_bytes": "536870912",
        "pids.max": "100",
        "cpuset.cpus": "0,2",
        "cpuset.mems": "0-3",
    }


@pytest.mark.parametrize(
    ("mounts", "said"),
    [
        ([], "no control groups are mounted"),
        (["cgroup2 {0}/unified cgroup2 rw 0 0"], "has only the controllers ['memory']"),
        (["cgroup {0}/nowhere cgroup rw,cpu 0 0"], "no writable controller"),
    ],
)
def test_host_without_usable_groups_is_told_why(tmp_path: Path, mounts: list[str], said: str) -> None:
    version_2(tmp_path / "unified", "memory")
    room = find(tmp_path, [line.format(tmp_path) for line in mounts])
    assert room.version == 0
    assert said in room.unavailable_reason
    room.create("local-1", LIMITS)
    assert room.groups("local-1").paths == {}


def test_removal_takes_everything_below_and_the_empty_parent(tmp_path: Path) -> None:
    for name in ("cpu", "memory"):
        (tmp_path / name / "hcloud" / "local-1" / "job-1.1.0" / "deeper").mkdir(parents=True)
    (tmp_path / "memory" / "hcloud" / "local-2").mkdir()
    assert remove_cgroup({name: str(tmp_path / name / "hcloud" / "local-1") for name in ("cpu", "memory")})
    assert not (tmp_path / "cpu" / "hcloud").exists()
    assert (tmp_path / "memory" / "hcloud" / "local-2").exists()
