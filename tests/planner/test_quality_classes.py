"""ARQ on one scale: classes of the shipped programs and pools of machines on which they run."""

import numpy as np
import pytest

from hcloud.classifier.classify import Classifier
from hcloud.config import load_library, load_policy, package_data
from hcloud.core.estimates import Classification
from hcloud.core.model import BatchTarget
from hcloud.planner.fit.interference import PressureState, open_pressure, quality_classes, quality_needed
from hcloud.planner.plan import Place
from hcloud.spec.policy import AdmissionPolicy, PlacementPolicy
from tests.planner.scenes import NOW, decide, job, machine, of, offer, running, scene, spec
from tests.policies import simple

TOLERANCE = 0.05
SHIPPED = load_policy(package_data.path("policies") / "default.yaml")


@pytest.fixture(scope="module")
def shipped() -> dict[str, Classification]:
    """Return what is known of each shipped program."""
    fitted = Classifier().fit(load_library([package_data.path("profiles")]))
    return {name: fitted.classify(row) for name, row in fitted.library.known.items()}


def machines(known: dict[str, Classification], tolerance: float = TOLERANCE) -> PressureState:
    """Return an empty machine, one with each program, and some with two."""
    names = sorted(known)
    residents = [(), *((each,) for each in names), *zip(names[::2], names[1::2], strict=True)]
    classes = quality_classes(known, tolerance, 10)
    return open_pressure(known, residents, [False] * len(residents), confidence=0.5, classes=classes)


def test_pools_and_classes_of_shipped_programs_overlap(shipped: dict[str, Classification]) -> None:
    pressure = machines(shipped)
    levels = [pressure.classes.level(quality_needed(each)) for each in shipped.values()]
    pools = pressure.level.astype(int).tolist()
    assert pools[0] == 9
    assert len(set(levels)) >= 7
    assert len(set(levels) & set(pools)) >= 4
    # Neither are all jobs below all machines, nor above.
    higher = np.mean([pool > level for pool in pools for level in levels])
    assert 0.2 <= higher <= 0.8


def test_shipped_programs_spread_over_the_classes_under_the_shipped_policy(shipped: dict[str, Classification]) -> None:
    policy = SHIPPED.placement
    classes = quality_classes(shipped, policy.neighbour_tolerance, SHIPPED.admission.classes)
    found = np.bincount([classes.level(quality_needed(each)) for each in shipped.values()], minlength=classes.count)
    assert np.count_nonzero(found) >= 7
    assert found.max() <= len(shipped) / 3


def test_machines_offer_more_where_more_loss_is_accepted(
    shipped: dict[str, Classification],
) -> None:
    strict, relaxed = machines(shipped).level, machines(shipped, 4 * TOLERANCE).level
    assert (relaxed >= strict).all()
    assert (relaxed > strict).any()
    order = np.argsort(strict, kind="stable")
    assert (np.diff(relaxed[order][np.diff(strict[order], prepend=-1) > 0]) >= 0).all()


def test_easy_job_goes_up_only_where_no_more_demanding_one_waits(shipped: dict[str, Classification]) -> None:
    names = sorted(shipped, key=lambda name: quality_needed(shipped[name]))
    easy, demanding, free = names[0], names[-1], spec(target=BatchTarget())
    here = machine(1, offer("small", vcpus=1.0))
    policy = simple(
        placement=PlacementPolicy(order="paragon", neighbour_tolerance=0.05),
        admission=AdmissionPolicy(queues="by_quality", patience_s=600.0),
    )
    first = job(1, asks=free, application=easy, queued_at=NOW)
    second = job(2, asks=free, application=demanding, queued_at=NOW)
    both = of(decide(scene(first, second, here, applications=shipped), policy), Place)
    assert [each.job_id for each in both] == ["job-2"]
    alone = of(decide(scene(first, here, applications=shipped), policy), Place)
    assert [(each.job_id, each.reason.numbers["diverted"]) for each in alone] == [("job-1", "up")]


def test_easy_job_is_not_blocked_behind_a_demanding_one_that_waits(shipped: dict[str, Classification]) -> None:
    names = sorted(shipped, key=lambda name: quality_needed(shipped[name]))
    easy, demanding, free = names[0], names[-1], spec(target=BatchTarget())
    here = machine(1, offer("large", vcpus=8.0))
    policy = simple(
        placement=PlacementPolicy(order="paragon", neighbour_confidence=0.9, neighbour_tolerance=0.05),
        admission=AdmissionPolicy(queues="by_quality", patience_s=600.0),
    )
    loud = running(7, here, application="disk-write", asks=free)
    waits, passes = job(2, asks=free, application=demanding, queued_at=NOW), job(3, asks=free, application=easy)
    there = scene(loud, waits, passes, here, applications=shipped)
    assert [each.job_id for each in of(decide(there, policy), Place)] == ["job-3"]
