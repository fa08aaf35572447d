"""The linear program that plans ahead: the paper's example, small cases by trying, and what always holds."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hcloud.forecast.runtimes.distribution import RunTimes
from hcloud.planner.plan_ahead import linear_program, packing
from hcloud.planner.plan_ahead.expected import (
    Floats,
    Utility,
    expected_rest,
    expected_use,
    expected_utility,
    overestimated,
    point,
    slot_starts,
)
from hcloud.planner.plan_ahead.linear_program import (
    PendingJob,
    RunningJob,
    ScheduleOfStarts,
    StartOption,
    expected_rests,
    schedule,
)

POOL = frozenset((0,))
STEPS = np.arange(0.0, 20.0, 2.5)


def uniform(low_s: float, high_s: float) -> RunTimes:
    """Return a run time that is uniform between two limits."""
    times = np.linspace(max(low_s, 1e-3), high_s, 400)
    return RunTimes(times, (times - times[0]) / (times[-1] - times[0]))


def pending(number: int, run_time: RunTimes, utility: Utility, amount: float = 1.0, *places: StartOption) -> PendingJob:
    """Return a job that waits; without places: for pool 0."""
    return PendingJob(
        number=number, amount=amount, run_time=run_time, utility=utility, places=places or (StartOption(pools=POOL),)
    )


def in_time(deadline_s: float, value: float = 1.0) -> Utility:
    """Return what a job with a deadline is worth."""
    return Utility(value=value, until_s=deadline_s)


def soon(value: float, decay_s: float) -> Utility:
    """Return what a best-effort job is worth."""
    return Utility(value=value, until_s=0.0, decay_s=decay_s)


def started(found: ScheduleOfStarts) -> list[int]:
    """Return the jobs that start now."""
    return [each.number for each in found.starting]


# ------------------------------------------------------------------------------------------------------------ the paper
@pytest.mark.parametrize(("run_time", "first"), [(uniform(0, 10), 1), (uniform(2.5, 7.5), 2)])
def test_example_of_the_paper_depends_on_the_whole_distribution(run_time: RunTimes, first: int) -> None:
    # Two jobs for one node: job 1 has a deadline in 15 min, job 2 is best effort. Both take 5 min on average. Only
    # where no run is long may job 1 come second (3Sigma fig. 5).
    jobs = [pending(1, run_time, in_time(15.0)), pending(2, run_time, soon(0.5, 40.0))]
    found = schedule(jobs, [], {0: 1.0}, STEPS)
    assert started(found) == [first]


def test_expected_utility_and_use_are_the_papers_numbers() -> None:
    run_time = uniform(0, 10)
    starts = np.array([0.0, 5.0, 7.5, 10.0, 12.5, 15.0])
    assert expected_utility(in_time(15.0), run_time, starts) == pytest.approx([1, 1, 0.75, 0.5, 0.25, 0], abs=0.01)
    after = np.array([-2.5, 0.0, 2.5, 5.0, 7.5, 10.0])
    assert expected_use(run_time, after) == pytest.approx([0, 1, 0.75, 0.5, 0.25, 0], abs=0.01)
    assert expected_rest(run_time, 5.0, np.array([0.0, 2.5, 5.0])) == pytest.approx([1.0, 0.5, 0.0], abs=0.01)


def test_a_job_runs_longer_on_machines_it_does_not_prefer() -> None:
    starts = np.array([0.0])
    assert expected_utility(in_time(12.0), uniform(0, 10), starts, 1.5) == pytest.approx([0.8], abs=0.01)


def test_a_falling_value_is_the_mean_over_its_fall() -> None:
    known = point(100.0)
    found = expected_utility(Utility(value=2.0, until_s=50.0, decay_s=100.0), known, np.array([0.0, 200.0]))
    assert found == pytest.approx([1.0, 0.0], abs=0.01)


def test_a_deadline_shorter_than_all_known_runs_shows_an_overestimate() -> None:
    assert overestimated(uniform(100, 200), 90.0, 0.05)
    assert not overestimated(uniform(100, 200), 110.0, 0.05)


def test_slots_begin_now_and_grow() -> None:
    found = slot_starts(7200.0, 15.0, 12)
    assert found[:2].tolist() == [0.0, 15.0]
    assert found[-1] == pytest.approx(7200.0)
    assert (np.diff(np.diff(found[1:])) > 0.0).all()
    assert slot_starts(10.0, 15.0, 12).tolist() == [0.0, 15.0]


# -------------------------------------------------------------------------------------------------------------- choices
def test_a_job_waits_for_the_machines_it_prefers_if_it_can() -> None:
    busy = RunningJob(number=9, amounts={0: 1.0}, run_time=point(20.0), age_s=10.0)
    both = (StartOption(pools=POOL), StartOption(pools=frozenset((0, 1)), stretch=1.5))
    starts = slot_starts(200.0, 5.0, 8)
    patient = pending(1, point(50.0), in_time(100.0), 1.0, *both)
    hurried = pending(1, point(50.0), in_time(76.0), 1.0, *both)
    other = pending(2, point(50.0), in_time(55.0), 1.0, StartOption(pools=frozenset((1,))))
    assert started(schedule([hurried], [busy], {0: 1.0, 1: 1.0}, starts)) == [1]
    found = schedule([patient, other], [busy], {0: 1.0, 1: 1.0}, starts)
    assert started(found) == [2]
    assert 10.0 <= found.starts_s[1] <= 50.0


def test_room_that_costs_nothing_is_worth_waiting_for_until_the_deadline_is_at_risk() -> None:
    busy = RunningJob(number=9, amounts={0: 1.0}, run_time=point(60.0), age_s=0.0)
    places = (StartOption(pools=POOL), StartOption(pools=frozenset((1,)), usd=1.0, lasting=False))
    starts = slot_starts(400.0, 15.0, 8)
    for deadline_s, expected in ((400.0, []), (120.0, [1])):
        job = pending(1, uniform(60, 120), in_time(deadline_s, 20.0), 1.0, *places)
        found = schedule([job], [busy], {0: 1.0, 1: 9.0}, starts)
        assert started(found) == expected
    assert [each.place for each in found.starting] == [1]


def test_room_that_does_not_last_is_for_jobs_that_start_now() -> None:
    fleeting = StartOption(pools=POOL, lasting=False)
    jobs = [pending(n, point(50.0), in_time(1000.0), 1.0, fleeting) for n in (1, 2)]
    found = schedule(jobs, [], {0: 1.0}, slot_starts(400.0, 15.0, 8))
    assert (started(found), dict(found.starts_s)) == ([1], {})


def test_a_job_is_stopped_only_for_one_that_is_worth_more() -> None:
    urgent = pending(1, point(50.0), in_time(60.0, 10.0))
    for cost, stopped in ((1.0, (9,)), (20.0, ()), (None, ())):
        held = RunningJob(number=9, amounts={0: 1.0}, run_time=point(500.0), age_s=10.0, stop_cost=cost)
        found = schedule([urgent], [held], {0: 1.0}, slot_starts(400.0, 15.0, 8))
        assert (found.stopping, started(found)) == (stopped, [1] if stopped else [])


def test_nothing_waits_and_nothing_is_possible() -> None:
    assert schedule([], [], {0: 1.0}, STEPS) == ScheduleOfStarts()
    assert schedule([pending(1, point(50.0), in_time(10.0))], [], {0: 1.0}, STEPS) == ScheduleOfStarts()


def test_where_the_solver_reaches_its_limit_nothing_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [pending(n, uniform(10, 60), in_time(90.0 + n), 1.0) for n in range(30)]
    starts = slot_starts(400.0, 15.0, 8)
    assert started(schedule(jobs, [], {0: 4.0}, starts))
    monkeypatch.setattr(packing, "MOST_ITERATIONS", 1)
    found = schedule(jobs, [], {0: 4.0}, starts)
    assert (found.starting, dict(found.starts_s)) == ((), {})


def test_of_jobs_of_one_kind_the_first_start_first() -> None:
    jobs = [pending(n, point(50.0), in_time(500.0)) for n in range(10)]
    found = schedule(jobs, [], {0: 3.0}, slot_starts(400.0, 25.0, 8))
    assert started(found) == [0, 1, 2]
    later_s = [found.starts_s[number] for number in sorted(found.starts_s)]
    assert sorted(found.starts_s) == list(range(3, 10)) and later_s == sorted(later_s)


def test_equal_run_times_are_one_whether_they_are_one_object_or_not() -> None:
    shared = uniform(10, 60)
    starts = slot_starts(400.0, 15.0, 8)
    busy = [RunningJob(number=90 + n, amounts={0: 1.0}, run_time=shared, age_s=5.0 * n) for n in range(3)]
    one = schedule([pending(n, shared, in_time(90.0)) for n in range(12)], busy, {0: 5.0}, starts)
    apart = [replace(each, run_time=uniform(10, 60)) for each in busy]
    other = schedule([pending(n, uniform(10, 60), in_time(90.0)) for n in range(12)], apart, {0: 5.0}, starts)
    assert one == other and started(one) and one.starts_s


@pytest.mark.parametrize("stretch", [1.0, 1.5])
def test_the_rest_of_running_jobs_is_that_of_their_distribution_at_their_age(stretch: float) -> None:
    run_time, ages_s = uniform(10, 60), [0.0, 5.0, 15.0, 44.0, 61.0, 500.0]
    held = [
        RunningJob(number=n, amounts={0: 1.0}, run_time=run_time, age_s=age_s, stretch=stretch)
        for n, age_s in enumerate(ages_s)
    ]
    found = expected_rests(held, STEPS)
    for row, age_s in zip(found, ages_s, strict=True):
        left = run_time.after(age_s / stretch)
        assert row == pytest.approx([1.0 - left.cdf((age_s + step_s) / stretch) for step_s in STEPS.tolist()], abs=1e-9)


def test_with_very_many_sets_of_pools_starts_still_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_program, "MOST_UNIONS", 3)
    sets = [frozenset((n, (n + 1) % 6)) for n in range(6)]
    jobs = [pending(n, point(50.0), in_time(60.0), 1.0, StartOption(pools=sets[n % 6])) for n in range(12)]
    found = schedule(jobs, [], dict.fromkeys(range(6), 1.0), STEPS)
    assert broken_by(found, (jobs, [], dict.fromkeys(range(6), 1.0))) == ""
    assert 4 <= len(started(found)) <= 6


# --------------------------------------------------------------------------------------------------------- what is held
@st.composite
def cases(draw: st.DrawFn) -> tuple[list[PendingJob], list[RunningJob], dict[int, float]]:
    """Return waiting and running jobs for two pools."""
    capacity = {0: float(draw(st.integers(0, 6))), 1: float(draw(st.integers(0, 6)))}
    sets = [frozenset((0,)), frozenset((1,)), frozenset((0, 1))]
    waiting = []
    for number in range(draw(st.integers(1, 8))):
        run_s = draw(st.sampled_from([5.0, 20.0, 80.0, 300.0]))
        run_time = draw(st.sampled_from([point(run_s), uniform(0.5 * run_s, 2 * run_s)]))
        utility = draw(st.sampled_from([in_time(1.4 * run_s), in_time(4 * run_s, 2.0), soon(0.3, 600.0)]))
        places = [StartOption(pools=draw(st.sampled_from(sets)))]
        if draw(st.booleans()):
            places.append(StartOption(pools=sets[2], stretch=1.5, usd=draw(st.sampled_from([0.0, 0.05]))))
        amount = float(draw(st.integers(1, 4)))
        waiting.append(pending(number, run_time, utility, amount, *places))
    running, left = [], dict(capacity)
    for number in range(draw(st.integers(0, 4))):
        pool = draw(st.sampled_from([0, 1]))
        held = min(left[pool], float(draw(st.integers(1, 3))))
        if held:
            left[pool] -= held
            cost = draw(st.sampled_from([None, 0.1, 1.0]))
            age_s = draw(st.sampled_from([0.0, 30.0]))
            running.append(
                RunningJob(
                    number=100 + number, amounts={pool: held}, run_time=uniform(20, 90), age_s=age_s, stop_cost=cost
                )
            )
    return waiting, running, capacity


def broken_by(found: ScheduleOfStarts, case: tuple[list[PendingJob], list[RunningJob], dict[int, float]]) -> str:
    """Return what is wrong with a schedule; empty: nothing."""
    waiting, running, capacity = case
    jobs = {each.number: each for each in waiting}
    if len(started(found)) != len(set(started(found))):
        return "a job starts twice"
    if any(number in found.starts_s for number in started(found)):
        return "a job starts now and later"
    stoppable = {each.number for each in running if each.stop_cost is not None}
    if not set(found.stopping) <= stoppable:
        return "a job is stopped that may not be"
    free = dict(capacity)
    for each in running:
        for pool, amount in each.amounts.items():
            free[pool] -= 0.0 if each.number in found.stopping else amount
    wanted: dict[frozenset[int], float] = {}
    for each in found.starting:
        pools = jobs[each.number].places[each.place].pools
        wanted[pools] = wanted.get(pools, 0.0) + jobs[each.number].amount
    for some in (frozenset((0,)), frozenset((1,)), frozenset((0, 1))):
        inside = sum(amount for pools, amount in wanted.items() if pools <= some)
        if inside > sum(free[pool] for pool in some) + 1e-6:
            return "more starts than there is room"
    if found.value > found.bound + 1e-6:
        return "it is worth more than the bound"
    return ""


@settings(max_examples=60)
@given(cases())
def test_starts_fit_into_the_room_and_stop_only_what_may_be_stopped(
    case: tuple[list[PendingJob], list[RunningJob], dict[int, float]],
) -> None:
    starts = slot_starts(600.0, 10.0, 6)
    found = schedule(*case, starts)
    assert broken_by(found, case) == ""
    assert schedule(*case, starts) == found


def test_a_schedule_that_overfills_a_pool_is_noticed() -> None:
    jobs = [pending(n, point(50.0), in_time(1000.0), 2.0) for n in (1, 2)]
    found = schedule(jobs, [], {0: 4.0, 1: 0.0}, STEPS)
    assert started(found) == [1, 2]
    assert broken_by(found, (jobs, [], {0: 4.0, 1: 0.0})) == ""
    assert broken_by(found, (jobs, [], {0: 3.0, 1: 0.0})) == "more starts than there is room"


def best_by_trying(jobs: Sequence[PendingJob], room: float, starts: Floats) -> float:
    """Return what the best of all whole schedules is worth, by what is expected; jobs for pool 0 only."""
    return max(_values(jobs, room, starts), default=0.0)


def _values(jobs: Sequence[PendingJob], room: float, starts: Floats) -> Iterator[float]:
    for slots in product(range(-1, len(starts)), repeat=len(jobs)):
        used, value = np.zeros(len(starts)), 0.0
        for job, slot in zip(jobs, slots, strict=True):
            if slot >= 0:
                used += job.amount * expected_use(job.run_time, starts - starts[slot])
                value += float(expected_utility(job.utility, job.run_time, starts[slot : slot + 1])[0])
        if (used <= room + 1e-9).all():
            yield value


@pytest.mark.parametrize("seed", range(6))
def test_the_bound_is_never_below_the_best_whole_schedule(seed: int) -> None:
    rng, starts = np.random.default_rng(seed), np.array([0.0, 10.0, 25.0, 60.0])
    jobs = []
    for number in range(4):
        run_s = float(rng.choice([8.0, 20.0, 50.0]))
        utility = in_time(run_s * float(rng.choice([1.2, 2.0, 3.0])), float(rng.choice([1.0, 2.0])))
        jobs.append(pending(number, uniform(0.5 * run_s, 1.5 * run_s), utility, float(rng.choice([1.0, 2.0]))))
    found, best = schedule(jobs, [], {0: 3.0}, starts), best_by_trying(jobs, 3.0, starts)
    assert best <= found.bound * (1 + 1e-3)
    assert found.bound <= 1.5 * best
