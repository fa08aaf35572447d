"""``python -m lab.three_sigma``: 3Sigma's figures 6, 8 and 10 with our predictor and linear program.

Every system schedules the same jobs. Published numbers stand beside ours where the paper states them in words.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import repeat

from hcloud.simulator.seeds import mean_of
from lab.three_sigma.cluster import ClusterResult, simulate
from lab.three_sigma.systems import SYSTEMS
from lab.three_sigma.workload import make_trace

FIGURES: Mapping[str, tuple[str, Sequence[Mapping[str, object]], Sequence[str]]] = {
    "6": ("all systems, load 1.4, slack 20 to 80 %", [{}], tuple(SYSTEMS)),
    "8": (
        "by slack",
        [{"slacks": (slack / 100,)} for slack in (20, 60, 100, 140, 180)],
        ("HCloud", "PointPerfEst", "PointRealEst", "NoDist", "NoOE", "NoAdapt"),
    ),
    "10": (
        "by load",
        [{"load": load} for load in (1.0, 1.2, 1.4, 1.6)],
        ("HCloud", "PointPerfEst", "PointRealEst", "Prio"),
    ),
    "11": (
        "by earlier runs of a program",
        [{"past_runs": count} for count in (5, 10, 25, 50, 100)],
        ("HCloud", "3Sigma", "PointRealEst"),
    ),
}
"""Title, parameters of the workload, and systems of each figure."""


def run(name: str, seed: int, parameters: Mapping[str, object]) -> ClusterResult:
    """Return what comes out with one system and seed."""
    return simulate(make_trace(seed, **parameters), SYSTEMS[name])  # type: ignore[arg-type]


def lines(figure: str, seeds: Sequence[int], workers: int) -> Iterator[str]:
    """Yield the rows of a figure: means over seeds with 95 % limits."""
    title, worlds, systems = FIGURES[figure]
    yield f"figure {figure}: {title}; seeds {seeds[0]} to {seeds[-1]}"
    with ProcessPoolExecutor(workers) as pool:
        for world in worlds:
            if world:
                yield "  " + ", ".join(f"{key} {value}" for key, value in world.items())
            for name in systems:
                found = list(pool.map(partial(run, name), seeds, repeat(world)))
                yield f"    {name:13}" + _numbers(found)


def _numbers(found: Sequence[ClusterResult]) -> str:
    def mean(name: str) -> str:
        return mean_of([float(getattr(each, name)) for each in found]).text()

    return (
        f" missed {mean('missed_pct')} %, goodput {mean('goodput_node_h')} node-h (best effort"
        f" {mean('best_effort_node_h')}), latency {mean('latency_s')} s, stopped {mean('stopped')},"
        f" cycle {mean('plan_ms')} ms"
    )


def main() -> int:
    """Run the figures asked for and print them."""
    parser = argparse.ArgumentParser(prog="python -m lab.three_sigma", description=__doc__)
    parser.add_argument("--figure", choices=tuple(FIGURES), nargs="+", default=["6"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    if given.seeds < 1 or given.workers < 1:
        parser.error("--seeds and --workers must be at least 1")
    for figure in given.figure:
        for line in lines(figure, range(given.first_seed, given.first_seed + given.seeds), given.workers):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
