"""The daemon refreshes prices on schedule and records the result."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hcloud.catalog import CatalogFiles, price_file, shipped_catalogue, snapshot
from hcloud.config import Config
from hcloud.wiring import ensure_price_files
from tests.catalog.documents import row
from tests.catalog.server import PriceLists
from tests.daemon.home import PATIENCE_S, Home
from tests.waiting import wait_until

REGION = "eu-central-1"


@pytest.fixture
def home(tmp_path: Path, lists: PriceLists) -> Iterator[Home]:
    """A deployment that reads one region's prices from the local server."""
    made = Home(tmp_path / "home")
    made.set_up()
    config = made.path / "config.yaml"
    text = config.read_text()
    scheduled = text.replace("spot: true", "spot: false")
    scheduled = scheduled.replace("    regions: []\n", f"    regions: [{REGION}]\n", 1)
    config.write_text(scheduled.replace("    endpoint: null\n", f"    endpoint: '{lists.address}'\n", 1))
    yield made
    made.end()


def price_events(home: Home) -> list[dict[str, object]]:
    events = json.loads(home.run("events", "--kind", "daemon", "-o", "json"))
    return [each["fields"] for each in events if each["fields"]["what"] == "prices"]


def test_daemon_reads_prices_when_they_are_due_and_not_again_after_a_restart(home: Home, lists: PriceLists) -> None:
    lists.publish(REGION, "1", [row("m9.large", 0.1)])
    first = home.daemon()
    [fields] = wait_until(lambda: price_events(home), PATIENCE_S, 0.2)
    assert fields["ok"] is True
    assert "1 new" in str(fields["text"])
    assert json.loads((home.path / "catalog" / "ec2.json").read_text())[REGION]["m9.large"]["on_demand"] == 0.1
    asked = len(lists.asked)
    first.terminate()
    assert first.wait(PATIENCE_S) == 0
    home.daemon()
    home.run("status")
    assert len(lists.asked) == asked


def test_daemon_goes_on_when_prices_cannot_be_read(home: Home, lists: PriceLists) -> None:
    lists.fail_next = [403] * 10
    home.daemon()
    [fields] = wait_until(lambda: price_events(home), PATIENCE_S, 0.2)
    assert fields["ok"] is False
    assert "are unchanged" in str(fields["text"])
    assert "note     prices were not refreshed: AWS price list: not read" in home.run("status")


def test_prices_of_a_new_snapshot_reach_providers_though_a_refresh_was_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config(owner="hcloud-a", state_dir=tmp_path)
    ensure_price_files(config)
    path = price_file(config.catalog_dir, "ec2")
    path.write_text("{}")  # made with an earlier snapshot, later than the newest price of this one
    monkeypatch.setattr(snapshot, "SNAPSHOT", tmp_path / "other")
    (tmp_path / "other").write_bytes(snapshot.packed(shipped_catalogue()))
    ensure_price_files(config)
    assert path.read_text() == "{}"
    (tmp_path / "other").write_bytes(b"of the next release")
    ensure_price_files(config)
    assert "m8i.large" in json.loads(path.read_text())["us-east-1"]


def test_price_files_are_written_once_and_again_when_newer_prices_are_known(tmp_path: Path) -> None:
    config = Config(owner="hcloud-a", state_dir=tmp_path)
    ensure_price_files(config)
    path = price_file(config.catalog_dir, "gce")
    assert path.stat().st_mtime == shipped_catalogue().oldest_at()
    written = path.read_bytes()
    path.write_bytes(b"kept")
    ensure_price_files(config)
    assert path.read_bytes() == b"kept"
    os.utime(path, (1.0, 1.0))
    ensure_price_files(config)
    assert path.read_bytes() == written


def test_a_daemon_may_start_while_prices_are_refreshed(tmp_path: Path) -> None:
    config = Config(owner="hcloud-a", state_dir=tmp_path)
    with CatalogFiles(config.catalog_dir).locked():
        ensure_price_files(config)
    assert price_file(config.catalog_dir, "ec2").exists()
