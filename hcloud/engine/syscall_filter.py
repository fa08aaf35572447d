"""The system calls that jobs may not make, as a program for the kernel (seccomp).

No job has capabilities, so most of what needs them is refused anyway. The filter takes away what any user may call and
what has let users become root time and again: new namespaces, keyrings, bpf, io_uring and the like. It follows the
default profile of container engines, but allows what that leaves to capabilities.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

CLONE_NAMESPACES = 0x7E02_0000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
CLONE_NEWTIME = 0x80
"""For ``unshare`` only: in ``clone`` this bit belongs to a signal."""
_REFUSED = (
    "setns", "mount", "umount2", "pivot_root", "move_mount", "open_tree", "fsopen", "fsconfig", "fsmount", "fspick",
    "mount_setattr", "add_key", "request_key", "keyctl", "bpf", "perf_event_open", "userfaultfd", "open_by_handle_at",
    "kexec_load", "init_module", "finit_module", "delete_module",
)  # fmt: skip
_MISSING = ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register")
"""As if the kernel had none: programs then do without. The flags of ``clone3`` lie in memory, which no filter reads."""
_SINCE_2018 = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435, "mount_setattr": 442,
}  # fmt: skip
"""The same on all architectures."""
X32_BIT = 0x4000_0000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Abi:
    """One set of system call numbers."""

    audit: int
    """AUDIT_ARCH of ``linux/audit.h``."""
    numbers: Mapping[str, int]
    has_x32: bool = False


_X86_64 = _Abi(
    audit=0xC000_003E,
    has_x32=True,
    numbers={
        "clone": 56, "unshare": 272, "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155, "add_key": 248,
        "request_key": 249, "keyctl": 250, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323,
        "open_by_handle_at": 304, "kexec_load": 246, "init_module": 175, "finit_module": 313, "delete_module": 176,
        **_SINCE_2018,
    },
)  # fmt: skip
_I386 = _Abi(
    audit=0x4000_0003,
    numbers={
        "clone": 120, "unshare": 310, "setns": 346, "mount": 21, "umount2": 52, "pivot_root": 217, "add_key": 286,
        "request_key": 287, "keyctl": 288, "bpf": 357, "perf_event_open": 336, "userfaultfd": 374,
        "open_by_handle_at": 342, "kexec_load": 283, "init_module": 128, "finit_module": 350, "delete_module": 129,
        **_SINCE_2018,
    },
)  # fmt: skip
_AARCH64 = _Abi(
    audit=0xC000_00B7,
    numbers={
        "clone": 220, "unshare": 97, "setns": 268, "mount": 40, "umount2": 39, "pivot_root": 41, "add_key": 217,
        "request_key": 218, "keyctl": 219, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282,
        "open_by_handle_at": 265, "kexec_load": 104, "init_module": 105, "finit_module": 273, "delete_module": 106,
        **_SINCE_2018,
    },
)  # fmt: skip
_ABIS = {"x86_64": (_X86_64, _I386), "aarch64": (_AARCH64,)}

# Classic BPF: load a word of seccomp_data, compare it with a constant, return.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCH_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF_0000, 0x0005_0000, 0x8000_0000
_Instruction = tuple[int, int, int, int]


@cache
def syscall_filter(machine: str | None = None) -> bytes | None:
    """Return the filter for a machine as ``uname -m`` names it (None: this one), as bwrap's ``--seccomp`` reads it.

    None: its system calls are not known here.
    """
    abis = _ABIS.get(machine or platform.machine())
    if abis is None:
        return None
    program: list[_Instruction] = [(_LOAD, 0, 0, _ARCH_AT)]
    for abi in abis:
        part = _part(abi)
        program += [(_EQUAL, 0, len(part), abi.audit), *part]
    program.append((_RETURN, 0, 0, _KILL_PROCESS))  # programs of another architecture
    return b"".join(struct.pack("<HBBI", *each) for each in program)


def _part(abi: _Abi) -> Sequence[_Instruction]:
    """Return the instructions for one ABI; each way through them ends with a return."""
    numbers = abi.numbers
    part: list[_Instruction] = [(_LOAD, 0, 0, _NUMBER_AT)]
    if abi.has_x32:
        part += [(_AT_LEAST, 0, 1, X32_BIT), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    for code, names in ((errno.EPERM, _REFUSED), (errno.ENOSYS, _MISSING)):
        for name in names:
            part += [(_EQUAL, 0, 1, numbers[name]), (_RETURN, 0, 0, _ERRNO | code)]
    for name, flags in (("clone", CLONE_NAMESPACES), ("unshare", CLONE_NAMESPACES | CLONE_NEWTIME)):
        part += [
            (_EQUAL, 0, 4, numbers[name]),
            (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
            (_ANY_BIT, 0, 1, flags),
            (_RETURN, 0, 0, _ERRNO | errno.EPERM),
            (_RETURN, 0, 0, _ALLOW),
        ]
    part.append((_RETURN, 0, 0, _ALLOW))
    return part
