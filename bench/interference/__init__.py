"""Interference: programs the library does not know are probed as a profile does, then meet real neighbour programs.

``make bench-interference`` or ``python -m bench.interference``; it needs a machine that has nothing else to do.
``--cast design`` takes the pairs on which the method was chosen, instead of those it is judged by.
"""

from __future__ import annotations

from bench.rows import Row


def run() -> list[Row]:
    """Measure pairs of programs on this machine and judge what was predicted of them."""
    from bench.interference.judge import rows, table
    from bench.interference.measuring import measure, missing, real_measurer
    from bench.interference.pairs import CASTS

    cast = CASTS["test"]
    lacking = missing(cast)
    if lacking:
        print(f"  skipped, because these packages are not installed: {' '.join(lacking)}")
        return []
    with real_measurer(cast) as measurer:
        found = measure(cast, measurer)
    print(table(found))
    return rows(found)
