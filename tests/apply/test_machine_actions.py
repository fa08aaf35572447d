"""What single actions on instances record: caps at launch, commitments that end, quotas, and calls to repeat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from hcloud.apply.directives import record_directive, set_paused
from hcloud.apply.machines import LaunchBudgetView, MachineActions, drain, on_demand_price, renew, resume_provider
from hcloud.core.clock import ManualClock
from hcloud.core.errors import (
    AccountRejected,
    InsufficientCapacity,
    LaunchRejected,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    Refused,
    Throttled,
)
from hcloud.core.model import (
    Event,
    EventKind,
    Instance,
    InstanceState,
    Intent,
    IntentKind,
    JobState,
    Market,
    Offer,
    Reason,
)
from hcloud.planner.plan import Drain, Launch, Renew, Terminate
from hcloud.planner.snapshot import Directive, DirectiveScope, OfferBackoff, RefusedQuota
from hcloud.provider import CloudInstance, CloudState, LaunchRequest, Listing, WorkerBootstrap
from hcloud.spec.policy import Budgets, Caps, Policy, StockoutPolicy
from hcloud.store import Submission
from hcloud.store.memory import MemoryStore
from tests.planner.scenes import NOW, machine, offer, spec
from tests.policies import simple

WHY = Reason(code="test", text="as the test asks")
STOCKOUT = simple(stockout=StockoutPolicy(backoff_s=100.0, backoff_cap_s=1000.0))


@dataclass
class Cloud:
    """A cloud that launches, unless an error is due for the instance, and notes what it is asked to end."""

    clock: ManualClock
    name: str = "mock"
    refuses: dict[str, ProviderError] = field(default_factory=dict)
    """By instance id; ``terminate``: of calls to end instances."""
    asked: list[str] = field(default_factory=list)
    ended: list[Sequence[str]] = field(default_factory=list)

    def launch(self, request: LaunchRequest) -> CloudInstance:
        self.asked.append(request.instance_id)
        if request.instance_id in self.refuses:
            raise self.refuses[request.instance_id]
        return CloudInstance(
            provider_id=f"cloud-{request.instance_id}",
            instance_id=request.instance_id,
            token=request.token,
            owner=request.owner,
            state=CloudState.RUNNING,
            zone=request.offer.zone,
            launched_at=self.clock.now(),
            price_usd_per_h=request.offer.price_usd_per_h,
        )

    def terminate(self, provider_ids: Sequence[str]) -> None:
        self.ended.append(provider_ids)
        if "terminate" in self.refuses:
            raise self.refuses["terminate"]

    def offers(self) -> tuple[Offer, ...]:
        return ()

    def instances(self, owner: str) -> Listing:
        return Listing(instances=())

    def facts(self) -> dict[str, str]:
        return {}


class Bench:
    """The actions on a store in memory, and one cloud."""

    def __init__(self) -> None:
        self.store, self.clock = MemoryStore(), ManualClock(NOW)
        self.cloud = Cloud(self.clock)
        self.actions = MachineActions(
            store=self.store,
            providers={"mock": self.cloud},
            clock=self.clock,
            owner="tests",
            bootstrap=lambda token: WorkerBootstrap(gateway_addresses=(), authority_pem=""),
        )

    def has(self, of: Offer | None = None, **changes: Any) -> Instance:
        """Add an instance."""
        with self.store.transaction(self.clock.now()) as txn:
            return txn.new_instance(lambda name: machine(int(name.removeprefix("inst-")), of, **changes))

    def requests(self, of: Offer | None = None, *jobs: str) -> Intent:
        """Record one launch for these jobs; return its intent."""
        launch = Launch(offer=of or offer(), expires_at=self.clock.now() + 3600.0, for_jobs=jobs, reason=WHY)
        with self.store.transaction(self.clock.now()) as txn:
            made = self.actions.record_launch(txn, launch, simple(), LaunchBudgetView(), 0.1)
        return next(each for each in self.store.live().intents if each.token == made.token)

    def queues(self, count: int) -> list[str]:
        """Add queued jobs; return their ids."""
        made = self.store.submit([Submission(spec=spec(), actor="ann")] * count, self.clock.now())
        with self.store.transaction(self.clock.now()) as txn:
            for each in made:
                txn.put_job(replace(txn.job(each.id), state=JobState.QUEUED, wait_code="cap_instances"))
        return [each.id for each in made]

    def launches(self, *intents: Intent, policy: Policy = STOCKOUT) -> None:
        """Carry out launches."""
        self.actions.drive_launches(intents, policy, None)

    def now(self, given: Instance | Intent) -> Instance:
        return self.store.instance(given.subject if isinstance(given, Intent) else given.id)

    def intents(self) -> dict[str, tuple[int, float]]:
        """Return by instance how often the open intents were tried, and in how many seconds they are repeated."""
        return {each.subject: (each.tries, each.retry_at - self.clock.now()) for each in self.store.live().intents}

    def events(self, kind: EventKind) -> list[Event]:
        return list(self.store.events(kinds=[kind], limit=1000))

    def knows_quota(self, **changes: Any) -> RefusedQuota:
        """Remember a limit that 8 vCPUs exceed."""
        plain = RefusedQuota(
            provider="mock", region="r", quota="on_demand", vcpus=8.0, instance_vcpus=2.0, until_at=NOW + 9000.0
        )
        known = replace(plain, **changes)
        with self.store.transaction(self.clock.now()) as txn:
            txn.put_refused_quota(known)
        return known

    def knows_backoff(self, **changes: Any) -> OfferBackoff:
        """Remember a back-off of the plain offer that is over."""
        plain = OfferBackoff(
            provider="mock", zone="a", instance_type="small", market="on_demand", until_at=NOW - 1.0, failures=2
        )
        known = replace(plain, **changes)
        with self.store.transaction(self.clock.now()) as txn:
            txn.put_backoff(known)
        return known

    def backoff(self, of: Offer) -> OfferBackoff:
        """Return the back-off of an offer."""
        with self.store.transaction(self.clock.now()) as txn:
            found = txn.backoff(of.provider, of.zone, of.instance_type.name, of.market.value)
        assert found is not None
        return found

    def quota(self) -> RefusedQuota:
        [found] = self.store.live().refused_quotas
        return found


@pytest.fixture
def bench() -> Bench:
    return Bench()


# --------------------------------------------------------------------------------------------------- caps of one launch
ENDING = offer(market=Market.RESERVED, ends_at=NOW + 1000.0, price_after_usd_per_h=0.3)
"""$0.10 per hour, and $0.30 after its commitment ends, which is within the lease."""


@pytest.mark.parametrize(
    ("limits", "of", "allowed"),
    [
        ({"caps": Caps(max_instances=5)}, offer(), 3),
        ({"caps": Caps(max_vcpus=10.0)}, offer(), 3),
        ({"caps": Caps(max_vcpus=9.9)}, offer(), 2),
        ({"caps": Caps(max_vcpus=4.0)}, offer(), 0),
        ({"caps": Caps(max_vcpus=None)}, offer(), 6),
        ({"budgets": Budgets(per_hour_usd=0.5)}, offer(), 3),
        ({"budgets": Budgets(per_hour_usd=0.49)}, offer(), 2),
        ({"budgets": Budgets(per_hour_usd=0.85)}, ENDING, 2),
        ({}, offer(), 6),
    ],
)
def test_launches_are_recorded_up_to_caps_and_hourly_budget_with_what_is_up_and_planned(
    bench: Bench, limits: dict[str, Any], of: Offer, allowed: int
) -> None:
    live, policy = LaunchBudgetView.of([machine(8), machine(9)]), simple(**limits)
    launch = Launch(offer=of, expires_at=NOW + 3600.0, for_jobs=(), reason=WHY)
    made = 0
    with bench.store.transaction(NOW) as txn:
        for _ in range(6):
            try:
                bench.actions.record_launch(txn, launch, policy, live, 0.1)
            except Refused:
                break
            made += 1
    assert made == allowed
    assert (live.count, live.vcpus) == (2 + made, 4.0 + 2.0 * made)


def test_a_lease_beyond_its_commitment_counts_at_the_higher_price() -> None:
    assert LaunchBudgetView.of([machine(1, ENDING), machine(2)]).usd_per_h == pytest.approx(0.4)
    assert LaunchBudgetView.of([machine(1, ENDING, expires_at=NOW + 1000.0)]).usd_per_h == pytest.approx(0.1)


# -------------------------------------------------------------------------------------------- commitments and their end
COMMITTED = offer(market=Market.RESERVED, usd_per_h=0.06, ends_at=NOW + 100.0, price_after_usd_per_h=0.1)


@pytest.mark.parametrize(
    ("read", "ends_at", "after_usd_per_h"),
    [
        ({"ends_at": NOW + 900.0}, NOW + 900.0, 0.1),
        ({"ends_at": NOW + 50.0}, NOW + 100.0, 0.1),
        ({"ends_at": None}, NOW + 100.0, 0.1),
        ({"price_after_usd_per_h": 0.2}, NOW + 100.0, 0.2),
        ({"price_after_usd_per_h": None}, NOW + 100.0, 0.1),
        ({"zone": "b", "ends_at": NOW + 900.0}, NOW + 100.0, 0.1),
        ({"market": Market.ON_DEMAND, "ends_at": NOW + 900.0}, NOW + 100.0, 0.1),
    ],
)
def test_an_extended_commitment_counts_with_its_later_end_and_the_price_after_it_as_last_read(
    bench: Bench, read: dict[str, Any], ends_at: float, after_usd_per_h: float
) -> None:
    kept, other = bench.has(COMMITTED), bench.has()
    assert not bench.actions.follow_commitments([replace(COMMITTED, **read)], None)
    after = bench.now(kept).offer
    assert (after.market, after.price_usd_per_h) == (Market.RESERVED, 0.06)
    assert (after.ends_at, after.price_after_usd_per_h) == (ends_at, after_usd_per_h)
    assert bench.now(other) == other
    assert bench.events(EventKind.INSTANCE_PRICE) == []


def test_a_commitment_without_a_known_end_gets_the_one_that_is_read(bench: Bench) -> None:
    kept = bench.has(replace(COMMITTED, ends_at=None, price_after_usd_per_h=None))
    assert not bench.actions.follow_commitments([COMMITTED], None)
    assert bench.now(kept).offer == COMMITTED
    written = bench.now(kept).revision
    assert not bench.actions.follow_commitments([COMMITTED], None)
    assert bench.now(kept).revision == written, "nothing has changed since"


@pytest.mark.parametrize(("after_usd_per_h", "paid_usd_per_h"), [(0.1, 0.1), (None, 0.12)])
def test_at_its_end_the_instance_is_on_demand_at_the_stated_price_or_else_the_listed_one(
    bench: Bench, after_usd_per_h: float | None, paid_usd_per_h: float
) -> None:
    ending, staying = bench.has(replace(COMMITTED, price_after_usd_per_h=after_usd_per_h)), bench.has(COMMITTED)
    far = replace(COMMITTED, zone="b", ends_at=NOW + 5000.0)
    extended = bench.has(far)
    with bench.store.transaction(NOW) as txn:
        txn.put_instance(replace(staying, offer=replace(COMMITTED, ends_at=NOW + 100.5)))
    bench.clock.advance(100.0)
    listed = [offer(usd_per_h=0.12), offer(usd_per_h=0.11, region="s"), replace(far, ends_at=NOW + 6000.0)]
    assert bench.actions.follow_commitments(listed, None)
    after = bench.now(ending).offer
    assert (after.market, after.price_usd_per_h) == (Market.ON_DEMAND, paid_usd_per_h)
    assert (after.ends_at, after.price_after_usd_per_h) == (None, None)
    assert bench.now(staying).offer.market is Market.RESERVED
    assert (bench.now(extended).offer.market, bench.now(extended).offer.ends_at) == (Market.RESERVED, NOW + 6000.0)
    [told] = bench.events(EventKind.INSTANCE_PRICE)
    assert (told.instance_id, told.at, told.fields["price_usd_per_h"]) == (ending.id, NOW + 100.0, paid_usd_per_h)
    assert not bench.actions.follow_commitments(listed, None), "only once"


def test_a_commitment_that_has_ended_is_not_extended_any_more(bench: Bench) -> None:
    over = bench.has(COMMITTED)
    bench.clock.advance(100.0)
    assert bench.actions.follow_commitments([replace(COMMITTED, ends_at=NOW + 900.0)], None)
    assert bench.now(over).offer.market is Market.ON_DEMAND


@pytest.mark.parametrize(
    ("launched_at", "since"), [(NOW + 250.0, NOW + 250.0), (None, NOW + 200.0), (NOW, NOW + 100.0)]
)
def test_the_price_on_demand_holds_from_the_end_or_from_a_later_launch(
    bench: Bench, launched_at: float | None, since: float
) -> None:
    bench.has(COMMITTED, requested_at=NOW + 200.0 if launched_at != NOW else NOW, launched_at=launched_at)
    bench.clock.advance(300.0)
    assert bench.actions.follow_commitments([], None)
    assert [each.at for each in bench.events(EventKind.INSTANCE_PRICE)] == [since]


def test_on_demand_price_is_the_least_of_the_type_in_the_region_and_else_its_own() -> None:
    spot = offer(market=Market.SPOT, usd_per_h=0.03)
    others = [
        offer(usd_per_h=0.01, region="s"),
        offer("large", usd_per_h=0.01),
        offer(usd_per_h=0.01, provider="other"),
    ]
    assert on_demand_price(spot, [spot, *others]) == 0.03
    assert on_demand_price(spot, [spot, *others, offer(usd_per_h=0.1), offer(usd_per_h=0.09, zone="b")]) == 0.09


# ------------------------------------------------------------------------------------------------------------ launching
def test_a_launch_is_sent_once_though_others_are_held_back_or_not_known_yet(bench: Bench) -> None:
    gone, held, due, more = (bench.requests() for _ in range(4))
    with bench.store.transaction(NOW) as txn:
        found = txn.instance(gone.subject)
        txn.put_instance(replace(found, state=InstanceState.TERMINATED, terminated_at=NOW))
        order = Directive(scope=DirectiveScope.INSTANCE, name=held.subject, by="ada", ordered_at=NOW)
        record_directive(txn, order)
    bench.launches(gone, held, due)
    assert bench.cloud.asked == [due.subject]
    assert bench.intents() == {held.subject: (0, 2.0), more.subject: (0, -NOW)}
    assert bench.now(due).state is InstanceState.BOOTING
    with bench.store.transaction(NOW) as txn:
        set_paused(txn, "ada", "prices are to be looked at")
    bench.launches(more)
    assert bench.cloud.asked == [due.subject]
    assert bench.intents()[more.subject] == (0, 2.0)


def test_a_launch_that_was_not_carried_out_is_repeated_later_each_time(bench: Bench) -> None:
    intent = bench.requests()
    bench.cloud.refuses[intent.subject] = Throttled("slower", retry_after_s=3.0)
    bench.launches(intent)
    assert bench.intents() == {intent.subject: (1, 3.0)}
    bench.launches(*bench.store.live().intents)
    assert bench.intents() == {intent.subject: (2, 6.0)}
    assert bench.now(intent).state is InstanceState.REQUESTED
    assert not bench.actions.offers_failed


@pytest.mark.parametrize(
    ("error", "code", "waits_s", "all_wait_s"),
    [
        (InsufficientCapacity("none left"), "stockout", 400.0, None),
        (LaunchRejected("no such image"), "launchrejected", 3600.0, None),
        (AccountRejected("no such role"), "accountrejected", 7200.0, 3600.0),
    ],
)
def test_a_refused_launch_backs_off_its_offer_and_for_an_account_its_provider(
    bench: Bench, error: ProviderError, code: str, waits_s: float, all_wait_s: float | None
) -> None:
    bench.knows_backoff()
    intent = bench.requests()
    bench.cloud.refuses[intent.subject] = error
    bench.launches(intent)
    found = bench.backoff(offer())
    assert (found.failures, found.until_at, found.error) == (3, NOW + waits_s, str(error))
    whole = [each.until_at - NOW for each in bench.store.live().backoffs if each.stops_provider]
    assert whole == ([] if all_wait_s is None else [all_wait_s])
    assert bench.now(intent).state is InstanceState.TERMINATED
    assert [each.fields["code"] for each in bench.events(EventKind.INSTANCE_TERMINATED)] == [code]
    assert bench.intents() == {}
    assert bench.actions.offers_failed


def test_a_quota_is_remembered_with_all_that_is_up_or_on_its_way(bench: Bench) -> None:
    bench.has()
    bench.has(offer(market=Market.SPOT))
    intent, later = bench.requests(), bench.requests()
    bench.cloud.refuses[intent.subject] = QuotaExceeded("too many vCPUs")
    bench.launches(intent)
    found = bench.quota()
    assert (found.vcpus, found.instance_vcpus, found.failures, found.retry_at) == (6.0, 2.0, 1, NOW + 100.0)
    bench.cloud.refuses[later.subject] = QuotaExceeded("too many vCPUs")
    bench.launches(later)
    assert (bench.quota().vcpus, bench.quota().failures, bench.quota().retry_at) == (4.0, 2, NOW + 200.0)
    assert bench.store.live().backoffs == ()


@pytest.mark.parametrize(
    ("up", "changes", "failures", "until_at"),
    [
        (0, {"failures": 0}, 0, NOW + 9000.0),  # below what was refused: it says nothing of the limit
        (2, {"failures": 0}, 0, NOW + 9000.0),
        (3, {"failures": 0}, 0, NOW),  # 8 vCPUs are up now
        (0, {"failures": 2, "retry_at": NOW - 1.0}, 0, NOW + 9000.0),  # a back-off that is over
        (0, {"failures": 2, "retry_at": NOW}, 0, NOW + 9000.0),
        (0, {"failures": 2, "retry_at": NOW + 50.0}, 2, NOW + 9000.0),  # another was refused meanwhile
        (3, {"failures": 0, "until_at": NOW - 1.0}, 0, NOW - 1.0),  # forgotten before
    ],
)
def test_a_launch_shows_whether_a_quota_was_raised_and_ends_a_back_off_that_is_over(
    bench: Bench, up: int, changes: dict[str, Any], failures: int, until_at: float
) -> None:
    intent = bench.requests()
    for _ in range(up):
        bench.has()
    bench.has(offer(market=Market.SPOT))  # of another limit
    bench.has(state=InstanceState.TERMINATING)
    bench.knows_quota(**{"periods": 3, **changes})
    bench.launches(intent)
    found = bench.quota()
    assert (found.failures, found.until_at) == (failures, until_at)
    assert found.periods == (0 if until_at == NOW else 3)


@pytest.mark.parametrize(
    ("changes", "until_at"),
    [
        ({}, NOW),
        ({"until_at": NOW + 70.0}, NOW),
        ({"until_at": NOW + 70.0, "losses": 1}, NOW + 70.0),
        ({"until_at": NOW + 70.0, "unregistered": 1}, NOW + 70.0),
    ],
)
def test_a_launch_resets_the_failures_of_its_offer_but_not_what_no_launch_shows(
    bench: Bench, changes: dict[str, Any], until_at: float
) -> None:
    intent = bench.requests()
    bench.knows_backoff(**changes)
    bench.launches(intent)
    assert (bench.backoff(offer()).failures, bench.backoff(offer()).until_at) == (0, until_at)


def test_failures_are_reset_once_the_last_instance_of_a_gang_is_launched(bench: Bench) -> None:
    gang, other = bench.queues(2)
    first, last, _ = bench.requests(None, gang), bench.requests(None, gang), bench.requests(None, other)
    bench.knows_backoff()
    bench.knows_quota(failures=2, retry_at=NOW - 1.0)
    bench.launches(first)
    assert (bench.backoff(offer()).failures, bench.quota().failures) == (2, 2)
    assert bench.backoff(offer()).until_at == NOW
    bench.launches(last)
    assert (bench.backoff(offer()).failures, bench.quota().failures) == (0, 0)


def test_waiting_jobs_await_their_instance_once_for_each_rank_and_others_do_not(bench: Bench) -> None:
    pair, cancelled = bench.queues(2)
    with bench.store.transaction(NOW) as txn:
        txn.put_job(replace(txn.job(cancelled), cancelled_by="ann"))
    intent = bench.requests(None, pair, pair, cancelled)
    after = bench.store.job(pair)
    assert (after.state, after.awaiting) == (JobState.AWAITING_INSTANCE, (intent.subject, intent.subject))
    assert after.wait_code == ""
    assert bench.store.job(cancelled).awaiting == ()


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"until_at": NOW}, False),
        ({"until_at": NOW + 1.0}, True),
        ({"until_at": NOW + 1.0, "zone": "b"}, False),
        ({"until_at": NOW + 1.0, "zone": "", "instance_type": "", "market": ""}, True),
    ],
)
def test_nothing_is_launched_that_is_backed_off(bench: Bench, changes: dict[str, Any], refused: bool) -> None:
    bench.knows_backoff(**changes)
    if refused:
        with pytest.raises(Refused):
            bench.requests()
    else:
        bench.requests()


def test_nothing_is_launched_that_was_drained_or_while_decisions_are_paused(bench: Bench) -> None:
    with bench.store.transaction(NOW) as txn:
        order = Directive(scope=DirectiveScope.TYPE, name="small", by="ada", ordered_at=NOW)
        record_directive(txn, order)
    with pytest.raises(Refused):
        bench.requests()
    bench.requests(offer("large"))
    with bench.store.transaction(NOW) as txn:
        set_paused(txn, "ada", "prices are to be looked at")
    with pytest.raises(Refused):
        bench.requests(offer("large"))


def test_nothing_is_launched_that_counts_against_a_quota_that_was_just_refused(bench: Bench) -> None:
    bench.knows_quota(retry_at=NOW + 1.0)
    bench.requests(offer(market=Market.SPOT))
    with pytest.raises(Refused):
        bench.requests()


# --------------------------------------------------------------------------------------------------------------- ending
def ends(bench: Bench, *instances: Instance) -> list[Intent]:
    """Record that these instances are ended; return the intents."""
    intents = []
    with bench.store.transaction(bench.clock.now()) as txn:
        for each in instances:
            action = Terminate(instance_id=each.id, reason=WHY)
            intents.append(bench.actions.record_terminate(txn, action, STOCKOUT))
    return [each for each in intents if each is not None]


def test_an_end_is_recorded_once(bench: Bench) -> None:
    one = bench.has()
    [intent] = ends(bench, one, one)
    assert (intent.kind, intent.subject, bench.now(one).state) == (
        IntentKind.TERMINATE, one.id, InstanceState.TERMINATING
    )  # fmt: skip
    assert ends(bench, bench.has(state=InstanceState.TERMINATED, terminated_at=NOW)) == []


@pytest.mark.parametrize(("preempt_at", "losses"), [(None, []), (NOW + 60.0, [1])])
def test_an_instance_that_is_ended_as_it_is_preempted_counts_as_lost(
    bench: Bench, preempt_at: float | None, losses: list[int]
) -> None:
    ends(bench, bench.has(offer(market=Market.SPOT), launched_at=NOW - 30.0, preempt_at=preempt_at))
    assert [each.losses for each in bench.store.live().backoffs] == losses


def test_an_instance_that_never_registered_counts_against_its_offer(bench: Bench) -> None:
    silent = bench.has()
    with bench.store.transaction(NOW) as txn:
        reason = Reason(code="never_registered", text="no worker")
        bench.actions.record_terminate(txn, Terminate(instance_id=silent.id, reason=reason), STOCKOUT)
    assert (bench.backoff(offer()).unregistered, bench.backoff(offer()).until_at) == (1, NOW + 100.0)


@pytest.mark.parametrize(
    ("until_at", "retry_at", "ended"), [(NOW, NOW, False), (NOW + 1, NOW, True), (NOW, NOW + 1, True)]
)
def test_a_provider_is_resumed_only_if_anything_kept_launches_from_it(
    bench: Bench, until_at: float, retry_at: float, ended: bool
) -> None:
    bench.knows_quota(until_at=until_at, retry_at=retry_at)
    bench.knows_backoff(until_at=NOW)
    with bench.store.transaction(NOW) as txn:
        assert not resume_provider(txn, "other", bench.store.live(), "ada")
        assert resume_provider(txn, "mock", bench.store.live(), "ada") is ended
    assert bench.backoff(offer()).failures == 2, "it was over"


def test_instances_of_a_provider_are_ended_in_one_call_that_is_repeated_until_they_are_gone(bench: Bench) -> None:
    intents = ends(bench, bench.has(), bench.has(), bench.has(provider_id=None))
    bench.actions.drive_terminates(intents, None)
    assert bench.cloud.ended == [["cloud-1", "cloud-2"]]
    assert set(bench.intents().values()) == {(1, 30.0)}
    bench.cloud.refuses["terminate"] = ProviderUnavailable("away")
    bench.actions.drive_terminates(bench.store.live().intents, None)
    assert set(bench.intents().values()) == {(2, 2.0)}
    assert [each.fields["call"] for each in bench.events(EventKind.PROVIDER_TROUBLE)] == ["terminate"]


def test_ends_at_a_provider_that_is_not_configured_are_tried_at_the_usual_pace(bench: Bench) -> None:
    [intent] = ends(bench, bench.has(offer(provider="other")))
    bench.actions.drive_terminates([intent], None)
    assert bench.intents() == {"inst-1": (1, 30.0)}
    assert len(bench.events(EventKind.PROVIDER_TROUBLE)) == 1


def test_draining_is_recorded_once_and_undone(bench: Bench) -> None:
    one = bench.has()
    for undo, state, moves in (
        (False, InstanceState.DRAINING, 1),
        (False, InstanceState.DRAINING, 1),
        (True, InstanceState.READY, 2),
        (True, InstanceState.READY, 2),
    ):
        with bench.store.transaction(NOW) as txn:
            drain(txn, Drain(instance_id=one.id, reason=WHY, undo=undo))
        assert bench.now(one).state is state
        assert len(bench.events(EventKind.INSTANCE_STATE)) == moves


def test_a_lease_is_renewed_unless_its_instance_is_ending(bench: Bench) -> None:
    one = bench.has()
    with bench.store.transaction(NOW) as txn:
        renew(txn, Renew(instance_id=one.id, expires_at=NOW + 7000.0, reason=WHY))
    assert bench.now(one).expires_at == NOW + 7000.0
    [told] = bench.events(EventKind.INSTANCE_RENEWED)
    assert told.fields["expires_at"] == NOW + 7000.0
    ends(bench, one)
    with bench.store.transaction(NOW) as txn, pytest.raises(Refused):
        renew(txn, Renew(instance_id=one.id, expires_at=NOW + 9000.0, reason=WHY))
    assert bench.now(one).expires_at == NOW + 7000.0
