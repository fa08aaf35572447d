"""Placement constraints: which instance is chosen, which reason a waiting job gets, and what is impossible."""

from dataclasses import replace

import pytest

from hcloud.core.model import Constraints, InstanceState, JobSpec, JobState, Nodes
from hcloud.planner.plan import Finish, Launch, Place, Wait
from hcloud.spec.policy import Caps
from tests.planner.scenes import decide, job, machine, need, of, offer, running, scene, spec
from tests.policies import simple

A, B = offer(zone="a"), offer(zone="b")
SSD = replace(A, instance_type=replace(A.instance_type, name="fast", labels={"disk": "ssd"}))
FULL = simple(caps=Caps(max_instances=2))


def asks(count: int = 1, **demands: object) -> JobSpec:
    """Return a spec of so many nodes with these constraints."""
    return spec(placement=Constraints(**demands), nodes=Nodes(count=count, minimum=count))  # type: ignore[arg-type]


def test_a_job_goes_where_its_zone_and_its_labels_are() -> None:
    machines = (machine(1, A), machine(2, B), machine(3, SSD))
    assert of(decide(scene(*machines, job(1, asks=asks(zones=("b*",))))), Place)[0].ranks[0].instance_id == "inst-2"
    placed = of(decide(scene(*machines, job(1, asks=asks(labels=(("disk", "ss?"),))))), Place)[0]
    assert placed.ranks[0].instance_id == "inst-3"
    assert "placement.labels: not inst-1, inst-2" in str(placed.reason.numbers["bound"])
    assert "other machines with room excluded by placement.labels" in placed.reason.text
    priced = asks(labels=(("market", "spot"), ("type", "sm*")))
    assert of(decide(scene(*machines, A, B, job(1, asks=priced))), Finish)[0].state is JobState.FAILED


def test_the_reason_to_wait_names_the_constraint_that_excludes_free_room() -> None:
    there = running(1, machine(1), asks=spec(name="db"))
    waits = job(2, asks=asks(apart_from=("d*",)))
    tiny = machine(2, offer("tiny", 0.5))
    busy = running(3, tiny, asks=spec(user="bob", resources=need(0.5)))
    plan = decide(scene(machine(1), tiny, there, busy, waits, A), FULL)
    [wait] = of(plan, Wait)
    assert wait.reason.code == "placement_demands"
    assert wait.reason.text.startswith(
        "waiting: placement.apart_from excludes machines with room (inst-1); no new machine: "
    )
    assert wait.reason.numbers["bound"] == "placement.apart_from"
    assert wait.reason.numbers["refused"] == "cap_instances"


def test_anti_affinity_is_mutual_and_holds_for_no_other_job() -> None:
    recluse = running(1, machine(1), asks=replace(asks(apart_from=("*",)), name="db"))
    assert of(decide(scene(machine(1), recluse, job(2), A)), Launch)
    other_user = replace(spec(), user="bob")
    assert of(decide(scene(machine(1), recluse, job(2, asks=other_user))), Place)


def test_nodes_spread_over_machines_and_zones_that_are_there_and_that_are_bought() -> None:
    here = (machine(1, offer(vcpus=8.0)), machine(2, A), machine(3, B))
    hosts = of(decide(scene(*here, job(1, asks=asks(3, spread="host")))), Place)[0]
    assert {rank.instance_id for rank in hosts.ranks} == {"inst-1", "inst-2", "inst-3"}
    zones = of(decide(scene(*here, job(1, asks=asks(2, spread="zone")))), Place)[0]
    assert {rank.instance_id for rank in zones.ranks} in ({"inst-1", "inst-3"}, {"inst-2", "inst-3"})
    bought = of(decide(scene(machine(1, A), A, B, job(1, asks=asks(2, spread="zone")))), Launch)
    assert [launch.offer.zone for launch in bought] == ["b"]
    assert len(of(decide(scene(offer(vcpus=8.0), job(1, asks=asks(3, apart_from=("job",))))), Launch)) == 3


@pytest.mark.parametrize(
    ("demand", "sentence"),
    [
        ({"zones": ("c",)}, "can never run here: no offer matches placement.zones c; available: a, b"),
        ({"labels": (("disk", "nvme"),)}, "placement.labels disk=nvme; available: disk=ssd"),
        ({"labels": (("gpu", "*"),)}, "placement.labels gpu=*; available: none with such labels"),
    ],
)
def test_what_nothing_on_offer_can_meet_ends_the_job_with_one_sentence(
    demand: dict[str, object], sentence: str
) -> None:
    [finish] = of(decide(scene(machine(1), A, B, SSD, job(1, asks=asks(**demand)))), Finish)  # type: ignore[arg-type]
    assert finish.reason.code == "impossible"
    assert sentence in finish.reason.text


def test_more_nodes_than_zones_can_never_run_and_too_few_zones_in_stock_wait() -> None:
    [finish] = of(decide(scene(A, B, job(1, asks=asks(3, spread="zone")))), Finish)
    assert "its 3 nodes need different zones (placement.spread), and only 2 can be used: a, b" in finish.reason.text
    [wait] = of(decide(scene(A, replace(B, available=0), job(1, asks=asks(2, spread="zone")))), Wait)
    assert wait.reason.code == "too_few_zones"


def test_nodes_with_a_network_of_their_own_go_where_machines_can_give_them_one() -> None:
    gang = asks(2, gang_network=True)
    able, lacking, slice_ = (
        machine(number, offer(vcpus=4.0), addresses=addresses, has_wireguard=has)
        for number, addresses, has in ((1, ("10.0.0.1",), True), (2, ("10.0.0.2",), False), (3, (), False))
    )
    for other in (lacking, machine(2, offer(vcpus=8.0), addresses=("10.0.0.2",))):
        [placed] = of(decide(scene(able, other, job(1, asks=gang))), Place)
        assert {rank.instance_id for rank in placed.ranks} == {"inst-1"}
    assert of(decide(scene(slice_, job(1, asks=gang))), Place), "slices of one host need no WireGuard"
    [wait] = of(decide(scene(lacking, job(1, asks=gang), offer(region="s")), simple(caps=Caps(max_instances=1))), Wait)
    assert "network excludes machines with room (inst-2)" in wait.reason.text
    assert of(decide(scene(lacking, job(1, asks=gang), offer(), offer(region="s"))), Launch)[0].offer.region == "s"
    [ended] = of(decide(scene(lacking, job(1, asks=gang), offer())), Finish)
    sentence = (
        "can never run here: machines of mock in r report no WireGuard, by which nodes get a network of their own"
    )
    assert ended.reason.text.startswith(sentence) and ended.reason.code == "impossible"
    booting = replace(lacking, ready_at=None, state=InstanceState.BOOTING, has_wireguard=None)
    assert of(decide(scene(booting, job(1, asks=gang), offer())), Wait), "it may say that it can"
