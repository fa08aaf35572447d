"""Reading the clouds' own price lists: which lines are the price of a plain machine, and which lists are broken."""

import json
from collections.abc import Iterator
from importlib.resources import files as package_files
from typing import Any

import pytest

from hcloud.catalog import Key, PricePlan, PriceReading
from hcloud.catalog.aws_list import read_csv, read_products
from hcloud.catalog.gcp_skus import part_of, read_skus
from hcloud.core.errors import ProviderUnavailable
from tests.catalog import documents
from tests.catalog.documents import RESERVED, bulk_csv, n2_skus, product, row, sku


def reading() -> PriceReading:
    return PriceReading(source="a test", at=1000.0)


def of_csv(*rows: dict[str, str]) -> PriceReading:
    found = reading()
    read_csv(iter(bulk_csv(rows).splitlines()), "eu-central-1", found)
    return found


def prices(found: PriceReading) -> dict[tuple[str, str], float]:
    return {(key.type, key.plan.value): quote.usd_per_h for key, quote in found.quotes.items()}


# -------------------------------------------------------------------------------------------------------------- AWS
def test_bulk_file_gives_the_price_and_the_size_of_plain_machines() -> None:
    found = of_csv(row("m9.large", "0.0960000000"), row("m9.metal", "9.5", vCPU="192", Memory="1,952 GiB", GPU="2"))
    assert prices(found) == {("m9.large", "on_demand"): 0.096, ("m9.metal", "on_demand"): 9.5}
    size = found.sizes["ec2", "m9.metal"]
    assert (size.vcpus, size.memory_mib, size.gpus) == (192, 1952 * 1024, 2)
    assert found.versions == {"ec2 eu-central-1": "20261101000000"}
    assert ("ec2", "eu-central-1", PricePlan.ON_DEMAND) in found.whole


@pytest.mark.parametrize(
    "other",
    [
        {"Tenancy": "Dedicated"},
        {"Operating System": "Windows"},
        {"Operating System": "RHEL"},
        {"Pre Installed S/W": "SQL Std"},
        {"CapacityStatus": "UnusedCapacityReservation"},
        {"CapacityStatus": "AllocatedCapacityReservation"},
        {"MarketOption": "CapacityBlock"},
        {"License Model": "Bring your own license"},
        {"Unit": "Quantity"},
        {"Instance Type": "m9"},
        {**RESERVED, "PurchaseOption": "All Upfront"},
        {**RESERVED, "OfferingClass": "convertible"},
    ],
    ids=lambda other: "-".join(other.values()),
)
def test_what_is_no_plain_machine_is_not_its_price(other: dict[str, str]) -> None:
    found = of_csv(row("m9.large", 0.1), row("m9.large", 0.7, **other))
    assert prices(found) == {("m9.large", "on_demand"): 0.1}


def test_a_reservation_without_upfront_payment_is_the_price_of_a_commitment() -> None:
    three = {**RESERVED, "LeaseContractLength": "3yr"}
    found = of_csv(row("m9.large", 0.1), row("m9.large", 0.06, **RESERVED), row("m9.large", 0.04, **three))
    assert prices(found)["m9.large", "commit_1y"] == 0.06
    assert prices(found)["m9.large", "commit_3y"] == 0.04


@pytest.mark.parametrize("usd", ["0.0000000000", "-1", "nonsense", "250000"])
def test_an_impossible_price_is_left_out_and_counted(usd: str) -> None:
    found = of_csv(row("m9.large", 0.1), row("m9.xlarge", usd))
    assert prices(found) == {("m9.large", "on_demand"): 0.1}
    assert found.left_out.total() == 1


def test_prices_in_another_currency_are_left_out_and_counted() -> None:
    found = of_csv(row("m9.large", 0.1), row("m9.xlarge", 1.2, Currency="CNY"))
    assert prices(found) == {("m9.large", "on_demand"): 0.1}
    assert found.notes() == ["a test: 1 entries: in CNY, not USD"]


def test_of_two_prices_for_the_same_the_higher_one_counts() -> None:
    assert prices(of_csv(row("m9.large", 0.2), row("m9.large", 0.1))) == {("m9.large", "on_demand"): 0.2}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "ended before its table"),
        ("<html>busy</html>", "ended before its table"),
        (bulk_csv([row("m9.large", 1)]).replace('"Tenancy"', '"Tenure"'), "no column 'Tenancy'"),
        (bulk_csv([]), "has no price"),
        (bulk_csv([row("m9.large", 1, Tenancy="Dedicated")]), "has no price"),
        (bulk_csv([row("m9.large", 1)])[:-40], "is truncated"),
    ],
)
def test_a_broken_bulk_file_is_refused(text: str, why: str) -> None:
    with pytest.raises(ProviderUnavailable, match=why):
        read_csv(iter(text.splitlines()), "eu-central-1", reading())


def test_queried_products_give_the_same() -> None:
    found = reading()
    answers = [product("m9g.large", 0.077, commit_1y=0.05), product("m9g.large", 9.0, tenancy="Dedicated")]
    read_products(answers, "eu-central-1", found)
    assert prices(found) == {("m9g.large", "on_demand"): 0.077, ("m9g.large", "commit_1y"): 0.05}
    assert found.sizes["ec2", "m9g.large"].arch == "arm64"


@pytest.mark.parametrize("answer", ["nonsense", "{}", '{"product": {"attributes": {}}, "terms": []}'])
def test_a_broken_product_is_refused(answer: str) -> None:
    with pytest.raises(ProviderUnavailable, match="has an unknown format"):
        read_products([answer], "eu-central-1", reading())


# ----------------------------------------------------------------------------------------------------------- Google
@pytest.mark.parametrize(
    ("description", "part"),
    [
        ("N1 Predefined Instance Core running in Americas", ("n1", "cpu")),
        ("N2 Instance Ram running in Frankfurt", ("n2", "ram")),
        ("N2D AMD Instance Core running in Tokyo", ("n2d", "cpu")),
        ("Spot Preemptible N2D AMD Instance Ram running in Tokyo", ("n2d", "ram")),
        ("Preemptible N1 Predefined Instance Core running in Americas", ("n1", "cpu")),
        ("E2 Instance Core running in Hong Kong", ("e2", "cpu")),
        ("Compute optimized Core running in Americas", ("c2", "cpu")),
        ("Spot Preemptible Compute optimized Ram running in Japan", ("c2", "ram")),
        ("Memory-optimized Instance Core running in Americas", ("m1", "cpu")),
        ("C3 Instance Core running in Netherlands", ("c3", "cpu")),
        ("T2A Arm Instance Core running in Iowa", ("t2a", "cpu")),
        ("Commitment v1: N2 Cpu in Americas for 1 Year", ("n2", "cpu")),
        ("Commitment v1: C2D AMD Ram in EMEA for 3 Year", ("c2d", "ram")),
        ("Commitment v1: Cpu in Americas for 1 Year", ("n1", "cpu")),
        ("Small Instance with 1 VCPU running in Japan", ("g1", "cpu")),
        ("Micro Instance with burstable CPU running in EMEA", ("f1", "cpu")),
        ("N2 Custom Instance Core running in Americas", None),
        ("Custom Instance Core running in Americas", None),
        ("N2 Sole Tenancy Instance Core running in Americas", None),
        ("Sole Tenancy Premium for N2 Sole Tenancy Instance Core running in Americas", None),
        ("DWS Defined Duration N2 Instance Core running in Americas", None),
        ("Spot Preemptible M3 Memory-optimized Instance Ram running in Tokyo", None),
        ("Nvidia Tesla T4 GPU running in Americas", ("t4", "gpu")),
        ("Nvidia Tesla A100 80GB GPU attached to Spot Preemptible VMs running in Iowa", ("a100-80gb", "gpu")),
        ("Commitment v1: Nvidia L4 GPU in Iowa for 1 Year", ("l4", "gpu")),
        ("Nvidia H100 80GB GPU attached to DWS Defined Duration VMs running in Americas", None),
        ("Network Internet Egress from Americas to China", None),
    ],
)
def test_descriptions_are_understood_or_left_out(description: str, part: object) -> None:
    assert part_of(description) == part


def of_skus(*skus: dict[str, Any], regions: tuple[str, ...] = ()) -> PriceReading:
    found = reading()
    read_skus(skus, regions, found)
    return found


def test_skus_give_the_prices_of_machine_types_in_every_region_they_name() -> None:
    found = of_skus(*n2_skus(0.03, 0.004, "us-central1", "us-east1"))
    for region in ("us-central1", "us-east1"):
        whole = found.quotes[Key("gce", region, "n2-highmem-4", PricePlan.ON_DEMAND)].usd_per_h
        spot = found.quotes[Key("gce", region, "n2-highmem-4", PricePlan.SPOT)].usd_per_h
        assert whole == pytest.approx(4 * 0.03 + 32 * 0.004)
        assert spot == pytest.approx(whole / 5)
    assert found.sizes["gce", "n2-highmem-4"].memory_mib == 32 * 1024


def test_only_the_regions_asked_for_are_kept() -> None:
    found = of_skus(*n2_skus(0.03, 0.004, "us-central1", "us-east1"), regions=("us-east1",))
    assert {key.region for key in found.quotes} == {"us-east1"}


def test_vcpus_without_memory_give_no_price() -> None:
    found = of_skus(*n2_skus(), sku("C3 Instance Core running in Americas", 0.04))
    assert not [key for key in found.quotes if key.type.startswith("c3-")]
    assert found.left_out["a family with a price of vCPUs or memory only"] > 0


def test_free_foreign_and_monthly_skus_are_left_out() -> None:
    odd = [
        sku("C3 Instance Core running in Americas", 0.0),
        sku("C3 Instance Ram running in Americas", 0.5, currency="EUR"),
        sku("E2 Instance Core running in Americas", 0.5, unit="mo"),
    ]
    found = of_skus(*n2_skus(), *odd)
    assert {key.type.split("-")[0] for key in found.quotes} == {"n2"}
    assert sorted(found.left_out) == [
        "in EUR, not USD",
        "no valid price (zero, negative or too high)",
        "per mo, not per hour",
    ]


def test_types_with_gpus_cost_their_parts_and_each_gpu() -> None:
    parts = [sku("G2 Instance Core running in Americas", 0.025), sku("G2 Instance Ram running in Americas", 0.003)]
    found = of_skus(*n2_skus(), *parts, sku("Nvidia L4 GPU running in Americas", 0.56))
    price = found.quotes[Key("gce", "us-central1", "g2-standard-24", PricePlan.ON_DEMAND)].usd_per_h
    assert price == pytest.approx(24 * 0.025 + 96 * 0.003 + 2 * 0.56)
    assert found.sizes["gce", "g2-standard-24"].gpus == 2
    without = of_skus(*n2_skus(), *parts)
    assert not [key for key in without.quotes if key.type.startswith("g2-")]
    assert without.left_out["a type whose GPUs have no price there"] == 8


@pytest.mark.parametrize("skus", [[], [{}], [{"category": {"resourceFamily": "Compute", "usageType": "OnDemand"}}]])
def test_a_broken_catalogue_of_skus_is_refused(skus: list[dict[str, Any]]) -> None:
    with pytest.raises(ProviderUnavailable, match=r"unknown format|has no price"):
        read_skus(skus, (), reading())


# --------------------------------------------------------------------------------------------- the tests' own documents
def unknown_keys(document: Any, schema: dict[str, Any], schemas: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield keys of a document that Google's own description of the API does not have."""
    schema = schemas[schema["$ref"]] if "$ref" in schema else schema
    if isinstance(document, dict):
        for key, value in document.items():
            if key not in schema.get("properties", {}):
                yield f"{path}.{key}"
            else:
                yield from unknown_keys(value, schema["properties"][key], schemas, f"{path}.{key}")
    elif isinstance(document, list):
        for each in document:
            yield from unknown_keys(each, schema["items"], schemas, path)


def test_the_skus_of_these_tests_have_the_form_that_google_describes() -> None:
    folder = package_files("googleapiclient") / "discovery_cache" / "documents"
    described = json.loads((folder / "cloudbilling.v1.json").read_text())
    page = {"skus": n2_skus(), "nextPageToken": ""}
    assert list(unknown_keys(page, {"$ref": "ListSkusResponse"}, described["schemas"])) == []
    assert list(unknown_keys({"skus": [{"cost": 1}]}, {"$ref": "ListSkusResponse"}, described["schemas"])) == [
        ".skus.cost"
    ]
    assert documents.CSV_COLUMNS[:4] == ("SKU", "OfferTermCode", "RateCode", "TermType")
