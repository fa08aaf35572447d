"""A job with a deadline stays off spot machines whose loss would probably break it."""

import random
from collections.abc import Mapping
from dataclasses import replace
from math import inf

import pytest

from hcloud.classifier.applications import identify
from hcloud.core.estimates import Application
from hcloud.core.model import BatchTarget, BestEffortTarget, Checkpoint, FailureCause, Job, JobState, Market, Target
from hcloud.forecast.fleet_tracker import FleetStats, SpotLifetime
from hcloud.planner.plan import Launch, Place, Plan
from hcloud.planner.queued_jobs import QueuedJobs
from hcloud.planner.snapshot import OfferBackoff
from hcloud.planner.spot_preemption import ASSUMED_PER_S, SpotDeadlines
from hcloud.spec.policy import Allow, PlacementPolicy, Policy
from tests.planner.scenes import NOW, decide, ended, job, machine, of, offer, running, scene, spec
from tests.policies import simple

HOUR_S = 3600.0
CHEAP = offer(usd_per_h=0.03, market=Market.SPOT)
STEADY = offer(usd_per_h=0.1)
NO_BOOT = 0.0


def due(hours: float, number: int = 1, *, target: Target | None = None) -> Job:
    """Return a job queued just now, whose deadline is that far away."""
    asks = spec(target=target or BatchTarget(finish_within_s=hours * HOUR_S))
    return replace(job(number, asks=asks), submitted_at=NOW, queued_at=NOW)


def usually(run_s: float) -> Mapping[str, tuple[Application, ...]]:
    """Return the program of these jobs, as it ran before."""
    program = identify(spec()).program
    return {program: (Application(name="app", program=program, run_s=run_s),)}


def seen(machine_hours: float, lost: int = 0) -> FleetStats:
    """Return that spot machines were up for so long within the last hour, and how many were lost."""
    up_s = machine_hours * HOUR_S / max(1, lost)
    lifetime = SpotLifetime(NOW - 1.0, "mock", "r", "small", up_s, lost > 0)
    return FleetStats(spot_lifetimes=(lifetime,) * max(1, lost))


def planned(waiting: Job, policy: Policy | None = None, *, run_s: float = HOUR_S, **changes: object) -> Plan:
    given = {"fleet_stats": seen(10.0, lost=3), "programs": usually(run_s), **changes}
    return decide(scene(waiting, offers=(CHEAP, STEADY), **given), policy or simple())


def launched(waiting: Job, policy: Policy | None = None, **changes: object) -> list[Market]:
    return [each.offer.market for each in of(planned(waiting, policy, **changes), Launch)]


def test_run_that_could_not_begin_anew_in_time_is_launched_on_demand() -> None:
    assert launched(due(2.0)) == [Market.ON_DEMAND]  # mostly an hour, lost 0.3 times an hour
    assert launched(due(8.0)) == [Market.SPOT]
    assert launched(due(2.0), run_s=60.0) == [Market.SPOT]


def test_run_that_goes_on_from_a_checkpoint_in_time_is_launched_on_spot() -> None:
    def keeping(hours: float, every_s: float) -> Job:
        waiting = due(hours)
        return replace(waiting, spec=replace(waiting.spec, checkpoint=Checkpoint(path="state", every_s=every_s)))

    assert launched(keeping(2.0, 600.0)) == [Market.SPOT]
    often = seen(10.0, lost=20)
    assert launched(keeping(1.5, 600.0), fleet_stats=often) == [Market.SPOT]
    assert launched(keeping(1.5, 2 * HOUR_S), fleet_stats=often) == [Market.ON_DEMAND]  # it could be that far behind


def test_so_it_is_before_losses_are_seen_and_not_where_they_are_rare() -> None:
    assert launched(due(1.0), fleet_stats=FleetStats()) == [Market.ON_DEMAND]
    assert launched(due(1.0), fleet_stats=seen(40.0)) == [Market.SPOT]


def test_survivors_count_no_longer_than_losses_are_remembered() -> None:
    for hours, machine_hours in ((2.0, 2.0), (40.0, 6.0)):
        up = machine(9, CHEAP, launched_at=NOW - hours * HOUR_S)
        rate = SpotDeadlines.from_history((), (up,), 0.1, NOW).rate_per_s
        assert rate == pytest.approx(ASSUMED_PER_S * HOUR_S / ((machine_hours + 1.0) * HOUR_S))
    gone = SpotLifetime(NOW - 5.0 * HOUR_S, "mock", "r", "small", 10.0 * HOUR_S, preempted=True)
    rate = SpotDeadlines.from_history((gone,), (), 0.1, NOW).rate_per_s
    assert rate * HOUR_S == pytest.approx(1.1 / 2.0)


@pytest.mark.parametrize("target", [BestEffortTarget(), BatchTarget()])
def test_job_without_a_deadline_uses_spot_however_long_it_runs(target: Target) -> None:
    assert launched(due(0.0, target=target)) == [Market.SPOT]


def test_job_of_unknown_run_time_uses_spot_until_it_was_lost() -> None:
    assert launched(due(2.0), programs={}) == [Market.SPOT]


def test_policy_says_how_sure_a_deadline_must_be() -> None:
    assert launched(due(2.0), simple(placement=PlacementPolicy(confidence=0.5))) == [Market.SPOT]
    assert launched(due(5.9), simple(placement=PlacementPolicy(confidence=0.999))) == [Market.ON_DEMAND]


def test_idle_spot_machine_is_left_too_and_the_launch_says_why() -> None:
    idle = machine(1, CHEAP, launched_at=NOW - 60.0)
    known = {"offers": (CHEAP, STEADY), "programs": usually(HOUR_S)}
    assert len(of(decide(scene(due(8.0), idle, **known)), Place)) == 1
    plan = decide(scene(due(1.0), idle, **known))
    assert not of(plan, Place)
    [launch] = of(plan, Launch)
    assert "no spot: losing a spot machine would put its deadline at risk" in launch.reason.text


def test_spot_is_used_where_nothing_else_is_to_be_had() -> None:
    out = OfferBackoff(
        provider="mock", zone=STEADY.zone, instance_type=STEADY.instance_type.name, market="on_demand",
        until_at=NOW + 60.0, error="stockout",
    )  # fmt: skip
    assert launched(due(4.0), backoffs=(out,)) == [Market.SPOT]
    assert launched(due(4.0), simple(allow=Allow(markets=(Market.SPOT,)))) == [Market.SPOT]


def test_job_keeps_the_spot_machine_it_awaits() -> None:
    deadlines = SpotDeadlines(rate_per_s=1.0, risk=0.1, now=NOW)
    assert deadlines.avoids_spot(due(2.0), lambda _: [3.0 * HOUR_S], lambda: NO_BOOT)
    awaiting = replace(due(2.0), state=JobState.AWAITING_INSTANCE)
    assert not deadlines.avoids_spot(awaiting, lambda _: [3.0 * HOUR_S], lambda: NO_BOOT)


def test_boots_leave_less_time_and_unknown_ones_do_not_count() -> None:
    deadlines = SpotDeadlines(rate_per_s=1.0 / HOUR_S, risk=0.1, now=NOW)
    for boot_s, avoids in ((0.0, False), (2400.0, True), (inf, False)):
        assert deadlines.avoids_spot(due(6.0), lambda _: [3.0 * HOUR_S], lambda boot_s=boot_s: boot_s) is avoids  # type: ignore[misc]


def test_after_a_loss_a_run_is_taken_to_need_twice_what_it_had() -> None:
    deadlines = SpotDeadlines(rate_per_s=0.3 / HOUR_S, risk=0.1, now=NOW)
    held = running(1, machine(1, CHEAP), asks=due(6.0).spec, submitted_at=NOW)
    assert held.attempt is not None
    for hours, avoids in ((0.5, False), (2.0, True)):
        long_ago = replace(held, attempt=replace(held.attempt, placed_at=NOW - hours * HOUR_S))
        requeued = replace(ended(long_ago, FailureCause.PREEMPTED), state=JobState.QUEUED)
        assert deadlines.avoids_spot(requeued, lambda _: (), lambda: NO_BOOT) is avoids


@pytest.mark.parametrize(("run_s", "left_s"), [(3600.0, 5400.0), (3600.0, 3000.0), (1800.0, 3700.0), (7200.0, 8000.0)])
def test_probability_is_that_of_a_loss_too_late_to_begin_anew(run_s: float, left_s: float) -> None:
    rate_per_s, chances, count = 1.0 / 7200.0, random.Random(7), 20_000
    lost_after_s = [chances.expovariate(rate_per_s) for _ in range(count)]
    broken = sum(lost_s < run_s and lost_s + run_s > left_s for lost_s in lost_after_s) / count
    assert SpotDeadlines(rate_per_s, 0.1, NOW).broken_probability(run_s, left_s) == pytest.approx(broken, abs=0.012)


def test_queued_jobs_with_other_deadlines_are_not_decided_together() -> None:
    queued = QueuedJobs()
    for number, hours in enumerate((1.0, 12.0, 12.0), 1):
        queued.add(due(hours, number))
    assert sorted(len(kind.members) for kind in queued.kinds()) == [1, 2]


def test_ten_thousand_queued_jobs_with_a_deadline_each_are_of_few_kinds() -> None:
    queued = QueuedJobs()
    for number in range(1, 10_001):
        queued.add(due(0.5 + number / 1000.0, number))
    assert len(queued) == 10_000 and len(queued.kinds()) <= 20


def test_of_a_queue_each_deadline_gets_its_market() -> None:
    waiting = [due(hours, number) for number, hours in enumerate((8.0, 2.0, 8.0, 2.0), 1)]
    plan = decide(
        scene(*waiting, offers=(CHEAP, STEADY), programs=usually(HOUR_S), fleet_stats=seen(10.0, lost=3)), simple()
    )
    served = {each.offer.market: set(each.for_jobs) for each in of(plan, Launch)}
    assert served == {Market.SPOT: {"job-1", "job-3"}, Market.ON_DEMAND: {"job-2", "job-4"}}
