"""Work until an amount is done, and say how long that took: ``until.py AMOUNT COMMAND...``; a program of its own.

The command is a recipe's loop, which writes the amount done into ``progress``. The first tenth of the amount is warming
up and not counted, so that starting the program is none of its performance.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

EVERY_S = 0.01
WARM_SHARE = 0.1


def done() -> float:
    """Return the amount so far."""
    try:
        with open("progress", encoding="ascii") as stream:
            return float(stream.read() or 0)
    except (FileNotFoundError, ValueError):
        return 0.0


def wait(amount: float, child: subprocess.Popen[bytes]) -> float:
    """Return the moment at which the amount is done; ends this program if the child ends first."""
    while done() < amount:
        if child.poll() is not None:
            sys.exit(f"until: the command ended with {child.returncode}")
        time.sleep(EVERY_S)
    return time.monotonic()


def main(amount: float, command: list[str]) -> None:
    """Print the seconds from a tenth of the amount to all of it."""
    child = subprocess.Popen(command, start_new_session=True)
    began = wait(WARM_SHARE * amount, child)
    print(f"took {wait(amount, child) - began:.4f}", flush=True)
    os.killpg(child.pid, signal.SIGKILL)


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
