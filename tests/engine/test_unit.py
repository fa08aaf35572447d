"""The unit's directory as a fence, its output in segments, and what is read from it."""

import errno
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcloud.core.errors import UnitRefused
from hcloud.core.model import FailureCause, MetricsHook, ProgressHook, Resources
from hcloud.engine.output import SEGMENTS, OutputFile, read_output, written_streams
from hcloud.engine.sandbox import Isolation
from hcloud.engine.unit import Unit, UnitDirectories, boot_id
from hcloud.engine.usage import disk_bytes, last_progress
from hcloud.engine.wire import exit_from_wire, exit_to_wire, unit_from_wire, unit_to_wire
from hcloud.engine.worker import kill_unit
from hcloud.provider import ExitRecord, UnitSpec

SPEC = {"unit": {}, "uid": 1, "boot_id": boot_id()}


@pytest.fixture
def units(tmp_path: Path) -> UnitDirectories:
    return UnitDirectories(tmp_path)


def test_fence_is_taken_by_exactly_one_of_many(tmp_path: Path) -> None:
    barrier, won = threading.Barrier(8), []

    def take(number: int) -> None:
        units = UnitDirectories(tmp_path)
        barrier.wait()
        created = units.create("u", {**SPEC, "uid": number})
        if created is not None:
            won.append(number)
            os.close(created[1])

    threads = [threading.Thread(target=take, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert UnitDirectories(tmp_path).path.joinpath("u/spec.json").read_text() == json.dumps(
        {**SPEC, "uid": won[0]}, separators=(",", ":")
    )


def test_second_creation_finds_the_first(units: UnitDirectories) -> None:
    created = units.create("u", SPEC)
    assert created is not None
    assert units.create("u", {**SPEC, "uid": 2}) is None
    assert created[0].read("spec.json") == SPEC
    assert [unit.id for unit in units] == ["u"]
    os.close(created[1])


def test_lock_tells_whether_the_keeper_lives(units: UnitDirectories) -> None:
    created = units.create("u", SPEC)
    assert created is not None
    unit, lock = created
    assert unit.kept
    os.close(lock)
    assert not unit.kept


def test_forgotten_unit_is_gone_and_never_made_again(units: UnitDirectories) -> None:
    fenced = units.fence("u", FailureCause.EVICTED, 5.0)
    assert fenced is not None and units.forget(["u"])
    assert list(units) == [] and units.create("u", SPEC) is None
    units.sweep()
    assert list(units.path.iterdir()) == []


def test_names_of_units_forgotten_long_ago_are_dropped_and_those_of_late_stay(units: UnitDirectories) -> None:
    forgotten = units.path.parent / "forgotten"
    for name, at in (("old", 1_000.0), ("late", 2_000.0)):
        assert units.fence(name, FailureCause.EVICTED, 5.0) is not None and units.forget([name])
        os.utime(forgotten / name, (at, at))
    units.drop_fences(before=2_000.0)
    assert [path.name for path in forgotten.iterdir()] == ["late"]
    assert units.create("late", SPEC) is None


def test_unit_that_has_not_ended_is_not_forgotten(units: UnitDirectories) -> None:
    created = units.create("u", SPEC)
    assert created is not None
    units.forget(["u"])
    assert [unit.id for unit in units] == ["u"]
    os.close(created[1])


def test_first_exit_record_stays(units: UnitDirectories) -> None:
    unit = units.fence("u", FailureCause.EVICTED, 5.0)
    assert unit is not None
    unit.end(ExitRecord(exit_code=0, cause=None, started_at=1.0, ended_at=2.0))
    assert unit.report()["exit"]["cause"] == "evicted"


def test_half_made_directories_are_swept(units: UnitDirectories) -> None:
    (units.path / ".new-x").mkdir()
    units.sweep()
    assert list(units.path.iterdir()) == []


@pytest.mark.parametrize(
    ("kept", "started", "boot", "cause"),
    [
        (True, True, boot_id(), "instance_lost"),
        (True, False, boot_id(), "start_refused"),
        (False, False, boot_id(), "instance_lost"),
        (True, False, "earlier", "instance_lost"),
    ],
)
def test_unit_without_keeper_is_buried_for_what_happened(
    units: UnitDirectories, kept: bool, started: bool, boot: str, cause: str
) -> None:
    created = units.create("u", {**SPEC, "boot_id": boot})
    assert created is not None
    unit, lock = created
    if kept:
        os.write(lock, b'{"pid":1}')
    os.close(lock)
    if started:
        unit.write("started.json", {"at": 3.0})
    units.bury(unit, 9.0)
    assert unit.report()["exit"]["cause"] == cause


# ------------------------------------------------------------------------------------------------------------ output
@given(st.lists(st.binary(min_size=1, max_size=9000), max_size=40), st.integers(1, 5000))
def test_output_is_read_as_written_whatever_the_pieces(
    tmp_path_factory: pytest.TempPathFactory, written: list[bytes], limit: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    output = OutputFile(folder, "stdout", limit_bytes=1 << 16)
    for content in written:
        output.write(content)
    output.close()
    whole, total = b"".join(written), sum(map(len, written))
    read, offset, last = b"", 0, False
    while not last:
        content, following, last = read_output(folder, "stdout", offset, limit)
        assert last or following > offset
        read, offset = read + content, following
    assert offset == total
    notice, _, rest = read.partition(b"dropped]\n") if read.startswith(b"[hcloud: ") else (b"", b"", read)
    assert whole.endswith(rest)
    dropped = int(notice.split()[1]) if notice else 0
    assert dropped + len(rest) == total
    assert sum(path.stat().st_size for path in folder.iterdir()) <= (1 << 16) + 2 * 9000 + (1 << 16) // SEGMENTS


def test_output_of_a_second_phase_follows_the_first(tmp_path: Path) -> None:
    for word in (b"setup\n", b"command\n"):
        output = OutputFile(tmp_path, "stdout", 1 << 20)
        output.write(word)
        output.close()
    assert read_output(tmp_path, "stdout", 0, 100) == (b"setup\n", 6, False)
    assert read_output(tmp_path, "stdout", 6, 100) == (b"command\n", 14, True)
    assert (written_streams(tmp_path), written_streams(tmp_path / "absent")) == (["stdout"], [])


# ---------------------------------------------------------------------------------------------------------- progress
@pytest.mark.parametrize(
    ("text", "progress"),
    [("0.5\n", 0.5), ("1/4\n2/4\n", 0.5), ("5\n\n", 0.05), ("7/0", None), ("soon", None), ("", None), ("300", 1.0)],
)
def test_progress_is_the_last_line(tmp_path: Path, text: str, progress: float | None) -> None:
    (tmp_path / "p").write_text(text)
    total = 100.0 if "." not in text else 1.0
    assert last_progress(tmp_path, "p", total) == pytest.approx(progress)


def test_progress_follows_no_link_out_of_the_work_directory(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("0.25")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "p").symlink_to(tmp_path / "secret")
    assert last_progress(tmp_path / "job", "p", 1.0) is None
    assert last_progress(tmp_path / "job", "../secret", 1.0) is None


def test_counting_disk_gives_up_beyond_the_limit(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"d{number}").mkdir()
        (tmp_path / f"d{number}" / "f").write_bytes(os.urandom(100_000))
    assert disk_bytes(tmp_path, 10**9) >= 500_000
    assert disk_bytes(tmp_path, 150_000) < 500_000


def test_file_that_is_removed_meanwhile_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(os.urandom(100_000))
    real = os.scandir

    @contextmanager
    def vanishing(path: str) -> Iterator[list[os.DirEntry[str]]]:
        with real(path) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
        (tmp_path / "a").unlink()
        yield listed

    monkeypatch.setattr("hcloud.engine.usage.os.scandir", vanishing)
    assert disk_bytes(tmp_path, 10**9) >= 200_000


# -------------------------------------------------------------------------------------------------------------- wire
def test_spec_survives_the_wire() -> None:
    spec = UnitSpec(
        id="job-1.2.3",
        instance_id="inst-1",
        rank=3,
        command=("a", "b c"),
        resources=Resources(vcpus=0.5),
        env={"A": "1"},
        peers=("inst-1", "inst-2"),
        progress=ProgressHook(file="p", total=10),
        metrics=MetricsHook(probe=("x", "y")),
    )
    assert unit_from_wire(unit_to_wire(spec)) == spec


def test_exit_record_survives_the_wire() -> None:
    record = ExitRecord(exit_code=1, cause=FailureCause.TIMEOUT, started_at=1.0, ended_at=2.0, detail="x", cpu_s=0.5)
    assert exit_from_wire(exit_to_wire(record)) == record


@pytest.mark.parametrize("bad", ["", ".", "..", "a/b", ".new-x", "x" * 200, "a\0b"])
def test_unit_id_that_is_no_directory_name_is_refused(bad: str) -> None:
    spec = unit_to_wire(UnitSpec(id="ok", instance_id="i", rank=0, command=("x",), resources=Resources()))
    with pytest.raises(UnitRefused, match="cannot be a unit id"):
        unit_from_wire({**spec, "id": bad})


def test_last_resort_kills_the_units_of_this_deployment_only(tmp_path: Path) -> None:
    """Two workers on one host hold units of one id; without groups or sandboxes only their marks tell them apart."""
    bare = Isolation(root=False, bwrap=None, firewall=False, cgroup=None, podman=None, pinned=False)
    held = [UnitDirectories(tmp_path / name).create("job-1.1.0", SPEC) for name in ("ours", "theirs")]
    units = [made[0] for made in held if made is not None]
    running = [
        subprocess.Popen(["sleep", "60"], env={"HCLOUD_UNIT_ID": unit.id, "HCLOUD_UNIT_MARK": unit.mark})
        for unit in units
    ]
    try:
        kill_unit(units[0], bare)
        assert running[0].wait(timeout=60) == -signal.SIGKILL
        assert running[1].poll() is None
        kill_unit(Unit(tmp_path / "theirs" / ".." / "theirs" / "units" / "job-1.1.0"), bare)  # however it is spelled
        assert running[1].wait(timeout=60) == -signal.SIGKILL
    finally:
        for process in running:
            process.kill()
            process.wait()
        for made in held:
            os.close(made[1]) if made is not None else None


class _EnteredLate:
    """A group into which the command that was only being started comes when nothing was in it any more."""

    def __init__(self) -> None:
        self.kills, self.left = 0, 0

    def kill(self, reap: Callable[[], None]) -> bool:
        """Kill what is in it; then the command comes, once."""
        self.kills += 1
        self.left = 1 if self.kills == 1 else 0
        return True

    def remove(self) -> bool:
        """Refuse while a process is in it."""
        return self.left == 0


def test_command_that_was_only_being_started_when_its_keeper_was_killed_is_killed_too(
    units: UnitDirectories, monkeypatch: pytest.MonkeyPatch
) -> None:
    created, group = units.create("u", SPEC), _EnteredLate()
    assert created is not None
    monkeypatch.setattr("hcloud.engine.worker.group_for", lambda *_: group)
    kill_unit(created[0], Isolation(root=True, bwrap="bwrap", firewall=False, cgroup={}, podman=None, pinned=False))
    assert (group.kills, group.left) == (2, 0)
    os.close(created[1])


class _OnAFullDisk(Unit):
    """A unit whose disk takes its end only when that was tried three times."""

    tries = 0

    def end(self, record: ExitRecord) -> None:
        """Fail as on a full disk."""
        self.tries += 1
        if self.tries < 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().end(record)


def test_an_end_is_recorded_once_the_disk_takes_it(units: UnitDirectories, tmp_path: Path) -> None:
    created = units.create("u", SPEC)
    assert created is not None
    unit, ended = _OnAFullDisk(created[0].path), ExitRecord(exit_code=0, cause=None, started_at=1.0, ended_at=2.0)
    unit.end_at_last(ended, every_s=0.001)
    assert (unit.tries, created[0].report()["exit"]["exit_code"]) == (3, 0)
    os.close(created[1])
    nowhere = _OnAFullDisk(tmp_path / "deleted")
    nowhere.end_at_last(ended, every_s=0.001)
    assert nowhere.tries == 0
