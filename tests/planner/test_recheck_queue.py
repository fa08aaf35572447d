"""The jobs that are due are those that a comparison of all facts finds, whatever changed, recorded or not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hcloud.core.estimates import Classification, Estimate
from hcloud.core.model import Event, EventKind, Job, JobState
from hcloud.core.rows import RowJournal
from hcloud.forecast.job_monitor import JobMonitor, JobSamples
from hcloud.planner.admission import queue_key
from hcloud.planner.correction.monitor import RecheckQueue
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import Policy
from tests.planner.scenes import NOW, job, machine, running
from tests.policies import simple

NUMBERS = (1, 2, 3)
POLICIES = (simple(), simple())
BELIEFS = tuple(Classification(quality_target=Estimate(value=needed, low=needed, high=needed)) for needed in (0.1, 0.6))
Deed = st.one_of(
    st.tuples(st.just("row"), st.sampled_from(NUMBERS), st.sampled_from(("gone", "queued", "running", "anew"))),
    st.tuples(st.just("sample"), st.sampled_from(NUMBERS), st.just("")),
    st.tuples(st.just("belief"), st.sampled_from((0, 1)), st.just("")),
    st.tuples(st.just("policy"), st.sampled_from((0, 1)), st.just("")),
    st.tuples(st.just("time"), st.sampled_from((1, 5, 50)), st.just("")),
    st.tuples(st.just("rest"), st.sampled_from(NUMBERS), st.sampled_from(("soon", "late", "ever"))),
)
Deeds = st.lists(st.lists(Deed, max_size=4), max_size=8)
UNTIL_S = {"soon": 3.0, "late": 30.0, "ever": math.inf}


class World:
    """Jobs, samples, estimates and time, as snapshots show them, and what was postponed."""

    def __init__(self, *, known: bool) -> None:
        """``known``: changes are recorded by the row sets."""
        self.known, self.now, self.seq = known, NOW, 0
        self.living, self.book = RowJournal[Job](), JobMonitor()
        self.belief, self.policy = 0, 0
        self.plan_cache = Snapshot(now=NOW).plan_cache
        self.rests: dict[int, tuple[object, ...]] = {}

    def happen(self, what: str, which: int, how: str) -> None:
        if what == "row":
            row = self.living.rows.get(which)
            fresh = {"gone": None, "queued": job(which, JobState.QUEUED), "running": running(which, machine(1))}
            anew = replace(row, revision=row.revision + 1) if row is not None else None
            self.living.write({which: anew if how == "anew" else fresh[how]})
        elif what == "sample":
            self.seq += 1
            told = {"attempt": f"job-{which}.1", "rank": 0, "cpu_s": 1.0 * self.seq}
            sample = Event(seq=self.seq, at=self.now, kind=EventKind.SAMPLE, job_id=f"job-{which}", fields=told)
            self.book.follow([sample])
        elif what == "time":
            self.now += which
        elif what != "rest":
            setattr(self, what, which)

    def snapshot(self) -> Snapshot:
        """Return the snapshot a plan would see."""
        jobs, watched = self.living.snapshot(), self.book.watched()
        return Snapshot(
            now=self.now,
            jobs=jobs if self.known else tuple(jobs),
            job_samples=watched if self.known else dict(watched),
            applications={"": BELIEFS[self.belief]},
            plan_cache=self.plan_cache,
        )

    def facts(self, number: int, watched: Mapping[str, JobSamples]) -> tuple[object, ...]:
        """Return everything a job is judged by, as identities."""
        kept = (self.living.rows[number], watched.get(f"job-{number}"), BELIEFS[self.belief], POLICIES[self.policy])
        return tuple(id(each) for each in kept)


def due_as_in_full_comparison(rechecks: RecheckQueue, deeds: list[list[tuple[str, int, str]]], *, known: bool) -> None:
    """Raise AssertionError if other jobs are due than a comparison of all facts finds."""
    world = World(known=known)
    until, seen = dict[int, float](), dict[int, tuple[object, ...]]()
    kept: list[object] = []  # keep objects alive, so that no id is reused
    for step in deeds:
        for deed in step:
            world.happen(*deed)
        snapshot = world.snapshot()
        kept += [snapshot, *snapshot.job_samples.values()]
        world.plan_cache.occupancy.follow(snapshot.jobs)
        due = rechecks.due(snapshot, POLICIES[world.policy], snapshot.jobs)
        assert list(due) == sorted(due, key=queue_key)
        awake = {each.id: each for each in due}
        runs = [n for n, row in world.living.rows.items() if row.state is JobState.RUNNING]
        rest = [n for n in runs if seen.get(n) == world.facts(n, snapshot.job_samples) and world.now < until[n]]
        assert awake == {f"job-{n}": world.living.rows[n] for n in runs if n not in rest}
        seen = {number: facts for number, facts in seen.items() if number in rest}
        for what, number, how in step:
            if what == "rest" and f"job-{number}" in awake:
                rechecks.postpone(awake.pop(f"job-{number}"), world.now + UNTIL_S[how])
                until[number], seen[number] = world.now + UNTIL_S[how], world.facts(number, snapshot.job_samples)


@settings(max_examples=150)
@given(Deeds, st.booleans())
def test_due_jobs_are_those_a_full_comparison_finds(deeds: list[list[tuple[str, int, str]]], known: bool) -> None:
    due_as_in_full_comparison(RecheckQueue(), deeds, known=known)


class Deaf(RecheckQueue):
    """Seeded fault: notices neither samples nor estimates."""

    def _changed(self, snapshot: Snapshot, policy: Policy) -> set[str]:
        return set()


def test_the_property_catches_a_queue_that_misses_samples() -> None:
    first = [("row", 1, "running"), ("sample", 1, ""), ("rest", 1, "ever")]
    with pytest.raises(AssertionError):
        due_as_in_full_comparison(Deaf(), [first, [("sample", 1, "")]], known=True)
