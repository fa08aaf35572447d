"""The shipped snapshot: what a price is, what is none, and what the table itself contradicts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcloud.catalog import PricePlan, shipped_catalogue
from hcloud.catalog.families import corrected_prices
from hcloud.catalog.gce_sizes import shapes, whole_price
from hcloud.catalog.prices import PriceCatalogue, Quote, is_price
from hcloud.catalog.snapshot import snapshot_of

FACTORS = {"m9.large": 4.0, "m9.xlarge": 8.0, "m9.2xlarge": 16.0, "m9.4xlarge": 32.0}


def table(*usd: float) -> dict[str, dict[str, float]]:
    return {kind: {"eu-central-1": price} for kind, price in zip(FACTORS, usd, strict=False)}


def cells(table: dict[str, dict[str, float]]) -> dict[str, tuple[float, bool]]:
    return {kind: (cell.usd_per_h, cell.corrected) for kind, _, cell in corrected_prices(table, FACTORS)}


def test_the_snapshot_knows_both_clouds_and_its_date() -> None:
    known = shipped_catalogue()
    quote = known.price("ec2", "us-east-1", "m5.large")
    assert quote is not None
    assert quote.usd_per_h == 0.096
    assert quote.source.startswith("apache-libcloud")
    assert known.oldest_at() == quote.at > 1_700_000_000
    assert known.sizes["ec2", "m5.large"].memory_mib == 8192
    assert known.sizes["gce", "n1-highmem-2"].memory_mib == 13312


def test_zero_in_a_price_table_is_never_a_price() -> None:
    assert all(is_price(quote.usd_per_h) for quote in shipped_catalogue().quotes.values())
    with pytest.raises(ValueError, match="more than 0"):
        Quote(0.0, 1.0, "anybody")


def test_a_machine_of_google_costs_its_vcpus_and_its_memory() -> None:
    part = {"on_demand": {"us-central1": {"price": 0.03}}}
    memory = {"on_demand": {"us-central1": {"price": 0.004}}}
    document = {"updated": 1.0, "compute": {"ec2_linux": {}, "gce_instances": {"n2": {"cpu": part, "ram": memory}}}}
    known = snapshot_of(document, "a test")
    quote = known.price("gce", "us-central1", "n2-standard-4")
    assert quote is not None
    assert quote.usd_per_h == pytest.approx(4 * 0.03 + 16 * 0.004)
    assert (quote.at, quote.source) == (1.0, "a test")
    assert known.price("gce", "us-central1", "n2-standard-4", PricePlan.SPOT) is None


def test_a_family_without_the_price_of_its_memory_has_no_price() -> None:
    assert whole_price(shapes()["n2-standard-2"], 0.03, None) is None
    assert whole_price(shapes()["g1-small"], 0.03, None) == 0.03


def test_a_hole_in_the_table_is_filled_from_the_line_its_family_lies_on() -> None:
    assert cells(table(0.1, 0.0, 0.4)) == {
        "m9.large": (0.1, False),
        "m9.xlarge": (0.2, True),
        "m9.2xlarge": (0.4, False),
    }


def test_a_dedicated_instance_among_shared_ones_is_noticed() -> None:
    assert cells(table(0.1, 0.2, 0.44)) == {
        "m9.large": (0.1, False),
        "m9.xlarge": (0.2, False),
        "m9.2xlarge": (0.4, True),
    }


def test_sizes_that_are_not_sold_in_proportion_stay_as_they_are() -> None:
    assert cells(table(0.1, 0.2, 0.9))["m9.2xlarge"] == (0.9, False)


def test_one_size_alone_proves_nothing() -> None:
    assert cells(table(0.1, 0.22)) == {"m9.large": (0.1, False), "m9.xlarge": (0.22, False)}
    assert cells(table(0.1, 0.0)) == {"m9.large": (0.1, False)}


def test_a_dedicated_host_is_no_machine() -> None:
    assert list(corrected_prices({"m9": {"eu-central-1": 5.0}}, FACTORS)) == []


def judge(mend: object, shared: float, dedicated: list[bool], holes: list[bool]) -> None:
    """With two shared sizes known, every size must come out at its shared price."""
    rows = {
        kind: {"r": 0.0 if hole else shared * factor * (1.1 if dear else 1.0)}
        for (kind, factor), dear, hole in zip(FACTORS.items(), dedicated, holes, strict=True)
    }
    for kind, _, cell in mend(rows, FACTORS):  # type: ignore[operator]
        assert cell.usd_per_h == pytest.approx(shared * FACTORS[kind], rel=0.005, abs=2e-6)


flags = st.lists(st.booleans(), min_size=2, max_size=2)


@given(st.floats(0.001, 1.0), flags, flags)
def test_property_two_shared_sizes_are_enough_to_mend_a_family(
    shared: float, dear: list[bool], holes: list[bool]
) -> None:
    judge(corrected_prices, shared, [False, False, *dear], [False, False, *holes])


def test_the_property_notices_a_table_that_is_taken_as_it_is() -> None:
    def as_it_is(rows: dict[str, dict[str, float]], factors: object) -> object:
        from hcloud.catalog.families import FamilyPrice

        return [(kind, "r", FamilyPrice(regions["r"], False)) for kind, regions in rows.items()]

    with pytest.raises(AssertionError):
        judge(as_it_is, 0.1, [False, False, True, False], [False] * 4)


def test_a_catalogue_without_prices_has_no_age() -> None:
    assert PriceCatalogue().oldest_at() is None
