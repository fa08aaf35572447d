"""Names in ``after``: resolved within a submission, or refused with one sentence."""

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcloud.core.dependencies import Dependency, DependencyError, resolve_names, wait_words


def test_names_are_positions_and_ids_stay() -> None:
    resolved = resolve_names(["a", "b"], [{"b": "failed", "job-7": "finished"}, {}])
    assert resolved == [{1: "failed", "job-7": "finished"}, {}]


def test_a_job_named_like_an_id_is_meant_before_an_earlier_job() -> None:
    assert resolve_names(["job-7", "b"], [{}, {"job-7": "succeeded"}]) == [{}, {0: "succeeded"}]


@pytest.mark.parametrize(
    ("names", "after", "position", "wanted"),
    [
        (["a"], [{"x": "failed"}], 0, "no id such as job-7; no other job is submitted with it"),
        (["a", "b"], [{}, {"x": "failed"}], 1, "is no job of this submission and no id such as job-7; the others of "
                                               "this submission are a"),
        (["a", "a", "b"], [{}, {}, {"a": "failed"}], 2, "2 jobs are named a; give each a name of its own"),
        (["a"], [{"a": "failed"}], 0, "is a cycle: a -> a; none of these jobs could ever start"),
        (["a", "b", "c", "d"], [{"d": "failed"}, {"a": "failed"}, {"b": "failed"}, {"b": "failed"}], 0,
         "is a cycle: a -> d -> b -> a; none"),
        (["a", "job-01"], [{"job-02": "failed"}, {}], 0, "no id such as job-7"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_one_sentence(
    names: list[str],
    after: list[dict],
    position: int,
    wanted: str,  # type: ignore[type-arg]
) -> None:
    with pytest.raises(DependencyError) as refused:
        resolve_names(names, after)
    assert wanted in str(refused.value)
    assert refused.value.position == position and refused.value.key in after[position]


@given(
    st.integers(1, 8).flatmap(
        lambda count: st.lists(st.sets(st.integers(0, count - 1)), min_size=count, max_size=count)
    )
)
def test_exactly_the_cycles_are_refused(waits: list[set[int]]) -> None:
    reached = [set(each) for each in waits]
    for _ in waits:
        reached = [each | {far for near in each for far in reached[near]} for each in reached]
    is_cyclic = any(at in each for at, each in enumerate(reached))
    with pytest.raises(DependencyError, match="is a cycle: ") if is_cyclic else nullcontext():
        resolve_names([f"n{at}" for at in range(len(waits))], [{f"n{at}": "failed" for at in each} for each in waits])


def test_a_long_chain_is_resolved() -> None:
    names = [f"n{at}" for at in range(5000)]
    resolve_names(names, [{}, *({each: "succeeded"} for each in names[:-1])])


def test_waiting_is_said_in_one_sentence() -> None:
    three = [Dependency(job_id=f"job-{at}", ending="failed", name="x") for at in (1, 2, 3)]
    assert wait_words(three) == "waits for job-1 x to fail and for 2 more jobs"
    assert wait_words(three[:2]) == "waits for job-1 x to fail and for 1 more job"
