"""CPU-bound: compress text that the program makes, unpack it again, and compare digests.

Usage: compress.py MEBIBYTES
"""

import hashlib
import lzma
import random
import sys
import zlib

from run_log import begin, progress


def text(mebibytes: int) -> bytes:
    """Made-up prose of a thousand words, the same in every run."""
    chance = random.Random(7)
    words = ["".join(chance.choices("etaoinshrdlu", k=chance.randint(2, 9))) for _ in range(1000)]
    line = " ".join(chance.choices(words, k=180_000)).encode()
    return (line * (1 + (mebibytes << 20) // len(line)))[: mebibytes << 20]


def main() -> None:
    """Compress block by block with two methods; a block that does not come back is a failed job."""
    mebibytes = int(sys.argv[1])
    begin("compress")
    content = text(mebibytes)
    packed = 0
    for block in range(mebibytes):
        piece = content[block << 20 : (block + 1) << 20]
        small = lzma.compress(zlib.compress(piece, 9), preset=1)
        packed += len(small)
        back = zlib.decompress(lzma.decompress(small))
        if hashlib.sha256(back).digest() != hashlib.sha256(piece).digest():
            sys.exit(f"block {block} did not come back as it was")
        progress((block + 1) / mebibytes)
    print(f"{mebibytes} MiB packed into {packed / 2**20:.1f} MiB and unpacked again")


main()
