"""The fake itself: what breaks the API's own description, in a request or in an answer, fails the test that did it."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from hcloud.core.errors import InsufficientCapacity, LaunchRejected, ProviderUnavailable
from hcloud.core.model import Market
from providers.gce import launch
from providers.gce.instance_mapping import STATES
from tests.providers.gce.bench import GceBench
from tests.providers.gce.compute import PROJECT, FakeCompute
from tests.providers.gce.discovery import document, find
from tests.providers.gce.test_launching import offer_in

INSTANCES = f"/compute/v1/projects/{PROJECT}/zones/us-central1-a/instances"


def _send(bench: GceBench, path: str, body: Any = None) -> int:
    request = urllib.request.Request(
        bench.server.endpoint + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize(
    ("path", "body", "problem"),
    [
        (INSTANCES, {"nam": "x"}, "Unknown name 'nam' at 'resource'"),
        (INSTANCES, {"scheduling": {"provisioningModel": "CHEAP"}}, "Invalid value at 'resource.scheduling.provisi"),
        (INSTANCES, {"disks": [{"boot": "yes"}]}, "Invalid value at 'resource.disks[0].boot' (boolean)"),
        (INSTANCES, {"labels": {"a": 1}}, "Invalid value at 'resource.labels.a' (string)"),
        (f"{INSTANCES}?requestId=7", {}, "requestId '7' is no UUID other than zero"),
        (f"{INSTANCES}?requestid=x", {}, "there is no parameter 'requestid'"),
        ("/compute/v1/nothing", None, "there is no method GET /compute/v1/nothing"),
        (INSTANCES, None, "the fake does not know instances.list"),
    ],
)
def test_request_that_is_not_as_described_is_refused_and_remembered(
    bench: GceBench, path: str, body: Any, problem: str
) -> None:
    assert _send(bench, path, body) >= 400
    assert any(problem in each for each in bench.compute.problems)
    bench.compute.problems.clear()


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda machine: machine.update(state="RUNNING"), "Unknown name 'state'"),
        (lambda machine: machine.update(status="BUSY"), "'BUSY'"),
        (lambda machine: machine.update(id="12x"), "is no number"),
        (lambda machine: machine.update(creationTimestamp=12), "creationTimestamp' (string)"),
    ],
)
def test_answer_that_is_not_as_described_is_remembered(
    bench: GceBench, spoil: Callable[[dict[str, Any]], None], problem: str
) -> None:
    bench.provider.launch(bench.request(offer=offer_in(bench)))
    [machine] = bench.compute.machines.values()
    spoil(machine)
    with suppress(ProviderUnavailable):  # some of it the client library refuses too
        bench.provider.instances(bench.owner)
    assert any(problem in each for each in bench.compute.problems)
    bench.compute.problems.clear()


def test_what_fails_in_the_fake_itself_is_remembered(bench: GceBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug of the fake")

    monkeypatch.setattr(FakeCompute, "answer", broken)
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        _send(bench, INSTANCES)
    bench.until(lambda: bench.compute.problems, 60)
    assert "a bug of the fake" in bench.compute.problems[0]
    bench.compute.problems.clear()


def test_server_that_is_away_refuses_connections_and_keeps_its_port(bench: GceBench) -> None:
    before = bench.server.endpoint
    bench.server.go_away()
    with pytest.raises(urllib.error.URLError, match="refused"):
        _send(bench, INSTANCES)
    bench.server.come_back()
    assert bench.server.endpoint == before
    assert _send(bench, f"{INSTANCES}/none") == 404


def test_every_status_of_a_machine_is_known() -> None:
    assert set(STATES) == set(document()["schemas"]["Instance"]["properties"]["status"]["enum"])


def test_methods_are_found_by_what_is_sent() -> None:
    found = find("GET", f"{INSTANCES}/some-machine")
    assert found is not None
    assert (found[0].id, found[1]["instance"]) == ("instances.get", "some-machine")


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["none"], "do not exist"),
        (["open"], "can not be targeted as specificReservationRequired is not set"),
        (["full"], "does not have available resources"),
    ],
)
def test_instance_that_names_a_reservation_it_cannot_use_is_refused(
    bench: GceBench, monkeypatch: pytest.MonkeyPatch, names: list[str], why: str
) -> None:
    bench.compute.reserve("open", "us-central1-a", "e2-standard-2", 1)
    bench.compute.reserve("full", "us-central1-a", "e2-standard-2", 1, in_use=1, named=True)
    provider = bench.plain(markets=["reserved"])
    [offer] = provider.offers()
    monkeypatch.setattr(launch.Launcher, "_reservation_name", lambda *_: names[0])
    with pytest.raises((LaunchRejected, InsufficientCapacity), match=why):
        provider.launch(bench.request(offer=offer))
    assert bench.reservation_uses() == [0, 1]


def test_machine_without_affinity_uses_reservations_that_need_no_name(bench: GceBench) -> None:
    bench.compute.reserve("named", "us-central1-a", "e2-standard-2", 1, named=True)
    bench.compute.reserve("open", "us-central1-a", "e2-standard-2", 1)
    offer = next(each for each in bench.provider.offers() if each.key[1:3] == ("us-central1-a", "e2-standard-2"))
    for market in (Market.SPOT, Market.ON_DEMAND):
        bench.provider.launch(bench.request(offer=replace(offer, market=market)))
    assert bench.reservation_uses() == [0, 1]
