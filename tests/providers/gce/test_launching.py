"""Launches: what is asked for, which trouble is which error, and that a token yields one machine whatever happens."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from hcloud.core.errors import (
    AccountRejected,
    InsufficientCapacity,
    LaunchRejected,
    OutcomeUnknown,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    Throttled,
)
from hcloud.core.model import Market, Offer
from hcloud.provider import CloudState, LaunchRequest, Provider, WorkerBootstrap
from tests.providers.gce.answers import stamp
from tests.providers.gce.bench import GceBench
from tests.providers.gce.compute import Fault
from tests.providers.gce.test_offers import commit, committed

ENGINE = WorkerBootstrap(gateway_addresses=("engine.example.org:8786",), authority_pem="CERTIFICATE")


def offer_in(bench: GceBench, market: Market = Market.ON_DEMAND, provider: Provider | None = None) -> Offer:
    """An e2-standard-2 in us-central1-a."""
    offers = (provider or bench.provider).offers()
    return next(each for each in offers if each.key == ("gce", "us-central1-a", "e2-standard-2", market.value))


def asked(bench: GceBench) -> Mapping[str, Any]:
    """The body of the only insert that arrived."""
    (insert,) = bench.compute.inserts()
    return insert.body


# ---------------------------------------------------------------------------------------------- what is asked for
def test_machine_is_shielded_private_without_rights_and_never_restarted(bench: GceBench) -> None:
    bench.provider.launch(bench.request(offer=offer_in(bench)))
    body = asked(bench)
    assert body["shieldedInstanceConfig"] == {
        "enableVtpm": True,
        "enableIntegrityMonitoring": True,
        "enableSecureBoot": True,
    }
    assert [interface.get("accessConfigs", []) for interface in body["networkInterfaces"]] == [[]]
    assert "serviceAccounts" not in body
    assert body["scheduling"]["automaticRestart"] is False
    assert body["disks"][0]["autoDelete"] is True
    metadata = {item["key"]: item["value"] for item in body["metadata"]["items"]}
    assert metadata["block-project-ssh-keys"] == "TRUE"


def test_machine_has_a_public_address_only_if_asked(bench: GceBench) -> None:
    bench.plain(external_ip=True, subnetwork="private").launch(bench.request(offer=offer_in(bench)))
    (interface,) = asked(bench)["networkInterfaces"]
    assert [each["type"] for each in interface["accessConfigs"]] == ["ONE_TO_ONE_NAT"]
    assert interface["subnetwork"] == "regions/us-central1/subnetworks/private"


def test_machine_carries_owner_instance_token_expiry_and_tags_as_labels(bench: GceBench) -> None:
    request = bench.request(offer=offer_in(bench), tags={"Cost Centre": "R&D"})
    bench.plain(labels={"team": "search"}).launch(request)
    assert asked(bench)["labels"] == {
        "hcloud-owner": bench.owner,
        "hcloud-instance": request.instance_id,
        "hcloud-token": request.token,
        "hcloud-expires-at": str(round(request.expires_at)),
        "hcloud-market": "on_demand",
        "hcloud-tag-cost-centre": "r-d",
        "team": "search",
    }


def test_spot_machine_is_deleted_when_it_is_taken_back(bench: GceBench) -> None:
    bench.provider.launch(bench.request(offer=offer_in(bench, Market.SPOT)))
    scheduling = asked(bench)["scheduling"]
    assert scheduling["provisioningModel"] == "SPOT"
    assert scheduling["instanceTerminationAction"] == "DELETE"


def test_expiry_is_compute_engines_to_keep_where_no_worker_keeps_it(bench: GceBench) -> None:
    bench.provider.launch(bench.request(offer=offer_in(bench)))
    assert "maxRunDuration" not in asked(bench)["scheduling"]
    assert "terminationTime" in asked(bench)["scheduling"]


def test_limit_stands_far_behind_the_workers_own_expiry_because_it_cannot_be_moved(bench: GceBench) -> None:
    request = bench.request(offer=offer_in(bench), bootstrap=ENGINE)
    machine = bench.plain(longest_run_s=86400).launch(request)
    assert asked(bench)["scheduling"]["maxRunDuration"] == {"seconds": "86400"}
    assert machine.expires_at == pytest.approx(request.expires_at, abs=1)
    assert machine.preempt_at is None


def test_machine_near_its_limit_is_announced_to_end(bench: GceBench) -> None:
    provider = bench.plain(longest_run_s=86400)
    launched = provider.launch(bench.request(offer=offer_in(bench), bootstrap=ENGINE))
    bench.compute.renew({launched.provider_id: bench.clock.now() + 100_000})
    bench.let_pass(86400 - 300)
    (machine,) = provider.instances(bench.owner).instances
    assert machine.state is CloudState.RUNNING
    assert machine.preempt_at == pytest.approx(bench.clock.now() + 300, abs=5)


def test_reserved_machine_names_the_reservation_that_must_be_named(bench: GceBench) -> None:
    bench.compute.reserve("kept", "us-central1-a", "e2-standard-2", count=3, in_use=1, named=True)
    provider = bench.plain(markets=["on_demand", "reserved"])
    offer = offer_in(bench, Market.RESERVED, provider)
    assert offer.available == 2
    provider.launch(bench.request(offer=offer))
    assert asked(bench)["reservationAffinity"] == {
        "consumeReservationType": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": ["kept"],
    }


def affinities(bench: GceBench) -> list[tuple[str, list[str]]]:
    """Kind and names of the reservations that each insert asked for, in order."""
    asked = [each.body["reservationAffinity"] for each in bench.compute.inserts()]
    return [(each["consumeReservationType"], each.get("values", [])) for each in asked]


def test_each_reserved_machine_targets_one_reservation_and_only_those_that_must_be_named_are_named(
    bench: GceBench,
) -> None:
    soon = stamp(bench.clock.now() + 86_400.0)
    bench.compute.reserve("soon", "us-central1-a", "e2-standard-2", 1, named=True, deleteAtTime=soon)
    bench.compute.reserve("kept", "us-central1-a", "e2-standard-2", 1, named=True)
    bench.compute.reserve("open", "us-central1-a", "e2-standard-2", 1)
    bench.compute.reserve("disks", "us-central1-a", "e2-standard-2", 9, named=True)
    bench.compute.reservations[-1]["specificReservation"]["instanceProperties"]["localSsds"] = [{"diskSizeGb": "375"}]
    provider = bench.plain(markets=["on_demand", "reserved"])
    offer = offer_in(bench, Market.RESERVED, provider)
    assert offer.available == 3
    for _ in range(3):
        provider.launch(bench.request(offer=offer))
    named = "SPECIFIC_RESERVATION"
    assert affinities(bench) == [("ANY_RESERVATION", []), (named, ["kept"]), (named, ["soon"])]
    assert bench.reservation_uses() == [1, 1, 1, 0]


def test_repeated_launch_finds_its_machine_though_that_took_the_last_reserved_place(bench: GceBench) -> None:
    bench.reserve([1])
    request = bench.request(offer=offer_in(bench, Market.RESERVED, bench.provider))
    machine = bench.provider.launch(request)
    for key in [key for key, each in bench.compute.operations.items() if each["operationType"] == "insert"]:
        del bench.compute.operations[key]  # Compute Engine forgets operations after two weeks
    assert bench.restarted().launch(request).provider_id == machine.provider_id


def test_reservation_that_refuses_is_not_targeted_again_before_it_is_read(bench: GceBench) -> None:
    bench.reserve([1, 1])
    offer = offer_in(bench, Market.RESERVED, bench.provider)
    request = bench.request(offer=offer)
    bench.compute.reservations[0]["specificReservation"]["inUseCount"] = "1"  # somebody else was first
    with pytest.raises(InsufficientCapacity, match="does not have available resources"):
        bench.provider.launch(request)
    bench.provider.launch(request)
    assert affinities(bench)[-1] == ("SPECIFIC_RESERVATION", ["kept-1"])


def test_launch_beyond_a_commitment_is_refused_before_anything_is_sent(bench: GceBench) -> None:
    commit(bench, 4, 16384)
    offer = committed(bench)["us-central1-a", "e2-standard-2"]
    for _ in range(2):
        bench.provider.launch(bench.request(offer=offer))
    with pytest.raises(InsufficientCapacity, match="every reserved e2-standard-2"):
        bench.provider.launch(bench.request(offer=offer))
    assert len(list(bench.compute.inserts())) == 2


def test_on_demand_machine_leaves_reservations_alone_where_reserved_ones_are_on_offer(bench: GceBench) -> None:
    bench.compute.reserve("open", "us-central1-a", "e2-standard-2", count=1)
    provider = bench.plain(markets=["on_demand", "reserved"])
    provider.launch(bench.request(offer=offer_in(bench, provider=provider)))
    assert asked(bench)["reservationAffinity"] == {"consumeReservationType": "NO_RESERVATION"}


@pytest.mark.parametrize("change", [{"instance_id": "Inst_1"}, {"token": "A b"}, {"token": ""}, {"owner": "o" * 60}])
def test_names_that_cannot_be_labels_are_rejected_before_anything_is_sent(
    bench: GceBench, change: dict[str, str]
) -> None:
    request = bench.request(offer=offer_in(bench), **change)
    bench.compute.seen.clear()
    with pytest.raises(LaunchRejected):
        bench.provider.launch(request)
    assert bench.compute.seen == []


def test_request_that_would_expire_first_is_rejected(bench: GceBench) -> None:
    with pytest.raises(LaunchRejected, match="would expire before"):
        bench.provider.launch(bench.request(offer=offer_in(bench), expires_at=bench.clock.now() - 1))
    assert list(bench.compute.inserts()) == []


# ---------------------------------------------------------------------------------------- which trouble is which
@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED", InsufficientCapacity),
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", InsufficientCapacity),
        ("UNSUPPORTED_OPERATION", InsufficientCapacity),
        ("QUOTA_EXCEEDED", QuotaExceeded),
        ("RESOURCE_OPERATION_RATE_EXCEEDED", Throttled),
        ("INTERNAL_ERROR", ProviderUnavailable),
        ("RESOURCE_NOT_FOUND", LaunchRejected),
    ],
)
def test_failed_operation_is_the_error_to_react_to(bench: GceBench, code: str, error: type[ProviderError]) -> None:
    bench.compute.faults.append(Fault("stockout", "instances.insert", code=code))
    with pytest.raises(ProviderError, match=code) as caught:
        bench.provider.launch(bench.request(offer=offer_in(bench)))
    assert type(caught.value) is error
    assert bench.listed() == ()


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("throttle", Throttled),
        ("throttle_403", Throttled),
        ("quota_403", QuotaExceeded),
        ("forbidden", AccountRejected),
        ("unavailable", OutcomeUnknown),
        ("html", OutcomeUnknown),
        ("cut", OutcomeUnknown),
        ("lose_reply", OutcomeUnknown),
    ],
)
def test_refused_insert_is_the_error_to_react_to_and_is_never_repeated_blindly(
    bench: GceBench, kind: str, error: type[ProviderError]
) -> None:
    request = bench.request(offer=offer_in(bench))
    bench.compute.faults.append(Fault(kind, "instances.insert"))
    with pytest.raises(ProviderError) as caught:
        bench.provider.launch(request)
    assert type(caught.value) is error
    assert len(list(bench.compute.inserts())) <= 1
    machine = bench.provider.launch(request)
    bench.let_lists_settle()
    assert [each.provider_id for each in bench.listed()] == [machine.provider_id]


def test_insert_that_hangs_is_of_unknown_outcome(bench: GceBench) -> None:
    request = bench.request(offer=offer_in(bench))
    bench.compute.faults.append(Fault("hang", "instances.insert"))
    with pytest.raises(OutcomeUnknown, match="Read timed out"):
        bench.plain(timeout_s=3.0).launch(request)
    assert bench.provider.launch(request).token == request.token


def test_engine_that_machines_cannot_dial_is_rejected(bench: GceBench) -> None:
    with pytest.raises(LaunchRejected, match="cannot reach"):
        bench.provider.launch(
            bench.request(offer=offer_in(bench), bootstrap=replace(ENGINE, gateway_addresses=("127.0.0.1:8786",)))
        )


# ------------------------------------------------------------------------------------------ one token, one machine
def test_failed_operation_does_not_use_up_the_token(bench: GceBench) -> None:
    """The same request id would be answered with the operation that failed."""
    request = bench.request(offer=offer_in(bench))
    for _ in range(3):
        bench.compute.faults.append(Fault("stockout", "instances.insert"))
        with pytest.raises(InsufficientCapacity):
            bench.provider.launch(request)
    bench.provider = bench.restarted()  # it does not know whether anybody was told, so it tells once more
    with pytest.raises(InsufficientCapacity):
        bench.provider.launch(request)
    assert bench.provider.launch(request).token == request.token
    ids = [seen.query["requestId"] for seen in bench.compute.inserts()]
    assert len(set(ids)) == 4


def test_repeated_launch_asks_with_the_same_request_id_and_body(bench: GceBench) -> None:
    request = bench.request(offer=offer_in(bench), bootstrap=ENGINE)
    for _ in range(2):
        bench.compute.faults.append(Fault("lose_request", "instances.insert"))
        with pytest.raises(OutcomeUnknown):
            bench.provider.launch(request)
        # A lost request is not even seen by the fake; its successor must equal what a reply would have been to.
        bench.let_pass(5)
    bench.compute.faults.append(Fault("lose_reply", "instances.insert"))
    bench.compute.faults.append(Fault("list_late", "instances.insert"))
    with pytest.raises(OutcomeUnknown):
        bench.provider.launch(request)
    bench.let_pass(3)  # its operation is not listed yet, so the launch is sent once more
    machine = bench.restarted().launch(request)
    first, second = bench.compute.inserts()
    assert (first.query["requestId"], first.body) == (second.query["requestId"], second.body)
    assert machine.token == request.token and len(bench.compute.machines) == 1


def test_slow_operation_is_of_unknown_outcome_and_its_machine_not_told_until_it_is_decided(bench: GceBench) -> None:
    bench.compute.operation_s = 300.0
    request = bench.request(offer=offer_in(bench))
    with pytest.raises(OutcomeUnknown, match="still running"):
        bench.provider.launch(request)
    assert bench.listed() == ()
    bench.let_pass(300)
    machine = bench.provider.launch(request)
    assert machine.state is CloudState.RUNNING
    assert [each.provider_id for each in bench.listed()] == [machine.provider_id]
    assert len(list(bench.compute.inserts())) == 1


def test_slow_stockout_is_told_at_the_next_try(bench: GceBench) -> None:
    bench.compute.operation_s = 300.0
    bench.compute.faults.append(Fault("stockout", "instances.insert"))
    request = bench.request(offer=offer_in(bench))
    with pytest.raises(OutcomeUnknown):
        bench.provider.launch(request)
    bench.let_pass(300)
    with pytest.raises(InsufficientCapacity):
        bench.provider.launch(request)
    assert bench.listed() == ()
    assert len(list(bench.compute.inserts())) == 1


def test_machine_of_our_name_that_is_not_ours_is_left_alone(bench: GceBench) -> None:
    request = bench.request(offer=offer_in(bench))
    machine = bench.provider.launch(request)
    zone, _, name = machine.provider_id.partition("/")
    bench.compute.machines[zone, name]["labels"] = {"team": "other"}
    bench.compute.operations.clear()
    bench.compute._by_request.clear()
    with pytest.raises(LaunchRejected, match="does not belong to HCloud"):
        bench.provider.launch(request)


def test_same_name_is_the_same_machine_when_request_and_operation_are_forgotten(bench: GceBench) -> None:
    request = bench.request(offer=offer_in(bench))
    machine = bench.provider.launch(request)
    bench.compute.operations.clear()
    bench.compute._by_request.clear()
    assert bench.provider.launch(request).provider_id == machine.provider_id
    assert len(bench.compute.machines) == 1


def test_token_of_a_machine_that_ended_keeps_its_beginning_and_end(bench: GceBench) -> None:
    request: LaunchRequest = bench.request(offer=offer_in(bench))
    machine = bench.provider.launch(request)
    bench.let_pass(100)
    bench.provider.terminate([machine.provider_id])
    bench.let_pass(1000)
    again = bench.restarted().launch(request)
    assert again.launched_at == pytest.approx(machine.launched_at, abs=0.01)
    assert again.terminated_at == pytest.approx(machine.launched_at + 104, abs=3)


def test_launch_takes_few_calls(bench: GceBench) -> None:
    request = bench.request(offer=offer_in(bench))
    bench.compute.seen.clear()
    bench.provider.launch(request)
    assert [seen.method for seen in bench.compute.seen if seen.method != "zoneOperations.get"] == [
        "zoneOperations.list",
        "instances.insert",
        "instances.get",
    ]
