"""Child processes."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress


def reap(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a child that was killed, and set its ``returncode``.

    Without ``process.wait``: what a signal's handler raised within it may have left its lock held for ever.
    """
    if process.returncode is None:
        with suppress(ChildProcessError):
            process.returncode = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
