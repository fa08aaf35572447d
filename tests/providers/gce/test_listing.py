"""Listings: never complete when they are not, and what they know of machines that are gone or about to go."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from hcloud.core.errors import OutcomeUnknown, ProviderUnavailable, Throttled
from hcloud.core.model import Market
from hcloud.provider import CloudInstance, CloudState, Listing
from tests.providers.gce.answers import stamp
from tests.providers.gce.bench import GceBench
from tests.providers.gce.compute import Fault
from tests.providers.gce.test_launching import offer_in


def launch(bench: GceBench, count: int = 1, market: Market = Market.ON_DEMAND) -> list[CloudInstance]:
    """Launch machines in us-central1-a."""
    offer = offer_in(bench, market)
    return [bench.provider.launch(bench.request(offer=offer)) for _ in range(count)]


def listing(bench: GceBench) -> Listing:
    return bench.provider.instances(bench.owner)


def ids(machines: Sequence[CloudInstance]) -> set[str]:
    return {each.provider_id for each in machines}


def test_zone_that_does_not_answer_is_named_though_the_reply_says_200(bench: GceBench) -> None:
    launch(bench)
    bench.compute.faults.append(Fault("unreachable", "instances.aggregatedList", "us-central1-a"))
    told = listing(bench)
    assert (told.complete, told.unanswered, told.instances) == (False, ("us-central1-a",), ())


def test_every_page_is_read_and_a_page_that_fails_fails_the_listing(
    bench: GceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("providers.gce.api.PAGE", 2)
    machines = launch(bench, 5)
    assert ids(listing(bench).instances) == ids(machines)
    pages = [seen for seen in bench.compute.seen if seen.method == "instances.aggregatedList"]
    assert [seen.query.get("pageToken") for seen in pages] == [None, "2", "4"]

    def fail_behind_the_first_page(method: str, zone: str | None) -> bool:
        return bench.compute.seen[-1].method == "instances.aggregatedList"

    fault = Fault("unavailable", "instances.aggregatedList", times=None)
    monkeypatch.setattr(Fault, "meets", lambda self, method, zone: fail_behind_the_first_page(method, zone))
    bench.compute.faults.append(fault)
    with pytest.raises(ProviderUnavailable, match="Backend Error"):
        listing(bench)
    bench.compute.faults.clear()


@pytest.mark.parametrize("kind", ["unavailable", "throttle", "html", "cut", "lose_reply"])
def test_read_that_fails_once_is_repeated(bench: GceBench, kind: str) -> None:
    machines = launch(bench)
    bench.compute.faults.append(Fault(kind, "instances.aggregatedList"))
    assert ids(listing(bench).instances) == ids(machines)


@pytest.mark.parametrize("kind", ["unavailable", "throttle", "html", "cut", "forbidden"])
def test_read_that_keeps_failing_raises_after_a_bounded_number_of_tries(bench: GceBench, kind: str) -> None:
    launch(bench)
    bench.compute.seen.clear()
    bench.compute.faults.append(Fault(kind, "instances.aggregatedList", times=None))
    with pytest.raises((ProviderUnavailable, Throttled)):
        listing(bench)
    assert len(bench.compute.seen) <= 3
    bench.compute.faults.clear()


def test_missing_permission_is_told_by_name(bench: GceBench) -> None:
    bench.compute.faults.append(Fault("forbidden", "instances.aggregatedList"))
    with pytest.raises(ProviderUnavailable, match=r"compute\.instances\.list"):
        listing(bench)


def test_listing_that_hangs_says_nothing_about_machines(bench: GceBench) -> None:
    bench.compute.faults.append(Fault("hang", "instances.aggregatedList"))
    with pytest.raises(ProviderUnavailable, match="Read timed out"):
        bench.plain(timeout_s=0.5, read_tries=1).instances(bench.owner)


def test_machines_without_our_labels_are_not_ours(bench: GceBench) -> None:
    (machine,) = launch(bench)
    zone, _, name = machine.provider_id.partition("/")
    del bench.compute.machines[zone, name]["labels"]["hcloud-token"]
    assert listing(bench).instances == ()


def test_stopped_machine_is_told_as_ended_and_what_is_left_of_it_deleted(bench: GceBench) -> None:
    (machine,) = launch(bench)
    bench.let_pass(60)
    bench.compute.settle()
    bench.compute.crash(*machine.provider_id.split("/"))
    (told,) = listing(bench).instances
    assert told.state is CloudState.TERMINATED
    assert told.terminated_at == pytest.approx(bench.clock.now(), abs=1)
    bench.let_pass(10)
    bench.compute.settle()
    assert bench.compute.machines == {}


def test_spot_machine_taken_back_says_so_while_it_stops_and_when_it_is_gone(bench: GceBench) -> None:
    (machine,) = launch(bench, market=Market.SPOT)
    assert ids(listing(bench).instances) == {machine.provider_id}
    began_at = bench.clock.now()
    bench.compute.preempt(*machine.provider_id.split("/"))
    (stopping,) = listing(bench).instances
    assert stopping.state is CloudState.STOPPING
    assert stopping.preempt_at == pytest.approx(began_at + 30, abs=1)
    bench.let_pass(60)
    (gone,) = listing(bench).instances
    assert gone.state is CloudState.TERMINATED
    assert gone.preempt_at is not None
    assert gone.terminated_at == pytest.approx(began_at + 30, abs=1)
    assert gone.detail == "compute.instances.preempted"


def test_machine_deleted_by_somebody_is_told_as_ended_for_a_while_with_its_true_end(bench: GceBench) -> None:
    machine, other = launch(bench, 2)
    listing(bench)
    bench.for_owner(bench.owner).terminate([machine.provider_id])
    ended_at = bench.clock.now() + bench.compute.stop_s
    bench.let_pass(60)
    told = {each.provider_id: each for each in listing(bench).instances}
    assert told[machine.provider_id].terminated_at == pytest.approx(ended_at, abs=1)
    assert told[machine.provider_id].preempt_at is None
    bench.let_pass(700)
    assert ids(listing(bench).instances) == {other.provider_id}


def test_partial_listing_takes_no_machine_for_gone(bench: GceBench) -> None:
    machines = launch(bench, 2)
    listing(bench)
    bench.compute.faults.append(Fault("unreachable", "instances.aggregatedList", "us-central1-a"))
    assert listing(bench).instances == ()
    assert ids(listing(bench).instances) == ids(machines)


def test_end_that_cannot_be_read_leaves_the_machine_merely_absent(bench: GceBench) -> None:
    (machine,) = launch(bench)
    listing(bench)
    bench.provider.terminate([machine.provider_id])
    bench.let_pass(60)
    bench.compute.faults.append(Fault("unavailable", "zoneOperations.list", times=None))
    told = listing(bench)
    bench.compute.faults.clear()
    assert told.complete and told.instances == ()


def test_terminate_ends_the_others_though_one_fails(bench: GceBench) -> None:
    machines = launch(bench, 12)
    bench.compute.faults.append(Fault("lose_request", "instances.delete"))
    with pytest.raises(OutcomeUnknown):
        bench.provider.terminate([each.provider_id for each in machines])
    bench.let_pass(60)
    left = [each for each in listing(bench).instances if each.state is not CloudState.TERMINATED]
    assert len(left) == 1
    bench.provider.terminate([left[0].provider_id])
    bench.until_gone(left[0])


def test_terminate_touches_no_machine_of_another_owner(bench: GceBench) -> None:
    other = bench.for_owner("somebody-else")
    machine = other.launch(bench.request(owner="somebody-else", offer=offer_in(bench)))
    bench.provider.terminate([machine.provider_id, "us-central1-a/database", "", "x/../y"])
    assert not [seen for seen in bench.compute.seen if seen.method == "instances.delete"]


def test_a_listing_whose_pages_lead_in_circles_fails(bench: GceBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_circles(kind: str, items: list[Any], query: Mapping[str, str]) -> dict[str, Any]:
        following = "b" if query.get("pageToken") == "a" else "a"
        return {"kind": kind, "id": "list", "items": items, "selfLink": "here", "nextPageToken": following}

    monkeypatch.setattr("tests.providers.gce.compute._page", in_circles)
    with pytest.raises(ProviderUnavailable, match="does not end: a page came twice"):
        bench.provider.instances(bench.owner)


def test_a_listing_is_one_call_per_page_however_many_machines(bench: GceBench) -> None:
    launch(bench, 10)
    bench.compute.seen.clear()
    listing(bench)
    assert [seen.method for seen in bench.compute.seen] == ["instances.aggregatedList"]


def test_maintenance_that_ends_the_machine_is_announced(bench: GceBench) -> None:
    (machine,) = launch(bench, market=Market.SPOT)
    (plain,) = bench.compute.machines.values()
    at = bench.clock.now() + 900
    plain["resourceStatus"]["upcomingMaintenance"] = {"type": "SCHEDULED", "windowStartTime": stamp(at)}
    (told,) = listing(bench).instances
    assert told.state is CloudState.RUNNING
    assert told.preempt_at == pytest.approx(at, abs=1)
    plain["scheduling"]["onHostMaintenance"] = "MIGRATE"  # then it moves, and nothing ends
    assert [each.preempt_at for each in listing(bench).instances] == [None]
    assert machine.preempt_at is None
