"""3Sigma's task with our predictor and linear program: the workload is as stated, and distributions pay."""

import pytest

from hcloud.core.pricing import HOUR_S
from lab.three_sigma.cluster import ClusterResult, simulate
from lab.three_sigma.systems import SYSTEMS
from lab.three_sigma.workload import NODES, make_trace

HOURS = 0.7


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


def test_distributions_miss_fewer_deadlines_than_strict_priorities(results: dict[str, ClusterResult]) -> None:
    assert results["HCloud"].missed_pct < results["Prio"].missed_pct
    assert results["PointPerfEst"].missed_pct <= results["HCloud"].missed_pct + 5.0
    assert all(0.0 < each.goodput_node_h <= NODES * HOURS for each in results.values())
