"""The real entry point, as its own process, against a real server on a real socket."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.api.deployment import Deployment
from tests.warm import WARM


@dataclass
class Shell:
    """Runs ``hcloud`` in a directory of its own, with the socket in its environment."""

    directory: Path
    environment: dict[str, str] = field(default_factory=dict)
    constants: dict[str, float] = field(default_factory=dict)
    """Waits of commands that are shorter than a user's, by the constants' full names."""

    def start(self, *arguments: str, **changes: str) -> subprocess.Popen[str]:
        """Begin a command; its standard streams are pipes."""
        environment = {**os.environ, **self.environment, **changes}
        return subprocess.Popen(
            [sys.executable, "-m", "hcloud.cli.main", *arguments],
            cwd=self.directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, exit_code: int = 0, **changes: str) -> tuple[str, str]:
        """Run a command to its end; return what it wrote on both streams."""
        environment = {**os.environ, **self.environment, **changes}
        done = WARM.run(arguments, cwd=self.directory, environment=environment, timeout_s=60, constants=self.constants)
        return _checked(done.returncode, exit_code, done.stdout, done.stderr, arguments)

    def run_anew(self, *arguments: str, exit_code: int = 0, **changes: str) -> tuple[str, str]:
        """The same in a process that has imported nothing before, as a user's has."""
        process = self.start(*arguments, **changes)
        out, err = process.communicate(timeout=60)
        return _checked(process.returncode, exit_code, out, err, arguments)


def _checked(code: int, expected: int, out: str, err: str, arguments: tuple[str, ...]) -> tuple[str, str]:
    assert code == expected, (arguments, code, out, err)
    assert "Traceback" not in err, err
    return out, err


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    """A deployment that lives in a short directory."""
    with tempfile.TemporaryDirectory(prefix="hcloud-cli-") as made:
        deployment = Deployment(Path(made))
        yield deployment
        deployment.close()


@pytest.fixture
def shell(deployment: Deployment) -> Iterator[Shell]:
    """A shell whose ``hcloud`` reaches a running deployment, which has asked its cloud for offers."""
    (deployment.home / "user").mkdir()
    deployment.cycle()
    with deployment.served() as server, deployment.running():
        yield Shell(
            directory=deployment.home / "user",
            environment={"HCLOUD_SOCKET": str(server.socket_path), "HOME": str(deployment.home / "user")},
        )


@pytest.fixture
def lonely(tmp_path: Path) -> Shell:
    """A shell without a daemon."""
    environment = {"HCLOUD_SOCKET": str(tmp_path / "none.sock"), "HOME": str(tmp_path)}
    # How long a daemon is waited for that does not answer.
    return Shell(directory=tmp_path, environment=environment, constants={"hcloud.client.connection.PATIENCE_S": 0.05})
