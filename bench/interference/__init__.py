"""Interference: programs the library does not know are probed with two sources, then meet real neighbour programs.

``make bench-interference`` or ``python -m bench.interference``; it needs a machine that has nothing else to do.
"""

from __future__ import annotations

from bench.rows import Row


def run() -> list[Row]:
    """Measure pairs of programs on this machine and judge what was predicted of them."""
    from bench.interference.judge import rows, table
    from bench.interference.pairs import measure, missing

    lacking = missing()
    if lacking:
        print(f"  skipped, because these packages are not installed: {' '.join(lacking)}")
        return []
    found = measure()
    print(table(found))
    return rows(found)
