"""Planning in spite of defects: what fails is found, and only that is left out."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from math import log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcloud.core.model import InstanceState, Job, JobState
from hcloud.planner import make_plan
from hcloud.planner.job_outcomes import PLANNING_FAILS
from hcloud.planner.make import GROWTH, OPTIONAL_STAGES, STAGES
from hcloud.planner.plan import Finish, Launch, Place, Plan, Renew, StopAttempt, Wait
from hcloud.planner.snapshot import LeftOut, Snapshot
from hcloud.quarantine.planning import FAILING_JOBS_MAX, TRIALS_MAX, RecoveredPlan, plan_without_failing
from hcloud.spec.policy import Caps, Policy
from lab.soak.planted_defects import Planted
from tests.planner.scenes import NOW, decide, ended, job, machine, of, offer, running, scene, spec, told
from tests.policies import simple

FIRST = Planted("the first")


@dataclass
class Defective:
    """A planner that fails where ``fails`` says so, and counts its plans."""

    fails: Callable[[set[str], LeftOut], bool]
    plans: int = 0
    drawn: list[float] = field(default_factory=list)

    def __call__(self, snapshot: Snapshot, policy: Policy, rng: np.random.Generator) -> Plan:
        self.plans += 1
        self.drawn.append(float(rng.random()))
        if self.fails({each.id for each in snapshot.jobs} - set(snapshot.left_out.jobs), snapshot.left_out):
            raise Planted(f"no. {self.plans}")
        return make_plan(snapshot, policy, rng)


def despite(planner: Defective, snapshot: Snapshot, suspects: LeftOut | None = None) -> RecoveredPlan:
    rng = np.random.default_rng(0)
    return plan_without_failing(planner, snapshot, simple(), rng, FIRST, suspects=suspects or LeftOut())


def waiting(count: int) -> list[Job]:
    return [job(number) for number in range(1, count + 1)]


def names(*numbers: int) -> set[str]:
    return {f"job-{number}" for number in numbers}


# -------------------------------------------------------------------------------------------------------- what is found
@given(st.integers(1, 40), st.data())
def test_exactly_the_jobs_that_planning_fails_on_are_left_out(count: int, data: st.DataObject) -> None:
    numbers = st.sets(st.integers(1, count), min_size=1)
    poison = names(*data.draw(numbers))
    found = despite(Defective(lambda there, _: bool(there & poison)), scene(*waiting(count)))
    assert set(found.left_out.jobs) == poison
    assert not found.left_out.stages


def test_a_job_in_a_thousand_is_found_by_halves() -> None:
    planner = Defective(lambda there, _: "job-437" in there)
    found = despite(planner, scene(*waiting(1000)))
    assert set(found.left_out.jobs) == {"job-437"}
    assert planner.plans <= 4 + 2 * log2(1000)


def test_jobs_that_only_fail_together_cost_one_of_them() -> None:
    found = despite(Defective(lambda there, _: names(3, 7) <= there), scene(*waiting(9)))
    assert len(found.left_out.jobs) == 1
    assert set(found.left_out.jobs) <= names(3, 7)


@pytest.mark.parametrize("stage", OPTIONAL_STAGES)
@pytest.mark.parametrize("jobs", [0, 5])
def test_a_stage_that_fails_whatever_jobs_there_are_is_passed_over(stage: str, jobs: int) -> None:
    found = despite(Defective(lambda _, left_out: stage not in left_out.stages), scene(*waiting(jobs), machine(1)))
    assert (set(found.left_out.stages), set(found.left_out.jobs)) == ({stage}, set())


def test_a_stage_and_a_job_at_once_are_both_found() -> None:
    planner = Defective(lambda there, left_out: "job-2" in there or GROWTH not in left_out.stages)
    found = despite(planner, scene(*waiting(5)))
    assert (set(found.left_out.stages), set(found.left_out.jobs)) == ({GROWTH}, {"job-2"})


def test_where_many_jobs_fail_in_one_stage_that_is_left_out_instead() -> None:
    planner = Defective(lambda there, left_out: bool(there) and "correction" not in left_out.stages)
    found = despite(planner, scene(*waiting(20)))
    assert (set(found.left_out.stages), set(found.left_out.jobs)) == ({"correction"}, set())


def test_where_many_jobs_fail_and_no_stage_is_to_blame_all_of_them_are_left_out() -> None:
    found = despite(Defective(lambda there, _: bool(there)), scene(*waiting(6)))
    assert set(found.left_out.jobs) == names(1, 2, 3, 4, 5, 6)


def test_however_many_fail_where_all_are_served_the_others_are_served() -> None:
    poison = names(*range(1, 60, 4))
    planner = Defective(lambda there, left_out: bool(there & poison) and "service" not in left_out.stages)
    found = despite(planner, scene(*waiting(60)))
    assert len(poison) > FAILING_JOBS_MAX
    assert (set(found.left_out.jobs), set(found.left_out.stages)) == (poison, set())


def test_the_search_ends_and_jobs_not_cleared_by_then_stay_out() -> None:
    odd = names(*range(1, 1000, 2))
    planner = Defective(lambda there, _: bool(there & odd))
    found = despite(planner, scene(*waiting(999)))
    assert planner.plans < TRIALS_MAX + 10
    assert odd <= set(found.left_out.jobs) < names(*range(1, 1000))


def test_several_stages_that_fail_are_all_passed_over_with_whatever_else_a_plan_can_do_without() -> None:
    planner = Defective(lambda _, left_out: not {"lateness", "release"} <= set(left_out.stages))
    assert set(despite(planner, scene(*waiting(2))).left_out.stages) == set(OPTIONAL_STAGES)


def test_what_nothing_helps_against_is_raised_as_it_came_first() -> None:
    with pytest.raises(Planted, match="the first"):
        despite(Defective(lambda *_: True), scene(*waiting(3)))


def test_what_failed_before_is_suspected_first() -> None:
    planner = Defective(lambda there, _: "job-4" in there)
    found = despite(planner, scene(*waiting(50)), LeftOut(jobs={"job-4": "as before"}))
    assert (planner.plans, dict(found.left_out.jobs)) == (1, {"job-4": "as before"})
    planner = Defective(lambda there, _: "job-5" in there)
    found = despite(planner, scene(*waiting(50)), LeftOut(jobs={"job-4": "as before"}))
    assert set(found.left_out.jobs) == {"job-5"}


def test_what_is_left_out_already_stays_so() -> None:
    before = LeftOut(jobs={"job-1": "known"}, stages={"release": "known"})
    found = despite(Defective(lambda there, _: "job-3" in there), scene(*waiting(4), left_out=before))
    assert (set(found.left_out.jobs), set(found.left_out.stages)) == (names(1, 3), {"release"})


def test_every_trial_draws_as_the_first_plan_would_have() -> None:
    planner, rng = Defective(lambda there, _: "job-2" in there), np.random.default_rng(0)
    plan_without_failing(planner, scene(*waiting(4)), simple(), rng, FIRST)
    assert set(planner.drawn) == {float(deepcopy(rng).random())}


def test_it_is_said_what_went_wrong_and_where() -> None:
    found = despite(Defective(lambda there, _: "job-1" in there), scene(*waiting(4)))
    assert found.left_out.jobs["job-1"].startswith("Planted: no. ")
    assert found.left_out.jobs["job-1"].endswith(" in test_plan_without_failing.py, __call__")


# --------------------------------------------------------------------------------------------------------- what is done
def left_out(*numbers: int, stages: tuple[str, ...] = ()) -> LeftOut:
    return LeftOut(jobs=dict.fromkeys(names(*numbers), "KeyError: 3"), stages=dict.fromkeys(stages, "KeyError: 3"))


def test_everything_optional_is_a_stage_and_every_stage_optional() -> None:
    assert sorted(OPTIONAL_STAGES) == sorted([GROWTH, *STAGES])


def test_a_waiting_job_that_is_left_out_is_recorded_once_and_the_others_are_served() -> None:
    snapshot = scene(job(1), job(2), machine(1), left_out=left_out(1))
    plan = decide(snapshot)
    assert [place.job_id for place in of(plan, Place)] == ["job-2"]
    (wait,) = of(plan, Wait)
    assert (wait.job_id, wait.reason.code) == ("job-1", PLANNING_FAILS)
    assert "KeyError: 3" in wait.reason.text
    again = replace(snapshot, jobs=(replace(job(1), wait_code=PLANNING_FAILS), job(2)))
    assert of(decide(again), Wait) == []


@pytest.mark.parametrize("state", [JobState.SUBMITTED, JobState.QUEUED, JobState.AWAITING_INSTANCE, JobState.PREEMPTED])
def test_nothing_is_decided_about_a_job_that_is_left_out_in_any_state_of_waiting(state: JobState) -> None:
    plan = decide(scene(job(1, state), machine(1), offer(), left_out=left_out(1)))
    assert [type(action) for action in plan.actions] == [Wait]


def test_a_job_left_out_counts_for_the_cap_of_its_user() -> None:
    awaits = job(1, JobState.AWAITING_INSTANCE, awaiting=("inst-9",))
    plan = decide(scene(awaits, job(2), machine(1), left_out=left_out(1)), simple(caps=Caps(max_jobs_per_user=1)))
    assert (of(plan, Place), told(plan, "job-2")) == ([], "cap_jobs_per_user")


def test_a_running_job_that_is_left_out_keeps_its_machine_and_its_end_is_judged_later() -> None:
    there = machine(1, expires_at=NOW + 100, idle_since=None)
    at_work = running(1, there)
    assert [renew.instance_id for renew in of(decide(scene(at_work, there, left_out=left_out(1))), Renew)] == ["inst-1"]
    over = ended(at_work)
    assert told(decide(scene(over, there)), "job-1") == "succeeded"
    assert told(decide(scene(over, there, left_out=left_out(1))), "job-1") == ""


def test_a_job_left_out_can_be_cancelled() -> None:
    waits, there = replace(job(1), cancelled_by="ann"), machine(1, idle_since=None)
    assert [each.job_id for each in of(decide(scene(waits, left_out=left_out(1))), Finish)] == ["job-1"]
    runs = replace(running(1, there), cancelled_by="ann")
    assert [each.job_id for each in of(decide(scene(runs, there, left_out=left_out(1))), StopAttempt)] == ["job-1"]


def test_a_job_left_out_may_not_exceed_its_own_budget() -> None:
    there, limited = machine(1, idle_since=None), spec(budget_usd=0.5)
    spent = [replace(each, spent_usd=0.6) for each in (running(1, there, asks=limited), job(2, asks=limited))]
    plan = decide(scene(*spent, there, left_out=left_out(1, 2)))
    assert [each.job_id for each in of(plan, StopAttempt)] == ["job-1"]
    assert [each.job_id for each in of(plan, Finish)] == ["job-2"]


@pytest.mark.parametrize("stage", OPTIONAL_STAGES)
def test_without_any_stage_machines_are_still_renewed_and_ends_judged(stage: str) -> None:
    busy, other = machine(1, expires_at=NOW + 100, idle_since=None), machine(2, idle_since=None)
    jobs = (running(1, busy), ended(running(2, other)), job(3))
    plan = decide(scene(*jobs, busy, other, offer(), left_out=left_out(stages=(stage,))))
    assert [renew.instance_id for renew in of(plan, Renew)] == ["inst-1"]
    assert told(plan, "job-2") == "succeeded"


@pytest.mark.parametrize(("stage", "served"), [("service", False), ("admission", False), ("lateness", True)])
def test_without_the_stages_that_serve_nothing_is_placed_or_bought(stage: str, served: bool) -> None:
    plan = decide(
        scene(job(1), job(2), machine(1, offer("one", vcpus=1.0)), offer(), left_out=left_out(stages=(stage,)))
    )
    assert (bool(of(plan, Place)), bool(of(plan, Launch))) == (served, served)
    assert {each.job_id: each.reason.code for each in of(plan, Wait)} == (
        {} if served else dict.fromkeys(["job-1", "job-2"], PLANNING_FAILS)
    )


def test_machines_that_jobs_await_are_kept_while_nothing_can_be_served() -> None:
    there = machine(1, idle_since=NOW - 5000, state=InstanceState.READY)
    awaits = job(1, JobState.AWAITING_INSTANCE, awaiting=("inst-1",))
    plan = decide(scene(awaits, there, offer(), left_out=left_out(stages=("service",))))
    assert plan.actions == ()
