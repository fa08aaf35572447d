"""Where sources of interference run beside a program, and how much full intensity is on machines of any size."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from hcloud.core.errors import Unmeasurable
from hcloud.engine.host import EngineHost
from hcloud.engine.limits import Bounds
from hcloud.profiler.colocation import disk_room_mib, place, pressing
from hcloud.profiler.pressure_caused import _in_place
from hcloud.profiler.sources import source_named
from hcloud.profiler.subject import Stage, Subject
from tests.machine import needs_stress_ng

GIB = 1024


class Machine(EngineHost):
    """A machine of any size that is measured as a whole, ``free`` MiB of its memory being free."""

    def __init__(self, vcpus: float, memory_mib: int, free: float) -> None:
        super().__init__(bounds=Bounds(vcpus=vcpus, memory_mib=memory_mib, pids=100))
        self._free = free

    @property
    def memory_mib(self) -> float:
        assert self._bounds is not None
        return self._bounds.memory_mib

    @property
    def free_mib(self) -> float:
        return self._free


@pytest.fixture
def stage_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type:
    """Stages on machines of 16 CPUs, of which a quota may allow fewer."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))

    class On(Stage):
        def __init__(self, vcpus: float = 16.0, memory_mib: int = 64 * GIB, free: float = 1e9) -> None:
            subject = Subject(name="any", command=("any",), workdir=tmp_path)
            super().__init__(subject, Machine(vcpus, memory_mib, free), run_s=1.0, deadline=1e9)
            self.use = (1.0, 4.0 * GIB, 0.0, 0.0)

    return On


@pytest.mark.parametrize(("vcpus", "theirs"), [(1.0, range(1, 16)), (0.5, range(1, 16)), (4.0, range(4, 16))])
def test_full_intensity_is_every_cpu_but_the_programs(stage_on: type, vcpus: float, theirs: range) -> None:
    placed = place(stage_on(), source_named("memory-bandwidth"), vcpus)
    assert (placed.cpus, placed.highest, placed.notes) == (tuple(theirs), 100.0, ())


def test_source_of_one_core_presses_on_every_core_of_the_program(stage_on: type) -> None:
    assert place(stage_on(), source_named("l1d"), 4.0).cpus == (0, 1, 2, 3)


def test_quota_of_the_machine_is_its_size(stage_on: type) -> None:
    placed = place(stage_on(vcpus=4.0), source_named("memory-bandwidth"), 1.0)
    assert (placed.cpus, placed.highest) == ((1, 2, 3), 100.0)
    tight = place(stage_on(vcpus=2.5), source_named("memory-bandwidth"), 2.0)
    assert (tight.cpus, tight.highest) == ((2,), 50.0)
    assert "up to 50 % only" in tight.notes[0]


def test_program_on_every_cpu_shares_one_with_sources_and_that_is_said(stage_on: type) -> None:
    placed = place(stage_on(vcpus=2.0), source_named("memory-bandwidth"), 1.5)
    assert placed.cpus == (1,) and placed.highest == pytest.approx(50.0)
    assert "shared one with it" in placed.notes[0]


def test_memory_is_full_when_what_the_program_leaves_is_held(stage_on: type) -> None:
    full_mib = place(stage_on(), source_named("memory-capacity"), 1.0).source.full_mib
    assert full_mib is not None and 0.88 * 60 * GIB < full_mib < 60 * GIB


def test_memory_that_others_use_is_left_to_them(stage_on: type) -> None:
    assert place(stage_on(free=1000.0), source_named("memory-capacity"), 1.0).source.full_mib == 800
    with pytest.raises(Unmeasurable, match="leaves no memory"):
        place(stage_on(free=50.0), source_named("memory-capacity"), 1.0)


def test_source_in_the_place_of_a_small_program_presses_with_its_part(stage_on: type) -> None:
    stage = stage_on()
    placed = place(stage, source_named("memory-bandwidth"), 4.0)
    assert _in_place(stage, placed, 4.0) == ((0, 1, 2, 3), pytest.approx(100 * 4 / 12))
    most = place(stage, source_named("memory-bandwidth"), 12.0)
    assert _in_place(stage, most, 12.0) == ((0, 1, 2, 3), pytest.approx(100.0))


@pytest.mark.parametrize(("intensity", "workers"), [(100, 15), (50, 8), (20, 3), (1, 1)])
def test_workers_follow_intensity(intensity: int, workers: int, tmp_path: Path) -> None:
    command = source_named("integer").command(intensity, tmp_path, 10.0, 15)
    assert command[command.index("--cpu") + 1] == str(workers)


def test_disk_is_taken_by_share_and_by_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = os.statvfs(tmp_path)
    assert 0 < disk_room_mib(tmp_path) <= disk.f_bavail * disk.f_frsize / 2**20
    ticks = iter([0.0, 0.5])  # 64 MiB in half a second: a disk that writes zeros
    monkeypatch.setattr("hcloud.profiler.colocation.time.perf_counter", lambda: next(ticks))
    assert disk_room_mib(tmp_path) == 128
    assert list(tmp_path.iterdir()) == []


@needs_stress_ng
def test_source_has_a_worker_on_each_of_its_cpus(tmp_path: Path) -> None:
    host, cpus = EngineHost(directory=tmp_path), tuple(sorted(os.sched_getaffinity(0)))
    stage = Stage(Subject(name="none", command=("none",), workdir=tmp_path), host, run_s=1.0, deadline=1e12)
    placed = replace(place(stage, source_named("memory-capacity"), 0.5), cpus=cpus)
    placed = replace(placed, source=replace(placed.source, full_mib=120))
    with pressing(stage, placed, 100) as running:
        assert running.used().memory_mib >= 0.9 * 120
        own = {pid for pid in host.descendants(os.getpid()) if "stress-ng" in Path(f"/proc/{pid}/comm").read_text()}
        assert {tuple(sorted(os.sched_getaffinity(pid))) for pid in own} == {cpus}
        working = [pid for pid in own if _held_mib(pid) > 60 / len(cpus)]
        assert len(working) == len(cpus)


def _held_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
