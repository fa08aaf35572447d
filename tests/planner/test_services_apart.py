"""Services get machines of their own size, so that neighbours do not cost them their latency."""

from typing import Any

import pytest

from hcloud.core.model import BatchTarget, JobSpec, ServiceTarget
from hcloud.planner.plan import Launch, Place
from hcloud.spec.policy import Caps, PlacementPolicy, Policy
from tests.planner.scenes import decide, job, machine, need, of, offer, running, scene, spec
from tests.policies import simple

SERVES = ServiceTarget(requests_per_s=10.0, latency_ms=20.0)
SMALL, LARGE = offer("small", vcpus=2.0, usd_per_h=0.1), offer("large", vcpus=8.0, usd_per_h=0.4)
SHARED = machine(1, LARGE, idle_since=None)
THERE = [running(number, SHARED, asks=spec(target=BatchTarget(), resources=need(2.0))) for number in (1, 2)]
"""Half of the large machine is in use, so it is no dearer to stay there."""


def service(**changes: Any) -> JobSpec:
    """Return what a service of two vCPUs asks for."""
    return spec(target=SERVES, resources=need(2.0), **changes)


def policy(services_apart: bool | None = None, **sections: Any) -> Policy:
    """Return a policy whose order considers interference."""
    return simple(placement=PlacementPolicy(order="quasar", services_apart=services_apart), **sections)


def outcome(asks: JobSpec, under: Policy, *things: Any) -> tuple[list[str], list[str]]:
    """Return where the job was placed, and what was launched for it."""
    plan = decide(scene(*THERE, SHARED, job(9, asks=asks), SMALL, LARGE, *things), under)
    return [each.ranks[0].instance_id for each in of(plan, Place)], [
        each.offer.instance_type.name for each in of(plan, Launch)
    ]


def test_service_gets_a_machine_of_its_own_size_and_batch_fills_the_shared_one() -> None:
    assert outcome(service(), policy()) == ([], ["small"])
    assert outcome(spec(target=BatchTarget(), resources=need(2.0)), policy()) == (["inst-1"], [])


def test_idle_machine_of_its_size_is_taken() -> None:
    assert outcome(service(), policy(), machine(2, SMALL)) == (["inst-2"], [])


def test_service_shares_if_nothing_can_be_launched() -> None:
    assert outcome(service(), policy(caps=Caps(max_instances=1))) == (["inst-1"], [])


def test_service_whose_size_is_to_be_found_gets_room_to_grow() -> None:
    assert outcome(service(vcpus_within=(0.5, 8.0)), policy()) == (["inst-1"], [])


@pytest.mark.parametrize("under", [policy(services_apart=False), simple()], ids=["off", "order without interference"])
def test_services_share_where_the_policy_says_so_or_its_order_ignores_neighbours(under: Policy) -> None:
    assert outcome(service(), under) == (["inst-1"], [])


def test_policy_can_keep_services_apart_under_any_order() -> None:
    apart = simple(placement=PlacementPolicy(order="least_loaded", services_apart=True))
    assert outcome(service(), apart) == ([], ["small"])


def test_launch_names_the_rule() -> None:
    plan = decide(scene(*THERE, SHARED, job(9, asks=service()), SMALL, LARGE), policy())
    (launch,) = of(plan, Launch)
    assert launch.reason.numbers["held_back_services_apart"] == "inst-1"
    assert "inst-1 with room: a service shares no machine (placement.services_apart)" in launch.reason.text
