"""Print all of it. ``--data DIR``: another folder with ``lumos/`` and ``c3o/`` of the same form."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: small matrices lose by sharing, and so do neighbours

from bench.accuracy import c3o, lumos, speed
from bench.rows import machine

CAUTION = (
    "note: what is learned (kernels, stretch, shares) comes from training rows only, but fixed settings (tail,\n"
    "weights, how probes are chosen, rank and rate of PQ-SGD) were picked with aws, huawei and c3o in view, and how\n"
    "probes are chosen decides whether aws meets its targets; other data of this form (--data) are the fair test"
)
DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def main() -> None:
    """Run every part for which there is data."""
    parser = argparse.ArgumentParser(prog="python -m bench.accuracy", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of measurements (default: ../shared/data)")
    folder: Path = parser.parse_args().data
    print(f"machine: {machine()}\n{CAUTION}")
    if (folder / "lumos").is_dir():
        for cloud in lumos.clouds(folder / "lumos"):
            lumos.two_probes(cloud)
            lumos.by_number_of_probes(cloud)
            lumos.strictly(cloud)
    else:
        print("lumos: skipped, because ../shared/data/lumos is not beside this repository; --data names another place")
    if (folder / "c3o" / "runs.csv").is_file():
        c3o.report(folder / "c3o" / "runs.csv")
    else:
        print("c3o: skipped, because ../shared/data/c3o is not beside this repository; --data names another place")
    print("\nspeed at 10,000 known applications x 50 columns")
    for row in speed.measure():
        print(row.line(), flush=True)


if __name__ == "__main__":
    main()
