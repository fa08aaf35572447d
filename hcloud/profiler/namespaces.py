"""Namespaces and mounts by system call, for the child process that will become a profiled program."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hcloud.core.processes import raise_loopback
from hcloud.profiler.host import ProfilingHost

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Give the calling process its own namespaces; without root also a user namespace, mapped to itself."""
    uid, gid = os.getuid(), os.getgid()
    root = os.geteuid() == 0
    _check(_libc.unshare(flags if root else flags | CLONE_NEWUSER), "unshare")
    if not root:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def mount_overlay(lower: Path, upper: Path, work: Path, target: Path) -> None:
    """Mount a writable view of ``lower`` over ``target``, in a mount namespace of the calling process alone.

    Raises OSError if the kernel or the file system refuses.
    """
    unshare(CLONE_NEWNS)
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE, None)
    options = ",".join(f"{key}={_escaped(path)}" for key, path in
                       (("lowerdir", lower), ("upperdir", upper), ("workdir", work)))  # fmt: skip
    _mount("overlay", str(target), "overlay", 0, options if os.geteuid() == 0 else f"{options},userxattr")


def works_in_child(action: Callable[[], None]) -> bool:
    """Return whether an action succeeds in a child that exits right after, discarding its namespaces and mounts."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
            code = 0
        except OSError:
            code = 1
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


@contextmanager
def loopback_network(host: ProfilingHost) -> Iterator[Callable[[], None] | None]:
    """Create a network namespace with only a loopback interface; yield a function that makes a child enter it.

    Yields None if this machine refuses network namespaces.
    """
    reader, writer = os.pipe()
    holder = os.fork()
    if holder == 0:
        _hold_network(host, writer)
    os.close(writer)
    spaces = (("net", CLONE_NEWNET),) if os.geteuid() == 0 else (("user", CLONE_NEWUSER), ("net", CLONE_NEWNET))
    try:
        yield (lambda: _enter(holder, spaces)) if os.read(reader, 1) else None
    finally:
        os.close(reader)
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)


def _enter(holder: int, spaces: Sequence[tuple[str, int]]) -> None:
    # Opened only here: a child that is about to be isolated has closed what it inherited.
    handles = [(os.open(f"/proc/{holder}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC), kind) for name, kind in spaces]
    for handle, kind in handles:
        _check(_libc.setns(handle, kind), "setns")
        os.close(handle)


def _hold_network(host: ProfilingHost, writer: int) -> None:
    """In the child: create the network, signal readiness, and wait to be killed. Never returns."""
    try:
        host.die_with_parent()
        unshare(CLONE_NEWNET)
        raise_loopback()
        os.write(writer, b"1")
        signal.pause()
    except OSError:
        os.close(writer)  # the parent reads end of file: no network available
    finally:
        os._exit(1)


def _escaped(path: Path) -> str:
    return str(path).replace("\\", "\\\\").replace(",", "\\,").replace(":", "\\:")


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None) -> None:
    words = [word.encode() if word is not None else None for word in (source, target, kind, options)]
    _check(_libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]), "mount")


def _check(result: int, name: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
