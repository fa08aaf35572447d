"""How well applications are known from two runs, on real measurements nobody here wrote.

``python -m bench.accuracy [--data DIR]``; the data are read from ``../shared/data`` beside the repository.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from bench.rows import Row

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
CAUTION = (
    "note: what is learned (kernels, stretch, shares) comes from training rows only, but fixed settings (tail,\n"
    "weights, how probes are chosen, rank and rate of PQ-SGD) were picked with aws, huawei and c3o in view, and how\n"
    "probes are chosen decides whether aws meets its targets; other data of this form (--data) are the fair test"
)


def run(folder: Path = DATA) -> list[Row]:
    """Print every table for which ``folder`` has data (``lumos/``, ``c3o/``); return the figures with targets."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: small matrices lose by sharing, as do neighbours
    from bench import classification
    from bench.accuracy import interference, speed
    from hcloud.classifier.classify import METHODS

    print(CAUTION)
    print("the product's estimators: " + "; ".join(f"{question} {each!r}" for question, each in METHODS.items()))
    figures = list(_lumos(folder / "lumos"))
    _report_c3o(folder / "c3o" / "runs.csv")
    interference.report()
    return [*figures, *speed.measure(), *classification.run()]


def _lumos(folder: Path) -> Iterator[Row]:
    from bench.accuracy import lumos, unmeasured

    if not folder.is_dir():
        print("lumos: skipped, because ../shared/data/lumos is not beside this repository; --data names another place")
        return
    for cloud in lumos.clouds(folder):
        yield from lumos.rows(cloud, lumos.two_probes(cloud))
        lumos.by_number_of_probes(cloud)
        lumos.strictly(cloud)
        unmeasured.report(cloud)


def _report_c3o(path: Path) -> None:
    from bench.accuracy import c3o

    if path.is_file():
        c3o.report(path)
    else:
        print("c3o: skipped, because ../shared/data/c3o is not beside this repository; --data names another place")
