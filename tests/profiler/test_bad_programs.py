"""Programs that misbehave under the profiler: the job is untouched, limits hold, notes say why nothing was learnt."""

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hcloud.core.estimates import Findings
from hcloud.core.model import ProfileRequest
from hcloud.engine.host import EngineHost
from hcloud.profiler.measure import Subject, measure
from tests.machine import needs_root

PATIENCE_S = 60.0


@pytest.fixture
def workdir() -> Iterator[Path]:
    """A work directory with a file in it, which must be as it was at the end."""
    with tempfile.TemporaryDirectory(prefix="bad-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "input.txt").write_text("precious")
        if os.geteuid() == 0:
            for path in (folder, folder / "input.txt"):
                os.chown(path, 4321, 4321)
        yield folder
        assert {path.name: path.read_text() for path in folder.iterdir()} == {"input.txt": "precious"}


def profiled(
    workdir: Path, *command: str, run_s: float = 30.0, total_s: float = PATIENCE_S, **changes: Any
) -> Findings:
    """The findings of a profiling run with two sources, ended early by what the program does."""
    subject = Subject(**{"name": "bad", "command": command, "workdir": workdir, "memory_mib": 128, **changes})
    request = ProfileRequest(job_id="job-1", type_column="local/here", steps_vcpus=(0.5, 0.25),
                             sources=("integer", "memory-capacity"), run_s=run_s, total_s=total_s)  # fmt: skip
    began = time.monotonic()
    findings = measure(request, subject, EngineHost())
    assert time.monotonic() - began < PATIENCE_S
    assert all(note[0].islower() and " " in note for note in findings.notes)
    return findings


CRASHES = "import os, signal; open('input.txt', 'w'); os.kill(os.getpid(), signal.SIGSEGV)"
NEEDS_LICENCE = "import sys; sys.exit('cannot reach the licence server lic.example:27000 (error -15)')"
WRITES_MANY_FILES = """
import os
os.unlink("input.txt")
for number in range(1000):
    open(f"part-{number}", "wb").write(bytes(1 << 20))
import signal; signal.pause()
"""
FORKS_FOR_EVER = """
import os, signal
os.unlink("input.txt")
while True:
    try:
        if os.fork() == 0:
            signal.pause()
    except OSError:
        signal.pause()
"""


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (CRASHES, "it ended with code 139 after"),
        (NEEDS_LICENCE, "cannot reach the licence server lic.example:27000 (error -15)"),
        (WRITES_MANY_FILES, "it wrote more than 36 MiB of files, the limit of a profiling copy"),
        ("open('big', 'wb').write(bytes(60 << 20))", "it wrote"),
        ("x = bytearray(400 << 20)", "memory"),
    ],
    ids=["crash", "licence server", "many files", "large file", "memory"],
)
def test_program_that_fails_teaches_nothing_and_the_notes_say_why(workdir: Path, script: str, words: str) -> None:
    findings = profiled(workdir, "python3", "-c", script, disk_mib=40)
    assert findings.readings == ()
    assert any(words.lower() in note.lower() for note in findings.notes), findings.notes


@needs_root
def test_program_that_forks_without_end_is_ended_at_its_limit(workdir: Path) -> None:
    findings = profiled(workdir, "python3", "-c", FORKS_FOR_EVER)
    assert findings.readings == ()
    assert any("it started more than 256 processes at once" in note for note in findings.notes), findings.notes


def test_program_that_prints_without_end_fills_no_disk(workdir: Path, own_temporary_files: Path) -> None:
    peak = list[float]()

    class Watched(EngineHost):
        def disk_mib(self, directory: Path, most_mib: int) -> float:
            peak.append(super().disk_mib(directory, most_mib))
            return peak[-1]

    command = ("/bin/sh", "-c", "while :; do head -c 50000000 /dev/zero; done")
    subject = Subject(name="prints", command=command, workdir=workdir, disk_mib=40)
    request = ProfileRequest(job_id="job-1", type_column="local/here", steps_vcpus=(0.5,), run_s=0.5, total_s=2.0)
    findings = measure(request, subject, Watched())
    assert findings.readings or findings.notes
    assert peak and max(peak) < 8


def test_program_that_is_over_at_once_is_measured_by_its_runs_and_no_source_is_tuned(workdir: Path) -> None:
    findings = profiled(workdir, "true", run_s=1.0, total_s=5.0)
    assert {each.question for each in findings.readings} == {"type", "nodes", "step"}
    assert any("interference was not measured" in note for note in findings.notes)
