"""Quasar's jobs and services, on a small part of the load."""

import pytest

from hcloud.simulator.clusters import WARM_UP
from lab.papers.other_clusters import CLOUDS, cloud_figures, ibench_figures
from lab.papers.quasar import JOINT, LOADED, RESERVED, SERVED, kind_numbers, large_numbers
from lab.papers.study import Case, RunSize

SMALL = RunSize(share=0.05)


def test_services_and_what_fills_the_rest_are_measured_apart() -> None:
    numbers = kind_numbers(SERVED, LOADED, SMALL, 0, None)
    assert "framework_pct" not in numbers
    assert numbers["service_turnaround_pct"] <= numbers["service_pct"] + 1e-9
    assert 0.0 < numbers["filler_turnaround_pct"] <= numbers["filler_pct"] <= 110.0
    assert 0.0 < numbers["service_met_pct"] <= 100.0


def test_reservations_hold_more_than_jobs_need_and_profile_none() -> None:
    reserved, joint = (large_numbers(name, SMALL, 0, None) for name in (RESERVED, JOINT))
    assert reserved["profiling_pct"] == 0.0 < joint["profiling_pct"]
    for each in (reserved, joint):
        assert each["held_pct"] == pytest.approx(each["needed_pct"] + each["beyond_need_pct"])
        assert 0.0 < each["held_pct"] < 100.0


def test_chapters_bring_clusters_of_their_own() -> None:
    cases = [case for figure in (*cloud_figures(), *ibench_figures()) for case in figure.cases]
    mine = [case for case in cases if isinstance(case, Case) and case.cluster is not None]
    assert len(mine) == len(cases)
    made = next(case for case in mine if case.label == "LL, google").make(0, RunSize(share=0.1))
    assert made.cloud["reserved"] == {each.name: 2 for each in CLOUDS["google"].servers}
    assert sum(each.spec.name != WARM_UP for each in made.workload.arrivals) == 50
