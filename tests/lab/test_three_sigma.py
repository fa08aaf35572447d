"""3Sigma's task with our predictor and linear program: the workload is as stated, and distributions pay."""

from dataclasses import replace

import numpy as np
import pytest

from hcloud.core.pricing import HOUR_S
from hcloud.simulator.deadline_mix import NODES, RACKS, make_trace
from lab.three_sigma.cluster import ClusterResult, simulate
from lab.three_sigma.simulated import run_system
from lab.three_sigma.systems import SYSTEMS, shifted

HOURS = 0.4


@pytest.fixture(scope="module")
def results() -> dict[str, ClusterResult]:
    trace = make_trace(1, hours=HOURS, past_runs=15)
    return {name: simulate(trace, SYSTEMS[name]) for name in ("HCloud", "PointPerfEst", "Prio")}


def test_the_workload_offers_the_load_half_of_it_with_deadlines() -> None:
    trace = make_trace(1, hours=HOURS, past_runs=2)
    work = dict.fromkeys((True, False), 0.0)
    for job in trace.jobs:
        work[job.deadline_s is not None] += job.nodes * job.run_s
    whole = NODES * HOURS * HOUR_S
    assert all(0.7 <= each / whole <= 0.75 for each in work.values())
    slacks = [(job.deadline_s - job.submitted_s) / job.run_s - 1.0 for job in trace.jobs if job.deadline_s is not None]
    assert min(slacks) == pytest.approx(0.2) and max(slacks) == pytest.approx(0.8)


def test_the_daemons_cycles_run_jobs_of_both_kinds_longer_where_they_do_not_prefer_to() -> None:
    trace, perfect = make_trace(1, hours=0.1, past_runs=2, nodes=16), SYSTEMS["PointPerfEst"]
    found = run_system(perfect, trace, share=16 / NODES)
    assert 0.0 < found.best_effort_node_h < found.goodput_node_h <= 16 * 0.1
    # With no rack preferred, all run longer than planned for the deadline.
    nowhere = replace(trace, jobs=tuple(replace(each, preferred=frozenset((RACKS,))) for each in trace.jobs))
    assert run_system(perfect, nowhere, share=16 / NODES).missed_pct > found.missed_pct


@pytest.mark.parametrize("spread", [0.0, 0.2])
def test_shifted_run_times_are_off_by_so_much_and_as_wide(spread: float) -> None:
    trace = make_trace(1, hours=HOURS, past_runs=2)
    found = shifted(trace, 1, 0.5, spread)
    assert np.mean([found[job.number].quantile(0.5) / job.run_s for job in trace.jobs]) == pytest.approx(1.5, abs=0.05)
    widths = [np.diff(found[job.number].quantiles((0.1587, 0.8413)))[0] / job.run_s for job in trace.jobs]
    assert np.mean(widths) == pytest.approx(2 * spread, abs=0.02)


def test_distributions_miss_fewer_deadlines_than_strict_priorities(results: dict[str, ClusterResult]) -> None:
    assert results["HCloud"].missed_pct < results["Prio"].missed_pct
    assert results["PointPerfEst"].missed_pct <= results["HCloud"].missed_pct + 5.0
    assert all(0.0 < each.goodput_node_h <= NODES * HOURS for each in results.values())
