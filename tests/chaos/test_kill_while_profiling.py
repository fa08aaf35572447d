"""Kill the daemon after every commit, and around every start and launch, while jobs are profiled; restart; check."""

from __future__ import annotations

import os
from functools import partial

import pytest

from tests.chaos.lives import broken_after_kills, fresh_home, live
from tests.chaos.scene import PROFILED, CrashPoints, build

EVERY = 1 if os.environ.get("CHAOS_LIVES") == "all" else 2
play_profiled = partial(build, cast_of=PROFILED)


@pytest.fixture(scope="module")
def moments() -> tuple[str, ...]:
    """Every moment of an undisturbed life."""
    with fresh_home() as home:
        life = live(home, play_profiled)
    assert life.violations == ()
    return life.passed


def test_an_undisturbed_life_profiles_looks_and_cancels(moments: tuple[str, ...]) -> None:
    with fresh_home() as home:
        live(home, play_profiled, len(moments))
        scene = play_profiled(home, CrashPoints())
        runs = {job.spec.name: job.state.value for job in scene.store.jobs(limit=100) if job.spec.profile is not None}
        scene.close()
    assert runs == {
        "learns:profile-base": "succeeded",
        "alike:profile-look": "succeeded",
        "cancelled:profile-base": "cancelled",
    }


def test_a_kill_while_profiling_loses_nothing_and_profiles_nothing_twice(moments: tuple[str, ...]) -> None:
    # A kill before a commit finds the rows of the one before it; the other calls are killed in the everyday suite.
    commits = [n for n, moment in enumerate(moments, 1) if moment.startswith("commit:after")]
    calls = [n for n, moment in enumerate(moments, 1) if moment.startswith(("runner.start:", "provider.launch:"))]
    broken = broken_after_kills(play_profiled, sorted((*commits[::EVERY], *calls)))
    assert {f"{number} {moments[number - 1]}": told for number, told in broken.items()} == {}
