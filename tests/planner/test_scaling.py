"""Scaling of jobs that miss their target: up (all ranks or none), and out if the time saved is worth it."""

from dataclasses import replace

import pytest

from hcloud.core.estimates import Measure
from hcloud.core.model import Correction, Instance, Job, JobState, MetricsHook, Nodes, Offer, ServiceTarget
from hcloud.planner.plan import Correct, Launch, Place, Plan, Profile, Resize
from hcloud.planner.snapshot import Snapshot, Spend
from hcloud.spec.policy import Budgets, Caps, Policy, ProfilingPolicy, ScopeBudget
from tests.planner.apply_model import apply_ideally, pass_time
from tests.planner.properties import honest, money_and_caps_hold
from tests.planner.scenes import NOW, decide, job, machine, need, of, offer, running, scene, spec, told
from tests.planner.watched import classified, hooked, samples, started, sure, with_samples
from tests.policies import simple

SLOW = (0.0002,) * 12
"""Progress per second; 24 % of the rate that meets a deadline 2,000 s after submission, as seen after 600 s."""
MEDIUM = offer("small", vcpus=4.0)


def late(*on: Instance, vcpus: float = 1.0, **changes: object) -> Job:
    """Return a job with a rank on each instance that has run for 600 s of its 2,000 s."""
    job = started(running(1, *on, asks=hooked(resources=need(vcpus), **changes)), 600.0)
    return replace(job, spec=replace(job.spec, **changes))  # type: ignore[arg-type]


def here(number: int, of_vcpus: float = 4.0) -> Instance:
    return machine(number, offer("small", vcpus=of_vcpus), idle_since=None)


def measured(*things: Job | Instance | Offer, vcpus_used: float = 1.0) -> Snapshot:
    """Return a scene in which all ranks of the first job were measured so."""
    first = things[0]
    assert isinstance(first, Job) and first.attempt is not None
    ranks = [samples(SLOW, vcpus_used=vcpus_used) for _ in first.attempt.allocations]
    return with_samples(scene(*things), {first.id: ranks})


def steps(plan: Plan) -> list[str]:
    return [action.step for action in of(plan, Correct)]


def sizes(plan: Plan) -> list[tuple[int, float]]:
    return [(each.rank, each.resources.vcpus) for resize in of(plan, Resize) for each in resize.ranks]


# ------------------------------------------------------------------------------------------------------------- scale-up
def test_all_ranks_of_a_job_grow_by_what_the_fullest_machine_has() -> None:
    rival = started(running(2, here(2), asks=spec(resources=need(2.5))), 900.0)
    plan = decide(measured(late(here(1), here(2)), rival, here(1), here(2)))
    assert sizes(plan) == [(0, 1.5), (1, 1.5)]
    assert "resizing each of its 2 ranks from 1 to 1.5 vCPU on inst-1, inst-2" in of(plan, Resize)[0].reason.text


def test_no_rank_grows_where_one_cannot() -> None:
    rival = started(running(2, here(2), asks=spec(resources=need(3.0))), 900.0)
    assert steps(decide(measured(late(here(1), here(2)), rival, here(1), here(2)))) == []


def test_ranks_on_one_machine_share_what_it_has() -> None:
    both = here(1)
    plan = decide(measured(late(both, both), both))
    assert sizes(plan) == [(0, 2.0), (1, 2.0)]


def test_a_job_that_says_how_much_it_may_get_gets_no_more_and_up_to_that() -> None:
    wide = here(1, 16.0)
    for most, expected in ((1.5, [(0, 1.5)]), (3.0, [(0, 3.0)]), (1.0, [])):
        assert sizes(decide(measured(late(wide, vcpus_within=(0.5, most)), wide))) == expected


def test_bounds_that_are_not_settled_are_not_changed_again() -> None:
    job = late(here(1), here(2))
    assert job.attempt is not None
    first = replace(job.attempt.allocations[0], resized_from=need(0.5))
    job = replace(job, attempt=replace(job.attempt, allocations=(first, *job.attempt.allocations[1:])))
    assert not sizes(decide(measured(job, here(1), here(2))))


# ------------------------------------------------------------------------------------------------------------ scale-out
def lonely(on: Instance, **changes: object) -> Job:
    """Return an incremental job with one of its three nodes, on an instance without room for more."""
    job = late(on)
    nodes = Nodes(count=3, minimum=1, gang=False)
    return replace(job, spec=replace(job.spec, nodes=nodes), **changes)  # type: ignore[arg-type]


def test_machines_are_launched_for_missing_nodes_once_and_grown_onto() -> None:
    full = here(1, 1.0)
    small = offer("small", vcpus=1.0)
    before = measured(lonely(full), full, small)
    plan = decide(before)
    assert steps(plan) == ["nodes_launched"]
    launches = of(plan, Launch)
    assert [(each.offer.key, each.for_jobs) for each in launches] == [(small.key, ())] * 2
    assert of(plan, Correct)[0].reason.numbers["launched_for"] == 2
    after = apply_ideally(before, plan)
    assert not of(decide(after), Launch), "nothing is launched for it again"
    # Other waiting jobs do not take what was launched for it.
    rival = replace(late(full), id="job-9", state="queued", attempt=None, attempts_made=0)
    later = replace(after, jobs=(*after.jobs, rival), offers=())
    for _ in range(2):
        later = pass_time(later, 40.0, run_s=1e9)
    [place] = [each for each in of(decide(later), Place) if each.job_id == "job-1"]
    assert [(rank.rank, rank.instance_id) for rank in place.ranks] == [(1, "inst-2"), (2, "inst-3")]


def test_a_job_that_is_to_get_more_machines_still_counts_as_one_of_its_user() -> None:
    full, small = here(1, 1.0), offer("small", vcpus=1.0)
    waiting = [job(n) for n in (2, 3)]
    plan = decide(measured(lonely(full), full, small, *waiting), simple(caps=Caps(max_jobs_per_user=2)))
    assert steps(plan) == ["nodes_launched"]
    assert [each.for_jobs for each in of(plan, Launch)] == [(), (), ("job-2",)]
    assert told(plan, "job-3") == "cap_jobs_per_user"


def forgets_what_boots_for_the_running(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: ignores for which running jobs instances boot."""
    strangers = tuple(replace(machine, for_running=()) for machine in snapshot.instances)
    return honest(replace(snapshot, instances=strangers), policy)


def test_what_boots_for_a_running_job_counts_against_its_users_budget() -> None:
    full, small = here(1, 1.0), offer("small", vcpus=1.0)
    before = measured(lonely(full), full, small)
    after = apply_ideally(before, decide(before))
    assert [machine.for_running for machine in after.instances] == [(), ("job-1",), ("job-1",)]
    promised_usd = sum((m.expires_at - NOW) * m.offer.price_usd_per_h / 3600 for m in after.instances)
    rival = replace(late(full), id="job-9", state=JobState.QUEUED, attempt=None, attempts_made=0)
    today = Spend(day_ends_at=NOW + 86_400.0, month_ends_at=NOW + 864_000.0)
    waiting = replace(after, jobs=(*after.jobs, rival), spend=today)
    policy = simple(budgets=Budgets(per_user={"ann": ScopeBudget(per_day_usd=promised_usd + 0.001)}))
    assert not of(honest(waiting, policy), Launch)
    money_and_caps_hold(honest, waiting, policy)
    with pytest.raises(AssertionError, match="user ann"):
        money_and_caps_hold(forgets_what_boots_for_the_running, waiting, policy)
    ended = replace(waiting, jobs=(rival,))
    for_one = simple(budgets=Budgets(per_user={"ann": ScopeBudget(per_day_usd=0.1)}))
    assert of(honest(ended, for_one), Place), "it counts no longer than the job runs"


@pytest.mark.parametrize(
    ("policy", "at", "why"),
    [
        (simple(budgets=Budgets(per_hour_usd=0.11)), {}, "no budget for a second machine"),
        (simple(caps=Caps(max_instances=1)), {}, "no more machines allowed"),
        (simple(), {"usd_per_h": 50.0}, "they cost more than is saved"),
        (simple(), {"available": 0}, "none can be had"),
    ],
)
def test_no_machine_is_launched_for_nodes_without_gain_or_leave(policy: Policy, at: dict[str, float], why: str) -> None:
    full = here(1, 1.0)
    plan = decide(measured(lonely(full), full, offer("small", vcpus=1.0, **at)), policy)
    assert not of(plan, Launch), why
    assert steps(plan) == []


def test_nothing_is_launched_where_the_job_ends_before_it_would_be_up() -> None:
    full, soon = here(1, 1.0), simple()
    job = lonely(full)
    nearly = with_samples(
        scene(job, full, offer("small", vcpus=1.0)), {"job-1": [samples((0.0001,) * 12, start=0.9985)]}
    )
    job = replace(
        job, spec=replace(job.spec, target=replace(hooked().target, finish_by_at=NOW + 1, finish_within_s=None))
    )
    nearly = replace(nearly, jobs=(job,))
    assert not of(decide(nearly, soon), Launch)


# ------------------------------------------------------------------------------------------------------- profiled again
ALWAYS = simple(profiling=ProfilingPolicy(when="before", skip_if_shorter_than_s=0.0))


def misjudged(*more: Job | Instance | Offer, **changes: object) -> Snapshot:
    """Return a job of a known application at 60 % of its estimate: too fast for a straggler."""
    full = here(1, 1.0)
    job = replace(late(full), application="app", **changes)  # type: ignore[arg-type]
    return replace(measured(job, full, *more), applications={"app": classified(0.00035)})


def test_a_misjudged_job_is_first_profiled_again_on_an_idle_instance() -> None:
    before = misjudged(machine(2, MEDIUM), MEDIUM)
    plan = decide(before, ALWAYS)
    assert steps(plan) == ["reprofile"]
    [again] = of(plan, Profile)
    assert (again.job_id, [run.instance_types for run in again.runs]) == ("job-1", [("small",)])
    assert not of(plan, Launch)
    # Further steps wait for its result.
    run = replace(late(here(1)), id="job-7", spec=again.runs[0], state="queued", attempt=None, attempts_made=0)
    [job] = before.jobs
    made = Correction(at=NOW, step="reprofile", attempt="job-1.1")
    job = replace(job, corrections=(made,), profile_runs=("job-7",))
    assert steps(decide(replace(before, jobs=(job, run)), ALWAYS)) == []
    assert steps(decide(replace(before, jobs=(job,)), ALWAYS)) == ["reclassify"]


def test_without_an_idle_machine_or_leave_what_is_measured_is_believed_at_once() -> None:
    for plan in (
        decide(misjudged(MEDIUM), ALWAYS),
        decide(misjudged(machine(2, MEDIUM), MEDIUM), replace(ALWAYS, profiling=ProfilingPolicy(when="never"))),
    ):
        assert not of(plan, Profile)
        assert steps(plan) == ["reclassify"]


def test_a_service_that_is_asked_for_less_is_not_believed_to_be_slow() -> None:
    wide = here(1, 1.0)
    target = ServiceTarget(requests_per_s=10.0, latency_ms=20.0, percentile=99.0)
    asks = spec(target=target, metrics=MetricsHook(url="http://127.0.0.1/"))
    job = replace(started(running(1, wide, asks=asks), 600.0), application="app")
    known = {"app": classified(13.0, measure=Measure.REQUESTS, by_step={"1 vCPU": sure(13.0)})}
    for served, expected in ((10.0, []), (8.0, ["reclassify"])):
        window = [
            each._replace(values={**each.values, "requests_per_s": served, "cpu_s": 0.1 * n}, latency_ms={99.0: 22.0})
            for n, each in enumerate(samples(SLOW))
        ]
        at = with_samples(scene(job, wide), {"job-1": [tuple(window)]})
        assert steps(decide(replace(at, applications=known))) == expected
