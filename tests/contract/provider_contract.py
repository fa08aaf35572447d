"""What every Provider must do (``hcloud.provider``): one class of tests, run on each implementation.

An implementation writes::

    class TestLocalProvider(ProviderContract):
        abilities = frozenset({ProviderAbility.RESTART})

        @pytest.fixture
        def bench(self, tmp_path) -> Iterator[ProviderBench]: ...
"""

import abc
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from enum import StrEnum
from typing import TypeVar

import pytest

from hcloud.core.clock import Clock
from hcloud.core.errors import (
    ConfigError,
    InsufficientCapacity,
    LaunchRejected,
    OutcomeUnknown,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    Throttled,
)
from hcloud.core.model import Market, Offer
from hcloud.provider import CloudInstance, CloudState, LaunchRequest, Provider, WorkerBootstrap
from tests.contract.benches import ContractSuite, needs, numbers

T = TypeVar("T")
Raised = TypeVar("Raised", bound=ProviderError)


class ProviderAbility(StrEnum):
    """What a bench can make its provider do: the first group by ``break_next``, the second by ``strike``."""

    LOSE_REPLY = "lose_reply"  # the next launch happens, its caller gets OutcomeUnknown
    LOSE_REQUEST = "lose_request"  # the next launch does not happen, its caller gets OutcomeUnknown
    ANSWER_LATE = "answer_late"  # the next launch happens some seconds later, its caller gets OutcomeUnknown now
    LOSE_TERMINATE_REPLY = "lose_terminate_reply"  # the next terminate happens, its caller gets OutcomeUnknown
    THROTTLE = "throttle"  # the next call is refused as Throttled
    RUN_OUT = "run_out"  # the next launch meets a stockout
    EXCEED_QUOTA = "exceed_quota"  # the next launch exceeds a quota
    BE_AWAY = "be_away"  # the next call gets no answer at all
    LIST_PARTLY = "list_partly"  # the next listing lacks a zone
    LIST_LATE = "list_late"  # the next machine launched is missing from listings for a while

    DIE = "die"  # a machine dies by itself
    PREEMPT = "preempt"  # a machine is preempted after a notice

    RESTART = "restart"  # another object over the same cloud, as after a kill -9: ``restarted``
    RESERVE = "reserve"  # several capacity reservations of one type in one zone: ``reserve``
    SECOND_OWNER = "second_owner"  # a deployment with another owner tag in the same cloud: ``for_owner``


class ProviderBench(abc.ABC):
    """An implementation under test. Subclass with VirtualTime or RealTime for ``clock``, ``let_pass`` and ``until``."""

    provider: Provider
    clock: Clock
    owner = "hcloud-contract"
    boot_patience_s = 600.0
    """A machine is RUNNING within this time of its launch."""
    end_patience_s = 120.0
    """A machine asked to end is TERMINATED within this time."""
    expiry_s = 30.0
    """How far ahead the test of self-enforced expiry sets it (short for real time)."""
    expiry_slack_s = 10.0
    """How late a machine may notice its own expiry."""
    bootstrap: WorkerBootstrap | None = None
    misspelt_setting: tuple[str, str]
    """A misspelt key of this provider's settings and the right one."""

    def __init__(self) -> None:
        self._numbers = numbers()

    @abc.abstractmethod
    def let_pass(self, seconds: float) -> None:
        """Let time pass."""

    @abc.abstractmethod
    def until(self, condition: Callable[[], T | None], timeout_s: float) -> T:
        """Let time pass until the condition holds; return its value or raise TimeoutError."""

    @abc.abstractmethod
    def build(self, settings: Mapping[str, object]) -> Provider:
        """Build a provider with these settings added to the bench's own (for tests of bad settings)."""

    def break_next(self, fault: ProviderAbility) -> None:
        """Inject one fault of the first group into the next call that it applies to."""
        raise NotImplementedError

    def strike(self, provider_id: str, how: ProviderAbility) -> None:
        """Let an instance fail, or be preempted after a notice."""
        raise NotImplementedError

    def restarted(self) -> Provider:
        """Return a new object over the same cloud with the same settings; the old one is not used any more."""
        raise NotImplementedError

    def for_owner(self, owner: str) -> Provider:
        """Return a provider over the same cloud for another owner."""
        raise NotImplementedError

    def reserve(self, counts: Sequence[int]) -> None:
        """Keep so many machines in capacity reservations of one type in one zone, and let the provider offer them."""
        raise NotImplementedError

    def reservation_uses(self) -> list[int]:
        """Return how many machines really use each reservation."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------------ made from these
    def offer(self) -> Offer:
        """The cheapest on-demand offer."""
        offers = [each for each in self.provider.offers() if each.market is Market.ON_DEMAND]
        return min(offers, key=lambda each: (each.price_usd_per_h, each.key))

    def request(self, **changes: object) -> LaunchRequest:
        """A request with a fresh instance id and token, an hour before expiry."""
        number = next(self._numbers)
        request = LaunchRequest(
            token=f"token-{number}",
            instance_id=f"inst-{number}",
            owner=self.owner,
            offer=self.offer(),
            expires_at=self.clock.now() + 3600,
            tags={"job": f"job-{number}"},
            bootstrap=self.bootstrap,
        )
        return replace(request, **changes)  # type: ignore[arg-type]

    def sight(self, machine: CloudInstance) -> CloudInstance | None:
        """The machine as it is listed now."""
        return {each.provider_id: each for each in self.listed()}.get(machine.provider_id)

    def listed(self, owner: str | None = None) -> tuple[CloudInstance, ...]:
        """Everything listed for an owner now; fails on a partial listing."""
        listing = self.provider.instances(owner or self.owner)
        assert listing.complete and not listing.unanswered
        return listing.instances

    def in_state(self, machine: CloudInstance, state: CloudState) -> CloudInstance | None:
        """The machine if it is listed in that state."""
        found = self.sight(machine)
        return found if found is not None and found.state is state else None

    def until_running(self, machine: CloudInstance) -> CloudInstance:
        """Let time pass until the machine runs."""
        return self.until(lambda: self.in_state(machine, CloudState.RUNNING), self.boot_patience_s)

    def until_gone(self, machine: CloudInstance, timeout_s: float | None = None) -> CloudInstance | None:
        """Let time pass until the machine is listed as TERMINATED or no more; return it if still listed."""

        def gone() -> tuple[CloudInstance | None] | None:
            listing = self.provider.instances(self.owner)
            found = {each.provider_id: each for each in listing.instances}.get(machine.provider_id)
            if found is None:  # means nothing yet while the listing may lag
                settled = self.clock.now() > machine.launched_at + listing.consistent_after_s
                return (None,) if listing.complete and settled else None
            return (found,) if found.state is CloudState.TERMINATED else None

        return self.until(gone, timeout_s or self.end_patience_s)[0]

    def let_lists_settle(self) -> None:
        """Let as much time pass as a listing says it may lag."""
        self.let_pass(self.provider.instances(self.owner).consistent_after_s + 0.01)


class ProviderContract(ContractSuite):
    """The tests. Subclasses give the ``bench`` fixture, and end what it made."""

    # ---------------------------------------------------------------------------------------------------------- offers
    def test_offers_are_sorted_priced_and_own(self, bench: ProviderBench) -> None:
        offers = bench.provider.offers()
        assert offers
        assert [each.key for each in offers] == sorted({each.key for each in offers})
        assert all(each.price_usd_per_h > 0 and each.priced_at > 0 for each in offers)
        assert {each.provider for each in offers} == {bench.provider.name}
        assert {each.instance_type.provider for each in offers} == {bench.provider.name}

    def test_offered_machines_have_room(self, bench: ProviderBench) -> None:
        for each in bench.provider.offers():
            capacity = each.instance_type.capacity
            assert min(capacity.vcpus, capacity.memory_mib, capacity.disk_gib) > 0

    def test_facts_are_words(self, bench: ProviderBench) -> None:
        facts = bench.provider.facts()
        assert facts
        assert {type(word) for item in facts.items() for word in item} == {str}

    # ---------------------------------------------------------------------------------------------------------- launch
    def test_launched_machine_carries_its_tags_and_bills_from_launch(self, bench: ProviderBench) -> None:
        before_at = bench.clock.now()
        request = bench.request()
        machine = bench.provider.launch(request)
        assert (machine.instance_id, machine.token, machine.owner) == (request.instance_id, request.token, bench.owner)
        assert machine.zone == request.offer.zone
        assert machine.price_usd_per_h > 0
        assert before_at - 1 <= machine.launched_at <= bench.clock.now() + 1
        assert machine.terminated_at is None
        assert machine.state in {CloudState.PENDING, CloudState.RUNNING}

    def test_machine_walks_from_pending_to_running_to_terminated(self, bench: ProviderBench) -> None:
        machine = bench.provider.launch(bench.request())
        order = [CloudState.PENDING, CloudState.RUNNING, CloudState.STOPPING, CloudState.TERMINATED]
        seen = [machine.state]

        def reached(state: CloudState) -> bool:
            found = bench.sight(machine)
            if found is not None and found.state is not seen[-1]:
                seen.append(found.state)
            return seen[-1] is state

        bench.until(lambda: reached(CloudState.RUNNING), bench.boot_patience_s)
        bench.provider.terminate([machine.provider_id])
        bench.until(lambda: bench.sight(machine) is None or reached(CloudState.TERMINATED), bench.end_patience_s)
        assert seen == sorted(set(seen), key=order.index)

    def test_same_token_yields_the_same_machine(self, bench: ProviderBench) -> None:
        request = bench.request()
        first = bench.provider.launch(request)
        bench.until_running(first)
        second = bench.provider.launch(request)
        assert (second.provider_id, second.launched_at) == (first.provider_id, first.launched_at)
        assert len(bench.listed()) == 1

    def test_same_token_after_the_end_launches_nothing(self, bench: ProviderBench) -> None:
        request = bench.request()
        first = bench.provider.launch(request)
        bench.until_running(first)
        bench.provider.terminate([first.provider_id])
        bench.until_gone(first)
        again = bench.provider.launch(request)
        assert again.provider_id == first.provider_id
        assert again.state is CloudState.TERMINATED
        bench.let_lists_settle()
        assert all(each.state is CloudState.TERMINATED for each in bench.listed())

    def test_same_token_from_many_threads_yields_one_machine(self, bench: ProviderBench) -> None:
        request = bench.request()
        with ThreadPoolExecutor(8) as pool:
            machines = list(pool.map(lambda _: _launch_patiently(bench, request), range(8)))
        assert len({each.provider_id for each in machines}) == 1
        bench.let_lists_settle()
        assert len(bench.listed()) == 1

    def test_different_tokens_yield_different_machines(self, bench: ProviderBench) -> None:
        first, second = (bench.provider.launch(bench.request()) for _ in range(2))
        assert first.provider_id != second.provider_id
        bench.let_lists_settle()
        assert {each.token for each in bench.listed()} == {first.token, second.token}

    def test_unknown_type_is_rejected_and_nothing_appears(self, bench: ProviderBench) -> None:
        offer = bench.offer()
        unknown = replace(offer, instance_type=replace(offer.instance_type, name="no-such-type"))
        with pytest.raises(LaunchRejected, match="no-such-type"):
            bench.provider.launch(bench.request(offer=unknown))
        _assert_nothing_appears(bench)

    # --------------------------------------------------------------------------------------------------------- listing
    def test_fresh_cloud_lists_nothing_and_says_it_is_complete(self, bench: ProviderBench) -> None:
        listing = bench.provider.instances(bench.owner)
        assert listing.complete and not listing.instances and not listing.unanswered

    def test_complete_listing_holds_every_machine_older_than_it_says(self, bench: ProviderBench) -> None:
        machines = [bench.provider.launch(bench.request()) for _ in range(3)]
        bench.let_lists_settle()
        assert {each.provider_id for each in bench.listed()} == {each.provider_id for each in machines}

    def test_machines_of_another_owner_are_never_listed(self, bench: ProviderBench) -> None:
        bench.provider.launch(bench.request())
        bench.let_lists_settle()
        assert bench.listed(owner=bench.owner + "-else") == ()

    @needs(ProviderAbility.SECOND_OWNER)
    def test_two_owners_in_one_cloud_see_only_their_own(self, bench: ProviderBench) -> None:
        ours = bench.provider.launch(bench.request())
        other = bench.for_owner("somebody-else")
        theirs = other.launch(bench.request(owner="somebody-else"))
        bench.let_lists_settle()
        assert [each.provider_id for each in bench.listed()] == [ours.provider_id]
        assert [each.provider_id for each in other.instances("somebody-else").instances] == [theirs.provider_id]

    @needs(ProviderAbility.LIST_PARTLY)
    def test_partial_listing_says_which_zone_is_missing(self, bench: ProviderBench) -> None:
        machine = bench.provider.launch(bench.request())
        bench.let_lists_settle()
        bench.break_next(ProviderAbility.LIST_PARTLY)
        listing = bench.provider.instances(bench.owner)
        assert not listing.complete and listing.unanswered
        listed = {each.provider_id for each in listing.instances}
        assert machine.provider_id in listed or machine.zone in listing.unanswered
        assert bench.sight(machine) is not None

    @needs(ProviderAbility.LIST_LATE)
    def test_machine_missing_from_the_next_list_appears_within_the_stated_time(self, bench: ProviderBench) -> None:
        bench.break_next(ProviderAbility.LIST_LATE)
        machine = bench.provider.launch(bench.request())
        listing = bench.provider.instances(bench.owner)
        assert not listing.instances
        assert listing.consistent_after_s > 0
        bench.let_lists_settle()
        assert bench.sight(machine) is not None

    # ------------------------------------------------------------------------------------------------------------- end
    def test_terminated_machine_stops_billing_and_keeps_its_end(self, bench: ProviderBench) -> None:
        machine = bench.until_running(bench.provider.launch(bench.request()))
        asked_at = bench.clock.now()
        bench.provider.terminate([machine.provider_id])
        ended = bench.until_gone(machine)
        if ended is None:  # it may be listed no more
            return
        assert ended.terminated_at is not None
        assert ended.terminated_at >= machine.launched_at
        assert asked_at - 1 <= ended.terminated_at <= bench.clock.now() + 1
        bench.let_pass(1)
        bench.provider.terminate([machine.provider_id])
        later = bench.sight(machine)
        assert later is None or later.terminated_at == ended.terminated_at

    def test_terminate_of_unknown_ids_is_no_error_and_ends_the_known(self, bench: ProviderBench) -> None:
        machine = bench.provider.launch(bench.request())
        other = bench.provider.launch(bench.request())
        bench.provider.terminate(["no-such-machine", machine.provider_id])
        bench.until_gone(machine)
        assert bench.until_running(other).state is CloudState.RUNNING

    def test_terminate_of_nothing_is_no_error(self, bench: ProviderBench) -> None:
        bench.provider.terminate([])

    def test_terminate_while_booting_ends_the_machine(self, bench: ProviderBench) -> None:
        machine = bench.provider.launch(bench.request())
        bench.provider.terminate([machine.provider_id])
        bench.until_gone(machine)

    def test_machine_ends_itself_at_its_expiry(self, bench: ProviderBench) -> None:
        expires_at = bench.clock.now() + bench.expiry_s
        machine = bench.provider.launch(bench.request(expires_at=expires_at))
        assert machine.expires_at == pytest.approx(expires_at, abs=1)
        ended = bench.until_gone(machine, bench.expiry_s + bench.expiry_slack_s + bench.end_patience_s)
        assert bench.clock.now() >= expires_at - 1
        if ended is not None and ended.terminated_at is not None:
            assert expires_at - 1 <= ended.terminated_at <= expires_at + bench.expiry_slack_s

    @needs(ProviderAbility.DIE)
    def test_dead_machine_is_listed_as_terminated_or_no_more(self, bench: ProviderBench) -> None:
        machine = bench.until_running(bench.provider.launch(bench.request()))
        bench.strike(machine.provider_id, ProviderAbility.DIE)
        ended = bench.until_gone(machine)
        if ended is not None:
            assert ended.terminated_at is not None and ended.terminated_at >= machine.launched_at

    @needs(ProviderAbility.PREEMPT)
    def test_preempted_machine_gives_notice_and_ends_then(self, bench: ProviderBench) -> None:
        machine = bench.until_running(bench.provider.launch(bench.request()))
        bench.strike(machine.provider_id, ProviderAbility.PREEMPT)

        def noticed() -> float | None:
            found = bench.sight(machine)
            return found.preempt_at if found is not None else None

        preempt_at = bench.until(noticed, bench.end_patience_s)
        assert bench.in_state(machine, CloudState.RUNNING) or bench.clock.now() >= preempt_at
        bench.until_gone(machine, preempt_at - bench.clock.now() + bench.end_patience_s)
        assert bench.clock.now() >= preempt_at - 1

    # ---------------------------------------------------------------------------------------------------------- faults
    @needs(ProviderAbility.LOSE_REPLY)
    def test_lost_reply_is_unknown_and_the_token_finds_the_machine(self, bench: ProviderBench) -> None:
        request = bench.request()
        bench.break_next(ProviderAbility.LOSE_REPLY)
        with pytest.raises(OutcomeUnknown):
            bench.provider.launch(request)
        bench.let_lists_settle()
        (orphan,) = bench.listed()
        assert orphan.token == request.token
        assert bench.provider.launch(request).provider_id == orphan.provider_id
        assert len(bench.listed()) == 1

    @needs(ProviderAbility.LOSE_REQUEST)
    def test_lost_request_is_unknown_and_the_token_launches_once(self, bench: ProviderBench) -> None:
        request = bench.request()
        bench.break_next(ProviderAbility.LOSE_REQUEST)
        with pytest.raises(OutcomeUnknown):
            bench.provider.launch(request)
        machine = bench.provider.launch(request)
        bench.let_lists_settle()
        assert [each.provider_id for each in bench.listed()] == [machine.provider_id]

    @needs(ProviderAbility.ANSWER_LATE)
    def test_late_success_is_one_machine_whenever_the_token_is_repeated(self, bench: ProviderBench) -> None:
        request = bench.request()
        bench.break_next(ProviderAbility.ANSWER_LATE)
        with pytest.raises(OutcomeUnknown):
            bench.provider.launch(request)
        machine = bench.until(lambda: _launched_or_unknown(bench.provider, request), bench.boot_patience_s)
        bench.let_lists_settle()
        assert [each.provider_id for each in bench.listed()] == [machine.provider_id]

    @needs(ProviderAbility.LOSE_TERMINATE_REPLY)
    def test_lost_reply_to_terminate_may_be_repeated(self, bench: ProviderBench) -> None:
        machine = bench.until_running(bench.provider.launch(bench.request()))
        bench.break_next(ProviderAbility.LOSE_TERMINATE_REPLY)
        with pytest.raises(OutcomeUnknown):
            bench.provider.terminate([machine.provider_id])
        bench.provider.terminate([machine.provider_id])
        bench.until_gone(machine)

    @needs(ProviderAbility.THROTTLE)
    def test_throttled_launch_was_not_carried_out(self, bench: ProviderBench) -> None:
        retry_after_s = _assert_refused(bench, ProviderAbility.THROTTLE, Throttled).retry_after_s
        assert retry_after_s > 0

    @needs(ProviderAbility.RUN_OUT)
    def test_stockout_launches_nothing_and_a_later_try_may_succeed(self, bench: ProviderBench) -> None:
        _assert_refused(bench, ProviderAbility.RUN_OUT, InsufficientCapacity)

    @needs(ProviderAbility.EXCEED_QUOTA)
    def test_exceeded_quota_launches_nothing(self, bench: ProviderBench) -> None:
        _assert_refused(bench, ProviderAbility.EXCEED_QUOTA, QuotaExceeded)

    @needs(ProviderAbility.BE_AWAY)
    def test_unavailable_provider_launched_nothing(self, bench: ProviderBench) -> None:
        _assert_refused(bench, ProviderAbility.BE_AWAY, ProviderUnavailable)

    @needs(ProviderAbility.BE_AWAY)
    def test_failed_reads_raise_and_never_say_nothing_there(self, bench: ProviderBench) -> None:
        machine = bench.provider.launch(bench.request())
        bench.let_lists_settle()
        bench.break_next(ProviderAbility.BE_AWAY)
        with pytest.raises(ProviderUnavailable):
            bench.provider.instances(bench.owner)
        bench.break_next(ProviderAbility.BE_AWAY)
        with pytest.raises(ProviderUnavailable):
            bench.provider.offers()
        assert bench.sight(machine) is not None

    @needs(ProviderAbility.BE_AWAY)
    def test_failed_terminate_may_be_repeated(self, bench: ProviderBench) -> None:
        machine = bench.until_running(bench.provider.launch(bench.request()))
        bench.break_next(ProviderAbility.BE_AWAY)
        with pytest.raises(ProviderUnavailable):
            bench.provider.terminate([machine.provider_id])
        assert bench.in_state(machine, CloudState.RUNNING)
        bench.provider.terminate([machine.provider_id])
        bench.until_gone(machine)

    # --------------------------------------------------------------------------------------------- restart and settings
    @needs(ProviderAbility.RESTART)
    def test_machines_and_tokens_outlive_the_daemon(self, bench: ProviderBench) -> None:
        request = bench.request()
        machine = bench.until_running(bench.provider.launch(request))
        bench.provider = bench.restarted()
        assert bench.in_state(machine, CloudState.RUNNING)
        assert bench.provider.launch(request).provider_id == machine.provider_id
        assert len(bench.listed()) == 1
        bench.provider.terminate([machine.provider_id])
        bench.until_gone(machine)

    @needs(ProviderAbility.RESTART)
    def test_token_of_an_ended_machine_outlives_the_daemon(self, bench: ProviderBench) -> None:
        request = bench.request()
        machine = bench.provider.launch(request)
        bench.provider.terminate([machine.provider_id])
        bench.until_gone(machine)
        bench.provider = bench.restarted()
        assert bench.provider.launch(request).state is CloudState.TERMINATED

    @needs(ProviderAbility.RESERVE)
    def test_each_reserved_launch_targets_a_reservation_with_free_capacity(self, bench: ProviderBench) -> None:
        bench.reserve([1, 0, 2])
        [offer] = [each for each in bench.provider.offers() if each.market is Market.RESERVED]
        assert offer.available == 3
        machines = [bench.provider.launch(bench.request(offer=offer)) for _ in range(3)]
        assert bench.reservation_uses() == [1, 0, 2]
        with pytest.raises(InsufficientCapacity):
            bench.provider.launch(bench.request(offer=offer))
        bench.provider.terminate([machines[0].provider_id])
        bench.until_gone(machines[0])
        bench.let_lists_settle()
        [offer] = [each for each in bench.provider.offers() if each.market is Market.RESERVED]
        assert offer.available == 1  # an instance that ends gives its place back
        bench.provider.launch(bench.request(offer=offer))
        assert bench.reservation_uses() == [1, 0, 2]

    @needs(ProviderAbility.RESERVE)
    def test_concurrent_reserved_launches_never_target_more_than_is_free(self, bench: ProviderBench) -> None:
        bench.reserve([1, 2])
        [offer] = [each for each in bench.provider.offers() if each.market is Market.RESERVED]
        requests = [bench.request(offer=offer) for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            outcomes = list(pool.map(lambda each: _launched_or_full(bench.provider, each), requests))
        assert sorted(outcomes) == [False, True, True, True]
        assert bench.reservation_uses() == [1, 2]

    def test_unknown_setting_is_named_with_the_nearest_right_one(self, bench: ProviderBench) -> None:
        with pytest.raises(ConfigError) as caught:
            bench.build({"no_such_setting_at_all": 1})
        assert "no_such_setting_at_all" in str(caught.value)

    def test_misspelt_setting_is_reported_with_the_right_spelling(self, bench: ProviderBench) -> None:
        wrong, right = bench.misspelt_setting
        with pytest.raises(ConfigError) as caught:
            bench.build({wrong: 1})
        assert wrong in str(caught.value) and right in str(caught.value)


def _launch_patiently(bench: ProviderBench, request: LaunchRequest) -> CloudInstance:
    """Launch, and repeat unknown outcomes with the same token up to a hundred times."""
    for _ in range(100):
        machine = _launched_or_unknown(bench.provider, request)
        if machine is not None:
            return machine
    raise TimeoutError("the outcome of a launch was unknown a hundred times")


def _launched_or_full(provider: Provider, request: LaunchRequest) -> bool:
    try:
        provider.launch(request)
    except InsufficientCapacity:
        return False
    return True


def _launched_or_unknown(provider: Provider, request: LaunchRequest) -> CloudInstance | None:
    try:
        return provider.launch(request)
    except OutcomeUnknown:
        return None


def _assert_refused(bench: ProviderBench, fault: ProviderAbility, error: type[Raised]) -> Raised:
    """The fault refuses one launch, no machine ever appears, and the same token launches afterwards."""
    request = bench.request()
    bench.break_next(fault)
    with pytest.raises(error) as caught:
        bench.provider.launch(request)
    _assert_nothing_appears(bench)
    machine = bench.provider.launch(request)
    assert machine.token == request.token
    return caught.value


def _assert_nothing_appears(bench: ProviderBench) -> None:
    bench.let_lists_settle()
    bench.let_pass(1)
    assert bench.listed() == ()
