"""How a command is started: through a shell that takes on its bounds, without a copy of the keeper."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hcloud.engine.launch import Entrance, RunningCommand
from hcloud.engine.sandbox import Cell, Isolation

SANDBOX = """#!/bin/sh
{ cat "$GROUP" 2>/dev/null; ulimit -f; ulimit -c; grep SigIgn /proc/self/status; ls /proc/self/fd; } >"$0.out"
"""
C_LIBRARYS_OWN = 0b11 << 31
"""Signals 32 and 33, which no program can set."""


def fork_is_needed() -> None:
    raise AssertionError("nothing was to be forked")


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    """A cell whose sandbox only writes down what it was started with; this process ignores some signals."""
    sandbox = tmp_path / "sandbox"
    sandbox.write_text(SANDBOX)
    sandbox.chmod(0o755)
    (tmp_path / "group").mkdir()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    isolation = Isolation(root=False, bwrap=str(sandbox), firewall=False, cgroup=None, podman=None, pinned=False)
    yield Cell(root=tmp_path, uid=os.getuid(), network="none", isolation=isolation)
    signal.signal(signal.SIGHUP, before)


def ended(cell: Cell, **environment: str) -> int:
    entrance = Entrance(groups=[str(cell.root / "group")], file_mib=3)
    environment = {"HCLOUD_UNIT_ID": "u", **environment}
    running = RunningCommand(cell, ("true",), environment, fork_is_needed, cell.root / "log", 1 << 20, entrance)
    code = os.waitstatus_to_exitcode(os.waitpid(running.pid, 0)[1])
    running.drain()
    return code


def test_command_is_in_its_groups_and_bounds_before_the_sandbox_begins(cell: Cell) -> None:
    assert ended(cell) == 0
    assert (cell.root / "group" / "cgroup.procs").read_text() == "0\n"
    blocks, core, ignored, *handles = (cell.root / "sandbox.out").read_text().replace("SigIgn:\t", "").split()
    assert (int(blocks), core, int(ignored, 16) & ~C_LIBRARYS_OWN) == (3 * 2048, "0", 0)
    assert set(handles) >= {"0", "1", "2", "3", "4"}


def test_command_whose_group_is_gone_does_not_begin(cell: Cell) -> None:
    (cell.root / "group").rmdir()
    assert ended(cell) == 126
    assert not (cell.root / "sandbox.out").exists()
