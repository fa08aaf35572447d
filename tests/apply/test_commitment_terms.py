"""Until when a reserved machine is covered, as the latest offers have it."""

from dataclasses import replace

import pytest

from hcloud.apply.machines import _latest_terms
from hcloud.core.model import CommittedCapacity, Instance, Market, Offer
from tests.planner.scenes import NOW, machine, offer

SOON_AT, LATER_AT = NOW + 100.0, NOW + 9000.0
OFFER = offer("m", usd_per_h=0.06, market=Market.RESERVED, ends_at=SOON_AT, price_after_usd_per_h=0.1)


def reserved(number: int, ends_at: float | None = SOON_AT) -> Instance:
    return replace(machine(number), offer=replace(OFFER, ends_at=ends_at))


def ends(instances: list[Instance], latest: Offer, now: float = NOW) -> list[float | None]:
    terms = _latest_terms(instances, {latest.key: latest}, now)
    return [terms[each.id].ends_at for each in instances]


def committed(*parts: tuple[float | None, int, int]) -> Offer:
    found = tuple(CommittedCapacity(ends_at=at, free=free, used=used) for at, free, used in parts)
    return replace(OFFER, committed=found)


def test_a_machine_moves_to_a_later_end_only_where_there_is_capacity() -> None:
    two = [reserved(1), reserved(2)]
    assert ends(two, committed((LATER_AT, 0, 1), (SOON_AT, 0, 1))) == [SOON_AT, LATER_AT]
    assert ends(two, committed((LATER_AT, 0, 2), (SOON_AT, 2, 0))) == [LATER_AT, LATER_AT]
    assert ends(two, committed((LATER_AT, 0, 1))) == [SOON_AT, LATER_AT]  # no capacity is left for the first


def test_a_machine_that_others_push_out_is_covered_for_less_long() -> None:
    assert ends([reserved(1, LATER_AT)], committed((LATER_AT, 0, 2), (SOON_AT, 1, 1))) == [SOON_AT]


def test_a_machine_does_not_move_to_a_commitment_that_costs_more() -> None:
    dearer = replace(committed((LATER_AT, 0, 1)), price_usd_per_h=0.08)
    assert ends([reserved(1)], dearer) == [SOON_AT]


def kinds(*parts: tuple[str, float | None, int, int, float]) -> Offer:
    """An offer with commitments of several kinds, each with its name, end, free and used capacity, and price."""
    found = tuple(
        CommittedCapacity(kind=kind, ends_at=at, free=free, used=used, usd_per_h=usd)
        for kind, at, free, used, usd in parts
    )
    return replace(OFFER, committed=found, commitment="plans", price_usd_per_h=0.08)


def of_kind(number: int, kind: str, ends_at: float | None) -> Instance:
    return replace(machine(number), offer=replace(OFFER, commitment=kind, ends_at=ends_at))


def test_machines_of_each_kind_of_commitment_are_covered_until_the_end_of_their_own() -> None:
    three = [of_kind(1, "instances", SOON_AT), of_kind(2, "plans", LATER_AT), of_kind(3, "plans", LATER_AT)]
    latest = kinds(("instances", SOON_AT, 0, 1, 0.06), ("plans", LATER_AT, 0, 2, 0.06))
    assert ends(three, latest) == [SOON_AT, LATER_AT, LATER_AT]


def test_a_machine_takes_a_later_end_at_the_price_of_its_own_kind() -> None:
    one = [of_kind(1, "instances", SOON_AT)]  # plans, which are sold now, cost more
    assert ends(one, kinds(("instances", LATER_AT, 0, 1, 0.06), ("plans", LATER_AT, 1, 0, 0.08))) == [LATER_AT]
    assert ends(one, kinds(("instances", LATER_AT, 0, 1, 0.07), ("plans", LATER_AT, 1, 0, 0.08))) == [SOON_AT]


def test_a_machine_whose_kind_is_gone_or_unknown_keeps_its_end() -> None:
    latest = kinds(("plans", LATER_AT, 0, 1, 0.06))
    assert ends([of_kind(1, "instances", SOON_AT)], latest) == [SOON_AT]
    several = kinds(("plans", LATER_AT, 0, 1, 0.06), ("capacity", LATER_AT, 0, 1, 0.06))
    assert ends([of_kind(1, "", SOON_AT)], several) == [SOON_AT]


def test_a_machine_launched_before_kinds_were_recorded_is_of_the_only_kind() -> None:
    assert ends([of_kind(1, "", SOON_AT)], kinds(("plans", LATER_AT, 0, 1, 0.06))) == [LATER_AT]


@pytest.mark.parametrize(("now", "end"), [(SOON_AT - 1.0, LATER_AT), (SOON_AT, SOON_AT)])
def test_where_only_the_first_end_is_known_an_end_that_has_passed_is_not_moved(now: float, end: float) -> None:
    assert ends([reserved(1)], replace(OFFER, ends_at=LATER_AT), now) == [end]


def test_an_unchanged_offer_is_the_same_object() -> None:
    one = reserved(1)
    assert _latest_terms([one], {OFFER.key: committed((SOON_AT, 0, 1))}, NOW)[one.id] is one.offer
