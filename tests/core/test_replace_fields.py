"""replace_fields returns what dataclasses.replace returns."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, replace

import pytest

from hcloud.core.model import JobState
from hcloud.core.rows import replace_fields
from tests.planner.scenes import job


def test_a_changed_row_is_the_replaced_one_and_frozen_as_well() -> None:
    before = job(1)
    after = replace_fields(before, state=JobState.FAILED, revision=7)
    assert after == replace(before, state=JobState.FAILED, revision=7) != before
    assert type(after) is type(before)
    with pytest.raises(FrozenInstanceError):
        after.revision = 8  # type: ignore[misc]


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="Job has no field 'stat'"):
        replace_fields(job(1), stat=1)


@dataclass(frozen=True, slots=True)
class Derived:
    half: float
    whole: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "whole", 2 * self.half)


def test_a_class_with_post_init_is_refused() -> None:
    with pytest.raises(TypeError, match="__post_init__"):
        replace_fields(Derived(1.0), half=2.0)
