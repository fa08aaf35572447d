"""CPU time that benchmarks report counts processes that end meanwhile, once."""

import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from bench.short_tasks import CpuMeter
from tests.daemon.home import Home

BURN = "import time\nwhile time.process_time() < 0.1: pass\n"
ALONE = BURN + "print('spent', flush=True)\ninput()"
WITH_CHILD = (
    f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {ALONE!r}])\nprint('over', flush=True)\ninput()"
)


class Place:
    """A home as the meter knows it."""

    def __init__(self, path: Path) -> None:
        self.path = path


def started(place: Place, program: str) -> subprocess.Popen[str]:
    """Start a program of this home; return it once it has spent 0.1 s."""
    environment = {**os.environ, "PLACE": str(place.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "spent\n"
    return process


def said(process: subprocess.Popen[str]) -> None:
    """Let a program go on."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_what_ended_counts_as_when_it_was_read_last(tmp_path: Path) -> None:
    meter = CpuMeter(cast(Home, Place(tmp_path)))
    process = started(Place(tmp_path), ALONE)
    before_s = sum(meter.read_s().values())
    said(process)
    process.wait(10.0)
    assert before_s >= 0.09
    assert sum(meter.read_s().values()) == pytest.approx(before_s)


def test_what_a_living_process_has_collected_counts_once(tmp_path: Path) -> None:
    meter = CpuMeter(cast(Home, Place(tmp_path)))
    process = started(Place(tmp_path), WITH_CHILD)
    before_s = sum(meter.read_s().values())
    said(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "over\n"
    after_s = sum(meter.read_s().values())
    said(process)
    process.wait(10.0)
    assert before_s <= after_s < before_s + 0.08
