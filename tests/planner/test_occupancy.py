"""An occupancy updated from plan to plan equals one built from scratch, whatever changed."""

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
    """Return a row of that shape; sums depend on their order."""
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
    """Return everything a plan reads of an occupancy."""
    residents = {
        name: (each.held, each.left_of(FLEET[0].capacity), each.since(), each.applications())
        for name, each in occupancy.residents.items()
    }
    by_number = list(occupancy.running), list(occupancy.needing_decision)
    return *by_number, occupancy.stopping, occupancy.measuring, occupancy.incomplete, residents


def follows_as_if_new(follower: Occupancy, states: list[list[str]]) -> None:
    """Raise AssertionError if ``follower`` differs from an occupancy built from scratch."""
    for shapes in states:
        jobs = [each for n, shape in enumerate(shapes, start=1) if (each := row(n, shape)) is not None]
        follower.follow(jobs)
        fresh = Occupancy()
        fresh.follow(jobs)
        assert told(follower) == told(fresh)


@settings(max_examples=30)
@given(States)
def test_an_updated_occupancy_equals_a_new_one(states: list[list[str]]) -> None:
    follows_as_if_new(Occupancy(), states)


class Forgetful(Occupancy):
    """Seeded fault: removes no job."""

    def _remove(self, job: Job) -> None:
        """The former row keeps counting."""


def test_the_property_catches_an_occupancy_that_removes_no_job() -> None:
    with pytest.raises(AssertionError):
        follows_as_if_new(Forgetful(), [["here"], ["ended"]])


def test_the_property_catches_residents_that_are_not_invalidated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Residents, "invalidate", lambda there: setattr(there, "capacity", None))
    with pytest.raises(AssertionError):
        follows_as_if_new(Occupancy(), [["here", "here"], ["here", "here", "here"]])
