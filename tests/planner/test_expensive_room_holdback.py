"""Reserved room, and rented instances that are not spot, are held back for jobs that pay most elsewhere."""

from dataclasses import replace

import pytest

from hcloud.core.estimates import Classification, Estimate, Measure
from hcloud.core.model import (
    BatchTarget,
    BestEffortTarget,
    FailureCause,
    Instance,
    JobSpec,
    Market,
    Nodes,
    Offer,
    ProfileRequest,
    ServiceTarget,
    Target,
)
from hcloud.planner.plan import Launch, Place
from hcloud.planner.snapshot import OfferBackoff, Snapshot
from hcloud.spec.policy import Policy
from tests.planner.apply_model import apply_ideally
from tests.planner.scenes import NOW, decide, job, machine, need, of, offer, running, scene, spec
from tests.policies import simple

FREE = BestEffortTarget()
TWO = offer("two", vcpus=2.0, usd_per_h=0.1)
SPOT = replace(offer("one", vcpus=1.0, usd_per_h=0.018), market=Market.SPOT)
PAID = machine(1, replace(offer("big", vcpus=4.0, usd_per_h=0.1), market=Market.RESERVED, available=0))
RENTED = machine(2, TWO, idle_since=None)


def service(vcpus: float = 2.0) -> JobSpec:
    """Return a service, which may not run on spot."""
    return spec(target=ServiceTarget(requests_per_s=10.0, latency_ms=20.0), resources=need(vcpus), interruptible=False)


def went(snapshot: Snapshot, policy: Policy | None = None) -> tuple[list[str], list[str]]:
    """Return where jobs were placed, and what was launched."""
    plan = decide(snapshot, policy)
    markets = [a.offer.market.value for a in of(plan, Launch)]
    return [f"{a.job_id} on {a.ranks[0].instance_id}" for a in of(plan, Place)], markets


def crowd(*more: object, keeps: int = 1) -> Snapshot:
    """Return a reserved instance with room for so many services, and as many services on rented ones."""
    rented = [machine(9 + n, TWO, idle_since=None) for n in range(keeps)]
    there = [running(50 + n, each, asks=service()) for n, each in enumerate(rented)]
    return scene(PAID, *rented, *there, TWO, SPOT, *more)  # type: ignore[arg-type]


def test_batch_goes_on_spot_while_what_is_free_of_reserved_room_is_what_services_are_rented_for() -> None:
    assert went(crowd(job(1), keeps=2)) == ([], ["spot"])


def test_reserved_room_beyond_that_is_for_everybody() -> None:
    two_of_four = crowd(*(job(n) for n in range(1, 4)), keeps=1)
    assert went(two_of_four) == (["job-1 on inst-1", "job-2 on inst-1"], ["spot"])


def test_service_takes_what_was_kept() -> None:
    assert went(crowd(job(1, asks=service()), keeps=2)) == (["job-1 on inst-1"], [])


def test_service_that_comes_behind_batch_in_the_queue_finds_room() -> None:
    full = scene(PAID, job(1, asks=spec(resources=need(3.0))), job(2, asks=service()), TWO, SPOT, big_spot())
    assert went(full) == (["job-2 on inst-1"], ["spot"])


def big_spot() -> Offer:
    """Return a spot instance for three services."""
    return replace(SPOT, instance_type=offer("four", vcpus=4.0).instance_type, price_usd_per_h=0.072)


def test_a_job_kept_away_is_planned_for_once() -> None:
    before = crowd(job(1), keeps=2)
    assert not of(decide(apply_ideally(before, decide(before))), Launch)


def test_where_nothing_cheap_can_be_rented_reserved_room_is_for_everybody() -> None:
    out = OfferBackoff(
        provider="mock", zone="a", instance_type="one", market=Market.SPOT.value, until_at=NOW + 60, error="none"
    )
    assert went(replace(crowd(job(1), keeps=2), backoffs=(out,))) == (["job-1 on inst-1"], [])


def test_job_that_may_be_evicted_for_others_is_not_kept_away() -> None:
    filler = job(1, asks=spec(target=BestEffortTarget()))
    assert went(crowd(filler, keeps=2))[0] == ["job-1 on inst-1"]


def test_services_that_may_not_run_on_reserved_machines_keep_nothing_there() -> None:
    elsewhere = running(3, RENTED, asks=replace(service(), instance_types=("two",)))
    assert went(scene(PAID, RENTED, elsewhere, job(1, asks=spec(resources=need(4.0))), TWO, SPOT, big_spot()))[0] == [
        "job-1 on inst-1"
    ]


def test_services_that_wait_and_may_not_run_on_reserved_machines_keep_nothing_there() -> None:
    elsewhere = replace(service(), instance_types=("two",))
    waiting = (job(1, asks=spec(resources=need(3.0))), job(2, asks=elsewhere))
    assert went(scene(PAID, *waiting, TWO, SPOT, big_spot())) == (["job-1 on inst-1"], ["on_demand"])


def test_reserved_offers_that_are_sold_out_change_nothing_and_others_leave_no_lack() -> None:
    for available, outcome in ((0, ([], ["spot"])), (1, (["job-1 on inst-1"], []))):
        assert went(crowd(job(1), replace(PAID.offer, available=available), keeps=2)) == outcome


def rented(*asks: JobSpec) -> Snapshot:
    """Return a job that could run on spot, an idle reserved instance, and one rented instance for each of ``asks``."""
    fleet = [machine(9 + n, TWO, idle_since=None) for n in range(len(asks))]
    there = [running(50 + n, on, asks=each) for n, (on, each) in enumerate(zip(fleet, asks, strict=True))]
    return scene(PAID, *fleet, *there, job(1), TWO, SPOT)


def test_jobs_that_could_run_on_spot_keep_nothing_though_their_types_are_expensive() -> None:
    asks = spec(resources=need(2.0), instance_types=("two", "big"))
    assert went(rented(asks, asks, asks, asks)) == (["job-1 on inst-1"], [])
    waiting = (job(1, asks=spec(resources=need(3.0))), job(2, asks=asks))
    assert went(scene(PAID, *waiting, TWO, SPOT, big_spot())) == (["job-1 on inst-1"], ["on_demand"])
    assert went(rented(*(replace(asks, interruptible=False) for _ in range(2)))) == ([], ["spot"])


def test_jobs_that_may_be_preempted_by_policy_keep_nothing() -> None:
    asks = spec(resources=need(2.0), instance_types=("two", "big"), interruptible=False)
    anything = simple(spot=replace(simple().spot, only_interruptible=False))
    assert went(rented(asks, asks), anything) == (["job-1 on inst-1"], [])


def test_targets_that_policy_keeps_off_spot_keep_room_though_they_may_be_interrupted() -> None:
    asks = replace(service(), interruptible=True)
    assert went(rented(asks, asks)) == ([], ["spot"])


def test_no_more_is_kept_than_waiting_services_need_or_run_on_machines_that_are_there() -> None:
    assert went(scene(PAID, job(1), job(2, asks=service()), TWO, SPOT)) == (["job-1 on inst-1", "job-2 on inst-1"], [])
    pair = running(50, RENTED, machine(99, TWO), asks=service())  # the second machine is gone
    assert went(scene(PAID, RENTED, pair, job(1), TWO, SPOT)) == (["job-1 on inst-1"], [])


def test_room_is_kept_for_services_that_may_use_only_some_of_the_reserved_machines() -> None:
    odd = machine(3, offer("odd", vcpus=1.0, market=Market.RESERVED))
    asks = replace(service(), instance_types=("two", "big"))
    before = rented(asks, asks, asks)
    both = replace(before, instances=(*before.instances, odd), reachable=before.reachable | {"inst-3"})
    assert went(both) == ([], ["spot"])


def test_reserved_room_is_kept_from_best_effort_too_where_none_is_evicted() -> None:
    filler = job(1, asks=spec(target=BestEffortTarget()))
    never = simple(disruption=replace(simple().disruption, evict_best_effort=False))
    assert went(crowd(filler, keeps=2), never) == ([], ["spot"])


def test_the_last_free_vcpu_is_kept_too() -> None:
    assert went(crowd(job(1), running(8, PAID, asks=service(3.0)), keeps=1)) == ([], ["spot"])


def test_ranks_that_run_on_reserved_machines_already_keep_nothing() -> None:
    full = machine(3, replace(TWO, market=Market.RESERVED, available=0), idle_since=None)
    pair = running(50, full, RENTED, asks=service())
    assert went(scene(PAID, full, RENTED, pair, job(1), TWO, SPOT)) == (["job-1 on inst-1"], [])


def test_a_full_reserved_machine_has_nothing_to_keep() -> None:
    full = machine(3, replace(TWO, market=Market.RESERVED, available=0), idle_since=None)
    there = (running(7, PAID, asks=service()), full, running(8, full, asks=service()))
    assert went(crowd(job(1), *there, keeps=1)) == ([], ["spot"])


def test_jobs_that_may_not_run_on_spot_take_reserved_room_though_they_pay_little_elsewhere() -> None:
    cheap = offer("cheap", vcpus=1.0, usd_per_h=0.02)
    assert went(crowd(job(1, asks=service(1.0)), cheap, keeps=2)) == (["job-1 on inst-1"], [])


def test_room_is_kept_for_all_nodes_of_a_job_that_waits() -> None:
    pair = replace(service(), nodes=Nodes(count=2, minimum=2))
    waiting = (job(1, asks=spec(resources=need(2.0))), job(2, asks=pair))
    assert went(scene(PAID, *waiting, TWO, SPOT, big_spot())) == (["job-2 on inst-1"], ["spot"])


def test_one_vcpu_is_kept_for_one() -> None:
    rented = machine(2, offer("two", vcpus=2.0, usd_per_h=0.2), idle_since=None)
    there = (running(8, PAID, asks=service(3.0)), rented, running(9, rented, asks=service(1.0)))
    assert went(scene(PAID, *there, job(1), TWO, SPOT)) == ([], ["spot"])


def test_a_job_that_was_moved_or_that_nothing_can_be_rented_for_takes_expensive_room_in_its_turn() -> None:
    host = machine(2, offer("host", vcpus=4.0, usd_per_h=0.2, available=0), idle_since=None)
    there = (host, host.offer, SPOT, running(20, host, asks=service(3.0)))
    moved = job(3, asks=spec(target=FREE), failures=(FailureCause.EVICTED,))
    assert went(scene(*there, moved)) == (["job-3 on inst-2"], [])
    only_host = job(1, asks=spec(target=FREE, instance_types=("host",)))
    assert went(scene(*there, only_host, moved)) == (["job-1 on inst-2"], ["spot"])


def test_one_machine_is_expensive_though_another_is_not() -> None:
    dear = machine(2, offer("host", vcpus=4.0, usd_per_h=0.2), idle_since=None)
    cheap = machine(3, offer("cheap", vcpus=2.0, usd_per_h=0.03), idle_since=None)
    there = (running(20, dear, asks=service(3.0)), running(21, cheap, asks=service()))
    assert went(scene(dear, cheap, *there, job(1, asks=spec(target=FREE)), dear.offer, SPOT)) == ([], ["spot"])


def test_promises_share_machines_while_not_all_that_wait_could_get_one() -> None:
    few = replace(simple(), caps=replace(simple().caps, max_instances=2))
    host = machine(2, offer("host", vcpus=4.0, usd_per_h=0.4), idle_since=None)
    waiting = [job(n, asks=spec(target=BatchTarget(finish_within_s=36_000.0))) for n in (1, 3)]
    for count, outcome in ((1, ([], ["spot"])), (2, (["job-1 on inst-2", "job-3 on inst-2"], []))):
        assert went(scene(host, running(20, host, asks=service()), *waiting[:count], host.offer, SPOT), few) == outcome


def test_the_slowest_boot_decides_whether_a_deadline_bears_one() -> None:
    deadline_s = 2.0 * SPOT.instance_type.boot_delay_s / (1.0 - simple().placement.confidence)
    there: Instance = machine(2, offer("host", vcpus=4.0, usd_per_h=0.2), idle_since=None)
    late = job(1, asks=spec(target=BatchTarget(finish_within_s=deadline_s)))
    before = (there, running(20, there, asks=service(3.0)), late, there.offer, SPOT)
    assert went(scene(*before)) == ([], ["spot"])
    slow = replace(SPOT, instance_type=replace(offer("slow", vcpus=1.0).instance_type, boot_delay_s=9000.0))
    assert went(scene(*before, slow)) == (["job-1 on inst-2"], [])


def test_profiling_runs_on_rented_machines_keep_nothing() -> None:
    request = ProfileRequest(job_id="job-50", type_column="mock/two", steps_vcpus=(1.0,))
    assert went(rented(service(), service())) == ([], ["spot"])
    assert went(rented(service(), replace(service(), profile=request))) == (["job-1 on inst-1"], [])


def test_room_that_is_not_free_yet_is_kept_for_nobody_twice() -> None:
    """Two of four vCPUs are free, which two are rented for elsewhere; the others will be once a job has stopped."""
    stopping = running(8, PAID, asks=service())
    assert stopping.attempt is not None
    attempt = replace(stopping.attempt, stop_requested_at=NOW - 1.0, stop_cause=FailureCause.EVICTED)
    assert went(crowd(job(1), replace(stopping, attempt=attempt), keeps=1)) == ([], ["spot"])
    assert went(crowd(job(1), keeps=1)) == (["job-1 on inst-1"], [])


def test_policy_may_keep_nothing_for_anybody() -> None:
    plain = simple()
    never = replace(plain, provisioning=replace(plain.provisioning, keep_for_dearer=0.0))
    assert went(crowd(job(1), keeps=2), never) == (["job-1 on inst-1"], [])


def beside(
    units: int, size: float, usd_per_h: float, vcpus: float, target: Target = FREE, policy: Policy | None = None
) -> tuple[list[str], list[str]]:
    """Return where a job, by default best effort, is placed when it could share a rented instance with so many
    services."""
    there: Instance = machine(2, offer("host", vcpus=vcpus, usd_per_h=usd_per_h), idle_since=None)
    services = [running(20 + n, there, asks=service(size)) for n in range(units)]
    return went(scene(there, *services, job(1, asks=spec(target=target)), there.offer, SPOT), policy)


def test_promise_is_not_put_off_for_money() -> None:
    boots_in_s, risk = SPOT.instance_type.boot_delay_s, 1.0 - simple().placement.confidence
    soon, late = (BatchTarget(finish_within_s=part * boots_in_s / risk) for part in (1.0, 2.0))
    assert beside(1, 3.0, 0.2, 4.0, soon) == (["job-1 on inst-2"], [])
    assert beside(1, 3.0, 0.2, 4.0, late) == ([], ["spot"])


def test_a_promise_that_is_known_to_run_shortly_bears_a_boot_sooner() -> None:
    pace = Estimate(value=0.1, low=0.1, high=0.1, observed=True)
    short = Classification(
        by_type={"mock/host": pace, "mock/one": pace}, measure=Measure.COMPLETION, quality_target=pace
    )
    soon_s = SPOT.instance_type.boot_delay_s / (1.0 - simple().placement.confidence)
    host = machine(2, offer("host", vcpus=4.0, usd_per_h=0.2), idle_since=None)
    new = job(1, asks=spec(target=BatchTarget(finish_within_s=soon_s)), application="short")
    policy = simple(placement=replace(simple().placement, order="paragon"))
    there = running(20, host, asks=service(3.0))
    assert there.attempt is not None
    there = replace(there, attempt=replace(there.attempt, placed_at=NOW - 597.0))  # needs the host for 3 s, not for 10
    for known, outcome in (({}, (["job-1 on inst-2"], [])), ({"short": short}, ([], ["spot"]))):
        before = scene(host, there, new, host.offer, SPOT, applications=known)
        assert went(before, policy) == outcome


@pytest.mark.parametrize(("machines", "joins"), [(2, False), (1, True)])
def test_promise_shares_machines_while_none_more_is_allowed(machines: int, joins: bool) -> None:
    few = replace(simple(), caps=replace(simple().caps, max_instances=machines))
    went_to = beside(1, 3.0, 0.2, 4.0, BatchTarget(finish_within_s=36_000.0), few)
    assert went_to == ((["job-1 on inst-2"], []) if joins else ([], ["spot"]))
