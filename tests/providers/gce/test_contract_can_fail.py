"""The contract on the fake catches what it is there for: each of these providers has one fault."""

import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hcloud.core.errors import InsufficientCapacity
from providers.gce import api, insert_request, instance_mapping, launch, names, project
from tests.contract.provider_contract import ProviderAbility, ProviderContract
from tests.providers.gce.bench import GceBench

CAUGHT = (AssertionError, TimeoutError, pytest.fail.Exception)


@pytest.fixture
def broken(tmp_path: Path) -> Iterator[GceBench]:
    """A bench whose fake may be sent nonsense."""
    made = GceBench(tmp_path)
    yield made
    made.server.close()


def forget_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    def name(request: Any) -> str:
        return f"{request.owner}-{request.instance_id}-{uuid.uuid4().hex[:10]}"

    for module in (names, launch, insert_request):
        monkeypatch.setattr(module, "name_of", name)
    monkeypatch.setattr(launch, "request_id", lambda *_: str(uuid.uuid4()))


def trust_200(monkeypatch: pytest.MonkeyPatch) -> None:
    gather = api.Api._aggregated
    monkeypatch.setattr(api.Api, "_aggregated", lambda *args: replace(gather(*args), unanswered=()))


def overlook_failed_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "failure_of", lambda operation: None)


def use_one_request_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "request_id", lambda project, request, failures: names.request_id("p", request, 0))


def set_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = insert_request._scheduling

    def scheduling(request: Any, settings: Any) -> Any:
        made = plain(request, settings)
        made.termination_time = ""
        return made

    monkeypatch.setattr(insert_request, "_scheduling", scheduling)


def list_any_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    def list_all(self: Any, found: Any, owner: str, now: float) -> Any:
        return [instance_mapping.to_cloud_instance(each, self._price_of, now) for _, each in found.items]

    monkeypatch.setattr(project.ComputeProject, "_owned_instances", list_all)
    listed = api.Api.instances
    monkeypatch.setattr(api.Api, "instances", lambda self, label, owner: listed(self, "hcloud-market", "on_demand"))


@pytest.mark.parametrize(
    ("fault", "test"),
    [
        (forget_tokens, "test_same_token_yields_the_same_machine"),
        (forget_tokens, "test_same_token_after_the_end_launches_nothing"),
        (forget_tokens, "test_lost_reply_is_unknown_and_the_token_finds_the_machine"),
        (forget_tokens, "test_late_success_is_one_machine_whenever_the_token_is_repeated"),
        (trust_200, "test_partial_listing_says_which_zone_is_missing"),
        (overlook_failed_operations, "test_stockout_launches_nothing_and_a_later_try_may_succeed"),
        (set_no_limit, "test_machine_ends_itself_at_its_expiry"),
        (list_any_owner, "test_two_owners_in_one_cloud_see_only_their_own"),
    ],
)
def test_contract_catches(broken: GceBench, monkeypatch: pytest.MonkeyPatch, fault: Any, test: str) -> None:
    fault(monkeypatch)
    with pytest.raises(CAUGHT):
        getattr(ProviderContract(), test)(broken)


def test_one_request_id_for_all_tries_would_use_up_the_token(broken: GceBench, monkeypatch: pytest.MonkeyPatch) -> None:
    request = broken.request()
    use_one_request_id(monkeypatch)
    broken.break_next(ProviderAbility.RUN_OUT)
    for _ in range(2):
        with pytest.raises(InsufficientCapacity):
            broken.provider.launch(request)
    monkeypatch.undo()
    assert broken.until_running(broken.provider.launch(request)).token == request.token
