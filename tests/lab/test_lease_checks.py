"""Lease checks, on single states of a deployment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from hcloud.core.model import Event, EventKind, JobState, Nodes
from hcloud.simulator.ground_truth import CycleContext
from hcloud.store.live import LiveView
from lab.soak.lease_checks import LeaseChecks
from tests.planner.scenes import NOW, job, machine, spec

IDLE = LiveView(instances=(machine(1),))
"""A machine that no job holds or awaits."""
NAME = IDLE.instances[0].id
NAMES = frozenset({NAME})
RENEWED = EventKind.INSTANCE_RENEWED


def told(looks: Sequence[Sequence[EventKind]]) -> list[str]:
    """Return violations for a series of new events of a machine that no job holds."""
    lease_checks, found = LeaseChecks(), list[str]()
    for number, kinds in enumerate(looks):
        at = 10.0 * number
        events = [Event(at=at, kind=kind, instance_id=NAME) for kind in kinds]
        found += lease_checks.check(IDLE, CycleContext(now=at, live=IDLE), events, ())
    return found


def test_repeated_renewal_of_an_unused_machine_is_reported() -> None:
    (broken,) = told([[RENEWED], [], [RENEWED]])
    assert broken.startswith(f"unused renewal: {NAME}")


@pytest.mark.parametrize("kind", [EventKind.UNIT_STARTED, EventKind.UNIT_ENDED])
def test_unit_between_two_checks_counts_as_use(kind: EventKind) -> None:
    assert told([[RENEWED], [kind], [RENEWED]]) == []
    assert told([[RENEWED], [kind, RENEWED], [RENEWED]]) == []


@pytest.mark.parametrize(("awaited", "told"), [(("inst-9",), False), (("inst-9", "inst-8"), True)])
def test_idle_machine_claimed_by_an_awaiting_gang_is_not_reported(awaited: tuple[str, ...], told: bool) -> None:
    gang = job(1, JobState.AWAITING_INSTANCE, asks=spec(nodes=Nodes(count=2)), awaiting=awaited)
    queued = replace(gang, state=JobState.QUEUED, awaiting=())
    idle = replace(IDLE.instances[0], idle_since=NOW)
    lease_checks, found = LeaseChecks(), list[str]()
    for at in range(0, 120, 10):
        seen = LiveView(instances=(idle,), jobs=(gang if at < 110 else queued,))
        found += lease_checks.check(
            seen, CycleContext(now=NOW + at, live=seen, undisturbed=True, reachable=NAMES), (), ()
        )
    assert bool(found) is told


def test_unneeded_idle_machine_is_reported() -> None:
    seen, lease_checks = LiveView(instances=(replace(IDLE.instances[0], idle_since=NOW),)), LeaseChecks()
    looks = [CycleContext(now=NOW + at, live=seen, undisturbed=True, reachable=NAMES) for at in range(0, 110, 10)]
    *before, (last,) = [list(lease_checks.check(seen, moment, (), ())) for moment in looks]
    assert before == [[]] * 10 and last == f"kept: {NAME} has been idle for 100 s"


def test_idle_machine_with_reserved_room_is_reported_a_lease_later() -> None:
    waiting = job(1, asks=spec(nodes=Nodes(count=2)), reserved=(NAME,))
    seen = LiveView(instances=(replace(IDLE.instances[0], idle_since=NOW),), jobs=(waiting,))
    lease_checks = LeaseChecks(longest_lease_s=50.0)
    looks = [CycleContext(now=NOW + at, live=seen, undisturbed=True, reachable=NAMES) for at in range(0, 160, 10)]
    *before, (last,) = [list(lease_checks.check(seen, moment, (), ())) for moment in looks]
    assert before == [[]] * 15 and last == f"kept: {NAME} has been idle for 150 s"
