"""A row with other values is what dataclasses.replace makes of it."""

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


def test_a_name_it_does_not_have_is_told() -> None:
    with pytest.raises(TypeError, match="Job has no 'stat'"):
        replace_fields(job(1), stat=1)


@dataclass(frozen=True, slots=True)
class Derived:
    half: float
    whole: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "whole", 2 * self.half)


def test_what_derives_values_is_refused() -> None:
    with pytest.raises(TypeError, match="derives values"):
        replace_fields(Derived(1.0), half=2.0)
