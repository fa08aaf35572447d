"""The shipped snapshot: its prices, their sources and dates, and how it is made anew from price lists."""

import gzip
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hcloud.catalog import AwsPrices, PricePlan, shipped_catalogue, snapshot
from hcloud.catalog.gce_sizes import shapes, whole_price
from hcloud.catalog.prices import PriceCatalogue, Quote, is_price
from hcloud.catalog.renew import main, renew
from hcloud.core.clock import ManualClock
from hcloud.core.errors import ConfigError
from tests.catalog.conftest import NOW, Sources
from tests.catalog.documents import row
from tests.catalog.server import PriceLists

REGION = "eu-central-1"
JULY_2026 = datetime(2026, 7, 20, tzinfo=UTC).timestamp()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A copy of the shipped file, to be made anew."""
    path = tmp_path / "snapshot.json.gz"
    path.write_bytes(snapshot.SNAPSHOT.read_bytes())
    return path


def read(path: Path, monkeypatch: pytest.MonkeyPatch) -> PriceCatalogue:
    with monkeypatch.context() as patched:
        patched.setattr(snapshot, "SNAPSHOT", path)
        return shipped_catalogue.__wrapped__()


def test_current_families_have_a_price_with_its_source_and_date() -> None:
    known = shipped_catalogue()
    for kind, usd_per_h in (("m8i.large", 0.10584), ("m5.large", 0.096)):
        quote = known.price("ec2", "us-east-1", kind)
        assert quote is not None
        assert quote.usd_per_h == usd_per_h
        assert (quote.source, quote.at) == ("karpenter-provider-aws 1d927085", JULY_2026)
    recent = [key for key, quote in known.quotes.items() if quote.at == JULY_2026]
    assert len(recent) == 1367
    assert all(quote.at > 1_700_000_000 and quote.source for quote in known.quotes.values())


def test_sizes_of_both_clouds_are_known() -> None:
    sizes = shipped_catalogue().sizes
    assert sizes["ec2", "m5.large"].memory_mib == 8192
    assert sizes["ec2", "m8g.xlarge"].arch == "arm64"
    assert sizes["gce", "n1-highmem-2"].memory_mib == 13312


def test_prices_without_a_public_source_are_absent() -> None:
    assert not [key for key in shipped_catalogue().quotes if key.cloud == "ec2" and key.plan is PricePlan.SPOT]


def test_zero_in_a_price_table_is_never_a_price() -> None:
    assert all(is_price(quote.usd_per_h) for quote in shipped_catalogue().quotes.values())
    with pytest.raises(ValueError, match="more than 0"):
        Quote(0.0, 1.0, "anybody")


def test_a_family_without_the_price_of_its_memory_has_no_price() -> None:
    assert whole_price(shapes()["n2-standard-2"], 0.03, None) is None
    assert whole_price(shapes()["g1-small"], 0.03, None) == 0.03


def test_a_catalogue_without_prices_has_no_age() -> None:
    assert PriceCatalogue().oldest_at() is None


def test_the_file_is_small_and_the_same_for_the_same_prices() -> None:
    assert snapshot.packed(shipped_catalogue()) == snapshot.SNAPSHOT.read_bytes()
    assert snapshot.SNAPSHOT.stat().st_size < 2**20


def test_a_damaged_snapshot_is_named(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for content in (target.read_bytes()[:-50], gzip.compress(b"{}"), b""):
        target.write_bytes(content)
        with pytest.raises(ConfigError, match=r"is not a snapshot of prices .*; reinstall HCloud"):
            read(target, monkeypatch)


def test_renewed_snapshot_has_the_prices_of_the_lists_and_keeps_others(
    lists: PriceLists, aws: Sources, clock: ManualClock, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists.publish(REGION, "1", [row("m9.large", 0.1)])
    renewed, lines = renew(aws(REGION), clock, target)
    assert renewed, lines
    known = read(target, monkeypatch)
    assert known.price("ec2", REGION, "m9.large") == Quote(0.1, NOW, "AWS price list")
    before = shipped_catalogue()
    assert {key: quote for key, quote in known.quotes.items() if key in before.quotes} == before.quotes
    assert known.versions == {}  # a deployment has not read this edition


def test_a_list_that_cannot_be_read_leaves_the_snapshot_unchanged(
    lists: PriceLists, aws: Sources, clock: ManualClock, target: Path
) -> None:
    lists.publish(REGION, "1", [row("m9.large", 0.1)])
    lists.fail_next = [403]
    renewed, lines = renew(aws(REGION), clock, target)
    assert not renewed
    assert "not read" in lines[0]
    assert target.read_bytes() == snapshot.SNAPSHOT.read_bytes()


def test_the_command_says_which_prices_it_did_not_read(
    lists: PriceLists, target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.modules[AwsPrices.__module__], "BULK_ENDPOINT", lists.address)
    lists.fail_next = [403]
    assert main([REGION], {}) == 1
    assert "Google's prices are unchanged: GOOGLE_API_KEY is not set" in capsys.readouterr().err
