"""Users request what they guess, as on Twitter's cluster, and the world knows what their jobs need."""

from __future__ import annotations

from hcloud.core.model import Resources
from hcloud.simulator.scenarios import make_scenario
from hcloud.simulator.world import Truth, World
from lab.papers.user_requests import MOST_OVER, MOST_UNDER, with_user_requests

TYPES = {"n1.16": Resources(vcpus=16, memory_mib=61_440)}
WHOLE = make_scenario("high-variability", share=1.0, hours=0.2)


def test_most_users_request_too_much_and_some_too_little() -> None:
    jobs = with_user_requests(WHOLE, 0, largest_vcpus=16.0, sized=True).arrivals
    parts = [each.spec.resources.vcpus / (each.needs_vcpus or 0.0) for each in jobs]
    assert 0.5 < sum(part > 1.0 for part in parts) / len(parts) < 0.8
    assert 0.05 < sum(part < 1.0 for part in parts) / len(parts) < 0.35
    assert max(parts) <= MOST_OVER
    assert min(parts) >= 1 / MOST_UNDER - 0.1
    assert all(each.spec.vcpus_within is not None for each in jobs)


def test_requests_depend_on_the_program_and_change_only_the_size() -> None:
    asked = with_user_requests(WHOLE, 3, largest_vcpus=16.0, sized=False)
    seen: dict[tuple[str, float | None], float] = {}
    for before, after in zip(WHOLE.arrivals, asked.arrivals, strict=True):
        program = (after.spec.command[0], after.needs_vcpus)
        assert seen.setdefault(program, after.spec.resources.vcpus) == after.spec.resources.vcpus
        assert after.needs_vcpus == before.spec.resources.vcpus
        assert (after.run_s, after.spec.target, after.spec.vcpus_within) == (before.run_s, before.spec.target, None)


def test_excess_vcpus_do_not_speed_up_a_job_and_missing_ones_slow_it() -> None:
    arrival = next(
        each for each in with_user_requests(WHOLE, 1, largest_vcpus=16.0, sized=True).arrivals if each.needs_vcpus == 4
    )
    world = World(truth=Truth(heterogeneity=0.0), seed=1, types=TYPES, providers=("mock",))
    world.add_job("job-1", arrival)
    task = world._tasks["job-1"]
    assert task.on_vcpus(16.0) == task.on_vcpus(4.0) == 1.0
    assert task.on_vcpus(1.0) < task.on_vcpus(2.0) < 1.0
