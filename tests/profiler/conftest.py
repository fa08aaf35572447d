"""Each test here has a place of its own for temporary files, so that it sees what it left behind and nothing else."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hcloud.engine.limits import found_cgroups
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def own_temporary_files(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Files of copies, loads and probes, their groups and mounts are gone when a test is over."""
    tmp_path_factory.getbasetemp()  # made before the place for temporary files is another one
    with tempfile.TemporaryDirectory(prefix="hcloud-tests-") as name:
        Path(name).chmod(0o1777)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)
        monkeypatch.undo()
        wait_until(lambda: not list(Path(name).glob("hcloud-*")), timeout_s=60)
        wait_until(lambda: not found_cgroups(f"profile-{os.getpid()}"), timeout_s=60)
        assert name not in Path("/proc/self/mounts").read_text()
