"""FOCUS exports: which machines become which load, what was paid, and how wrong files are refused."""

import csv
import io
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcloud.core.errors import BadInput, NoJobs
from hcloud.simulator.focus import is_focus_header, read_focus
from hcloud.simulator.workload import Workload

HEADER = [
    "ProviderName", "BillingAccountId", "SubAccountId", "SubAccountName", "ChargePeriodStart", "ChargePeriodEnd",
    "ChargeCategory", "ChargeClass", "BilledCost", "EffectiveCost", "PricingCategory", "BillingCurrency",
    "ConsumedQuantity", "ConsumedUnit", "ServiceName", "ServiceCategory", "SkuId", "SkuPriceDetails", "ResourceId",
    "ResourceName", "RegionId", "CommitmentDiscountStatus", "x_UsageType",
]  # fmt: skip
"""Some of the columns of FOCUS 1.2, in the order of its sample data; the last is one of AWS's own."""
START = 1_777_593_600
"""2026-05-01."""
LARGE = '{"InstanceType": "m6i.large", "CoreCount": 2, "MemorySize": 8}'


def hour(number: float) -> str:
    at = int(number * 3600)
    return f"2026-05-{1 + at // 86400:02}T{at % 86400 // 3600:02}:{at % 3600 // 60:02}:00Z"


def billed(resource: str, from_h: float, to_h: float | None = None, **changes: str) -> dict[str, str]:
    return {
        "ProviderName": "AWS",
        "SubAccountId": "2000",
        "SubAccountName": "prod",
        "ChargePeriodStart": hour(from_h),
        "ChargePeriodEnd": hour(from_h + 1 if to_h is None else to_h),
        "ChargeCategory": "Usage",
        "BilledCost": "0",
        "EffectiveCost": "0.25",
        "PricingCategory": "Standard",
        "BillingCurrency": "USD",
        "ServiceName": "AmazonEC2",
        "ServiceCategory": "Compute",
        "SkuPriceDetails": LARGE,
        "ResourceId": f"arn:aws:ec2:us-east-1:1:instance/{resource}",
        "RegionId": "us-east-1",
        **changes,
    }


def text_of(rows: list[dict[str, str]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, HEADER)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def read(*rows: dict[str, str]) -> Workload:
    sizes = {("ec2", "c5.xlarge"): (4.0, 8192)}
    return read_focus(text_of(list(rows)).splitlines(), "may.csv", lambda cloud, name: sizes.get((cloud, name)))


def hours(made: Workload) -> list[tuple[str, float, float]]:
    """Return name, begin and end of each job, in hours after the first of May."""
    assert made.began_at is not None
    offset_h = (made.began_at - START) / 3600
    return sorted((e.spec.name, e.at_s / 3600 + offset_h, (e.at_s + e.run_s) / 3600 + offset_h) for e in made.arrivals)


def test_a_machine_runs_from_its_first_to_its_last_billed_hour_without_a_gap() -> None:
    made = read(*(billed("i-1", at) for at in (0, 1, 2, 5, 6)), billed("i-2", 1))
    assert hours(made) == [("i-1", 0, 3), ("i-1", 5, 7), ("i-2", 1, 2)]
    (spec,) = {each.spec.resources for each in made.arrivals}
    assert (spec.vcpus, spec.memory_mib) == (2.0, 8192)
    assert made.paid_usd == 6 * 0.25
    assert {each.spec.user for each in made.arrivals} == {"prod"}


@pytest.mark.parametrize(
    ("used_h", "wanted"),
    [
        (("1", "1", "1"), [(0, 3)]),
        (("0.5", "1", "0.25"), [(0.5, 2.25)]),  # launched in the first hour, ended in the last
        (("1", "0.5", "1"), [(0, 1.5), (2, 3)]),
        (("0.5", "0", "0.5"), [(0, 0.5), (2, 2.5)]),
        (("9", "1", "1"), [(0, 3)]),
    ],
)
def test_a_period_used_in_part_is_next_to_the_one_it_was_used_with(
    used_h: tuple[str, ...], wanted: list[tuple[float, float]]
) -> None:
    made = read(*(billed("i-1", at, ConsumedQuantity=used, ConsumedUnit="Hrs") for at, used in enumerate(used_h)))
    assert [(begin, end) for _, begin, end in hours(made)] == wanted


def test_days_used_in_part_do_not_run_into_each_other() -> None:
    made = read(
        *(billed("i-1", 24 * day, 24 * day + 24, ConsumedQuantity="8", ConsumedUnit="Hours") for day in range(3))
    )
    assert [(begin, end) for _, begin, end in hours(made)] == [(0, 8), (24, 32), (48, 56)]


def test_parts_of_a_period_at_different_prices_are_one_machine() -> None:
    covered = billed("i-1", 0, ConsumedQuantity="0.4", ConsumedUnit="Hours", CommitmentDiscountStatus="Used")
    made = read(covered, billed("i-1", 0, ConsumedQuantity="0.6", ConsumedUnit="Hours"), billed("i-1", 1))
    assert [(begin, end) for _, begin, end in hours(made)] == [(0, 2)]


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.randoms())
def test_the_order_of_rows_does_not_matter(up: list[bool], chance: random.Random) -> None:
    rows = [billed("i-1", at) for at, is_up in enumerate(up) if is_up] + [billed("i-2", 3)]
    chance.shuffle(rows)
    found = [(begin, end) for name, begin, end in hours(read(*rows)) if name == "i-1"]
    edges = [at for at, (before, after) in enumerate(pairwise([False, *up, False])) if before != after]
    assert found == list(zip(edges[::2], edges[1::2], strict=True))


PART = st.tuples(st.integers(0, 8), st.sampled_from([1, 1, 1, 2, 24]), st.sampled_from(["0.25", "0.5", "1", "2"]))


@given(st.lists(PART, min_size=1, max_size=12), st.randoms())
def test_the_order_of_rows_that_overlap_or_are_used_in_part_does_not_matter(
    parts: list[tuple[int, int, str]], chance: random.Random
) -> None:
    unit = {"ConsumedUnit": "Hours"}
    rows = [billed("i-1", from_h, from_h + long_h, ConsumedQuantity=used, **unit) for from_h, long_h, used in parts]
    made = hours(read(*rows))
    chance.shuffle(rows)
    assert hours(read(*rows)) == made
    assert all(one[2] < other[1] for one, other in pairwise(made))


def test_only_what_ran_at_spot_prices_may_be_interrupted() -> None:
    spot = {"PricingCategory": "Dynamic"}
    made = read(billed("i-1", 0, **spot), billed("i-2", 0), billed("i-3", 0, **spot), billed("i-3", 1))
    may = {each.spec.name: each.spec.interruptible for each in made.arrivals}
    assert may == {"i-1": True, "i-2": False, "i-3": False}


def test_the_size_is_that_of_the_price_details_or_of_the_catalogue() -> None:
    known = billed("i-1", 0, SkuPriceDetails="", x_UsageType="USE1-BoxUsage:c5.xlarge")
    azure = billed("vm", 0, SkuPriceDetails='{"ServiceType": "D4s", "CoreCount": "4", "MemorySize": "16"}')
    made = read(known, azure, billed("i-2", 0, SkuPriceDetails="", x_UsageType="SpotUsage:x9.huge"))
    sizes = {each.spec.name: (each.spec.resources.vcpus, each.spec.resources.memory_mib) for each in made.arrivals}
    assert sizes == {"i-1": (4.0, 8192), "vm": (4.0, 16384)}
    assert made.notes == ("1 row of machines of unknown size (x9.huge) left out, of cost 0.25",)


def test_other_charges_are_left_out_and_counted() -> None:
    made = read(
        billed("i-1", 0),
        billed("db", 0, ServiceCategory="Databases"),
        billed("vol", 0, ConsumedUnit="GB-Months", EffectiveCost="3"),
        billed("ri", 0, ChargeCategory="Purchase", EffectiveCost="0"),
        billed("", 0, ResourceId="", ChargeCategory="Tax", EffectiveCost="-1"),
        billed("ri", 0, CommitmentDiscountStatus="Unused", EffectiveCost="7"),
        billed("i-9", 0, RegionId="us-west-2"),
    )
    assert made.notes == (
        "4 rows of other charges than use of machines left out, of cost 2.25",
        "1 row of unused commitments left out, of cost 7.00",
        "machines of several regions (us-east-1, us-west-2) are simulated as if in one",
    )
    assert made.paid_usd == 0.5


def test_costs_in_another_currency_are_not_compared() -> None:
    made = read(billed("i-1", 0, BillingCurrency="EUR"))
    assert made.paid_usd is None
    assert made.notes == ("costs in the file are not in USD (EUR), so they are not compared",)


def test_a_part_of_the_machines_has_no_price_that_was_paid() -> None:
    made = read(billed("i-1", 0), billed("i-2", 0))
    assert (made.scaled(1.0).paid_usd, made.scaled(0.5).paid_usd) == (0.5, None)


def test_a_wrong_export_is_told_by_all_its_wrong_columns() -> None:
    rows = [billed("i-1", 0, ChargePeriodStart="yesterday", EffectiveCost="nan"), billed("i-1", 3, 2)]
    rows += [billed("i-1", 0, EffectiveCost="")] * 3
    text = text_of(rows).replace("ChargeCategory", "ChargeKind")
    with pytest.raises(BadInput) as error:
        read_focus(text.splitlines(), "may.csv", lambda *_: None)
    assert str(error.value) == (
        "may.csv: column ChargeCategory: missing; "
        "column ChargePeriodStart: line 2: 'yesterday' is not a time such as 2026-05-01T18:00:00Z; "
        "column EffectiveCost: line 2: 'nan' is not a number; line 4: has no value (2 more)"
    )
    with pytest.raises(BadInput, match="column ChargePeriodEnd: line 3: is not after ChargePeriodStart"):
        read(billed("i-1", 0), billed("i-1", 3, 2))


@pytest.mark.parametrize(
    "details", ["[" * 90_000, "{", "7", '{"InstanceType": "t", "CoreCount": 1e999, "MemorySize": -1}']
)
def test_price_details_that_cannot_be_read_leave_a_row_out(details: str) -> None:
    made = read(billed("i-1", 0), billed("i-2", 0, SkuPriceDetails=details))
    assert [each.spec.name for each in made.arrivals] == ["i-1"]
    assert len(made.notes) == 1


def test_an_export_without_a_machine_is_refused() -> None:
    with pytest.raises(NoJobs, match="there is no job to simulate; 1 row of other charges"):
        read(billed("db", 0, ServiceCategory="Databases"))


@pytest.mark.parametrize(
    ("header", "is_focus"),
    [
        (",".join(HEADER), True),
        ("ChargePeriodStart, EffectiveCost\n", True),
        ("at_s,run_s,vcpus", False),
        ("", False),
    ],
)
def test_an_export_is_told_by_its_columns(header: str, is_focus: bool) -> None:
    assert is_focus_header(header) is is_focus
