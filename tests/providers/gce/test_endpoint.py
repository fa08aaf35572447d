"""No request leaves for another host than the configured endpoint."""

import pytest
from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1

from hcloud.provider import CloudState
from tests.providers.gce.bench import GceBench
from tests.providers.gce.compute import PROJECT


def test_every_call_of_a_machines_life_goes_to_the_endpoint(bench: GceBench, strayed: list[str]) -> None:
    provider = bench.plain(markets=["on_demand", "spot", "reserved"])
    machine = provider.launch(bench.request(offer=provider.offers()[0]))
    bench.until(lambda: bench.in_state(machine, CloudState.RUNNING), 60)
    provider.terminate([machine.provider_id])
    bench.until(lambda: bench.in_state(machine, CloudState.TERMINATED), 60)
    assert {seen.method for seen in bench.compute.seen} == {
        "instances.insert",
        "instances.get",
        "instances.delete",
        "instances.aggregatedList",
        "zoneOperations.get",
        "zoneOperations.list",
        "machineTypes.list",
        "regions.get",
        "reservations.aggregatedList",
        "regionCommitments.aggregatedList",
    }
    assert strayed == []


def test_the_guard_sees_what_the_librarys_own_waiting_would_do(bench: GceBench, strayed: list[str]) -> None:
    """A seeded fault: the library waits for operations at the public host, whatever endpoint it was given."""
    client = compute_v1.InstancesClient(
        credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
        client_options=ClientOptions(api_endpoint=bench.server.endpoint),
    )
    machine = bench.provider.launch(bench.request())
    zone, _, name = machine.provider_id.partition("/")
    operation = client.delete(project=PROJECT, zone=zone, instance=name)
    with pytest.raises(Exception, match=r"compute\.googleapis\.com"):
        operation.result(timeout=5, retry=None)  # type: ignore[no-untyped-call]
    assert strayed == ["compute.googleapis.com"]
    strayed.clear()
