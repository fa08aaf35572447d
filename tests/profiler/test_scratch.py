"""Directories of copies are removed with their owners, and no others are."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hcloud.core.clock import SystemClock
from hcloud.profiler.scratch import YOUNG_S, scratch, sweep
from tests.waiting import wait_until

HOLD = """
import sys, pathlib
from hcloud.profiler.scratch import scratch
with scratch("copy", pathlib.Path(sys.argv[1])) as folder:
    (folder / "inner").mkdir(mode=0)
    print("made", flush=True)
    sys.stdin.read()
"""


def test_directory_is_gone_after_its_block_whatever_lies_in_it(tmp_path: Path) -> None:
    with scratch("copy", tmp_path) as folder:
        (folder / "work").mkdir(mode=0)
        assert folder.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_directory_is_gone_though_something_was_still_made_in_it(tmp_path: Path) -> None:
    """A killed process may write until it is gone."""
    with scratch("test", tmp_path) as folder:
        writes = 'n=0; while [ $n -lt 300 ]; do : > "$0/$n"; n=$((n+1)); done'
        writer = subprocess.Popen(["sh", "-c", writes, str(folder)], stderr=subprocess.DEVNULL)
        wait_until(lambda: any(folder.iterdir()), 30.0)
    writer.wait(30)
    assert list(tmp_path.iterdir()) == []


def test_only_what_a_killed_maker_left_is_swept(tmp_path: Path) -> None:
    killed, alive = (
        subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(2)
    )
    for process in (killed, alive):
        assert process.stdout is not None and process.stdout.readline() == b"made\n"
    mine = tmp_path / "something-else"
    mine.mkdir()
    killed.kill()
    killed.wait()
    now = SystemClock().now()
    sweep(tmp_path, now)
    assert len(list(tmp_path.iterdir())) == 3  # too young to be sure
    sweep(tmp_path, now + YOUNG_S + 1)
    assert mine in tmp_path.iterdir()
    assert len(list(tmp_path.iterdir())) == 2
    alive.communicate(b"")
    assert alive.returncode == 0
    assert list(tmp_path.iterdir()) == [mine]
    assert os.listdir(mine) == []


ENDED = """
import os, pathlib, shutil, signal, sys
from hcloud.profiler import scratch
signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
def end_after(module, name):
    call = getattr(module, name)
    def called(*arguments, **options):
        setattr(module, name, call)
        if name == "rmtree":
            os.kill(os.getpid(), signal.SIGTERM)
        made = call(*arguments, **options)
        os.kill(os.getpid(), signal.SIGTERM)
        return made
    setattr(module, name, called)
end_after({"mkdir": os, "flock": scratch.fcntl, "rmtree": shutil}[sys.argv[2]], sys.argv[2])
with scratch.scratch("copy", pathlib.Path(sys.argv[1])) as folder:
    (folder / "file").touch()
sys.exit("nothing has ended it")
"""


@pytest.mark.parametrize("during", ["mkdir", "flock", "rmtree"])
def test_signal_while_a_directory_is_made_or_removed_leaves_none(during: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ENDED, tmp_path, during], capture_output=True, text=True, timeout=60)
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert list(tmp_path.iterdir()) == []
