"""What becomes of launches when a cloud behaves as clouds do."""

from dataclasses import replace
from itertools import pairwise

import pytest

from hcloud.apply.directives import record_directive, set_paused
from hcloud.apply.machines import (
    record_preemption,
    record_registration,
    record_unregistered,
    resume_provider,
    terminate_retry_delay_s,
)
from hcloud.core.errors import ProviderError, ProviderUnavailable, Throttled
from hcloud.core.model import EventKind, InstanceState, JobState, Market, Nodes, Offer, Resources
from hcloud.planner.snapshot import Directive, DirectiveScope, OfferBackoff
from hcloud.provider import WorkerBootstrap
from hcloud.spec.policy import SpotPolicy, StockoutPolicy
from providers.mock import Fault, FaultKind
from tests.apply.conftest import MakeDeployment
from tests.apply.deployment import Deployment
from tests.planner.scenes import machine, offer
from tests.policies import simple


def _run_to_success(site: Deployment) -> None:
    site.submit()
    site.until_state(JobState.SUCCEEDED, JobState.FAILED)
    assert site.state() is JobState.SUCCEEDED
    assert site.starts("job-1") == ["job-1.1.0"]


@pytest.mark.parametrize("kind", [FaultKind.LOSE_REPLY, FaultKind.LOSE_REQUEST, FaultKind.ANSWER_LATE])
def test_launch_of_unknown_outcome_leads_to_one_machine(site: Deployment, kind: FaultKind) -> None:
    site.scene.cloud.inject(Fault(kind=kind, times=2))
    _run_to_success(site)
    assert len(site.scene.cloud.machines(site.now)) == 1


@pytest.mark.parametrize("kind", [FaultKind.THROTTLE, FaultKind.BE_AWAY])
def test_launch_that_was_not_carried_out_is_repeated_with_its_token(site: Deployment, kind: FaultKind) -> None:
    site.scene.cloud.inject(Fault(kind=kind, call="launch", times=3))
    _run_to_success(site)
    assert len(site.scene.store.instances(live_only=False)) == 1
    assert len(site.events(EventKind.PROVIDER_TROUBLE)) == 3


def test_launch_waits_and_costs_nothing_until_it_is_known_what_its_machine_needs(site: Deployment) -> None:
    machines = site.scene.controller.applier.machines
    known = machines.bootstrap

    def unknown(token: str) -> WorkerBootstrap:
        raise ProviderUnavailable("the gateway has not named the agent's archives yet")

    machines.bootstrap = unknown
    site.submit()
    site.cycle(10)
    assert site.machines_up() == []
    assert "named the agent's archives" in str(site.events(EventKind.PROVIDER_TROUBLE)[0].fields)
    machines.bootstrap = known
    site.until_state(JobState.SUCCEEDED)
    assert len(site.scene.store.instances(live_only=False)) == 1


def test_launch_that_has_to_be_repeated_waits_while_paused(site: Deployment) -> None:
    site.scene.cloud.inject(Fault(kind=FaultKind.THROTTLE, call="launch", times=2))
    site.submit()
    site.cycle()
    with site.scene.store.transaction(site.now) as txn:
        set_paused(txn, "ada", "prices are to be looked at")
    site.cycle(30)
    assert site.machines_up() == []
    with site.scene.store.transaction(site.now) as txn:
        set_paused(txn, "ada", "")
    site.until_state(JobState.SUCCEEDED)


def test_launch_that_has_to_be_repeated_is_not_when_its_machine_is_to_end(site: Deployment) -> None:
    site.scene.cloud.inject(Fault(kind=FaultKind.THROTTLE, call="launch"))
    site.submit()
    site.cycle()
    [machine] = site.scene.store.live().instances
    order = Directive(scope=DirectiveScope.INSTANCE, name=machine.id, by="ada", ordered_at=site.now, destroy=True)
    with site.scene.store.transaction(site.now) as txn:
        record_directive(txn, order)
    site.until_state(JobState.SUCCEEDED)
    assert machine.id not in {event.instance_id for event in site.events(EventKind.INSTANCE_LAUNCHED)}


def test_end_that_fails_is_asked_for_less_and_less_often(site: Deployment) -> None:
    _run_to_success(site)
    site.scene.cloud.inject(Fault(kind=FaultKind.BE_AWAY, call="terminate", times=8))
    site.until(lambda: site.machines_up() == [], cycles=600)
    failed = [event.at for event in site.events(EventKind.PROVIDER_TROUBLE)]
    assert [after - before for before, after in pairwise(failed)] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0]


@pytest.mark.parametrize(
    ("error", "delays_s"),
    [
        (ProviderUnavailable("away"), [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]),
        (Throttled("slower", retry_after_s=3.0), [3.0, 6.0, 12.0, 24.0, 48.0, 60.0]),
        (Throttled("slower", retry_after_s=0.1), [0.1 * 2**tries for tries in range(7)] + [6.4, 6.4]),
        (None, [30.0, 30.0, 30.0]),  # the call succeeded and takes its time
    ],
)
def test_a_call_is_repeated_twice_as_late_each_time_up_to_a_minute(
    error: ProviderError | None, delays_s: list[float]
) -> None:
    assert [terminate_retry_delay_s(error, tries) for tries in range(len(delays_s))] == pytest.approx(delays_s)


def test_the_clouds_own_reason_is_kept_with_the_back_off(make: MakeDeployment) -> None:
    site = make(cloud={"zones": ["east-1a", "east-1b"]})
    site.scene.cloud.inject(Fault(kind=FaultKind.RUN_OUT))
    site.submit()
    site.until(lambda: site.scene.store.live().backoffs)
    [ended] = site.events(EventKind.INSTANCE_TERMINATED)
    [backoff] = site.scene.store.live().backoffs
    assert backoff.error and backoff.error in str(ended.fields["text"])
    site.scene.cloud.inject(Fault(kind=FaultKind.REJECT_ALL))
    site.submit()
    site.until(lambda: any(each.stops_provider for each in site.scene.store.live().backoffs))
    assert all(each.error for each in site.scene.store.live().backoffs)


def test_stockout_goes_on_with_the_next_zone_and_is_remembered(make: MakeDeployment) -> None:
    site = make(cloud={"zones": ["east-1a", "east-1b"]})
    site.scene.cloud.inject(Fault(kind=FaultKind.RUN_OUT, zone="east-1a", times=None))
    _run_to_success(site)
    [backoff] = site.scene.store.live().backoffs
    assert (backoff.zone, backoff.instance_type, backoff.failures) == ("east-1a", "m.one", 1)
    assert {m.zone for m in site.scene.cloud.machines(site.now)} == {"east-1b"}


@pytest.mark.parametrize("kind", [FaultKind.RUN_OUT, FaultKind.EXCEED_QUOTA])
def test_stockout_and_quota_make_jobs_wait_longer_each_time_until_a_launch_succeeds_and_never_fail(
    make: MakeDeployment, kind: FaultKind
) -> None:
    site = make(policy={"stockout": {"backoff_s": 10, "backoff_cap_s": 40}})
    site.scene.cloud.inject(Fault(kind=kind, times=4))
    _run_to_success(site)
    site.until(lambda: site.machines_up() == [])
    site.scene.cloud.inject(Fault(kind=kind))
    site.submit()
    site.until_state(JobState.SUCCEEDED, number=2)
    told = [event.fields["until_at"] - event.at for event in site.events(EventKind.OFFER_BACKOFF)]  # type: ignore[operator]
    assert told == [10.0, 20.0, 40.0, 40.0, 10.0]


def test_stockout_memory_outlives_the_daemon(make: MakeDeployment) -> None:
    """Nothing about offers is kept in the process: what was remembered is in the store, and grows from there."""
    site = make(policy={"stockout": {"backoff_s": 10, "backoff_cap_s": 40}})
    site.scene.cloud.inject(Fault(kind=FaultKind.RUN_OUT, times=2))
    site.submit()
    site.until(lambda: len(site.events(EventKind.OFFER_BACKOFF)) == 1)
    site.restart()
    site.until(lambda: len(site.events(EventKind.OFFER_BACKOFF)) == 2)
    lengths = [event.fields["until_at"] - event.at for event in site.events(EventKind.OFFER_BACKOFF)]  # type: ignore[operator]
    assert lengths == [10.0, 20.0]


def test_a_quota_without_a_name_closes_the_market_of_the_region_for_every_type(make: MakeDeployment) -> None:
    site = make(cloud={"zones": ["east-1a", "east-1b"]})
    site.scene.cloud.inject(Fault(kind=FaultKind.EXCEED_QUOTA))
    site.submit()
    site.cycle(10)
    assert len(site.scene.store.instances(live_only=False)) == 1
    [limit] = site.scene.store.live().refused_quotas
    assert (limit.key, limit.vcpus, limit.instance_vcpus) == (("mock", "east-1", "on_demand"), 2.0, 2.0)
    [told] = site.events(EventKind.OFFER_BACKOFF)
    assert (told.fields["region"], told.fields["quota"]) == ("east-1", "on_demand")


FAMILIES = {
    "types": {
        "c.two": {"vcpus": 2, "memory_mib": 8192, "usd_per_h": 0.2},
        "g.two": {"vcpus": 2, "memory_mib": 8192, "usd_per_h": 0.5},
        "gr.two": {"vcpus": 2, "memory_mib": 8192, "usd_per_h": 0.6},
    },
    "markets": ["on_demand"],
    "quotas": [{"vcpus": 8, "types": ["c*"]}, {"vcpus": 8, "types": ["g*"]}],
}
"""Two families, the second with types of different letters, each with a quota of its own that no offer states."""


def test_a_family_at_its_quota_neither_closes_another_nor_counts_against_it(make: MakeDeployment) -> None:
    site = make(cloud=FAMILIES)
    whole = Resources(vcpus=2.0, memory_mib=512, disk_gib=1.0)
    site.submit("sleep", "30000", count=3, instance_types=("g.two",), resources=whole)
    site.until(lambda: len(site.machines_up()) == 3)
    site.submit(**gang(6), instance_types=("c.two",))
    site.cycle(120, step_s=60.0)
    assert site.job(4).wait_text == "waiting: needs 12 vCPUs, the quota is 8 (on_demand in east-1)"
    assert len(site.events(EventKind.INSTANCE_LAUNCHED)) == 3 + 4  # those of the gang once
    site.submit("true", instance_types=("gr.two",), resources=whole)
    site.until_state(JobState.SUCCEEDED, number=5)  # the fourth machine of its quota


def test_a_machine_costs_what_the_cloud_says_at_its_launch(make: MakeDeployment) -> None:
    site = make(cloud={"launched_price_factor": 0.5})  # an agreement that the offers do not show
    site.submit()
    site.until(lambda: site.events(EventKind.INSTANCE_LAUNCHED))
    [launched], [machine] = site.events(EventKind.INSTANCE_LAUNCHED), site.scene.store.live().instances
    assert launched.fields["price_usd_per_h"] == machine.offer.price_usd_per_h == 0.15


def test_a_launch_that_still_fitted_does_not_end_the_back_off_of_a_quota(make: MakeDeployment) -> None:
    site = make(policy={"stockout": {"backoff_s": 300, "backoff_cap_s": 3000}})
    site.scene.cloud.inject(Fault(kind=FaultKind.EXCEED_QUOTA))  # of two launched together, the first is refused
    site.submit(count=2, resources=Resources(vcpus=2.0, memory_mib=512, disk_gib=1.0))
    site.until(lambda: site.machines_up())
    [limit] = site.scene.store.live().refused_quotas
    assert limit.failures == 1
    assert limit.retry_at > site.now + 200


def gang(nodes: int) -> dict[str, object]:
    """Return what a job of so many nodes asks for, each a whole machine."""
    return {"nodes": Nodes(count=nodes, minimum=nodes), "resources": Resources(vcpus=2.0, memory_mib=512, disk_gib=1.0)}


def test_a_gang_over_a_quota_that_is_not_stated_buys_its_machines_once(make: MakeDeployment) -> None:
    site = make(cloud={"quotas": [{"vcpus": 8}]})
    site.submit(**gang(6))
    site.cycle(120, step_s=60.0)  # two hours, in which all four would have been bought some ten times
    assert len(site.events(EventKind.INSTANCE_LAUNCHED)) == 4
    assert site.machines_up() == []
    assert site.job().wait_text == "waiting: needs 12 vCPUs, the quota is 8 (on_demand in east-1)"
    site.submit(**gang(4))
    site.until_state(JobState.SUCCEEDED, number=2)  # the quota allows this one, and none but its machines are bought
    assert len(site.events(EventKind.INSTANCE_LAUNCHED)) == 8


def test_a_launch_above_a_remembered_quota_shows_that_it_was_raised(make: MakeDeployment) -> None:
    site = make(cloud={"quotas": [{"vcpus": 4}]}, policy={"stockout": {"backoff_s": 10, "backoff_cap_s": 40}})
    site.submit(**gang(3))
    site.until(lambda: site.job().wait_code == "quota_exceeded" and not site.machines_up())
    cloud = site.scene.cloud
    cloud.settings = cloud.settings.model_copy(update={"quotas": ()})
    site.submit("sleep", "300", count=3, resources=Resources(vcpus=2.0, memory_mib=512, disk_gib=1.0))
    site.until_state(JobState.SUCCEEDED)  # one by one, the other jobs try a third machine


def test_a_gang_that_was_refused_with_nothing_in_use_is_tried_again(make: MakeDeployment) -> None:
    site = make(policy={"stockout": {"backoff_s": 10, "backoff_cap_s": 40}})
    site.scene.cloud.inject(Fault(kind=FaultKind.EXCEED_QUOTA, times=2))  # an account that is being verified
    site.submit(**gang(2))
    site.until_state(JobState.SUCCEEDED)


def test_stockout_of_part_of_a_gang_is_waited_for_longer_each_time(make: MakeDeployment) -> None:
    site = make(cloud={"quotas": []}, policy={"stockout": {"backoff_s": 100, "backoff_cap_s": 10_000}})
    site.submit(**gang(3))
    for _ in range(4):
        site.scene.cloud.inject(Fault(kind=FaultKind.RUN_OUT))
        known = len(site.events(EventKind.OFFER_BACKOFF))
        site.until(lambda known=known: len(site.events(EventKind.OFFER_BACKOFF)) > known, cycles=300, step_s=10.0)  # type: ignore[misc]
    lengths = [event.fields["until_at"] - event.at for event in site.events(EventKind.OFFER_BACKOFF)]  # type: ignore[operator]
    assert lengths == [100.0, 200.0, 400.0, 800.0]


def test_rejected_launch_is_not_repeated_for_an_hour(site: Deployment) -> None:
    site.scene.cloud.inject(Fault(kind=FaultKind.REJECT))
    site.submit()
    site.cycle(30)
    [backoff] = site.scene.store.live().backoffs
    assert backoff.until_at - site.now > 3000
    assert site.state() is JobState.QUEUED


def test_an_account_that_refuses_stops_the_provider_once_until_it_is_resumed(make: MakeDeployment) -> None:
    site = make(cloud={"zones": ["east-1a", "east-1b", "west-1a"]})
    site.scene.cloud.inject(Fault(kind=FaultKind.REJECT_ALL))
    site.submit()
    site.cycle(60)
    assert len(site.scene.store.instances(live_only=False)) == 1  # not once per zone
    assert "the role hcloud-worker does not exist" in site.job().wait_text
    assert site.job().wait_text.endswith("or at once by 'hcloud provider resume mock'")
    with site.scene.store.transaction(site.now) as txn:
        assert resume_provider(txn, "mock", site.scene.store.live(), "ada")
        assert not resume_provider(txn, "other", site.scene.store.live(), "ada")
    with site.scene.store.transaction(site.now) as txn:
        assert not resume_provider(txn, "mock", site.scene.store.live(), "ada")  # nothing left to end
    site.until_state(JobState.SUCCEEDED)


def test_resuming_a_provider_forgets_everything_that_kept_launches_from_it(make: MakeDeployment) -> None:
    site = make(policy={"stockout": {"backoff_s": 300, "backoff_cap_s": 3000}})
    site.scene.cloud.inject(Fault(kind=FaultKind.EXCEED_QUOTA))
    site.submit()
    site.cycle(5)
    now, stopped = site.now, OfferBackoff(provider="mock", until_at=site.now + 900.0, failures=3)
    with site.scene.store.transaction(now) as txn:
        txn.put_backoff(replace(stopped, losses=4, unregistered=5))
    with site.scene.store.transaction(now) as txn:
        assert resume_provider(txn, "mock", site.scene.store.live(), "ada")
    [backoff], [quota] = site.scene.store.live().backoffs, site.scene.store.live().refused_quotas
    assert (backoff.until_at, backoff.failures, backoff.losses, backoff.unregistered) == (now, 0, 0, 0)
    assert (quota.until_at, quota.retry_at, quota.failures, quota.periods) == (now, now, 0, 0)
    site.until_state(JobState.SUCCEEDED, number=1)
    assert site.now < now + 60.0


def test_a_resumed_quota_alone_is_reported(make: MakeDeployment) -> None:
    site = make(policy={"stockout": {"backoff_s": 300, "backoff_cap_s": 3000}})
    site.scene.cloud.inject(Fault(kind=FaultKind.EXCEED_QUOTA))
    site.submit()
    site.cycle(5)
    with site.scene.store.transaction(site.now) as txn:
        assert resume_provider(txn, "mock", site.scene.store.live(), "ada")
    assert [event.fields["what"] for event in site.events(EventKind.OPERATOR_ORDER)] == ["resume"]


def test_after_an_hour_a_stopped_provider_is_tried_with_another_offer(make: MakeDeployment) -> None:
    site = make(cloud={"zones": ["east-1a", "east-1b"]})
    site.scene.cloud.inject(Fault(kind=FaultKind.REJECT_ALL, zone="east-1a", times=None))  # allowed in one zone only
    site.submit()
    site.cycle(65, step_s=60.0)
    assert {m.zone for m in site.scene.cloud.machines(site.now)} == {"east-1b"}


def test_machine_that_never_registers_is_ended_and_replaced(make: MakeDeployment) -> None:
    site = make(policy={"boot": {"timeout_s": 20}})
    site.scene.cloud.inject(Fault(kind=FaultKind.NEVER_BOOT))
    _run_to_success(site)
    first, second = reversed(site.scene.store.instances(live_only=False))
    assert (first.state, second.ready_at is not None) == (InstanceState.TERMINATED, True)


def test_jobs_cost_is_bounded_by_the_budget_when_machines_cannot_be_ended(make: MakeDeployment) -> None:
    """Terminate is throttled for ever: machines still end at the expiry the budget had room for."""
    site = make(policy={"budgets": {"per_day_usd": 0.12}, "lease": {"horizon_s": 600, "renew_before_s": 60}})
    site.scene.cloud.inject(Fault(kind=FaultKind.THROTTLE, call="terminate", times=None))
    site.submit("sleep", "5", count=8)
    site.cycle(200, step_s=10.0)
    assert site.machines_up() == []
    assert site.scene.cloud.billed_usd(site.now) <= 0.12


def test_machine_that_never_registers_counts_against_its_offer(make: MakeDeployment) -> None:
    site = make(cloud={"zones": ["east-1a", "east-1b"]}, policy={"boot": {"timeout_s": 20}})
    site.scene.cloud.inject(Fault(kind=FaultKind.NEVER_BOOT, zone="east-1a", times=None))
    site.submit()
    site.until_state(JobState.SUCCEEDED)
    [told] = site.events(EventKind.OFFER_BACKOFF)
    assert (told.fields["zone"], told.fields["error"]) == ("east-1a", "never_registered")
    assert [m.zone for m in site.scene.cloud.machines(site.now)] == ["east-1a", "east-1b"]


def test_machines_that_never_register_are_paid_for_less_and_less_often(make: MakeDeployment) -> None:
    """A broken image: each is launched, and billed until it is given up."""
    site = make(policy={"boot": {"timeout_s": 20}})
    site.scene.cloud.inject(Fault(kind=FaultKind.NEVER_BOOT, times=None))
    site.submit()
    site.cycle(200, step_s=2.0)
    site.restart()
    site.scene.cloud.inject(Fault(kind=FaultKind.NEVER_BOOT, times=None))
    site.cycle(300, step_s=2.0)
    launched = [each.at for each in site.events(EventKind.INSTANCE_LAUNCHED)]
    pauses = [later - earlier - 20 for earlier, later in pairwise(launched)]
    assert [round(each / 60) for each in pauses] == [1, 2, 4, 8]
    assert {each.fields["error"] for each in site.events(EventKind.OFFER_BACKOFF)} == {"never_registered"}


def test_machines_launched_together_that_never_register_are_one_and_one_that_does_ends_the_row(
    make: MakeDeployment,
) -> None:
    site = make(policy={"boot": {"timeout_s": 20}})
    site.scene.cloud.inject(Fault(kind=FaultKind.NEVER_BOOT, times=3))
    site.submit("sleep", "900", count=3, resources=Resources(vcpus=2.0, memory_mib=512))
    site.cycle(15, step_s=2.0)
    [told] = site.events(EventKind.OFFER_BACKOFF)
    assert told.fields["until_at"] == told.at + 60
    site.cycle(60, step_s=2.0)
    assert len(site.scene.store.instances(live_only=True)) == 3
    assert {each.unregistered for each in site.scene.store.live().backoffs} == {0}


TWO_TYPES: dict[str, object] = {
    "types": {
        name: {"vcpus": 2, "memory_mib": 4096, "usd_per_h": price} for name, price in (("m.one", 0.3), ("m.two", 0.31))
    }
}


def test_machines_that_the_cloud_ends_before_they_register_are_bought_less_and_less_often(make: MakeDeployment) -> None:
    """A key that the account may not use: the cloud accepts each launch, bills it, and ends the machine itself."""
    site = make(cloud=TWO_TYPES)
    site.scene.cloud.inject(Fault(kind=FaultKind.DIE, times=None, delay_s=1.0))
    site.submit()
    site.cycle(600)
    launched = site.events(EventKind.INSTANCE_REQUESTED)
    assert len(launched) <= 5
    assert {each.fields["type"] for each in launched} == {"m.one", "m.two"}
    whole = next(each for each in site.scene.store.live().backoffs if not each.instance_type)
    assert (whole.zone, whole.market, whole.unregistered) == ("", "", len(launched))
    assert whole.error.endswith("ended before its worker registered: died")
    assert whole.error in site.job().wait_text  # which `explain` and `status` show


def test_the_provider_is_free_again_once_a_worker_registers(make: MakeDeployment) -> None:
    site = make(cloud=TWO_TYPES)
    site.scene.cloud.inject(Fault(kind=FaultKind.DIE, times=3, delay_s=1.0))
    site.submit()
    site.until(lambda: site.state() is JobState.SUCCEEDED, cycles=400)
    whole = next(each for each in site.scene.store.live().backoffs if not each.instance_type)
    assert whole.unregistered == 0 and whole.until_at <= site.now


def test_machines_preempted_or_ended_on_request_before_they_register_count_as_no_failure(make: MakeDeployment) -> None:
    site = make(cloud={"boot": {"p50_s": 30, "p95_s": 40}})
    site.submit()
    site.cycle(2)
    [machine] = site.scene.store.live().instances
    order = Directive(scope=DirectiveScope.INSTANCE, name=machine.id, by="ada", ordered_at=site.now, destroy=True)
    with site.scene.store.transaction(site.now) as txn:
        record_directive(txn, order)
    site.until(lambda: machine.id not in {each.id for each in site.scene.store.live().instances})
    assert [each.unregistered for each in site.scene.store.live().backoffs] == []


def test_nothing_is_bought_while_the_gateway_is_away(make: MakeDeployment) -> None:
    site = make()
    site.scene.engine.disconnect()
    site.submit()
    site.cycle(360, step_s=10.0)
    assert site.events(EventKind.INSTANCE_REQUESTED) == []
    assert "no machine is launched while the gateway does not answer" in site.job().wait_text
    site.scene.engine.reconnect()
    site.until_state(JobState.SUCCEEDED)


SPOT: dict[str, object] = {"markets": ["spot"], "spot": {"notice_s": 120}}


def test_spot_machines_that_are_taken_back_at_once_are_tried_less_and_less_often(make: MakeDeployment) -> None:
    site = make(cloud=SPOT)
    site.scene.cloud.inject(Fault(kind=FaultKind.PREEMPT, delay_s=1.0, times=None))
    site.submit(interruptible=True)
    site.cycle(150, step_s=4.0)
    site.restart()
    site.scene.cloud.inject(Fault(kind=FaultKind.PREEMPT, delay_s=1.0, times=None))
    site.cycle(450, step_s=4.0)
    launched = [each.at for each in site.events(EventKind.INSTANCE_LAUNCHED)]
    told = site.events(EventKind.OFFER_BACKOFF)
    pauses = [later - earlier for earlier, later in pairwise(launched)]
    assert [each.fields["error"] for each in told] == ["taken_quickly"] * len(told)
    assert pauses[0] < 60 <= pauses[1] < 70 and 120 <= pauses[2] < 130 and 240 <= pauses[3] < 250
    assert len(launched) <= 8
    assert "in a row were preempted within 600 s" in site.job().wait_text


def test_loss_of_several_spot_machines_at_once_or_of_one_that_stayed_is_no_row(make: MakeDeployment) -> None:
    site = make(cloud=SPOT)
    site.scene.cloud.inject(Fault(kind=FaultKind.PREEMPT, delay_s=130.0, times=3))
    site.submit("sleep", "900", count=3, interruptible=True, resources=Resources(vcpus=2.0, memory_mib=512))
    site.until(lambda: sum(job.failures != () for job in site.scene.store.live().jobs) == 3, cycles=400)
    assert site.events(EventKind.OFFER_BACKOFF) == []
    site.scene.cloud.inject(Fault(kind=FaultKind.PREEMPT, delay_s=700.0, times=None))
    site.cycle(360, step_s=5.0)
    assert len(site.events(EventKind.INSTANCE_NOTICE)) > 6
    assert site.events(EventKind.OFFER_BACKOFF) == []


def test_gang_on_one_machine_is_told_once_that_it_awaits_it(site: Deployment) -> None:
    site.submit(nodes=Nodes(count=2, minimum=2))
    site.cycle(2)
    (told,) = [e for e in site.events(EventKind.JOB_STATE) if e.fields["to"] == "awaiting_instance"]
    assert told.fields["awaits"] == "inst-1"
    assert site.job().awaiting == ("inst-1", "inst-1")


RESERVED_CLOUD = {"markets": ["reserved", "on_demand"], "reserved": {"m.one": 1}, "reserved_price_factor": 0.5}


def test_a_machine_is_on_demand_once_its_commitment_has_ended(make: MakeDeployment) -> None:
    begins_at = make().now
    site = make(cloud={**RESERVED_CLOUD, "reserved_ends_at": begins_at + 8000.0})
    site.submit("sleep", "8200")
    site.cycle(130, step_s=60.0)
    [machine] = site.scene.store.live().instances
    assert (machine.offer.market, machine.offer.price_usd_per_h) == (Market.RESERVED, 0.15)
    site.cycle(5, step_s=60.0)
    [machine] = site.scene.store.live().instances
    assert (machine.offer.market, machine.offer.price_usd_per_h) == (Market.ON_DEMAND, 0.3)
    [price] = site.events(EventKind.INSTANCE_PRICE)
    assert (price.fields["market"], price.fields["price_usd_per_h"]) == ("on_demand", 0.3)
    site.until(lambda: site.machines_up() == [], step_s=60.0)  # idle, it is kept no longer than others
    assert site.scene.controller.last_spend.month_usd == pytest.approx(site.scene.cloud.billed_usd(site.now), abs=0.01)


def test_a_daemon_that_was_away_at_the_end_of_a_commitment_books_what_it_cost_since(make: MakeDeployment) -> None:
    site = make(cloud={**RESERVED_CLOUD, "reserved_ends_at": make().now + 8000.0})
    site.submit("sleep", "12000")
    site.cycle(125, step_s=60.0)
    site.scene.clock.advance(1800.0)  # the end was within
    site.restart()
    site.cycle(2)
    [price] = site.events(EventKind.INSTANCE_PRICE)
    assert price.at == site.scene.cloud.settings.reserved_ends_at
    assert site.scene.controller.last_spend.month_usd == pytest.approx(site.scene.cloud.billed_usd(site.now), abs=0.001)


def test_work_beyond_the_end_of_a_commitment_must_fit_the_budget_at_the_price_on_demand(make: MakeDeployment) -> None:
    """Four hours at $0.15 fit into $0.7; with the last one and a half at $0.3 they do not."""
    site = make(
        cloud={**RESERVED_CLOUD, "reserved_ends_at": make().now + 9000.0}, policy={"budgets": {"per_month_usd": 0.7}}
    )
    site.submit("sleep", "14400")
    site.cycle(240, step_s=60.0)
    assert site.scene.cloud.billed_usd(site.now) < 0.7
    assert "budget" in site.job().wait_text


def test_no_lease_is_begun_that_outlasts_the_commitment(make: MakeDeployment) -> None:
    site = make(cloud={**RESERVED_CLOUD, "reserved_ends_at": make().now + 500.0})  # less than a lease
    site.submit()
    site.until_state(JobState.SUCCEEDED)
    assert {each.market for each in site.scene.cloud.machines(site.now)} == {Market.ON_DEMAND}


# ---------------------------------------------------------------------------------------- rows of failures, one by one
STOCKOUT = simple(stockout=StockoutPolicy(backoff_s=100.0, backoff_cap_s=1000.0))
LOSABLE = offer("m.spot", market=Market.SPOT)
SPOT_KEY = ("mock", "a", "m.spot", "spot")


def lost(site: Deployment, requested_ago_s: float, up_s: float | None, of: Offer = LOSABLE) -> OfferBackoff | None:
    """Return the back-off once a spot machine is preempted now, ``up_s`` after its launch (None: never launched)."""
    launched_at = None if up_s is None else site.now - up_s
    taken = machine(1, of, requested_at=site.now - requested_ago_s, launched_at=launched_at)
    with site.scene.store.transaction(site.now) as txn:
        record_preemption(txn, taken, site.now, STOCKOUT)
        return txn.backoff(*SPOT_KEY)


def counted(backoff: OfferBackoff | None, now: float) -> tuple[int, float]:
    """Return the losses in a row, and for how long nothing is launched."""
    return (backoff.losses, backoff.until_at - now) if backoff is not None else (-1, -1.0)


def test_quick_losses_of_spot_in_a_row_are_backed_off_longer_each_time(site: Deployment) -> None:
    lengths = []
    for _ in range(6):
        lengths.append(counted(lost(site, 50.0, 40.0), site.now))
        site.scene.clock.advance(1000.0)
    assert lengths == [(1, 0.0), (2, 100.0), (3, 200.0), (4, 400.0), (5, 800.0), (6, 1000.0)]
    told = site.events(EventKind.OFFER_BACKOFF)
    assert len(told) == 5
    assert "6 machines in a row were preempted within 600 s" in str(told[-1].fields["text"])


def test_spot_machines_that_were_on_their_way_at_the_last_loss_are_the_same_loss(site: Deployment) -> None:
    assert counted(lost(site, 50.0, 40.0), site.now) == (1, 0.0)
    assert counted(lost(site, 50.0, None), site.now) == (1, 0.0)
    site.scene.clock.advance(100.0)
    assert counted(lost(site, 100.5, 50.0), site.now)[0] == 1
    assert counted(lost(site, 99.5, 50.0), site.now)[0] == 2


def test_a_spot_machine_that_stayed_or_a_long_time_without_a_loss_ends_the_row(site: Deployment) -> None:
    assert counted(lost(site, 50.0, 40.0), site.now)[0] == 1
    site.scene.clock.advance(700.0)
    assert counted(lost(site, 650.0, 600.0), site.now) == (2, 100.0)  # just too soon
    site.scene.clock.advance(700.0)
    assert counted(lost(site, 650.0, 601.0), site.now)[0] == 0
    assert counted(lost(site, 10.0, 5.0), site.now)[0] == 1
    site.scene.clock.advance(2100.0)
    assert counted(lost(site, 99.0, 5.0), site.now)[0] == 1  # asked for over two caps after the last
    site.scene.clock.advance(2050.0)
    assert counted(lost(site, 50.0, 5.0), site.now)[0] == 2  # and no later


def test_a_spot_machine_that_stayed_is_no_back_off(site: Deployment) -> None:
    assert lost(site, 650.0, 601.0) is None


def test_only_spot_machines_are_lost_to_preemption_and_only_where_policy_counts_them(site: Deployment) -> None:
    assert lost(site, 50.0, 40.0, replace(LOSABLE, market=Market.ON_DEMAND)) is None
    with site.scene.store.transaction(site.now) as txn:
        taken = machine(1, LOSABLE, requested_at=site.now - 50.0, launched_at=site.now - 40.0)
        record_preemption(txn, taken, site.now, replace(STOCKOUT, spot=SpotPolicy(quick_losses=0)))
        assert txn.backoff(*SPOT_KEY) is None


def given_up(site: Deployment, of: Offer, requested_ago_s: float = 10.0) -> tuple[tuple[int, float], tuple[int, float]]:
    """Return failures in a row and seconds without launches, of the offer and its provider, once a machine that never
    registered is given up now."""
    silent = machine(1, of, requested_at=site.now - requested_ago_s)
    with site.scene.store.transaction(site.now) as txn:
        record_unregistered(txn, silent, "no worker", STOCKOUT)
        found = txn.backoff("mock", "a", of.instance_type.name, "on_demand"), txn.backoff("mock", "", "", "")
    assert found[0] is not None and found[1] is not None
    one, every = ((each.unregistered, each.until_at - site.now) for each in found if each is not None)
    return one, every


def test_machines_that_never_register_close_their_offer_then_the_provider(site: Deployment) -> None:
    first, second = offer("m.first"), offer("m.second")
    assert given_up(site, first) == ((1, 100.0), (1, 0.0))
    assert given_up(site, second) == ((1, 100.0), (1, 0.0))  # asked for before the first was given up
    site.scene.clock.advance(1000.0)
    assert given_up(site, second) == ((2, 200.0), (2, 100.0))
    site.scene.clock.advance(1000.0)
    # Asked for when the last one was given up, it is the next in the row.
    assert given_up(site, second, requested_ago_s=1000.0) == ((3, 400.0), (3, 200.0))
    assert {each.error for each in site.scene.store.live().backoffs if each.until_at > site.now} == {"no worker"}
    with site.scene.store.transaction(site.now) as txn:
        record_registration(txn, second)
        found, provider = txn.backoff("mock", "a", "m.second", "on_demand"), txn.backoff("mock", "", "", "")
    assert found is not None and provider is not None
    assert (found.unregistered, found.until_at - site.now) == (0, 400.0)  # this offer is not tried sooner
    assert (provider.unregistered, provider.until_at) == (0, site.now)
    # One asked for before the last of its offer was given up counts for its provider, which has counted none since.
    assert given_up(site, first, requested_ago_s=3000.0) == ((1, -1900.0), (1, 0.0))


def test_a_registration_shortens_no_back_off_of_a_provider_that_counts_none(site: Deployment) -> None:
    stopped = OfferBackoff(provider="mock", until_at=site.now + 900.0, failures=1)
    with site.scene.store.transaction(site.now) as txn:
        txn.put_backoff(stopped)
        record_registration(txn, offer("m.first"))
        assert txn.backoff("mock", "", "", "") == stopped
