"""Simulated jobs that change phase are noticed: by their pace, and by what they press on when measured in place."""

import pytest

from bench.phases import Counts, Run, count, simulate
from hcloud.core.model import EventKind
from lab.papers.clusters import scheduler


@pytest.fixture(scope="module")
def run() -> Run:
    """Eighteen jobs of an hour or so, which change twice."""
    # One run is too small to judge rates by (make bench-phases does): this seed shows changes of both kinds.
    return simulate(scheduler("paragon"), 8, 0.1, 8.0)


def test_most_slow_phases_and_changes_of_pressure_are_noticed(run: Run) -> None:
    counts = Counts()
    count(run.stays, run.events, counts)
    assert counts.slowed >= 5 and counts.noticed >= 0.8 * counts.slowed, counts
    assert counts.changed >= 5 and counts.found >= 0.7 * counts.changed, counts
    assert counts.mistaken <= 0.2 * counts.same, counts


def test_a_log_without_corrections_counts_as_nothing_noticed(run: Run) -> None:
    counts = Counts()
    count(run.stays, [event for event in run.events if event.kind is not EventKind.CORRECTION], counts)
    assert counts.slowed >= 5 and counts.noticed == 0
