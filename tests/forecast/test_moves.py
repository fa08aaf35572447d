"""Incrementally updated paces equal those computed from all samples."""

from __future__ import annotations

import random

import pytest

from hcloud.core.model import Event, EventKind
from hcloud.forecast import job_monitor
from hcloud.forecast.job_monitor import KEPT, JobMonitor, pace_of_counter


def check_paces(seed: int) -> None:
    chances, book, total = random.Random(seed), JobMonitor(), 10.0
    since, anew_at = 400.0 * chances.random(), chances.randrange(20)
    for number in range(2 * KEPT):
        fields: dict[str, object] = {"attempt": "job-1.1", "rank": 0, "looks": chances.choice([1, 1, 3])}
        total = 0.0 if number == anew_at else total + chances.choice([0.0, 1.0, 2.5, 3.0])
        fields["progress"] = total
        book.follow([Event(seq=number, at=10.0 * number, kind=EventKind.SAMPLE, job_id="job-1", fields=fields)])
        watched = book.watched()["job-1"]
        assert watched.pace(0, "progress", since, 3) == pace_of_counter(watched.ranks[0], "progress", since, 3)


@pytest.mark.parametrize("seed", range(10))
def test_a_pace_that_goes_on_is_the_pace_of_all_samples(seed: int) -> None:
    check_paces(seed)


def test_it_is_noticed_where_a_sample_is_never_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    after = job_monitor._Moves.after
    monkeypatch.setattr(
        job_monitor._Moves, "after", lambda moves, _, samples, counter: after(moves, None, samples, counter)
    )
    with pytest.raises(AssertionError):
        check_paces(0)
