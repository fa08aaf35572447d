"""Refreshes over real HTTP: plausible prices are stored, failures change nothing, and files are complete."""

import json
import os
import stat

import pytest

from hcloud.catalog import CatalogFiles, Key, PricePlan, SpotPrice, price_file, refresh, shipped_catalogue
from hcloud.catalog.fetch import TRIES, PriceServer
from hcloud.catalog.spot_history import merged_history
from hcloud.core.clock import ManualClock
from hcloud.core.errors import ConfigError, ProviderUnavailable, Refused
from tests.catalog.conftest import KEY, NOW, Sources
from tests.catalog.documents import n2_skus, product, row, spot_history
from tests.catalog.server import INDEX_PATH, SKUS_PATH, PriceLists

REGION = "eu-central-1"
M9 = Key("ec2", REGION, "m9.large", PricePlan.ON_DEMAND)


def usd(files: CatalogFiles, key: Key) -> float | None:
    quote = files.current().quotes.get(key)
    return quote.usd_per_h if quote is not None else None


def contents(files: CatalogFiles) -> dict[str, bytes]:
    return (
        {path.name: path.read_bytes() for path in sorted(files.directory.iterdir())} if files.directory.exists() else {}
    )


# ------------------------------------------------------------------------------------------------------------ bulk
def test_bulk_list_is_read_once_per_edition(
    lists: PriceLists, aws: Sources, files: CatalogFiles, clock: ManualClock
) -> None:
    lists.publish(REGION, "1", [row("m9.large", 0.1)])
    refresh(files, aws(REGION), clock)
    asked = len(lists.asked)
    clock.advance(3600)
    again = refresh(files, aws(REGION), clock)
    assert lists.paths()[asked:] == [INDEX_PATH]
    assert again.merges["AWS price list"].confirmed == 1
    assert files.current().quotes[M9].at == NOW + 3600
    lists.publish(REGION, "2", [row("m9.large", 0.12)])
    refresh(files, aws(REGION), clock)
    assert usd(files, M9) == 0.12


def test_the_snapshot_stays_under_what_was_read(
    lists: PriceLists, aws: Sources, files: CatalogFiles, clock: ManualClock
) -> None:
    lists.publish("us-east-1", "1", [row("m5.large", 0.097)])
    refresh(files, aws("us-east-1"), clock)
    assert usd(files, Key("ec2", "us-east-1", "m5.large", PricePlan.ON_DEMAND)) == 0.097
    other = Key("ec2", "us-east-1", "m5.xlarge", PricePlan.ON_DEMAND)
    assert usd(files, other) == shipped_catalogue().quotes[other].usd_per_h


def test_held_price_is_asked_for_again_and_taken_when_accepted(
    lists: PriceLists, aws: Sources, files: CatalogFiles, clock: ManualClock
) -> None:
    lists.publish(REGION, "1", [row("m9.large", 0.1)])
    refresh(files, aws(REGION), clock)
    lists.publish(REGION, "2", [row("m9.large", 5.0)])
    held = refresh(files, aws(REGION), clock)
    assert (held.held, usd(files, M9)) == (1, 0.1)
    assert "1 held back" in held.sentences()[0]
    refresh(files, aws(REGION), clock, accept=True)
    assert usd(files, M9) == 5.0


def test_dry_run_reads_and_writes_nothing(
    lists: PriceLists, aws: Sources, files: CatalogFiles, clock: ManualClock
) -> None:
    lists.publish(REGION, "1", [row("m9.large", 0.1)])
    done = refresh(files, aws(REGION), clock, dry_run=True)
    assert done.merges["AWS price list"].counts()["new"] == 1
    assert set(contents(files)) == {"lock"}


# -------------------------------------------------------------------------------------------------------- failures
def test_passing_trouble_is_waited_out(
    lists: PriceLists, aws: Sources, files: CatalogFiles, clock: ManualClock
) -> None:
    lists.publish(REGION, "1", [row("m9.large", 0.1)])
    lists.fail_next = [503, 429]
    done = refresh(files, aws(REGION), clock)
    assert not done.errors
    assert clock.now() > NOW


@pytest.mark.parametrize("statuses", [[403], [500] * 4, [404], [302]])
def test_a_list_that_cannot_be_read_changes_nothing(
    lists: PriceLists, aws: Sources, files: CatalogFiles, clock: ManualClock, statuses: list[int]
) -> None:
    lists.publish(REGION, "1", [row("m9.large", 0.1)])
    refresh(files, aws(REGION), clock)
    before = contents(files)
    lists.fail_next = statuses
    done = refresh(files, aws(REGION), clock)
    assert list(done.errors) == ["AWS price list"]
    assert contents(files) == before


def test_a_file_that_breaks_off_changes_nothing(
    lists: PriceLists, aws: Sources, files: CatalogFiles, clock: ManualClock
) -> None:
    lists.publish(REGION, "1", [row(f"m9.{number}xlarge", 0.1 * number) for number in range(1, 50)])
    lists.cut = {path for path in lists.files if path.endswith(".csv")}
    done = refresh(files, aws(REGION), clock)
    assert "does not answer" in done.errors["AWS price list"]
    assert usd(files, Key("ec2", REGION, "m9.1xlarge", PricePlan.ON_DEMAND)) is None


def test_one_list_that_fails_does_not_keep_another_from_being_read(
    lists: PriceLists, aws: Sources, gcp: Sources, files: CatalogFiles, clock: ManualClock
) -> None:
    lists.sku_pages = [n2_skus(0.03, 0.004, "us-central1")]
    done = refresh(files, (*aws("nowhere-1"), *gcp()), clock)
    assert "no price list for region 'nowhere-1'" in done.errors["AWS price list"]
    assert usd(files, Key("gce", "us-central1", "n2-standard-2", PricePlan.ON_DEMAND)) == pytest.approx(0.092)


def test_only_one_refresh_at_a_time(lists: PriceLists, aws: Sources, files: CatalogFiles, clock: ManualClock) -> None:
    with files.locked(), pytest.raises(Refused, match="is running"):
        refresh(files, aws(REGION), clock)


# ---------------------------------------------------------------------------------------------------------- Google
def test_pages_of_skus_are_read_to_the_end_with_the_key_in_a_header(
    lists: PriceLists, gcp: Sources, files: CatalogFiles, clock: ManualClock
) -> None:
    vcpus, memory, *spot = n2_skus(0.03, 0.004, "us-central1")
    lists.sku_pages = [[vcpus], [memory], spot]
    refresh(files, gcp(), clock)
    assert usd(files, Key("gce", "us-central1", "n2-standard-2", PricePlan.SPOT)) == pytest.approx(0.092 / 5)
    assert lists.paths() == [SKUS_PATH] * 3
    assert {each.headers["x-goog-api-key"] for each in lists.asked} == {KEY}
    assert not [each for each in lists.asked if KEY in str(each.query)]


def test_a_refused_key_is_not_shown(lists: PriceLists, gcp: Sources, files: CatalogFiles, clock: ManualClock) -> None:
    lists.fail_next = [403]
    done = refresh(files, gcp(), clock)
    assert "HTTP 403 (injected)" in done.errors["Cloud Billing Catalog"]
    assert KEY not in str(done)


def test_a_catalogue_that_lost_a_page_is_refused(
    lists: PriceLists, gcp: Sources, files: CatalogFiles, clock: ManualClock
) -> None:
    lists.sku_pages = [n2_skus(0.03, 0.004, "us-central1")]
    refresh(files, gcp(), clock)
    before = files.current()
    lists.sku_pages = [n2_skus(0.03, 0.004, "us-central1")[:1]]
    assert "has no price" in refresh(files, gcp(), clock).errors["Cloud Billing Catalog"]
    assert files.current() == before


# ------------------------------------------------------------------------------------------------- signed requests
def test_queried_list_is_read_page_by_page(
    lists: PriceLists, aws: Sources, files: CatalogFiles, clock: ManualClock
) -> None:
    lists.product_pages = [[product("m9.large", 0.1)], [product("m9.xlarge", 0.2)]]
    refresh(files, aws(REGION, query=True), clock)
    assert usd(files, Key("ec2", REGION, "m9.xlarge", PricePlan.ON_DEMAND)) == 0.2
    filters = {each["Field"]: each["Value"] for each in json.loads(lists.asked[0].body)["Filters"]}
    assert filters["regionCode"] == REGION
    assert filters["operatingSystem"] == "Linux"


def test_spot_prices_are_kept_by_zone_and_the_dearest_zone_is_the_region(
    lists: PriceLists, aws: Sources, files: CatalogFiles, clock: ManualClock
) -> None:
    lists.publish(REGION, "1", [row("m9.large", 0.1)])
    lists.spot_pages = [
        spot_history([("m9.large", "eu-central-1a", 0.03, "2026-11-01T00:00:00.000Z")], next_token="1"),
        spot_history(
            [
                ("m9.large", "eu-central-1a", 0.035, "2026-11-02T00:00:00.000Z"),
                ("m9.large", "eu-central-1b", 0.02, "2026-11-02T00:00:00.000Z"),
                ("m9.xlarge", "eu-central-1b", 0.0, "2026-11-02T00:00:00.000Z"),
            ]
        ),
    ]
    done = refresh(files, aws(REGION, spot=True), clock)
    assert not done.errors
    assert usd(files, M9._replace(plan=PricePlan.SPOT)) == 0.035
    assert [(each.zone, each.usd_per_h) for each in files.history()] == [
        ("eu-central-1a", 0.03),
        ("eu-central-1a", 0.035),
        ("eu-central-1b", 0.02),
    ]


def test_missing_credentials_are_reported_in_one_sentence(
    lists: PriceLists, aws: Sources, files: CatalogFiles, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    lists.publish(REGION, "1", [row("m9.large", 0.1)])
    done = refresh(files, aws(REGION, spot=True), clock)
    assert "credentials" in done.errors["EC2 spot price history"]
    assert usd(files, M9) == 0.1


# ----------------------------------------------------------------------------------------------------------- files
def test_providers_get_a_plain_file_with_the_date_of_its_prices(
    lists: PriceLists, aws: Sources, files: CatalogFiles, clock: ManualClock
) -> None:
    lists.publish(REGION, "1", [row("m9.large", 0.1)])
    refresh(files, aws(REGION), clock)
    path = price_file(files.directory, "ec2")
    assert json.loads(path.read_text())[REGION]["m9.large"] == {"on_demand": 0.1, "at": NOW}
    assert path.stat().st_mtime == NOW
    google = price_file(files.directory, "gce")
    assert set(json.loads(google.read_text())["us-central1"]["n2-standard-2"]) == {"on_demand", "spot", "at"}
    assert google.stat().st_mtime == shipped_catalogue().oldest_at()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_previous_edition_is_kept_for_comparison(
    lists: PriceLists, aws: Sources, files: CatalogFiles, clock: ManualClock
) -> None:
    for version, price in (("1", 0.1), ("2", 0.2)):
        lists.publish(REGION, version, [row("m9.large", price)])
        refresh(files, aws(REGION), clock)
    assert files.previous().quotes[M9].usd_per_h == 0.1
    assert files.current().quotes[M9].usd_per_h == 0.2


def test_a_catalogue_reads_back_as_it_was_written(files: CatalogFiles) -> None:
    with files.locked():
        files.store(shipped_catalogue())
    assert files.stored() == shipped_catalogue()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"form": "hcloud-catalogue-1"}', '{"form": "another"}'])
def test_a_broken_file_is_named_and_never_read_as_no_prices(files: CatalogFiles, text: str) -> None:
    files.directory.mkdir(parents=True)
    files.stored_path.write_text(text)
    with pytest.raises(ConfigError, match=r"catalog\.json: (is not a price catalog|has the format)"):
        files.current()


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    files: CatalogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with files.locked():
        files.store(shipped_catalogue())
    before = contents(files)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with files.locked(), pytest.raises(OSError, match="No space"):
        files.store(shipped_catalogue())
    assert contents(files) == before


# --------------------------------------------------------------------------------------------------------- history
def spot(usd_per_h: float, at: float, zone: str = "a") -> SpotPrice:
    return SpotPrice(cloud="ec2", region="r", zone=zone, type="m", usd_per_h=usd_per_h, at=at)


def test_history_keeps_changes_only_and_the_price_in_force_at_its_beginning() -> None:
    known = [spot(0.1, 10), spot(0.2, 20), spot(0.3, 30)]
    assert merged_history(known, [spot(0.3, 40), spot(0.4, 50)], since=25) == [
        spot(0.2, 20),
        spot(0.3, 30),
        spot(0.4, 50),
    ]


def test_repeated_history_is_kept_once() -> None:
    known = [spot(0.1, 10), spot(0.2, 20, zone="b")]
    assert merged_history(known, known, since=0) == known


@pytest.mark.parametrize("line", ["1,ec2,r,a,m", "x,ec2,r,a,m,0.1", "1,ec2,r,a,m,0"])
def test_a_broken_line_of_history_is_named(files: CatalogFiles, line: str) -> None:
    files.directory.mkdir(parents=True)
    files.history_path.write_text(f"at,cloud,region,zone,type,usd_per_h\n{line}\n")
    with pytest.raises(ConfigError, match=r"spot\.csv:2"):
        list(files.history())


# ------------------------------------------------------------------------------------------------------------ HTTP
@pytest.fixture
def server(lists: PriceLists, clock: ManualClock) -> PriceServer:
    return PriceServer(lists.address, clock, {"X-Key": "of-this-server"})


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "file:///etc"])
def test_an_address_without_a_server_is_reported(clock: ManualClock, address: str) -> None:
    with pytest.raises(ProviderUnavailable, match=r"/x does not answer: .*(refused|unknown url type: file)"):
        PriceServer(address, clock).json("/x")


@pytest.mark.parametrize("packs", [True, False])
def test_a_list_is_read_line_by_line_compressed_or_not(lists: PriceLists, server: PriceServer, packs: bool) -> None:
    lists.packs, text = packs, "".join(f"line {number}\n" for number in range(100_000))
    lists.files["/list.csv"] = text + "\r\nlast"
    assert server.lines("/list.csv", list) == [*text.splitlines(), "", "last"]


@pytest.mark.parametrize("packs", [True, False])
def test_a_list_that_breaks_off_is_read_again_and_then_refused(
    lists: PriceLists, server: PriceServer, packs: bool
) -> None:
    lists.packs, lists.files["/list.csv"], lists.cut = packs, "some lines\n" * 100, {"/list.csv"}
    with pytest.raises(ProviderUnavailable, match=r"list\.csv does not answer: .*ended early"):
        server.lines("/list.csv", list)
    assert lists.paths() == ["/list.csv"] * TRIES


def test_a_redirect_is_not_followed_and_the_key_goes_nowhere_else(lists: PriceLists, server: PriceServer) -> None:
    lists.fail_next = [302]
    with pytest.raises(ProviderUnavailable, match=r"refused: HTTP 302 \(injected\)$"):
        server.json("/list")
    assert [(each.path, each.headers["x-key"]) for each in lists.asked] == [("/list", "of-this-server")]


@pytest.mark.parametrize(
    ("limit", "value", "text", "why"),
    [
        ("LIST_BYTES_MAX", 2**20, "x\n" * 2**20, "sends more than 1 MiB"),
        ("LINE_BYTES_MAX", 2**19, "x" * 2**20, "sends a line of more than 524288 bytes"),
        ("READ_S_MAX", -1.0, "x", "is not read after"),
    ],
)
def test_a_list_without_end_is_refused(
    lists: PriceLists, server: PriceServer, monkeypatch: pytest.MonkeyPatch, limit: str, value: float, text: str,
    why: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(f"hcloud.catalog.fetch.{limit}", value)
    lists.packs, lists.files["/list.csv"] = True, text  # a few KiB
    with pytest.raises(ProviderUnavailable, match=why):
        server.lines("/list.csv", list)
