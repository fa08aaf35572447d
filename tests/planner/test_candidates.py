"""What a placed job had to choose from is told of types: of each its first machine, and why it was not taken."""

from __future__ import annotations

import pytest

from hcloud.planner.plan import Candidate, Place
from tests.planner.scenes import decide, job, machine, need, of, offer, running, scene, spec

LARGE, LARGE_LATER, TINY = offer("large", 4.0, 0.2), offer("large", 4.0, 0.9), offer("tiny", 0.5, 0.01)


def candidates_beside(*things: object) -> dict[str, Candidate]:
    """The candidates of the one job that waits, by type."""
    placed = of(decide(scene(job(9, asks=spec(resources=need(1.0))), *things)), Place)  # type: ignore[arg-type]
    return {each.column.partition("/")[2]: each for each in placed[0].candidates}


def test_types_without_room_say_so_beside_the_chosen_one() -> None:
    full = machine(1)
    told = candidates_beside(full, machine(2, LARGE), running(1, full, asks=spec(resources=need(2.0))))
    assert {name: each.rejected for name, each in told.items()} == {"large": "", "small": "no room"}


def test_too_small_types_are_no_candidates() -> None:
    assert set(candidates_beside(machine(1, TINY), machine(2))) == {"small"}


@pytest.mark.parametrize("later", [2, 3])
def test_the_first_machine_of_a_type_says_what_it_costs(later: int) -> None:
    told = candidates_beside(machine(1, LARGE), machine(later, LARGE_LATER), machine(5))
    assert told["large"].usd_per_h == pytest.approx(LARGE.price_usd_per_h / 4)
