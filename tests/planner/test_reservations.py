"""What a plan promises: room and money are counted once, and dropped whole."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hcloud.core.model import Constraints
from hcloud.planner.admission import admit
from hcloud.planner.context import PlanContext, open_context
from hcloud.planner.instance_lifecycle import reconcile_instances
from hcloud.planner.job_groups import JobGroup
from hcloud.planner.job_outcomes import decide_outcomes
from hcloud.planner.reservations import PlanReservations
from hcloud.planner.topology import TopologyConstraints
from hcloud.spec.policy import Budgets, Caps, ScopeBudget
from tests.planner.scenes import job, machine, need, offer, running, scene, spec
from tests.policies import simple

LARGE = offer("large", vcpus=8.0)
APART = Constraints(apart_from=("lonely",))
JOBS = (
    job(11, asks=spec(resources=need(1.0))),
    job(12, asks=spec(resources=need(2.5), user="bob")),
    job(13, asks=spec(name="lonely", placement=APART)),
    job(14, asks=spec(exclusive=True)),
)
FLEET = tuple(machine(number, LARGE) for number in (1, 2, 3))


def opened(**policy: Any) -> PlanContext:
    """Return the context of a plan over three machines and four waiting jobs of different groups, once admitted."""
    busy = running(1, FLEET[0], asks=spec(resources=need(4.0)))
    context = open_context(scene(busy, *FLEET, *JOBS, LARGE), simple(**policy), np.random.default_rng(0))
    decide_outcomes(context)
    reconcile_instances(context)
    admit(context)
    return context


@dataclass(frozen=True)
class Promised:
    """All that claims change, as values."""

    room: list[list[float]]
    free: list[list[float]]
    apart: list[list[bool]]


def promised(context: PlanContext, groups: list[JobGroup]) -> Promised:
    companies = [group.company for group in groups if group.company is not None]
    return Promised(
        room=context.fleet.room.round(9).tolist(),
        free=context.fleet.free.round(9).tolist(),
        apart=[context.topology.without_conflicts(each).tolist() for each in companies],
    )


Steps = st.lists(st.tuples(st.sampled_from(["claim", "use", "unclaim", "unuse"]), st.integers(0, 3), st.integers(0, 2)))


def check_rolls_back(steps: list[tuple[str, int, int]]) -> None:
    """Raise AssertionError unless all claims after a mark are dropped whole, and undone ones leave nothing."""
    context = opened()
    reservations, groups = context.reservations, [context.group_of(job) for job in JOBS]
    reservations.claim(groups[0], 0)
    before, mark = promised(context, groups), reservations.mark()
    made = list[tuple[JobGroup, int]]()
    for step, number, at in steps:
        group = groups[number]
        if step == "claim":
            reservations.claim(group, at)
            made.append((group, at))
        elif step == "use" and not group.exclusive:
            reservations.use(group, at)
            reservations.unuse(group, at)
        elif step == "unclaim" and made:
            group, at = made.pop()
            reservations.unclaim(group, [at])
    for group, at in made:
        reservations.unclaim(group, [at])
    assert promised(context, groups) == before
    for group, at in made:
        reservations.claim(group, at)
    reservations.back_to(mark)
    assert promised(context, groups) == before


@settings(max_examples=60)
@given(steps=Steps)
def test_claims_since_a_mark_are_dropped_whole(steps: list[tuple[str, int, int]]) -> None:
    check_rolls_back(steps)


@pytest.mark.parametrize(
    ("owner", "method"), [(TopologyConstraints, "back_to"), (PlanReservations, "unclaim"), (PlanReservations, "unuse")]
)
def test_property_catches_claims_that_are_not_dropped(
    owner: type, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, method, lambda *_: None)
    with pytest.raises(AssertionError):
        check_rolls_back([("use", 1, 1), ("claim", 2, 2), ("unclaim", 0, 0), ("claim", 2, 1)])


def test_claims_that_a_user_cannot_pay_are_refused_with_nothing_booked() -> None:
    limits = {"bob": ScopeBudget(per_day_usd=0.05)}
    context = opened(budgets=Budgets(per_user=limits))
    group, before = context.group_of(JOBS[1]), context.ledger
    refusal = context.reservations.book_claims(JOBS[1], group, [1, 2])
    assert refusal is not None and "bob" in refusal.text
    assert context.ledger is before
    assert context.reservations.book_claims(JOBS[0], context.group_of(JOBS[0]), [1, 2]) is None


def test_trial_of_the_account_is_adopted_or_dropped() -> None:
    context = opened(caps=Caps(max_instances=4))
    before = context.reservations.fork_ledger()
    context.ledger.book_launch(LARGE, {})
    assert context.ledger.refusal(LARGE, {}) is not None
    context.reservations.adopt(before)
    assert context.ledger.refusal(LARGE, {}) is None


def test_instances_closed_for_a_while_are_open_again_even_after_an_error() -> None:
    context = opened()

    def fail() -> None:
        with context.reservations.closed_to_all([1]):
            assert not context.fleet.placeable[1]
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert context.fleet.placeable[1]


def test_user_at_the_limit_of_jobs_is_refused_until_one_leaves() -> None:
    context = opened(caps=Caps(max_jobs_per_user=1))
    reservations = context.reservations
    assert reservations.user_cap(JOBS[1]) is None
    reservations.count_active(JOBS[1])
    refusal = reservations.user_cap(JOBS[1])
    assert refusal is not None and refusal.code == "cap_jobs_per_user"
    reservations.count_active(JOBS[1], -1)
    assert reservations.user_cap(JOBS[1]) is None
