"""The queue serves jobs in order, keeps its order from plan to plan, and does not look at those it cannot serve."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hcloud.core.estimates import Classification, Estimate, Measure
from hcloud.core.model import BatchTarget, BestEffortTarget, Job, JobState, Market
from hcloud.core.rows import number_of
from hcloud.planner import decisions, make_plan, profiling
from hcloud.planner.cache import PlanCache
from hcloud.planner.context import PlanContext
from hcloud.planner.job_groups import JobGroup
from hcloud.planner.job_queue import JobQueue, QueueSegment, QueueWalk
from hcloud.planner.placement import place
from hcloud.planner.plan import Enqueue, Place, Plan, Wait
from hcloud.planner.provisioning import provision
from hcloud.planner.queued_jobs import QueuedJobs, SimilarJobs
from hcloud.planner.snapshot import LeftOut, Snapshot
from hcloud.spec.policy import AdmissionPolicy, Caps, PlacementPolicy, Policy, ProfilingPolicy, ProvisioningPolicy
from tests.planner.apply_model import apply_ideally
from tests.planner.scenes import NOW, decide, job, machine, need, of, offer, running, scene, spec, told
from tests.policies import simple

PATIENT = AdmissionPolicy(queues="by_quality", patience_s=60.0, patience_cap_s=600.0)


def waiting(number: int, **changes: object) -> Job:
    """Return a job that is queued since its submission."""
    plain = job(number, **changes)  # type: ignore[arg-type]
    return replace(plain, queued_at=plain.submitted_at)


# ---------------------------------------------------------------------------------------------------------- kept order
Ages = st.lists(st.tuples(st.integers(1, 6), st.sampled_from([0.0, 30.0, 90.0, 400.0]), st.booleans()), max_size=12)
"""Changes to a queue: number of a job, its age in seconds, and whether a deadline comes before its patience ends."""


def contents(queued: QueuedJobs, now: float) -> object:
    """Return everything a plan reads of the queued jobs."""
    found = {}
    for similar in queued.kinds():
        similar.rank(None, PATIENT, now)
        found[similar.key] = (similar.members, similar.on_time, similar.by_lateness, similar.late, similar.deadline_at)
    return found


def check_follows(changes: Sequence[tuple[int, float, bool]]) -> None:
    """Raise AssertionError if jobs that come and go leave another queue than jobs that only came."""
    follower, rows, now = QueuedJobs(), dict[int, Job](), NOW
    for number, age_s, urgent in changes:
        if number in rows:
            follower.remove(rows.pop(number))
        else:
            target = BatchTarget(finish_by_at=NOW + 20.0 if urgent else None)
            rows[number] = waiting(number, asks=spec(target=target), submitted_at=NOW - age_s)
            follower.add(rows[number])
        now += 25.0
        fresh = QueuedJobs()
        for each in rows.values():
            fresh.add(each)
        assert contents(follower, now) == contents(fresh, now)
        assert contents(follower, now - 60.0) == contents(fresh, now - 60.0)  # a clock that was set back


@settings(max_examples=60)
@given(Ages)
def test_kept_queue_equals_one_built_from_scratch(changes: list[tuple[int, float, bool]]) -> None:
    check_follows(changes)


def test_property_catches_a_queue_that_keeps_removed_jobs_among_the_late(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(similar: SimilarJobs, job: Job) -> None:
        place = (job.submitted_at, number_of(job.id))
        for entries in (similar.members, similar.on_time):
            entries[:] = [each for each in entries if each[:2] != place]

    monkeypatch.setattr(SimilarJobs, "remove", forget)
    with pytest.raises(AssertionError):
        check_follows([(1, 0.0, False), (2, 400.0, False), (1, 0.0, False)])


# ------------------------------------------------------------------------------------------------------------- walking
def group(place: int) -> JobGroup:
    """Return a group of jobs, for segments."""
    size = need()
    demand = np.array([size.vcpus, size.memory_mib, size.disk_gib])
    return JobGroup(
        place=place, example=waiting(1), resources=size, demand=demand, needed=1, wanted=1, spot_ok=False, promise=True
    )


def segment(rank: int, *numbers: int, left_out: frozenset[int] = frozenset()) -> QueueSegment:
    """Return a segment of jobs, submitted in the order of their numbers."""
    jobs = [waiting(number) for number in sorted(numbers)]
    entries = [(each.submitted_at, number_of(each.id), 0.0, each) for each in jobs]
    return QueueSegment(
        group=group(rank), wait_code="", rank=(rank,), entries=entries, start=0, stop=len(entries), left_out=left_out
    )


def numbers_of(walk: QueueWalk, hopeless: bool = False) -> list[int]:
    return [number_of(each.id) for _, each in walk.jobs(lambda _: hopeless)]


def test_jobs_of_equal_rank_are_served_oldest_first_whatever_their_group() -> None:
    queue = JobQueue(segments=[segment(1, 2, 9), segment(0, 5, 7), segment(1, 1, 4)])
    assert numbers_of(QueueWalk(queue)) == [5, 7, 1, 2, 4, 9]


def test_walk_leaves_out_the_rest_of_a_segment_once_it_is_hopeless_and_counts_it() -> None:
    queue = JobQueue(segments=[segment(0, 1, 3, 5, 7, left_out=frozenset([7])), segment(0, 2, 4, 6)])
    first = queue.segments[0]
    seen = list[int]()
    walk = QueueWalk(queue)
    for _, each in walk.jobs(lambda each: each is first and len(seen) > 2):
        seen.append(number_of(each.id))
    assert seen == [1, 2, 3, 4, 6]
    assert walk.rest(first) == 1


def test_resumed_segment_goes_on_behind_the_present_job() -> None:
    queue = JobQueue(segments=[segment(0, 1, 3, 5, 7), segment(0, 2, 4, 6)])
    first, seen = queue.segments[0], list[int]()
    walk, hopeless = QueueWalk(queue), [first]
    for _, each in walk.jobs(hopeless.__contains__):
        seen.append(number_of(each.id))
        if seen == [2, 4]:
            hopeless.clear()
            walk.resume(first)
            assert walk.rest(queue.segments[1]) == 1
    assert seen == [2, 4, 5, 6, 7]


def test_removed_jobs_are_neither_served_nor_counted() -> None:
    queue = JobQueue(segments=[segment(0, 1, 2, 3, 4)])
    queue.remove(waiting(1), queue.segments[0].group, queue.segments[0])
    queue.remove(waiting(3), queue.segments[0].group)
    assert numbers_of(QueueWalk(queue)) == [2, 4]
    stopped = QueueWalk(queue)
    assert numbers_of(stopped, hopeless=True) == []
    assert stopped.rest(queue.segments[0]) == 2


# ---------------------------------------------------------------------------------------------------------------- plans
FULL = machine(1, offer("large", vcpus=8.0))
Queue = st.lists(
    st.tuples(
        st.sampled_from([0.5, 1.0, 3.0]),
        st.sampled_from([0.0, 20.0, 70.0, 2000.0]),
        st.sampled_from(["ann", "bob"]),
        st.sampled_from([0, 5]),
        st.sampled_from(["deadline", "none", "best_effort"]),
    ),
    min_size=1,
    max_size=14,
)
"""vCPUs, age, user, priority and target of queued jobs."""


def sure(value: float) -> Estimate:
    return Estimate(value=value, low=value, high=value)


KNOWN = Classification(
    by_type={"mock/large": sure(0.02), "mock/small": sure(0.01)},
    caused={"llc-capacity": sure(30.0)},
    tolerated={"llc-capacity": sure(80.0)},
    quality_target=sure(0.5),
    measure=Measure.COMPLETION,
)


def queue_of(jobs: Sequence[tuple[float, float, str, int, str]]) -> list[Job]:
    targets = {
        "deadline": BatchTarget(finish_within_s=2500.0),
        "none": BatchTarget(),
        "best_effort": BestEffortTarget(),
    }
    return [
        waiting(
            100 + number,
            asks=spec(resources=need(vcpus), user=user, priority=priority, target=targets[target]),
            submitted_at=NOW - age_s,
            application="known" if vcpus == 1.0 else "",
        )
        for number, (vcpus, age_s, user, priority, target) in enumerate(jobs)
    ]


POLICIES = {
    "one queue": simple(caps=Caps(max_instances=2)),
    "by quality": simple(caps=Caps(max_instances=2), admission=PATIENT, placement=PlacementPolicy(order="paragon")),
    "users": simple(caps=Caps(max_instances=3, max_jobs_per_user=2)),
    "hybrid by quality": simple(
        caps=Caps(max_instances=3),
        provisioning=ProvisioningPolicy(strategy="hf", mapping="p8"),
        admission=PATIENT,
        placement=PlacementPolicy(order="paragon"),
    ),
    "hybrid": simple(caps=Caps(max_instances=3), provisioning=ProvisioningPolicy(strategy="hf", mapping="p8")),
}


def plans(snapshot: Snapshot, policy: Policy) -> list[Plan]:
    """Return the plans until nothing is left to do, at most five; each starts from what the one before leaves."""
    made, snapshot = list[Plan](), replace(snapshot, plan_cache=PlanCache())
    while len(made) < 5 and (not made or made[-1].actions):
        made.append(make_plan(snapshot, policy, np.random.default_rng(0)))
        snapshot = apply_ideally(snapshot, made[-1])
    return made


def check_alike(jobs: Sequence[tuple[float, float, str, int, str]], policy: Policy) -> None:
    """Raise AssertionError if plans depend on whether similar jobs are kept together."""
    paid = offer("large", vcpus=8.0, usd_per_h=0.01, market=Market.RESERVED, available=1)
    snapshot = scene(*queue_of(jobs), running(1, FULL, asks=spec(resources=need(7.0))), FULL, offer(), paid)
    snapshot = replace(snapshot, applications={"known": KNOWN})
    together = plans(snapshot, policy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlanContext, "distinguishes_similar_jobs", True)
        apart = plans(snapshot, policy)
    assert [sorted(map(repr, each.actions)) for each in together] == [sorted(map(repr, each.actions)) for each in apart]


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=25)
@given(jobs=Queue)
def test_plan_is_the_same_if_similar_jobs_are_looked_at_one_by_one(
    name: str, jobs: list[tuple[float, float, str, int, str]]
) -> None:
    check_alike(jobs, POLICIES[name])


def test_property_catches_a_queue_that_splits_similar_jobs_at_the_wrong_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimilarJobs, "late", 0)
    old = [(1.0, 2000.0, "ann", 0, "none"), (0.5, 2000.0, "bob", 0, "none"), (1.0, 0.0, "ann", 0, "deadline")]
    with pytest.raises(AssertionError):
        check_alike(old * 3, POLICIES["by quality"])


def test_plan_in_which_nothing_changes_looks_at_one_job_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [waiting(n, asks=spec(resources=need(1.0 + n % 3))) for n in range(100, 700)]
    full = running(1, FULL, asks=spec(resources=need(8.0)))
    policy, plan_cache = simple(caps=Caps(max_instances=1)), PlanCache()
    snapshot = scene(*jobs, full, FULL, offer("large", vcpus=8.0), plan_cache=plan_cache)
    while (plan := decide(snapshot, policy)).actions:
        snapshot = apply_ideally(snapshot, plan)
    looked = list[str]()
    for module, name in ((place, "_placed_now"), (provision, "_provide")):
        original = getattr(module, name)

        def count(first: object, job: Job, *rest: object, original: Callable[..., object] = original) -> object:
            looked.append(job.id)
            return original(first, job, *rest)

        monkeypatch.setattr(module, name, count)
    assert not decide(snapshot, policy).actions
    assert 3 <= len(looked) <= 2 * 3 + 1


def test_jobs_left_out_of_a_plan_do_not_count_as_waiting() -> None:
    busy, policy = running(1, FULL, asks=spec(resources=need(7.0))), simple(caps=Caps(max_instances=1))
    wide = waiting(10, asks=spec(resources=need(4.0)), wait_code="instance_full")
    small = waiting(11, asks=spec(resources=need(0.5)))
    left_out = LeftOut(jobs={small.id: "ValueError: a defect"})
    for kept in ((), (left_out,)):
        jobs = (wide, small) if kept else (wide,)
        snapshot = scene(busy, FULL, *jobs, offer("large", vcpus=8.0), left_out=kept[0] if kept else LeftOut())
        (wait,) = [each for each in of(decide(snapshot, policy), Wait) if each.job_id == wide.id]
        assert (wait.reason.code, wait.reserved) == ("cap_instances", ())


def test_user_at_the_limit_of_jobs_gives_way_to_others_and_is_served_once_below_it() -> None:
    policy = simple(caps=Caps(max_jobs_per_user=1))
    mine = [waiting(n, asks=spec(user="ann")) for n in (2, 3, 4)]
    other = waiting(9, asks=spec(user="bob"))
    on = machine(1, offer("large", vcpus=8.0))
    plan = decide(scene(running(1, on, asks=spec(user="ann")), on, *mine, other), policy)
    assert [each.job_id for each in of(plan, Place)] == ["job-9"]
    assert {each.job_id for each in of(plan, Wait)} == {"job-2", "job-3", "job-4"}
    assert told(plan, "job-3") == "cap_jobs_per_user"


def test_more_new_jobs_than_a_plan_may_admit_are_admitted_plan_by_plan_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (decisions, profiling):
        monkeypatch.setattr(module, "MOST_RECORDED", 3)
    policy = simple(caps=Caps(max_instances=1))
    new = [job(n, JobState.SUBMITTED, asks=spec(priority=9 if n == 18 else 0)) for n in range(11, 19)]
    snapshot = scene(*new, running(1, FULL, asks=spec(resources=need(8.0))), FULL, offer(), plan_cache=PlanCache())
    admitted, due = list[list[str]](), list[bool]()
    while (plan := decide(snapshot, policy)).actions:
        admitted.append([each.job_id for each in of(plan, Enqueue)])
        due.append(plan.due_at == NOW)
        assert len(of(plan, Wait)) <= 3
        snapshot = apply_ideally(snapshot, plan)
    assert admitted == [["job-18", "job-11", "job-12"], ["job-13", "job-14", "job-15"], ["job-16", "job-17"]]
    assert due == [True, True, False]
    assert all(each.wait_code for each in snapshot.jobs if each.state is JobState.QUEUED)


def test_waits_beyond_those_a_plan_may_record_are_recorded_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "MOST_RECORDED", 3)
    full = running(1, FULL, asks=spec(resources=need(8.0)))
    snapshot = scene(*[waiting(n) for n in range(11, 18)], full, FULL, offer(), plan_cache=PlanCache())
    policy, recorded = simple(caps=Caps(max_instances=1)), list[int]()
    while (plan := decide(snapshot, policy)).actions:
        recorded.append(len(of(plan, Wait)))
        snapshot = apply_ideally(snapshot, plan)
    assert recorded == [3, 3, 1]


def test_jobs_that_wait_to_be_profiled_keep_no_others_from_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "MOST_RECORDED", 2)
    policy = simple(
        profiling=ProfilingPolicy(when="before", max_concurrent=1), placement=PlacementPolicy(order="paragon")
    )
    unknown = [job(n, JobState.SUBMITTED, asks=spec(command=(f"program-{n}",))) for n in range(11, 15)]
    never = job(19, JobState.SUBMITTED, asks=spec(profiling="never"))
    plan = decide(scene(*unknown, never, offer(), offer("large", vcpus=8.0)), policy)
    assert [each.job_id for each in of(plan, Enqueue)] == ["job-19"]
    assert plan.due_at > NOW
