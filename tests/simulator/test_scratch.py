"""Scratch folders in memory are removed, however the process that used them has ended."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hcloud.core.errors import BadInput
from hcloud.simulator.scratch import quick_folder

HOLD = """
from hcloud.simulator.scratch import quick_folder
with quick_folder() as folder:
    (folder / "something").mkdir()
    print(folder, flush=True)
    input()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The parent folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def other(place: Path) -> Iterator[subprocess.Popen[str]]:
    """Start another process that works in a scratch folder."""
    words = [sys.executable, "-c", HOLD]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def folder_of(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    return Path(process.stdout.readline().strip())


def test_folder_of_a_killed_process_is_removed_but_not_of_a_running_one(
    place: Path, other: subprocess.Popen[str]
) -> None:
    with quick_folder() as mine:
        theirs = folder_of(other)
        (place / "hcloud-virtual-file").write_text("not a folder")
        with quick_folder() as third:
            assert mine.is_dir() and (theirs / "something").is_dir() and third.parent == place
        other.kill()
        other.wait()
        with quick_folder():
            assert mine.is_dir() and not theirs.exists()
    assert [each.name for each in place.iterdir()] == ["hcloud-virtual-file"]


def test_missing_parent_folder_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(place / "none"))
    said = r"cannot create a temporary folder in .*none: No such file or directory; set TMPDIR to"
    with pytest.raises(BadInput, match=said), quick_folder():
        pass
