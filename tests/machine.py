"""What a test needs of the machine it runs on. Tests are skipped here only, each for something the machine lacks.

`make setup` installs what can be installed; the end of a test run names what was skipped, and why.
"""

import os
import shutil
import sys
from pathlib import Path

import pytest

from hcloud.engine.gang_tunnel import find_tunnel_kind
from tests.databases import BINARIES


def needs(present: object, lack: str) -> pytest.MarkDecorator:
    """Return a mark for tests that can only run where something is ``present``; ``lack`` says what is not."""
    return pytest.mark.skipif(not present, reason=lack)


def groups_named(name: str) -> list[Path]:
    """Control groups of this name, and all inside them, in every hierarchy.

    Other tests make and remove groups at the same time; what vanishes while one looks ends a ``glob`` with an error.
    """
    return [Path(folder) for folder, _, _ in os.walk("/sys/fs/cgroup") if name in folder.split("/")]


ROOT = os.geteuid() == 0
BWRAP = shutil.which("bwrap")
PROMTOOL = shutil.which("promtool") or shutil.which("promtool", path=str(Path(sys.executable).parent))

needs_root = needs(ROOT, "only root can become another user, give units a user id and set firewall rules")
needs_bwrap = needs(BWRAP, "bubblewrap is not installed")
needs_podman = needs(ROOT and BWRAP and shutil.which("podman"), "container images need root, podman and bubblewrap")
needs_stress_ng = needs(shutil.which("stress-ng"), "stress-ng is not installed")
needs_torchrun = needs(shutil.which("torchrun"), "PyTorch (Debian package python3-torch) is not installed")
needs_wireguard = needs(find_tunnel_kind()[0], "WireGuard (Debian packages wireguard-tools, wireguard-go) is missing")
needs_mpirun = needs(shutil.which("mpirun"), "Open MPI (Debian package openmpi-bin) is not installed")
needs_systemd_analyze = needs(shutil.which("systemd-analyze"), "systemd-analyze is not installed: units not verified")
needs_promtool = needs(PROMTOOL, "promtool (Debian package prometheus) is not installed")
needs_sqlite3 = needs(shutil.which("sqlite3"), "the program sqlite3 is not installed: the guide's backup not tried")
needs_postgresql = needs(BINARIES, "PostgreSQL is not installed")
needs_cgroups_v1 = needs(ROOT and os.access("/sys/fs/cgroup/pids", os.W_OK), "no writable cgroup v1 hierarchy here")
needs_two_cpus = needs(len(os.sched_getaffinity(0)) > 1, "this machine has one CPU only")
