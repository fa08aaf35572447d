"""Ids of tasks as users write them, and the record of what became of the tasks of an array."""

import re
from collections.abc import Sequence
from itertools import chain, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcloud.core import arrays
from hcloud.core.arrays import (
    ENDINGS,
    TASKS_MOST,
    Ended,
    Interval,
    TaskList,
    TaskRecord,
    chosen_positions,
    ids_text,
    parse_ids,
    positions_in,
    split_reference,
)
from tests.strategies import id_ranges, task_lists


@given(id_ranges, st.none() | st.integers(1, 99))
def test_what_users_write_is_read_as_meant(ranges: tuple[arrays.IdRange, ...], at_most: int | None) -> None:
    text = ids_text(ranges) + (f"%{at_most}" if at_most is not None else "")
    read, limit = parse_ids(text)
    ids = [each for first, last, step in ranges for each in range(first, last + 1, step)]
    assert [each for first, last, step in read for each in range(first, last + 1, step)] == ids
    assert limit == at_most


@given(task_lists)
def test_each_position_has_one_id(tasks: TaskList) -> None:
    ids = [tasks.id_at(at) for at in range(len(tasks))]
    assert [tasks.position_of(each) for each in ids] == list(range(len(tasks)))
    assert (tasks.least, tasks.greatest, len(set(ids))) == (min(ids), max(ids), len(ids))
    assert tasks.position_of(max(ids) + 1) is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("5-2", "5-2 ends before it begins; write 2-5"),
        ("%0", "%0 must be the number of tasks that may run at once, at least 1, such as %50"),
        ("0-9%", "% must be the number of tasks"),
        ("0-9%x", "%x must be the number of tasks"),
        ("1,4,1", "names task 1 twice"),
        ("0-10:2,4-5", "names task 4 twice"),
        ("0-9:0", "0-9:0 has a step of 0"),
        (f"0-{TASKS_MOST}", "must have at most 100,000 tasks, not 100,001"),
        ("0-99999999999", "not '0-99999999999'"),
        ("2000000000", "ids must be at most 1000000000, not 2000000000"),
        ("", "must be a range such as 0-999"),
        ("1,,2", "must be a range such as 0-999"),
        ("-3", "must be a range such as 0-999"),
        ("a", "not 'a'"),
    ],
)
def test_what_names_no_tasks_is_refused_with_what_is_right(text: str, wanted: str) -> None:
    with pytest.raises(ValueError, match=re.escape(wanted)):
        parse_ids(text)


def test_a_matrix_changes_its_last_variable_first() -> None:
    values = {"lr": ("0.1", "0.2"), "seed": ("1", "2", "3")}
    tasks = TaskList(ranges=((0, 5, 1),), matrix=tuple(values.items()))
    wanted = [dict(zip(values, each, strict=True)) for each in product(*values.values())]
    assert [tasks.values(at) for at in range(6)] == wanted
    assert tasks.environment(4)["HCLOUD_TASK_ID"] == "4"


def test_tasks_are_named_in_brackets() -> None:
    tasks = TaskList(ranges=((10, 16, 3),))
    assert split_reference("job-7[3-9]") == ("job-7", "3-9")
    assert split_reference("job-7") == ("job-7", None)
    assert chosen_positions(tasks, "job-7", "16,10") == [0, 2]
    with pytest.raises(ValueError, match="job-7 has no task 11; its tasks are 10-16:3"):
        chosen_positions(tasks, "job-7", "10-11")


Steps = st.lists(st.tuples(st.sampled_from(["make", "return", *ENDINGS]), st.integers(0, 12)), max_size=30)
TOTAL = 12


def agrees(steps: list[tuple[str, int]]) -> bool:
    """Return whether a record agrees, after each step, with a plain table of tasks that does the same."""
    record, table = TaskRecord(), dict[int, str]()
    for step, at in steps:
        if step == "make":
            wanted = [each for each in range(TOTAL) if each not in table][:at]
            found = record.next_positions(at, TOTAL)
            if found != wanted:
                return False
            table |= dict.fromkeys(found, "made")
            record = record.with_made(found)
        elif step == "return" and table.get(at) == "made":
            record = record.with_returned([at])
            del table[at]
        elif (step == "cancelled" and at not in table and at < TOTAL) or table.get(at) == "made":
            record = record.with_ended(step, [at])  # type: ignore[arg-type]
            table[at] = step
        unmade = [each for each in range(TOTAL) if each not in table]
        if record.unmade(TOTAL) != len(unmade) or any(
            list(positions_in(getattr(record, each))) != sorted(n for n, state in table.items() if state == each)
            for each in ENDINGS
        ):
            return False
    return all(record.state_of(n) == (state if state in ENDINGS else None) for n, state in table.items())


@given(Steps)
def test_a_record_keeps_what_a_table_of_all_tasks_keeps(steps: list[tuple[str, int]]) -> None:
    assert agrees(steps)


def test_a_record_that_joins_distant_intervals_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeded fault: runs of positions are joined across a gap of one."""

    def joined(*several: Sequence[Interval]) -> tuple[Interval, ...]:
        found: list[Interval] = []
        for first, last in sorted(chain.from_iterable(several)):
            if found and first <= found[-1][1] + 2:
                found[-1] = (found[-1][0], max(found[-1][1], last))
            else:
                found.append((first, last))
        return tuple(found)

    steps = [("make", 5), ("succeeded", 0), ("succeeded", 2)]
    assert agrees(steps)
    monkeypatch.setattr(arrays, "merged", joined)
    assert not agrees(steps)


@pytest.mark.parametrize("state", ENDINGS)
def test_a_task_is_recorded_once(state: Ended) -> None:
    record = TaskRecord(made=((0, 4),), succeeded=((0, 2),))
    with pytest.raises(ValueError, match="recorded as ended twice"):
        record.with_ended(state, [2])
    with pytest.raises(ValueError, match="recorded as ended twice"):
        record.with_ended(state, [4, 4])


def test_ten_thousand_tasks_that_succeed_are_two_numbers() -> None:
    record = TaskRecord(made=((0, 9_999),))
    for start in range(0, 10_000, 100):
        record = record.with_ended("succeeded", range(start, start + 100))
    assert record.succeeded == ((0, 9_999),)
