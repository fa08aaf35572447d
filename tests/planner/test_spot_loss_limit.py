"""Losses of spot instances: a job that lost several leaves them, and what they cost is compared with on-demand."""

import math
from dataclasses import replace

import pytest

from hcloud.core.model import Checkpoint, Constraints, Event, EventKind, FailureCause, JobState, Market
from hcloud.forecast.fleet_tracker import FleetStats, FleetTracker, SpotLifetime
from hcloud.planner.plan import Launch, Place
from hcloud.planner.spot_preemption import SpotRisk
from hcloud.spec.policy import Allow, Policy, SpotPolicy
from tests.planner.scenes import NOW, decide, job, machine, of, offer, scene, spec
from tests.policies import simple

CHEAP = offer(usd_per_h=0.03, market=Market.SPOT)
STEADY = offer(usd_per_h=0.1)
TAKEN = FailureCause.PREEMPTED


def launched(policy: Policy, losses: int, *offers: object) -> list[Market]:
    lost = job(1, JobState.QUEUED, failures=(TAKEN,) * losses)
    return [each.offer.market for each in of(decide(scene(lost, offers=offers), policy), Launch)]


@pytest.mark.parametrize(
    ("most", "losses", "market"),
    [(3, 0, Market.SPOT), (3, 2, Market.SPOT), (3, 3, Market.ON_DEMAND), (3, 9, Market.ON_DEMAND),
     (1, 1, Market.ON_DEMAND), (0, 50, Market.SPOT)],
)  # fmt: skip
def test_after_so_many_losses_a_job_leaves_spot_machines(most: int, losses: int, market: Market) -> None:
    assert launched(simple(spot=SpotPolicy(most_losses=most)), losses, CHEAP, STEADY) == [market]


def test_a_job_that_goes_on_from_a_checkpoint_stays_however_often_it_is_lost() -> None:
    asks = spec(checkpoint=Checkpoint(path="state", every_s=60.0))
    lost = job(1, JobState.QUEUED, asks=asks, failures=(TAKEN,) * 9)
    plan = decide(scene(lost, offers=(CHEAP, STEADY)), simple(spot=SpotPolicy(most_losses=3)))
    assert [each.offer.market for each in of(plan, Launch)] == [Market.SPOT]


@pytest.mark.parametrize(
    ("every_s", "market"), [(None, Market.ON_DEMAND), (30.0, Market.SPOT), (1e4, Market.ON_DEMAND)]
)
def test_what_is_lost_since_a_checkpoint_counts_in_the_price(every_s: float | None, market: Market) -> None:
    keeping = spec(checkpoint=None if every_s is None else Checkpoint(path="state", every_s=every_s))
    stats = FleetStats(spot_lifetimes=lifetimes(5, up_s=300.0), busy_s=(1200.0,))
    plan = decide(scene(job(1, asks=keeping), offers=(CHEAP, STEADY), fleet_stats=stats))
    assert [each.offer.market for each in of(plan, Launch)] == [market]


@pytest.mark.parametrize(
    "offers", [(CHEAP,), (CHEAP, offer(vcpus=0.5, usd_per_h=0.02)), (CHEAP, offer(usd_per_h=0.1, available=0))]
)
def test_where_there_is_nothing_else_it_stays(offers: tuple[object, ...]) -> None:
    assert launched(simple(), 5, *offers) == [Market.SPOT]
    only_spot = simple(allow=Allow(markets=(Market.SPOT,)))
    assert launched(only_spot, 5, CHEAP, STEADY) == [Market.SPOT]


def test_it_is_not_placed_on_an_idle_spot_machine_either() -> None:
    idle = machine(1, CHEAP)
    for losses, placed in ((2, 1), (3, 0)):
        lost = job(1, JobState.QUEUED, failures=(TAKEN,) * losses)
        assert len(of(decide(scene(lost, idle, offers=(CHEAP, STEADY))), Place)) == placed


def lifetimes(
    count: int, up_s: float = 60.0, kind: str = "small", *, preempted: bool = True
) -> tuple[SpotLifetime, ...]:
    return (SpotLifetime(NOW - 5.0, "mock", "r", kind, up_s, preempted),) * count


@pytest.mark.parametrize(
    ("seen", "market"),
    [
        ((), Market.SPOT),
        (lifetimes(1), Market.SPOT),
        (lifetimes(9), Market.ON_DEMAND),
        (lifetimes(9, up_s=7200.0), Market.SPOT),  # preempted, but seldom
        (lifetimes(9, preempted=False), Market.SPOT),  # ended as nothing needed them
        (lifetimes(30, kind="other"), Market.ON_DEMAND),  # the region's other types were lost
        (lifetimes(9) + lifetimes(9, up_s=3600.0, preempted=False), Market.SPOT),
    ],
)
def test_what_losses_make_of_the_price_decides_against_on_demand(
    seen: tuple[SpotLifetime, ...], market: Market
) -> None:
    plan = decide(scene(job(1), offers=(CHEAP, STEADY), fleet_stats=FleetStats(spot_lifetimes=seen)))
    assert [each.offer.market for each in of(plan, Launch)] == [market]


def test_the_longer_runs_are_the_more_losses_cost() -> None:
    risk = SpotRisk(lifetimes(9), (), NOW)
    short, long = risk.cost_factor(CHEAP, 60.0), risk.cost_factor(CHEAP, 1200.0)
    assert 1.2 < short < 1.4 and long > 20.0
    live = machine(1, CHEAP, launched_at=NOW - 86_400.0)  # what is up yet counts
    assert SpotRisk(lifetimes(9), [live], NOW).cost_factor(CHEAP, 1200.0) < 1.1
    assert SpotRisk((), (), NOW).cost_factor(CHEAP, 1e6) == 1.0
    long_ago = [each._replace(ended_at=NOW - 3601.0) for each in lifetimes(9)]
    assert SpotRisk(long_ago, (), NOW).cost_factor(CHEAP, 1e6) == 1.0


def test_losses_are_weighed_by_the_time_that_machines_were_up() -> None:
    """Rates per second: own losses / own time, each beside 900 s at the rate of the region's other types."""
    assert SpotRisk(lifetimes(3, up_s=300.0), (), NOW).rate_per_s(CHEAP) == pytest.approx(3 / (900.0 + 900.0))
    others = SpotRisk(lifetimes(4, up_s=675.0, kind="other"), (), NOW)
    assert others.rate_per_s(CHEAP) == pytest.approx(4 / (2700.0 + 900.0))
    both = SpotRisk(lifetimes(3, up_s=300.0) + lifetimes(4, up_s=675.0, kind="other"), (), NOW)
    assert both.rate_per_s(CHEAP) == pytest.approx((3 + 900.0 * 4 / 3600.0) / 1800.0)
    assert both.rate_per_s(replace(CHEAP, region="elsewhere")) == 0.0


def test_machines_that_are_up_count_from_their_launch_and_those_with_a_notice_as_lost() -> None:
    up, noticed = machine(1, CHEAP, launched_at=NOW - 900.0), machine(2, CHEAP, launched_at=NOW, preempt_at=NOW + 60.0)
    asked, steady = machine(3, CHEAP, launched_at=None), machine(4, STEADY, launched_at=NOW - 9e9, preempt_at=NOW)
    later = machine(5, CHEAP, launched_at=NOW + 50.0)  # by the provider's clock
    live = [up, noticed, asked, steady, later]
    assert SpotRisk((), live, NOW).rate_per_s(CHEAP) == pytest.approx(1 / (900.0 + 900.0))


def test_the_expected_time_of_a_run_counts_its_boot_and_has_a_bound() -> None:
    risk = SpotRisk(lifetimes(1, up_s=0.0), (), NOW)  # one loss in 900 s; a run of 870 s boots 30 s
    assert risk.cost_factor(CHEAP, 870.0) == pytest.approx(math.e - 1.0)
    assert risk.cost_factor(CHEAP, 900.0 * 40.0 - 30.0) == pytest.approx(math.expm1(20.0) / 40.0)


@pytest.mark.parametrize(
    ("other", "market"),
    [
        ({}, Market.ON_DEMAND),
        ({"name": "large"}, Market.SPOT),  # of a type that it may not use
        ({"zone": "b"}, Market.SPOT),  # in a zone where it may not run
        ({"vcpus": 0.5}, Market.SPOT),  # too small
    ],
)
def test_only_what_the_job_may_use_makes_it_leave_spot(other: dict[str, object], market: Market) -> None:
    asks = spec(instance_types=("small",), placement=Constraints(zones=("a",)))
    lost = job(1, JobState.QUEUED, asks=asks, failures=(TAKEN,) * 3)
    offers = (CHEAP, offer(**{"usd_per_h": 0.1, **other}))  # type: ignore[arg-type]
    assert [each.offer.market for each in of(decide(scene(lost, offers=offers)), Launch)] == [market]


def test_stays_are_read_from_the_log_and_forgotten_after_six_hours() -> None:
    tracker = FleetTracker()
    for number, (market, notice, code) in enumerate(
        [
            ("spot", True, "preempt_notice"),
            ("spot", False, "preempted"),
            ("spot", False, "idle"),
            ("on_demand", True, ""),
        ]
    ):
        name, asked = f"inst-{number}", {"provider": "mock", "region": "r", "type": "small", "market": market}
        steps: list[tuple[EventKind, dict[str, object]]] = [
            (EventKind.INSTANCE_REQUESTED, asked),
            (EventKind.INSTANCE_LAUNCHED, {"launched_at": 100.0}),
            *([(EventKind.INSTANCE_NOTICE, {"preempt_at": 150.0})] if notice else []),
            (EventKind.INSTANCE_TERMINATED, {"terminated_at": 160.0, "code": code}),
        ]
        tracker.follow(Event(at=160.0, kind=kind, instance_id=name, fields=fields) for kind, fields in steps)
    found = tracker.recent(200.0).spot_lifetimes
    assert [(each.up_s, each.preempted) for each in found] == [(60.0, True), (60.0, True), (60.0, False)]
    assert tracker.recent(160.0 + 6 * 3600.0 - 1.0).spot_lifetimes == found
    assert tracker.recent(160.0 + 6 * 3600.0 + 1.0).spot_lifetimes == ()
