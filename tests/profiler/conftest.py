"""Each test here has its own directory for temporary files, so that it sees only its own leftovers."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hcloud.engine.limits import found_cgroups
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def own_temporary_files(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Assert after each test that files, groups and mounts of copies, sources and probes are gone."""
    tmp_path_factory.getbasetemp()  # made before the place for temporary files is another one
    with tempfile.TemporaryDirectory(prefix="hcloud-tests-") as name:
        Path(name).chmod(0o1777)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)
        monkeypatch.undo()
        wait_until(lambda: not list(Path(name).glob("hcloud-*")), timeout_s=60)
        wait_until(lambda: not found_cgroups(f"profile-{os.getpid()}"), timeout_s=60)
        assert name not in Path("/proc/self/mounts").read_text()
