"""Lab commands as separate processes."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass
class LabShell:
    """Runs ``python -m lab.<command>`` in its own directory."""

    directory: Path

    def start(self, command: str, *arguments: str, **changes: str) -> subprocess.Popen[str]:
        """Start a command with pipes as standard streams."""
        return subprocess.Popen(
            [sys.executable, "-m", f"lab.{command}", *arguments],
            cwd=self.directory,
            env={**os.environ, "HOME": str(self.directory), **changes},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, command: str, *arguments: str, exit_code: int = 0, **changes: str) -> tuple[str, str]:
        """Run a command to its end; return its standard output and error."""
        out, err = (running := self.start(command, *arguments, **changes)).communicate(timeout=120)
        assert running.returncode == exit_code, out + err
        return out, err


@pytest.fixture
def lab(tmp_path: Path) -> LabShell:
    """A shell without a daemon."""
    return LabShell(tmp_path)
