"""``python -m bench.few_rows [--data FOLDER]``: how two types compare for a program, where few other programs say so.

The data are run times of one-node jobs by VM type (``lumos/matrix_aws.csv`` and ``matrix_huawei.csv``: ``job``, then a
column of seconds for each type). For pairs of types of equal size and different families, the ratio of a program's
performance is estimated from one to eight other programs: their mean, shrunk towards "equal" as if programs differed
by one standard deviation or another. It shows which of them errs least, and that few programs say little.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
import sys
from itertools import permutations
from pathlib import Path

import numpy as np

from bench.rows import Row, machine
from hcloud.classifier.classify import LINKED_MIN, RATIO_SD
from hcloud.classifier.unmeasured_types import SAME_PROVIDER_SD
from hcloud.classifier.utility_matrix import Matrix

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "lumos"
CLOUDS = ("aws", "huawei")
ROWS = (1, 2, 4)
ASSUMED_SD = (0.0, 0.1, 0.2, RATIO_SD, 0.5, math.inf)
DRAWS = 40
"""Random choices of programs for each pair of types and number of rows."""


def log_ratios(path: Path) -> list[Matrix]:
    """Return, for each pair of types of equal size and different families, the logarithm of how much faster the second
    is, one value a program."""
    with path.open() as file:
        names, *rows = csv.reader(file)
    seconds = np.array([[float(cell) if cell else math.nan for cell in row[1:]] for row in rows])
    parts = [re.split(r"\.", name) for name in names[1:]]
    found = []
    for one, other in permutations(range(len(parts)), 2):
        family, size, *memory = parts[one]
        other_family, other_size, *other_memory = parts[other]
        if size == other_size and (family, memory) != (other_family, other_memory):
            ratio = np.log(seconds[:, one] / seconds[:, other])
            found.append(ratio[np.isfinite(ratio)])
    return found


def error(ratios: list[Matrix], rows: int, assumed_sd: float) -> float:
    """Return the root mean square error of the logarithm of a ratio estimated from ``rows`` other programs."""
    chance, surprises = np.random.default_rng(0), list[float]()
    known = rows * SAME_PROVIDER_SD**2
    weight = 0.0 if math.isinf(assumed_sd) else known / (known + assumed_sd**2)
    for ratio in ratios:
        for _ in range(DRAWS):
            own, *others = chance.permutation(len(ratio))[: rows + 1].tolist()
            surprises.append(weight * float(ratio[others].mean()) - float(ratio[own]))
    return math.sqrt(float(np.mean(np.square(surprises))))


def main() -> int:
    """Measure on the data of a folder; ends with 1 if what is assumed is not nearly the best."""
    parser = argparse.ArgumentParser(prog="python -m bench.few_rows", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the data (default: %(default)s)")
    folder: Path = parser.parse_args().data
    print(f"machine: {machine()}; from {LINKED_MIN} programs on, they alone decide")
    missed = 0
    for cloud in CLOUDS:
        path = folder / f"matrix_{cloud}.csv"
        if not path.is_file():
            print(f"bench.few_rows: {path} is missing", file=sys.stderr)
            return 2
        ratios = log_ratios(path)
        for rows in ROWS:
            errors = {each: error(ratios, rows, each) for each in ASSUMED_SD}
            print(f"{cloud}, {rows} rows: " + ", ".join(f"sd {each:g}: {found:.3f}" for each, found in errors.items()))
            row = Row(
                name=f"{cloud}, {rows} rows, error",
                value=errors[RATIO_SD],
                unit="",
                target=1.02 * min(errors.values()),
                note=f"their mean alone {errors[0.0]:.3f}, equal types {errors[math.inf]:.3f}",
            )
            print(row.line())
            missed += row.holds is False
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
