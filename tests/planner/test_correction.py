"""Corrections of jobs that miss their target are taken step by step if they pay off; noise moves no job."""

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hcloud.classifier.applications import identify
from hcloud.classifier.interference import CORE_SOURCES, EXCESS, NOT_COUNTED, TOLERATED_MIN
from hcloud.core.estimates import Application, Classification, Estimate, Measure
from hcloud.core.model import (
    BatchTarget,
    BestEffortTarget,
    Correction,
    FailureCause,
    Instance,
    Job,
    MetricsHook,
    Nodes,
    ServiceTarget,
)
from hcloud.forecast.job_monitor import Sampled, Timed, pace_of_rate
from hcloud.planner.context import PlanContext
from hcloud.planner.correction import correct
from hcloud.planner.correction.monitor import RankSamples, RecheckQueue, few_readings
from hcloud.planner.plan import MET, Correct, Miss, Place, Plan, Resize, StopAttempt, StopRank
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import CorrectionPolicy as Policies
from hcloud.spec.policy import DisruptionPolicy, Policy
from tests.planner.apply_model import apply_ideally, pass_time
from tests.planner.properties import Planner, honest
from tests.planner.scenes import NOW, decide, machine, need, of, offer, running, scene, spec
from tests.planner.watched import classified, hooked, samples, started, sure, with_samples
from tests.policies import simple

SLOW = (0.0002,) * 12
"""Progress per second; 24 % of the rate that meets a deadline 2,000 s after submission, as seen after 600 s."""
BUSY = {"vcpus_used": 1.0}


def late(*on: Instance, number: int = 1, **changes: object) -> Job:
    """Return a job that has run for 600 s of its 2,000 s."""
    return started(running(number, *on, asks=hooked(**changes)), 600.0)  # type: ignore[arg-type]


def neighbour(number: int, on: Instance, ago_s: float = 200.0, vcpus: float = 1.0) -> Job:
    return started(running(number, on, asks=spec(target=BestEffortTarget(), resources=need(vcpus))), ago_s)


def busy(number: int, of_vcpus: float = 2.0) -> Instance:
    return machine(number, offer("small", vcpus=of_vcpus), idle_since=None)


def steps(plan: Plan) -> list[str]:
    """The corrections of a plan, without those that only note that a job slowed."""
    return [action.step for action in of(plan, Correct) if action.step != "slowed"]


def slow(*jobs_and_machines: object, paces: tuple[float, ...] = SLOW, **used: float) -> Snapshot:
    """Return a scene in which the first job was measured at these paces."""
    return with_samples(scene(*jobs_and_machines), {"job-1": [samples(paces, **used)]})  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------------- one by one
def test_a_job_that_uses_all_it_has_is_given_more_of_its_machine_first() -> None:
    here = busy(1, 4.0)
    plan = decide(slow(late(here), neighbour(2, here), here, **BUSY))
    assert steps(plan) == ["resize"]
    [resize] = of(plan, Resize)
    assert [each.resources for each in resize.ranks] == [need(2.0)]
    assert resize.reason.numbers["by"] == "deadline"
    assert float(resize.reason.numbers["wanted"] or 0) == pytest.approx((1 - 0.024) / 1398, rel=0.001)
    assert not of(plan, StopAttempt)


@pytest.mark.parametrize(("pace", "helped"), [(1 / 1950, False), (1 / 3000, True)])
def test_a_job_without_a_new_record_for_long_is_not_late_for_that(pace: float, helped: bool) -> None:
    host = busy(1)
    job = started(running(1, host, asks=hooked()), 900.0)
    told = samples([pace] * 75, until=NOW - 150.0, vcpus_used=1.0)
    assert bool(steps(decide(with_samples(scene(job, host), {"job-1": [told]})))) is helped


def test_a_record_from_after_a_clock_was_set_back_to_before_the_deadline_is_no_ground_for_anything() -> None:
    host = busy(1)
    job = started(running(1, host, asks=hooked(within_s=1000.0)), 900.0)
    assert job.deadline_at is not None and job.deadline_at > NOW
    told = samples(SLOW, until=job.deadline_at, vcpus_used=1.0)
    assert steps(decide(with_samples(scene(job, host), {"job-1": [told]}))) == []


def test_more_vcpus_are_not_given_to_a_job_that_does_not_use_its_own() -> None:
    here = busy(1, 4.0)
    assert steps(decide(slow(late(here), here, vcpus_used=0.4))) == []


def test_scale_up_steps_decide_where_they_are_known() -> None:
    here = busy(1, 4.0)
    job = replace(late(here), application="app")
    flat = classified(0.0002, by_step={"1 vCPU": sure(0.0002), "2 vCPU": sure(0.0002)})
    known = {"applications": {"app": flat}}
    assert steps(decide(replace(slow(job, here, **BUSY), **known))) == []
    known = {"applications": {"app": classified(0.0002)}}
    assert steps(decide(replace(slow(job, here, **BUSY), **known))) == ["resize"]


def test_a_best_effort_neighbour_that_came_when_it_got_slow_is_evicted() -> None:
    here = busy(1)
    fast_then_slow = (0.0009,) * 10 + SLOW
    before = slow(started(late(here), 600.0), neighbour(2, here, ago_s=125.0), here, paces=fast_then_slow)
    plan = decide(before)
    assert steps(plan) == ["evict"]
    [stop] = of(plan, StopAttempt)
    assert (stop.job_id, stop.cause, stop.reason.code) == ("job-2", FailureCause.EVICTED, "evicted_for_target")
    assert "evicted for job-1" in stop.reason.text
    after = apply_ideally(before, plan)
    assert not decide(after).actions, "it settles first"


def test_a_neighbour_that_changed_nothing_is_left_alone() -> None:
    here = busy(1)
    paces = (0.0002,) * 24
    plan = decide(slow(late(here), neighbour(2, here, ago_s=150.0), here, paces=paces))
    assert steps(plan) == []


def test_no_job_is_evicted_if_the_policy_forbids_it() -> None:
    here = busy(1)
    policy = simple(disruption=DisruptionPolicy(evict_best_effort=False))
    before = slow(late(here), neighbour(2, here, ago_s=125.0), here, paces=(0.0009,) * 10 + SLOW)
    assert steps(decide(before, policy)) == []


def test_work_the_neighbour_loses_is_weighed_against_what_is_saved() -> None:
    here, paces = busy(1), (0.0009,) * 10 + SLOW
    long_there = slow(started(late(here), 900.0), neighbour(2, here, ago_s=8e5), here, paces=paces)
    assert steps(decide(long_there)) == []


def test_an_evicted_neighbour_does_not_come_back_while_the_job_runs() -> None:
    here = busy(1)
    made = Correction(at=NOW - 5, step="evict", attempt="job-1.1", instances=("inst-1",))
    helped = replace(late(here), corrections=(made,))
    waiting = replace(neighbour(2, here), state="queued", attempt=None, attempts_made=0)
    assert not of(decide(scene(helped, waiting, here)), Place)
    assert of(decide(scene(late(here), waiting, here)), Place)


def test_a_job_is_moved_to_an_empty_machine_when_a_promised_neighbour_is_in_its_way() -> None:
    here, free = busy(1), machine(2)
    rival = started(running(2, here, asks=spec()), 125.0)
    # 30 % done: a restart costs less than going on.
    before = slow(late(here), rival, here, free, paces=(0.003,) * 10 + SLOW)
    plan = decide(before)
    assert steps(plan) == ["move"]
    assert [s.job_id for s in of(plan, StopAttempt)] == ["job-1"]
    numbers = of(plan, Correct)[0].reason.numbers
    assert float(numbers["saved_s"] or 0) >= 1.5 * float(numbers["cost_s"] or 0)


def test_what_nothing_helps_now_is_tried_again_soon() -> None:
    here, free = busy(1), machine(2)
    rival, job = started(running(2, here, asks=spec()), 125.0), late(here)
    full = slow(job, rival, here, paces=(0.003,) * 10 + SLOW)
    policy = simple(correction=Policies(long_running_s=1e6))
    assert steps(decide(full, policy)) == []
    roomy = replace(scene(job, rival, here, free), job_samples=full.job_samples, plan_cache=full.plan_cache)
    assert steps(decide(replace(roomy, now=roomy.now + 5.0), policy)) == []
    assert steps(decide(replace(roomy, now=roomy.now + 10.0), policy)) == ["move"]


def test_a_job_that_is_slow_alone_is_not_moved_to_another_machine_of_its_type() -> None:
    here, free = busy(1), machine(2)
    assert steps(decide(slow(late(here), here, free, paces=(0.003,) * 10 + SLOW))) == []


def test_a_neighbour_of_old_is_not_to_blame_for_a_new_phase() -> None:
    here = busy(1)
    before = slow(late(here), neighbour(2, here, ago_s=400.0), here, machine(2), paces=(0.0009,) * 10 + SLOW)
    assert steps(decide(before)) == []


def test_a_moved_job_goes_elsewhere() -> None:
    here, free = busy(1), machine(2)
    at = slow(late(here), started(running(2, here, asks=spec()), 125.0), here, free, paces=(0.003,) * 10 + SLOW)
    at = pass_time(apply_ideally(at, decide(at)), 5.0, run_s=1e9)
    for _ in range(3):
        at = pass_time(apply_ideally(at, decide(at)), 10.0, run_s=1e9)
    moved = next(job for job in at.jobs if job.id == "job-1")
    assert moved.attempt is not None
    assert [a.instance_id for a in moved.attempt.allocations] == ["inst-2"]


def test_a_stateful_job_stays_and_its_stateless_neighbour_moves() -> None:
    here, free = busy(1), machine(2)
    rival = started(running(2, here, asks=spec()), 100.0)
    stateful = late(here, stateful=True)
    plan = decide(slow(stateful, rival, here, free, paces=(0.003,) * 10 + SLOW))
    assert [s.job_id for s in of(plan, StopAttempt)] == ["job-2"]
    assert steps(plan) == ["move_neighbour", "move"]


def test_an_incremental_job_is_given_the_nodes_that_seemed_unneeded() -> None:
    here, free = busy(1, 1.0), machine(2, offer("small", vcpus=1.0))
    job = late(here)
    job = replace(job, spec=replace(job.spec, nodes=Nodes(count=2, minimum=1, gang=False)), application="app")
    nodes = {1: sure(0.0002), 2: sure(0.00038)}
    policy = simple(placement=replace(simple().placement, order="quasar"))
    known = {"app": classified(0.00035, by_nodes=nodes)}
    plan = decide(replace(slow(job, here, free), applications=known), policy)
    assert steps(plan) == ["reclassify"]
    done = Correction(at=NOW - 1, step="reclassify", attempt="job-1.1")
    again = replace(slow(replace(job, corrections=(done,)), here, free), applications=known)
    plan = decide(again, policy)
    assert steps(plan) == ["nodes"]
    assert [[r.instance_id for r in place.ranks] for place in of(plan, Place)] == [["inst-2"]]


def test_what_was_measured_alone_is_believed_and_the_next_step_follows_at_once() -> None:
    here = busy(1, 4.0)
    job = replace(late(here), application="app")
    before = replace(slow(job, here, **BUSY), applications={"app": classified(0.00035)})
    plan = decide(before)
    [learnt] = [action.learnt for action in of(plan, Correct)]
    assert learnt is not None
    assert learnt.performance == pytest.approx(0.0002)
    assert steps(decide(apply_ideally(before, plan))) == ["resize"]


def on_two(known: Classification, **used: float) -> Plan:
    """Return what is decided about a late job with one rank on each of two instances."""
    one, two = busy(1, 1.0), busy(2, 1.0)
    job = replace(late(one, two, nodes=Nodes(count=2)), application="app")
    before = with_samples(scene(job, one, two), {"job-1": [samples(SLOW, **used), samples(SLOW, **used)]})
    return decide(replace(before, applications={"app": known}))


def test_on_several_machines_what_one_would_do_is_learnt() -> None:
    plan = on_two(classified(0.00018, by_nodes={1: sure(0.00018), 2: sure(0.00034)}))
    [learnt] = [action.learnt for action in of(plan, Correct)]
    assert learnt is not None
    assert learnt.performance == pytest.approx(0.0002 * 18 / 34)


@pytest.mark.parametrize(("vcpus_used", "done"), [(1.0, []), (0.7, ["reclassify"])])
def test_what_each_rank_counts_for_itself_is_held_against_its_own_part(vcpus_used: float, done: list[str]) -> None:
    cpu = classified(1.0, by_nodes={1: sure(1.0), 2: sure(2.0)}, measure=Measure.CPU)
    assert [step for step in steps(on_two(cpu, vcpus_used=vcpus_used)) if step == "reclassify"] == done


@pytest.mark.parametrize(
    ("believed", "profiled_ago_s", "runs", "on", "done"),
    [
        (0.0009, 100.0, ("job-9",), "mock/small", ["move"]),
        # profiled before this start, so the estimate may be wrong
        (0.00035, 700.0, ("job-9",), "mock/small", ["reclassify"]),
        (0.00035, 100.0, ("job-8",), "mock/small", ["reclassify"]),  # not a copy of this job
        (0.0009, 100.0, ("job-9",), "mock/large", ["move"]),  # below half, which no estimate of a type is wrong by
    ],
)
def test_a_job_slower_than_a_later_copy_is_restarted_elsewhere(
    believed: float, profiled_ago_s: float, runs: tuple[str, ...], on: str, done: list[str]
) -> None:
    here, free = busy(1, 1.0), machine(2)
    row: dict[str, object] = {"profiled_at": NOW - profiled_ago_s, "runs": runs, "type_column": on, "missed": (True,)}
    plan = decide(replace(_lone(late(here), here, free, row=row), applications={"app": classified(believed)}))
    assert steps(plan) == done
    if done == ["move"]:
        assert "(slower there than a later copy of it)" in of(plan, StopAttempt)[0].reason.text
        assert of(plan, StopAttempt)[0].reason.numbers["factor"] == pytest.approx(0.0009 / 0.0002)


def test_a_lone_job_at_less_than_half_of_what_is_believed_is_a_straggler_and_teaches_nothing() -> None:
    here, free = busy(1, 1.0), machine(2)
    plan = decide(_lone(late(here), here, free))
    assert steps(plan) == ["move"]
    assert "(slower there than other runs of its application)" in of(plan, StopAttempt)[0].reason.text


@pytest.mark.parametrize(("taken", "kept"), [(0.0, False), (0.3, False), (2.0, True)])
@pytest.mark.parametrize("promised", [True, False])
def test_a_job_from_which_the_only_host_took_its_cpus_is_not_moved_to_another_machine_of_it(
    taken: float, kept: bool, promised: bool
) -> None:
    here, free = (_of_one_host(each) for each in (busy(1, 1.0), machine(2)))
    job = late(here) if promised else late(here, target=BatchTarget())
    at = with_samples(_lone(job, here, free), {"job-1": [samples(SLOW, taken=taken)]})
    assert steps(decide(at)) == ([] if kept else ["move"])


def test_a_job_from_which_its_own_host_took_its_cpus_is_moved_and_teaches_nothing() -> None:
    here, free = busy(1, 1.0), machine(2)
    at = with_samples(_lone(late(here), here, free), {"job-1": [samples(SLOW, taken=2.0)]})
    assert steps(decide(at)) == ["move"]
    known_wrongly = with_samples(_lone(late(here), here, row={"missed": (False, True)}), {"job-1": [samples(SLOW)]})
    assert _taught(known_wrongly)
    assert not _taught(replace(known_wrongly, job_samples=at.job_samples))


def _of_one_host(instance: Instance) -> Instance:
    return replace(instance, offer=replace(instance.offer, pool="mock/host", pool_free=instance.capacity))


def test_so_slow_a_job_is_believed_where_its_application_was_known_wrongly_before() -> None:
    here = busy(1, 1.0)
    for missed, believed in (((False, True), True), ((False, False), False)):
        assert _taught(_lone(late(here), here, row={"missed": missed})) is believed


def test_so_slow_a_job_is_believed_where_another_of_its_application_is_as_slow() -> None:
    here, there = busy(1, 1.0), busy(2, 1.0)
    other = replace(late(there, number=2), application="app")
    for pace, believed in ((0.0002, True), (0.0008, False)):
        at = _lone(late(here), other, here, there)
        both = {"job-1": [samples(SLOW)], "job-2": [samples((pace,) * 12)]}
        assert _taught(with_samples(at, both)) is believed
    beside = neighbour(3, there, ago_s=590.0)
    assert not _taught(with_samples(_lone(late(here), other, beside, here, there), both)), "which explains it"


def test_so_slow_a_job_is_believed_where_it_did_more_before() -> None:
    here = busy(1, 1.0)
    assert _taught(replace(_lone(late(here), here), job_samples=slow(late(here), here, paces=PHASES).job_samples))


PHASES = (0.0009,) * 10 + SLOW


@st.composite
def slow_starts(draw: st.DrawFn) -> Snapshot:
    """Draw a job at 5 to 45 % of its estimate, alone or with a harmless neighbour, on a full fleet or not."""
    seed, here = draw(st.integers(0, 2**32 - 1)), busy(1)
    scatter = np.random.default_rng(seed).uniform(0.95, 1.05, size=12)
    paces = tuple(float(0.0009 * draw(st.floats(0.05, 0.45)) * each) for each in scatter)
    beside = [replace(neighbour(2, here), application="quiet")] if draw(st.booleans()) else []
    free = [machine(2)] if draw(st.booleans()) else []
    at = _lone(late(here), *beside, here, *free)
    known = {
        "app": classified(0.0009, tolerated={"llc": sure(50.0)}),
        "quiet": classified(0.1, caused={"llc": sure(5.0)}),
    }
    return replace(with_samples(at, {"job-1": [samples(paces)]}), applications=known)


def one_slow_start_teaches_nothing(planner: Planner, at: Snapshot) -> None:
    """No estimate of its application is derived from this job alone."""
    taught = [action.learnt for action in of(planner(at, simple()), Correct) if action.learnt is not None]
    assert not taught, taught


@settings(max_examples=60, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
@given(slow_starts())
def test_one_slow_start_teaches_nothing(at: Snapshot) -> None:
    one_slow_start_teaches_nothing(honest, at)


def believes_every_start(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: takes no job for a straggler."""
    return honest(snapshot, replace(policy, correction=replace(policy.correction, straggler_below=1e-9)))


def test_that_property_catches_a_planner_that_believes_every_start() -> None:
    @settings(max_examples=60, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
    @given(slow_starts())
    def holds(at: Snapshot) -> None:
        one_slow_start_teaches_nothing(believes_every_start, at)

    with pytest.raises(AssertionError):
        holds()


def _taught(at: Snapshot) -> bool:
    """Return whether any estimate of an application changes."""
    return any(action.learnt is not None for action in of(decide(at), Correct))


def test_a_job_a_little_slower_than_a_copy_on_another_type_is_known_wrongly() -> None:
    row: dict[str, object] = {"profiled_at": NOW - 100.0, "type_column": "mock/large"}
    at = _lone(late(busy(1, 1.0)), busy(1, 1.0), machine(2), row=row)
    assert steps(decide(replace(at, applications={"app": classified(0.00035)}))) == ["reclassify"]


def test_a_slow_job_with_a_neighbour_is_not_taken_for_a_straggler() -> None:
    here = busy(1)
    at = _lone(late(here), neighbour(2, here, ago_s=590.0), here, machine(2), row={"profiled_at": NOW - 100.0})
    assert "move" not in steps(decide(at))


def _lone(job: Job, *others: object, row: dict[str, object] | None = None) -> Snapshot:
    """Return a slow job of a known application, of which a copy was profiled as job-9."""
    known = {"name": "app", "program": identify(job.spec).program, "type_column": "mock/small", "runs": ("job-9",)}
    job, row = replace(job, application="app", profile_runs=("job-9",)), {**known, **(row or {})}
    programs = {row["program"]: (Application(**row),)}  # type: ignore[arg-type]
    return replace(slow(job, *others), applications={"app": classified(0.0009)}, programs=programs)  # type: ignore[arg-type]


def guess(value: float, low: float) -> Estimate:
    """Return an estimate inferred from other programs."""
    return Estimate(value=value, low=low, high=100.0)


def test_with_neighbours_an_unmeasured_tolerance_is_corrected() -> None:
    [learnt] = [action.learnt for action in of(decide(_beside_loud(0.00035, guess(50.0, 2.0))), Correct)]
    assert learnt is not None
    assert dict(learnt.tolerated) == {"llc": pytest.approx(EXCESS * 40 / (35 / 20 - 1))}


@pytest.mark.parametrize(
    ("believed", "tolerated"),
    [
        (0.00035, sure(50.0)),  # measured: a phase, an unknown neighbour or the instance slows it
        (0.00035, sure(50.0)._replace(low=1.0)),
        (0.00035, guess(50.0, 3.0)),  # needs 2.8, less than the estimate allows
        (0.00035, guess(2.5, 1.0)),  # already estimated to be slowed more than that
    ],
)
def test_neighbours_that_cannot_slow_it_so_much_change_no_estimate(believed: float, tolerated: Estimate) -> None:
    assert not _taught(_beside_loud(believed, tolerated))


@pytest.mark.parametrize("source", sorted(CORE_SOURCES | NOT_COUNTED))
def test_neighbours_on_other_cores_teach_nothing_about_the_own_core(source: str) -> None:
    assert not _taught(_beside_loud(0.00035, guess(50.0, 2.0), source=source))


def test_less_than_half_of_what_neighbours_leave_is_a_straggler() -> None:
    assert not _taught(_beside_loud(0.0009, guess(50.0, 0.1)))
    assert _taught(_beside_loud(0.0009, guess(1.5, 0.1))), "whom that was to slow so much"


def test_a_tolerance_at_its_minimum_is_not_corrected() -> None:
    assert not _taught(_beside_loud(0.00035, guess(0.0, 0.0), caused=4.0))  # needs 0.27


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0, 2.5, 50.0, 100.0])
@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("caused", [0.0, 0.1, 4.0, 100.0])
def test_whatever_is_believed_a_lesson_is_less_and_within_its_limits(value: float, part: float, caused: float) -> None:
    plan = decide(_beside_loud(0.00035, guess(value, part * value), caused))
    for learnt in [action.learnt for action in of(plan, Correct) if action.learnt is not None]:
        assert max(part * value, TOLERATED_MIN) <= learnt.tolerated["llc"] < max(value, TOLERATED_MIN + 1e-9)


def _beside_loud(believed: float, tolerated: Estimate, caused: float = 40.0, source: str = "llc") -> Snapshot:
    """Return a slow job, and a neighbour that presses so much on a source that the job tolerates so much of."""
    here = busy(1)
    job, beside = replace(late(here), application="app"), replace(neighbour(2, here), application="loud")
    known = {
        "app": classified(believed, tolerated={source: tolerated, "net": sure(90.0)}),
        "loud": classified(0.1, caused={source: sure(caused), "net": sure(0.25 * caused)}),
    }
    return replace(slow(job, beside, here), applications=known)


def test_a_service_is_judged_by_its_latency() -> None:
    here = busy(1, 4.0)
    target = ServiceTarget(requests_per_s=10.0, latency_ms=20.0, percentile=99.0)
    asks = spec(target=target, metrics=MetricsHook(url="http://127.0.0.1/"))
    job = started(running(1, here, asks=asks), 600.0)
    # Half busy, it waits a third less on twice the vCPUs; hardly busy, more vCPUs would not help.
    within = ((50.0, 5.0, ["resize"]), (21.0, 5.0, ["resize"]), (50.0, 0.5, []), (19.0, 5.0, []))
    for latency_ms, used_s, expected in within:
        measured = tuple(
            Sampled(at=NOW - 120 + 10 * n, values={"cpu_s": used_s * n}, latency_ms={99.0: latency_ms})
            for n in range(13)
        )
        assert steps(decide(with_samples(scene(job, here), {"job-1": [measured]}))) == expected


def test_a_service_that_serves_all_too_late_is_not_believed_to_be_fast() -> None:
    here = busy(1, 1.0)
    target = ServiceTarget(requests_per_s=10.0, latency_ms=20.0, percentile=99.0)
    asks = spec(target=target, metrics=MetricsHook(url="http://127.0.0.1/"), interruptible=False)
    job = replace(started(running(1, here, asks=asks), 600.0), application="app")
    for latency_ms, believed in ((25.0, 8.8), (19.0, None)):
        served = tuple(
            Sampled(at=NOW - 120 + 10 * n, values={"requests_per_s": 11.0}, latency_ms={99.0: latency_ms})
            for n in range(13)
        )
        at = with_samples(scene(job, here), {"job-1": [served]})
        plan = decide(replace(at, applications={"app": classified(10.5, measure=Measure.REQUESTS)}))
        taught = [each.learnt.performance for each in of(plan, Correct) if each.learnt is not None]
        assert taught == ([] if believed is None else [pytest.approx(believed)])


@pytest.mark.parametrize(
    ("latency_ms", "rates", "used_s", "expected", "why"),
    [
        (19.5, (6.0,), 1.0, ["resize"], "more vCPUs serve more"),
        (19.5, (6.0,), 0.5, [], "its load may be lower"),
        (19.5, (9.5,), 1.0, [], "nearly all are served"),
        (15.0, (6.0,), 1.0, [], "nothing shows that more requests come"),
        (19.5, (5.0, 5.0), 1.0, [], "both ranks together serve all"),
        (19.5, (4.0, 2.0), 1.0, ["resize"], "both ranks together serve too little"),
    ],
)
def test_a_service_whose_latency_is_at_its_bound_is_judged_by_the_requests_that_it_serves(
    latency_ms: float, rates: tuple[float, ...], used_s: float, expected: list[str], why: str
) -> None:
    machines = [busy(1 + rank, 4.0) for rank in range(len(rates))]
    target = ServiceTarget(requests_per_s=10.0, latency_ms=20.0, percentile=99.0)
    nodes = Nodes(count=len(rates), minimum=1, gang=False)
    asks = spec(target=target, metrics=MetricsHook(url="http://127.0.0.1/"), nodes=nodes)
    job = started(running(1, *machines, asks=asks), 600.0)
    measured = [
        tuple(
            Sampled(
                at=NOW - 120 + 10 * n,
                values={"cpu_s": 10.0 * used_s * n, "requests_per_s": rate},
                latency_ms={99.0: latency_ms},
            )
            for n in range(13)
        )
        for rate in rates
    ]
    plan = decide(with_samples(scene(job, *machines), {"job-1": measured}))
    assert steps(plan) == expected, why
    missed = [each.reason for each in of(plan, Miss)]
    assert [each.code for each in missed] == (["any:not_busy"] if used_s == 0.5 else [])
    for each in missed:
        assert each.text.startswith(
            "misses its target: p99 latency 19.5 ms, bound 20 ms; serves 6 of 10 requests/s; tried: nothing; nothing"
        )


@pytest.mark.parametrize(
    ("paces", "why"),
    [
        ((0.0002,) * 3, "too few readings"),
        ((0.0008,) * 12, "fast enough"),
        ((0.0,) * 4 + (0.008, 0.0, 0.0, 0.0), "written down now and then"),
    ],
)
def test_nothing_is_done_without_certainty(paces: tuple[float, ...], why: str) -> None:
    here = busy(1, 4.0)
    assert steps(decide(slow(late(here), here, paces=paces, **BUSY))) == [], why


def test_a_miss_that_no_step_helps_is_recorded_once_with_why_and_ends_when_the_target_is_met() -> None:
    here = busy(1, 4.0)
    used_up = tuple(Correction(at=NOW - 500, step="resize", attempt="job-1.1") for _ in range(8))
    job = replace(late(here), corrections=used_up)
    (missed,) = of(decide(slow(job, here, **BUSY)), Miss)
    assert missed.reason.code == "any:used_up"
    assert missed.reason.text.startswith(
        "misses its target: 29 % of the rate needed for its deadline; tried: resize (8"
    )
    recorded = replace(job, unmet_code=missed.reason.code)
    assert not decide(slow(recorded, here, **BUSY)).actions
    (met,) = of(decide(slow(recorded, here, paces=(0.0008,) * 12, **BUSY)), Miss)
    assert met.reason.code == MET
    nothing = simple(correction=Policies(steps=()))
    (missed,) = of(decide(slow(late(here), here, **BUSY), nothing), Miss)
    assert missed.reason.code == "resize:off evict:off nodes:off move:off"


def test_steps_of_one_attempt_and_jobs_per_plan_are_limited() -> None:
    here = busy(1, 4.0)
    used_up = tuple(Correction(at=NOW - 500, step="resize", attempt="job-1.1") for _ in range(8))
    assert steps(decide(slow(replace(late(here), corrections=used_up), here, **BUSY))) == []
    many = [late(busy(n, 4.0), number=n) for n in range(1, 5)]
    fleet = [busy(n, 4.0) for n in range(1, 5)]
    at = with_samples(scene(*many, *fleet), {job.id: [samples(SLOW, **BUSY)] for job in many})
    assert len(of(decide(at), Correct)) == Policies().max_per_cycle
    assert not of(decide(at, simple(correction=Policies(steps=()))), Correct)
    assert not of(decide(replace(at, paused="drained")), Correct)


def test_plan_checks_no_job_behind_the_last_that_it_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    checked, check = list[str](), correct._check

    def noted(context: PlanContext, rechecks: RecheckQueue, job: Job) -> RankSamples | None:
        checked.append(job.id)
        return check(context, rechecks, job)

    monkeypatch.setattr(correct, "_check", noted)
    many, fleet = [late(busy(n, 4.0), number=n) for n in range(1, 7)], [busy(n, 4.0) for n in range(1, 7)]
    at = with_samples(scene(*many, *fleet), {job.id: [samples(SLOW, **BUSY)] for job in many})
    helped = of(decide(at), Correct)
    assert checked == [each.job_id for each in helped] == ["job-1", "job-2"]


# --------------------------------------------------------------------------------------------------------------- phases
def test_a_share_of_long_running_jobs_is_checked_for_a_change_of_phase() -> None:
    fleet = [busy(n) for n in range(1, 61)]
    jobs = [
        replace(started(running(n, on, asks=hooked(9e4)), 700.0), application="app") for n, on in enumerate(fleet, 1)
    ]
    policy = simple(correction=Policies(max_per_cycle=100))
    at = with_samples(scene(*jobs, *fleet), {job.id: [samples((0.0006,) * 12)] for job in jobs})
    at = replace(at, applications={"app": classified(0.0004)})
    plan = decide(at, policy)
    assert 4 <= len(of(plan, Correct)) <= 24, "about a fifth"
    assert {action.reason.code for action in of(plan, Correct)} == {"phase_changed"}
    assert decide(at, policy) == plan, "who is looked at does not depend on chance"
    assert not of(decide(apply_ideally(at, plan), policy), Correct), "once in a period"
    as_expected = replace(at, applications={"app": classified(0.0006)})
    assert not of(decide(as_expected, policy), Correct)


# ----------------------------------------------------------------------------------------------------------- stragglers
def spread(paces: tuple[float, ...], **changes: object) -> Snapshot:
    """Return an incremental job with ranks at these paces, one per instance, and one more instance."""
    fleet = [busy(n) for n in range(1, len(paces) + 1)]
    asks = hooked(9e4, nodes=Nodes(count=len(paces), minimum=1, gang=False))
    job = started(running(1, *fleet, asks=asks), 500.0)  # too short for optional ranks to be given up
    job = replace(job, **changes)  # type: ignore[arg-type]
    spare = machine(len(paces) + 1)
    measured = [samples((pace,) * 12, start=0.1) for pace in paces]
    return with_samples(scene(job, *fleet, spare), {"job-1": measured})


def test_a_rank_below_half_the_median_is_restarted_elsewhere() -> None:
    before = spread((0.001, 0.001, 0.0003, 0.0011))
    plan = decide(before)
    assert [(a.job_id, a.rank) for a in of(plan, StopRank)] == [("job-1", 2)]
    assert steps(plan) == ["relaunch"]
    after = apply_ideally(before, plan)
    again = decide(after)
    assert [[(r.rank, r.instance_id) for r in place.ranks] for place in of(again, Place)] == [[(2, "inst-5")]]
    job = apply_ideally(after, again).jobs[0]
    assert job.attempt is not None
    assert [job.attempt.unit_id(rank) for rank in range(4)] == ["job-1.1.0", "job-1.1.1", "job-1.1.2-1", "job-1.1.3"]
    assert not of(decide(replace(apply_ideally(after, again), job_samples=before.job_samples)), StopRank), "once"


def test_a_straggler_that_is_ending_is_not_stopped_again() -> None:
    policy = simple(correction=Policies(max_relaunches_per_attempt=2))
    asked_at = NOW - 5.0  # within its grace its end is not visible yet
    done = Correction(at=asked_at, step="relaunch", attempt="job-1.1")
    before = spread((0.001, 0.001, 0.0003, 0.0011), corrections=(done,))
    assert not of(decide(before, policy), StopRank)
    long_ago = spread((0.001, 0.001, 0.0003, 0.0011), corrections=(replace(done, at=NOW - 500.0),))
    assert of(decide(long_ago, policy), StopRank)


@pytest.mark.parametrize("paces", [(0.001, 0.001, 0.0006, 0.001), (0.001, 0.0003), (0.0003, 0.0003, 0.0004)])
def test_ranks_that_are_not_clearly_slower_than_the_others_go_on(paces: tuple[float, ...]) -> None:
    assert not of(decide(spread(paces)), StopRank)


# ----------------------------------------------------------------------------------------------------------- hysteresis
TARGET = 1.0 / 1000.0


@st.composite
def noise(draw: st.DrawFn) -> tuple[float, ...]:
    """Draw paces around exactly what the deadline needs, off by up to 40 % each time."""
    seed, spread_pct = draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from([10, 20, 40]))
    drawn = np.random.default_rng(seed).uniform(1 - spread_pct / 100, 1 + spread_pct / 100, size=60)
    return tuple(float(TARGET * each) for each in drawn)


def noise_moves_no_job(planner: Planner, paces: tuple[float, ...]) -> None:
    """However the readings of a job on target scatter, neither it nor its neighbours are touched."""
    here, free = busy(1, 4.0), machine(2, offer("small", vcpus=4.0))
    every = samples(paces, until=NOW, vcpus_used=1.0)
    for seen in range(8, len(every), 2):
        now, done = every[seen].at, every[seen].values["progress"]
        asks = hooked(
            0.0, target=replace(hooked().target, finish_within_s=None, finish_by_at=now + (1 - done) / TARGET)
        )
        job = started(running(1, here, asks=asks), 700.0)
        window = every[max(0, seen - 29) : seen + 1]
        at = with_samples(scene(job, neighbour(2, here, ago_s=650.0), here, free), {"job-1": [window]})
        plan = planner(replace(at, now=now), simple())
        touched = [*of(plan, Correct), *of(plan, StopAttempt), *of(plan, Resize)]
        assert not touched, (seen, touched[0].reason.text)


@settings(max_examples=40, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
@given(noise())
def test_noise_moves_no_job(paces: tuple[float, ...]) -> None:
    noise_moves_no_job(honest, paces)


def believes_the_last_readings(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: takes the mean of the last readings for exact."""
    last = {
        name: replace(each, ranks={rank: seen[-4:] for rank, seen in each.ranks.items()})
        for name, each in snapshot.job_samples.items()
    }
    loose = replace(policy.correction, readings=3, confidence=0.9, margin=0.01)
    return honest(replace(snapshot, job_samples=last), replace(policy, correction=loose))


def test_that_property_catches_a_planner_that_believes_the_last_readings() -> None:
    @settings(max_examples=100, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
    @given(noise())
    def holds(paces: tuple[float, ...]) -> None:
        noise_moves_no_job(believes_the_last_readings, paces)

    with pytest.raises(AssertionError):
        holds()


def false_misses(errors: Callable[[int], float]) -> int:
    """Count services of 400 that seem to miss a latency which they keep by 2 %, looked at every 10 s for 5 min."""
    noise, missed = random.Random(0), 0
    for _ in range(400):
        kept = [Timed(10.0 * n, noise.gauss(1.02, 0.1)) for n in range(1, 31)]
        paces = (pace_of_rate(kept[:n], 0.0, 3, window=12) for n in range(3, 31))
        missed += any(each is not None and each.at_most(errors(each.counted)) <= 1.0 for each in paces)
    return missed


def test_noise_of_few_readings_is_seldom_taken_for_a_miss_of_a_latency() -> None:
    assert false_misses(lambda counted: few_readings(3.09, counted)) <= 4
    assert false_misses(lambda _: 3.09) > 16  # with the error taken for exact, as the normal distribution does
