"""How closely schedulers follow what jobs need, and which jobs queues let go first, on a small part of the load."""

from dataclasses import replace

import numpy as np
import pytest

from hcloud.core.model import BestEffortTarget, JobSpec, Resources
from hcloud.simulator.clusters import WARM_UP_S
from hcloud.simulator.performance import JobPerformance
from hcloud.simulator.qos_losses import UnitRun
from hcloud.simulator.workload import Arrival, Workload
from lab.papers.allocation import MEDIUM, _longer_jobs, _needed, allocation_numbers, overhead_numbers
from lab.papers.arq import (
    PRIORITIES,
    URGENT,
    _longer,
    _with_urgent,
    count_numbers,
    free_server_numbers,
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


def test_servers_are_full_of_other_jobs_while_some_wait_and_queues_decide_which() -> None:
    one, many = (count_numbers(count, SMALL, 0, None) for count in (1, 50))
    assert 30.0 < one["held_waiting_pct"] <= 100.0 and 30.0 < many["held_waiting_pct"] <= 100.0
    assert one != many


def test_profiling_costs_a_tenth_as_much_of_jobs_that_run_ten_times_as_long() -> None:
    short, long = (overhead_numbers("Paragon", times, SMALL, 0, None) for times in (1.0, 10.0))
    assert short["known_within_s"] > 0.0 and short["planning_pct"] > 0.0
    assert long["profiling_pct"] == pytest.approx(0.1 * short["profiling_pct"], rel=0.5)


def test_jobs_that_run_longer_are_as_many_times_as_far_apart() -> None:
    arrivals = tuple(replace(each, at_s=each.at_s + WARM_UP_S) for each in workload(3).arrivals)
    longer = _longer_jobs(Workload(name="w", arrivals=(replace(arrivals[0], at_s=0.0), *arrivals)), 10.0)
    assert [each.at_s - WARM_UP_S for each in longer.arrivals] == [-WARM_UP_S, 0.0, 100.0, 200.0]
    assert [each.run_s for each in longer.arrivals] == [15.0, 150.0, 150.0, 150.0], "warm-up runs as long as before"


def test_first_of_many_servers_is_free_far_sooner_than_one_and_as_often_as_said() -> None:
    rng, runs = np.random.default_rng(5), list[UnitRun]()
    for server in range(20):
        at = float(rng.uniform(0.0, 100.0))
        for number in range(60):
            until = at + float(rng.lognormal(4.0, 0.6))
            runs.append(UnitRun(job_id=f"{server}.{number}", instance_id=f"i{server}", began_at=at, ended_at=until))
            at = until
    numbers = free_server_numbers(runs, 0)
    assert numbers["one_free_s"] > 10.0 * numbers["some_free_s"] > 0.0
    assert numbers["freed_in_time_all_known_pct"] == pytest.approx(60.0, abs=12.0)
    assert numbers["freed_in_time_pct"] == pytest.approx(60.0, abs=12.0)
    assert numbers["log_normal_off_pct"] < 4.0 < numbers["normal_off_pct"]
