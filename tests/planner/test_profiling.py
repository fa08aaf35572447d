"""Which jobs are profiled, in full or in one short run, classified as known, or as typical; and properties of all of
it."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from hcloud.classifier.applications import identify
from hcloud.classifier.source_selection import SourcePrior
from hcloud.classifier.type_selection import TypePrior
from hcloud.core.estimates import Application, Classification, Estimate, Measure
from hcloud.core.model import (
    BatchTarget,
    BestEffortTarget,
    Gpus,
    Job,
    JobState,
    Market,
    Nodes,
    ProfileRequest,
    Resources,
    ServiceTarget,
)
from hcloud.planner.plan import Classify, Enqueue, Finish, Plan, Profile, Wait
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import Budgets, Policy, ProfilingPolicy, ProvisioningPolicy
from tests.planner.apply_model import apply_ideally
from tests.planner.scenes import NOW, decide, job, machine, of, offer, running, scene, spec, told
from tests.policies import simple

SMALL, LARGE = offer(), offer("large", vcpus=8.0, usd_per_h=0.4)
ALWAYS = simple(profiling=ProfilingPolicy(when="before"))
BELIEF = Classification(
    by_type={"mock/small": Estimate(value=2.0, low=1.0, high=4.0)},
    quality_target=Estimate(value=0.7, low=0.6, high=0.8),
)


def new(number: int = 1, *, at: float = NOW, **changes: Any) -> Job:
    """Return a job just submitted, of its own program unless a command is given."""
    command = changes.pop("command", (f"program-{number}",))
    return job(number, JobState.SUBMITTED, asks=spec(command=command, **changes), submitted_at=at)


def run_for(parent: Job, number: int, *, at: float = NOW, look: bool = False) -> Job:
    """Return an unfinished profiling run."""
    request = ProfileRequest(job_id=parent.id, type_column="mock/small", steps_vcpus=(1.0,), look=look)
    return job(number, asks=replace(parent.spec, profile=request, profiling="never"), submitted_at=at)


def row_of(known: Job, **changes: Any) -> Application:
    identity = identify(known.spec)
    plain = Application(
        name=identity.name,
        program=identity.program,
        inputs={identity.input: 1.0},
        measure=Measure.CPU,
        cells={"type": {"mock/small": 2.0}},
        type_column="mock/small",
        reference_vcpus=1.0,
        profiled_at=NOW - 500,
    )
    return replace(plain, **changes)


def knowing(snapshot: Snapshot, *rows: Application) -> Snapshot:
    return replace(
        snapshot,
        programs={row.program: tuple(each for each in rows if each.program == row.program) for row in rows},
        applications={row.name: BELIEF for row in rows},
    )


# ----------------------------------------------------------------------------------------------------- single decisions
def test_unknown_job_gets_runs_on_the_two_cheapest_types_that_fit() -> None:
    asked = new(nodes=Nodes(count=3), tags={"team": "a"}, priority=7)
    (action,) = of(decide(scene(asked, LARGE, SMALL, offer("dear", vcpus=4.0, usd_per_h=0.9)), ALWAYS), Profile)
    base, other, nodes = action.runs
    assert [run.instance_types for run in action.runs] == [("small",), ("large",), ("small",)]
    assert base.profile is not None
    assert (base.profile.steps_vcpus, len(base.profile.sources), base.profile.type_column) == (
        (1.0, 0.5), 2, "mock/small",
    )  # fmt: skip
    assert other.profile is not None
    assert (other.profile.steps_vcpus, len(other.profile.sources)) == ((1.0,), 2)
    assert set(other.profile.sources).isdisjoint(base.profile.sources)
    assert (nodes.nodes.count, nodes.nodes.gang) == (2, True)
    assert all(run.exclusive and run.priority == 7 and not run.interruptible for run in action.runs)
    assert base.tags == {"team": "a", "hcloud.profile": "job-1"}
    assert not of(decide(scene(asked, SMALL)), Profile)


def test_job_whose_size_is_open_is_measured_with_more_than_it_requests() -> None:
    asked = new(resources=Resources(vcpus=2.0, memory_mib=512), vcpus_within=(0.5, 16.0))
    (action,) = of(decide(scene(asked, SMALL, LARGE, offer("huge", vcpus=32.0, usd_per_h=1.6)), ALWAYS), Profile)
    base, other = action.runs
    assert base.profile is not None and other.profile is not None
    assert (base.instance_types, base.profile.steps_vcpus, base.profile.knees) == (("large",), (2.0, 8.0, 0.5), True)
    # otherwise it could not use what it is measured with
    assert (base.resources.vcpus, other.resources.vcpus) == (8.0, 2.0)
    assert (other.profile.steps_vcpus, other.profile.knees) == ((2.0,), False)


def test_an_instance_larger_than_the_request_is_not_used_if_too_expensive() -> None:
    asked = new(resources=Resources(vcpus=1.0, memory_mib=512), vcpus_within=(0.5, 16.0))
    dear = offer("dear", vcpus=4.0, usd_per_h=50.0)
    policy = replace(ALWAYS, profiling=replace(ALWAYS.profiling, types=1, max_usd_per_job=0.1))
    (action,) = of(decide(scene(asked, SMALL, dear), policy), Profile)
    assert [run.instance_types for run in action.runs] == [("small",)]


def test_how_long_a_service_ran_once_does_not_keep_others_from_being_profiled() -> None:
    service = new(target=ServiceTarget(requests_per_s=10.0, latency_ms=20.0))
    row = row_of(service, run_s=20.0, profiled_at=None, measure=None, cells={})
    (action,) = of(decide(knowing(scene(service, SMALL, LARGE), row), ALWAYS), Profile)
    assert {run.profile and run.profile.promised_ms for run in action.runs} == {20.0}
    batch = new()
    row = row_of(batch, run_s=20.0, profiled_at=None, measure=None, cells={})
    (action,) = of(decide(knowing(scene(batch, SMALL, LARGE), row), ALWAYS), Classify)
    assert action.reason.code == "profiling_short"


def sources_for(asked: Job, *others: Any, policy: Policy = ALWAYS, **known: Any) -> tuple[tuple[str, ...], str]:
    """Return the sources a job is profiled under, and the reason given."""
    (action,) = of(decide(replace(scene(asked, SMALL, *others), **known), policy), Profile)
    assert action.runs[0].profile is not None
    return action.runs[0].profile.sources, action.reason.text


def test_sources_are_those_that_tell_most_of_the_needed_quality_and_why_is_said() -> None:
    usual, why = sources_for(new())
    assert usual == ("llc-capacity", "storage-bandwidth")
    assert "; under llc-capacity and storage-bandwidth, then elsewhere memory-bandwidth and memory-capacity, " in why
    assert "the defaults: fewer than 5 programs" in why
    names = ("memory-capacity", "network-bandwidth", "llc-capacity", "memory-bandwidth", "storage-bandwidth")
    mean, deviations = np.full(5, 0.8), np.array([0.3, 0.01, 0.05, 0.05, 0.3])
    programs = np.clip(np.random.default_rng(1).normal(mean, deviations, (80, 5)), 0.0, 1.0)
    prior = SourcePrior(sources=names, mean=mean, covariance=np.diag(deviations**2), programs=programs, rows=80,
                        counted=names)  # fmt: skip
    chosen, why = sources_for(new(), source_prior=prior)
    assert chosen == ("memory-capacity", "storage-bandwidth")
    assert "; under memory-capacity and storage-bandwidth, then elsewhere llc-capacity and memory-bandwidth" in why
    assert re.search(r"leaving \d points of error in the quality that known programs need \(\d before\)", why)
    tight = new(resources=Resources(vcpus=1.0, memory_mib=SMALL.instance_type.capacity.memory_mib, disk_gib=1.0))
    assert "memory-capacity" not in sources_for(tight, source_prior=prior)[0]
    cells = {question: {"memory-capacity": 5.0} for question in ("tolerated", "caused")}
    drifted = row_of(new(), cells=cells, missed=(True,) * 3)
    again = sources_for(new(), source_prior=prior, programs={drifted.program: (drifted,)})[0]
    assert again == ("memory-capacity", "storage-bandwidth")  # measured before the drift, so uncertain again
    surely = replace(drifted, missed=(), profiled_at=None)
    assert "memory-capacity" not in sources_for(new(), source_prior=prior, programs={surely.program: (surely,)})[0]


def test_policy_may_name_the_sources() -> None:
    fixed = simple(profiling=ProfilingPolicy(when="before", sources=("tlb",)))
    assert sources_for(new(), policy=fixed)[0] == ("tlb",)
    none = simple(profiling=ProfilingPolicy(when="before", sources=()))
    assert sources_for(new(), policy=none)[0] == ()


def test_first_machine_has_room_for_a_neighbour_where_there_is_one() -> None:
    tiny = offer("tiny", vcpus=1.0, usd_per_h=0.05)
    (action,) = of(decide(scene(new(), tiny, LARGE, SMALL), ALWAYS), Profile)
    assert [run.instance_types for run in action.runs] == [("small",), ("tiny",)]
    (alone,) = of(decide(scene(new(), tiny), ALWAYS), Profile)
    assert [run.instance_types for run in alone.runs] == [("tiny",)]


def test_second_machine_is_for_further_sources_where_it_has_room_even_of_the_same_type() -> None:
    tiny = offer("tiny", vcpus=1.0, usd_per_h=0.05)
    (cramped,) = of(decide(scene(new(), tiny, SMALL), ALWAYS), Profile)
    assert [run.profile.sources for run in cramped.runs if run.profile] == [("llc-capacity", "storage-bandwidth"), ()]
    (alone,) = of(decide(scene(new(), SMALL), ALWAYS), Profile)
    assert [run.instance_types for run in alone.runs] == [("small",), ("small",)]
    assert [len(run.profile.sources) for run in alone.runs if run.profile] == [2, 2]
    assert alone.reason.numbers["sources"].count(",") == 3  # type: ignore[union-attr]
    single = simple(profiling=ProfilingPolicy(when="before", types=1))
    (once,) = of(decide(scene(new(), SMALL, LARGE), single), Profile)
    assert len(once.runs) == 1
    owned, wide = offer("mine", market=Market.RESERVED), offer("ours", vcpus=8.0, market=Market.RESERVED)
    fixed = replace(ALWAYS, provisioning=ProvisioningPolicy(strategy="sr"))
    # jobs wait for instances of a strategy that never rents
    (kept,) = of(decide(scene(new(), owned, wide), fixed), Profile)
    assert [len(run.profile.sources) for run in kept.runs if run.profile] == [2, 0]


def test_no_job_is_profiled_on_instances_that_the_strategy_never_rents() -> None:
    full = offer("full", vcpus=16.0, usd_per_h=0.8)
    policy = replace(ALWAYS, provisioning=ProvisioningPolicy(strategy="hf", full_server_vcpus=16.0))
    (action,) = of(decide(scene(new(), SMALL, LARGE, full), policy), Profile)
    assert {run.instance_types for run in action.runs} == {("full",)}


def test_known_job_is_classified_and_placed_in_the_same_plan() -> None:
    asked = new()
    plan = decide(knowing(scene(asked, machine(1)), row_of(asked)), ALWAYS)
    classify, enqueue = of(plan, Classify)[0], of(plan, Enqueue)[0]
    assert (classify.source, classify.application) == ("known", row_of(asked).name)
    assert (classify.reason.numbers["predicted"], classify.reason.numbers["quality_class"]) == (2.0, 6)
    assert enqueue.job_id == "job-1"


def test_same_program_with_other_input_gets_one_short_run() -> None:
    first, other = new(1, command=("sort", "a")), new(2, command=("sort", "b"))
    (action,) = of(decide(knowing(scene(other, SMALL, LARGE), row_of(first)), ALWAYS), Profile)
    (look,) = action.runs
    assert look.profile is not None
    assert look.profile.look


def test_a_short_run_that_differs_is_followed_by_one_full_profile() -> None:
    first, other = new(1, command=("sort", "a")), new(2, command=("sort", "b"))
    looked = replace(other, profile_runs=("job-7",))
    own = row_of(other, profiled_at=None, looked_at=NOW - 5)
    plan = decide(knowing(scene(looked, SMALL), row_of(first), own), ALWAYS)
    assert [run.name for run in of(plan, Profile)[0].runs] == ["job:profile-base", "job:profile-beside"]
    done = replace(other, profile_runs=("job-7", "job-8"))
    plan = decide(knowing(scene(done, SMALL), row_of(first), own), ALWAYS)
    assert of(plan, Classify)[0].reason.code == "profiling_failed"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"profiling": "never"}, "profiling_never"),
        ({"target": BestEffortTarget()}, "profiling_target"),
        ({"max_runtime_s": 30.0}, "profiling_short"),
        ({"target": BatchTarget(finish_within_s=600.0)}, "profiling_no_time"),
    ],
)
def test_job_that_is_not_to_be_profiled_goes_on_at_once_and_says_why(changes: dict[str, Any], code: str) -> None:
    plan = decide(scene(new(**changes), SMALL), ALWAYS)
    assert of(plan, Classify)[0].reason.code == code
    assert of(plan, Enqueue)


def test_job_with_gpus_says_that_they_are_why_it_is_not_profiled() -> None:
    with_gpus = new(profiling="never", resources=replace(new().spec.resources, gpus=Gpus(count=1)))
    reason = of(decide(scene(with_gpus, SMALL), ALWAYS), Classify)[0].reason
    assert (reason.code, reason.text) == (
        "profiling_never",
        "no profile: it uses GPUs, which copies of it would need as well",
    )


@pytest.mark.parametrize("target", [BatchTarget(), BestEffortTarget()], ids=["again", "beside"])
def test_run_that_found_no_room_is_given_up_unless_its_job_waits_for_it(target: Any) -> None:
    """Else it would count as in progress for ever: no room of its type need ever come."""
    asked, on = new(1), machine(1, SMALL)
    late = run_for(asked, 9, at=NOW - 400)
    late = replace(late, state=JobState.QUEUED, attempt=None, spec=replace(late.spec, target=target))
    for subject, ends in ((running(1, on, asks=asked.spec), True), (replace(asked, profile_runs=(late.id,)), False)):
        plan = decide(scene(subject, late, on, SMALL), ALWAYS)
        given_up = [each.job_id for each in of(plan, Finish) if each.reason.code == "profiling_given_up"]
        assert given_up == [late.id] * ends


def test_what_is_not_free_is_waited_for_only_so_long() -> None:
    busy = [new(number) for number in range(11, 11 + ALWAYS.profiling.max_concurrent)]
    busy = [replace(each, profile_runs=(f"job-{each.id[4:]}0",)) for each in busy]
    runs = [run_for(each, int(each.id[4:]) * 10) for each in busy]
    assert told(decide(scene(*busy, *runs, new(3), SMALL), ALWAYS), "job-3") == "profiling_slots"
    late = new(3, at=NOW - 400)
    plan = decide(scene(*busy, *runs, late, SMALL), ALWAYS)
    assert of(plan, Classify)[0].reason.code == "profiling_no_room"
    assert told(decide(scene(new(3)), ALWAYS), "job-3") == "profiling_no_offer"
    twins = [new(1, command=("sort", "a")), new(2, command=("sort", "b"))]
    assert told(decide(scene(*twins, SMALL), ALWAYS), "job-2") == "profiling_same_program"


def test_machines_that_are_all_up_already_are_profiled_on_while_they_stand_idle() -> None:
    mine = offer("mine", market=Market.RESERVED, available=0)
    cluster = replace(ALWAYS, provisioning=ProvisioningPolicy(strategy="sr"))
    (action,) = of(decide(scene(new(1), mine, machine(1, of=mine), SMALL), cluster), Profile)
    assert [run.instance_types for run in action.runs] == [("mine",)]  # no job waits for what may not be rented
    busy = running(9, machine(1, of=mine))
    assert told(decide(scene(new(1), busy, mine, machine(1, of=mine), SMALL), cluster), "job-1") == "profiling_no_offer"


def test_no_job_is_profiled_on_an_idle_spot_instance() -> None:
    idle = machine(1, of=offer(market=Market.SPOT))
    plan = decide(scene(new(1), offer(available=0), idle), ALWAYS)
    assert not of(plan, Profile)
    assert told(plan, "job-1") == "profiling_no_offer"


def test_of_what_stands_idle_those_types_are_taken_that_tell_most_together_and_each_machine_once() -> None:
    names = ("one", "twin", "three", "four")
    mine = [offer(name, vcpus=4.0, market=Market.RESERVED, available=0) for name in names]
    cluster = replace(ALWAYS, provisioning=ProvisioningPolicy(strategy="sr"))
    idle = [machine(number, of=each) for number, each in enumerate(mine, 1)]
    # On the second type programs are as fast as on the first; on each other one independently fast or slow.
    alike = np.array([[1.0, 0.99, 0, 0], [0.99, 1.0, 0, 0], [0, 0, 1.0, 0], [0, 0, 0, 0.2]])
    prior = TypePrior(columns=tuple(f"mock/{name}" for name in names), covariance=alike)
    snapshot = replace(scene(new(1), new(2), *mine, *idle), type_prior=prior)
    first, second = of(decide(snapshot, cluster), Profile)
    assert {run.instance_types for run in first.runs} == {("one",), ("three",)}
    assert {run.instance_types for run in second.runs} == {("twin",), ("four",)}
    # If the most informative type has no room for a source, another type comes first.
    roomy = replace(cluster, profiling=replace(cluster.profiling, instance_types=("t*", "one"), spare_vcpus=4.0))
    wide = offer("one", vcpus=8.0, market=Market.RESERVED, available=0)
    other = replace(snapshot, offers=(wide, *mine[1:]), instances=(machine(1, of=wide), *idle[1:]))
    assert [run.instance_types for run in of(decide(other, roomy), Profile)[0].runs] == [("one",), ("three",)]


def test_expensive_profiles_are_cut_and_then_skipped() -> None:
    policy = simple(profiling=ProfilingPolicy(when="before", max_usd_per_job=0.006))
    assert len(of(decide(scene(new(), SMALL, LARGE), policy), Profile)[0].runs) == 1
    day = simple(budgets=Budgets(per_day_usd=0.2), profiling=ProfilingPolicy(when="before"))
    assert of(decide(scene(new(), SMALL), day), Classify)[0].reason.code == "profiling_too_dear"


def test_runs_that_are_stuck_are_given_up() -> None:
    waiting = replace(new(at=NOW - 1000), profile_runs=("job-9",))
    stuck = run_for(waiting, 9, at=NOW - 900)
    plan = decide(scene(waiting, stuck, SMALL), ALWAYS)
    assert [a.reason.code for a in of(plan, Classify)] == ["profiling_too_long"]
    assert not of(decide(scene(waiting, replace(stuck, submitted_at=NOW - 60), SMALL), ALWAYS), Classify)


def test_what_one_run_found_is_used_where_another_is_stuck() -> None:
    waiting = replace(new(at=NOW - 1000), profile_runs=("job-8", "job-9"))
    stuck, row = run_for(waiting, 9, at=NOW - 900), row_of(waiting, runs=("job-8",))
    (told_of,) = of(decide(knowing(scene(waiting, stuck, SMALL), row), ALWAYS), Classify)
    assert (told_of.source, told_of.application) == ("profiled", row.name)
    assert told_of.reason.text.startswith("profiled in 1 run, with no time left for the others; expected")
    early = replace(stuck, submitted_at=NOW - 60)
    assert not of(decide(knowing(scene(waiting, early, SMALL), row), ALWAYS), Classify)


def test_profiling_runs_are_queued_like_any_job_and_never_profiled() -> None:
    waiting = replace(new(), profile_runs=("job-9",))
    run = replace(run_for(waiting, 9), state=JobState.SUBMITTED)
    plan = decide(scene(waiting, run, SMALL), ALWAYS)
    assert [a.job_id for a in of(plan, Enqueue)] == ["job-9"]
    assert not of(plan, Profile)


def test_program_of_which_nothing_can_be_learnt_is_not_profiled_again() -> None:
    asked = new()
    fruitless = row_of(asked, profiled_at=None, cells={}, runs=("job-7", "job-8", "job-9"))
    assert of(decide(knowing(scene(asked, SMALL), fruitless), ALWAYS), Classify)[0].reason.code == "profiling_fruitless"


# ----------------------------------------------------------------------------------------------------------- properties
Planner = Callable[[Snapshot, Policy], Plan]


@st.composite
def scenes(draw: DrawFn) -> tuple[Snapshot, Policy]:
    """Draw some submitted jobs in all stages of profiling, on a small market."""
    jobs, rows = list[Job](), list[Application]()
    for number in range(1, draw(st.integers(1, 6)) + 1):
        asked = new(
            number,
            at=NOW - draw(st.sampled_from([0.0, 30.0, 200.0, 1000.0, 5000.0])),
            command=(draw(st.sampled_from(["sort", "grep", "awk"])), draw(st.sampled_from("abc"))),
            target=draw(st.sampled_from([BatchTarget(), BatchTarget(finish_within_s=4000.0), BestEffortTarget()])),
            network=draw(st.sampled_from(["none", "none", "host"])),
            profiling=draw(st.sampled_from(["auto", "auto", "never"])),
            nodes=Nodes(count=draw(st.sampled_from([1, 1, 3]))),
        )
        asked = replace(asked, cancelled_by=draw(st.sampled_from([None, None, None, "ann"])))
        stage = draw(st.sampled_from(["new", "new", "running", "over", "looked"]))
        if stage != "new":
            asked = replace(asked, profile_runs=(f"job-{number + 50}",))
        if stage == "running" and asked.cancelled_by is None:
            jobs.append(run_for(asked, number + 50, at=NOW - draw(st.sampled_from([10.0, 5000.0]))))
        if draw(st.booleans()) or stage == "looked":
            looked = {"profiled_at": None, "looked_at": NOW - 5} if stage == "looked" else {}
            rows.append(row_of(asked, **looked))
        jobs.append(asked)
    unique = {row.name: row for row in rows}
    offers = draw(st.sampled_from([(SMALL, LARGE), (SMALL,), ()]))
    policy = simple(
        budgets=Budgets(per_day_usd=draw(st.sampled_from([None, 0.3, 50.0]))),
        profiling=ProfilingPolicy(when="before", max_concurrent=draw(st.sampled_from([1, 2])), max_usd_per_job=0.05),
    )
    return knowing(scene(*jobs, *offers), *unique.values()), policy


def limits_are_kept(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """Not too many are profiled at one time, never two of one program, and none beyond the cost limit."""
    after = apply_ideally(snapshot, planner(snapshot, policy))
    busy = {j.spec.profile.job_id for j in snapshot.jobs if j.spec.profile is not None}
    started = of(planner(snapshot, policy), Profile)
    assert not started or len(busy | {a.job_id for a in started}) <= policy.profiling.max_concurrent
    programs = [identify(j.spec).program for j in after.jobs if j.id in {a.job_id for a in started}]
    assert len(set(programs)) == len(programs), programs
    most_usd = min(0.05, 0.01 * (policy.budgets.per_day_usd or 1e9))
    assert all(float(str(a.reason.numbers["cost_usd"])) <= most_usd + 1e-6 for a in started)


def without_limits(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: ignores the limits."""
    endless = replace(policy.profiling, max_concurrent=1000, max_usd_per_job=None)
    return decide(snapshot, replace(policy, profiling=endless))


def slack_is_left(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """No job is profiled beyond its part of the time to the deadline, or kept when that is used up."""
    plan, jobs = planner(snapshot, policy), {j.id: j for j in snapshot.jobs}
    queued, share = {a.job_id for a in of(plan, Enqueue)}, policy.profiling.max_share_of_slack
    for each in jobs.values():
        if each.state is not JobState.SUBMITTED or each.deadline_at is None or each.cancelled_by is not None:
            continue
        until_at = each.submitted_at + share * (each.deadline_at - each.submitted_at)
        assert snapshot.now < until_at or each.id in queued, f"{each.id} is kept beyond its slack"
    for action in of(plan, Profile):
        each = jobs[action.job_id]
        if each.deadline_at is not None:
            until_at = each.submitted_at + share * (each.deadline_at - each.submitted_at)
            assert snapshot.now + policy.profiling.total_s <= until_at, f"{each.id} is profiled its slack away"


def without_deadlines(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: ignores deadlines."""
    patient = replace(policy.profiling, max_share_of_slack=1.0)
    return decide(snapshot, replace(policy, profiling=patient))


def only_permitted_jobs_are_profiled(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """Profiling runs, cancelled, running and known jobs, those with a whole set of runs and those that opted out are
    not profiled."""
    jobs = {j.id: j for j in snapshot.jobs}
    busy = {j.spec.profile.job_id for j in snapshot.jobs if j.spec.profile is not None}
    for action in of(planner(snapshot, policy), Profile):
        each, identity = jobs[action.job_id], identify(jobs[action.job_id].spec)
        assert (each.spec.profiling, each.spec.profile) == ("auto", None)
        assert each.cancelled_by is None and each.id not in busy and each.state is JobState.SUBMITTED
        rows = snapshot.programs.get(identity.program, ())
        assert not any(row.profiled_at is not None and identity.input in row.inputs for row in rows), "known"
        assert len(each.profile_runs) <= 1
        assert all(run.profile is not None and run.profile.job_id == each.id for run in action.runs)


def profiles_any_job(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: profiles any job."""
    willing = tuple(replace(j, spec=replace(j.spec, profiling="auto", network="none")) for j in snapshot.jobs)
    return decide(replace(snapshot, jobs=willing, programs={}), policy)


def every_job_goes_on_or_has_a_reason(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """A submitted job is queued, profiled, waits for its runs, or has a reason why it waits."""
    plan = planner(snapshot, policy)
    spoken = {getattr(action, "job_id", "") for action in plan.actions}
    busy = {j.spec.profile.job_id for j in snapshot.jobs if j.spec.profile is not None}
    for each in snapshot.jobs:
        assert each.state is not JobState.SUBMITTED or each.id in spoken | busy, f"nothing is said of {each.id}"
    assert all(a.reason.code and a.reason.text for a in plan.actions)
    for kept in of(plan, Wait):
        assert NOW - {j.id: j for j in snapshot.jobs}[kept.job_id].submitted_at < policy.profiling.patience_s or (
            kept.reason.code not in ("profiling_slots", "profiling_same_program", "profiling_no_offer")
        ), f"{kept.job_id} waits for its profile for ever"


def records_no_reason(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: records no reason."""
    plan = decide(snapshot, policy)
    return replace(plan, actions=tuple(a for a in plan.actions if not isinstance(a, Wait)))


CASES: tuple[tuple[Callable[[Planner, Snapshot, Policy], None], Planner], ...] = (
    (limits_are_kept, without_limits),
    (slack_is_left, without_deadlines),
    (only_permitted_jobs_are_profiled, profiles_any_job),
    (every_job_goes_on_or_has_a_reason, records_no_reason),
)
PHASES, SLOW = [Phase.generate], [HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(max_examples=150, phases=PHASES, suppress_health_check=SLOW)
@given(scenes())
def test_every_property_of_profiling_holds(given_scene: tuple[Snapshot, Policy]) -> None:
    for holds, _ in CASES:
        holds(decide, *given_scene)


@pytest.mark.parametrize(("holds", "fault"), CASES, ids=lambda each: each.__name__)
def test_property_of_profiling_catches_its_seeded_fault(
    holds: Callable[[Planner, Snapshot, Policy], None], fault: Planner
) -> None:
    @settings(max_examples=1000, phases=PHASES, suppress_health_check=SLOW)
    @given(scenes())
    def kept(given_scene: tuple[Snapshot, Policy]) -> None:
        holds(fault, *given_scene)

    with pytest.raises(AssertionError):
        kept()
