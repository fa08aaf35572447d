"""Limits on vCPUs that refusals have shown: what counts against them, for how long, and what is launched meanwhile."""

from dataclasses import replace

import pytest

from hcloud.core.model import InstanceState, Market, Nodes
from hcloud.planner.plan import Launch, Wait
from hcloud.planner.quota_limits import QuotaLimits, refused_quota, vcpus_in_use
from hcloud.planner.snapshot import OfferBackoff, RefusedQuota
from tests.planner.scenes import NOW, decide, job, machine, need, of, offer, scene, spec
from tests.policies import simple

DAY_S = 86_400.0
SMALL = offer()
OTHERS = [offer(market=Market.SPOT), offer(region="s"), offer(provider="other"), offer(quota="gpus")]
"""Of other limits."""


def limit(**changes: float) -> RefusedQuota:
    """Return a limit that 8 vCPUs exceed."""
    plain = RefusedQuota(
        provider="mock", region="r", quota="on_demand", vcpus=8.0, instance_vcpus=2.0, until_at=NOW + 10.0
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_instances_count_against_their_own_limit_until_they_are_gone() -> None:
    fleet = [machine(n, SMALL, state=state) for n, state in enumerate(InstanceState, start=1)]
    others = [machine(10 + n, each) for n, each in enumerate(OTHERS)]
    assert vcpus_in_use(SMALL.quota_key, [*fleet, *others]) == 2.0 * (len(InstanceState) - 1)


def after_s(failures: int) -> float:
    return 100.0 * failures


def test_a_limit_is_remembered_for_a_day_and_each_further_time_twice_as_long_up_to_eight_days() -> None:
    found: RefusedQuota | None = None
    now, days = NOW, []
    for number in range(1, 6):
        found = refused_quota(SMALL, 8.0, "too many", now, after_s, found)
        days.append((found.until_at - now) / DAY_S)
        assert (found.periods, found.failures, found.retry_at - now) == (number, number, 100.0 * number)
        again = refused_quota(SMALL, 6.0, "too many", now + 1.0, after_s, found)  # launched together with the first
        assert (again.periods, again.failures, again.vcpus) == (number, number + 1, 6.0)
        assert again.until_at - now - 1.0 == found.until_at - now
        now = found.until_at
    assert days == [1.0, 2.0, 4.0, 8.0, 8.0]
    assert found is not None
    assert (found.key, found.vcpus, found.instance_vcpus, found.error) == (SMALL.quota_key, 8.0, 2.0, "too many")


def test_only_limits_that_are_remembered_count_and_only_what_is_of_them() -> None:
    fleet = [machine(1, SMALL), *(machine(2 + n, each) for n, each in enumerate(OTHERS))]
    assert QuotaLimits.of([limit(until_at=NOW)], fleet, NOW).refused == {}
    known = QuotaLimits.of([limit()], fleet, NOW)
    assert known.in_use == {SMALL.quota_key: 2.0}


@pytest.mark.parametrize(
    ("in_use", "planned", "exceeded"),
    [
        (0, 2, False),  # 6 vCPUs with one more
        (0, 3, True),
        (1, 1, False),
        (1, 2, True),
        (2, 1, True),
        (3, 0, False),  # the first is refused at once, which costs nothing
        (3, 1, False),
        (4, 2, False),
    ],
)
def test_what_would_exceed_a_limit_after_others_of_the_plan_is_not_launched(
    in_use: int, planned: int, exceeded: bool
) -> None:
    limits = QuotaLimits.of([limit()], [machine(n, SMALL) for n in range(in_use)], NOW)
    for other in OTHERS:
        limits.take(other, 9)
    limits.take(SMALL, planned + 2)
    limits.take(SMALL, -2)
    assert (limits.exceeded_by(SMALL) is not None) is exceeded
    assert [limits.exceeded_by(other) for other in OTHERS] == [None] * len(OTHERS)


def test_nothing_is_planned_of_a_limit_until_something_is() -> None:
    tight = QuotaLimits.of([limit(vcpus=8.5)], [machine(n, SMALL) for n in range(3)], NOW)
    assert tight.exceeded_by(SMALL) is None  # 8 vCPUs with one more
    odd = QuotaLimits.of([limit(vcpus=7.0)], [], NOW)
    odd.take(SMALL, 2)
    assert odd.exceeded_by(SMALL) is None  # 6 with one more
    odd.take(SMALL, 1)
    assert odd.exceeded_by(SMALL) is not None


def test_a_plan_launches_what_a_remembered_limit_has_room_for_and_the_rest_elsewhere() -> None:
    jobs = [job(n, asks=spec(resources=need(2.0))) for n in range(1, 6)]
    elsewhere = offer(region="s", zone="z", usd_per_h=0.2)
    plan = decide(scene(*jobs, SMALL, elsewhere, refused_quotas=(limit(),)), simple())
    assert [each.offer.region for each in of(plan, Launch)] == ["r", "r", "r", "s", "s"]


def test_a_job_whose_nodes_exceed_a_remembered_limit_together_waits_with_both_numbers() -> None:
    four = spec(resources=need(2.0), nodes=Nodes(count=4, minimum=4))
    refused = OfferBackoff(provider="mock", zone="a", instance_type="middle", until_at=NOW + 60.0, error="stockout")
    middle = offer("middle", vcpus=3.0, usd_per_h=0.05)
    things = (job(1, asks=four), SMALL, middle)
    plan = decide(scene(*things, refused_quotas=(limit(),), backoffs=(refused,)), simple())
    [reason] = [each.reason for each in of(plan, Wait)]
    assert (reason.code, reason.text) == (
        "quota_exceeded",
        "waiting: needs 8 vCPUs, the quota is 6 (on_demand in r)",
    )
    numbers = {"needed_vcpus": 8.0, "quota_vcpus": 6.0, "in_use_vcpus": 0.0, "until_at": NOW + 10.0}
    assert reason.numbers == numbers
    assert not of(plan, Launch)
