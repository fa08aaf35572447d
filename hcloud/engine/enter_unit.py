"""Runs one command inside a running unit, beside what it runs: same namespaces, control groups, user and limits.

A process of its own, ``python -m hcloud.engine.enter_unit UNIT_DIRECTORY``, with a JSON object on its standard input.
It is root until it is inside, so from then on it neither imports nor opens anything: those are the unit's files.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import sys
import warnings  # noqa: F401 which ``os.execvpe`` imports, and must find loaded
from collections.abc import Sequence
from pathlib import Path

from hcloud.engine.syscall_filter import syscall_filter
from hcloud.engine.unit import Unit
from hcloud.engine.usage import descendants

MISSING_EXIT, REFUSED_EXIT = 127, 126
NOT_HERE_EXIT = 125
"""The unit cannot be entered; one sentence on standard error says why."""
_NAMESPACES = ("cgroup", "ipc", "uts", "net", "pid", "mnt")
"""The last one hides this machine's files."""
_PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 22, 24, 38, 47
_MODE_FILTER, _CLEAR_ALL, _CAPABILITIES = 2, 4, 64
_LIMITS = {
    "Max file size": resource.RLIMIT_FSIZE,
    "Max core file size": resource.RLIMIT_CORE,
    "Max processes": resource.RLIMIT_NPROC,
    "Max address space": resource.RLIMIT_AS,
    "Max data size": resource.RLIMIT_DATA,
    "Max open files": resource.RLIMIT_NOFILE,
}
"""By their names in ``/proc/PID/limits``."""
_libc = ctypes.CDLL(None, use_errno=True)


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_char_p))


class NotEntered(Exception):
    """The unit cannot be entered; the message says why."""


def main() -> int:
    """Enter and run; return the command's exit code, or one of this module's."""
    request = json.loads(sys.stdin.buffer.read())
    unit, command = Unit(Path(sys.argv[1])), [str(each) for each in request["command"]]
    try:
        inside = _process_inside(unit)
        namespaces = [os.open(f"/proc/{inside}/ns/{name}", os.O_RDONLY) for name in _NAMESPACES]
        limits = _limits(inside)
        environment, uid = _environment(inside), int((unit.read("spec.json") or {})["uid"])
        if not unit.kept or unit.ended:  # else the process may be another's by now
            raise NotEntered("it has ended")
        for folder in request["groups"]:
            Path(folder, "cgroup.procs").write_text("0")
    except (OSError, KeyError, NotEntered) as error:
        print(f"{error}", file=sys.stderr)
        return NOT_HERE_EXIT
    program = syscall_filter() if request["filters_calls"] else None
    for handle in namespaces:
        if _libc.setns(handle, 0) != 0:
            print(f"its namespaces cannot be entered: {os.strerror(ctypes.get_errno())}", file=sys.stderr)
            return NOT_HERE_EXIT
    pid = os.fork()  # only children are in the namespace of process ids
    if pid == 0:
        _become(command, environment, uid, limits, program)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if code >= 0 else 128 - code


def _process_inside(unit: Unit) -> int:
    """Return the id of a process in the unit's namespaces: its command, not bwrap. Raises NotEntered."""
    keeper = unit.keeper_pid
    if keeper is None or unit.read("started.json") is None or not unit.kept or unit.ended:
        raise NotEntered("its command does not run")
    outer = os.stat("/proc/self/ns/mnt").st_ino
    for generation in (3, 2):  # bwrap, its first process inside, the command
        found = descendants(int(keeper), depth=generation) - descendants(int(keeper), depth=generation - 1)
        for pid in sorted(found):
            try:
                if os.stat(f"/proc/{pid}/ns/mnt").st_ino != outer:
                    return pid
            except FileNotFoundError:
                continue
    raise NotEntered("it has no sandbox to enter")


def _environment(pid: int) -> dict[bytes, bytes]:
    """Return the environment with which a process began."""
    content = Path(f"/proc/{pid}/environ").read_bytes()
    pairs = (each.partition(b"=") for each in content.split(b"\0") if b"=" in each)
    return {name: value for name, _, value in pairs if name}


def _limits(pid: int) -> list[tuple[int, tuple[int, int]]]:
    """Return the limits of a process, soft and hard."""
    found = []
    for line in Path(f"/proc/{pid}/limits").read_text().splitlines():
        number = next((each for name, each in _LIMITS.items() if line.startswith(f"{name}  ")), None)
        if number is not None:
            soft, hard = (
                resource.RLIM_INFINITY if each == "unlimited" else int(each) for each in line[26:].split()[:2]
            )
            found.append((number, (soft, hard)))
    return found


def _become(
    command: Sequence[str],
    environment: dict[bytes, bytes],
    uid: int,
    limits: Sequence[tuple[int, tuple[int, int]]],
    program: bytes | None,
) -> None:
    """Take on all that holds for the unit's own command, and turn into the one that is to run. Does not return."""
    try:
        os.closerange(3, 4096)
        os.umask(0o022)
        for capability in range(_CAPABILITIES):
            _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails for numbers that this kernel does not know
        _libc.prctl(_PR_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)
        for limit, values in limits:
            resource.setrlimit(limit, values)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)  # which takes all capabilities
        os.chdir("/job")
        if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "no_new_privs")
        if program is not None:
            filter_ = _Filter(len(program) // 8, program)
            if _libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(filter_), 0, 0) != 0:
                raise OSError(ctypes.get_errno(), "seccomp")
        os.execvpe(command[0], list(command), environment)
    except OSError as error:
        missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        text = f"there is no command {command[0]}" if missing else f"{command[0]} cannot be run: {error.strerror}"
        os.write(2, f"hcloud: {text}\n".encode(errors="replace"))
        os._exit(MISSING_EXIT if missing else REFUSED_EXIT)
    finally:
        os._exit(REFUSED_EXIT)


if __name__ == "__main__":
    sys.exit(main())
