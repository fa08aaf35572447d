"""`hcloud catalog`, and `hcloud offers` for a job or a size."""

import csv
import io
import json
from pathlib import Path

import pytest

from hcloud.cli.candidates import OfferQuery, chosen, live
from hcloud.core.model import Constraints, Resources
from tests.catalog.documents import row
from tests.catalog.server import PriceLists
from tests.config.entry import Hcloud, caller, complaint

REGION = "eu-central-1"


@pytest.fixture
def hcloud(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hcloud:
    """Run `hcloud ARGUMENTS` in a directory of its own, isolated from the user's configuration."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("HCLOUD_HOME", "HCLOUD_DATABASE", "HCLOUD_SOCKET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HCLOUD_CONFIG", "")
    monkeypatch.chdir(tmp_path)
    return caller(capsys)


@pytest.fixture
def configured(tmp_path: Path, lists: PriceLists) -> Path:
    """A deployment that reads one region's prices from the local server; returns its catalogue's directory."""
    aws = f"{{regions: [{REGION}], endpoint: '{lists.address}', spot: false}}"
    (tmp_path / "hcloud.yaml").write_text(f"owner: hcloud-a\nstate_dir: state\ncatalog:\n  aws: {aws}\n")
    return tmp_path / "state" / "catalog"


def test_prices_are_shown_with_their_age_without_any_deployment(hcloud: Hcloud) -> None:
    done = hcloud("catalog", "show")
    assert done.code == 0
    assert "2025-03-02" in done.out
    assert "ec2 on_demand: the prices of some regions are" in done.err
    assert "(warning: over 30 days; update with `hcloud catalog refresh`)" in done.err
    assert "ec2: no price is known of spot, commit_1y, commit_3y" in done.err
    [shown] = json.loads(hcloud("catalog", "show", "m5.large", "--region", "us-east-1", "-o", "json").out)
    assert shown["prices"]["on_demand"]["usd_per_h"] == 0.096
    assert shown["size"]["memory_mib"] == 8192


def test_an_unknown_type_is_reported_with_the_closest_one(hcloud: Hcloud) -> None:
    assert "did you mean 'c6i.large'?" in complaint_of(hcloud("catalog", "show", "c6j.large", "--shipped"))


def test_an_unknown_region_is_reported_with_the_closest_one(hcloud: Hcloud) -> None:
    message = complaint_of(hcloud("catalog", "show", "--shipped", "--cloud", "ec2", "--region", "us-east-11"))
    assert "no price of ec2 is known in us-east-11; did you mean 'us-east-1'?" in message


def complaint_of(done: object) -> str:
    return complaint(done)  # type: ignore[arg-type]


def test_refresh_and_diff_show_changes(hcloud: Hcloud, configured: Path, lists: PriceLists) -> None:
    for version, usd in (("1", 0.1), ("2", 0.13)):
        lists.publish(REGION, version, [row("m9.large", usd), row("m9.xlarge", 0.2)])
        done = hcloud("catalog", "refresh")
        assert done.code == 0, done
    assert "0 new, 1 changed, 1 confirmed, 0 held back" in done.out
    [change] = json.loads(hcloud("catalog", "diff", "-o", "json").out)
    assert (change["type"], change["before_usd_per_h"], change["after_usd_per_h"]) == ("m9.large", 0.1, 0.13)
    rows = list(csv.DictReader(io.StringIO(hcloud("catalog", "show", "m9.*", "-o", "csv").out)))
    assert [(each["type"], each["on_demand"]) for each in rows] == [("m9.large", "0.13"), ("m9.xlarge", "0.2")]
    assert (configured / "ec2.json").exists()


def test_held_prices_are_reported_with_what_to_do(hcloud: Hcloud, configured: Path, lists: PriceLists) -> None:
    for version, usd in (("1", 0.1), ("2", 9.0)):
        lists.publish(REGION, version, [row("m9.large", usd)])
        done = hcloud("catalog", "refresh")
    assert "held" in done.out
    assert "1 price held back" in done.err
    assert "--accept" in done.err
    done = hcloud("catalog", "refresh", "--accept")
    assert "1 changed" in done.out


def test_failing_price_list_ends_with_1(hcloud: Hcloud, configured: Path, lists: PriceLists) -> None:
    lists.fail_next = [403]
    done = hcloud("catalog", "refresh")
    assert done.code == 1
    assert "not read, its prices are unchanged" in done.err


def test_refresh_without_a_price_list_writes_the_shipped_prices(hcloud: Hcloud, tmp_path: Path) -> None:
    (tmp_path / "hcloud.yaml").write_text("owner: hcloud-a\nstate_dir: state\n")
    done = hcloud("catalog", "refresh")
    assert done.code == 0
    assert "names no price list" in done.err
    prices = json.loads((tmp_path / "state" / "catalog" / "gce.json").read_text())
    assert prices["us-central1"]["n2-standard-2"]["on_demand"] > 0


def test_candidates_for_a_size_are_cheapest_first_and_large_enough(hcloud: Hcloud) -> None:
    done = hcloud("offers", "--offline", "--vcpus", 4, "--memory", "16GiB", "--region", "us-*", "-o", "json")
    found = json.loads(done.out)
    assert found
    assert [each["usd_per_h"] for each in found] == sorted(each["usd_per_h"] for each in found)
    assert all(each["vcpus"] >= 4 and each["memory_mib"] >= 16384 for each in found)
    assert not [each for each in found if each["type"].startswith(("t3.", "m6g.", "t2a-", "e2-medium"))]


def test_candidates_for_a_job_count_all_its_nodes(hcloud: Hcloud, tmp_path: Path) -> None:
    job = "name: train\ncommand: [train]\nresources: {vcpus: 2, memory: 8GiB}\nnodes: 3\nmax_runtime: 2h\n"
    (tmp_path / "job.yaml").write_text(job + "interruptible: false\ninstance_types: [m5.large]\n")
    done = hcloud("offers", "--for", "job.yaml", "--offline", "--region", "us-east-1", "-o", "json")
    [found] = json.loads(done.out)
    assert (found["job"], found["nodes"], found["market"]) == ("train", 3, "on_demand")
    assert found["usd_per_h"] == pytest.approx(3 * 0.096)
    assert found["minimum_usd"] == pytest.approx(3 * 0.096 / 60)
    assert found["at_most_usd"] == pytest.approx(3 * 0.096 * 2)


def test_a_job_and_a_size_together_are_refused(hcloud: Hcloud) -> None:
    assert "give one of them" in complaint(hcloud("offers", "--for", "job.yaml", "--vcpus", 2, "--offline"))


def offer(kind: str, market: str, usd: float, **changes: object) -> dict[str, object]:
    """An offer as the API returns it."""
    capacity = {"vcpus": 2.0, "memory_mib": 8192, "disk_gib": 20.0}
    return {
        "provider": "p", "region": "r", "zone": "z", "market": market, "price_usd_per_h": usd, "priced_at": 1.0,
        "billing_minimum_s": 60.0, "available": None, "instance_type": {"name": kind, "capacity": capacity}, **changes,
    }  # fmt: skip


def test_live_offers_must_meet_the_job() -> None:
    offers = [
        offer("big", "on_demand", 0.4),
        offer("big", "spot", 0.1),
        offer("big", "reserved", 0.2, available=1),
        offer("other", "on_demand", 0.05),
    ]
    asked = OfferQuery(need=Resources(vcpus=2, memory_mib=4096), nodes=2, types=("b*",), spot=False)
    found = chosen(live(offers, asked), None, None, ())
    assert [(each.market, each.usd_per_h, each.note) for each in found] == [
        ("reserved", 0.4, "only 1 available"),
        ("on_demand", 0.8, ""),
    ]
    too_large = OfferQuery(need=Resources(vcpus=3))
    assert not list(live(offers, too_large))


def test_secret_in_the_configuration_is_refused_and_not_printed(hcloud: Hcloud, tmp_path: Path) -> None:
    (tmp_path / "hcloud.yaml").write_text("owner: hcloud-a\ncatalog: {gcp: {api_key: AIzaSecret}}\n")
    said = complaint(hcloud("catalog", "refresh"))
    assert "env:NAME or file:/PATH" in said
    assert "AIzaSecret" not in said


def test_live_offers_must_match_zones_and_labels() -> None:
    capacity = {"vcpus": 2.0, "memory_mib": 8192, "disk_gib": 20.0}
    fast = {"name": "fast", "capacity": capacity, "labels": {"disk": "ssd"}}
    offers = [
        offer("slow", "spot", 0.1),
        offer("far", "spot", 0.1, zone="y"),
        offer("", "spot", 0.1, instance_type=fast),
    ]
    need = Resources(vcpus=1.0, memory_mib=512, disk_gib=0.0)

    def found(**demands: object) -> list[str]:
        asked = OfferQuery(need=need, placement=Constraints(**demands))  # type: ignore[arg-type]
        return [each.type for each in live(offers, asked)]

    assert found(zones=("y*",)) == ["far"]
    assert found(labels=(("disk", "ssd"), ("market", "spot"))) == ["fast"]
