"""Capacity of commitments by their end: usage fills those that end last, so what is free ends first."""

from hypothesis import given
from hypothesis import strategies as st

from hcloud.core.commitments import (
    CommitmentKind,
    capacity_by_end,
    covered_until,
    joined_by_end,
    last_end_first,
    next_end,
    next_kind,
    parts_by_kind,
)
from hcloud.core.model import CommittedCapacity


def part(ends_at: float | None, free: int = 0, used: int = 0) -> CommittedCapacity:
    return CommittedCapacity(ends_at=ends_at, free=free, used=used)


def test_usage_fills_commitments_that_end_last() -> None:
    totals = [(None, 1), (9.0, 3), (5.0, 5)]
    assert capacity_by_end(totals, free=3) == (part(None, used=1), part(9.0, free=1, used=1), part(5.0, free=2))
    assert capacity_by_end([(9.0, 0), (5.0, 1)], free=0) == (part(5.0, used=1),)  # none covers one alone before
    assert capacity_by_end([], free=0) == ()


def test_the_next_launch_uses_the_free_commitment_that_ends_last() -> None:
    assert next_end([part(None, used=1), part(9.0, free=1), part(5.0, free=1)]) == 9.0
    assert next_end([part(9.0, used=1), part(5.0, used=1)]) == 5.0
    assert next_end([part(9.0, used=1), part(7.0, used=1), part(5.0, used=1)]) == 5.0
    assert next_end([]) is None


def test_what_nobody_uses_is_free() -> None:
    assert capacity_by_end([(9.0, 2)], free=2) == (part(9.0, free=2),)


def test_ends_are_sorted_from_the_last_to_the_first() -> None:
    assert sorted([5.0, None, 9.0, 7.0], key=last_end_first) == [None, 9.0, 7.0, 5.0]


def test_instances_are_covered_by_the_used_commitments_that_end_first() -> None:
    committed = [part(None, used=2), part(9.0, used=1, free=1), part(5.0, free=3)]
    assert covered_until(committed, 2) == [9.0, None]  # others may use the rest
    assert covered_until(committed, 9) == [9.0, None, None]


def test_reservations_with_one_end_count_together() -> None:
    assert joined_by_end([part(5.0, free=1), part(None, used=2), part(5.0, used=3)]) == (
        part(None, used=2),
        part(5.0, free=1, used=3),
    )


def test_the_next_instance_uses_the_first_kind_with_free_capacity() -> None:
    used_up = CommitmentKind(name="instances", usd_per_h=0.06, parts=(part(9.0, used=1),))
    plans = CommitmentKind(name="plans", usd_per_h=0.08, parts=(part(None, used=1), part(5.0, free=1)))
    assert next_kind([used_up, plans]) is plans
    assert (plans.free, plans.ends_at) == (1, 5.0)
    assert next_kind([used_up]) is used_up  # known, though none is left
    assert next_kind([]) is None


def test_each_part_has_name_and_price_of_its_kind() -> None:
    kinds = [
        CommitmentKind(name="instances", usd_per_h=0.06, parts=(part(9.0, used=1),)),
        CommitmentKind(name="plans", usd_per_h=0.08, parts=(part(5.0, free=2),)),
    ]
    assert parts_by_kind(kinds) == (
        CommittedCapacity(ends_at=9.0, used=1, kind="instances", usd_per_h=0.06),
        CommittedCapacity(ends_at=5.0, free=2, kind="plans", usd_per_h=0.08),
    )


COUNTS = st.lists(st.integers(0, 4), max_size=4)


@given(COUNTS, st.integers(0, 20))
def test_at_an_end_just_those_become_on_demand_that_nothing_else_has_capacity_for(counts: list[int], free: int) -> None:
    ends = [float(100 - at) for at in range(len(counts))]
    totals = [(end, sum(counts[: at + 1])) for at, end in enumerate(ends)]
    total = sum(counts)
    used = max(0, total - free)
    covered = covered_until(capacity_by_end(totals, free), used)
    assert len(covered) == used
    for end in ends:
        left = sum(count for at, count in zip(ends, counts, strict=True) if at > end)
        assert sum(until is not None and until > end for until in covered) == min(used, left)
