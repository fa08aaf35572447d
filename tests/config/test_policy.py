"""A policy means what it says, and one that contradicts itself is refused."""

import re

import pytest

from hcloud.core.budget_scope import user_scope
from hcloud.core.errors import ConfigError
from hcloud.core.model import InstanceType, Market, Offer, Resources
from hcloud.spec.policy import Allow, Budgets, Policy, RetentionPolicy, StockoutPolicy, parse_policy
from tests.policies import parse_simple

OFFER = Offer(
    provider="ec2",
    region="eu-west-1",
    zone="eu-west-1a",
    instance_type=InstanceType(provider="ec2", name="m5.large", capacity=Resources(vcpus=2)),
    market=Market.SPOT,
    price_usd_per_h=0.1,
    priced_at=0,
)


def refusal(mapping: object) -> str:
    with pytest.raises(ConfigError) as refused:
        parse_policy(mapping)
    return str(refused.value)


def test_empty_policy_is_the_default() -> None:
    assert parse_policy({}) == Policy()


@pytest.mark.parametrize(
    ("mapping", "sentence"),
    [
        ({"budgets": {"per_hour_usd": 0}}, "budgets.per_hour_usd: must be more than 0, not 0"),
        ({"budgets": {"per_hour_usd": -5}}, "budgets.per_hour_usd: must be more than 0, not -5"),
        ({"budgets": {"per_hour_usd": float("nan")}}, "budgets.per_hour_usd: must be a finite number, not nan"),
        ({"budgets": {"per_hour_usd": True}}, "budgets.per_hour_usd: must be a number, not true"),
        (
            {"budgets": {"per_hour_usd": 5, "per_day_usd": 2}},
            "per_hour_usd: must not be more than per_day_usd (2), but is 5",
        ),
        ({"budgets": {"per_day_usd": 9, "per_month_usd": 2}}, "per_day_usd: must not be more than per_month_usd (2)"),
        (
            {"budgets": {"per_user": {"default": {"per_day_usd": 9}, "al": {"per_month_usd": 2}}}},
            "budgets.per_user.al.per_day_usd: must not be more than per_month_usd (2), but is 9",
        ),
        ({"lease": {"renew_before_s": "2h"}}, "lease.renew_before_s: must be less than horizon_s (3600)"),
        ({"lease": {"horizon_s": 600}}, "lease.horizon_s: must be more than renew_before_s (900)"),
        (
            {"lease": {"horizon_s": "2m", "renew_before_s": "1m"}},
            "lease.horizon_s: must be at least boot.timeout_s (600), or the lease would expire before the boot timeout",
        ),
        (
            {"lease": {"horizon_s": "2m", "renew_before_s": "1m"}, "boot": {"timeout_s": "3m"}},
            "boot.timeout_s: must not be more than lease.horizon_s (120)",
        ),
        ({"stockout": {"backoff_cap_s": 5}}, "stockout.backoff_cap_s: must be at least backoff_s (60), but is 5"),
        (
            {"retention": {"minimum_s": "2h"}},
            "retention.minimum_s: must not be more than maximum_s (3600), but is 7200",
        ),
        (
            {"retention": {"maximum_s": "10 parsecs"}},
            "must be a duration such as 30s, 10m, 2h or 1h30m, not '10 parsecs'",
        ),
        ({"boot": {"timeout_s": "2h"}}, "boot.timeout_s: must not be more than lease.horizon_s (3600)"),
        ({"caps": {"max_instances": 0}}, "caps.max_instances: must be at least 1, not 0"),
        ({"caps": {"max_instances": 2.5}}, "caps.max_instances: must be a whole number, not 2.5"),
        ({"caps": {"max_instances": "20"}}, "caps.max_instances: must be a whole number, not '20'"),
        ({"caps": {"max_instances": None}}, "caps.max_instances: must be a whole number, not nothing"),
        ({"caps": [1]}, "caps: must be a mapping of keys (max_instances, "),
        ({"allow": {"markets": []}}, "allow.markets: is empty, so nothing could ever be launched"),
        (
            {"allow": {"regions": []}},
            "allow.regions: is empty, so nothing could ever be launched; write null to allow all",
        ),
        (
            {"allow": {"markets": ["spott"]}},
            "allow.markets[0]: must be one of reserved, on_demand, spot, not 'spott'; did",
        ),
        ({"spot": {"only_interruptible": "yes"}}, "spot.only_interruptible: must be true or false, not 'yes'"),
        ({"placement": {"order": "best"}}, "placement.order: must be one of least_loaded, first_fit, "),
        ({"admission": {"classes": 0}}, "admission.classes: must be at least 1, not 0"),
        ({"retention": {"spin_up_multiple": -1}}, "retention.spin_up_multiple: must be at least 0, not -1"),
        ({"name": 7}, "name: must be text (put it in quotes), not 7"),
        ({"name": " "}, "name: must not be empty"),
        ({"name": "\x1b[31mred"}, "name: must be of printable characters, not '\\x1b[31mred'"),
        ({"name": "x" * 201}, "name: must be at most 200 characters long, not 201"),
        ({"allow": {"zones": ["a\tb"]}}, "allow.zones[0]: must be of printable characters, not 'a\\tb'"),
        ({"budgets": {"per_hour_us": 1}}, "budgets.per_hour_us: unknown key; did you mean 'per_hour_usd'?"),
        ({"colour": 1}, "colour: unknown key; known here: admission, allow, boot, "),
        ([], "must be a mapping of keys (name, budgets, caps, "),
        (None, "must be a mapping of keys (name, budgets, caps, "),
    ],
)
def test_contradictory_or_impossible_policy_is_refused_with_a_sentence(mapping: object, sentence: str) -> None:
    assert sentence in refusal(mapping)


def test_misspelt_key_comes_first_and_other_problems_are_notes() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_policy({"caps": {"max_instances": 0}, "leese": {}})
    assert str(refused.value).startswith("leese: unknown key; did you mean 'lease'?")
    assert refused.value.__notes__ == ["caps.max_instances: must be at least 1, not 0"]


def test_user_inherits_limits_of_default_unless_lifted() -> None:
    users = {
        "default": {"per_day_usd": 5, "per_month_usd": 50},
        "al": {"per_month_usd": 90},
        "bo": {"per_day_usd": None},
    }
    budgets = parse_policy({"budgets": {"per_user": users}}).budgets
    assert (budgets.for_scope(user_scope("al")).per_day_usd, budgets.for_scope(user_scope("al")).per_month_usd) == (
        5,
        90,
    )
    assert (budgets.for_scope(user_scope("bo")).per_day_usd, budgets.for_scope(user_scope("bo")).per_month_usd) == (
        None,
        50,
    )
    assert budgets.for_scope(user_scope("anybody")) == budgets.per_user["default"]
    assert Budgets(per_user={}).for_scope(user_scope("al")).per_day_usd is None


@pytest.mark.parametrize(
    ("allow", "key"),
    [
        (Allow(), None),
        (Allow(instance_types=("c5.*", "m5.*"), regions=("eu-*",), zones=("*a",), providers=("ec2",)), None),
        (Allow(instance_types=("m5",)), "instance_types"),
        (Allow(regions=("us-*",)), "regions"),
        (Allow(zones=("eu-west-1b",)), "zones"),
        (Allow(providers=("local",)), "providers"),
        (Allow(markets=(Market.ON_DEMAND,)), "markets"),
    ],
)
def test_offer_is_refused_by_the_key_that_forbids_it(allow: Allow, key: str | None) -> None:
    reason = allow.refusal(OFFER)
    assert (reason is None) if key is None else (reason is not None and reason.startswith(f"allow.{key} "))


def test_idle_time_is_a_multiple_of_spin_up_within_bounds() -> None:
    keep = RetentionPolicy(spin_up_multiple=10, minimum_s=30, maximum_s=600)
    assert [keep.keep_idle_s(spin_up) for spin_up in (1, 20, 100)] == [30, 200, 600]


def test_backoff_doubles_up_to_its_cap() -> None:
    stockout = StockoutPolicy(backoff_s=60, backoff_cap_s=200)
    assert [stockout.backoff_after_s(failures) for failures in (1, 2, 3, 10_000)] == [60, 120, 200, 200]


def test_digest_follows_the_meaning_not_the_spelling() -> None:
    same = [parse_policy({"lease": {"horizon_s": value}}).digest for value in ("2h", 7200, 7200.0, "120m")]
    assert len(set(same)) == 1
    assert Policy().digest not in same
    assert Policy().digest == parse_policy({"budgets": {"per_user": {"default": {}}}}).digest


def test_unknown_jobs_are_profiled_only_where_something_uses_what_is_learnt() -> None:
    assert Policy().profiles_when == "beside"
    assert not parse_simple({}).profiles_jobs
    users: list[dict[str, object]] = [
        {"placement": {"order": "paragon"}},
        {"admission": {"queues": "by_quality"}},
        {"provisioning": {"strategy": "hm"}},
    ]
    assert all(parse_simple(each).profiles_when == "beside" for each in users)
    assert parse_policy({"profiling": {"when": "before"}}).profiles_when == "before"
    assert not parse_policy({"placement": {"order": "paragon"}, "profiling": {"when": "never"}}).profiles_jobs


@pytest.mark.parametrize(
    ("profiling", "complaint"),
    [
        ({"when": "sometimes"}, "profiling.when"),
        ({"run_s": "3m"}, "profiling.run_s: must not be more than total_s"),
        ({"for_targets": []}, "profiling.for_targets: is empty"),
        ({"max_share_of_slack": 1.5}, "profiling.max_share_of_slack"),
        ({"run": "5s"}, "profiling.run: unknown key; did you mean 'run_s'?"),
    ],
)
def test_mistakes_about_profiling_are_named(profiling: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        parse_policy({"profiling": profiling})
