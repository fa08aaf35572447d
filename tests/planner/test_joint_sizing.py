"""The vCPUs the planner chooses for a job: the fewest that meet its target, using all estimates."""

from dataclasses import replace

import pytest

from hcloud.core.estimates import Classification, Estimate, Measure
from hcloud.core.model import BatchTarget, Instance, Job, Nodes, Resources
from hcloud.planner.plan import Launch, Place
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import PlacementPolicy, Policy
from tests.planner.apply_model import apply_ideally, pass_time
from tests.planner.scenes import NOW, decide, job, machine, need, of, offer, running, scene, spec
from tests.policies import simple

QUASAR = simple(placement=PlacementPolicy(order="quasar", neighbour_tolerance=0.05))
LARGE = offer("large", vcpus=8.0, usd_per_h=0.4)


def sure(value: float, doubt: float = 0.0) -> Estimate:
    return Estimate(value=value, low=value * (1 - doubt), high=value * (1 + doubt))


def known(doubt: float = 0.0, **changes: object) -> Classification:
    """One job in 1000 s on one vCPU; twice the vCPUs are worth 1.8 times, four 3.2 times."""
    plain = Classification(
        by_type={"mock/large": sure(0.001, doubt)},
        by_step={"1 vCPU": sure(1.0), "2 vCPU": sure(1.8), "4 vCPU": sure(3.2), "8 vCPU": sure(5.0)},
        by_nodes={1: sure(1.0), 2: sure(1.9), 3: sure(2.7), 4: sure(3.4)},
        quality_target=sure(0.5),
        measure=Measure.COMPLETION,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def sized(number: int, within_s: float, count: int = 1, minimum: int = 1, **changes: object) -> Job:
    asks = spec(
        target=BatchTarget(finish_by_at=NOW + within_s),
        vcpus_within=(0.5, 8.0),
        nodes=Nodes(count=count, minimum=minimum, gang=False),
    )
    return job(number, asks=replace(asks, **changes), application="a", queued_at=NOW)  # type: ignore[arg-type]


def granted(snapshot: Snapshot, policy: Policy = QUASAR) -> list[float]:
    [action] = of(decide(snapshot, policy), Place)
    return [rank.resources.vcpus for rank in action.ranks]


def here(*things: Job | Instance, of_it: Classification | None = None) -> Snapshot:
    return scene(*things, applications={"a": of_it or known()})


@pytest.mark.parametrize(("within_s", "vcpus"), [(3000.0, 0.5), (1100.0, 1.0), (600.0, 2.0), (320.0, 4.0), (10.0, 8.0)])
def test_a_job_gets_the_least_step_that_meets_its_deadline_or_the_most_where_none_does(
    within_s: float, vcpus: float
) -> None:
    assert granted(here(machine(1, LARGE), sized(1, within_s))) == [vcpus]


def test_doubt_is_paid_for_with_a_larger_step_up_to_the_probability_of_the_policy() -> None:
    doubtful = here(machine(1, LARGE), sized(1, 570.0), of_it=known(doubt=0.3))
    assert granted(doubtful) == [4.0]
    assert granted(
        doubtful, simple(placement=PlacementPolicy(order="quasar", neighbour_tolerance=0.05, confidence=0.5))
    ) == [2.0]
    [place] = of(decide(doubtful, QUASAR), Place)
    assert place.reason.numbers["vcpus_within"] == "0.5..8"
    assert float(place.reason.numbers["probability"] or 0) >= 0.9
    assert "sized to 4 vCPU (allowed: 0.5..8), 99 % likely to meet its target" in place.reason.text


def test_neighbours_that_cost_speed_are_made_up_for() -> None:
    """The neighbour costs up to 5 %: two vCPUs take 555 s alone and 583 s next to it."""
    felt = {"tolerated": {"llc": sure(50.0)}, "caused": {"llc": sure(49.0)}}
    neighbour = replace(running(2, machine(1, LARGE)), application="a")
    assert granted(here(machine(1, LARGE), neighbour, sized(1, 565.0), of_it=known(**felt))) == [4.0]
    assert granted(here(machine(1, LARGE), sized(1, 565.0), of_it=known(**felt))) == [2.0]


def test_without_a_curve_or_an_order_that_uses_it_a_job_gets_what_it_asked_for() -> None:
    assert granted(here(machine(1, LARGE), sized(1, 320.0), of_it=known(by_step={}))) == [1.0]
    assert granted(here(machine(1, LARGE), sized(1, 320.0)), simple()) == [1.0]
    assert granted(here(machine(1, LARGE), replace(sized(1, 320.0), application=""))) == [1.0]


def test_more_inside_a_machine_comes_before_more_machines_and_both_where_one_is_not_enough() -> None:
    fleet = [machine(number, LARGE) for number in (1, 2, 3)]
    assert granted(here(*fleet, sized(1, 320.0, count=3))) == [4.0]
    assert granted(here(*fleet, sized(1, 150.0, count=3))) == [4.0, 4.0, 4.0]


def test_a_new_machine_is_bought_for_the_size_and_the_job_gets_it_there() -> None:
    small = offer("small", vcpus=2.0, usd_per_h=0.1)
    both = known(by_type={"mock/large": sure(0.001), "mock/small": sure(0.001)})
    snapshot = scene(small, LARGE, sized(1, 340.0), applications={"a": both})
    plan = decide(snapshot, QUASAR)
    assert [launch.offer.instance_type.name for launch in of(plan, Launch)] == ["large"]
    later = apply_ideally(snapshot, plan)
    assert not decide(later, QUASAR).actions
    booted = pass_time(pass_time(pass_time(later, 1.0), 25.0), 5.0)
    [place] = of(decide(booted, QUASAR), Place)
    assert place.ranks[0].resources == Resources(vcpus=8.0, memory_mib=512, disk_gib=1.0)
    assert of(decide(scene(small, LARGE, sized(1, 600.0), applications={"a": both}), QUASAR), Launch)[0].offer is small


def test_interference_counts_when_judging_who_would_fill_a_new_machine() -> None:
    """Four jobs that disturb each other do not share a machine for four; four calm ones do."""
    one, four = offer("one", vcpus=1.0, usd_per_h=0.1), offer("four", vcpus=4.0, usd_per_h=0.3)
    paragon = simple(placement=PlacementPolicy(order="paragon", neighbour_tolerance=0.05))

    def bought(caused: float) -> list[str]:
        felt = known(by_type={}, tolerated={"llc": sure(50.0)}, caused={"llc": sure(caused)})
        jobs = [job(n, asks=spec(resources=need(1.0)), application="a", queued_at=NOW) for n in (1, 2, 3, 4)]
        plan = decide(scene(one, four, *jobs, applications={"a": felt}), paragon)
        return [launch.offer.instance_type.name for launch in of(plan, Launch)]

    assert bought(5.0) == ["four"]
    assert bought(60.0) == ["one"] * 4
