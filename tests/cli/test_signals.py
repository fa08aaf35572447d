"""Measurements that are ended by a signal: what they opened is closed, once, whatever they were doing."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, signal, sys, weakref
from contextlib import contextmanager
from hcloud.cli.signals import exit_on_signal

class Thing: pass

@contextmanager
def opened():
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            os.kill(os.getpid(), number)
        print("closed", flush=True)

def strike():
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))

with exit_on_signal() as leaving, opened():
    if sys.argv[2] == "lost":
        thing = Thing()
        hook = weakref.ref(thing, lambda _: strike())
        del thing
        print("lost", flush=True)
    elif sys.argv[2] == "swallowed":
        try:
            strike()
        except (KeyboardInterrupt, SystemExit):
            print("swallowed", flush=True)
        leaving.go_on()
    elif sys.argv[2] == "handling":
        try:
            raise ValueError
        except ValueError:
            strike()
    else:
        strike()
    while True:
        signal.pause()
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", -signal.SIGINT), ("SIGTERM", 143), ("SIGHUP", 129)])
@pytest.mark.parametrize("where", ["lost", "swallowed", "handling", "anywhere"])
def test_a_signal_ends_a_measurement_in_order_also_where_what_it_raises_is_lost(
    name: str, code: int, where: str
) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, name, where], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    assert done.stdout.split() == [*([where] if where in ("lost", "swallowed") else []), "closed"]
    assert ("Exception ignored in" in done.stderr) is (where == "lost")


def test_a_forked_child_ends_without_closing_what_its_parent_opened(tmp_path: Path) -> None:
    block = "with exit_on_signal() as leaving, opened():"
    forking = PROGRAM.replace(block, f"{block}\n    os.fork()")
    with (tmp_path / "out").open("w") as out:
        words = [sys.executable, "-c", forking, "SIGTERM", "anywhere"]
        assert subprocess.run(words, stdout=out, stderr=subprocess.DEVNULL, timeout=60).returncode == 143
    assert (tmp_path / "out").read_text() == "closed\n"
