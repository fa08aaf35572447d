"""What a unit leaves is packed on its machine as its user, whole or not at all, and nothing from beside its folder."""

import hashlib
import io
import os
import signal
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hcloud.engine.outputs import CHANGES_MAX, LOOK_S, OUTPUTS, SETTLED_S, TRIES_MAX, UnitOutputs, pack, pack_settled
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


def asked(outputs: UnitOutputs, unit: Unit, until: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The first answer that is as wanted."""
    answers = list[dict[str, Any]]()

    def right() -> bool:
        answers.append(outputs.read(unit, 0, MIB))
        return bool(until(answers[-1]))

    wait_until(right, 60.0)
    return answers[-1]


def test_nothing_is_packed_before_the_unit_has_ended(unit: Unit) -> None:
    (unit.path / "exit.json").unlink()
    outputs = UnitOutputs(MIB, root=False)
    assert outputs.read(unit, 0, MIB) == {"content": b"", "next_offset": 0, "end": False, "manifest": None}
    assert not outputs._packing


def test_an_archive_is_read_in_pieces_also_by_a_link_that_did_not_pack_it(unit: Unit) -> None:
    whole = asked(UnitOutputs(MIB, root=False), unit, lambda answer: answer["manifest"])
    assert whole["manifest"]["files"] == 3 and whole["end"]
    other, content = UnitOutputs(MIB, root=False), b""
    while len(content) < whole["manifest"]["bytes"]:
        piece = other.read(unit, len(content), 1000)
        content += piece["content"].read()
        assert piece["end"] == (len(content) == whole["manifest"]["bytes"])
    assert content == whole["content"].read()


def test_killed_packing_begins_anew_and_is_given_up_after_some_tries(unit: Unit) -> None:
    outputs = UnitOutputs(MIB, root=False)
    for _ in range(TRIES_MAX):
        outputs.read(unit, 0, MIB)
        process, _ = outputs._packing[unit.id, OUTPUTS]
        process.send_signal(signal.SIGSTOP)
        process.kill()
        process.wait()
        before = outputs.read(unit, 0, MIB)["manifest"]
    assert before is not None and before["note"] == "its outputs could not be packed: code -9"

    (unit.path / "outputs.json").unlink()
    outputs = UnitOutputs(MIB, root=False)
    outputs.read(unit, 0, MIB)
    outputs._packing[unit.id, OUTPUTS][0].kill()
    assert asked(outputs, unit, lambda answer: answer["manifest"])["manifest"]["files"] == 3


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
    answer = asked(UnitOutputs(MIB, root=True), unit, lambda answer: answer["manifest"])
    assert answer["manifest"]["files"] == 2 and "'results/a.txt'" in answer["manifest"]["note"]


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
