"""Promises about how long machines live, held against single looks at a deployment."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hcloud.model import Event, EventKind
from hcloud.simulator.leaseholds import Leaseholds
from hcloud.simulator.truths import Moment
from hcloud.store.live import LiveView
from tests.planner.scenes import machine

IDLE = LiveView(instances=(machine(1),))
"""A machine that nobody holds or awaits."""
NAME = IDLE.instances[0].id
RENEWED = EventKind.INSTANCE_RENEWED


def told(looks: Sequence[Sequence[EventKind]]) -> list[str]:
    """Return what does not hold, where at each look nobody holds the machine and these events are new of it."""
    leaseholds, found = Leaseholds(), list[str]()
    for number, kinds in enumerate(looks):
        at = 10.0 * number
        events = [Event(at=at, kind=kind, instance_id=NAME) for kind in kinds]
        found += leaseholds.look(IDLE, Moment(now=at, live=IDLE), events, ())
    return found


def test_a_machine_that_is_renewed_again_and_again_while_nobody_uses_it_is_told() -> None:
    (broken,) = told([[RENEWED], [], [RENEWED]])
    assert broken.startswith(f"in vain: {NAME}")


@pytest.mark.parametrize("kind", [EventKind.UNIT_STARTED, EventKind.UNIT_ENDED])
def test_a_unit_that_began_or_was_refused_between_two_looks_has_used_its_machine(kind: EventKind) -> None:
    assert told([[RENEWED], [kind], [RENEWED]]) == []
    assert told([[RENEWED], [kind, RENEWED], [RENEWED]]) == []
