"""The plausibility limits: which new prices are accepted."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcloud.catalog import Key, Limits, Merge, PriceCatalogue, PricePlan, PriceReading, Quote, compare, merge, overlay

SOURCE = "a list"
PLACE = ("ec2", "eu-central-1", PricePlan.ON_DEMAND)


def key(kind: str, plan: PricePlan = PricePlan.ON_DEMAND) -> Key:
    return Key("ec2", "eu-central-1", kind, plan)


def known(**usd: float) -> PriceCatalogue:
    return PriceCatalogue(quotes={key(kind): Quote(price, 100.0, SOURCE) for kind, price in usd.items()})


def reading_of(*plans: PricePlan, **usd: float) -> PriceReading:
    plan = plans[0] if plans else PricePlan.ON_DEMAND
    made = PriceReading(source=SOURCE, at=200.0, whole={PLACE})
    for kind, price in usd.items():
        made.add(key(kind, plan), price)
    return made


def test_new_and_changed_prices_are_taken_with_their_date() -> None:
    merged = merge(known(a=0.1, b=0.2), reading_of(a=0.1, b=0.25, c=1.0), Limits())
    assert [(each.key.type, each.verdict) for each in merged.changes] == [("b", "changed"), ("c", "new")]
    assert merged.taken[key("a")] == Quote(0.1, 200.0, SOURCE)
    assert merged.confirmed == 1


@pytest.mark.parametrize("price", [0.031, 0.33])
def test_a_price_that_moved_too_far_is_held_back_until_accepted(price: float) -> None:
    merged = merge(known(a=0.1), reading_of(a=price), Limits(price_factor=3))
    assert [each.verdict for each in merged.changes] == ["held"]
    assert key("a") not in merged.taken
    assert (
        merge(known(a=0.1), reading_of(a=price), Limits(price_factor=3), accept=True).taken[key("a")].usd_per_h == price
    )


def test_spot_prices_may_move_further() -> None:
    before = PriceCatalogue(quotes={key("a", PricePlan.SPOT): Quote(0.1, 100.0, SOURCE)})
    assert merge(before, reading_of(PricePlan.SPOT, a=0.9), Limits()).taken
    assert not merge(before, reading_of(PricePlan.SPOT, a=1.1), Limits()).taken


def test_a_price_that_is_no_longer_listed_keeps_its_date() -> None:
    merged = merge(known(a=0.1, b=0.2), reading_of(a=0.1), Limits())
    assert merged.silent == 1
    assert key("b") not in merged.taken


def test_a_list_that_lost_most_of_its_prices_is_taken_for_broken() -> None:
    many = {f"m{number}": 0.1 for number in range(20)}
    merged = merge(known(**many), reading_of(m0=0.1, m1=0.1), Limits())
    assert not merged.taken
    assert merged.refused == (
        "a list: ec2 eu-central-1 has only 2 of its earlier 20 on_demand prices; none of them was accepted",
    )
    assert merge(known(**many), reading_of(m0=0.1), Limits(), accept=True).taken


def test_prices_of_another_source_do_not_make_a_list_look_broken() -> None:
    many = known(**{f"m{number}": 0.1 for number in range(20)})
    shipped = replace(many, quotes={at: replace(quote, source="shipped") for at, quote in many.quotes.items()})
    assert merge(shipped, reading_of(m0=0.1), Limits()).taken


def test_an_edition_that_is_still_current_confirms_its_prices() -> None:
    reading = PriceReading(source=SOURCE, at=200.0, unchanged={PLACE})
    shipped = Quote(0.3, 50.0, "shipped")
    before = overlay(known(a=0.1), PriceCatalogue(quotes={key("b"): shipped}))
    assert merge(before, reading, Limits()).taken == {key("a"): Quote(0.1, 200.0, SOURCE)}


def test_the_newer_of_two_prices_is_in_force() -> None:
    old, new = Quote(0.1, 100.0, "x"), Quote(0.2, 200.0, "y")
    for below, above in ((old, new), (new, old)):
        found = overlay(PriceCatalogue(quotes={key("a"): below}), PriceCatalogue(quotes={key("a"): above}))
        assert found.quotes[key("a")] == new


def test_comparison_tells_what_is_gone() -> None:
    changes, gone = compare(known(a=0.1, b=0.2), known(b=2.0, c=0.1))
    assert [(each.key.type, each.verdict, each.factor) for each in changes] == [
        ("b", "changed", 10.0),
        ("c", "new", None),
    ]
    assert gone == (key("a"),)


PRICES = st.dictionaries(st.sampled_from("abcdef"), st.floats(0.001, 100), min_size=1)


def judge(merged: Merge, before: PriceCatalogue, limits: Limits) -> None:
    """No price accepted without ``accept`` may have changed by more than the limit."""
    for at, quote in merged.taken.items():
        if at in before.quotes:
            factor = quote.usd_per_h / before.quotes[at].usd_per_h
            assert 1 / limits.price_factor - 1e-9 <= factor <= limits.price_factor + 1e-9
    held = {change.key for change in merged.changes if change.verdict == "held"}
    assert not held & set(merged.taken)


@given(PRICES, PRICES, st.floats(1.1, 10))
def test_property_no_price_moves_further_than_the_limit(
    before: dict[str, float], after: dict[str, float], factor: float
) -> None:
    limits = Limits(price_factor=factor)
    judge(merge(known(**before), reading_of(**after), limits), known(**before), limits)


def test_the_property_notices_a_limit_that_is_not_applied() -> None:
    merged = merge(known(a=0.1), reading_of(a=50.0), Limits(), accept=True)
    with pytest.raises(AssertionError):
        judge(merged, known(a=0.1), Limits())
