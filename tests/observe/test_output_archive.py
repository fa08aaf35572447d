"""Outputs are copied beside the loop, whole or not at all, whatever a machine sends and whoever dies meanwhile."""

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hcloud.core.clock import ManualClock
from hcloud.core.errors import WorkerUnreachable
from hcloud.observe.archive_receiver import HASHED_IN_TURN_BYTES, UNHASHED_PARTS_MAX, ArchiveReceiver
from hcloud.observe.output_archive import (
    PATIENCE_S,
    SPOILT_MAX,
    LeftUnit,
    OutputArchive,
    archive_of,
    stored_outputs,
)
from hcloud.provider import OutputsManifest, OutputsPiece

UNIT = "job-1.1.0_19ab"
SENT_BYTES = 1 << 20
"""What a machine here sends at once, however much is asked for."""
CONTENT = bytes(range(256)) * (5 * SENT_BYTES // 512)


def manifest_of(content: bytes, **changes: object) -> OutputsManifest:
    digest = hashlib.sha256(content).hexdigest()
    return replace(OutputsManifest(files=1, bytes=len(content), sha256=digest), **changes)  # type: ignore[arg-type]


class Machine:
    """Holds the archive of one unit; dies, lies or is silent as told."""

    def __init__(self, content: bytes = CONTENT) -> None:
        self.content, self.manifest = content, manifest_of(content)
        self.asked = list[int]()
        self.unreachable_after: int | None = None
        self.breaks_after: int | None = None
        self.is_packing = False
        self.packed = 0

    def read(self, unit: str, instance_id: str, offset: int, limit: int) -> OutputsPiece:
        """Answer as a machine does."""
        self.asked.append(offset)
        if self.unreachable_after is not None and len(self.asked) > self.unreachable_after:
            raise WorkerUnreachable("gone")
        if self.packed and len(self.asked) < 4:
            self.packed += SENT_BYTES // 4
            return OutputsPiece(content=(self.content[offset : min(self.packed, offset + limit)],), manifest=None)
        if self.is_packing:
            return OutputsPiece(content=(), manifest=None)
        return OutputsPiece(content=self._parts(offset, min(limit, SENT_BYTES)), manifest=self.manifest)

    def _parts(self, offset: int, limit: int) -> Iterator[bytes]:
        """Yield what is asked for in parts; after ``breaks_after`` bytes the connection is lost."""
        for at in range(offset, offset + limit, SENT_BYTES // 4):
            if self.breaks_after is not None and at >= self.breaks_after:
                raise WorkerUnreachable("gone half-way")
            yield self.content[at : at + SENT_BYTES // 4]


class Bench:
    """An archive of one machine."""

    def __init__(self, folder: Path, machine: Machine) -> None:
        self.machine, self.clock = machine, ManualClock()
        self.done = 0
        self.archive = OutputArchive(
            folder=folder / "outputs", read=machine.read, clock=self.clock, max_mib=64, max_user_mib=64,
            on_done=self._count,
        )  # fmt: skip

    def _count(self) -> None:
        self.done += 1

    def collect(self, unit: str = UNIT, user: str = "ann") -> bool:
        """Let it copy as long as it does at one time; return whether all is here."""
        wanted = {unit: LeftUnit(instance_id="inst-1", user=user)}
        self.archive.collect(wanted)
        for thread in self.archive._copying.values():
            thread.join(60.0)
        return unit in self.archive.collect(wanted)

    @property
    def note(self) -> str:
        stored = stored_outputs(self.archive.folder, UNIT)
        assert stored is not None and stored.bytes == 0 and not archive_of(self.archive.folder, UNIT).exists()
        return stored.note


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, Machine())


def test_an_archive_arrives_whole_and_its_end_is_told_once(bench: Bench) -> None:
    assert bench.collect() and bench.collect()
    assert archive_of(bench.archive.folder, UNIT).read_bytes() == CONTENT
    assert bench.done == 1 and len(bench.machine.asked) == 3
    assert sorted(path.name for path in bench.archive.folder.iterdir()) == [f"{UNIT}.json", f"{UNIT}.tar"]


def test_what_is_packed_so_far_comes_already(bench: Bench) -> None:
    bench.machine.packed = 1
    assert bench.collect() and archive_of(bench.archive.folder, UNIT).read_bytes() == CONTENT
    quarter = SENT_BYTES // 4
    assert bench.machine.asked[:4] == [0, quarter + 1, 2 * quarter + 1, 3 * quarter + 1]


def test_no_more_is_taken_than_allowed_while_it_is_packed(bench: Bench) -> None:
    bench.archive.max_mib, bench.machine.packed = 1, SENT_BYTES
    assert bench.collect() and "max_outputs_mib" in bench.note
    assert bench.machine.asked[:4] == [0, SENT_BYTES, SENT_BYTES, SENT_BYTES]


def test_copying_goes_on_where_a_daemon_died(bench: Bench, tmp_path: Path) -> None:
    bench.machine.unreachable_after = 2
    assert not bench.collect()
    assert stored_outputs(bench.archive.folder, UNIT) is None
    successor = Bench(tmp_path, Machine())
    assert successor.collect() and successor.machine.asked == [2 * SENT_BYTES]
    assert archive_of(successor.archive.folder, UNIT).read_bytes() == CONTENT


def test_what_came_before_a_connection_was_lost_is_not_sent_again(bench: Bench) -> None:
    bench.machine.breaks_after = 3 * SENT_BYTES // 4
    assert not bench.collect()
    bench.machine.breaks_after = None
    assert bench.collect() and bench.machine.asked[:2] == [0, 3 * SENT_BYTES // 4]
    assert archive_of(bench.archive.folder, UNIT).read_bytes() == CONTENT


def test_a_part_that_a_power_cut_spoilt_is_copied_anew(bench: Bench) -> None:
    bench.archive.folder.mkdir()
    (bench.archive.folder / f"{UNIT}.part").write_bytes(bytes(1000))
    assert not bench.collect()
    assert bench.collect() and archive_of(bench.archive.folder, UNIT).read_bytes() == CONTENT


def test_what_is_damaged_every_time_is_given_up(bench: Bench) -> None:
    bench.machine.manifest = replace(bench.machine.manifest, sha256="0" * 64)
    assert [bench.collect() for _ in range(SPOILT_MAX)] == [False] * (SPOILT_MAX - 1) + [True]
    assert "damaged" in bench.note


def lies_about_its_size(machine: Machine) -> None:
    machine.manifest = manifest_of(machine.content[:100], bytes=100)


def sends_too_little(machine: Machine) -> None:
    machine.content = machine.content[:-1]


def announces_too_much(machine: Machine) -> None:
    machine.manifest = replace(machine.manifest, bytes=1 << 40)


@pytest.mark.parametrize(
    ("lie", "kept", "word"),
    [(lies_about_its_size, 100, ""), (sends_too_little, 0, "damaged"), (announces_too_much, 0, "max_outputs_mib")],
)
def test_no_machine_can_send_more_than_it_announced_or_announce_more_than_is_allowed(
    bench: Bench, lie: Callable[[Machine], None], kept: int, word: str
) -> None:
    lie(bench.machine)
    while not bench.collect():
        assert len(bench.machine.asked) < 20
    stored = stored_outputs(bench.archive.folder, UNIT)
    assert stored is not None and stored.bytes == kept and word in stored.note
    assert sum(path.stat().st_size for path in bench.archive.folder.glob("*.tar")) == kept


def test_a_unit_that_left_nothing_is_done_and_says_why(bench: Bench) -> None:
    bench.machine.content, bench.machine.manifest = b"", OutputsManifest(note="nothing matched 'x'")
    assert bench.collect() and bench.note == "nothing matched 'x'"


def test_a_machine_that_packs_for_ever_is_given_up_and_not_before(bench: Bench) -> None:
    bench.machine.is_packing = True
    began = bench.clock.now()
    while not bench.collect():
        assert bench.clock.now() < began + 2 * PATIENCE_S
    assert bench.clock.now() > began + PATIENCE_S and "sent nothing of its outputs for 30 min" in bench.note


def test_a_full_disk_is_told_and_nothing_counts_as_done(bench: Bench) -> None:
    bench.archive.folder.write_text("no folder")
    assert not bench.collect() and "cannot store outputs" in bench.archive.trouble
    bench.archive.folder.unlink()
    # A copy that began while there was no folder may fail first.
    assert any(bench.collect() for _ in range(3)) and bench.archive.trouble == ""


def test_the_oldest_outputs_of_a_user_make_room_for_new_ones(bench: Bench) -> None:
    bench.archive.max_user_mib = 2 * len(CONTENT) >> 20
    units = [f"job-{number}.1.0_a" for number in range(3)]
    assert bench.collect("job-9.1.0_a", user="bob")
    for at, unit in enumerate(units):
        assert bench.collect(unit)
        assert stored_outputs(bench.archive.folder, unit) is not None
        for path in bench.archive.folder.glob(f"{unit}.*"):
            os.utime(path, (at, at))
    kept = [stored_outputs(bench.archive.folder, unit) for unit in (*units, "job-9.1.0_a")]
    assert [each is not None and each.bytes > 0 for each in kept] == [False, True, True, True]
    assert kept[0] is not None and "newer outputs needed the room" in kept[0].note


def test_outputs_of_jobs_that_a_database_does_not_know_are_set_aside(bench: Bench) -> None:
    assert bench.collect()
    assert bench.archive.set_aside(lambda unit: unit == UNIT) == 2
    assert not bench.archive.collect({UNIT: LeftUnit(instance_id="inst-1", user="ann")})
    for thread in bench.archive._copying.values():
        thread.join(60.0)


def test_parts_hashed_in_turn_and_in_a_thread_give_one_digest(tmp_path: Path) -> None:
    sizes = [1, 2 * HASHED_IN_TURN_BYTES, 7, *[HASHED_IN_TURN_BYTES] * (2 * UNHASHED_PARTS_MAX), 0, 3]
    parts = [os.urandom(size) for size in sizes]
    content = b"".join(parts)
    receiver = ArchiveReceiver(clock=ManualClock(0.0), max_mib=64, packing_s=1.0, look_s=0.1)
    received = receiver.receive(
        lambda offset, limit: OutputsPiece(content=iter(parts), manifest=manifest_of(content)), tmp_path / "part"
    )
    assert received.outcome == "whole" and (tmp_path / "part").read_bytes() == content
