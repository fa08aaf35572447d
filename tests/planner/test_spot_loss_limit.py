"""A job that lost several spot instances goes to instances that are not preempted."""

import pytest

from hcloud.core.model import FailureCause, JobState, Market
from hcloud.planner.plan import Launch, Place
from hcloud.spec.policy import Allow, Policy, SpotPolicy
from tests.planner.scenes import decide, job, machine, of, offer, scene
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
