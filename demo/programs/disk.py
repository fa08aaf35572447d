"""Disk-bound: write a file with fsync after every few blocks, read it back, compare digests.

Usage: disk.py MEBIBYTES ROUNDS
"""

import hashlib
import os
import sys
import time

from run_log import begin, progress

BLOCK = 1 << 20
SYNC_EVERY_BLOCKS = 4


def write(path: str, mebibytes: int, seed: bytes) -> str:
    """Write and sync; return the digest of what was written."""
    digest = hashlib.sha256()
    block = bytearray(seed * (BLOCK // len(seed)))
    with open(path, "wb", buffering=0) as file:
        for number in range(mebibytes):
            block[:8] = number.to_bytes(8, "big")
            file.write(block)
            digest.update(block)
            if number % SYNC_EVERY_BLOCKS == SYNC_EVERY_BLOCKS - 1:
                os.fsync(file.fileno())
    return digest.hexdigest()


def read(path: str) -> str:
    """Read past the page cache where the kernel lets go of it; return the digest of what was read."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def main() -> None:
    """Write and read again and again; a difference is a failed job."""
    mebibytes, rounds = int(sys.argv[1]), int(sys.argv[2])
    begin("disk")
    started_s = time.monotonic()
    for done in range(1, rounds + 1):
        wrote = write("content", mebibytes, os.urandom(64))
        if read("content") != wrote:
            sys.exit("what was read is not what was written")
        progress(done / rounds)
    took_s = time.monotonic() - started_s
    os.unlink("content")
    print(f"{rounds} times {mebibytes} MiB written, synced and read back: {rounds * mebibytes / took_s:.0f} MiB/s")


main()
