"""What a job did long ago is remembered, and tells whether a neighbour that came then is to blame."""

from dataclasses import replace

import pytest

from hcloud.core.model import BestEffortTarget, Event, EventKind
from hcloud.forecast.job_monitor import KEPT, JobMonitor
from hcloud.forecast.trend import course_of_total
from tests.planner.scenes import NOW, decide, machine, need, offer, running, scene, spec
from tests.planner.test_correction import steps
from tests.planner.watched import hooked, samples, started

FAST, SLOW = 0.0009, 0.0002


def followed(paces: tuple[float, ...]) -> JobMonitor:
    """A book that was told of a job that made such a pace in each interval of 10 s until now."""
    book = JobMonitor()
    for number, each in enumerate(samples(paces)):
        fields = {"attempt": "job-1.1", "rank": 0, **each.values}
        book.follow([Event(seq=number, at=each.at, kind=EventKind.SAMPLE, job_id="job-1", fields=fields)])
    return book


def steps_beside_a_neighbour(paces: tuple[float, ...], came_ago_s: float) -> list[str]:
    """What is done for a job with 1,500 s behind it and 1,500 s left."""
    here = machine(1, offer("small", vcpus=2.0), idle_since=None)
    job = started(running(1, here, asks=hooked(3000.0)), 1500.0)
    best_effort = spec(target=BestEffortTarget(), resources=need(1.0))
    beside = started(running(2, here, asks=best_effort), came_ago_s)
    return steps(decide(replace(scene(job, beside, here), job_samples=followed(paces).watched())))


def test_a_neighbour_of_long_ago_is_evicted_if_the_job_got_slow_when_it_came() -> None:
    assert steps_beside_a_neighbour((FAST,) * 15 + (SLOW,) * 135, came_ago_s=1345.0) == ["evict"]


@pytest.mark.parametrize("fast", [3, 30, 75, 100])
def test_a_neighbour_is_not_to_blame_for_what_happened_before_or_after_it_came(fast: int) -> None:
    assert steps_beside_a_neighbour((FAST,) * fast + (SLOW,) * (150 - fast), came_ago_s=1345.0) == []


def test_of_a_day_few_samples_are_kept_and_the_first_ones_all() -> None:
    paces = (0.00001,) * 5 + (0.000005,) * 2995
    watched = followed(paces).watched()["job-1"]
    history, began_at = watched.history(0), NOW - 10.0 * len(paces)
    assert [each.at - began_at for each in history[:5]] == [0.0, 10.0, 20.0, 30.0, 40.0]
    assert KEPT + 20 < len(history) < KEPT + 40
    around = course_of_total(history, "progress").around((began_at + 50.0, began_at + 50.0), 40.0)
    assert around == (pytest.approx(0.00001), pytest.approx(0.000005))


def test_what_was_before_a_restart_of_the_program_is_forgotten() -> None:
    book = followed((FAST,) * 100)
    fields = {"attempt": "job-1.1", "rank": 0, "progress": 0.0}
    book.follow([Event(seq=200, at=NOW + 10.0, kind=EventKind.SAMPLE, job_id="job-1", fields=fields)])
    assert len(book.watched()["job-1"].history(0)) == 1
