"""How far the largest simulations come in a few minutes, and what a decision costs there: Paragon's largest run whole,
and a day of 10,000 servers, each until it ends or its processor time is used up."""

from __future__ import annotations

import os
from collections.abc import Iterator

from bench.rows import Row
from bench.simulation import CYCLE_S, LARGE, paragon, timed
from lab.papers.study import RunSize

DAY = "paragon-day"
DAY_PARTS = ((0.01, CYCLE_S), (0.1, CYCLE_S), (1.0, 30.0))
"""Parts of the day, and how often is decided: a cycle over 10,000 servers takes longer than half a second."""
LIMIT_S = float(os.environ.get("BENCH_LIMIT_S", "120"))
"""Processor time of each run; ``inf``: to the end, which takes most of an hour."""


def run() -> Iterator[Row]:
    """Measure Paragon's largest run deciding every five seconds, then parts of the day and the whole of it."""
    yield timed(paragon(LARGE), RunSize(), CYCLE_S, LIMIT_S).row(f"{LARGE}, 1,000 servers")
    for share, cycle_s in DAY_PARTS:
        yield timed(paragon(DAY), RunSize(share=share), cycle_s, LIMIT_S).row(f"{DAY} x {share:g}")
