"""Work directories from here to a machine: what is packed is unpacked as the agent does it."""

import os
import subprocess
import venv
import zipfile
from pathlib import Path

import pytest

from hcloud.client.workdir import pack
from hcloud.core.errors import BadInput
from hcloud.engine.archive import unpack

MIB = 1 << 20
OLD, NEW = 1_700_000_000, 1_700_000_000.5


@pytest.fixture
def work(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    return made


def packed(work: Path, archive: Path) -> str:
    with archive.open("wb") as file:
        return pack(work, file, 50 * MIB)[0]


def arrived(work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory as a job finds it."""
    archive, job = work.parent / "archive", work.parent / "job"
    packed(work, archive)
    job.mkdir()
    monkeypatch.chdir(job)
    unpack(os.open(archive, os.O_RDONLY), 50 * MIB)
    return job


def written(path: Path, text: str, at: float = OLD) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (at, at))
    return path


def test_make_rebuilds_what_is_out_of_date(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(work / "Makefile", "out: in\n\tcp in out\n")
    written(work / "out", "stale")
    written(work / "in", "fresh", at=NEW)  # half a second later
    job = arrived(work, monkeypatch)
    subprocess.run(["make"], cwd=job, check=True, capture_output=True)
    assert (job / "out").read_text() == "fresh"


def test_files_can_be_put_into_a_zip_archive(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(work / "data/a.txt", "a")
    job = arrived(work, monkeypatch)
    with zipfile.ZipFile(job.parent / "z.zip", "w") as made:
        for path in sorted(job.rglob("*")):  # refuses what is older than 1980
            made.write(path, path.relative_to(job))
        assert made.namelist() == ["data/", "data/a.txt"]


def test_the_digest_of_the_content_does_not_depend_on_times(work: Path) -> None:
    file = written(work / "a/file", "x")
    first = packed(work, work.parent / "first")
    os.utime(file, (NEW, NEW))
    assert packed(work, work.parent / "second") == first
    assert (work.parent / "first").read_bytes() != (work.parent / "second").read_bytes()
    digests = {first}
    for change in (lambda: file.write_text("y"), lambda: file.chmod(0o755), lambda: file.rename(work / "b")):
        change()
        digests.add(packed(work, work.parent / "other"))
    assert len(digests) == 4


def test_links_that_stay_inside_arrive_and_absolute_ones_become_relative(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(work / "z", "here")
    (work / "sub").mkdir()
    (work / "sub/z").symlink_to("../z")
    (work / "sub/absolute").symlink_to(work / "z")
    (work / "all").symlink_to(work)
    (work / "dangling").symlink_to("nothing")
    job = arrived(work, monkeypatch)
    assert (job / "sub/z").read_text() == (job / "sub/absolute").read_text() == (job / "all/z").read_text() == "here"
    assert os.readlink(job / "sub/absolute") == "../z"
    assert os.readlink(job / "dangling") == "nothing"


@pytest.mark.parametrize("target", ["/etc/hostname", "../outside", "sub/../../outside"])
def test_a_link_that_leads_outside_is_refused_with_its_path(work: Path, target: str) -> None:
    (work / "sub").mkdir()
    (work / "sub2").mkdir()
    (work / "sub2/away").symlink_to(target if target.startswith("/") else f"../{target}")
    with pytest.raises(BadInput, match=r"sub2/away is a link to .*, outside .*name sub2/away in .*/\.hcloudignore"):
        packed(work, work.parent / "archive")
    (work / ".hcloudignore").write_text("sub2/away\n")
    packed(work, work.parent / "archive")


def test_a_virtual_environment_names_the_link_that_cannot_come_along(work: Path) -> None:
    venv.create(work / "venv", with_pip=False, symlinks=True)
    with pytest.raises(BadInput, match=r"venv/bin/python\S* is a link to .*name venv/bin/python\S* in"):
        packed(work, work.parent / "archive")
