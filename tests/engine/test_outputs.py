"""What a unit leaves is packed on its machine as its user, whole or not at all, and nothing from beside its folder."""

import hashlib
import io
import os
import signal
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hcloud.core.files import EarlyWriteback
from hcloud.engine.channel import FRAME_BYTES
from hcloud.engine.outputs import CHANGES_MAX, LOOK_S, SETTLED_S, TRIES_MAX, UnitOutputs, pack, pack_settled
from hcloud.engine.unit import Unit, write_json
from hcloud.provider import OutputsManifest
from tests.machine import needs_root
from tests.waiting import wait_until

MIB = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A work directory with some results, and what should stay behind."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("of the machine")
    job = tmp_path / "job"
    (job / "results" / "deep").mkdir(parents=True)
    (job / "results" / "a.txt").write_text("a")
    (job / "results" / "deep" / "b.bin").write_bytes(b"b" * 5000)
    (job / "results" / ".hidden").write_text("h")
    (job / "run.sh").write_text("#!/bin/sh\n")
    (job / "run.sh").chmod(0o700)
    (job / "input.txt").write_text("not asked for")
    (job / "link").symlink_to(secret / "key")
    (job / "way").symlink_to(secret)
    os.mkfifo(job / "results" / "pipe")
    return job


def packed(folder: Path, *patterns: str, limit_bytes: int = MIB) -> tuple[OutputsManifest, dict[str, bytes]]:
    """What is packed: the manifest, and each file's content."""
    archive = io.BytesIO()
    manifest = pack(folder, patterns, archive, limit_bytes)
    if not manifest.bytes:
        return manifest, {}
    content = archive.getvalue()
    assert (len(content), hashlib.sha256(content).hexdigest()) == (manifest.bytes, manifest.sha256)
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        found = {each.name: tar.extractfile(each).read() for each in tar}  # type: ignore[union-attr]
    assert len(found) == manifest.files
    return manifest, found


def test_a_folder_stands_for_all_files_in_it(folder: Path) -> None:
    manifest, found = packed(folder, "results/")
    assert found == {"results/a.txt": b"a", "results/deep/b.bin": b"b" * 5000, "results/.hidden": b"h"}
    assert manifest.note == "left out, as links, special files or unreadable: 'results/pipe'"


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("**/*.bin", {"results/deep/b.bin"}),
        ("*.sh", {"run.sh"}),
        ("results/?.txt", {"results/a.txt"}),
        (".", {"results/a.txt", "results/deep/b.bin", "results/.hidden", "run.sh", "input.txt"}),
    ],
)
def test_patterns_choose_files(folder: Path, pattern: str, names: set[str]) -> None:
    assert set(packed(folder, pattern)[1]) == names


@pytest.mark.parametrize("pattern", ["link", "way", "way/*", "w*/key", "way/key"])
def test_nothing_behind_a_link_is_packed(folder: Path, pattern: str) -> None:
    manifest, found = packed(folder, pattern)
    assert found == {} and "left out, as links" in manifest.note


def test_who_may_run_a_file_is_kept_and_whose_it_was_is_not(folder: Path) -> None:
    archive = io.BytesIO()
    pack(folder, ("*.sh", "input.txt"), archive, MIB)
    archive.seek(0)
    with tarfile.open(fileobj=archive) as tar:
        kept = {each.name: (each.mode, each.uid, each.uname) for each in tar}
    assert kept == {"run.sh": (0o755, 0, ""), "input.txt": (0o644, 0, "")}


def test_what_matches_nothing_is_named(folder: Path) -> None:
    manifest, found = packed(folder, "results/a.txt", "model.pt")
    assert set(found) == {"results/a.txt"} and manifest.note == "nothing matched 'model.pt'"
    assert packed(folder, "model.pt")[0] == OutputsManifest(note="nothing matched 'model.pt'")


def test_of_too_large_outputs_none_is_kept_and_that_is_said(folder: Path) -> None:
    (folder / "large").write_bytes(bytes(2 * MIB))
    manifest, _ = packed(folder, ".")
    assert manifest.bytes == 0 and "larger than 1 MiB (engine.max_outputs_mib)" in manifest.note


# ------------------------------------------------------------------------------------------------------ on the machine
@pytest.fixture
def unit(folder: Path) -> Unit:
    """An ended unit that wants its results back."""
    unit = Unit(folder.parent / "units" / "job-1.1.0")
    (unit.path / "root").mkdir(parents=True)
    folder.rename(unit.path / "root" / "job")
    write_json(unit.path / "spec.json", {"unit": {"outputs": ["results/"]}, "uid": os.getuid()})
    write_json(unit.path / "exit.json", {})
    return unit


def sent(outputs: UnitOutputs, unit: Unit, offset: int = 0, limit: int = MIB) -> tuple[bytes, dict[str, Any]]:
    """What is sent from a byte on, and the manifest after it."""
    content, answer = b"", dict[str, Any]()

    def came() -> bool:
        nonlocal content, answer
        answer = outputs.read(unit, offset + len(content), limit)
        if answer["manifest"] is None:
            content += answer["content"].read()
        return answer["end"] is True

    wait_until(came, 60.0)
    return content, answer["manifest"]


def test_nothing_is_packed_before_the_unit_has_ended(unit: Unit) -> None:
    (unit.path / "exit.json").unlink()
    outputs = UnitOutputs(MIB, root=False)
    assert outputs.read(unit, 0, MIB) == {"content": b"", "next_offset": 0, "end": False, "manifest": None}
    assert not outputs._sent


@pytest.fixture
def large(unit: Unit) -> Unit:
    """A unit that left more than a pipe holds."""
    results = unit.path / "root" / "job" / "results"
    for number in range(40):
        (results / f"small-{number}").write_bytes(os.urandom(1000 * number))
    for number in range(4):
        (results / f"large-{number}").write_bytes(os.urandom(MIB + number))
    return unit


LARGE = 8 * MIB


def test_outputs_are_sent_while_they_are_packed_and_lie_nowhere_else(large: Unit) -> None:
    content, manifest = sent(UnitOutputs(LARGE, root=False), large)
    assert (len(content), hashlib.sha256(content).hexdigest()) == (manifest["bytes"], manifest["sha256"])
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        found = {each.name: tar.extractfile(each).read() for each in tar}  # type: ignore[union-attr]
    results = large.path / "root" / "job" / "results"
    files = [each for each in results.rglob("*") if each.is_file()]
    assert found == {f"results/{each.relative_to(results)}": each.read_bytes() for each in files}
    assert manifest["files"] == len(files) == 47
    assert not any(each.stat().st_size > 10_000 for each in large.path.iterdir() if each.is_file())


@pytest.mark.parametrize("offset", [1, 512, 700_000, 3 * MIB + 17, -1, 0])
def test_sending_goes_on_at_any_byte_by_another_link_that_did_not_begin_it(large: Unit, offset: int) -> None:
    content, manifest = sent(UnitOutputs(LARGE, root=False), large)
    offset %= len(content)
    assert sent(UnitOutputs(LARGE, root=False), large, offset) == (content[offset:], manifest)
    (large.path / "outputs.json").unlink()
    assert sent(UnitOutputs(LARGE, root=False), large, offset) == (content[offset:], manifest)


def test_what_was_lost_on_its_way_is_sent_again(large: Unit) -> None:
    outputs = UnitOutputs(LARGE, root=False)
    lost = outputs.read(large, 0, LARGE)["content"].frames()
    next(lost)
    again = outputs.read(large, 0, LARGE)["content"].frames()  # while the first is being read
    content = next(again)
    with pytest.raises(StopIteration):
        next(lost)
    rest, manifest = sent(outputs, large, len(content))
    assert hashlib.sha256(content + rest).hexdigest() == manifest["sha256"]
    assert sent(outputs, large, len(content)) == (rest, manifest)  # all was sent, and its end was lost
    outputs.forget([large.id])


def test_the_next_part_may_be_asked_for_as_soon_as_the_last_frame_of_one_came(
    large: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hcloud.engine.content.STALLED_S", 120.0)  # a part would end early where others have the CPUs
    outputs = UnitOutputs(LARGE, root=False)
    first, content = outputs.read(large, 0, FRAME_BYTES + 5)["content"].frames(), b""
    process, _ = outputs._sent[large.id]
    while len(content) < FRAME_BYTES + 5:
        content += next(first)
    rest, manifest = sent(outputs, large, len(content))
    assert hashlib.sha256(content + rest).hexdigest() == manifest["sha256"]
    assert process.returncode == 0  # no other one was begun


def test_killed_packing_begins_anew_and_is_given_up_after_some_tries(large: Unit) -> None:
    outputs, content = UnitOutputs(LARGE, root=False), b""
    for _ in range(TRIES_MAX):
        reader = outputs.read(large, len(content), MIB)["content"]
        content += reader.read()
        process, _ = outputs._sent[large.id]
        process.kill()
        process.wait()
        content += reader.read() + reader.read()  # what it had written
        before = outputs.read(large, len(content), MIB)["manifest"]
    assert before is not None and before["note"] == "its outputs could not be packed: code -9"

    (large.path / "outputs.json").unlink()
    outputs = UnitOutputs(LARGE, root=False)
    content = outputs.read(large, 0, MIB)["content"].read()
    outputs._sent[large.id][0].kill()
    rest, manifest = sent(outputs, large, len(content))
    assert hashlib.sha256(content + rest).hexdigest() == manifest["sha256"]


def test_outputs_that_are_too_large_are_not_sent_at_all(large: Unit) -> None:
    content, manifest = sent(UnitOutputs(MIB, root=False), large)
    assert content == b"" and manifest["bytes"] == 0 and "larger than 1 MiB" in manifest["note"]


def test_a_stalled_process_delays_no_answer_for_long(large: Unit) -> None:
    outputs = UnitOutputs(LARGE, root=False)
    content = outputs.read(large, 0, MIB)["content"].read()
    process, _ = outputs._sent[large.id]
    process.send_signal(signal.SIGSTOP)
    while piece := outputs.read(large, len(content), MIB)["content"].read():  # what it had written
        content += piece
    process.send_signal(signal.SIGCONT)
    rest, manifest = sent(outputs, large, len(content))
    assert hashlib.sha256(content + rest).hexdigest() == manifest["sha256"]
    assert process.returncode == 0  # it went on


def test_forgotten_units_leave_no_process(large: Unit) -> None:
    outputs = UnitOutputs(LARGE, root=False)
    outputs.read(large, 0, MIB)["content"].read()
    process, _ = outputs._sent[large.id]
    outputs.forget([large.id])
    assert process.returncode is not None and not outputs._sent


def test_pipes_are_written_which_no_disk_is_behind(large: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EarlyWriteback, "EVERY_BYTES", 1)
    reads, writes = os.pipe2(os.O_CLOEXEC)
    content = list[bytes]()
    with os.fdopen(reads, "rb") as reader, os.fdopen(writes, "wb") as writer:
        reading = threading.Thread(target=lambda: content.append(reader.read()))
        reading.start()
        manifest = pack(large.path / "root" / "job", ["results"], writer, LARGE)
        writer.close()
        reading.join()
    assert hashlib.sha256(content[0]).hexdigest() == manifest.sha256


def test_unit_without_a_work_directory_left_nothing(unit: Unit) -> None:
    (unit.path / "root" / "job").rename(unit.path / "gone")
    manifest = UnitOutputs(MIB, root=False).read(unit, 0, MIB)["manifest"]
    assert (manifest["bytes"], manifest["note"]) == (0, "it ended before it had a work directory")


@needs_root
def test_packing_reads_nothing_that_the_unit_s_user_could_not(unit: Unit) -> None:
    results = unit.path / "root" / "job" / "results"
    write_json(unit.path / "spec.json", {"unit": {"outputs": ["results/"]}, "uid": 61234})
    for path in (results.parent, results, results / "deep"):
        os.chown(path, 61234, 61234)
    (results / "a.txt").chmod(0o600)  # of root, and linked here
    unit.path.parent.parent.chmod(0o700)
    _, manifest = sent(UnitOutputs(MIB, root=True), unit)
    assert manifest["files"] == 2 and "'results/a.txt'" in manifest["note"]


# ---------------------------------------------------------------------------------------------------------- checkpoints
def settled(folder: Path, changes: Callable[[int], object], within_s: float = 20.0) -> tuple[OutputsManifest, str, int]:
    """What is packed of ``a.txt`` while it changes at each look, its content there, and how often it was looked at."""
    archive, looks = io.BytesIO(), list[float]()

    def pause(seconds: float) -> None:
        looks.append(seconds)
        changes(len(looks))

    manifest = pack_settled(folder, ["results/a.txt"], archive, MIB, within_s, pause)
    if not manifest.bytes:
        return manifest, "", len(looks)
    with tarfile.open(fileobj=io.BytesIO(archive.getvalue())) as tar:
        return manifest, tar.extractfile("results/a.txt").read().decode(), len(looks)  # type: ignore[union-attr]


def test_files_are_packed_once_they_have_not_changed_for_a_moment(folder: Path) -> None:
    file = folder / "results" / "a.txt"
    manifest, content, looks = settled(folder, lambda look: file.write_text("a" * look) if look <= 10 else None)
    assert content == "a" * 10 and looks == pytest.approx(10 + SETTLED_S / LOOK_S, abs=1)
    assert manifest.sha256 and manifest.note == ""


def test_files_that_never_rest_are_packed_after_the_time_that_a_checkpoint_may_wait(folder: Path) -> None:
    file = folder / "results" / "a.txt"
    manifest, _, looks = settled(folder, lambda look: file.write_text("a" * look), within_s=3.0)
    assert manifest.sha256 and looks == pytest.approx(3.0 / LOOK_S, abs=1)


def test_files_that_change_while_they_are_packed_are_packed_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, packed_so_far = folder / "results" / "a.txt", list[int]()

    def changing(*given: Any) -> OutputsManifest:
        manifest = pack(*given)
        packed_so_far.append(manifest.bytes)
        if len(packed_so_far) <= often:
            file.write_text("x" * 2000 * len(packed_so_far))
        return manifest

    monkeypatch.setattr("hcloud.engine.outputs.pack", changing)
    often = 2
    assert settled(folder, lambda _: None)[1] == "x" * 4000
    often = 100
    manifest, _, _ = settled(folder, lambda _: None)
    assert manifest.bytes == 0 and f"changed each of {CHANGES_MAX} times" in manifest.note


def test_a_checkpoint_is_packed_anew_for_each_number(unit: Unit) -> None:
    (unit.path / "exit.json").unlink()
    write_json(
        unit.path / "spec.json",
        {"unit": {"checkpoint": {"path": "results/a.txt", "every_s": 60.0, "signal": ""}}, "uid": os.getuid()},
    )
    outputs, file = UnitOutputs(MIB, root=False), unit.path / "root" / "job" / "results" / "a.txt"

    def packed_for(number: int) -> dict[str, Any]:
        answers = list[dict[str, Any]]()

        def there() -> bool:
            answers.append(outputs.read_checkpoint(unit, number, 0, MIB))
            return answers[-1]["manifest"] is not None

        wait_until(there, 60.0)
        return answers[-1]

    first = packed_for(1)
    file.write_text("second")
    content = first["content"].read()
    assert packed_for(1)["content"].read() == content and b"second" not in content
    assert b"second" in packed_for(2)["content"].read()
    assert (
        packed_for(1)["content"].read() == packed_for(2)["content"].read()
    )  # of what was asked for long ago, the newest is had
