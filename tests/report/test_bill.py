"""Comparison of the ledger with the cloud's bill."""

import csv
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hcloud.cli.bill import rows_of
from hcloud.core.errors import BadInput
from hcloud.core.model import EventKind
from hcloud.report import ReportTable
from hcloud.report.bill import bill_table
from hcloud.report.bill_lines import Bill, read_bill
from tests.report.log_builder import HOUR, LogBuilder

DAY = "2026-11-01"
START = 1_793_491_200.0
OWNER = "hcloud-a"
Row = dict[str, Any]


def aws(resource: str, usd: float, hour: int = 0, **changes: Any) -> Row:
    """A line of a Cost and Usage Report, in its legacy spelling."""
    return {
        "lineItem/LineItemType": "Usage",
        "lineItem/UsageStartDate": f"{DAY}T{hour:02d}:00:00Z",
        "lineItem/UsageEndDate": f"{DAY}T{hour + 1:02d}:00:00Z",
        "lineItem/ProductCode": "AmazonEC2",
        "lineItem/UsageType": "EUC1-BoxUsage:m5.large",
        "lineItem/ResourceId": resource,
        "lineItem/UnblendedCost": usd,
        "lineItem/CurrencyCode": "USD",
        "reservation/EffectiveCost": "",
        "savingsPlan/SavingsPlanEffectiveCost": "",
        "resourceTags/user:hcloud:owner": OWNER,
    } | {name.replace("__", "/"): value for name, value in changes.items()}


def google(name: str, usd: float, sku: str = "N2 Instance Core running in Americas", **changes: Any) -> Row:
    """A row of Google's detailed export, nested as in JSON lines."""
    return {
        "service": {"id": "6F81-5844-456A", "description": "Compute Engine"},
        "sku": {"id": "X", "description": sku},
        "resource": {"name": name, "global_name": f"//compute.googleapis.com/projects/1/zones/z/instances/{name}"},
        "labels": [{"key": "hcloud-owner", "value": OWNER}],
        "usage_start_time": f"{DAY} 00:00:00 UTC",
        "usage_end_time": f"{DAY} 01:00:00 UTC",
        "cost": usd,
        "currency": "USD",
        "credits": [],
        "cost_type": "regular",
    } | changes


def numbered(rows: list[Row]) -> Iterator[tuple[str, Row]]:
    return ((f"bill.csv:{number}", row) for number, row in enumerate(rows, 2))


def bill_of(*rows: Row) -> Bill:
    return read_bill(numbered(list(rows)))


def log(**prices: float) -> LogBuilder:
    """A log of machines that ran one hour each; prices by the last part of the cloud's machine name."""
    made = LogBuilder()
    for number, (name, price) in enumerate(prices.items(), 1):
        made.request(number, START, price)
        made.add(
            EventKind.INSTANCE_LAUNCHED, START, instance_id=f"inst-{number}", launched_at=START, price_usd_per_h=price,
            provider_id=f"zone-a/i-{name}",
        )  # fmt: skip
        made.terminate(number, START + HOUR)
    return made


def compared(made: LogBuilder, bill: Bill, **changes: Any) -> ReportTable:
    return bill_table(made.events, bill, owner=OWNER, tolerance=0.02, providers=changes.get("providers", ()))


def findings(table: ReportTable) -> dict[str, str]:
    names = [column.name for column in table.columns]
    return {str(row[names.index("resource")]): str(row[0]) for row in table.rows}


def column(table: ReportTable, name: str, resource: str) -> Any:
    names = [column.name for column in table.columns]
    [row] = [row for row in table.rows if row[names.index("resource")] == resource]
    return row[names.index(name)]


# ------------------------------------------------------------------------------------------------------- comparison
def test_prices_of_the_ledger_that_were_old_when_the_bill_ended_are_warned_of() -> None:
    for age_s, end in ((29 * 86_400.0, "29 days old"), (31 * 86_400.0, "update with `hcloud catalog refresh`)")):
        made = LogBuilder()
        made.machine(1, START, START, priced_at=START + HOUR - age_s)
        made.terminate(1, START + HOUR)
        bill = bill_of(aws("i-1", 1.0))
        (note,) = [each for each in compared(made, bill).notes if each.startswith("prices in the ledger, at the end")]
        assert note.endswith(end)
        assert not any(each.startswith("prices") for each in compared(made, bill, providers=("other",)).notes)


def test_every_machine_is_in_the_ledger_and_the_bill_or_reported() -> None:
    rows = [aws("i-same", 1.0), aws("i-dear", 1.5), aws("i-cheap", 0.5), aws("i-lost", 3.0)]
    table = compared(log(same=1.01, dear=1.0, cheap=1.0, unbilled=1.0), bill_of(*rows))
    assert findings(table) == {
        "i-lost": "not in the ledger",
        "i-dear": "bill is higher",
        "i-cheap": "bill is lower",
        "i-unbilled": "not in the bill",
        "i-same": "agrees",
    }
    assert next(iter(findings(table))) == "i-lost"
    assert column(table, "difference_pct", "i-dear") == pytest.approx(50)
    assert table.total is not None
    assert list(table.total[5:8]) == pytest.approx([4.01, 6.0, 1.99])


def test_hours_of_a_machine_are_summed_and_its_disks_are_listed_separately() -> None:
    made = LogBuilder()
    made.request(1, START, 1.0)
    made.add(
        EventKind.INSTANCE_LAUNCHED, START, instance_id="inst-1", launched_at=START, price_usd_per_h=1.0,
        provider_id="i-a",
    )  # fmt: skip
    made.terminate(1, START + 2 * HOUR)
    traffic = aws("i-a", 0.3, lineItem__UsageType="EUC1-DataTransfer-Out-Bytes")
    table = compared(made, bill_of(aws("i-a", 1.0), aws("i-a", 1.0, hour=1), traffic))
    assert findings(table) == {"i-a": "agrees"}
    assert column(table, "other_usd", "i-a") == pytest.approx(0.3)


def test_only_the_period_of_the_bill_is_compared() -> None:
    made = log(a=1.0)
    made.request(2, START + 5 * HOUR, 1.0)
    made.add(
        EventKind.INSTANCE_LAUNCHED, START + 5 * HOUR, instance_id="inst-2", launched_at=START + 5 * HOUR,
        price_usd_per_h=1.0, provider_id="i-later",
    )  # fmt: skip
    assert findings(compared(made, bill_of(aws("i-a", 1.0)))) == {"i-a": "agrees"}


def test_machines_of_other_owners_are_only_counted() -> None:
    other = {"resourceTags/user:hcloud:owner": "hcloud-b"}
    table = compared(log(a=1.0), bill_of(aws("i-a", 1.0), aws("i-x", 7.0) | other))
    assert findings(table) == {"i-a": "agrees"}
    assert "1 other machine, $7.00: no owner tag of ours" in table.notes


def test_bill_without_owner_tags_is_noted() -> None:
    rows = [aws("i-a", 1.0), aws("i-x", 7.0)]
    for row in rows:
        del row["resourceTags/user:hcloud:owner"]
    table = compared(log(a=1.0), bill_of(*rows))
    assert findings(table) == {"i-a": "agrees"}
    assert any("has no owner tags" in note for note in table.notes)


def test_only_the_given_providers_are_compared() -> None:
    assert findings(compared(log(a=1.0, b=1.0), bill_of(aws("i-a", 1.0)), providers=("elsewhere",))) == {
        "i-a": "not in the ledger"
    }


# -------------------------------------------------------------------------------------------------------------- AWS
def test_commitments_count_by_their_effective_cost() -> None:
    reserved = aws("i-r", 0.0, lineItem__LineItemType="DiscountedUsage", reservation__EffectiveCost="0.6")
    planned = aws("i-s", 1.0, lineItem__LineItemType="SavingsPlanCoveredUsage")
    planned["savingsPlan/SavingsPlanEffectiveCost"] = "0.7"
    negated = aws("i-s", -1.0, lineItem__LineItemType="SavingsPlanNegation")
    table = compared(log(r=0.6, s=0.7), bill_of(reserved, planned, negated))
    assert set(findings(table).values()) == {"agrees"}


def test_lines_without_a_machine_are_listed_as_not_compared() -> None:
    tax = aws("", 5.0, lineItem__LineItemType="Tax")
    disk = aws("vol-1", 2.0, lineItem__UsageType="EUC1-EBS:VolumeUsage.gp3")
    table = compared(log(a=1.0), bill_of(aws("i-a", 1.0), tax, disk))
    assert "not compared: Tax, $5.00" in table.notes
    assert "not compared: AmazonEC2, $2.00" in table.notes


def test_both_column_spellings_of_the_aws_report_are_read() -> None:
    new = {
        "line_item_line_item_type": "Usage",
        "line_item_usage_start_date": f"{DAY} 00:00:00",
        "line_item_usage_end_date": f"{DAY} 01:00:00",
        "line_item_product_code": "AmazonEC2",
        "line_item_usage_type": "SpotUsage:m5.large",
        "line_item_resource_id": "i-a",
        "line_item_unblended_cost": "1.0",
        "line_item_currency_code": "USD",
        "resource_tags": json.dumps({"user_hcloud_owner": OWNER}),
    }
    bill = bill_of(new)
    assert (bill.since, bill.until, bill.owners) == (START, START + HOUR, {"i-a": OWNER})
    assert findings(compared(log(a=1.0), bill)) == {"i-a": "agrees"}


# ----------------------------------------------------------------------------------------------------------- Google
def test_vcpu_memory_and_credit_lines_of_a_machine_are_summed() -> None:
    rows = [
        google("i-a", 0.8, credits=[{"name": "Sustained Usage Discount", "amount": -0.2}]),
        google("i-a", 0.4, sku="N2 Instance Ram running in Americas"),
        google("i-a", 0.1, sku="Storage PD Capacity"),
        google("", 9.0, service={"description": "Cloud Storage"}),
    ]
    table = compared(log(a=1.0), bill_of(*rows))
    assert findings(table) == {"i-a": "agrees"}
    assert column(table, "other_usd", "i-a") == pytest.approx(0.1)
    assert "not compared: Cloud Storage, $9.00" in table.notes


def test_google_export_as_csv_gives_the_same_result(tmp_path: Path) -> None:
    path = tmp_path / "export.csv.gz"
    with gzip.open(path, "wt", newline="") as stream:
        writer = csv.writer(stream)
        names = ("service", "sku", "resource_name", "usage_start_time", "usage_end_time", "cost", "currency", "credits",
                 "owner")  # fmt: skip
        writer.writerow(names)
        writer.writerow(["Compute Engine", "N2 Instance Core running in Americas", "i-a", f"{DAY} 00:00:00 UTC",
                         f"{DAY} 01:00:00 UTC", "1.25", "USD", "-0.25", OWNER])  # fmt: skip
    assert findings(compared(log(a=1.0), read_bill(rows_of(path)))) == {"i-a": "agrees"}


def test_json_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "export.json"
    path.write_text("\n".join(json.dumps(google("i-a", usd)) for usd in (0.5, 0.5)) + "\n")
    assert findings(compared(log(a=1.0), read_bill(rows_of(path)))) == {"i-a": "agrees"}


# ------------------------------------------------------------------------------------------------------ broken bills
@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"a": 1}, "bill.csv:2: must be an AWS Cost and Usage Report"),
        (aws("i-a", 1.0, lineItem__CurrencyCode="EUR"), "bill.csv:2: the bill is in EUR"),
        (aws("i-a", 1.0) | {"lineItem/UnblendedCost": "much"}, "line_item_unblended_cost must be an amount"),
        (aws("i-a", 1.0) | {"lineItem/UnblendedCost": "nan"}, "line_item_unblended_cost must be an amount"),
        (aws("i-a", 1.0) | {"lineItem/UsageStartDate": "yesterday"}, "line_item_usage_start_date must be a time"),
        (aws("i-a", 1.0) | {"lineItem/UsageType": ""}, "line_item_usage_type is missing"),
        (google("i-a", 1.0, currency="CHF"), "the bill is in CHF"),
        (google("i-a", 1.0, credits="[1"), "credits must be a number or a JSON list"),
        (aws("", 1.0, lineItem__LineItemType="Tax"), "has no line for a compute machine"),
    ],
)
def test_bill_that_cannot_be_compared_is_refused(row: Row, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        bill_of(row)


def test_aws_report_without_the_cost_of_commitments_is_refused() -> None:
    row = aws("i-a", 0.0, lineItem__LineItemType="DiscountedUsage")
    del row["reservation/EffectiveCost"]
    with pytest.raises(BadInput, match="needs the column reservation_effective_cost"):
        bill_of(row)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"a,b\n1\n", r"bill:2: has 1 fields, the header 2"),
        (b'{"a": 1}\n{"a"\n', r"bill:2: is not JSON"),
        (b"\xff\xfe", "cannot be read completely"),
        (gzip.compress(b"a,b\n1,2\n" * 100, mtime=0)[:-12], "cannot be read completely"),
    ],
    ids=["a short row", "broken JSON", "not text", "truncated"],
)
def test_broken_file_is_refused_with_its_name(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "bill"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=why):
        list(rows_of(path))
