"""``python -m lab.three_sigma``: 3Sigma's figures 6 and 8 to 11 with our predictor and planner, beside the published.

Every system schedules the same jobs: with the daemon's own cycles and whole planner in the simulator, on a share of the
paper's cluster and hours, or with the linear program alone (``--program-only``, the whole cluster). Figure 7 needs logs
that are not public; figure 12 is ``python -m lab.three_sigma.scale``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import repeat
from typing import Any

from hcloud.simulator.clusters import nodes_at
from hcloud.simulator.deadline_mix import make_trace
from hcloud.simulator.seeds import mean_of
from lab.three_sigma.cluster import ClusterResult, simulate
from lab.three_sigma.simulated import run_system
from lab.three_sigma.systems import SYSTEMS, ClusterScheduler, shifted

SPREADS: Mapping[str, float] = {"point": 0.0, "CoV 10 %": 0.1, "CoV 20 %": 0.2, "CoV 50 %": 0.5}
"""Systems of figure 9: standard deviation of what is given, as a share of the true run time; 0: one estimate."""
FIGURES: Mapping[str, tuple[str, Sequence[Mapping[str, Any]], Sequence[str]]] = {
    "6": ("all systems, load 1.4, slack 20 to 80 %", [{}], tuple(SYSTEMS)),
    "8": (
        "by slack",
        [{"slacks": (slack / 100,)} for slack in (20, 60, 100, 140, 180)],
        ("HCloud", "PointPerfEst", "PointRealEst", "NoDist", "NoOE", "NoAdapt"),
    ),
    "9": (
        "by how far run times are off, and how wide they are (CoV)",
        [{"shift": shift / 100} for shift in (-50, -20, 0, 20, 50, 100)],
        tuple(SPREADS),
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
PUBLISHED: Mapping[str, str] = {
    "6": "missed: 3Sigma near 3.6 to 5 %, Point 18 %, Prio 12 %; Point does 5.4 % less work",
    "8": "Point and NoDist miss most; NoOE is as Perfect but for short slack, where NoAdapt misses least",
    "9": "distributions miss half of what points miss, even without a shift; wide ones are better with a large shift",
    "10": "all miss more with load, in the same order; 3Sigma as Perfect",
    "11": "25 runs suffice to be as Perfect; 3Sigma misses less than Point everywhere",
}
"""What the paper says of each figure in words; curves are not read off."""


def run(figure: str, name: str, share: float, hours: float, seed: int, parameters: Mapping[str, Any]) -> ClusterResult:
    """Return what comes out with one system and seed; ``share``: of the cluster, 0: with the linear program alone."""
    given = {key: value for key, value in parameters.items() if key != "shift"}
    trace = make_trace(seed, hours=hours, nodes=nodes_at(share or 1.0), **given)
    if figure == "9":
        run_times = partial(shifted, seed=seed, shift=parameters["shift"], spread=SPREADS[name])
        system = ClusterScheduler(name=name, run_times=run_times, overestimates="adaptive" if SPREADS[name] else "no")
    else:
        system = SYSTEMS[name]
    return run_system(system, trace, share=share, seed=seed) if share else simulate(trace, system)


def lines(figure: str, seeds: Sequence[int], workers: int, share: float, hours: float) -> Iterator[str]:
    """Yield the rows of a figure: means over seeds with 95 % limits."""
    title, worlds, systems = FIGURES[figure]
    size = f"{nodes_at(share or 1.0)} nodes, {hours:g} h, seeds {seeds[0]} to {seeds[-1]}"
    yield f"figure {figure}: {title}; {size}"
    yield f"  published: {PUBLISHED[figure]}"
    with ProcessPoolExecutor(workers) as pool:
        for world in worlds:
            if world:
                yield "  " + ", ".join(f"{key} {value}" for key, value in world.items())
            for name in systems:
                found = list(pool.map(partial(run, figure, name, share, hours), seeds, repeat(world)))
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
    parser.add_argument("--share", type=float, default=0.25, help="share of the paper's 256 nodes")
    parser.add_argument("--hours", type=float, default=1.0, help="length of an experiment; the paper's: 5")
    parser.add_argument("--program-only", action="store_true", help="the linear program alone, on all nodes")
    given = parser.parse_args()
    if given.seeds < 1 or given.workers < 1 or not 0 < given.share <= 1 or given.hours <= 0:
        parser.error("--seeds and --workers must be at least 1, --share above 0 up to 1, --hours above 0")
    share = 0.0 if given.program_only else given.share
    for figure in given.figure:
        for line in lines(
            figure, range(given.first_seed, given.first_seed + given.seeds), given.workers, share, given.hours
        ):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
