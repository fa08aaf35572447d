"""Unpacking on every Python we support: the same rules, whatever filters its own tarfile has."""

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from hcloud.core.errors import UnitRefused
from hcloud.engine.archive import unpack

MIB = 1 << 20


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, link, mode
    return made


def unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *members: tarfile.TarInfo) -> Path:
    """Unpack an archive of these members (files hold "x") into a directory of its own."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for each in members:
            each.size = 1 if each.isreg() else 0
            archive.addfile(each, io.BytesIO(b"x"))
    (tmp_path / "archive").write_bytes(packed.getvalue())
    job = tmp_path / "job"
    job.mkdir()
    monkeypatch.chdir(job)
    unpack(os.open(tmp_path / "archive", os.O_RDONLY), MIB)
    return job


def test_files_directories_and_inner_links_come_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = unpacked(
        tmp_path,
        monkeypatch,
        member("deep", tarfile.DIRTYPE, mode=0o755),
        member("deep/file"),
        member("run.sh", mode=0o755),
        member("deep/up", tarfile.SYMTYPE, "../run.sh"),
        member("hard", tarfile.LNKTYPE, "deep/file"),
    )
    assert (job / "deep/up").read_text() == (job / "hard").read_text() == "x"
    assert os.access(job / "run.sh", os.X_OK)
    assert not os.access(job / "deep/file", os.X_OK)


def test_modes_are_made_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = unpacked(tmp_path, monkeypatch, member("all", mode=0o6777), member("none", mode=0))
    assert stat.S_IMODE((job / "all").stat().st_mode) == 0o755
    assert stat.S_IMODE((job / "none").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "members",
    [
        [member("../out")],
        [member("/out")],
        [member("link", tarfile.SYMTYPE, "../out")],
        [member("link", tarfile.SYMTYPE, "/etc/passwd")],
        [member("hard", tarfile.LNKTYPE, "../archive")],
        [member("here", tarfile.SYMTYPE, "."), member("here/../../out")],
        [
            member("d", tarfile.DIRTYPE, mode=0o755),
            member("d/e", tarfile.SYMTYPE, "."),
            member("d/e/f", tarfile.SYMTYPE, "../../out"),
        ],
        [member("pipe", tarfile.FIFOTYPE)],
        [member("device", tarfile.CHRTYPE)],
    ],
    ids=lambda members: members[-1].name,
)
def test_members_that_lead_outside_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, members: list[tarfile.TarInfo]
) -> None:
    with pytest.raises(UnitRefused, match="archive holds"):
        unpacked(tmp_path, monkeypatch, *members)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive", "job"]


def test_only_what_is_below_the_wanted_path_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job").mkdir()
    monkeypatch.chdir(tmp_path / "job")
    with tarfile.open(tmp_path / "archive", "w") as tar:
        for name in ("state/a", "run.sh", "state-of-others", "state/../run.py"):
            tar.addfile(tarfile.TarInfo(name))
        link = tarfile.TarInfo("state/way")
        link.type, link.linkname = tarfile.SYMTYPE, "../run.pl"
        tar.addfile(link)
    unpack(os.open(tmp_path / "archive", os.O_RDONLY), MIB, below="state/")
    assert not list((tmp_path / "job").glob("run*"))
    assert [str(each.relative_to(tmp_path / "job")) for each in (tmp_path / "job").rglob("*") if not each.is_dir()] == [
        "state/a"
    ]
