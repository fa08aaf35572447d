"""Sources of interference reach the requested intensity, and leave nothing behind however they end."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hcloud.core.errors import BadInput, NotFound, UnitRefused
from hcloud.engine.host import EngineHost
from hcloud.engine.limits import found_cgroups
from hcloud.profiler.namespaces import loopback_network
from hcloud.profiler.sources import SOURCES, InterferenceSource, source_named, start
from tests.engine.test_metrics_as_user import as_ordinary_user
from tests.machine import needs_stress_ng
from tests.waiting import wait_until

HOST = EngineHost()
CPU = (max(os.sched_getaffinity(0)),)
SPARING = [each for each in SOURCES if each.name != "interconnect"]  # that one is felt by the whole host


def groups(pid: int) -> set[str]:
    """Control groups a process created for sources."""
    return found_cgroups(f"profile-{pid}")


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """No group, file or process of a source outlives its block."""
    yield
    assert not groups(os.getpid())
    assert not list(tmp_path.glob("hcloud-source-*"))


def test_the_fifteen_of_the_paper_are_there_with_one_variant() -> None:
    assert [source.number for source in SOURCES if source.number.isdigit()] == [str(at) for at in range(1, 16)]
    assert [source.name for source in SOURCES if not source.number.isdigit()] == ["l2"]
    assert len({source.name for source in SOURCES}) == len(SOURCES)


@needs_stress_ng
@pytest.mark.parametrize(
    "source", [each for each in SOURCES if each.name != "interconnect"], ids=lambda each: each.name
)
def test_every_source_starts_and_works(source: InterferenceSource, tmp_path: Path) -> None:
    with loopback_network(HOST) as enter, start(source, 100, CPU, host=HOST, directory=tmp_path, enter=enter) as load:
        wait_until(lambda: getattr(load.used(), source.meter) > 0, timeout_s=60)
        assert load.running
    assert not load.running


@needs_stress_ng
def test_memory_held_follows_intensity(tmp_path: Path) -> None:
    source = replace(source_named("memory-capacity"), full_mib=160)
    for intensity, least, most in ((25, 36, 90), (100, 144, 220)):
        with start(source, intensity, CPU, host=HOST, directory=tmp_path) as load:
            wait_until(lambda at=least, load=load: load.used().memory_mib >= at, timeout_s=60)
            assert load.used().memory_mib < most


@needs_stress_ng
def test_quota_holds_a_source_to_its_share(tmp_path: Path) -> None:
    began = os.times().elapsed
    with start(source_named("integer"), 20, CPU, host=HOST, directory=tmp_path) as load:
        if not load.tunable:
            pytest.fail("this machine refuses control groups, yet an intensity of 20 % was accepted")
        # Read in this order, a stalled machine only makes the share smaller.
        wait_until(lambda: os.times().elapsed - began > 1.5 and load.used().cpu_s > 0, timeout_s=60)
        used_s = load.used().cpu_s
        assert used_s / (os.times().elapsed - began) < 0.35


@needs_stress_ng
def test_source_at_rest_takes_nothing_and_presses_at_once_when_it_is_let(tmp_path: Path) -> None:
    with start(source_named("integer"), 100, CPU, host=HOST, directory=tmp_path) as load:
        wait_until(lambda: load.used().cpu_s > 0.1, timeout_s=30)
        with load.at_rest() as presses:
            rested, before_s = os.times().elapsed, load.used().cpu_s
            wait_until(lambda: os.times().elapsed - rested > 0.3, timeout_s=30)
            assert load.used().cpu_s - before_s <= 0.05
            with presses():
                wait_until(lambda: load.used().cpu_s > before_s + 0.1, timeout_s=30)
            assert load.running
        wait_until(lambda: load.used().cpu_s > before_s + 0.2, timeout_s=30)


@needs_stress_ng
def test_intensity_zero_is_nothing(tmp_path: Path) -> None:
    with start(source_named("integer"), 0, CPU, host=HOST, directory=tmp_path) as load:
        assert not load.running
        assert load.used().cpu_s == 0


@needs_stress_ng
def test_load_ends_by_itself_when_its_time_is_over(tmp_path: Path) -> None:
    with start(source_named("integer"), 100, CPU, host=HOST, max_s=1, directory=tmp_path) as load:
        wait_until(lambda: not load.running, timeout_s=60)


FOREVER = """
import sys, time
from hcloud.engine.host import EngineHost
from hcloud.profiler.sources import source_named, start
source, cpus = source_named("integer"), (int(sys.argv[1]),)
with start(source, 50, cpus, host=EngineHost(), max_s=600, directory=sys.argv[2]) as load:
    print(load._process.pid, flush=True)
    sys.stdin.read()
"""


@needs_stress_ng
def test_load_dies_with_a_killed_starter_and_its_group_is_swept(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FOREVER, str(CPU[0]), str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        starter.send_signal(signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), timeout_s=60)
    wait_until(lambda: _swept(starter.pid), timeout_s=60)
    for left in tmp_path.glob("hcloud-source-*"):  # all owners are dead, and it holds no data
        assert not [path for path in left.rglob("*") if path.is_file()]
        shutil.rmtree(left)


def _swept(pid: int) -> bool:
    """Creating a group removes those of dead processes."""
    with HOST.own_group(vcpus=1, memory_mib=64, pids=8, cpus=None):
        return not groups(pid)


def test_nonsense_is_refused_in_one_sentence(tmp_path: Path) -> None:
    for intensity, cpus, words in ((101, CPU, "between 0 and 100"), (50, (9999,), "cannot be used"), (50, (), "CPUs")):
        with (
            pytest.raises(BadInput, match=words),
            start(source_named("integer"), intensity, cpus, host=HOST, directory=tmp_path),
        ):
            pytest.fail("it started")
    with pytest.raises(NotFound, match="there is no source 'gpu'; known sources are memory-capacity"):
        source_named("gpu")


def test_missing_program_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(UnitRefused, match="stress-ng is not installed"),
        start(source_named("integer"), 50, CPU, host=HOST),
    ):
        pytest.fail("it started")


def _as_user(folder: Path) -> str:
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
    source = source_named("integer")
    with start(source, 100, CPU, host=HOST, directory=folder) as load:
        tunable = load.tunable
        wait_until(lambda: load.used().cpu_s > 0, timeout_s=60)
    if tunable:
        return "tunable"
    try:
        with start(source, 50, CPU, host=HOST, directory=folder):
            return "accepted"
    except BadInput as error:
        return str(error)


@needs_stress_ng
def test_ordinary_user_without_groups_gets_full_or_nothing() -> None:
    with tempfile.TemporaryDirectory(prefix="source-user-") as name:
        Path(name).chmod(0o777)
        said = as_ordinary_user(lambda: _as_user(Path(name)))
    assert said == "tunable" or "only 0 and 100 % are available" in said, said
