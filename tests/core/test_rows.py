"""The journal of a RowJournal gives the same changes as a comparison of all rows."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hcloud.core import rows as rows_module
from hcloud.core.rows import FilteredRows, RowJournal, RowOverlay, RowsByNumber, by_number, row_changes


@dataclass(frozen=True, slots=True)
class Thing:
    """A row; filters select by ``even``."""

    id: str
    even: bool


Steps = st.lists(
    st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["write", "end"]), st.booleans()), max_size=4), max_size=8
)


def states_of(living: RowJournal[Thing], steps: list[list[tuple[int, str, bool]]]) -> list[RowsByNumber[Thing]]:
    """Return the snapshots after each step: rows are written, new ones get the next number, some are removed."""
    numbers, states = 0, [living.snapshot()]
    for step in steps:
        for which, what, even in step:
            there = [*living.rows, numbers + 1]
            number = there[which % len(there)]
            numbers = max(numbers, number)
            living.write({number: Thing(f"thing-{number}", even) if what == "write" else None})
        states.append(living.snapshot())
    return states


def check_journal(living: RowJournal[Thing], steps: list[list[tuple[int, str, bool]]]) -> None:
    """Raise AssertionError if the recorded changes between two snapshots differ from a comparison of all rows."""
    for before, now in combinations(states_of(living, steps), 2):
        compared = row_changes(tuple(before), tuple(now))
        assert sorted(map(repr, row_changes(before, now))) == sorted(map(repr, compared))


@settings(max_examples=60)
@given(Steps)
def test_recorded_changes_equal_a_comparison_of_all_rows(steps: list[list[tuple[int, str, bool]]]) -> None:
    check_journal(RowJournal(), steps)


class Forgetful(RowJournal[Thing]):
    """Does not record removals."""

    def write(self, written: object) -> None:
        """Remove rows without a journal entry."""
        assert isinstance(written, dict)
        for number in [number for number, row in written.items() if row is None]:
            self.rows.pop(number, None)
        super().write({number: row for number, row in written.items() if row is not None})


def test_a_missing_journal_entry_is_detected() -> None:
    with pytest.raises(AssertionError):
        check_journal(Forgetful(), [[(0, "write", True), (1, "write", True)], [(0, "end", True), (1, "write", False)]])


@settings(max_examples=60)
@given(Steps, st.booleans())
def test_filtered_rows_are_complete_and_in_order(steps: list[list[tuple[int, str, bool]]], known: bool) -> None:
    chosen = FilteredRows[Thing](lambda thing: thing.even)
    for state in states_of(RowJournal(), steps):
        assert list(chosen.of(state if known else tuple(state))) == [thing for thing in state if thing.even]


@settings(max_examples=60)
@given(Steps)
def test_overlay_replaces_rows_and_keeps_all_others(steps: list[list[tuple[int, str, bool]]]) -> None:
    overlay, seen = RowOverlay[Thing](), list[RowsByNumber[Thing]]()
    for at, state in enumerate(states_of(RowJournal(), steps)):
        replaced = {int(row.id[6:]): Thing(f"{row.id}", even=at % 3 == 0) for row in state if row.even}
        made = overlay.of(state, replaced)
        assert list(made) == [replaced.get(int(row.id[6:]), row) for row in state]
        seen.append(made)
    for before, now in combinations(seen, 2):
        assert {now_row.id for _, now_row in row_changes(before, now) if now_row} == {
            row.id for row in now if not any(row is other for other in before)
        }


def test_overlay_returns_the_same_objects_while_nothing_changes() -> None:
    rows, overlay = RowJournal[Thing](), RowOverlay[Thing]()
    rows.write({1: Thing("thing-1", even=True), 2: Thing("thing-2", even=False)})
    first = overlay.of(rows.snapshot(), {1: Thing("thing-1", even=False)})
    assert overlay.of(rows.snapshot(), {1: Thing("thing-1", even=False)}) is first


def test_all_rows_are_compared_once_the_journal_was_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "JOURNAL_MAX", 2)
    first, *_, last = states_of(RowJournal(), [[(0, "write", True)], [(0, "write", False)], [(1, "write", True)]])
    assert last.since(first) is None
    assert row_changes(first, last) == [(None, last[0]), (None, last[1])]


def test_snapshots_are_the_same_object_until_a_write() -> None:
    living = RowJournal[Thing]()
    living.write({1: Thing("thing-1", True)})
    assert living.snapshot() is living.snapshot()
    assert by_number(living.snapshot()) is living.snapshot()


def test_rows_of_unknown_order_are_sorted_by_number() -> None:
    ten, nine = Thing("thing-10", True), Thing("thing-9", True)
    assert by_number((ten, nine)) == [nine, ten]
