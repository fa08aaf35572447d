"""How closely schedulers follow what jobs need, and which jobs queues let go first, on a small part of the load."""

import numpy as np
import pytest

from hcloud.core.model import BestEffortTarget, JobSpec, Resources
from hcloud.simulator.performance import JobPerformance
from hcloud.simulator.workload import Arrival, Workload
from lab.papers.allocation import (
    MEDIUM,
    PRIORITIES,
    URGENT,
    _longer,
    _needed,
    _with_urgent,
    allocation_numbers,
    order_numbers,
)
from lab.papers.study import RunSize

SMALL = RunSize(share=0.15)


def workload(count: int) -> Workload:
    size = Resources(vcpus=2.0, memory_mib=64, disk_gib=1.0)
    spec = JobSpec(name="a", user="u", command=("a",), resources=size, target=BestEffortTarget())
    return Workload(name="w", arrivals=tuple(Arrival(at_s=10.0 * at, run_s=15.0, spec=spec) for at in range(count)))


def test_what_jobs_need_is_of_those_that_would_run_if_each_began_at_once() -> None:
    assert _needed(workload(3), np.array([0.0, 12.0, 25.0, 36.0])).tolist() == [2.0, 4.0, 2.0, 0.0]


def test_a_fifth_of_the_jobs_are_urgent_and_the_rest_is_as_before() -> None:
    before, after = workload(400), _with_urgent(workload(400), 0)
    urgent = [each for each in after.arrivals if each.spec.priority == URGENT]
    assert 50 < len(urgent) < 110
    assert [each.at_s for each in after.arrivals] == [each.at_s for each in before.arrivals]


def test_least_loaded_never_lets_jobs_wait_that_have_room() -> None:
    numbers = allocation_numbers("LL", MEDIUM, SMALL, 0, None)
    assert numbers["waiting_pct"] < 5.0
    assert 0.0 < numbers["held_pct"] < 100.0 and numbers["allocation_off_pct"] > 0.0


def test_how_much_longer_jobs_took_is_a_median_of_those_that_ended() -> None:
    jobs = [
        JobPerformance(job_id=f"job-{at}", kind="batch", running=1.0 / by, turnaround=0.5 / by, kept=False)
        for at, by in enumerate((1.0, 1.1, 9.0))
    ]
    assert _longer(jobs, "running") == pytest.approx(10.0)
    assert _longer(jobs, "turnaround") == pytest.approx(120.0)
    assert _longer([], "running") == 0.0


def test_jobs_are_judged_by_priority_where_they_have_one() -> None:
    numbers = order_numbers(PRIORITIES, SMALL, 0, None)
    assert min(numbers["urgent_later_pct"], numbers["others_later_pct"]) <= numbers["all_later_pct"]
    assert numbers["all_later_pct"] <= max(numbers["urgent_later_pct"], numbers["others_later_pct"])
