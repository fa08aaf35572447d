"""Measure and judge. ``--out FILE`` keeps the measurements, ``--data FILE`` judges kept ones again."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.interference.judge import rows, table
from bench.interference.pairs import CASTS, measure, missing, read
from bench.rows import machine


def main() -> int:
    """Print every pair and the figures; 1 when a target is missed, 2 when a program is missing."""
    parser = argparse.ArgumentParser(prog="python -m bench.interference", description=__doc__)
    parser.add_argument("--out", type=Path, help="keep what was measured there (JSON)")
    parser.add_argument("--data", type=Path, help="judge what an earlier run kept, measure nothing")
    parser.add_argument("--cast", choices=sorted(CASTS), default="test", help="which pairs meet")
    given = parser.parse_args()
    lacking = missing(CASTS[given.cast]) if given.data is None else ()
    if lacking:
        print(f"not installed: {', '.join(lacking)} (apt-get install {' '.join(lacking)}); nothing was measured")
        return 2
    print(f"machine: {machine()}")
    found = read(given.data) if given.data is not None else measure(CASTS[given.cast])
    if given.out is not None:
        found.write(given.out)
    print(table(found))
    figures = rows(found)
    for row in figures:
        print(row.line())
    return 1 if any(row.holds is False for row in figures) else 0


if __name__ == "__main__":
    raise SystemExit(main())
