"""Kill the daemon immediately before and after every provider, runner and commit call; restart; check every promise.

Between two effects a kill finds the same rows, machines and units, wherever it strikes. So ``make test`` strikes after
every second effect, and once at each kind of call; ``make chaos`` (``CHAOS_LIVES=all``) at every moment.
"""

from __future__ import annotations

import os

import pytest

from tests.chaos.lives import broken_after_kills, fresh_home, live
from tests.chaos.scene import build

SLICES = 2
READS = ("provider.offers", "provider.instances", "runner.observe", "runner.read_logs")


def struck(moments: tuple[str, ...]) -> list[int]:
    """Return the numbers, from 1, of the moments to be killed at."""
    if os.environ.get("CHAOS_LIVES") == "all":
        return list(range(1, len(moments) + 1))
    first = {moments.index(each) for each in set(moments)}
    effects = [n for n, each in enumerate(moments) if each.endswith(":after") and not each.startswith(READS)]
    return sorted(n + 1 for n in first | {*effects[::2]})


@pytest.fixture(scope="module")
def moments() -> tuple[str, ...]:
    """Every moment of an undisturbed life."""
    with fresh_home() as home:
        life = live(home, build)
    assert life.violations == ()
    return life.passed


def test_an_undisturbed_life_touches_every_kind_of_call(moments: tuple[str, ...]) -> None:
    seen = {moment.rsplit(":", 1)[0] for moment in moments}
    provider = {"provider.offers", "provider.launch", "provider.instances", "provider.terminate"}
    runner = {"runner.observe", "runner.start", "runner.stop", "runner.renew", "runner.read_logs", "runner.forget"}
    assert provider | runner | {"commit"} <= seen


@pytest.mark.parametrize("part", range(SLICES))
def test_a_kill_at_any_moment_loses_nothing(part: int, moments: tuple[str, ...]) -> None:
    broken = broken_after_kills(build, struck(moments)[part::SLICES])
    assert {f"{number} {moments[number - 1]}": told for number, told in broken.items()} == {}
