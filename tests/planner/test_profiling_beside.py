"""Unknown jobs start at once; copies are profiled beside them once that is worth its price."""

from dataclasses import replace
from typing import Any

import pytest

from hcloud.core.estimates import Application
from hcloud.core.model import (
    BestEffortTarget,
    InstanceState,
    Job,
    JobSpec,
    JobState,
    Market,
    ProfileRequest,
    Resources,
)
from hcloud.planner.plan import Classify, Enqueue, Finish, Launch, Place, Plan, Profile, StopAttempt, Terminate
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import PlacementPolicy, Policy, ProfilingPolicy
from tests.planner.scenes import NOW, decide, job, machine, need, of, offer, running, scene, spec
from tests.planner.test_profiling import knowing, new, row_of
from tests.policies import simple

SMALL, LARGE = offer(), offer("large", vcpus=8.0, usd_per_h=0.4)
HOST = machine(1, LARGE)
BESIDE = simple(profiling=ProfilingPolicy(when="beside", types=1, expected_saving=0.2))
RUN_USD = 0.1 * 150 / 3600
"""What one run on a new ``small`` may cost: 30 s to boot, and 120 s."""


def runs(number: int = 1, *, for_s: float = 90_000.0, command: str = "solve", **changes: Any) -> Job:
    """Return a job of 1 of the 8 vCPUs of HOST ($0.05/h) that has run for so long."""
    asks = spec(command=(command,), resources=Resources(vcpus=1.0, memory_mib=512), **changes)
    resident = running(number, HOST, asks=asks)
    assert resident.attempt is not None
    held = tuple(replace(each, started_at=NOW - for_s) for each in resident.attempt.allocations)
    return replace(resident, attempt=replace(resident.attempt, allocations=held))


def saves_usd(future_s: float) -> float:
    return 0.2 * 0.05 * future_s / 3600


def profiles(snapshot: Snapshot, policy: Policy = BESIDE) -> list[Profile]:
    return of(decide(snapshot, policy), Profile)


def queued(plan: Plan) -> list[str]:
    return [each.job_id for each in of(plan, Enqueue)]


# ------------------------------------------------------------------------------------------------------------ beginning
def test_an_unknown_job_is_queued_at_once_and_not_profiled_before_it_runs() -> None:
    plan = decide(scene(new(1), HOST, SMALL), BESIDE)
    (classified,) = of(plan, Classify)
    assert (classified.application, classified.source, classified.reason.code) == ("", "prior", "profiling_beside")
    assert queued(plan) == ["job-1"] and not of(plan, Profile)


def test_what_own_runs_have_shown_makes_a_job_known() -> None:
    asked = new(1)
    row = row_of(asked, profiled_at=None, ended_runs=1)
    (classified,) = of(decide(knowing(scene(asked, HOST), row), BESIDE), Classify)
    assert (classified.application, classified.source) == (row.name, "known")
    before = simple(profiling=ProfilingPolicy(when="before"))
    assert not of(decide(knowing(scene(asked, HOST, SMALL), row), before), Classify)


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING])
def test_a_job_is_classified_once_its_program_becomes_known(state: JobState) -> None:
    waiting = job(1, asks=spec(command=("solve",))) if state is JobState.QUEUED else runs()
    row = row_of(waiting, profiled_at=None, ended_runs=1)
    snapshot = knowing(scene(waiting, HOST), row)
    assert [each.application for each in of(decide(snapshot, BESIDE), Classify)] == [row.name]
    assert not of(decide(snapshot, BESIDE), Classify)  # the same cache: nothing new was learnt since


# ---------------------------------------------------------------------------------------------------------------- worth
def test_a_job_is_profiled_once_what_it_will_probably_cost_repays_the_runs() -> None:
    enough_s = RUN_USD / saves_usd(1.0)
    assert not profiles(scene(runs(for_s=0.9 * enough_s), HOST, SMALL))
    (action,) = profiles(scene(runs(for_s=1.1 * enough_s), HOST, SMALL))
    assert [run.instance_types for run in action.runs] == [("small",)]
    assert action.reason.numbers["saving_usd"] == pytest.approx(saves_usd(1.1 * enough_s), abs=1e-6)
    assert "may save" in action.reason.text


def why_unprofiled(snapshot: Snapshot, policy: Policy = BESIDE) -> str:
    (why,) = decide(snapshot, policy).unprofiled.values()
    return why.sentence()


def test_a_plan_says_why_a_running_unknown_program_is_not_profiled() -> None:
    enough_s = RUN_USD / saves_usd(1.0)
    assert why_unprofiled(scene(runs(for_s=0.5 * enough_s), HOST, SMALL)) == (
        "not profiled yet: knowing it may save $0.0021 of what it is expected to cost from now on, "
        "and profiling costs $0.0042 or more"
    )
    assert why_unprofiled(scene(runs(target=BestEffortTarget()), HOST, SMALL)) == (
        "not profiled now: profiling.for_targets excludes best_effort jobs"
    )
    none = replace(BESIDE, profiling=replace(BESIDE.profiling, instance_types=("other",)))
    assert why_unprofiled(scene(runs(), HOST, SMALL), none) == "not profiled: the policy allows no offer for it"
    one = replace(BESIDE, profiling=replace(BESIDE.profiling, max_concurrent=1))
    two = scene(runs(), runs(2, command="other"), HOST, SMALL)
    assert "profiling.max_concurrent" in why_unprofiled(two, one)
    cheap = replace(BESIDE, profiling=replace(BESIDE.profiling, max_usd_per_job=0.001))
    assert "a run costs up to $0.0042, more than the $0.001 that" in why_unprofiled(scene(runs(), HOST, SMALL), cheap)
    assert not decide(scene(runs(), HOST, SMALL), BESIDE).unprofiled  # it is profiled


def test_jobs_of_the_same_program_that_wait_or_have_run_count_as_well() -> None:
    enough_s = RUN_USD / saves_usd(1.0)
    short = runs(for_s=0.3 * enough_s)
    assert not profiles(scene(short, HOST, SMALL))
    siblings = [job(number, asks=short.spec) for number in (2, 3)]
    assert profiles(scene(short, *siblings, HOST, SMALL))
    row = row_of(short, profiled_at=None, ended_runs=4, run_s=0.6 * enough_s)
    known = replace(short, application=row.name)
    assert profiles(knowing(scene(known, HOST, SMALL), row))


def test_a_limit_of_run_time_bounds_what_a_program_may_still_cost() -> None:
    enough_s = RUN_USD / saves_usd(1.0)
    assert not profiles(scene(runs(for_s=1.5 * enough_s, max_runtime_s=2.0 * enough_s), HOST, SMALL))


def test_only_the_most_informative_runs_that_are_worth_it_are_made() -> None:
    two = replace(BESIDE, profiling=replace(BESIDE.profiling, types=2))
    enough_s = RUN_USD / saves_usd(1.0)
    (one,) = profiles(scene(runs(for_s=1.1 * enough_s), HOST, SMALL, LARGE), two)
    (both,) = profiles(scene(runs(for_s=10 * enough_s), HOST, SMALL, LARGE), two)
    assert (len(one.runs), len(both.runs)) == (1, 2)


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        ({"profiling": "never"}, []),
        ({"target": BestEffortTarget()}, []),
        ({}, [{"profiled_at": NOW - 10}]),
        ({}, [{"profiled_at": None, "cells": {}, "runs": ("job-7", "job-8", "job-9")}]),
    ],
)
def test_a_program_is_not_profiled_in_vain(change: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    resident = runs(**change)
    known: list[Application] = [row_of(resident, **each) for each in rows]
    assert not profiles(knowing(scene(resident, HOST, SMALL), *known))
    assert profiles(scene(runs(), HOST, SMALL))


def test_a_program_is_profiled_once_at_a_time_and_so_are_at_most_max_concurrent() -> None:
    policy = replace(BESIDE, profiling=replace(BESIDE.profiling, max_concurrent=2))
    others = [replace(runs(n, command=f"other-{n}"), spec=replace(runs(n, command=f"other-{n}").spec)) for n in (3, 4)]
    host = machine(1, offer("huge", vcpus=64.0, usd_per_h=3.2))
    assert len(profiles(scene(runs(1), runs(2), host, SMALL), policy)) == 1
    assert len(profiles(scene(runs(1), *others, host, SMALL), policy)) == 2


# ----------------------------------------------------------------------------------------------------------------- runs
def test_runs_make_way_for_jobs_and_may_use_spot_instances() -> None:
    spot = offer(usd_per_h=0.03, market=Market.SPOT)
    (action,) = profiles(scene(runs(), HOST, spot))
    (run,) = action.runs
    assert isinstance(run.target, BestEffortTarget) and run.interruptible and run.exclusive
    promised = replace(BESIDE, spot=replace(BESIDE.spot, for_targets=("batch",)))
    assert not profiles(scene(runs(), HOST, spot), promised)


def test_an_idle_instance_is_kept_for_the_run() -> None:
    idle = machine(2, SMALL, idle_since=NOW - 40_000)
    plan = decide(scene(runs(), HOST, idle, SMALL), BESIDE)
    assert of(plan, Profile) and not of(plan, Terminate)
    assert [each.instance_id for each in of(decide(scene(runs(for_s=1.0), HOST, idle, SMALL), BESIDE), Terminate)]


def test_types_that_a_host_cannot_hold_together_are_not_planned_together() -> None:
    room = Resources(vcpus=9.0, memory_mib=64_000, disk_gib=500.0)
    on_host = [replace(each, pool="host", pool_free=room) for each in (SMALL, LARGE)]
    two = replace(BESIDE, profiling=replace(BESIDE.profiling, types=2, spare_vcpus=0.0))
    resident = runs(for_s=900_000.0)
    fits_alone = replace(resident, spec=replace(resident.spec, resources=Resources(vcpus=1.0, memory_mib=512)))
    (apart,) = profiles(scene(fits_alone, HOST, SMALL, LARGE), two)
    (together,) = profiles(scene(fits_alone, HOST, *on_host), two)
    assert {run.instance_types for run in apart.runs} == {("small",), ("large",)}
    assert len({run.instance_types for run in together.runs}) == 1


def test_the_runs_of_a_job_that_has_ended_go_on() -> None:
    request = ProfileRequest(job_id="job-1", type_column="mock/small", steps_vcpus=(1.0,))
    run = running(2, machine(2), asks=spec(profile=request, profiling="never", target=BestEffortTarget()))
    plan = decide(scene(run, machine(2), HOST), BESIDE)
    assert not plan.actions


def test_nothing_is_profiled_while_launches_are_paused_or_where_the_policy_never_profiles() -> None:
    assert not profiles(replace(scene(runs(), HOST, SMALL), paused="maintenance"))
    assert not profiles(scene(runs(), HOST, SMALL), simple(profiling=ProfilingPolicy(when="never")))
    assert not profiles(scene(runs(), HOST, SMALL), simple(placement=PlacementPolicy(order="least_loaded")))


def test_a_machine_that_boots_for_a_run_is_no_reason_for_another() -> None:
    request = ProfileRequest(job_id="job-1", type_column="mock/small", steps_vcpus=(1.0,))
    run = job(2, JobState.AWAITING_INSTANCE, asks=spec(profile=request, profiling="never"), awaiting=("inst-2",))
    booting = machine(2, SMALL, state=InstanceState.BOOTING, ready_at=None, idle_since=None)
    parent = replace(runs(), profile_runs=("job-2",))
    assert not profiles(scene(parent, run, HOST, booting, SMALL))


def test_a_job_whose_size_may_be_chosen_is_worth_more_to_know() -> None:
    policy = simple(profiling=ProfilingPolicy(when="beside", types=1, expected_saving=0.05, expected_saving_sized=0.2))
    enough_s = RUN_USD / saves_usd(1.0)
    fixed, open_sized = runs(for_s=2 * enough_s), runs(for_s=2 * enough_s, vcpus_within=(0.5, 2.0))
    assert not profiles(scene(fixed, HOST, SMALL), policy)
    assert profiles(scene(open_sized, HOST, SMALL), policy)
    seen = row_of(open_sized, profiled_at=None, ended_runs=1, run_s=1.5 * enough_s)
    own_run = knowing(scene(open_sized, HOST, SMALL), seen)
    assert not profiles(own_run, policy)  # it has shown a half of what there is to learn
    assert profiles(own_run, replace(policy, profiling=replace(policy.profiling, expected_saving_sized=0.4)))


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING])
def test_a_run_that_has_not_begun_when_the_last_job_of_its_program_ends_is_given_up(state: JobState) -> None:
    subject = runs()
    asks = replace(_measuring(), command=subject.spec.command, user=subject.spec.user)
    run = job(2, asks=asks) if state is JobState.QUEUED else running(2, machine(2), asks=asks)
    machines = [HOST] if state is JobState.QUEUED else [HOST, machine(2)]
    assert not of(decide(scene(subject, run, *machines), BESIDE), Finish)
    given_up = of(decide(scene(run, *machines), BESIDE), Finish)
    assert [each.reason.code for each in given_up] == ["profiling_given_up"] * (state is JobState.QUEUED)


def _measuring() -> JobSpec:
    """Return the spec of a profiling run that takes a whole instance of two vCPUs."""
    request = ProfileRequest(job_id="job-1", type_column="mock/small", steps_vcpus=(2.0,))
    return spec(profile=request, profiling="never", target=BestEffortTarget(), exclusive=True, resources=need(2.0))


def test_instance_launched_for_a_run_is_not_taken_by_a_job_with_a_target() -> None:
    """Else another one is launched for the run, and the first stays half empty."""
    ready = machine(2)
    run = job(2, JobState.AWAITING_INSTANCE, asks=_measuring(), awaiting=("inst-2",))
    plan = decide(scene(run, job(3), ready, offer()))
    assert [(each.job_id, each.ranks[0].instance_id) for each in of(plan, Place)] == [("job-2", "inst-2")]
    assert [each.for_jobs for each in of(plan, Launch)] == [("job-3",)]
    plain = replace(run, spec=replace(run.spec, profile=None))
    assert [each.job_id for each in of(decide(scene(plain, job(3), ready, offer())), Place)] == ["job-3"]


def test_run_is_evicted_only_where_nothing_can_be_launched() -> None:
    here = machine(2, idle_since=None)
    run = running(2, here, asks=_measuring())
    plan = decide(scene(run, job(3), here, offer()))
    assert not of(plan, StopAttempt) and [each.for_jobs for each in of(plan, Launch)] == [("job-3",)]
    assert [each.job_id for each in of(decide(scene(run, job(3), here)), StopAttempt)] == ["job-2"]
