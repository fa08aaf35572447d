"""``python -m lab.papers`` as separate processes."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.warm import PAPERS


@dataclass
class LabShell:
    """Runs ``python -m lab.papers`` in its own directory."""

    directory: Path

    def start(self, *arguments: str, **changes: str) -> subprocess.Popen[str]:
        """Start the command with pipes as standard streams, in a process that has imported nothing before."""
        return subprocess.Popen(
            [sys.executable, "-m", "lab.papers", *arguments],
            cwd=self.directory,
            env={**os.environ, "HOME": str(self.directory), **changes},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, exit_code: int = 0) -> tuple[str, str]:
        """Run the command to its end; return its standard output and error."""
        environment = {**os.environ, "HOME": str(self.directory)}
        done = PAPERS.run(arguments, cwd=self.directory, environment=environment, timeout_s=120)
        assert done.returncode == exit_code, done.stdout + done.stderr
        return done.stdout, done.stderr


@pytest.fixture
def lab(tmp_path: Path) -> LabShell:
    """A shell without a daemon."""
    return LabShell(tmp_path)
