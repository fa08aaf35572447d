"""Measure and judge: pairs and triples of real programs on this machine.

``--out FILE`` keeps each measurement once it is made, and goes on with those that the file has; ``--data FILE`` judges
kept ones again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench.interference.judge import rows, table
from bench.interference.measuring import measure, missing, real_measurer
from bench.interference.pairs import CASTS, Found, read
from bench.rows import machine
from hcloud.core.errors import BadInput


def main() -> int:
    """Print every pair and the figures; 1 when a target is missed, 2 when a program is missing or a file is bad."""
    parser = argparse.ArgumentParser(prog="python -m bench.interference", description=__doc__)
    parser.add_argument("--out", type=Path, help="keep what is measured there (JSON), and measure only what it lacks")
    parser.add_argument("--data", type=Path, help="judge what an earlier run kept, measure nothing")
    parser.add_argument("--cast", choices=sorted(CASTS), default="test", help="which programs meet")
    given = parser.parse_args()
    try:
        found = read(given.data) if given.data is not None else _measured(given.cast, given.out)
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not found.pairs:
        print("no pair was measured; nothing to judge")
        return 2
    print(table(found))
    figures = rows(found)
    for row in figures:
        print(row.line())
    return 1 if any(row.holds is False for row in figures) else 0


def _measured(name: str, out: Path | None) -> Found:
    """Measure a cast, and keep it at ``out`` as it grows. Raises BadInput before anything is measured."""
    cast = CASTS[name]
    lacking = missing(cast)
    if lacking:
        packages = " ".join(lacking)
        raise BadInput(f"not installed: {packages} (apt-get install {packages}); nothing was measured")
    if out is not None and not out.parent.is_dir():
        raise BadInput(f"--out {out}: there is no directory {out.parent}; nothing was measured")
    kept = read(out) if out is not None and out.exists() else Found()
    print(f"machine: {machine()}")
    with real_measurer(cast) as measurer:
        return measure(
            cast, measurer, kept=kept, keep=(lambda _: None) if out is None else lambda each: each.write(out)
        )


if __name__ == "__main__":
    raise SystemExit(main())
