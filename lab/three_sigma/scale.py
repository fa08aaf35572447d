"""``python -m lab.three_sigma.scale``: processor time of one plan on 12,583 nodes (3Sigma fig. 12), by pending jobs."""

from __future__ import annotations

import sys
import time

import highspy  # noqa: F401 (the first plan is not to be timed with its import)
import numpy as np

from hcloud.planner.fit.job_run_times import log_normal
from hcloud.planner.plan_ahead.expected import Utility, point, slot_starts
from hcloud.planner.plan_ahead.linear_program import PendingJob, RunningJob, ScheduleOfStarts, StartOption, schedule
from hcloud.simulator.deadline_mix import PREFERRED_RACKS, RACKS, SLOWER_ELSEWHERE
from lab.three_sigma.cluster import ANYWHERE, HORIZON_S, SLOTS

NODES = 12_583
RUNNING = 10_000
PENDING = (500, 1000, 3668)
REPEATS = 3


def one_plan(count: int, seed: int = 0, *, as_points: bool = False) -> tuple[float, ScheduleOfStarts]:
    """Return the processor time in seconds of a plan for ``count`` pending jobs beside 10,000 running ones, and the
    plan. ``as_points``: with one estimate of each run time, the median, for its distribution."""
    rng = np.random.default_rng([seed, count])
    run_times = [log_normal(float(rng.lognormal(6.0, 1.0)), float(rng.choice((0.1, 0.5, 1.0)))) for _ in range(200)]
    run_times = [point(each.quantile(0.5)) for each in run_times] if as_points else run_times
    waiting = []
    for number in range(count):
        run_time, promised = run_times[int(rng.integers(200))], rng.random() < 0.5
        slack = float(rng.choice((0.2, 0.4, 0.6, 0.8)))
        utility = Utility(value=0.1, until_s=0.0, decay_s=6 * 3600.0)
        places: tuple[StartOption, ...] = (StartOption(pools=ANYWHERE),)
        if promised:
            preferred = frozenset(rng.choice(RACKS, PREFERRED_RACKS, replace=False).tolist())
            utility = Utility(value=1.0, until_s=run_time.quantile(0.5) * (1.0 + slack))
            places = (StartOption(pools=preferred), StartOption(pools=ANYWHERE, stretch=SLOWER_ELSEWHERE))
        amount = float(max(1, round(rng.lognormal(1.0, 1.0))))
        waiting.append(PendingJob(number=number, amount=amount, run_time=run_time, utility=utility, places=places))
    capacity = dict.fromkeys(range(RACKS), NODES / RACKS)
    held = 0.97 * NODES / RUNNING
    running = [
        RunningJob(
            number=count + number,
            amounts={number % RACKS: held},
            run_time=run_times[int(rng.integers(200))],
            age_s=float(rng.uniform(0.0, 600.0)),
            stop_cost=0.05 if number % 2 else None,
        )
        for number in range(RUNNING)
    ]
    began_s = time.process_time()
    found = schedule(waiting, running, capacity, slot_starts(HORIZON_S, 15.0, SLOTS))
    return time.process_time() - began_s, found


def main() -> int:
    """Print the time of a plan by number of pending jobs."""
    for count in PENDING:
        plans = [one_plan(count, seed) for seed in range(REPEATS)]
        took_s = [took for took, _ in plans]
        started = [len(found.starting) for _, found in plans]
        took = f"{min(took_s):.2f} to {max(took_s):.2f} s"
        print(f"{count} pending, {RUNNING} running: {took}, {min(started)} to {max(started)} start", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
