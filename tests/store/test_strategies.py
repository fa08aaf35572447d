"""The strategies vary every field of the model: otherwise its round trip would not be tested."""

from collections import defaultdict
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

from hcloud.core.model import Nodes
from tests import strategies

ALL = [
    strategies.resources,
    strategies.nodes,
    strategies.retries,
    strategies.profile_requests,
    strategies.task_lists,
    strategies.task_records,
    strategies.task_ends,
    strategies.task_runs,
    strategies.specs,
    strategies.allocations,
    strategies.attempts,
    strategies.jobs,
    strategies.instance_types,
    strategies.offers,
    strategies.instances,
    strategies.intents,
    strategies.backoffs,
    strategies.refused_quotas,
]
# Assigned by the store, or constant for each kind of target.
FIXED = {"id", "revision", "kind"}
SAMPLES = 10


def unvaried(things: st.SearchStrategy[Any]) -> set[str]:
    """Names of fields that had one value only in many examples.

    Hypothesis also draws constants from the modules that are imported, so that one sample differs with the tests that
    run beside this one, and may miss a rare value: as many are taken as are needed.
    """
    seen: dict[str, set[str]] = defaultdict(set)

    few: set[str] = set()
    for sample in range(SAMPLES):

        @seed(sample)
        @settings(max_examples=60, phases=[Phase.generate])
        @given(things)
        def collect(thing: Any) -> None:
            for field in fields(thing):
                seen[field.name].add(repr(getattr(thing, field.name)))

        collect()
        few = {name for name, values in seen.items() if len(values) < 2}
        if few <= FIXED:
            break
    return few


@pytest.mark.parametrize("things", ALL, ids=lambda things: repr(things)[:30])
def test_every_field_is_varied(things: st.SearchStrategy[Any]) -> None:
    assert unvaried(things) <= FIXED


def test_a_forgotten_field_is_seen() -> None:
    """Seeded fault: a field left at its default."""
    assert unvaried(st.builds(Nodes, count=strategies.numbers, minimum=strategies.numbers)) == {"gang"}
