"""The filter of system calls: its numbers beside the kernel's headers, and every call by an interpreter of its own."""

import errno
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest

from hcloud.engine import syscall_filter as filters
from hcloud.engine.sandbox import filter_works, working_bwrap
from hcloud.engine.syscall_filter import syscall_filter
from tests.machine import needs

ALLOW, KILL = 0x7FFF_0000, 0x8000_0000
X86_64, I386, AARCH64 = 0xC000_003E, 0x4000_0003, 0xC000_00B7
NEWUSER, FORK = 0x1000_0000, 0x0120_0011
HEADERS = {
    X86_64: ("x86_64", filters._X86_64, "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    I386: ("x86_64", filters._I386, "/usr/include/x86_64-linux-gnu/asm/unistd_32.h"),
    AARCH64: ("aarch64", filters._AARCH64, "/usr/include/asm-generic/unistd.h"),
}


def verdict(machine: str, arch: int, number: int, first: int = 0) -> int:
    """What the kernel would do: a plain interpreter of the few instructions that the filter uses."""
    program = syscall_filter(machine)
    assert program is not None
    instructions = [struct.unpack_from("<HBBI", program, at) for at in range(0, len(program), 8)]
    data = struct.pack("<IIQQQQQQQ", number, arch, 0, first, 0, 0, 0, 0, 0)
    at = loaded = 0
    while True:
        code, true, false, value = instructions[at]
        at += 1
        match code:
            case 0x20:
                (loaded,) = struct.unpack_from("<I", data, value)
            case 0x15:
                at += true if loaded == value else false
            case 0x35:
                at += true if loaded >= value else false
            case 0x45:
                at += true if loaded & value else false
            case 0x06:
                return int(value)
            case other:
                raise AssertionError(f"no instruction {other:#x}")


def refused(code: int) -> int:
    return 0x0005_0000 | code


@needs(Path("/usr/include/asm-generic/unistd.h").exists(), "no headers of the kernel")
@pytest.mark.parametrize("arch", HEADERS)
def test_numbers_are_the_kernels(arch: int) -> None:
    _, abi, header = HEADERS[arch]
    found = dict(re.findall(r"#define __NR_(\w+)\s+(\d+)", Path(header).read_text()))
    assert {name: int(found[name]) for name in abi.numbers} == dict(abi.numbers)


@pytest.mark.parametrize("arch", HEADERS)
def test_new_namespaces_are_refused_and_processes_and_threads_are_not(arch: int) -> None:
    machine, abi, _ = HEADERS[arch]
    numbers: Mapping[str, int] = abi.numbers
    for name in ("clone", "unshare"):
        assert verdict(machine, arch, numbers[name], NEWUSER) == refused(errno.EPERM)
        assert verdict(machine, arch, numbers[name], 0x0002_0000 | 0x400) == refused(errno.EPERM)
        assert verdict(machine, arch, numbers[name], 0x400) == ALLOW
    assert verdict(machine, arch, numbers["clone"], FORK) == ALLOW
    assert verdict(machine, arch, numbers["clone3"]) == refused(errno.ENOSYS)  # C libraries then use clone
    for name in ("setns", "mount", "keyctl", "bpf", "userfaultfd", "perf_event_open"):
        assert verdict(machine, arch, numbers[name]) == refused(errno.EPERM)
    assert verdict(machine, arch, numbers["io_uring_setup"]) == refused(errno.ENOSYS)


def test_most_calls_are_allowed_and_strange_ones_are_not() -> None:
    refused_numbers = [number for number in range(500) if verdict("x86_64", X86_64, number) != ALLOW]
    assert sorted(set(filters._X86_64.numbers.values()) - set(refused_numbers)) == [56, 272]  # without flags
    assert len(refused_numbers) == len(filters._X86_64.numbers) - 2
    assert verdict("x86_64", X86_64, 0x4000_0000 | 272, NEWUSER) == refused(errno.ENOSYS)  # the x32 name of unshare
    assert verdict("x86_64", AARCH64, 97, NEWUSER) == verdict("aarch64", X86_64, 0) == KILL
    assert syscall_filter("riscv64") is None


@needs(working_bwrap(os.geteuid() == 0) is not None, "bubblewrap")
def test_the_kernel_takes_the_filter_and_no_damaged_one(monkeypatch: pytest.MonkeyPatch) -> None:
    bwrap, root = working_bwrap(os.geteuid() == 0) or "", os.geteuid() == 0
    assert filter_works(bwrap, root)
    program = syscall_filter() or b""
    monkeypatch.setattr("hcloud.engine.sandbox.syscall_filter", lambda: program[:-8])  # without its last return
    assert not filter_works(bwrap, root)
