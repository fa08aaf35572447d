"""Jobs that share a machine take turns where all are done sooner so (ESP, algorithm 2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from hcloud.classifier.slowdown.forecasts import NOTHING_OBSERVED, SlowdownForecasts
from hcloud.classifier.slowdown.table import CoRunQuestion, ExpectedSlowdown
from hcloud.core.estimates import Classification, Estimate, Measure
from hcloud.core.model import BatchTarget, BestEffortTarget, InstanceState, Job
from hcloud.planner.co_scheduling import PAUSED_LONG_S
from hcloud.planner.fit import co_run_schedule
from hcloud.planner.fit.co_run_schedule import Floats, Members, decide_running, members_of, shortest_times, together_s
from hcloud.planner.plan import Pause, Plan
from hcloud.planner.run_times import ran_for_s
from hcloud.planner.snapshot import Snapshot
from hcloud.provider import PAUSED_MOST_S
from hcloud.spec.policy import PlacementPolicy, Policy, ProfilingPolicy
from tests.planner.apply_model import apply_ideally
from tests.planner.scenes import NOW, decide, job, machine, of, running, scene, spec
from tests.planner.test_observed_slowdowns import learnt, observed
from tests.planner.test_placement_orders import APPLICATIONS, FAST
from tests.policies import simple

STEP_S = 60.0
ASKED = spec(target=BatchTarget())


def turns(**changes: object) -> Policy:
    placement = {"order": "co_schedule", "neighbours": "observed", "pause_step_s": STEP_S, **changes}
    learns = ProfilingPolicy(for_targets=("service",))
    return simple(placement=PlacementPolicy(**placement), profiling=learns)  # type: ignore[arg-type]


TURNS, NO_TURNS = turns(), turns(pause_step_s=0.0)


# ------------------------------------------------------------------------------------------------------- which run when
Shortest = Callable[[Floats, Floats], Floats]


def speeds_of(count: int, draw: Callable[[], float]) -> Floats:
    sets = members_of(count)
    found = np.zeros((count, len(sets)))
    for column, members in enumerate(sets):
        for each in members:
            found[each, column] = 1.0 if len(members) == 1 else draw()
    return found


def takes_least_time(shortest: Shortest, count: int, number: int) -> None:
    """Raise AssertionError if less time would do, or work is left."""
    rng = np.random.default_rng(number)
    speeds, work = speeds_of(count, lambda: float(rng.uniform(0.02, 1.0))), rng.uniform(1.0, 5000.0, count)
    times = shortest(speeds, work)
    best = linprog(np.ones(speeds.shape[1]), A_eq=speeds, b_eq=work, bounds=(0, None))
    assert (times >= 0.0).all() and np.allclose(speeds @ times, work)
    assert times.sum() == pytest.approx(best.fun)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(0, 10_000))
def test_all_work_is_done_in_the_least_time(count: int, number: int) -> None:
    takes_least_time(shortest_times, count, number)


def test_that_test_finds_one_that_only_runs_all_together() -> None:
    def all_together(speeds: Floats, work: Floats) -> Floats:
        times = np.zeros(speeds.shape[1])
        times[-1] = float((work / speeds[:, -1]).max())
        return times

    with pytest.raises(AssertionError):
        takes_least_time(all_together, 3, 1)


PAIRS = {frozenset({0, 1}): 0.9, frozenset({0, 2}): 0.9, frozenset({1, 2}): 0.9}
"""Any two run well together; all three do not."""


def thrash(number: int, members: Members) -> float:
    return 1.0 if len(members) == 1 else PAIRS.get(members, 0.3)


def run_until_done(work_s: list[float], speed: Callable[[int, Members], float], step_s: float = 1.0) -> float:
    """Return when all is done if it is decided again and again."""
    left, now_running, since_s, at = dict(enumerate(work_s)), frozenset[int](), 0.0, 0.0
    while left:
        names = sorted(left)

        def known(number: int, members: Members, names: list[int] = names) -> float:
            return speed(names[number], frozenset(names[each] for each in members))

        running = frozenset(number for number, name in enumerate(names) if name in now_running)
        found = decide_running([left[name] for name in names], known, running, since_s, step_s)
        chosen = frozenset(names[number] for number in found.running)
        since_s = since_s if chosen == now_running else 0.0
        next_s = min([found.for_s + 1e-6, *(left[each] / speed(each, chosen) for each in chosen)])
        at, since_s, now_running = at + next_s, since_s + next_s, chosen
        left = {each: left_s - speed(each, chosen) * next_s * (each in chosen) for each, left_s in left.items()}
        left = {each: left_s for each, left_s in left.items() if left_s > 1e-6}
        now_running = frozenset(each for each in now_running if each in left)
    return at


def test_programs_that_thrash_all_together_take_turns_in_pairs_and_are_done_sooner() -> None:
    work = [100.0, 100.0, 100.0]
    assert together_s(work, thrash) == pytest.approx(333.3, abs=0.1)
    took_s = run_until_done(work, thrash)
    assert took_s < 180.0, "at best 166.7 s; in the end one may be left alone"
    assert run_until_done(work, lambda number, members: 0.9) < 112.0, "these run together"


def test_a_set_runs_for_a_step_at_least_and_all_take_their_turn() -> None:
    work, pair = [100.0, 100.0, 100.0], frozenset({0, 1})
    assert decide_running(work, thrash, pair, 5.0, 10.0).running == pair
    later = decide_running([60.0, 60.0, 100.0], thrash, pair, 60.0, 10.0)
    assert later.running != pair and 2 in later.running
    urgent = decide_running([90.0, 90.0, 100.0], thrash, pair, 1.0, 10.0, overdue=frozenset({2}))
    assert 2 in urgent.running


# ------------------------------------------------------------------------------------------------------------- of plans
def rated(name: str, run_s: float) -> Classification:
    rate = Estimate(value=1 / run_s, low=1 / run_s, high=1 / run_s)
    return replace(APPLICATIONS[name], by_type={"mock/fast": rate}, measure=Measure.COMPLETION)


PROGRAMS = {"loud": rated("loud", 1000.0), "calm": rated("calm", 900.0), "fragile": rated("fragile", 800.0)}


@dataclass(frozen=True)
class BySize:
    """Speeds by how many run together."""

    speeds: Sequence[float]

    def slowdown(self, question: CoRunQuestion) -> ExpectedSlowdown:
        return ExpectedSlowdown(-math.log(self.speeds[min(2, len(question.neighbours))]), 0.01)


def met(two: float, all_of_them: float) -> SlowdownForecasts:
    """All programs were observed with each other."""
    blend = BySize((1.0, two, all_of_them))
    return SlowdownForecasts(blend=blend, companions={name: set(PROGRAMS) for name in PROGRAMS})  # type: ignore[arg-type]


def three(two: float = 0.95, all_of_them: float = 0.2, **changes: object) -> Snapshot:
    """Three jobs on one machine."""
    one = machine(1, FAST)
    jobs = [running(at, one, application=name, asks=ASKED) for at, name in enumerate(sorted(PROGRAMS), 1)]
    return scene(*jobs, one, applications=PROGRAMS, slowdowns=met(two, all_of_them), **changes)


def paused(plan: Plan) -> Mapping[str, bool]:
    return {each.job_id: not each.undo for each in of(plan, Pause)}


def later(snapshot: Snapshot, seconds: float) -> Snapshot:
    return replace(snapshot, now=snapshot.now + seconds)


def with_held(given: Job, **changes: object) -> Job:
    assert given.attempt is not None
    (held,) = given.attempt.allocations
    return replace(given, attempt=replace(given.attempt, allocations=(replace(held, **changes),)))  # type: ignore[arg-type]


def test_one_of_three_that_thrash_is_paused_and_the_reason_names_the_others_and_the_time() -> None:
    plan = decide(three(), TURNS)
    [pause] = of(plan, Pause)
    assert (pause.undo, pause.instance_id, pause.rank) == (False, "inst-1", 0)
    others = sorted({"job-1", "job-2", "job-3"} - {pause.job_id})
    assert pause.reason.code == "paused"
    assert pause.reason.text.startswith(f"paused on inst-1 while {others[0]} and {others[1]} run, for about ")
    assert "in turns all are expected to be done in" in pause.reason.text
    assert pause.reason.numbers["in_turns_s"] < pause.reason.numbers["together_s"]  # type: ignore[operator]
    assert NOW + STEP_S <= plan.due_at < math.inf
    assert not of(decide(apply_ideally(three(), plan), TURNS), Pause), "it is decided"


def test_all_of_them_get_their_turns() -> None:
    snapshot, was_paused = three(), set[str]()
    for _ in range(20):
        plan = decide(snapshot, TURNS)
        was_paused |= {name for name, paused_now in paused(plan).items() if paused_now}
        snapshot = apply_ideally(snapshot, plan)
        running_now = [each for each in snapshot.jobs if each.attempt and each.attempt.allocations[0].paused_at is None]
        assert len(running_now) in (2, 3)
        snapshot = later(snapshot, 61.0)
    assert was_paused == {"job-1", "job-2", "job-3"}


@pytest.mark.parametrize(
    ("snapshot", "policy"),
    [
        (three(), NO_TURNS),
        (three(), turns(order="least_loss", pause_step_s=0.0)),
        (three(0.95, 0.9), TURNS),
        (three(paused="by ada"), TURNS),
        (three(engine_reachable=False), TURNS),
        (three(reachable=frozenset()), TURNS),
    ],
)
def test_nothing_is_paused_where_it_is_off_or_does_not_pay_or_nothing_can_be_done(
    snapshot: Snapshot, policy: Policy
) -> None:
    assert not of(decide(snapshot, policy), Pause)


def test_nothing_is_paused_where_programs_were_never_observed_together_or_run_times_are_not_known() -> None:
    snapshot = three()
    assert not of(decide(replace(snapshot, slowdowns=learnt(known=PROGRAMS)), TURNS), Pause)
    unknown = {name: replace(each, measure=None) for name, each in PROGRAMS.items()}
    assert not of(decide(replace(snapshot, applications=unknown), TURNS), Pause)


def test_jobs_that_promise_something_always_run() -> None:
    snapshot = three()
    asks = spec(target=BatchTarget(finish_within_s=50_000.0))
    with_deadline = replace(snapshot.jobs[0], spec=asks)
    others = snapshot.jobs[1:]
    found = paused(decide(replace(snapshot, jobs=(with_deadline, *others)), TURNS))
    assert len(found) == 1 and "job-1" not in found
    refused = tuple(with_held(each, refuses_pause=True) for each in snapshot.jobs)
    assert not of(decide(replace(snapshot, jobs=refused), TURNS), Pause)
    for changes in ({"cancelled_by": "ada"}, {"needed_for": "job-9"}):
        jobs = tuple(replace(each, **changes) for each in snapshot.jobs)  # type: ignore[arg-type]
        assert not of(decide(replace(snapshot, jobs=jobs), TURNS), Pause)
    free = tuple(replace(each, spec=spec(target=BestEffortTarget())) for each in snapshot.jobs)
    assert len(of(decide(replace(snapshot, jobs=free), TURNS), Pause)) == 1


def one_paused() -> Snapshot:
    snapshot = three()
    return apply_ideally(snapshot, decide(snapshot, TURNS))


def test_all_are_resumed_when_it_is_switched_off_or_the_machine_drains_or_is_reclaimed() -> None:
    snapshot = one_paused()
    [name] = [each.id for each in snapshot.jobs if each.attempt and each.attempt.allocations[0].paused_at is not None]
    for policy in (NO_TURNS, turns(order="least_loss", neighbours="pressures", pause_step_s=0.0)):
        assert paused(decide(snapshot, policy)) == {name: False}
    [one] = snapshot.instances
    for changed in (replace(one, state=InstanceState.DRAINING), replace(one, preempt_at=NOW + 100.0)):
        assert paused(decide(replace(snapshot, instances=(changed,)), TURNS)) == {name: False}
    assert paused(decide(replace(snapshot, paused="by ada"), TURNS)) == {name: False}


def test_the_last_one_runs_when_the_others_have_ended() -> None:
    snapshot = one_paused()
    [left] = [each for each in snapshot.jobs if each.attempt and each.attempt.allocations[0].paused_at is not None]
    assert paused(decide(replace(snapshot, jobs=(left,)), TURNS)) == {left.id: False}


def test_units_stay_as_they_are_until_a_daemon_that_starts_has_read_what_neighbours_cost() -> None:
    snapshot = replace(one_paused(), slowdowns=NOTHING_OBSERVED)
    [left] = [each for each in snapshot.jobs if each.attempt and each.attempt.allocations[0].paused_at is not None]
    assert not of(decide(snapshot, TURNS), Pause)
    assert paused(decide(replace(snapshot, jobs=(left,)), TURNS)) == {left.id: False}, "nothing else runs there"
    assert paused(decide(later(snapshot, PAUSED_LONG_S), TURNS)) == {left.id: False}, "it was paused for long"
    never_met = learnt(observed("other", "another", speed=0.5))
    assert paused(decide(replace(snapshot, slowdowns=never_met), TURNS)) == {left.id: False}


def test_what_was_paused_for_long_runs_next_before_its_worker_resumes_it() -> None:
    assert PAUSED_LONG_S + 600.0 <= PAUSED_MOST_S
    slow = {name: replace(each, by_type=rated(name, 1e6).by_type) for name, each in PROGRAMS.items()}
    snapshot = replace(three(), applications=slow)
    snapshot = apply_ideally(snapshot, decide(snapshot, TURNS))
    [name] = [each.id for each in snapshot.jobs if each.attempt and each.attempt.allocations[0].paused_at is not None]
    assert not of(decide(later(snapshot, PAUSED_LONG_S - 1.0), TURNS), Pause), "its turn is later"
    assert paused(decide(later(snapshot, PAUSED_LONG_S), TURNS))[name] is False


def test_a_pause_does_not_count_as_run_time() -> None:
    snapshot = one_paused()
    [name] = [each.id for each in snapshot.jobs if each.attempt and each.attempt.allocations[0].paused_at is not None]
    ages = {each.id: ran_for_s(each, NOW + 700.0) for each in snapshot.jobs}
    assert ages == {each.id: 100.0 if each.id == name else 800.0 for each in snapshot.jobs}
    resumed = apply_ideally(later(snapshot, 500.0), decide(later(snapshot, 500.0), NO_TURNS))
    assert {each.id: ran_for_s(each, NOW + 700.0) for each in resumed.jobs}[name] == 300.0


def test_a_planner_that_forgets_the_step_switches_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = later(one_paused(), 1.0)
    assert not of(decide(snapshot, TURNS), Pause)
    monkeypatch.setattr(co_run_schedule, "CAUTION", math.inf)
    assert of(decide(snapshot, turns(pause_step_s=0.001)), Pause)


def test_turns_are_refused_where_nothing_would_ever_be_paused() -> None:
    with pytest.raises(ValueError, match="needs neighbours: observed"):
        turns(neighbours="pressures")
    with pytest.raises(ValueError, match="needs order: co_schedule; with least_loss no job is paused for another"):
        turns(order="least_loss")
    with pytest.raises(ValueError, match=r"must be 0 with profiling\.when: never"):
        replace(TURNS, profiling=ProfilingPolicy(when="never"))


def test_waiting_jobs_are_placed_as_before() -> None:
    snapshot = three()
    waiting = job(9, asks=ASKED, application="fragile", queued_at=NOW)
    plan = decide(replace(snapshot, jobs=(*snapshot.jobs, waiting)), TURNS)
    assert len(of(plan, Pause)) == 1
