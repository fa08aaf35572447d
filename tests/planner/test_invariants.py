"""Each invariant reports its violation, and a sound snapshot has none."""

from dataclasses import replace

import pytest

from hcloud.core.model import InstanceState, JobState, Market, ProfileRequest
from hcloud.planner.invariants import check_invariants
from hcloud.planner.snapshot import Snapshot, Spend
from hcloud.spec.policy import Allow, Budgets, Caps, Policy, ScopeBudget
from tests.planner.scenes import NOW, ended, job, machine, need, running, scene, spec
from tests.policies import simple

HERE, THERE = machine(1), machine(2)
PAIR = running(1, HERE, THERE)
PROFILES = job(9, asks=spec(profile=ProfileRequest(job_id="job-1", type_column="mock/small", steps_vcpus=(1.0,))))


def test_sound_snapshot_violates_nothing() -> None:
    sound = scene(PAIR, job(2), job(3, JobState.AWAITING_INSTANCE, awaiting=("inst-2",)), HERE, THERE)
    assert check_invariants(sound, simple()) == []


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (scene(job(1), job(1)), "job job-1 exists more than once"),
        (scene(HERE, replace(THERE, token=HERE.token)), "launch token token-1"),
        (scene(job(1, JobState.RUNNING)), "without an attempt"),
        (scene(replace(PAIR, state=JobState.QUEUED), HERE, THERE), "queued while attempt job-1.1 holds"),
        (scene(job(1, JobState.SUCCEEDED)), "without finished_at"),
        (scene(PAIR, HERE), "holds part of inst-2, which does not exist"),
        (scene(running(1, HERE), replace(HERE, state=InstanceState.TERMINATED, terminated_at=NOW)), "is terminated"),
        (scene(running(1, HERE, HERE, HERE), HERE), "oversubscribed"),
        (scene(replace(running(1, HERE), attempts_made=3), HERE), "has made 3 attempt(s)"),
        (scene(replace(PAIR, spec=spec()), HERE, THERE), "2 rank(s); 1 were requested"),
        (scene(replace(running(1, HERE), spec=spec(resources=need(2))), HERE), "other resources"),
        (scene(job(1, awaiting=("inst-1",)), HERE), "is queued, but awaits inst-1"),
        (scene(job(1, JobState.AWAITING_INSTANCE)), "names none"),
        (scene(machine(1, state=InstanceState.BOOTING, launched_at=None)), "no launched_at"),
        (scene(machine(1, provider_id=None)), "provider's id is not known"),
        (scene(machine(1, terminated_at=NOW)), "time of termination"),
        (scene(machine(1, expires_at=0.0)), "expires before"),
        (scene(PROFILES, job(1, profile_runs=("job-9",))), "which does not wait for it"),
        (
            scene(job(1, profile_runs=("job-9", "job-9"))),
            "at most a first look, three others, a repeat and one in place",
        ),
    ],
)
def test_violation_is_named(broken: Snapshot, words: str) -> None:
    assert words in "; ".join(check_invariants(broken))


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (simple(caps=Caps(max_instances=1)), "caps.max_instances is 1"),
        (simple(caps=Caps(max_vcpus=3)), "caps.max_vcpus is 3"),
        (simple(caps=Caps(max_instances_per_type={"small": 1})), "caps.max_instances_per_type.small"),
        (simple(caps=Caps(max_instances_per_type={"small": 0})), "caps.max_instances_per_type.small is 0"),
        (simple(budgets=Budgets(per_hour_usd=0.15)), "budgets.per_hour_usd"),
        (simple(budgets=Budgets(per_day_usd=1.1)), "budgets.per_day_usd"),
        (simple(budgets=Budgets(per_month_usd=0.1)), "budgets.per_month_usd"),
        (simple(budgets=Budgets(per_user={"ann": ScopeBudget(per_day_usd=0.05)})), "budgets.per_user.ann.per_day_usd"),
        (simple(allow=Allow(markets=(Market.SPOT,))), "inst-1 is not allowed"),
    ],
)
def test_passed_limit_is_named(policy: Policy, words: str) -> None:
    spend = Spend(day_usd=1.0, day_ends_at=NOW + 40_000, month_ends_at=NOW + 90_000)
    assert words in "; ".join(check_invariants(scene(PAIR, HERE, THERE, spend=spend), policy))


@pytest.mark.parametrize("rule", ["per_hour", "per_day", "per_month"])
def test_a_lease_beyond_the_end_of_a_commitment_is_held_against_limits_at_the_price_after_it(rule: str) -> None:
    spend = Spend(day_ends_at=NOW + 40_000, month_ends_at=NOW + 90_000)
    committed = replace(HERE.offer, market=Market.RESERVED, ends_at=NOW + 600, price_after_usd_per_h=0.5)
    snapshot = scene(replace(HERE, offer=committed, expires_at=NOW + 3600), spend=spend)
    # 10 minutes at $0.1 and 50 at $0.5.
    most_usd = 0.5 if rule == "per_hour" else 0.1 / 6 + 0.5 * 5 / 6
    within = simple(budgets=Budgets(**{f"{rule}_usd": most_usd}))
    beyond = simple(budgets=Budgets(**{f"{rule}_usd": most_usd - 0.001}))
    assert check_invariants(snapshot, within) == []
    assert f"budgets.{rule}_usd" in "; ".join(check_invariants(snapshot, beyond))


def test_a_user_with_more_jobs_on_machines_than_allowed_is_named() -> None:
    both = scene(running(1, HERE), job(3, JobState.AWAITING_INSTANCE, awaiting=("inst-2",)), HERE, THERE)
    found = check_invariants(both, simple(caps=Caps(max_jobs_per_user=1)))
    assert "caps.max_jobs_per_user of ann is 1, but 2" in "; ".join(found)
    assert check_invariants(both, simple(caps=Caps(max_jobs_per_user=2))) == []


def test_released_ranks_hold_nothing() -> None:
    over = ended(running(1, HERE, THERE))
    assert check_invariants(scene(over, HERE)) == []
