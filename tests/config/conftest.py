"""A fresh home for every test of this directory, and the command line."""

from pathlib import Path

import pytest

from tests.config.entry import Hcloud, caller


@pytest.fixture(autouse=True)
def fresh_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hide the configuration and the home directory of the user who runs the tests."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("HCLOUD_HOME", "HCLOUD_CONFIG", "HCLOUD_DATABASE", "HCLOUD_SOCKET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def hcloud(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Hcloud:
    """Run `hcloud ARGUMENTS` in this process."""
    monkeypatch.setenv("HCLOUD_CONFIG", "")  # main() sets it for --config; monkeypatch takes it away again
    return caller(capsys)
