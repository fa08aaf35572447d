"""Memory-bound: copy between two blocks larger than any cache, and tell the bandwidth reached.

Usage: copy_memory.py MEBIBYTES GIBIBYTES_IN_ALL
"""

import sys
import time

from run_log import begin, progress


def main() -> None:
    """Copy back and forth; a byte that got lost is a failed job."""
    mebibytes, in_all = int(sys.argv[1]), int(sys.argv[2])
    begin("copy_memory")
    one, other = (memoryview(bytearray(mebibytes << 20)) for _ in range(2))
    one[::4096] = bytes(index % 251 for index in range(len(one[::4096])))
    copies = in_all * 1024 // mebibytes
    started_s = time.monotonic()
    for done in range(copies):
        other[:] = one
        one, other = other, one
        if done % 16 == 0:
            progress(done / copies)
    took_s = time.monotonic() - started_s
    if one != other:
        sys.exit("the copies differ")
    progress(1.0)
    print(f"{in_all} GiB copied in blocks of {mebibytes} MiB: {2 * in_all / took_s:.1f} GiB/s read and written")


main()
