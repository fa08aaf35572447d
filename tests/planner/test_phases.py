"""Long-running jobs that slow down, and a share of the others, are measured in place, where there is room for that."""

from dataclasses import replace

import pytest

from hcloud.core.estimates import Classification, Estimate, Measure
from hcloud.core.model import Instance, Job, JobState, ServiceTarget
from hcloud.planner.plan import Correct, Finish, Place, Plan, Profile
from hcloud.planner.profiling_in_place import PATIENCE_S
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import CorrectionPolicy, Policy, ProfilingPolicy
from tests.planner.apply_model import apply_ideally
from tests.planner.scenes import NOW, decide, job, machine, of, offer, running, scene, spec
from tests.planner.watched import classified, hooked, samples, started, sure, with_samples
from tests.policies import simple

STEADY, SLOWER = (0.0004,) * 40, (0.0004,) * 20 + (0.0003,) * 20
HOST = machine(1, offer("small", vcpus=4.0), idle_since=None)


def policy(share: float = 1.0, **profiling: object) -> Policy:
    """The mission's way to profile, with every long-running job sampled."""
    return simple(
        correction=CorrectionPolicy(sample_share=share),
        profiling=ProfilingPolicy(**{"when": "beside", **profiling}),  # type: ignore[arg-type]
    )


def known(pace: float = 0.0004, **changes: object) -> Classification:
    caused = {"llc-capacity": sure(30.0), "memory-bandwidth": sure(20.0), "memory-capacity": sure(90.0)}
    tolerated = dict.fromkeys(caused, sure(60.0))
    unsure = {"by_type": {"mock/small": Estimate(pace, pace / 2, 2 * pace)}, "tolerated": tolerated, "caused": caused}
    return replace(classified(pace), **{**unsure, **changes})  # type: ignore[arg-type]


def at_work(
    *others: Job | Instance, host: Instance = HOST, paces: tuple[float, ...] = STEADY, **changes: object
) -> Snapshot:
    """A job that has run for 1,000 s at these paces, of a known application."""
    asks = hooked(9e4, **{"profiling": "auto", **changes})
    subject = replace(started(running(1, host, asks=asks), 1000.0), application="app")
    there = with_samples(scene(subject, host, *others), {"job-1": [samples(paces)]})
    return replace(there, applications={"app": known()})


def inspected(plan: Plan) -> list[str]:
    return [action.step for action in of(plan, Correct)]


def test_a_sampled_job_is_measured_in_place_by_a_small_run_on_its_own_instance() -> None:
    before = at_work()
    plan = decide(before, policy())
    [profile] = of(plan, Profile)
    [run] = profile.runs
    assert inspected(plan) == ["inspected"]
    assert run.profile is not None and run.placement is not None
    assert (run.profile.unit_id, run.placement.instance_id) == ("job-1.1.0", "inst-1")
    assert [(each.question, each.column, each.value) for each in run.profile.expected] == [
        ("tolerated", "llc-capacity", 60.0),
        ("caused", "llc-capacity", 30.0),
        ("tolerated", "memory-bandwidth", 60.0),
        ("caused", "memory-bandwidth", 20.0),
    ]
    assert not run.exclusive and run.resources.vcpus == 1.0
    after = apply_ideally(before, plan)
    assert not of(decide(after, policy()), Profile), "once in a period"


def test_the_run_is_placed_on_that_instance_only() -> None:
    free = machine(2, offer("large", vcpus=16.0))
    before = at_work(free)
    after = apply_ideally(before, decide(before, policy()))
    places = of(decide(after, policy()), Place)
    assert [[rank.instance_id for rank in place.ranks] for place in places] == [["inst-1"]]


@pytest.mark.parametrize(
    ("changes", "given"),
    [
        ({"profiling": "never"}, policy()),
        ({}, policy(share=0.0)),
        ({}, policy(for_targets=("service",))),
        ({}, simple(correction=CorrectionPolicy(sample_share=1.0), profiling=ProfilingPolicy(when="never"))),
        ({}, simple(correction=CorrectionPolicy(sample_share=1.0, steps=()), profiling=ProfilingPolicy(when="beside"))),
    ],
)
def test_nobody_is_measured_against_the_policy_or_the_job_file(changes: dict[str, object], given: Policy) -> None:
    assert not of(decide(at_work(**changes), given), Profile)


def test_a_full_instance_has_no_room_for_a_run() -> None:
    full = machine(1, offer("small", vcpus=1.0), idle_since=None)
    assert not of(decide(at_work(host=full), policy()), Profile)


def test_a_job_of_unmeasured_pressure_is_not_measured_in_place() -> None:
    guess = Estimate(30.0, 0.0, 90.0)
    there = at_work()
    unknown = known(tolerated={"llc-capacity": guess}, caused={"llc-capacity": guess})
    assert not of(decide(replace(there, applications={"app": unknown}), policy()), Profile)


def test_what_was_measured_in_part_is_measured_in_place_in_part() -> None:
    there = at_work()
    partly = known(caused={"llc-capacity": Estimate(30.0, 0.0, 90.0)})
    [profile] = of(decide(replace(there, applications={"app": partly}), policy()), Profile)
    request = profile.runs[0].profile
    assert request is not None and {each.question for each in request.expected} == {"tolerated"}


def test_a_service_is_never_halted_so_only_its_tolerance_is_measured() -> None:
    asks = spec(target=ServiceTarget(requests_per_s=10.0, latency_ms=100.0), profiling="auto")
    subject = replace(started(running(1, HOST, asks=asks), 1000.0), application="app")
    there = with_samples(scene(subject, HOST), {"job-1": [samples(STEADY)]})
    there = replace(there, applications={"app": known(measure=Measure.REQUESTS)})
    [profile] = of(decide(there, policy()), Profile)
    request = profile.runs[0].profile
    assert request is not None and {each.question for each in request.expected} == {"tolerated"}


def test_a_job_that_slows_down_is_noticed_and_measured_whether_or_not_it_is_sampled() -> None:
    plan = decide(at_work(paces=SLOWER), policy(share=0.0))
    assert inspected(plan) == ["slowed"]
    assert of(plan, Profile)
    [noted] = of(plan, Correct)
    assert (
        "to 0.0003/s: measured in place on inst-1, for at most 60 s: llc-capacity, memory-bandwidth"
        in noted.reason.text
    )


def test_a_job_that_slows_down_where_nothing_can_be_measured_is_noticed_all_the_same() -> None:
    full = machine(1, offer("small", vcpus=1.0), idle_since=None)
    plan = decide(at_work(host=full, paces=SLOWER), policy(share=0.0))
    assert (inspected(plan), of(plan, Profile)) == (["slowed"], [])


def test_a_job_that_surely_departs_from_its_estimate_corrects_it_and_is_measured_as_well() -> None:
    there = replace(at_work(paces=SLOWER), applications={"app": known(by_type={"mock/small": sure(0.0004)})})
    plan = decide(there, policy(share=0.0))
    assert (inspected(plan), len(of(plan, Profile))) == (["sampled"], 1)


def test_a_slowdown_is_noted_once() -> None:
    before = at_work(paces=SLOWER)
    after = apply_ideally(before, decide(before, policy(share=0.0)))
    assert not inspected(decide(after, policy(share=0.0)))


def test_noise_is_no_slowdown() -> None:
    noisy = tuple(0.0004 * factor for factor in (1.0, 0.8, 1.1, 0.9, 1.2) * 8)
    assert not inspected(decide(at_work(paces=noisy), policy(share=0.0)))


def waiting_run(subject: Job, since: float = NOW) -> Job:
    """The run in place of a job, before it is placed."""
    profile = of(decide(at_work(), policy()), Profile)[0]
    return job(9, JobState.QUEUED, asks=profile.runs[0], submitted_at=since)


@pytest.mark.parametrize(("ended", "waits_s"), [(True, 0.0), (False, PATIENCE_S + 1.0)])
def test_a_run_whose_unit_has_ended_or_that_finds_no_room_is_given_up(ended: bool, waits_s: float) -> None:
    there = at_work()
    subject = there.jobs[0]
    run = waiting_run(subject, NOW - waits_s)
    assert subject.attempt is not None
    if ended:
        held = tuple(replace(each, ended_at=NOW, exit_code=0) for each in subject.attempt.allocations)
        subject = replace(subject, attempt=replace(subject.attempt, allocations=held))
    there = replace(there, jobs=(replace(subject, profile_runs=("job-9",)), run))
    assert [each.job_id for each in of(decide(there, policy()), Finish) if each.job_id == "job-9"] == ["job-9"]


@pytest.mark.parametrize(("waits_s", "given_up"), [(299.0, False), (301.0, True)])
def test_a_run_beside_that_no_job_waits_for_is_given_up_when_it_finds_no_room(waits_s: float, given_up: bool) -> None:
    copies = replace(waiting_run(at_work().jobs[0]).spec, placement=None, instance_types=("no-such-type",))
    assert copies.profile is not None
    copies = replace(copies, profile=replace(copies.profile, unit_id="", expected=()))
    run = job(9, JobState.QUEUED, asks=copies, submitted_at=NOW - waits_s)
    there = at_work()
    there = replace(there, jobs=(replace(there.jobs[0], profile_runs=("job-9",)), run))
    assert bool([each for each in of(decide(there, policy()), Finish) if each.job_id == "job-9"]) is given_up


def test_a_run_that_costs_more_than_the_policy_allows_is_not_made() -> None:
    assert not of(decide(at_work(), policy(max_usd_per_job=0.0001)), Profile)
