"""Who is awake is who a look at all facts of all jobs would find, whatever changed, and whether that is remembered."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hcloud.core.estimates import Classification, Estimate
from hcloud.core.model import Event, EventKind, Job, JobState
from hcloud.core.rows import RowSet
from hcloud.forecast.job_monitor import JobMonitor, JobSamples
from hcloud.planner.correction.monitor import RecheckQueue
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import Policy
from tests.planner.scenes import NOW, job, machine, running

NUMBERS = (1, 2, 3)
POLICIES = (Policy(), Policy())
BELIEFS = tuple(
    Classification(quality_target=Estimate(value=0.5, low=0.4, high=0.6), quality_class=quality) for quality in (1, 2)
)
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
    """Jobs, samples, beliefs and time, as snapshots show them to a vigil; and what it was told."""

    def __init__(self, *, known: bool) -> None:
        """``known``: what changed is remembered."""
        self.known, self.now, self.seq = known, NOW, 0
        self.living, self.book = RowSet[Job](), JobMonitor()
        self.belief, self.policy = 0, 0
        self.plan_cache = Snapshot(now=NOW).plan_cache
        self.rests: dict[int, tuple[object, ...]] = {}

    def happen(self, what: str, which: int, how: str) -> None:
        """Let one thing happen."""
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
        """What a plan sees."""
        jobs, watched = self.living.snapshot(), self.book.watched()
        return Snapshot(
            now=self.now,
            jobs=jobs if self.known else tuple(jobs),
            job_samples=watched if self.known else dict(watched),
            applications={"": BELIEFS[self.belief]},
            plan_cache=self.plan_cache,
        )

    def facts(self, number: int, watched: Mapping[str, JobSamples]) -> tuple[object, ...]:
        """All that a job is judged by, by identity."""
        kept = (self.living.rows[number], watched.get(f"job-{number}"), BELIEFS[self.belief], POLICIES[self.policy])
        return tuple(id(each) for each in kept)


def wakes_as_a_look_at_all_does(
    rechecks: RecheckQueue, deeds: list[list[tuple[str, int, str]]], *, known: bool
) -> None:
    """Raise AssertionError where the vigil finds others awake than a look at all facts does."""
    world = World(known=known)
    until, seen = dict[int, float](), dict[int, tuple[object, ...]]()
    kept: list[object] = []  # so that no object gets the identity of an earlier one
    for step in deeds:
        for deed in step:
            world.happen(*deed)
        snapshot = world.snapshot()
        kept += [snapshot, *snapshot.job_samples.values()]
        world.plan_cache.occupancy.follow(snapshot.jobs)
        awake = {each.id: each for each in rechecks.due(snapshot, POLICIES[world.policy], snapshot.jobs)}
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
def test_who_is_awake_is_who_a_look_at_all_finds(deeds: list[list[tuple[str, int, str]]], known: bool) -> None:
    wakes_as_a_look_at_all_does(RecheckQueue(), deeds, known=known)


class Deaf(RecheckQueue):
    """One that hears of no sample and of no new belief."""

    def _changed(self, snapshot: Snapshot, policy: Policy) -> set[str]:
        """Wake nobody."""
        return set()


def test_vigil_that_hears_of_no_sample_is_found_out() -> None:
    first = [("row", 1, "running"), ("sample", 1, ""), ("rest", 1, "ever")]
    with pytest.raises(AssertionError):
        wakes_as_a_look_at_all_does(Deaf(), [first, [("sample", 1, "")]], known=True)
