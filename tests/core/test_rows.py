"""What changed between two states of rows is the same whether it was remembered or is found by looking at all."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hcloud.core import rows as rows_module
from hcloud.core.rows import FilteredRows, RowsByNumber, RowSet, by_number, row_changes


@dataclass(frozen=True, slots=True)
class Thing:
    """A row; ``even``: what some choose by."""

    id: str
    even: bool


Steps = st.lists(
    st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["write", "end"]), st.booleans()), max_size=4), max_size=8
)


def states_of(living: RowSet[Thing], steps: list[list[tuple[int, str, bool]]]) -> list[RowsByNumber[Thing]]:
    """Return the states after each step: rows are written, new ones get the next number, some end."""
    numbers, states = 0, [living.now()]
    for step in steps:
        for which, what, even in step:
            there = [*living.rows, numbers + 1]
            number = there[which % len(there)]
            numbers = max(numbers, number)
            living.take({number: Thing(f"thing-{number}", even) if what == "write" else None})
        states.append(living.now())
    return states


def told_as_found(living: RowSet[Thing], steps: list[list[tuple[int, str, bool]]]) -> None:
    """Raise AssertionError where what is remembered between any two states is not what looking at all finds."""
    for before, now in combinations(states_of(living, steps), 2):
        found = row_changes(tuple(before), tuple(now))
        assert sorted(map(repr, row_changes(before, now))) == sorted(map(repr, found))


@settings(max_examples=60)
@given(Steps)
def test_changes_that_are_remembered_are_those_that_are_found(steps: list[list[tuple[int, str, bool]]]) -> None:
    told_as_found(RowSet(), steps)


class Forgetful(RowSet[Thing]):
    """It does not remember what ended."""

    def take(self, written: object) -> None:
        """Drop what ended, and nothing else of it."""
        assert isinstance(written, dict)
        for number in [number for number, row in written.items() if row is None]:
            self.rows.pop(number, None)
        super().take({number: row for number, row in written.items() if row is not None})


def test_rows_that_forget_an_end_are_found_out() -> None:
    with pytest.raises(AssertionError):
        told_as_found(Forgetful(), [[(0, "write", True), (1, "write", True)], [(0, "end", True), (1, "write", False)]])


@settings(max_examples=60)
@given(Steps, st.booleans())
def test_chosen_rows_are_those_that_are_wanted_in_their_order(
    steps: list[list[tuple[int, str, bool]]], known: bool
) -> None:
    chosen = FilteredRows[Thing](lambda thing: thing.even)
    for state in states_of(RowSet(), steps):
        assert list(chosen.of(state if known else tuple(state))) == [thing for thing in state if thing.even]


def test_changes_are_found_anew_once_too_many_were_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "KEPT", 2)
    first, *_, last = states_of(RowSet(), [[(0, "write", True)], [(0, "write", False)], [(1, "write", True)]])
    assert last.since(first) is None
    assert row_changes(first, last) == [(None, last[0]), (None, last[1])]


def test_rows_are_the_same_object_while_none_is_written() -> None:
    living = RowSet[Thing]()
    living.take({1: Thing("thing-1", True)})
    assert living.now() is living.now()
    assert by_number(living.now()) is living.now()


def test_rows_of_unknown_order_are_put_in_order_of_their_numbers() -> None:
    ten, nine = Thing("thing-10", True), Thing("thing-9", True)
    assert by_number((ten, nine)) == [nine, ten]
