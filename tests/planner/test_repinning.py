"""A job that misses its target beside neighbours is pinned to better CPUs of its machine before anything else; two late
readings of a service are enough for that, and for vCPUs that are free."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hcloud.core.cpu_topology import CpuTopology, regular_topology
from hcloud.core.model import BestEffortTarget, Instance, Job, MetricsHook, ServiceTarget
from hcloud.forecast.job_monitor import Sampled
from hcloud.planner.plan import Correct, Miss, Plan, Resize, StopAttempt
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import CorrectionPolicy
from tests.planner.scenes import NOW, decide, machine, need, of, offer, running, scene, spec
from tests.planner.test_correction import SLOW, late, slow
from tests.planner.watched import classified, started, sure, with_samples
from tests.policies import simple

TWO_BY_EIGHT = regular_topology(sockets=2, cores=8)
TWO_CPUS = regular_topology(cores=2)
BOUND_MS = 10.0


def host(topology: CpuTopology | None = TWO_CPUS, vcpus: float = 2.0) -> Instance:
    return machine(1, offer("small", vcpus=vcpus), idle_since=None, cpu_topology=topology)


def on_cpus(job: Job, *cpus: int) -> Job:
    assert job.attempt is not None
    ranks = tuple(replace(each, cpus=cpus) for each in job.attempt.allocations)
    return replace(job, attempt=replace(job.attempt, allocations=ranks))


def service(here: Instance, *cpus: int, number: int = 1) -> Job:
    target = ServiceTarget(requests_per_s=100.0, latency_ms=BOUND_MS)
    asks = spec(target=target, metrics=MetricsHook(probe=("x",)), resources=need(1.0))
    return on_cpus(started(running(number, here, asks=asks), 600.0), *cpus)


def hog(here: Instance, *cpus: int, number: int = 2, vcpus: float = 1.0) -> Job:
    asks = spec(target=BestEffortTarget(), resources=need(vcpus))
    return on_cpus(started(running(number, here, asks=asks), 10.0), *cpus)


def latencies(*ms: float, every_s: float = 2.0, until: float = NOW) -> tuple[Sampled, ...]:
    """Return samples of a service with these latencies, the last one at ``until``."""
    first = until - every_s * (len(ms) - 1)
    values = {"requests_per_s": 100.0}
    return tuple(
        Sampled(first + at * every_s, {**values, "cpu_s": 100.0 + 0.5 * every_s * at}, {99.0: each})
        for at, each in enumerate(ms)
    )


def late_service(*things: Job | Instance, ms: tuple[float, ...] = (3.0,) * 10 + (30.0, 30.0)) -> Snapshot:
    return with_samples(scene(*things), {"job-1": [latencies(*ms)]})


def pins(plan: Plan) -> dict[str, tuple[int, ...] | None]:
    return {each.job_id: each.ranks[0].cpus for each in of(plan, Resize) if each.ranks[0].cpus is not None}


def test_two_late_readings_pin_a_service_off_the_cpu_of_a_hog() -> None:
    here = host()
    plan = decide(late_service(service(here, 0), hog(here, 0), here))
    [made] = of(plan, Correct)
    assert (made.step, made.reason.code, pins(plan)) == ("repin", "correct_repin", {"job-1": (1,)})
    assert "pinning it to CPUs 1 of inst-1" in made.reason.text
    assert (made.reason.numbers["slowdown_after"], made.reason.numbers["slowdown_before"]) == (1.0, 2.0)
    assert [each.ranks[0].resources for each in of(plan, Resize)] == [need(1.0)]
    assert not of(plan, StopAttempt)


@pytest.mark.parametrize(
    "ms",
    [
        (3.0,) * 11 + (30.0,),  # one reading alone
        (3.0,) * 10 + (30.0, 3.0),
        (3.0,) * 10 + (10.5, 10.5),  # within the margin
        (3.0,) * 12,
    ],
)
def test_fewer_or_smaller_excesses_pin_and_resize_nothing(ms: tuple[float, ...]) -> None:
    here = host()
    assert not of(decide(late_service(service(here, 0), hog(here, 0), here, ms=ms)), Resize)
    assert not of(decide(late_service(service(here), here, ms=ms)), Resize)


def test_two_late_readings_give_a_service_vcpus_that_are_free() -> None:
    here = host(None, 4.0)
    plan = decide(late_service(service(here), hog(here), here))
    [made], [resized] = of(plan, Correct), of(plan, Resize)
    assert (made.step, made.reason.numbers["readings"], resized.job_id) == ("resize", 2, "job-1")
    assert resized.ranks[0].resources == need(2.0)  # correction.resize_limit
    assert pins(plan) == {}


def test_vcpus_that_neighbours_hold_are_not_taken_early() -> None:
    here = host(None)
    plan = decide(late_service(service(here), hog(here), here))
    assert not of(plan, Correct) + of(plan, Resize) + of(plan, Miss)


def test_without_a_topology_nothing_is_pinned() -> None:
    here = host(None)
    assert pins(decide(late_service(service(here, 0), hog(here, 0), here))) == {}


def test_alone_or_with_the_whole_machine_nothing_is_pinned() -> None:
    here = host()
    assert pins(decide(late_service(service(here, 0), here))) == {}
    whole = service(here)
    assert whole.attempt is not None
    all_of_it = tuple(replace(each, resources=need(2.0)) for each in whole.attempt.allocations)
    whole = replace(whole, attempt=replace(whole.attempt, allocations=all_of_it))
    assert pins(decide(late_service(whole, hog(here, vcpus=0.1), here))) == {}


def test_a_hog_that_runs_anywhere_is_kept_off_too() -> None:
    here = host()
    plan = decide(late_service(service(here), hog(here), here))
    assert sorted(pins(plan)) == ["job-1", "job-2"]
    assert set(pins(plan).values()) == {(0,), (1,)}
    [for_hog] = [each for each in of(plan, Resize) if each.job_id == "job-2"]
    assert for_hog.reason.code == "repinned_for_target"
    assert for_hog.reason.numbers["for_job"] == "job-1"


def test_a_unit_that_is_being_pinned_waits() -> None:
    here, busy = host(), service(host(), 0)
    assert busy.attempt is not None
    ranks = tuple(replace(each, pinned_from=()) for each in busy.attempt.allocations)
    busy = replace(busy, attempt=replace(busy.attempt, allocations=ranks))
    assert pins(decide(late_service(busy, hog(here, 0), here))) == {}


def test_a_batch_job_leaves_the_socket_of_one_that_presses_on_its_memory() -> None:
    here = host(TWO_BY_EIGHT, 16.0)
    job, beside = on_cpus(replace(late(here), application="app"), 0), hog(here, 1)
    known = {
        "app": classified(0.0009, tolerated={"memory-bandwidth": sure(10.0)}),
        "noisy": classified(0.1, caused={"memory-bandwidth": sure(90.0)}),
    }
    at = slow(job, replace(beside, application="noisy"), here, paces=SLOW)
    plan = decide(replace(at, applications=known))
    [made] = of(plan, Correct)
    assert made.step == "repin"
    assert pins(plan)["job-1"] == (8,)


def test_best_effort_is_squeezed_where_it_cannot_keep_its_cpus() -> None:
    here = host(vcpus=3.0)
    plan = decide(late_service(service(here), hog(here, vcpus=2.0), here, ms=(30.0,) * 24))
    [made] = of(plan, Correct)
    assert (made.step, made.reason.code) == ("squeeze", "correct_squeeze")
    assert set(pins(plan).values()) == {(0,), (1,)}
    assert not of(plan, StopAttempt)


def test_a_miss_that_no_other_cpu_would_end_says_so() -> None:
    here = host(vcpus=4.0)
    at = late_service(service(here, 0), hog(here, 0), hog(here, 1, number=3), here, ms=(30.0,) * 24)
    [missed] = of(decide(at, simple(correction=CorrectionPolicy(steps=("repin",)))), Miss)
    assert missed.reason.code.split()[0] == "repin:no_better_core"
    assert "no other CPUs of inst-1 are expected to make it faster by 5%" in missed.reason.text
