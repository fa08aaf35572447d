"""The agent's part of ``hcloud exec``: a command in a running unit, with bounds on its time and its output."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hcloud.engine.enter_unit import NOT_HERE_EXIT
from hcloud.engine.limits import group_for
from hcloud.engine.unit import Unit

OUTPUT_BYTES_MAX = 256 << 10
"""Of each stream; what is beyond is read and dropped."""
AT_ONCE_MAX = 8
AFTER_END_S = 0.5
"""What processes that the command left may still write."""
EXEC_S_MAX = 60.0


@dataclass(slots=True)
class UnitCommands:
    """Runs commands in units of this machine."""

    bwrap: bool
    filters_calls: bool
    cgroup: Mapping[str, Any] | None
    _running: int = 0

    async def run(self, unit: Unit, command: Sequence[str], timeout_s: float) -> dict[str, Any]:
        """Run a command to its end, or kill it after ``timeout_s``; return what became of it, on the wire."""
        if os.geteuid() != 0 or not self.bwrap:
            return {"refused": "commands can be run only where the agent is root and jobs have a sandbox (bubblewrap)"}
        if unit.is_to_pause:
            return {"refused": f"{unit.id} is paused, so a command in it would not run"}
        if self._running >= AT_ONCE_MAX:
            return {"refused": f"{AT_ONCE_MAX} commands are run on this machine already; try again later"}
        self._running += 1
        try:
            return await self._run(unit, command, min(timeout_s, EXEC_S_MAX))
        finally:
            self._running -= 1

    async def _run(self, unit: Unit, command: Sequence[str], timeout_s: float) -> dict[str, Any]:
        group = group_for(self.cgroup, unit.id)
        groups = group.entrances if group is not None else []
        request = {"command": list(command), "groups": groups, "filters_calls": self.filters_calls}
        without_site = ["-S"] if sys.flags.no_site else []
        entering = await asyncio.create_subprocess_exec(
            sys.executable, *without_site, "-m", "hcloud.engine.enter_unit", str(unit.path),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        assert entering.stdin is not None and entering.stdout is not None and entering.stderr is not None
        outputs = [_Bounded(), _Bounded()]
        reading = [
            asyncio.create_task(output.read(stream))
            for output, stream in zip(outputs, (entering.stdout, entering.stderr), strict=True)
        ]
        timed_out = False
        try:
            entering.stdin.write(json.dumps(request).encode())
            entering.stdin.close()
            async with asyncio.timeout(timeout_s):
                await entering.wait()
        except TimeoutError:
            timed_out = True
        finally:
            with suppress(ProcessLookupError):
                os.killpg(entering.pid, signal.SIGKILL)
            code = await entering.wait()
            await asyncio.wait(reading, timeout=AFTER_END_S)
            for task in reading:
                task.cancel()
        out, err = (bytes(each.kept) for each in outputs)
        if code == NOT_HERE_EXIT and not timed_out:
            why = err.decode(errors="replace").strip().splitlines()
            return {"refused": f"{unit.id} cannot be entered: {why[-1] if why else 'no reason given'}"}
        return {
            "exit_code": None if timed_out else code,
            "stdout_bytes": len(out),
            "is_cut": any(each.is_cut for each in outputs),
            "content": out + err,
        }


class _Bounded:
    """The first bytes of a stream."""

    def __init__(self) -> None:
        self.kept, self.is_cut = bytearray(), False

    async def read(self, stream: asyncio.StreamReader) -> None:
        while content := await stream.read(1 << 16):
            room = OUTPUT_BYTES_MAX - len(self.kept)
            self.kept += content[:room]
            self.is_cut = self.is_cut or len(content) > room
