"""Print all of it. ``--data DIR``: another folder with ``lumos/`` and ``c3o/`` of the same form."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.accuracy import DATA, run
from bench.rows import machine


def main() -> int:
    """Run every part for which there is data; 1 when a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.accuracy", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of measurements (default: ../shared/data)")
    folder: Path = parser.parse_args().data
    print(f"machine: {machine()}")
    figures = run(folder)
    print("\nfigures with targets, and speed at 10,000 known applications x 50 columns")
    for row in figures:
        print(row.line(), flush=True)
    return 1 if any(row.holds is False for row in figures) else 0


if __name__ == "__main__":
    raise SystemExit(main())
