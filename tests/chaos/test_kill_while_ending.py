"""Kill the daemon while operators' orders to drain and to destroy are obeyed; restart; nothing leaks or is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from hcloud.apply.directives import record_directive
from hcloud.core.model import EventKind, InstanceState
from hcloud.planner.snapshot import Directive, DirectiveScope
from tests.chaos.lives import broken_after_kills, fresh_home, live
from tests.chaos.scene import START_AT, CrashPoints, Scene, build, violations

ORDERED_AT = START_AT + 5
STEP = 13
"""So many moments lie between two that are killed; every call is met somewhere."""


def build_with_an_operator(home: Path, crash: CrashPoints) -> Scene:
    """A deployment whose first machine is destroyed, once, and whose second is drained, while jobs run there."""
    scene = build(home, crash)
    honest = scene.controller.cycle

    def cycle() -> object:
        outcome = honest()
        if scene.clock.now() >= ORDERED_AT:
            _order(scene)
        return outcome

    scene.controller.cycle = cycle  # type: ignore[method-assign,assignment]
    return scene


def _order(scene: Scene) -> None:
    told = scene.store.events(kinds=[EventKind.OPERATOR_ORDER])
    live_ones = [each.id for each in scene.store.live().instances]
    if told or len(live_ones) < 2:
        return
    with scene.store.transaction(scene.clock.now()) as txn:
        for name, destroy in zip(live_ones, (True, False), strict=False):
            order = Directive(
                scope=DirectiveScope.INSTANCE, name=name, by="ada", ordered_at=scene.clock.now(), destroy=destroy
            )
            record_directive(txn, order)


def broken(scene: Scene) -> list[str]:
    """Return what may not be: all promises but that nothing starts twice, for what was destroyed runs again."""
    found = [each for each in violations(scene) if "was started" not in each]
    ordered = [e.instance_id for e in scene.store.events(kinds=[EventKind.OPERATOR_ORDER])]
    if len(ordered) != 2:
        found.append(f"ordered were {ordered}")
    found += [f"an order about {order.name} is left" for order in scene.store.live().directives]
    states = [scene.store.instance(each).state for each in ordered if each is not None]
    return found + [f"a machine ordered to end is {state}" for state in states if state != InstanceState.TERMINATED]


@pytest.fixture(scope="module")
def moments() -> tuple[str, ...]:
    """Every moment of an undisturbed life."""
    with fresh_home() as home:
        life = live(home, build_with_an_operator, check=broken)
    assert life.violations == ()
    return life.passed


def test_a_kill_while_machines_are_drained_and_destroyed_loses_nothing(moments: tuple[str, ...]) -> None:
    found = broken_after_kills(build_with_an_operator, range(1, len(moments) + 1, STEP), broken)
    assert {f"{number} {moments[number - 1]}": told for number, told in found.items()} == {}
