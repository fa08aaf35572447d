"""Among jobs of one priority, those of owners with less recent use are served first."""

from dataclasses import replace

import pytest

from hcloud.core.budget_scope import tag_scope, user_scope
from hcloud.core.errors import ConfigError
from hcloud.core.estimates import Classification, Estimate, Measure
from hcloud.core.model import Job
from hcloud.decayed_usage import SAVED_EVERY_S, DecayedUsage
from hcloud.planner.fair_share import fair_share_words
from hcloud.planner.plan import Place
from hcloud.planner.snapshot import Snapshot, Spend
from hcloud.spec.policy import AdmissionPolicy, PlacementPolicy, Policy, parse_policy
from hcloud.store import MemoryStore
from tests.planner.scenes import NOW, decide, job, machine, of, scene, spec
from tests.policies import simple

DAY_S = 86_400.0
SURE = Estimate(value=0.5, low=0.5, high=0.5)
ANOTHER = Classification(by_type={"mock/small": SURE}, quality_target=SURE, measure=Measure.COMPLETION)
BY_USER = AdmissionPolicy(queues="one", fair_share="user", fair_share_half_life_s=DAY_S)


def queued(number: int, user: str, **changes: object) -> Job:
    """Return a job that fills the machine."""
    asks = spec(user=user, tags={"team": user[0]}, resources=replace(spec().resources, vcpus=2.0))
    return job(number, asks=replace(asks, **changes), queued_at=NOW - 10)  # type: ignore[arg-type]


def placed(snapshot: Snapshot, admission: AdmissionPolicy) -> list[str]:
    """Return the jobs that get the room."""
    policy: Policy = simple(admission=admission, placement=PlacementPolicy(order="paragon"))
    return [each.job_id for each in of(decide(snapshot, policy), Place)]


def test_whoever_used_less_goes_first_and_equal_owners_by_age() -> None:
    ours = scene(queued(1, "ann"), queued(2, "bob"), machine(1))
    assert placed(ours, BY_USER) == ["job-1"]
    used = replace(ours, usage_usd={"ann": 5.0, "bob": 1.0})
    assert placed(used, BY_USER) == ["job-2"]
    knowing = replace(used, applications={"another": ANOTHER})  # without one there is no queue by quality
    for patience_s in (1.0, 600.0):  # both are over their patience, or neither
        by_quality = replace(BY_USER, queues="by_quality", patience_s=patience_s)
        assert placed(knowing, by_quality) == ["job-2"]
        assert placed(knowing, replace(by_quality, fair_share="none")) == ["job-1"]
    assert placed(used, replace(BY_USER, fair_share="none")) == ["job-1"]
    about_equal = replace(ours, usage_usd={"ann": 5.05, "bob": 5.0})
    assert placed(about_equal, BY_USER) == ["job-1"]
    by_team = replace(BY_USER, fair_share="tag:team")
    assert placed(replace(ours, usage_usd={"a": 5.0}), by_team) == ["job-2"]


def test_priority_comes_before_the_share() -> None:
    used = scene(queued(1, "bob"), queued(2, "ann", priority=1), machine(1), usage_usd={"ann": 50.0})
    assert placed(used, BY_USER) == ["job-2"]


def spent(**usd: float) -> Spend:
    """Return what was spent this month, by user."""
    return Spend(by_scope_month_usd={user_scope(name): each for name, each in usd.items()} | {tag_scope("team=a"): 7.0})


def test_half_of_what_was_used_is_forgotten_after_each_half_life() -> None:
    usage = DecayedUsage(MemoryStore())
    assert usage.follow(spent(ann=4.0), BY_USER, NOW) == {"ann": 4.0}
    assert usage.follow(spent(ann=4.0), BY_USER, NOW + DAY_S) == {"ann": 2.0}
    assert usage.follow(spent(ann=5.0, bob=1.0), BY_USER, NOW + DAY_S) == {"ann": 3.0, "bob": 1.0}
    assert usage.follow(spent(ann=0.5), BY_USER, NOW + DAY_S) == {"ann": 3.5, "bob": 1.0}  # a new month
    assert usage.follow(spent(ann=0.5), BY_USER, NOW + 90 * DAY_S) == {}
    assert usage.follow(spent(), replace(BY_USER, fair_share="tag:team"), NOW) == {"a": 7.0}
    assert usage.follow(spent(ann=1.0), AdmissionPolicy(), NOW) == {}


def test_a_restart_goes_on_with_what_was_stored() -> None:
    store = MemoryStore()
    before = DecayedUsage(store)
    before.follow(spent(ann=4.0), BY_USER, NOW)
    before.save_if_due(NOW + SAVED_EVERY_S, None)
    after = DecayedUsage(store)
    assert after.follow(spent(ann=5.0), BY_USER, NOW + DAY_S) == {"ann": 3.0}
    assert DecayedUsage(store).follow(spent(ann=5.0), replace(BY_USER, fair_share="tag:team"), NOW) == {"a": 7.0}


def test_the_share_is_explained() -> None:
    asks = spec(user="ann")
    assert fair_share_words(asks, {"ann": 5.0, "bob": 1.0}, BY_USER) == (
        "fair share: ann used $5.00 lately; at one priority, less recent use goes first, by 25 % and $0.001 at least"
    )
    by_team = replace(BY_USER, fair_share="tag:team")
    assert "jobs without the tag team used" in fair_share_words(asks, {}, by_team)
    assert fair_share_words(asks, {}, AdmissionPolicy()) == ""


def test_any_other_word_is_refused() -> None:
    for wrong in ("users", "tag:", "tag", "tag:a b"):
        with pytest.raises(ConfigError, match="must be none, user, or tag:KEY such as tag:team"):
            parse_policy({"name": "x", "admission": {"fair_share": wrong}})
