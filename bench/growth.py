"""How the cost of a simulated decision grows with the size of the experiment: a minute or two, see ``simulation``."""

from __future__ import annotations

from collections.abc import Iterator

from bench.rows import Row
from bench.simulation import CYCLE_S, hybrid, paragon, timed
from lab.papers.study import RunSize

SHARES = (0.1, 0.2, 0.4)
LOAD = "paragon-large-low"
OF_LARGE = (0.03, 0.06, 0.12)


def run() -> Iterator[Row]:
    """Measure an hour of high variability, and Paragon's cluster, at three sizes each."""
    for name in ("hm", "sr"):
        for share in SHARES:
            yield timed(hybrid(name), RunSize(share=share, hours=1.0), CYCLE_S).row(
                f"high variability x {share:g}, 1 h, {name}"
            )
    for share in OF_LARGE:
        yield timed(paragon(LOAD), RunSize(share=share), 1.0).row(f"{LOAD} x {share:g}")
