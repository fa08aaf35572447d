"""A fleet updated from plan to plan equals one built from scratch, whatever changed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hcloud.core.model import Instance, InstanceId, InstanceState, Job
from hcloud.core.rows import RowJournal, RowsByNumber
from hcloud.planner.cache import PlanCache
from hcloud.planner.fleet import Fleet
from hcloud.planner.occupancy import Occupancy
from tests.planner.scenes import ended, machine, need, running, spec

NUMBERS = (1, 2, 3)
Machines = st.lists(st.sampled_from(("gone", "ready", "ending", "ended", "dearer")), min_size=3, max_size=3)
Jobs = st.lists(st.sampled_from(("gone", "first", "second", "both", "over")), min_size=3, max_size=3)
States = st.lists(st.tuples(Machines, Jobs), min_size=1, max_size=5)
FLEET = {number: machine(number) for number in NUMBERS}
DEARER = replace(FLEET[1].offer, price_usd_per_h=9.0)


def machine_row(number: int, shape: str) -> Instance | None:
    """Return an instance in that state; the row of an unchanged one is the same object."""
    there = FLEET[number]
    return {
        "gone": None,
        "ready": there,
        "ending": replace(there, state=InstanceState.TERMINATING),
        "ended": replace(there, state=InstanceState.TERMINATED),
        "dearer": replace(there, offer=DEARER),
    }[shape]


def job_row(number: int, shape: str) -> Job | None:
    """Return a job that holds such parts of instances; sums depend on their order."""
    asks = spec(resources=need(0.1 * number))
    return {
        "gone": None,
        "first": running(number, FLEET[1], asks=asks),
        "second": running(number, FLEET[2], asks=asks),
        "both": running(number, FLEET[1], FLEET[2], asks=asks),
        "over": ended(running(number, FLEET[1], asks=asks)),
    }[shape]


def told(fleet: Fleet) -> tuple[object, ...]:
    """Return everything a plan reads of a fleet."""
    arrays = (fleet.capacity, fleet.free, fleet.room, fleet.load, fleet.reserved, fleet.price_usd_per_h, fleet.of_shape)
    held = [[(job.id, unit.resources) for job, unit in each] for each in fleet.holdings]
    residents = [(each.since(), each.applications()) for each in fleet.residents]
    lists = (list(fleet.instances), dict(fleet.index), list(fleet.staying), held, residents, fleet.sizes)
    return (*lists, *[each.tolist() for each in arrays])


def opened(plan_cache: PlanCache, machines: tuple[Instance, ...], jobs: tuple[Job, ...]) -> Fleet:
    """Return the fleet as a plan opens it; the plan then uses some of it."""
    plan_cache.occupancy.follow(jobs)
    return Fleet(machines, plan_cache)


def follows_as_if_new(plan_cache: PlanCache, states: list[tuple[list[str], list[str]]], *, known: bool) -> None:
    """Raise AssertionError if an updated fleet differs from one built from scratch.

    ``known``: changes are recorded by the row sets.
    """
    all_machines, all_jobs = RowJournal[Instance](), RowJournal[Job]()
    for machines, jobs in states:
        all_machines.write({n: machine_row(n, shape) for n, shape in zip(NUMBERS, machines, strict=True)})
        all_jobs.write({n: job_row(n, shape) for n, shape in zip(NUMBERS, jobs, strict=True)})
        rows: tuple[RowsByNumber[Instance], RowsByNumber[Job]] = (all_machines.snapshot(), all_jobs.snapshot())
        fleet = opened(plan_cache, *rows) if known else opened(plan_cache, tuple(rows[0]), tuple(rows[1]))
        assert told(fleet) == told(opened(PlanCache(), tuple(reversed(rows[0])), tuple(rows[1])))
        for at in range(len(fleet.instances)):  # what one plan uses is free again for the next
            fleet.use(at, np.array([0.5, 1.0, 1.0, 0.0]))


@settings(max_examples=60)
@given(States, st.booleans())
def test_fleet_that_is_handed_on_is_what_a_new_one_is(states: list[tuple[list[str], list[str]]], known: bool) -> None:
    follows_as_if_new(PlanCache(), states, known=known)


class Silent(Occupancy):
    """Seeded fault: does not report where residents changed."""

    def take_touched(self) -> set[InstanceId]:
        super().take_touched()
        return set()


def test_the_property_catches_a_fleet_that_misses_changes() -> None:
    plan_cache = PlanCache()
    plan_cache.occupancy = Silent()
    ready, nobody = ["ready"] * 3, ["gone"] * 3
    with pytest.raises(AssertionError):
        follows_as_if_new(plan_cache, [(ready, nobody), (ready, ["first", "gone", "gone"])], known=True)
