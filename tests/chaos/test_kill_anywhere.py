"""Kill the daemon immediately before and after every provider, runner and commit call; restart; check every promise."""

from __future__ import annotations

import pytest

from tests.chaos.lives import crash_and_recover, fresh_home, live
from tests.chaos.scene import build

SLICES = 8


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
    runner = {"runner.observe", "runner.start", "runner.stop", "runner.renew", "runner.logs", "runner.forget"}
    assert provider | runner | {"commit"} <= seen


@pytest.mark.parametrize("part", range(SLICES))
def test_a_kill_at_any_moment_loses_nothing(part: int, moments: tuple[str, ...]) -> None:
    broken = {}
    for number in range(1 + part, len(moments) + 1, SLICES):
        with fresh_home() as home:
            life = crash_and_recover(home, build, number)
        if life.violations:
            broken[f"{number} {moments[number - 1]}"] = life.violations
    assert broken == {}
