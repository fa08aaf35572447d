"""What the mock cloud does beyond the contract: chance, quotas, prices, bills, notices and settings."""

import itertools
import math
import statistics
from dataclasses import replace
from typing import Any

import pytest

from hcloud.core.clock import ManualClock
from hcloud.core.errors import (
    ConfigError,
    InsufficientCapacity,
    LaunchRejected,
    OutcomeUnknown,
    ProviderUnavailable,
    QuotaExceeded,
    Throttled,
)
from hcloud.core.model import Market
from hcloud.provider import CloudState
from providers.mock import Fault, FaultKind, MachineRecord, MockProvider
from providers.mock.spot_shortages import SpotShortages
from tests.providers.clouds import AT_ONCE, OWNER, cloud_on, offer_of, request_for


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def launch_many(cloud: MockProvider, clock: ManualClock, numbers: range, **changes: Any) -> list[MachineRecord]:
    for number in numbers:
        cloud.launch(request_for(cloud, number, clock.now(), **changes))
    return list(cloud.machines(clock.now()))


# ------------------------------------------------------------------------------------------------------------- chance
def test_boot_times_have_the_stated_median_and_95th_percentile(clock: ManualClock) -> None:
    cloud = cloud_on(clock)
    launch_many(cloud, clock, range(800))
    clock.advance(10_000)
    boots_s = sorted(each.running_at - each.launched_at for each in cloud.machines(clock.now()) if each.running_at)
    assert len(boots_s) == 800
    assert statistics.median(boots_s) == pytest.approx(15, rel=0.15)
    assert boots_s[760] == pytest.approx(120, rel=0.35)


def test_fate_depends_on_seed_and_instance_not_on_order(clock: ManualClock) -> None:
    settings: dict[str, Any] = {"quality": {"spread": 0.2}, "deaths_per_h": 1.0}
    forward = launch_many(cloud_on(clock, **settings), clock, range(5))
    backward = launch_many(cloud_on(clock, **settings), clock, range(4, -1, -1))
    other_seed = launch_many(cloud_on(clock, **settings, seed=1), clock, range(5))

    def fates(records: list[MachineRecord]) -> dict[str, float]:
        return {each.instance_id: each.quality for each in records}

    assert fates(forward) == fates(backward)
    assert fates(forward) != fates(other_seed)
    assert len(set(fates(forward).values())) == 5


def test_equal_histories_have_equal_futures(clock: ManualClock) -> None:
    def history() -> list[MachineRecord]:
        own = ManualClock()
        cloud = cloud_on(own, deaths_per_h=2.0, spot={"preemptions_per_h": 3.0})
        launch_many(cloud, own, range(20), offer=offer_of(cloud, market=Market.SPOT))
        own.advance(7200)
        return list(cloud.machines(own.now()))

    assert history() == history()


def test_machines_die_at_the_stated_rate(clock: ManualClock) -> None:
    cloud = cloud_on(clock, deaths_per_h=1.0)
    launch_many(cloud, clock, range(400))
    clock.advance(3600)
    died = [each for each in cloud.machines(clock.now()) if each.detail == "died"]
    assert len(died) / 400 == pytest.approx(1 - math.exp(-1), abs=0.08)


def test_spot_machines_of_a_type_are_short_as_often_and_as_long_as_stated() -> None:
    shortages, day_s = SpotShortages(3, 0.5, 2.0), 86_400.0
    times = [60.0 * n for n in range(200 * 1440)]
    short = [shortages.is_short("east-1a", "m.medium", at) for at in times]
    assert sum(short) / len(short) == pytest.approx(0.5, abs=0.04)  # two hours of plenty, two of none
    begun = sum(b and not a for a, b in itertools.pairwise(short))
    assert begun / (short.count(False) / 60) == pytest.approx(0.5, rel=0.1)
    at = shortages.next_at("east-1a", "m.medium", 5 * day_s)
    assert at >= 5 * day_s and shortages.is_short("east-1a", "m.medium", at)
    assert at != shortages.next_at("east-1a", "m.large", 5 * day_s)
    assert SpotShortages(3, 0.0, 2.0).next_at("east-1a", "m.medium", 0.0) == math.inf


def test_a_shortage_takes_all_spot_machines_of_a_type_and_lets_none_be_launched(clock: ManualClock) -> None:
    cloud = cloud_on(clock, spot={"shortages_per_h": 1.0, "shortage_h": 1.0, "notice_s": 30}, **AT_ONCE)
    spot = offer_of(cloud, market=Market.SPOT)
    shortages = SpotShortages(0, 1.0, 1.0)
    while shortages.is_short("east-1a", "m.medium", clock.now() + 30) or shortages.is_short(
        "east-1a", "m.medium", clock.now()
    ):
        clock.advance(60)
    launch_many(cloud, clock, range(2), offer=spot)
    launch_many(cloud, clock, range(2, 4))
    begins_at = shortages.next_at("east-1a", "m.medium", clock.now())
    clock.advance(begins_at - clock.now() - 1)
    assert len([each for each in cloud.machines(clock.now()) if each.terminated_at is None]) == 4
    with pytest.raises(InsufficientCapacity):  # what is to be preempted is not sold any more
        launch_many(cloud, clock, range(4, 5), offer=spot)
    clock.advance(2)
    up = [each.market for each in cloud.machines(clock.now()) if each.terminated_at is None]
    assert up == [Market.ON_DEMAND] * 2
    with pytest.raises(InsufficientCapacity, match=r"out of m\.medium in east-1a \(spot\)"):
        launch_many(cloud, clock, range(4, 5), offer=spot)


# ------------------------------------------------------------------------------------------------- capacity and quotas
def test_quota_counts_live_vcpus_of_its_region_and_market(clock: ManualClock) -> None:
    quotas = [{"region": "east-1", "market": "on_demand", "vcpus": 4}]
    cloud = cloud_on(clock, quotas=quotas, **AT_ONCE)
    first = cloud.launch(request_for(cloud, 1, clock.now()))
    cloud.launch(request_for(cloud, 2, clock.now()))
    with pytest.raises(QuotaExceeded, match="4 of 4 vCPUs of east-1"):
        cloud.launch(request_for(cloud, 3, clock.now()))
    cloud.launch(request_for(cloud, 4, clock.now(), offer=offer_of(cloud, zone="west-1a")))
    cloud.launch(request_for(cloud, 5, clock.now(), offer=offer_of(cloud, market=Market.SPOT)))
    cloud.terminate([first.provider_id])
    cloud.launch(request_for(cloud, 3, clock.now()))


def test_quota_counts_the_types_that_it_names(clock: ManualClock) -> None:
    cloud = cloud_on(clock, quotas=[{"vcpus": 2, "types": ["m.*"]}, {"vcpus": 2}], **AT_ONCE)
    memory = next(each for each in cloud.offers() if each.instance_type.name == "r.medium")
    assert (offer_of(cloud).quota, memory.quota) == ("all markets m.*", "all markets")
    cloud.launch(request_for(cloud, 1, clock.now(), offer=memory))
    with pytest.raises(QuotaExceeded, match=r"2 of 2 vCPUs of all regions \(all markets\) are in use"):
        cloud.launch(request_for(cloud, 2, clock.now()))


def test_offers_say_what_is_left_of_a_quota_that_is_told(clock: ManualClock) -> None:
    quotas = [{"region": "east-1", "vcpus": 5, "told": True}]
    cloud = cloud_on(clock, quotas=quotas, **AT_ONCE)
    assert (offer_of(cloud).available, offer_of(cloud, zone="west-1a").available) == (2, None)
    first = cloud.launch(request_for(cloud, 1, clock.now()))
    clock.advance(5.0)
    left = offer_of(cloud, market=Market.SPOT)
    assert (left.available, left.priced_at) == (1, clock.now())
    assert left.pool_free is not None and left.pool_free.vcpus == 3.0
    cloud.launch(request_for(cloud, 2, clock.now()))
    assert offer_of(cloud).available == 0
    with pytest.raises(QuotaExceeded, match="4 of 5 vCPUs of east-1"):
        cloud.launch(request_for(cloud, 3, clock.now()))
    cloud.terminate([first.provider_id])
    assert offer_of(cloud).available == 1


def test_reserved_machines_are_as_many_as_reserved(clock: ManualClock) -> None:
    cloud = cloud_on(clock, reserved={"m.medium": 1}, **AT_ONCE)
    assert offer_of(cloud, market=Market.RESERVED).available == 1
    machine = cloud.launch(request_for(cloud, 1, clock.now(), offer=offer_of(cloud, market=Market.RESERVED)))
    assert offer_of(cloud, market=Market.RESERVED).available == 0
    with pytest.raises(InsufficientCapacity, match="reserved"):
        cloud.launch(request_for(cloud, 2, clock.now(), offer=offer_of(cloud, market=Market.RESERVED)))
    cloud.terminate([machine.provider_id])
    assert offer_of(cloud, market=Market.RESERVED).available == 1


def test_machines_may_be_reserved_in_one_zone_and_zones_in_regions_of_another_name(clock: ManualClock) -> None:
    cloud = cloud_on(clock, reserved={"m.medium": 1, "east-1b/m.medium": 4}, regions={"east-1b": "far"})
    found = {each.zone: each for each in cloud.offers() if each.key[2:] == ("m.medium", "reserved")}
    assert {zone: (each.region, each.available) for zone, each in found.items()} == {
        "east-1a": ("east-1", 1), "east-1b": ("far", 4), "west-1a": ("west-1", 1),
    }  # fmt: skip


def test_scripted_stockout_meets_its_zone_type_and_time_only(clock: ManualClock) -> None:
    what = {"kind": "run_out", "zone": "east-1a", "instance_type": "m.medium", "times": None}
    cloud = cloud_on(clock, script=[{**what, "from_s": 10, "to_s": 20}])
    cloud.launch(request_for(cloud, 1, clock.now()))
    clock.advance(10)
    for _ in range(3):
        with pytest.raises(InsufficientCapacity, match=r"out of m\.medium in east-1a"):
            cloud.launch(request_for(cloud, 2, clock.now()))
    cloud.launch(request_for(cloud, 3, clock.now(), offer=offer_of(cloud, zone="east-1b")))
    cloud.launch(request_for(cloud, 4, clock.now(), offer=offer_of(cloud, type_name="m.large")))
    clock.advance(10)
    cloud.launch(request_for(cloud, 2, clock.now()))


def test_random_stockouts_last_a_period_and_have_the_stated_rate(clock: ManualClock) -> None:
    cloud = cloud_on(clock, stockouts={"rate": 0.3, "period_s": 100}, **AT_ONCE)

    def out(number: int) -> bool:
        try:
            cloud.launch(request_for(cloud, number, clock.now()))
        except InsufficientCapacity:
            return True
        return False

    seen = []
    for number in range(0, 400, 2):
        seen.append(out(number))
        clock.advance(50)
        assert out(number + 1) is seen[-1]
        clock.advance(50)
    assert sum(seen) / len(seen) == pytest.approx(0.3, abs=0.1)


# ------------------------------------------------------------------------------------------------------------ troubles
def test_calls_beyond_the_rate_are_throttled_until_the_bucket_refills(clock: ManualClock) -> None:
    cloud = cloud_on(clock, throttle={"calls_per_s": 2.0, "burst": 3})
    for _ in range(3):
        cloud.offers()
    with pytest.raises(Throttled) as caught:
        cloud.instances(OWNER)
    assert caught.value.retry_after_s == pytest.approx(0.5)
    clock.advance(0.5)
    cloud.instances(OWNER)


def test_outage_lasts_its_interval_and_machines_go_on(clock: ManualClock) -> None:
    cloud = cloud_on(clock, script=[{"kind": "be_away", "from_s": 5, "to_s": 65, "times": None}], **AT_ONCE)
    machine = cloud.launch(request_for(cloud, 1, clock.now()))
    clock.advance(5)
    for call in (cloud.offers, lambda: cloud.instances(OWNER), lambda: cloud.terminate([machine.provider_id])):
        with pytest.raises(ProviderUnavailable):
            call()
    clock.advance(60)
    assert cloud.instances(OWNER).instances[0].state is CloudState.RUNNING


def test_faults_by_chance_have_their_rate(clock: ManualClock) -> None:
    cloud = cloud_on(clock, chances={"throttle": 0.2})
    throttled = 0
    for _ in range(500):
        try:
            cloud.instances(OWNER)
        except Throttled:
            throttled += 1
    assert throttled / 500 == pytest.approx(0.2, abs=0.06)


def test_injected_fault_happens_as_often_as_stated(clock: ManualClock) -> None:
    cloud = cloud_on(clock)
    cloud.inject(Fault(kind=FaultKind.RUN_OUT, times=2))
    for _ in range(2):
        with pytest.raises(InsufficientCapacity):
            cloud.launch(request_for(cloud, 1, clock.now()))
    cloud.launch(request_for(cloud, 1, clock.now()))


def test_machine_that_never_boots_stays_pending_and_is_billed(clock: ManualClock) -> None:
    cloud = cloud_on(clock)
    cloud.inject(Fault(kind=FaultKind.NEVER_BOOT))
    cloud.launch(request_for(cloud, 1, clock.now()))
    clock.advance(3600)
    assert cloud.instances(OWNER).instances[0].state is CloudState.PENDING
    assert cloud.billed_usd(clock.now()) == pytest.approx(0.096)


def test_late_launch_is_not_there_before_its_time(clock: ManualClock) -> None:
    cloud = cloud_on(clock)
    cloud.inject(Fault(kind=FaultKind.ANSWER_LATE, delay_s=30))
    request = request_for(cloud, 1, clock.now())
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            cloud.launch(request)
    assert cloud.machines(clock.now()) == ()
    clock.advance(30)
    assert cloud.launch(request).launched_at == clock.now()


def test_spot_machine_gets_notice_then_is_taken_back(clock: ManualClock) -> None:
    cloud = cloud_on(clock, spot={"preemptions_per_h": 2.0, "notice_s": 120.0})
    spot = offer_of(cloud, market=Market.SPOT)
    launch_many(cloud, clock, range(30), offer=spot)
    cloud.launch(request_for(cloud, 99, clock.now()))
    noticed: dict[str, float] = {}
    for _ in range(600):
        clock.advance(60)
        for each in cloud.instances(OWNER).instances:
            if each.preempt_at is not None and each.state is not CloudState.TERMINATED:
                assert 0 < each.preempt_at - clock.now() <= 120
                noticed[each.provider_id] = each.preempt_at
    records = {each.instance_id: each for each in cloud.machines(clock.now())}
    assert records.pop("inst-99").detail == ""
    assert {each.detail for each in records.values()} == {"preempted by the provider"}
    assert {each.provider_id: each.terminated_at for each in records.values() if each.provider_id in noticed} == noticed
    assert len(noticed) > 20


# ---------------------------------------------------------------------------------------------------- prices and bills
def test_spot_prices_wander_within_bounds_and_others_stand_still(clock: ManualClock) -> None:
    cloud = cloud_on(clock)
    spot, fixed = [], []
    for _ in range(200):
        spot.append(offer_of(cloud, market=Market.SPOT).price_usd_per_h)
        fixed.append(offer_of(cloud).price_usd_per_h)
        clock.advance(300)
    assert set(fixed) == {0.096}
    assert len(set(spot)) > 150
    assert all(0.0096 <= price <= 0.096 for price in spot)
    assert statistics.fmean(spot) == pytest.approx(0.35 * 0.096, rel=0.1)


def test_price_is_the_same_whenever_it_is_asked_for(clock: ManualClock) -> None:
    often, rarely = cloud_on(clock), cloud_on(clock)
    for _ in range(10):
        often.offers()
        clock.advance(300)
    assert often.offers() == rarely.offers()


def test_bill_runs_from_launch_to_end_with_the_minimum(clock: ManualClock) -> None:
    cloud = cloud_on(clock, **AT_ONCE)
    short, long = (cloud.launch(request_for(cloud, number, clock.now())) for number in (1, 2))
    clock.advance(10)
    cloud.terminate([short.provider_id])
    clock.advance(1790)
    cloud.terminate([long.provider_id])
    clock.advance(7200)
    first, second = cloud.machines(clock.now())
    assert first.billed_usd == pytest.approx(0.096 * 60 / 3600)
    assert second.billed_usd == pytest.approx(0.096 * 1800 / 3600)
    assert cloud.billed_usd(clock.now()) == pytest.approx(first.billed_usd + second.billed_usd)


def test_spot_bill_follows_the_price(clock: ManualClock) -> None:
    cloud = cloud_on(clock, **AT_ONCE)
    cloud.launch(request_for(cloud, 1, clock.now(), offer=offer_of(cloud, market=Market.SPOT)))
    expected_usd = 0.0
    for _ in range(600):
        expected_usd += offer_of(cloud, market=Market.SPOT).price_usd_per_h * 10 / 3600
        clock.advance(10)
    assert cloud.billed_usd(clock.now()) == pytest.approx(expected_usd, rel=0.01)


def test_launched_spot_machine_tells_the_present_price(clock: ManualClock) -> None:
    cloud = cloud_on(clock, **AT_ONCE)
    cloud.launch(request_for(cloud, 1, clock.now(), offer=offer_of(cloud, market=Market.SPOT)))
    for _ in range(5):
        clock.advance(300)
        (told,) = cloud.instances(OWNER).instances
        assert told.price_usd_per_h == offer_of(cloud, market=Market.SPOT).price_usd_per_h


# ----------------------------------------------------------------------------------------------------- time and limits
def test_clock_that_jumps_back_raises_nobody_from_the_dead(clock: ManualClock) -> None:
    cloud = cloud_on(clock, **AT_ONCE)
    machine = cloud.launch(request_for(cloud, 1, clock.now()))
    clock.advance(100)
    cloud.terminate([machine.provider_id])
    clock.advance(-90)
    assert cloud.instances(OWNER).instances[0].state is CloudState.TERMINATED
    assert cloud.running(clock.now()) == {}


def test_ended_machine_leaves_the_listing_after_a_while_but_not_the_records(clock: ManualClock) -> None:
    cloud = cloud_on(clock, keep_terminated_s=100.0, **AT_ONCE)
    machine = cloud.launch(request_for(cloud, 1, clock.now()))
    cloud.terminate([machine.provider_id])
    clock.advance(99)
    assert len(cloud.instances(OWNER).instances) == 1
    clock.advance(1)
    assert cloud.instances(OWNER).instances == ()
    assert len(cloud.machines(clock.now())) == 1


def test_renewed_machine_lives_until_its_new_expiry(clock: ManualClock) -> None:
    cloud = cloud_on(clock, **AT_ONCE)
    cloud.launch(request_for(cloud, 1, clock.now(), expires_at=clock.now() + 100))
    clock.advance(99)
    assert cloud.set_expiry({"inst-1": clock.now() + 100, "inst-2": clock.now() + 100}) == {"inst-1"}
    clock.advance(99)
    assert set(cloud.running(clock.now())) == {"inst-1"}
    clock.advance(1)
    assert cloud.running(clock.now()) == {}
    assert cloud.set_expiry({"inst-1": clock.now() + 100}) == frozenset()


def test_a_machine_ends_itself_when_its_lease_is_not_renewed(clock: ManualClock) -> None:
    cloud = cloud_on(clock, lease_s=50.0, **AT_ONCE)
    expires_at = clock.now() + 1000
    for number in (1, 2):
        cloud.launch(request_for(cloud, number, clock.now(), expires_at=expires_at))
    clock.advance(40)
    assert cloud.set_expiry({"inst-1": expires_at}) == {"inst-1"}
    clock.advance(20)
    assert set(cloud.running(clock.now())) == {"inst-1"}
    assert cloud.machines(clock.now())[1].detail == "ended itself: its lease was not renewed"
    clock.advance(30)
    assert cloud.running(clock.now()) == {}


def test_machines_of_others_are_in_no_listing_but_a_careless_one(clock: ManualClock) -> None:
    cloud = cloud_on(clock, script=[{"kind": "list_others"}, {"kind": "die", "delay_s": 1}], **AT_ONCE)
    theirs = replace(request_for(cloud, 1, clock.now()), owner="", token="")
    appeared = cloud.appear(theirs)
    ours = cloud.launch(request_for(cloud, 1, clock.now()))
    careless, careful = cloud.instances(OWNER), cloud.instances(OWNER)
    assert [(each.provider_id, each.owner) for each in careless.instances] == [
        (ours.provider_id, OWNER),
        (appeared, ""),
    ]
    assert [each.provider_id for each in careful.instances] == [ours.provider_id]
    clock.advance(2)
    states = {each.provider_id: each.state for each in cloud.machines(clock.now())}
    assert states == {appeared: CloudState.RUNNING, ours.provider_id: CloudState.TERMINATED}  # faults are for ours


def test_next_event_leads_through_a_machines_whole_life(clock: ManualClock) -> None:
    cloud = cloud_on(clock, list_lag_s=5.0, stop_s=4.0)
    cloud.launch(request_for(cloud, 1, clock.now(), expires_at=clock.now() + 5000))
    machine = cloud.launch(request_for(cloud, 2, clock.now()))
    seen: list[tuple[str, CloudState]] = []
    while (at := cloud.next_event_at()) is not None and len(seen) < 20:
        assert at > clock.now()
        clock.advance(at - clock.now())
        states = {each.instance_id: each.state for each in cloud.machines(clock.now())}
        seen += [(key, state) for key, state in states.items() if (key, state) not in seen]
        if states["inst-2"] is CloudState.RUNNING:
            cloud.terminate([machine.provider_id])
    assert [state for key, state in seen if key == "inst-1"][-2:] == [CloudState.RUNNING, CloudState.TERMINATED]
    assert ("inst-2", CloudState.RUNNING) in seen
    assert seen[-1] == ("inst-1", CloudState.TERMINATED) and ("inst-2", CloudState.TERMINATED) in seen


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"owner": ""}, "needs an owner"),
        ({"token": ""}, "needs an owner, an instance id and a token"),
        ({"expires_at": 0.0}, "would expire before it is launched"),
    ],
)
def test_requests_that_can_never_succeed_are_rejected(
    clock: ManualClock, changes: dict[str, Any], sentence: str
) -> None:
    cloud = cloud_on(clock)
    with pytest.raises(LaunchRejected, match=sentence):
        cloud.launch(request_for(cloud, 1, clock.now(), **changes))
    assert cloud.machines(clock.now()) == ()


def test_token_used_for_another_machine_is_rejected(clock: ManualClock) -> None:
    cloud = cloud_on(clock)
    cloud.launch(request_for(cloud, 1, clock.now()))
    with pytest.raises(LaunchRejected, match="token token-1 was used for inst-1"):
        cloud.launch(request_for(cloud, 2, clock.now(), token="token-1"))


# ------------------------------------------------------------------------------------------------------------ settings
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"quota": []}, "providers.mock.settings.quota: unknown setting quota; did you mean quotas?"),
        (
            {"spot": {"history": {"price": {}}}},
            "providers.mock.settings.spot.history.price: unknown setting price; did you mean prices?",
        ),
        (
            {"spot": {"history": {"prices": {"east-1z/m.small": [[0, 1]]}}}},
            "spot.history.prices.east-1z/m.small: unknown zone east-1z; did you mean east-1b?",
        ),
        (
            {"spot": {"history": {"prices": {"east-1a/m.small": []}}}},
            "in order of time, at least one and each time once",
        ),
        ({"spot": {"history": {"scores": {"east-1a/m.small": [[0, 11]]}}}}, "between 1 and 10"),
        ({"boot": {"p50": 1}}, "providers.mock.settings.boot.p50: unknown setting p50; did you mean p50_s?"),
        ({"types": {"x": {"vcpu": 1}}}, "unknown setting vcpu; did you mean vcpus?"),
        ({"script": [{"kind": "die", "delay": 1}]}, "unknown setting delay; did you mean delay_s?"),
        (
            {"boot": {"p50_s": -1}},
            "settings.boot.p50_s: input should be greater than or equal to 0, not -1",
        ),
        ({"seed": "x"}, "providers.mock.settings.seed: must be a number, not 'x'"),
        ({"chances": {"explode": 0.1}}, "input should be 'throttle'"),
        ({"reserved": {"m.smal": 1}}, "providers.mock.settings.reserved.m.smal: unknown type m.smal; did you mean"),
        ({"reserved": {"x/m.small": 1}}, "reserved.x/m.small: unknown zone x; known are east-1a, east-1b, west-1a"),
        ({"regions": {"east-1c": "x"}}, "providers.mock.settings.regions: unknown zone east-1c; did you mean"),
        (
            {"quotas": [{"vcpus": 3, "region": "mars"}]},
            "quotas.0.region: unknown region mars; known are east-1, we",
        ),
        ({"types": {"a": {"vcpus": 1, "memory_mib": 9, "usd_per_h": 1, "zones": ["b"]}}}, "types.a.zones: unknown"),
        ({"script": [{"kind": "run_out", "zone": "west-1b"}]}, "script.0.zone: unknown zone west-1b; did you mean"),
        ({"script": [{"kind": "run_out", "instance_type": "huge"}]}, "script.0.instance_type: unknown type huge"),
        ({"script": [{"kind": "run_out", "market": "spott"}]}, "unknown market spott; did you mean spot?"),
        ({"zones": []}, "providers.mock.settings.zones"),
    ],
)
def test_bad_setting_is_one_clear_sentence(clock: ManualClock, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        cloud_on(clock, **settings)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_default_catalogue_has_types_of_several_sizes_in_three_zones_and_markets(clock: ManualClock) -> None:
    offers = cloud_on(clock).offers()
    assert len({each.instance_type.name for each in offers}) == 13
    assert {each.zone for each in offers} == {"east-1a", "east-1b", "west-1a"}
    assert {each.market for each in offers} == set(Market)
    assert len({each.instance_type.capacity.vcpus for each in offers}) >= 5
