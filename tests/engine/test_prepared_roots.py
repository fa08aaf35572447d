"""Roots of sandboxes that are prepared once: they show what a sandbox put together for one unit shows."""

import os
import tempfile
from pathlib import Path

import pytest

from hcloud.engine import prepared_roots
from hcloud.engine.prepared_roots import COPIED_FILES_MAX, PreparedRoots
from tests.engine.alone import run_alone
from tests.machine import needs_bwrap

SHOWN = "find / -maxdepth 1 -printf '%p %y %l\\n' | sort; find /etc /home -printf '%p %y %m %l\\n' | sort; cat /etc/*"


@needs_bwrap
def test_job_sees_the_same_with_a_prepared_root_and_cannot_change_it() -> None:
    shown = []
    for without in ((), ("prepared_root",)):
        with tempfile.TemporaryDirectory(prefix="prepared-") as folder:
            Path(folder).chmod(0o711)
            found = run_alone(Path(folder), f"{SHOWN} 2>/dev/null; touch /etc/hosts /etc/new /new", without=without)
            assert found.stderr.count("touch:") == 3
            shown.append(found.stdout)
    assert shown[0] == shown[1] != ""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of which units see one file, one small and one large directory, and a link."""
    place = tmp_path / "machine"
    for name in ("small", "large"):
        (place / name).mkdir(parents=True)
    (place / "hosts").write_text("one")
    (place / "alias").symlink_to("hosts")
    (place / "small" / "inner").write_text("x")
    (place / "small" / "link").symlink_to("inner")
    for number in range(COPIED_FILES_MAX):
        (place / "large" / str(number)).touch()
    files = tuple(f"{place}/{name}" for name in ("hosts", "alias", "small", "large", "absent"))
    monkeypatch.setattr(prepared_roots, "READONLY_FILES", files)
    monkeypatch.setattr(prepared_roots, "READONLY_TREES", ())
    monkeypatch.setattr(prepared_roots, "LOOKED_AT_EVERY_S", 0.0)
    return place


def test_small_files_are_copied_and_large_directories_mounted(place: Path, tmp_path: Path) -> None:
    root = PreparedRoots(tmp_path, readonly=(f"{place}/small/inner",)).root(61005)
    assert root.mounted == (f"{place}/large", f"{place}/small/inner")
    inside = Path(f"{root.path}{place}")
    assert (inside / "hosts").read_text() == (inside / "alias").read_text() == "one"
    assert not (inside / "alias").is_symlink() and os.readlink(inside / "small" / "link") == "inner"
    assert list((inside / "large").iterdir()) == [] and not (inside / "absent").exists()
    assert "job:x:61005:61005" in (root.path / "etc" / "passwd").read_text()
    assert oct(root.path.stat().st_mode)[-3:] == oct(inside.stat().st_mode)[-3:] == "755"


def test_root_is_made_once_for_each_user_and_found_again_by_the_next_worker(place: Path, tmp_path: Path) -> None:
    roots = PreparedRoots(tmp_path)
    first = roots.root(1)
    assert roots.root(1) == PreparedRoots(tmp_path).root(1) == first != roots.root(2)


def test_change_of_the_machine_makes_a_new_root_and_running_units_keep_theirs(place: Path, tmp_path: Path) -> None:
    roots = PreparedRoots(tmp_path)
    old = roots.root(1)
    (place / "hosts").write_text("another")
    new = roots.root(1)
    assert Path(f"{new.path}{place}/hosts").read_text() == "another"
    assert Path(f"{old.path}{place}/hosts").read_text() == "one"
    (tmp_path / "roots" / ".new-half").mkdir()
    roots.sweep()
    assert list((tmp_path / "roots").iterdir()) == [new.path]
