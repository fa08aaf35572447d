"""The orders that draw machines, and largest first, on the measured programs that are shipped."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from hcloud.classifier.classify import Classifier
from hcloud.classifier.interference import CORE_SOURCES, NOT_COUNTED
from hcloud.config import load_library, package_data
from hcloud.core.estimates import Classification
from hcloud.core.model import BatchTarget
from hcloud.forecast.fleet_tracker import FleetStats
from hcloud.planner.fit.paragon import Selection, margin
from hcloud.planner.placement.orders import paragon_sampled
from hcloud.planner.plan import Place
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import AdmissionPolicy, PlacementPolicy, Policy
from tests.planner.scenes import NOW, decide, job, machine, of, offer, running, scene, spec
from tests.policies import simple

Shipped = Mapping[str, Classification]
ASKED = spec(target=BatchTarget())
SIZES = (4.0, 8.0, 16.0)
RECENT = FleetStats(busy_s=tuple(np.linspace(40.0, 160.0, 100).tolist()))


@pytest.fixture(scope="module")
def shipped() -> Shipped:
    """Return what is known of each shipped program."""
    fitted = Classifier().fit(load_library([package_data.path("profiles")]))
    return {name: fitted.classify(row) for name, row in fitted.library.known.items()}


def rules(order: str) -> Policy:
    """Return a policy with this order that compares the plain estimates, at the 5 % of which tolerances are."""
    placement = PlacementPolicy(order=order, neighbour_confidence=0.5, neighbour_tolerance=0.05)
    return simple(placement=placement, admission=AdmissionPolicy(queues="one"))


def beside_each(shipped: Shipped, newcomer: str) -> Snapshot:
    """Return a job that waits, and a machine with each of the shipped programs on it."""
    machines = [machine(at, offer("local.large", vcpus=SIZES[at % 3])) for at in range(1, len(shipped) + 1)]
    there = [
        running(100 + at, each, application=name, asks=ASKED)
        for at, (each, name) in enumerate(zip(machines, sorted(shipped), strict=True))
    ]
    asks = job(9, asks=ASKED, application=newcomer, queued_at=NOW)
    return scene(*machines, *there, asks, applications=shipped, fleet_stats=RECENT)


def neighbour(shipped: Shipped, newcomer: str, order: str) -> str:
    """Return the program beside which an order places the job."""
    [place] = of(decide(beside_each(shipped, newcomer), rules(order)), Place)
    return sorted(shipped)[int(place.ranks[0].instance_id.removeprefix("inst-")) - 1]


def worst_strain(one: Classification, other: Classification) -> float:
    """Return the largest pressure on a shared resource beyond what either tolerates, in points; at most 0: nothing is
    violated."""
    sides = ((one, other), (other, one))
    return max(
        caused.caused[source].value - tolerates.tolerated[source].value
        for caused, tolerates in sides
        for source in (caused.caused.keys() & tolerates.tolerated.keys()) - CORE_SOURCES - NOT_COUNTED
    )


def violates_little(shipped: Shipped, order: str) -> None:
    """Raise AssertionError if jobs are placed beside programs that bear them no better than most do."""
    for newcomer in sorted(shipped):
        strains = {name: worst_strain(shipped[newcomer], known) for name, known in shipped.items()}
        taken = strains[neighbour(shipped, newcomer, order)]
        if min(strains.values()) <= 0.0:
            assert taken <= 1e-6, f"{newcomer}: a program that violates nothing was there"
        else:
            assert taken <= float(np.median(list(strains.values()))) + 1e-6, newcomer


@pytest.mark.parametrize("order", ["paragon_sampled"])
def test_of_machines_with_measured_programs_one_is_taken_where_nothing_is_violated(
    shipped: Shipped, order: str
) -> None:
    violates_little(shipped, order)


def test_that_test_finds_a_selection_by_fit_alone(shipped: Shipped, monkeypatch: pytest.MonkeyPatch) -> None:
    """The print's sign: what is left over all resources decides, whatever single one is violated."""

    def by_sum(pressure: object, newcomer: object, among: object, preference: object) -> Selection:
        places = among.nonzero()[0]  # type: ignore[attr-defined]
        left = pressure.headroom[:, places] - newcomer.caused[:, None]  # type: ignore[attr-defined]
        at = int(places[np.where(left.sum(axis=0) >= 0.0, -np.abs(left).sum(axis=0), -np.inf).argmax()])
        found = margin(pressure, newcomer, at)  # type: ignore[arg-type]
        return Selection(at=at, pool=0, among=int(places.size), margin=found)

    monkeypatch.setattr(paragon_sampled, "tightest", by_sum)
    with pytest.raises(AssertionError):
        violates_little(shipped, "paragon_sampled")


def mean_strain(shipped: Shipped, neighbour_of: Callable[[str], str]) -> float:
    return float(np.mean([max(0.0, worst_strain(shipped[each], shipped[neighbour_of(each)])) for each in shipped]))


def test_a_sample_of_matching_machines_is_nearly_as_good_as_all_and_far_better_than_none(shipped: Shipped) -> None:
    tarcil = mean_strain(shipped, lambda each: neighbour(shipped, each, "tarcil"))
    best = mean_strain(shipped, lambda each: neighbour(shipped, each, "least_loss"))
    drawn = mean_strain(shipped, lambda each: neighbour(shipped, each, "random"))
    assert best <= tarcil + 1e-6 or best < 0.5 * drawn
    assert tarcil < best + 0.25 * (drawn - best), (tarcil, best, drawn)


def test_the_largest_machine_is_taken_whatever_runs_there(shipped: Shipped) -> None:
    for newcomer in sorted(shipped)[:5]:
        world = beside_each(shipped, newcomer)
        [place] = of(decide(world, rules("largest_first")), Place)
        taken = next(each for each in world.instances if each.id == place.ranks[0].instance_id)
        assert taken.capacity.vcpus == max(SIZES)
