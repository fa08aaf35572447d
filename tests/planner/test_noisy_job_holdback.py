"""Reserved room is held for many quiet jobs, rather than for a few noisy ones that leave the rest of it unused."""

from dataclasses import replace

import pytest

from hcloud.core.estimates import Classification, Estimate
from hcloud.core.model import BatchTarget, FailureCause, Market
from hcloud.planner.plan import Launch, Place
from hcloud.planner.snapshot import OfferBackoff, Snapshot
from hcloud.spec.policy import PlacementPolicy, Policy, ProvisioningPolicy
from tests.planner.apply_model import apply_ideally
from tests.planner.scenes import NOW, decide, job, machine, need, of, offer, running, scene, spec
from tests.policies import simple

EIGHT, TWO = offer("eight", vcpus=8.0, usd_per_h=0.4), offer("two", vcpus=2.0, usd_per_h=0.1)
PAID = machine(1, replace(EIGHT, market=Market.RESERVED, available=0))
ASKS = spec(target=BatchTarget(), resources=need(2.0))


def known(caused: float) -> Classification:
    """Return an application that causes so much of one resource and tolerates all of it."""

    def sure(value: float) -> Estimate:
        return Estimate(value=value, low=value, high=value)

    return Classification(
        by_type={"mock/eight": sure(1.0), "mock/two": sure(1.0)},
        tolerated={"llc": sure(100.0)},
        caused={"llc": sure(caused)},
        quality_target=sure(0.5),
    )


APPLICATIONS = {"loud": known(50.0), "quiet": known(20.0)}


def policy(keeps: float = 1.3, order: str = "paragon") -> Policy:
    """Return a policy under which jobs are noisy that press by more than so many times their share."""
    return simple(
        placement=PlacementPolicy(order=order),  # type: ignore[arg-type]
        provisioning=ProvisioningPolicy(strategy="best_value", keep_for_quiet=keeps),
    )


def crowd(comes: str, rented: str = "quiet", machines: int = 4, **changes: object) -> Snapshot:
    """Return an idle reserved instance of eight vCPUs, ``rented`` jobs on instances of two, and one new job."""
    theirs = [machine(9 + n, TWO, idle_since=None) for n in range(machines)]
    there = [running(50 + n, each, asks=ASKS, application=rented) for n, each in enumerate(theirs)]
    waits = job(1, asks=ASKS, application=comes)
    return scene(PAID, *theirs, *there, waits, TWO, applications=APPLICATIONS, **changes)


def went(snapshot: Snapshot, by: Policy) -> tuple[list[str], list[str]]:
    """Return where jobs were placed, and what was launched."""
    plan = decide(snapshot, by)
    launched = [action.offer.instance_type.name for action in of(plan, Launch)]
    return [action.ranks[0].instance_id for action in of(plan, Place)], launched


def test_loud_job_is_rented_for_while_quiet_ones_are_rented_for_that_would_fill_the_reserved_room() -> None:
    assert went(crowd("loud"), policy()) == ([], ["two"])


def test_room_that_a_stopping_job_still_holds_is_not_free_for_quiet_ones() -> None:
    """Six of eight vCPUs are free: with the noisy one four, of the six that quiet jobs are rented for."""
    stopping = running(8, PAID, asks=ASKS)
    assert stopping.attempt is not None
    attempt = replace(stopping.attempt, stop_requested_at=NOW - 1.0, stop_cause=FailureCause.EVICTED)
    before = crowd("loud", machines=3)
    assert went(before, policy()) == (["inst-1"], [])
    assert went(replace(before, jobs=(replace(stopping, attempt=attempt), *before.jobs)), policy()) == ([], ["two"])


def test_a_noisy_job_that_was_moved_goes_to_machines_that_run() -> None:
    before = crowd("loud")
    moved = replace(before.jobs[-1], failures=(FailureCause.EVICTED,))
    assert went(replace(before, jobs=(*before.jobs[:-1], moved)), policy()) == (["inst-1"], [])


def test_the_last_vcpus_are_kept_for_one_small_quiet_job() -> None:
    theirs = machine(9, TWO, idle_since=None)
    hush = running(50, theirs, asks=replace(ASKS, resources=need(1.0)), application="hush")
    most = running(8, PAID, asks=replace(ASKS, resources=need(6.0)))
    before = scene(PAID, theirs, hush, most, job(1, asks=ASKS, application="loud"), TWO)
    known_of = {**APPLICATIONS, "hush": known(10.0)}
    assert went(replace(before, applications=known_of), policy()) == ([], ["two"])
    assert went(replace(before, applications=APPLICATIONS), policy()) == (["inst-1"], [])


def test_a_job_that_takes_a_whole_machine_is_not_noisy_there() -> None:
    before = crowd("loud")
    alone = replace(before.jobs[-1], spec=replace(ASKS, exclusive=True))
    assert went(replace(before, jobs=(*before.jobs[:-1], alone)), policy()) == (["inst-1"], [])


def test_quiet_job_takes_what_is_kept() -> None:
    assert went(crowd("quiet"), policy()) == (["inst-1"], [])


@pytest.mark.parametrize(
    "snapshot",
    [
        pytest.param(crowd("loud", machines=3), id="more is free than quiet jobs hold elsewhere"),
        pytest.param(crowd("loud", rented="loud"), id="only loud ones are rented for"),
        pytest.param(crowd("never seen"), id="nothing is known of it"),
    ],
)
def test_reserved_room_is_open_to_all_if_no_quiet_job_would_fill_it(snapshot: Snapshot) -> None:
    assert went(snapshot, policy()) == (["inst-1"], [])


@pytest.mark.parametrize(
    "by", [policy(keeps=0.0), policy(keeps=2.0), policy(order="first_fit"), policy(order="interference_oblivious")]
)
def test_nothing_is_held_back_if_the_policy_says_so_or_uses_no_estimates(by: Policy) -> None:
    assert went(crowd("loud"), by) == (["inst-1"], [])


def test_where_nothing_can_be_rented_reserved_room_is_for_everybody() -> None:
    out = OfferBackoff(
        provider="mock", zone="a", instance_type="two", market=TWO.market.value, until_at=NOW + 60, error="none"
    )
    assert went(replace(crowd("loud"), backoffs=(out,)), policy()) == (["inst-1"], [])


def test_plan_for_one_that_was_kept_away_is_made_once() -> None:
    before = crowd("loud")
    assert not of(decide(apply_ideally(before, decide(before, policy())), policy()), Launch)
