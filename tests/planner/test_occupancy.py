"""What is followed from plan to plan is what an empty roster finds, whatever came and went before."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hcloud.core.model import Job
from hcloud.planner.occupancy import Occupancy, Residents
from tests.planner.scenes import ended, job, machine, need, running, spec

FLEET = [machine(number) for number in (1, 2)]
SHAPES = ("gone", "queued", "here", "there", "both", "ended", "cancelled")
States = st.lists(st.lists(st.sampled_from(SHAPES), min_size=5, max_size=5), min_size=1, max_size=5)


def row(number: int, shape: str) -> Job | None:
    """A row of that shape; what sizes sum to depends on their order."""
    asks, (here, there) = spec(resources=need(0.1 * number)), FLEET
    shapes = {
        "queued": job(number, asks=asks),
        "here": running(number, here, asks=asks),
        "there": running(number, there, asks=asks),
        "both": running(number, here, there, asks=asks),
        "ended": ended(running(number, here, asks=asks)),
        "cancelled": replace(running(number, here, asks=asks), cancelled_by="ada"),
    }
    found = shapes.get(shape)
    return replace(found, application=f"app-{number}") if found is not None else None


def told(occupancy: Occupancy) -> tuple[object, ...]:
    """All that a plan may ask of a roster."""
    residents = {
        name: (each.held, each.left_of(FLEET[0].capacity), each.since(), each.applications())
        for name, each in occupancy.residents.items()
    }
    by_number = list(occupancy.running), list(occupancy.needing_decision)
    return *by_number, occupancy.stopping, occupancy.measuring, occupancy.incomplete, residents


def follows_as_if_new(follower: Occupancy, states: list[list[str]]) -> None:
    """Raise AssertionError where ``follower`` ends up with anything that a new roster does not find."""
    for shapes in states:
        jobs = [each for n, shape in enumerate(shapes, start=1) if (each := row(n, shape)) is not None]
        follower.follow(jobs)
        fresh = Occupancy()
        fresh.follow(jobs)
        assert told(follower) == told(fresh)


@settings(max_examples=30)
@given(States)
def test_roster_that_follows_knows_what_a_new_one_does(states: list[list[str]]) -> None:
    follows_as_if_new(Occupancy(), states)


class Forgetful(Occupancy):
    """One that forgets nobody."""

    def _remove(self, job: Job) -> None:
        """Seeded fault: what the row said before goes on counting."""


def test_that_property_catches_a_roster_that_forgets_nobody() -> None:
    with pytest.raises(AssertionError):
        follows_as_if_new(Forgetful(), [["here"], ["ended"]])


def test_that_property_catches_residents_that_do_not_notice_who_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Residents, "invalidate", lambda there: setattr(there, "capacity", None))
    with pytest.raises(AssertionError):
        follows_as_if_new(Occupancy(), [["here", "here"], ["here", "here", "here"]])
