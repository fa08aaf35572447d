"""The end of what is committed to on EC2, through the real cycle over HTTP."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.chaos.scene import CrashPoints, Scene
from tests.providers.commitment_ends import ENDS_AT, LATER_AT, POLICY, Prices, play_one_end_of_two, play_the_end
from tests.providers.ec2.ec2_bench import settings_for
from tests.providers.ec2.ec2_scene import build_on_ec2
from tests.providers.ec2.fake_ec2 import REGION, USD_PER_H, FakeEc2
from tests.providers.ec2.test_commitments import plan
from tests.providers.ec2.test_offers import capacity_reservation, reserved

ON_DEMAND_USD_PER_H = USD_PER_H["m5.large"]


def iso(at: float) -> str:
    return datetime.fromtimestamp(at, tz=UTC).isoformat()


@pytest.fixture
def scene(fake: FakeEc2, tmp_path: Path) -> Iterator[Scene]:
    settings = settings_for(fake, list_lag_s=10, instance_types=["m5.large"], markets=["reserved", "on_demand"])
    made = build_on_ec2(tmp_path, CrashPoints(), settings=settings, policy=POLICY)
    fake.reset(made.clock)
    yield made
    made.close()
    assert fake.unknown_calls == []


def test_machine_of_a_savings_plan_is_on_demand_from_its_end_on(fake: FakeEc2, scene: Scene) -> None:
    fake.savings_plans = [plan(usd_per_h=0.06, end=iso(ENDS_AT))]
    fake.savings_rates = {"sp-1": {"m5.large": 0.06}}
    play_the_end(scene, Prices(reserved_usd_per_h=0.06, on_demand_usd_per_h=ON_DEMAND_USD_PER_H))


def test_machine_of_a_reserved_instance_is_on_demand_from_its_end_on(fake: FakeEc2, scene: Scene) -> None:
    fake.reserved = [reserved(1, zone=f"{REGION}a", end=iso(ENDS_AT))]
    play_the_end(scene, Prices(reserved_usd_per_h=0.06, on_demand_usd_per_h=ON_DEMAND_USD_PER_H))


def test_machine_in_a_capacity_reservation_is_on_demand_from_its_end_on(fake: FakeEc2, scene: Scene) -> None:
    fake.capacity = [{**capacity_reservation(1), "endDate": iso(ENDS_AT)}]
    play_the_end(scene, Prices(reserved_usd_per_h=ON_DEMAND_USD_PER_H, on_demand_usd_per_h=ON_DEMAND_USD_PER_H))


def two_plans(fake: FakeEc2) -> Prices:
    """Have a Savings Plan for one machine that ends soon, and one for two that ends later."""
    fake.savings_plans = [
        plan(savingsPlanId="sp-1", usd_per_h=0.06, end=iso(ENDS_AT)),
        plan(savingsPlanId="sp-2", usd_per_h=0.12, end=iso(LATER_AT)),
    ]
    fake.savings_rates = {each: {"m5.large": 0.06} for each in ("sp-1", "sp-2")}
    return Prices(reserved_usd_per_h=0.06, on_demand_usd_per_h=ON_DEMAND_USD_PER_H)


def test_at_the_first_end_of_two_plans_just_one_of_three_machines_is_on_demand(fake: FakeEc2, scene: Scene) -> None:
    play_one_end_of_two(scene, two_plans(fake))


def test_no_machine_is_on_demand_at_the_end_of_a_plan_that_none_needs_any_more(fake: FakeEc2, scene: Scene) -> None:
    play_one_end_of_two(scene, two_plans(fake), kill=fake.kill)


def test_at_the_end_of_a_reserved_instance_machines_of_a_savings_plan_stay_reserved(
    fake: FakeEc2, scene: Scene
) -> None:
    prices = two_plans(fake)
    fake.savings_plans = fake.savings_plans[1:]
    fake.reserved = [reserved(1, zone=f"{REGION}a", end=iso(ENDS_AT))]
    play_one_end_of_two(scene, prices, zone=f"{REGION}a")
