"""Output is archived whole, also where a unit wrote more than is kept of it, and is read by the program's own count."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest

from hcloud.api.unit_logs import LogQuery, read_archive
from hcloud.engine.output import OutputFile, read_output
from hcloud.observe.log_archive import CHUNK_BYTES, CHUNKS_PER_CYCLE, PIECES_AT_ONCE, LogArchive
from hcloud.provider import LogChunk, LogPiece, Runner, Stream

KEPT_MIB = 2 * CHUNKS_PER_CYCLE
WRITTEN = 3 * KEPT_MIB * CHUNK_BYTES
UNIT = "job-1.1.0_19ab"
UNITS = {UNIT: "inst-1"}
SILENT = "inst-66"


class Machine:
    """Where one unit has written and ended: the only question that an archive has for an engine."""

    def __init__(self, written: Path) -> None:
        self._written = written

    def logs(self, unit: str, instance_id: str, stream: Stream, offset: int, limit: int) -> LogChunk:
        """Read as a worker does."""
        content, after, last = read_output(self._written, stream, offset, limit)
        return LogChunk(content=content, next_offset=after, end=last)

    def read_logs(self, pieces: Sequence[LogPiece]) -> Mapping[LogPiece, LogChunk]:
        """Read the same output for each unit, but of those on silent machines nothing."""
        return {
            each: self.logs(each.unit, each.instance_id, each.stream, each.offset, each.limit)
            for each in pieces
            if each.instance_id != SILENT
        }


@pytest.fixture
def machine(tmp_path: Path) -> Runner:
    """A machine with three times the output that is kept; each KiB of it is numbered."""
    written = tmp_path / "unit"
    written.mkdir()
    return _writing(written, *(b"%-1023d\n" % number for number in range(WRITTEN // 1024)))


def _writing(written: Path, *lines: bytes) -> Runner:
    output = OutputFile(written, "stdout", KEPT_MIB * CHUNK_BYTES)
    for line in lines:
        output.write(line)
    output.close()
    return cast(Runner, Machine(written))


def _archive(folder: Path, machine: Runner) -> bytes:
    """Archive as daemons do that are restarted after each step."""
    for _ in range(20):
        if LogArchive(folder, KEPT_MIB).collect(machine, UNITS):
            return (folder / f"{UNIT}.stdout").read_bytes()
    raise AssertionError("the archive is never complete")


def test_what_a_machine_kept_of_too_much_output_is_archived_to_its_end(tmp_path: Path, machine: Runner) -> None:
    notice, _, rest = _archive(tmp_path / "logs", machine).partition(b"\n")
    assert notice == b"[hcloud: %d bytes of older output were dropped]" % (WRITTEN - len(rest))
    assert len(rest) > (KEPT_MIB - 2) * CHUNK_BYTES
    first = (WRITTEN - len(rest)) // 1024
    assert [int(line) for line in rest.splitlines()] == list(range(first, WRITTEN // 1024))


def test_who_follows_such_output_reads_on_where_it_was(tmp_path: Path, machine: Runner) -> None:
    _archive(tmp_path / "logs", machine)
    path, offset, seen = tmp_path / "logs" / f"{UNIT}.stdout", 0, b""
    while True:
        question = LogQuery(job_id="job-1", stream="stdout", offset=offset, limit=CHUNK_BYTES)
        kept, live = read_archive(path, question), machine.logs(UNIT, "inst-1", "stdout", offset, CHUNK_BYTES)
        assert kept is not None
        assert kept.next_offset == live.next_offset or len(kept.content) == CHUNK_BYTES
        seen, offset = seen + kept.content, kept.next_offset
        if kept.end:
            break
    assert offset == WRITTEN
    assert seen == path.read_bytes()


def test_a_program_that_copies_the_line_of_a_gap_loses_nothing_of_its_own(tmp_path: Path) -> None:
    line = b"[hcloud: 987654321 bytes of older output were dropped]\n"
    written = tmp_path / "unit"
    written.mkdir()
    machine = _writing(written, line, *(b"%-1023d\n" % n for n in range((CHUNKS_PER_CYCLE + 1) * CHUNK_BYTES // 1024)))
    archived = _archive(tmp_path / "logs", machine)
    assert archived.startswith(line)
    assert [int(each) for each in archived.splitlines()[1:]] == list(range(5 * CHUNK_BYTES // 1024))
    question = LogQuery(job_id="job-1", stream="stdout", offset=len(line), limit=1024)
    told = read_archive(tmp_path / "logs" / f"{UNIT}.stdout", question)
    assert told is not None and (told.content, told.next_offset) == (b"%-1023d\n" % 0, len(line) + 1024)


def test_a_daemon_killed_while_it_tells_of_a_gap_begins_anew(tmp_path: Path, machine: Runner) -> None:
    whole = _archive(tmp_path / "whole", machine)
    folder = tmp_path / "torn"
    LogArchive(folder, KEPT_MIB).collect(machine, UNITS)
    part = folder / f"{UNIT}.stdout.part"
    part.write_bytes(part.read_bytes()[:20])
    assert _archive(folder, machine) == whole


def test_output_is_kept_also_where_somebody_deleted_the_folder(tmp_path: Path, machine: Runner) -> None:
    archive = LogArchive(tmp_path / "logs", KEPT_MIB)
    archive.collect(machine, UNITS)
    for path in archive.folder.iterdir():
        path.unlink()
    archive.folder.rmdir()
    assert _archive(archive.folder, machine).endswith(b"%-1023d\n" % (WRITTEN // 1024 - 1))
    question = LogQuery(job_id="job-1", stream="stderr", offset=0, limit=CHUNK_BYTES)
    assert read_archive(archive.folder / f"{UNIT}.stderr", question) == LogChunk(content=b"", next_offset=0, end=True)


def test_a_folder_that_cannot_be_written_to_is_told_of_and_tried_again(tmp_path: Path, machine: Runner) -> None:
    archive = LogArchive(tmp_path / "logs", KEPT_MIB)
    archive.folder.write_text("in the way")
    assert not archive.collect(machine, UNITS)
    assert f"cannot store output of ended jobs in {archive.folder}: " in archive.trouble
    archive.folder.unlink()
    _archive(archive.folder, machine)


def test_a_silent_machine_keeps_no_other_output_from_being_archived(tmp_path: Path) -> None:
    written = tmp_path / "unit"
    written.mkdir()
    machine, archive = _writing(written, b"words\n"), LogArchive(tmp_path / "logs", KEPT_MIB)
    units = {f"job-{n}.1.0": SILENT if n % 3 == 0 else f"inst-{n}" for n in range(2 * PIECES_AT_ONCE)}
    done = archive.collect(machine, units)
    assert done == {unit for unit, name in units.items() if name != SILENT}
    assert {(archive.folder / f"{unit}.stdout").read_bytes() for unit in done} == {b"words\n"}
    assert not (archive.folder / "job-0.1.0.stdout").exists()


def _both(archive: LogArchive) -> tuple[LogChunk | None, ...]:
    streams: tuple[Stream, ...] = ("stdout", "stderr")
    queries = (LogQuery(job_id="job-1", stream=stream, offset=0, limit=CHUNK_BYTES) for stream in streams)
    return tuple(read_archive(archive.folder / f"{UNIT}.{query.stream}", query) for query in queries)


def test_a_silent_unit_takes_one_file_and_pruned_output_is_missing_on_both_streams(tmp_path: Path) -> None:
    written = tmp_path / "unit"
    written.mkdir()
    archive = LogArchive(tmp_path / "logs", KEPT_MIB)
    assert archive.collect(_writing(written), UNITS) == UNITS.keys()
    assert [path.name for path in archive.folder.iterdir()] == [f"{UNIT}.stdout"]
    empty = LogChunk(content=b"", next_offset=0, end=True)
    assert _both(archive) == (empty, empty)
    archive.prune(archive.folder.joinpath(f"{UNIT}.stdout").stat().st_mtime + 1)
    assert _both(archive) == (None, None)


@pytest.mark.parametrize("beside", ["stderr", "tasks"])
def test_errors_and_the_log_of_tasks_are_pruned_with_the_output_they_belong_to(tmp_path: Path, beside: str) -> None:
    archive = LogArchive(tmp_path, KEPT_MIB)
    for stream, at in ((beside, 100), ("stdout", 200)):
        (tmp_path / f"{UNIT}.{stream}").write_bytes(b"x")
        os.utime(tmp_path / f"{UNIT}.{stream}", (at, at))
    assert archive.prune(150) == 0
    assert len(list(tmp_path.iterdir())) == 2
    assert archive.prune(250) == 2
    assert not list(tmp_path.iterdir())


def test_output_counts_as_archived_only_once_both_streams_are(tmp_path: Path, machine: Runner) -> None:
    archive = LogArchive(tmp_path / "logs", KEPT_MIB)
    assert not archive.collect(machine, UNITS)  # four MiB a round
    assert not (archive.folder / f"{UNIT}.stdout").exists() and not (archive.folder / f"{UNIT}.stderr").exists()


def test_errors_that_an_earlier_version_began_to_store_are_completed(tmp_path: Path) -> None:
    written = tmp_path / "unit"
    written.mkdir()
    errors = OutputFile(written, "stderr", KEPT_MIB * CHUNK_BYTES)
    errors.write(b"first\nsecond\n")
    errors.close()
    archive = LogArchive(tmp_path / "logs", KEPT_MIB)
    archive.folder.mkdir()
    (archive.folder / f"{UNIT}.stdout").touch()
    (archive.folder / f"{UNIT}.stderr.part").write_bytes(b"first\n")
    assert archive.collect(_writing(written), UNITS) == UNITS.keys()
    assert (archive.folder / f"{UNIT}.stderr").read_bytes() == b"first\nsecond\n"
