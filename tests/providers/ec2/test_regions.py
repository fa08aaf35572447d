"""One provider over several regions: its machines are found and ended where they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hcloud.core.clock import ManualClock, SystemClock
from hcloud.core.errors import ConfigError, LaunchRejected, ProviderUnavailable
from hcloud.core.model import Market
from hcloud.provider import CloudState, Examinable
from providers.ec2 import factory
from providers.ec2.multi_region import Ec2Regions
from providers.ec2.settings import parse_regions
from tests.providers.ec2.ec2_bench import Ec2Bench
from tests.providers.ec2.fake_ec2 import REGION

ELSEWHERE = "eu-west-1"


def regional(bench: Ec2Bench, name: str = "again") -> Ec2Regions:
    """A provider over both regions of the fake."""
    settings = {key: value for key, value in bench.settings.items() if key not in ("region", "interruption_queue")}
    made = factory(
        "ec2", {**settings, "regions": [REGION, ELSEWHERE]}, bench.clock, bench.owner, str(bench.home / name)
    )
    assert isinstance(made, Ec2Regions)
    return made


def launched(bench: Ec2Bench, provider: Ec2Regions) -> dict[str, str]:
    """Launch one machine in each region; return ids by region."""
    offers = {each.region: each for each in provider.offers() if each.market is Market.ON_DEMAND}
    return {region: provider.launch(bench.order(offer)).provider_id for region, offer in offers.items()}


def test_offers_launches_listings_and_ends_of_all_regions(bench: Ec2Bench) -> None:
    provider = regional(bench)
    ids = launched(bench, provider)
    assert set(ids) == {REGION, ELSEWHERE}
    bench.let_lists_settle()
    listing = provider.instances(bench.owner)
    assert (listing.complete, {each.zone[:-1] for each in listing.instances}) == (True, {REGION, ELSEWHERE})
    provider.terminate([ids[ELSEWHERE]])
    bench.let_pass(10)
    states = {each.provider_id: each.state for each in provider.instances(bench.owner).instances}
    assert states[ids[ELSEWHERE]] is CloudState.TERMINATED
    assert states[ids[REGION]] is not CloudState.TERMINATED


def test_another_process_ends_machines_whose_region_it_has_not_seen(bench: Ec2Bench) -> None:
    ids = launched(bench, regional(bench))
    bench.let_lists_settle()
    regional(bench, "restarted").terminate(list(ids.values()))
    bench.let_pass(10)
    ended = {each.state for each in regional(bench).instances(bench.owner).instances}
    assert ended == {CloudState.TERMINATED}


def test_region_that_does_not_answer_makes_the_listing_incomplete_and_keeps_its_offers(
    bench: Ec2Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = regional(bench)
    launched(bench, provider)
    offers = provider.offers()

    def away(*_: object) -> None:
        raise ProviderUnavailable("eu-west-1 does not answer")

    monkeypatch.setattr(provider.regions[ELSEWHERE], "instances", away)
    monkeypatch.setattr(provider.regions[ELSEWHERE], "offers", away)
    listing = provider.instances(bench.owner)
    assert (listing.complete, listing.unanswered, len(listing.instances)) == (False, (ELSEWHERE,), 1)
    assert {each.key for each in provider.offers()} == {each.key for each in offers}
    assert "does not answer" in provider.facts()[f"{ELSEWHERE} unread"]
    monkeypatch.setattr(provider.regions[REGION], "instances", away)
    with pytest.raises(ProviderUnavailable):
        provider.instances(bench.owner)


def test_launch_elsewhere_is_refused(bench: Ec2Bench) -> None:
    provider = regional(bench)
    offer = replace(provider.offers()[0], region="ap-south-1")
    with pytest.raises(LaunchRejected, match="its regions: us-east-1, eu-west-1"):
        provider.launch(bench.order(offer))


def test_looking_over_tells_of_every_region_and_one_in_trouble_hides_no_other(bench: Ec2Bench) -> None:
    bench.manual.advance(SystemClock().now() - bench.manual.now())
    provider = regional(bench)
    assert isinstance(provider, Examinable)
    right = provider.examine()
    # The fake's networks have no way out, and no rules of their default groups.
    assert {each.verdict for each in right if not each.check.startswith(("routes", "gang network"))} == {"ok"}
    parts = ("credentials", "clock", "permissions", "image", "region", "quota", "routes", "gang network")
    assert {f"{part} {region}" for part in parts for region in (REGION, ELSEWHERE)} == {each.check for each in right}
    bench.fake.arm("RunInstances", "forbidden", times=9, region=ELSEWHERE)
    bench.fake.arm("GetCallerIdentity", "expired", region=REGION)
    found = {each.check: each for each in provider.examine()}
    assert (found[f"credentials {REGION}"].verdict, found[f"credentials {ELSEWHERE}"].verdict) == ("fail", "ok")
    assert found[f"permission {ELSEWHERE}"].finding == "ec2:RunInstances is not allowed"
    assert found[f"quota {ELSEWHERE}"].verdict == "ok"
    assert bench.fake.machines() == []


PLAIN: dict[str, object] = {"prices": {"m5.large": {"on_demand": 0.1}}}


def test_settings_may_differ_by_region() -> None:
    subnets = {REGION: {"subnets": ["subnet-0123456789"]}, ELSEWHERE: None}
    found = parse_regions("aws", {**PLAIN, "regions": subnets, "zones": ["us-east-1a", "eu-west-1b"]})
    assert found[REGION].subnets == ("subnet-0123456789",)
    assert found[ELSEWHERE].subnets == ()
    assert (found[REGION].zones, found[ELSEWHERE].zones) == (("us-east-1a",), ("eu-west-1b",))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"regions": [REGION], "region": REGION}, "providers.aws.settings.regions: give either"),
        ({"regions": []}, "must be a list such as"),
        ({"regions": ["mars"]}, "providers.aws.settings.regions.mars: must be like us-east-1"),
        ({"regions": {REGION: 3}}, "regions.us-east-1: must be settings"),
        (
            {"regions": {REGION: {"subnet": []}}},
            "regions.us-east-1.subnet: unknown setting subnet; did you mean subnets",
        ),
        ({"regions": [REGION], "zones": ["eu-west-1a"]}, "settings.zones: eu-west-1a is in none of the regions"),
        ({"regions": [REGION], "regoins": 1}, "settings.regoins: unknown setting regoins; did you mean regions"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint.replace(".", r"\.")):
        factory.check_settings("aws", {**PLAIN, **changes})


def test_one_region_stays_a_plain_provider(tmp_path: Path) -> None:
    made = factory("aws", {**PLAIN, "region": REGION}, ManualClock(), "me", str(tmp_path))
    assert not isinstance(made, Ec2Regions)
