"""The FOCUS export, against the columns and formats of the FOCUS 1.2 specification, and what it adds up to."""

import csv
import json
import re
from datetime import UTC, datetime

import pytest

from hcloud.core.model import EventKind
from hcloud.report import build_report
from hcloud.simulator.focus import read_focus
from tests.report.log_builder import HOUR, LogBuilder

NOW = 30 * HOUR


def columns(text: str) -> dict[str, tuple[str, bool]]:
    """Return the data type of each column, and whether it may be null."""
    named = [each.strip().partition(" ") for each in text.replace("\n", " ").split(",")]
    return {name: (kind.rstrip("?"), kind.endswith("?")) for name, _, kind in named}


# Of the specification 1.2 (specification/columns): data type, and "?" where nulls are allowed.
MANDATORY = columns("""\
BilledCost Decimal, BillingAccountId String, BillingAccountName String?, BillingCurrency String,
BillingPeriodEnd Date/Time, BillingPeriodStart Date/Time, ChargeCategory String, ChargeClass String?,
ChargeDescription String?, ChargePeriodEnd Date/Time, ChargePeriodStart Date/Time, ContractedCost Decimal,
EffectiveCost Decimal, InvoiceIssuerName String, ListCost Decimal, PricingQuantity Decimal?,
PricingUnit String?, ProviderName String, PublisherName String, ServiceCategory String, ServiceName String""")
RECOMMENDED = columns("""\
AvailabilityZone String?, ChargeFrequency String, InvoiceId String?, ServiceSubcategory String""")
CONDITIONAL = columns("""\
CommitmentDiscountCategory String?, CommitmentDiscountId String?, CommitmentDiscountName String?,
CommitmentDiscountQuantity Decimal?, CommitmentDiscountStatus String?, CommitmentDiscountType String?,
CommitmentDiscountUnit String?, ConsumedQuantity Decimal?, ConsumedUnit String?, ContractedUnitPrice Decimal?,
ListUnitPrice Decimal?, PricingCategory String?, RegionId String?, RegionName String?, ResourceId String?,
ResourceName String?, ResourceType String?, SkuId String?, SkuMeter String?, SkuPriceDetails JSON?,
SkuPriceId String?, SubAccountId String?, SubAccountName String?, SubAccountType String?, Tags JSON?""")
ALLOWED = {
    "ChargeCategory": {"Usage", "Purchase", "Tax", "Credit", "Adjustment"},
    "ChargeClass": {"Correction"},
    "ChargeFrequency": {"One-Time", "Recurring", "Usage-Based"},
    "CommitmentDiscountCategory": {"Spend", "Usage"},
    "CommitmentDiscountStatus": {"Used", "Unused"},
    "PricingCategory": {"Standard", "Dynamic", "Committed", "Other"},
    "ServiceCategory": {"Compute"},
    "ServiceSubcategory": {"Virtual Machines"},
}
FORMATS = {
    "Decimal": re.compile(r"-?\d+(\.\d+)?(E-?\d+)?"),
    "Date/Time": re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"),
    "String": re.compile(r".+"),
    "JSON": re.compile(r"\{.*\}"),
}
COLUMNS = {**MANDATORY, **RECOMMENDED, **CONDITIONAL}


def violations(rows: list[dict[str, str]]) -> list[str]:
    """Return what of a FOCUS dataset is not as the specification says; an empty field is null."""
    header = set(rows[0])
    found = [f"{name} is missing" for name in MANDATORY if name not in header]
    found += [f"{name} is no column of FOCUS" for name in header - set(COLUMNS)]
    for row in rows:
        for name, (kind, nullable) in COLUMNS.items():
            value = row.get(name, "")
            if not value:
                found += [] if nullable else [f"{name} is null"]
            elif not FORMATS[kind].fullmatch(value) or value not in ALLOWED.get(name, {value}):
                found.append(f"{name} is {value!r}")
        found += _wrong_sums(row)
        if (row["CommitmentDiscountId"] != "") != (row["CommitmentDiscountStatus"] != ""):
            found.append("a commitment without its status")
        if row["ChargePeriodStart"] >= row["ChargePeriodEnd"]:
            found.append("a charge of no time")
    return found


def _wrong_sums(row: dict[str, str]) -> list[str]:
    quantity = float(row["PricingQuantity"])
    pairs = (("ListUnitPrice", "ListCost"), ("ContractedUnitPrice", "ContractedCost"))
    return [cost for price, cost in pairs if abs(quantity * float(row[price]) - float(row[cost])) > 1e-9]


@pytest.fixture
def log() -> LogBuilder:
    """A spot machine over a midnight with two jobs, a reserved machine with a job, and an unused commitment."""
    log = LogBuilder()
    log.submit(1, user="ann", tags={"team": "search, ads"}, name='say "hi"')
    log.submit(2, user="bob")
    log.add(
        EventKind.COMMITMENT, 0.0, provider="aws", commitment_kind="type", commitment="r-a/small", count=2, unused=1,
        usd_per_h=0.4, ends_at=1e9,
    )  # fmt: skip
    log.machine(1, 20 * HOUR, 20.5 * HOUR, price=0.3, market="spot", provider="aws", on_demand_usd_per_h=1.0)
    log.start(1, 1, 21 * HOUR)
    log.start(2, 1, 22 * HOUR, vcpus=0.5)
    log.end(1, 1, 26 * HOUR)
    log.finish(1, 26 * HOUR)
    log.machine(2, 20 * HOUR, 20 * HOUR, price=0.4, market="reserved", provider="aws", on_demand_usd_per_h=1.0)
    log.terminate(1, 28 * HOUR)
    log.start(3, 2, 23 * HOUR + 0.1)  # for less than a second
    log.end(3, 2, 23 * HOUR + 0.2)
    return log


def charges(log: LogBuilder) -> list[dict[str, str]]:
    table = build_report("focus", iter(log.events), NOW)
    return list(csv.DictReader(table.to_csv().splitlines()))


def test_every_charge_is_as_the_specification_says(log: LogBuilder) -> None:
    assert violations(charges(log)) == []


def test_the_validation_sees_what_is_wrong(log: LogBuilder) -> None:
    [first, *_] = charges(log)
    for name, value in {"BilledCost": "$1", "ChargePeriodEnd": "2026-01-01", "PricingCategory": "Spot"}.items():
        assert violations([first | {name: value}]) != [], name
    assert violations([{name: value for name, value in first.items() if name != "ListCost"} | {"ListCost": "9"}]) != []
    assert "ProviderName is null" in violations([first | {"ProviderName": ""}])


def test_charges_add_up_to_the_cost_report(log: LogBuilder) -> None:
    found, cost = charges(log), build_report("cost", iter(log.events), NOW, by="job")
    total = dict(zip([column.name for column in cost.columns], cost.total or (), strict=True))["cost_usd"]
    assert sum(float(each["EffectiveCost"]) for each in found) == pytest.approx(total)
    assert sum(float(each["BilledCost"]) for each in found) == pytest.approx(total)
    unused = [each for each in found if each["CommitmentDiscountStatus"] == "Unused"]
    assert sum(float(each["EffectiveCost"]) for each in unused) == pytest.approx(30 * 0.4)


def test_a_charge_is_one_job_on_one_machine_and_utc_day(log: LogBuilder) -> None:
    of_ann = [each for each in charges(log) if (each["SubAccountId"], each["ResourceName"]) == ("ann", "inst-1")]
    assert [(each["ChargePeriodStart"], each["ChargePeriodEnd"]) for each in of_ann] == [
        ("1970-01-01T21:00:00Z", "1970-01-02T00:00:00Z"),
        ("1970-01-02T00:00:00Z", "1970-01-02T02:00:00Z"),
    ]
    assert [float(each["EffectiveCost"]) for each in of_ann] == pytest.approx([0.45, 0.3])
    assert [float(each["ListCost"]) for each in of_ann] == pytest.approx([1.5, 1.0])
    tags = json.loads(of_ann[0]["Tags"])
    assert tags == {"team": "search, ads", "hcloud/job": "job-1", "hcloud/name": 'say "hi"'}


def test_the_simulator_reads_the_export_back_with_the_same_money(log: LogBuilder) -> None:
    found = build_report("focus", iter(log.events), NOW)
    workload = read_focus(found.to_csv().splitlines(keepends=True), "export", lambda cloud, kind: None)
    assert workload.paid_usd == pytest.approx(8 * 0.3 + 10 * 0.4)
    assert datetime.fromtimestamp(workload.began_at or 0.0, UTC).hour == 20
