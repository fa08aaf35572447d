"""ESP's schedules on programs of which all speeds are known."""

from __future__ import annotations

import numpy as np
import pytest

from lab.co_schedules import (
    CoRunSets,
    Group,
    any_server,
    by_difference,
    by_least_finish,
    drawn_servers,
    in_steps,
    least_finish,
    least_loss,
    most_varied,
    on_servers,
    shortest,
    until_one_ends,
)

FRIENDS = {frozenset({0, 1}), frozenset({2, 3})}


def _speed(member: int, beside: Group) -> float:
    """Friends do not feel each other; all others halve and worse."""
    together = frozenset({member, *beside})
    return 1.0 if together in FRIENDS else 0.4


TRUE = CoRunSets.of(4, 2, _speed)
BLIND = CoRunSets.of(4, 2, lambda member, beside: 0.9)
"""Expects the same of all."""
WORK = np.array([100.0, 100.0, 60.0, 40.0])


def test_shortest_schedule_runs_friends_together() -> None:
    times = shortest(TRUE, WORK)
    assert {TRUE.sets[at] for at in np.flatnonzero(times > 1e-9)} == {(0, 1), (2, 3), (2,)}
    assert times.sum() == pytest.approx(160.0)


def test_wrong_expectations_cost_less_the_smaller_the_steps() -> None:
    eager, careful = in_steps(TRUE, BLIND, WORK, 1.0), in_steps(TRUE, BLIND, WORK, 5.0)
    assert 160.0 <= careful < eager
    assert in_steps(TRUE, TRUE, WORK, 1.0) == pytest.approx(160.0)


def test_activity_vectors_put_together_what_differs_most() -> None:
    need = np.array([1.0, 0.0, 0.9, 0.1])
    assert most_varied(need)([0, 1, 2, 3], 2) == (0, 1)
    assert until_one_ends(TRUE, WORK, 2, most_varied(need)) == pytest.approx(160.0)
    assert until_one_ends(TRUE, WORK, 1, most_varied(need)) == pytest.approx(WORK.sum())


def test_jobs_go_where_all_is_done_soonest() -> None:
    jobs = [(0, 100.0), (2, 60.0), (1, 100.0), (3, 40.0)]
    work = by_least_finish(TRUE, jobs, 2)
    assert sorted(np.flatnonzero(work[:, at]).tolist() for at in range(2)) == [[0, 1], [2, 3]]
    assert by_difference(np.array([1.0, 0.0, 0.9, 0.1]), jobs, 2).sum() == pytest.approx(300.0)
    assert drawn_servers(4, jobs, 2, np.random.default_rng(1)).sum() == pytest.approx(300.0)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_all_work_is_done_and_never_faster_than_the_best_schedule(seed: int) -> None:
    rng = np.random.default_rng(seed)
    speeds = {(each, group): float(rng.uniform(0.1, 1.0)) for group in TRUE.sets for each in group}

    def speed(member: int, beside: Group) -> float:
        return speeds[member, tuple(sorted((member, *beside)))]

    true, asked = CoRunSets.of(4, 2, speed), rng.uniform(0.0, 50.0, 4) * (rng.random(4) < 0.8)
    times = shortest(true, asked)
    assert np.allclose(true.speeds @ times, asked, atol=1e-5)
    assert in_steps(true, BLIND, asked, 3.0) >= times.sum() - 1e-4
    assert until_one_ends(true, asked, 2, lambda live, count: tuple(live[:count])) >= times.sum() - 1e-4


# ------------------------------------------------------------------------------------------- as the product places them
THRASH = CoRunSets.of(3, 3, lambda member, beside: 0.95 if len(beside) == 1 else 0.3)
"""Any two run well together; all three do not."""


def test_programs_that_thrash_are_done_sooner_in_turns() -> None:
    jobs, only = [(0, 600.0), (1, 600.0), (2, 600.0)], least_loss(THRASH)
    together = on_servers(THRASH, THRASH, jobs, 1, place=only, step_s=None)
    turns = on_servers(THRASH, THRASH, jobs, 1, place=only, step_s=60.0)
    assert together.makespan_s == pytest.approx(2000.0) and together.pauses == 0
    assert turns.makespan_s < 1100.0 and turns.pauses > 1, "at best 947 s"


def test_what_a_set_shows_is_known_after_half_a_minute() -> None:
    hopeful = CoRunSets.of(3, 3, lambda member, beside: 0.95)
    jobs = [(0, 600.0), (1, 600.0), (2, 600.0)]
    turns = on_servers(THRASH, hopeful, jobs, 1, place=least_loss(hopeful), step_s=60.0)
    assert 600.0 < turns.makespan_s < 2000.0, "it is paused only once that was seen"
    assert on_servers(hopeful, hopeful, jobs, 1, place=least_loss(hopeful), step_s=60.0).pauses == 0


def test_jobs_wait_for_room_and_go_where_they_harm_least_or_are_done_soonest() -> None:
    true = CoRunSets.of(4, 2, _speed)
    jobs = [(0, 100.0), (2, 100.0), (1, 100.0), (3, 100.0)]
    for place in (least_loss(true), least_finish(true, in_turns=False)):
        assert on_servers(true, true, jobs, 2, place=place, step_s=None).makespan_s == pytest.approx(100.0)
    drawn = [
        on_servers(true, true, jobs, 2, place=any_server(np.random.default_rng(seed)), step_s=None).makespan_s
        for seed in range(8)
    ]
    assert max(drawn) > 200.0, "not all draws put friends together"
    assert on_servers(true, true, jobs, 1, place=least_loss(true), step_s=None).turnaround_s > 150.0
