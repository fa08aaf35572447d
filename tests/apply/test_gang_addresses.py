"""Where the nodes of a gang reach each other."""

import pytest

from hcloud.apply.units import gang_address
from hcloud.core.model import EventKind, JobState, Nodes
from hcloud.planner.explain import job_timeline
from providers.mock import MockProvider
from tests.apply.conftest import MakeDeployment


@pytest.mark.parametrize(
    ("addresses", "found"),
    [
        ((), "127.0.0.1"),  # slices of this host
        (("10.0.0.7", "54.72.0.1"), "10.0.0.7"),
        (("54.72.0.1", "10.0.0.7"), "10.0.0.7"),
        (("54.72.0.1",), "54.72.0.1"),
        (("54.72.0.1", "fd00::7"), "fd00::7"),
    ],
)
def test_a_private_address_comes_first(addresses: tuple[str, ...], found: str) -> None:
    assert gang_address(addresses) == found


def test_nodes_on_several_machines_of_a_provider_on_one_host_need_no_addresses(make: MakeDeployment) -> None:
    site = make()
    site.submit("sleep", "5", nodes=Nodes(count=2), framework="mpi", exclusive=True)
    site.until_state(JobState.SUCCEEDED)


@pytest.mark.parametrize("network", ["none", "host"])
def test_nodes_that_have_no_addresses_end_at_once_and_wait_for_none(
    make: MakeDeployment, monkeypatch: pytest.MonkeyPatch, network: str
) -> None:
    monkeypatch.delattr(MockProvider, "why_no_gang_network")  # as a provider that others wrote
    site = make()
    site.submit("sleep", "5", nodes=Nodes(count=2), framework="mpi", network=network, exclusive=True)
    site.until_state(JobState.FAILED)  # after one more try, which might have come to another provider
    story = job_timeline(site.job(), site.scene.store.events(limit=1000), site.scene.store.live().instances)
    assert "its nodes cannot reach each other: provider mock names no address of inst-3, inst-4;" in story[-1].text
    assert not site.events(EventKind.UNIT_STARTED)


def test_one_node_of_such_a_provider_needs_no_address(make: MakeDeployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(MockProvider, "why_no_gang_network")
    site = make()
    site.submit("sleep", "5", framework="mpi")
    site.until_state(JobState.SUCCEEDED)
