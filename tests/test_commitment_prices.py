"""What use costs under commitments: they are used first, shared, and never make use dearer than at list price."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcloud.pricing import (
    Commitment,
    CommittedUse,
    HourBill,
    Reserved,
    SavingsPlan,
    Use,
    bill_hour,
    committed_usd_per_h,
    sustained_use_tiers,
    sustained_use_usd,
)

MONTH = 730 * 3600.0
Billing = Callable[[Sequence[Use], Sequence[Commitment]], HourBill]
KINDS = (("m.large", "m", 2.0, 0.1), ("m.xlarge", "m", 4.0, 0.2), ("c.large", "c", 2.0, 0.08))

uses = st.lists(
    st.builds(
        lambda kind, count: Use(
            instance_type=kind[0], family=kind[1], vcpus=kind[2], list_usd_per_h=kind[3], count=count
        ),
        st.sampled_from(KINDS),
        st.sampled_from([0.5, 1.0, 3.0]),
    ),
    max_size=5,
)
commitments: st.SearchStrategy[list[Commitment]] = st.lists(
    st.one_of(
        st.builds(
            Reserved,
            instance_type=st.sampled_from(["m.large", "c.large"]),
            count=st.sampled_from([1.0, 2.0]),
            usd_per_h=st.just(0.06),
        ),
        st.builds(
            CommittedUse,
            family=st.sampled_from(["m", "c"]),
            vcpus=st.sampled_from([2.0, 5.0]),
            usd_per_h=st.just(0.03),
        ),
        st.builds(
            SavingsPlan,
            usd_per_h=st.sampled_from([0.05, 0.3]),
            discount=st.sampled_from([0.2, 0.4]),
            families=st.sampled_from([(), ("m",)]),
        ),
    ),
    max_size=3,
)


def commitments_are_used_first(bill: Billing, used: Sequence[Use], held: Sequence[Commitment]) -> None:
    """What is committed is paid in any case; what it covers is not paid again; nothing is covered twice."""
    listed, found = sum(u.count * u.list_usd_per_h for u in used), bill(used, held)
    assert found.committed_usd == pytest.approx(sum(map(committed_usd_per_h, held)))
    assert found.covered_list_usd + found.beyond_usd == pytest.approx(listed)
    assert -1e-9 <= found.beyond_usd <= listed + 1e-9
    for each in held:
        assert found.beyond_usd <= bill(used, [other for other in held if other is not each]).beyond_usd + 1e-9
        fitting = [u for u in used if isinstance(each, Reserved) and u.instance_type == each.instance_type]
        if isinstance(each, Reserved) and fitting and sum(u.count for u in fitting) <= each.count:
            others = [u for u in used if u not in fitting]
            assert found.beyond_usd <= sum(u.count * u.list_usd_per_h for u in others) + 1e-9


def forgets_savings_plans(used: Sequence[Use], held: Sequence[Commitment]) -> HourBill:
    """Seeded fault: whoever has a savings plan pays twice."""
    found = bill_hour(used, [each for each in held if not isinstance(each, SavingsPlan)])
    plans = sum(committed_usd_per_h(each) for each in held if isinstance(each, SavingsPlan))
    return replace(found, committed_usd=found.committed_usd + plans, beyond_usd=found.beyond_usd + plans)


@given(uses, commitments)
def test_commitments_are_used_first(used: list[Use], held: list[Commitment]) -> None:
    commitments_are_used_first(bill_hour, used, held)


def test_that_property_catches_a_plan_that_is_paid_twice() -> None:
    @given(uses, commitments)
    def holds(used: list[Use], held: list[Commitment]) -> None:
        commitments_are_used_first(forgets_savings_plans, used, held)

    with pytest.raises(AssertionError):
        holds()


reservations = st.lists(
    st.builds(
        Reserved,
        instance_type=st.sampled_from(["m.large", "c.large"]),
        count=st.sampled_from([1.0, 2.0]),
        usd_per_h=st.just(0.06),
    ),
    max_size=2,
)


@given(uses, uses, commitments)
def test_it_does_not_matter_whose_use_is_named_first(mine: list[Use], yours: list[Use], held: list[Commitment]) -> None:
    assert bill_hour([*mine, *yours], held).usd == pytest.approx(bill_hour([*yours, *mine], held).usd)


@given(uses, uses, reservations, reservations)
def test_reservations_that_are_shared_never_cost_more_than_each_his_own(
    mine: list[Use], yours: list[Use], my: list[Commitment], your: list[Commitment]
) -> None:
    apart = bill_hour(mine, my).usd + bill_hour(yours, your).usd
    assert bill_hour([*mine, *yours], [*my, *your]).usd <= apart + 1e-9


def test_commitments_cover_as_the_clouds_apply_them() -> None:
    large = Use(instance_type="m.large", family="m", vcpus=2.0, list_usd_per_h=0.1, count=3.0)
    assert bill_hour([large], [Reserved(instance_type="m.large", count=2, usd_per_h=0.06)]).usd == pytest.approx(0.22)
    assert bill_hour([large], [CommittedUse(family="m", vcpus=4, usd_per_h=0.03)]).usd == pytest.approx(0.22)
    assert bill_hour([large], [SavingsPlan(usd_per_h=0.12, discount=0.4)]).usd == pytest.approx(0.22)
    assert bill_hour([large], [SavingsPlan(usd_per_h=0.12, discount=0.4, families=("c",))]).usd == pytest.approx(0.42)


def test_sustained_use_costs_seventy_percent_of_a_whole_month() -> None:
    assert sustained_use_usd(1.0, MONTH, MONTH) == pytest.approx(0.7 * 730)
    assert sustained_use_usd(1.0, MONTH / 4, MONTH) == pytest.approx(730 / 4)
    assert sustained_use_usd(1.0, 2.5 * MONTH, MONTH) == pytest.approx(730 * (2 * 0.7 + 0.45))
    with pytest.raises(ValueError, match="month must be positive"):
        sustained_use_usd(1.0, 10.0, 0.0)


@given(st.floats(0, 3 * MONTH), st.floats(0, MONTH))
def test_sustained_use_never_costs_more_than_list_and_more_use_never_less(used_s: float, more_s: float) -> None:
    cost, list_usd = sustained_use_usd(1.0, used_s, MONTH), used_s / 3600
    assert 0.7 * list_usd - 1e-6 <= cost <= list_usd + 1e-6
    assert sustained_use_usd(1.0, used_s + more_s, MONTH) >= cost - 1e-6


@pytest.mark.parametrize(("series", "part"), [("n1", 0.7), ("n2", 0.8), ("custom", 0.7), ("e2", 1.0), ("t2d", 1.0)])
def test_sustained_use_depends_on_the_series(series: str, part: float) -> None:
    assert sustained_use_usd(1.0, MONTH, MONTH, sustained_use_tiers(series)) == pytest.approx(part * 730, rel=1e-3)
