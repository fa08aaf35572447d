"""The candidates of a placed job are types by market: what each costs, and why it was not chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hcloud.core.model import Market
from hcloud.planner.plan import Candidate, Place
from tests.planner.scenes import decide, job, machine, need, of, offer, running, scene, spec
from tests.policies import simple

LARGE, LARGE_LATER, TINY = offer("large", 4.0, 0.2), offer("large", 4.0, 0.9), offer("tiny", 0.5, 0.01)


def candidates_beside(*things: object) -> dict[str, Candidate]:
    """Return the candidates of the one waiting job, by type."""
    placed = of(decide(scene(job(9, asks=spec(resources=need(1.0))), *things)), Place)  # type: ignore[arg-type]
    return {each.column.partition("/")[2]: each for each in placed[0].candidates}


def test_types_without_room_are_candidates_too() -> None:
    full = machine(1)
    told = candidates_beside(full, machine(2, LARGE), running(1, full, asks=spec(resources=need(2.0))))
    assert {name: each.rejected for name, each in told.items()} == {"large": "", "small": "no room"}


def test_too_small_types_are_no_candidates() -> None:
    assert set(candidates_beside(machine(1, TINY), machine(2))) == {"small"}


SPOT = offer("large", 4.0, 0.06, market=Market.SPOT)


def test_the_chosen_one_costs_what_its_machine_costs_and_others_the_least_they_do() -> None:
    full = machine(2, LARGE)
    there = (machine(1, LARGE_LATER), full, running(1, full, asks=spec(resources=need(4.0))), machine(3, TINY))
    asks = spec(resources=need(0.5))
    placed = of(decide(scene(job(9, asks=asks), running(8, machine(3, TINY), asks=asks), *there)), Place)
    assert [(each.column, each.usd_per_h, each.rejected) for each in placed[0].candidates] == [
        ("mock/large", pytest.approx(0.9 / 8), ""),
        ("mock/tiny", pytest.approx(0.01), "no room"),
    ]


@pytest.mark.parametrize("may_be_interrupted", [True, False])
def test_candidates_of_one_type_differ_by_market(may_be_interrupted: bool) -> None:
    there = (machine(1, offer("large", 4.0, 0.2)), machine(2, SPOT), offer("small"))
    dearer, cheaper = (offer(usd_per_h=price, market=Market.SPOT) for price in (0.05, 0.04))
    asks = spec(resources=need(2.0), interruptible=may_be_interrupted)
    filled = simple(retention=replace(simple().retention, drain=False))
    [placed] = of(decide(scene(job(9, asks=asks), *there, dearer, cheaper), filled), Place)
    told = {(each.column, each.market): each.usd_per_h for each in placed.candidates}
    steady = {("mock/large", Market.ON_DEMAND): 0.1, ("mock/small", Market.ON_DEMAND): 0.1}
    spot = {("mock/large", Market.SPOT): 0.03, ("mock/small", Market.SPOT): 0.04}
    assert told == pytest.approx(steady | spot if may_be_interrupted else steady)


def test_equal_jobs_in_different_markets_have_their_own_price() -> None:
    placed = of(decide(scene(*(job(n, asks=spec(resources=need(4.0))) for n in (8, 9)), machine(1, LARGE),
                             machine(2, SPOT))), Place)  # fmt: skip
    told = {each.ranks[0].instance_id: each.candidates[0] for each in placed}
    assert {name: (each.market, each.usd_per_h) for name, each in told.items()} == {
        "inst-1": (Market.ON_DEMAND, 0.2),
        "inst-2": (Market.SPOT, 0.06),
    }
