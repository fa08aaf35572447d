"""The arithmetic of money."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcloud.core import pricing


def test_machine_is_billed_at_least_its_minimum() -> None:
    assert pricing.billed_s(10.0, 60.0) == 60.0
    assert pricing.billed_s(61.0, 60.0) == 61.0
    assert pricing.billed_s(-5.0, 0.0) == 0.0
    assert pricing.billed_until(100.0, 110.0, 60.0) == 160.0
    assert pricing.billed_until(100.0, 200.0, 60.0) == 200.0


def test_cost_is_price_times_hours() -> None:
    assert pricing.cost_usd(0.5, 7200.0) == 1.0


def test_reservation_spreads_its_upfront_payment_over_the_term() -> None:
    assert pricing.amortised_usd_per_h(upfront_usd=100.0, usd_per_h=0.5, term_s=1000 * 3600.0) == pytest.approx(0.6)
    with pytest.raises(ValueError, match="term of more than 0 s"):
        pricing.amortised_usd_per_h(upfront_usd=1.0, usd_per_h=0.0, term_s=0.0)


def test_dominant_share_is_the_larger_fraction() -> None:
    assert pricing.dominant_share(1.0, 512, 4.0, 1024) == 0.5
    assert pricing.dominant_share(3.0, 512, 4.0, 1024) == 0.75
    assert pricing.dominant_share(9.0, 0, 4.0, 1024) == 1.0
    assert pricing.dominant_share(1.0, 1, 0.0, 0.0) == 0.0


def test_overcommitted_shares_are_scaled_down() -> None:
    assert pricing.split([0.25, 0.5]) == ((0.25, 0.5), 0.25)
    assert pricing.split([0.9, 0.9]) == ((0.5, 0.5), 0.0)
    assert pricing.split([]) == ((), 1.0)


@given(st.lists(st.floats(0.0, 1.0), max_size=20))
def test_split_shares_out_exactly_the_whole(shares: list[float]) -> None:
    fractions, rest = pricing.split(shares)
    assert sum(fractions) + rest == pytest.approx(1.0)
    assert rest >= 0.0
    assert all(fraction <= share for fraction, share in zip(fractions, shares, strict=True))
