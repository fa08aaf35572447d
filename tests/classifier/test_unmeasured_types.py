"""Types that no program was measured on are estimated from the nearest ones, the wider the farther."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcloud.classifier.applications import Identity, feed, learn
from hcloud.classifier.belief_store import BeliefStore
from hcloud.classifier.classify import LINKED_MIN, classify
from hcloud.classifier.library import Library, MeasuredApplication, Question
from hcloud.classifier.unmeasured_types import apart, family_of, on_unmeasured_type
from hcloud.config import load_library, package_data
from hcloud.core.estimates import Application, Classification, Estimate, Findings, Measure, Reading
from hcloud.core.model import ProfileRequest
from hcloud.planner.fit.expected_performance import expected

EC2 = ("aws/m5.large", "aws/c5.xlarge", "aws/r5.2xlarge")
GCE = ("gce/n2-standard-4", "gce/e2-highmem-8")


def profiled() -> Application:
    """A program that was profiled on local types alone: one vCPU does 10 units per second, two do 18."""
    request = ProfileRequest(job_id="job-1", type_column="local/local.large", steps_vcpus=(2.0, 1.0))
    cells = (("type", "local/local.large", 18.0), ("step", "2 vCPU", 18.0), ("step", "1 vCPU", 10.0))
    readings = tuple(Reading(question=q, column=c, value=v, low=0.97 * v, high=1.03 * v) for q, c, v in cells)
    identity = Identity(program="ann:solve", input="0" * 64)
    return learn(None, identity, request, Findings(measure=Measure.PROGRESS, readings=readings), "job-2", 9.0)


def believed(row: Application) -> Classification:
    store = BeliefStore(library=load_library([package_data.path("profiles")]))
    store.follow({row.name: row})
    return store.believe([row.name])[row.name]


@pytest.mark.parametrize("column", [*EC2, *GCE])
def test_job_profiled_on_local_types_gets_wide_estimates_for_clouds(column: str) -> None:
    known = believed(profiled())
    alone = expected(known, column, vcpus=2.0, asked_vcpus=2.0)
    one = expected(known, column, vcpus=1.0, asked_vcpus=2.0)
    assert alone is not None and one is not None
    assert alone.value == pytest.approx(18.0, rel=0.05)
    assert one.value == pytest.approx(10.0, rel=0.1)
    low, high = alone.limits()
    # Processors in service differ by such factors at equal vCPUs; a local reading says no more.
    assert low < 18.0 / 1.5 and high > 18.0 * 1.5


def test_first_run_on_a_type_narrows_its_family_and_provider() -> None:
    before = believed(profiled())
    estimate = on_unmeasured_type(before.by_type, "aws/m5.large")
    assert estimate is not None
    row = feed(profiled(), "aws/m5.large", 27.0, estimate)
    after = believed(row)
    family, provider, other = (
        expected(after, column, vcpus=2.0, asked_vcpus=2.0) for column in ("aws/m5.2xlarge", "aws/c5.large", GCE[0])
    )
    assert family is not None and provider is not None and other is not None
    assert 18.0 < row.cells["type"]["aws/m5.large"] < 27.0
    assert family.value == pytest.approx(after.by_type["aws/m5.large"].value, rel=0.02)
    assert family.deviation < provider.deviation < other.deviation


@given(st.floats(1e-6, 1e6), st.floats(0.01, 2.0), st.integers(1, 5))
def test_estimates_scale_with_what_was_measured_and_are_never_surer(value: float, sd: float, count: int) -> None:
    known = Estimate(value, value * math.exp(-1.2816 * sd), value * math.exp(1.2816 * sd), True)
    found = on_unmeasured_type({f"aws/m5.size{n}": known for n in range(count)}, "aws/m5.new")
    assert found is not None
    assert found.value == pytest.approx(value)
    assert found.high / found.low >= known.high / known.low


def test_families_are_told_by_their_names() -> None:
    assert family_of("aws/m5.large") == ("aws", "m5")
    assert family_of("gce/n2-standard-4") == ("gce", "n2")
    assert (
        apart("aws/m5.large", "aws/m5.xlarge") < apart("aws/m5.large", "aws/c5.large") < apart("aws/m5.large", GCE[0])
    )


def test_nothing_is_estimated_from_nothing_or_for_what_is_no_type() -> None:
    assert on_unmeasured_type({}, "aws/m5.large") is None
    assert on_unmeasured_type({"aws/m5.large": Estimate(1.0, 1.0, 1.0)}, "fast") is None


def test_one_program_says_little_of_how_types_compare_for_another() -> None:
    """A service that other tenants slowed on its small machine made the large type look twice as fast for all."""
    columns = ("mock/c.large", "mock/m.2xlarge")
    known = Library()
    for name, ratio in (("web", 2.0), ("db", 2.1)):
        for column, value in zip(columns, (100.0, 100.0 * ratio), strict=True):
            known = known.feed(name, Question.TYPE, column, value)
    seen = MeasuredApplication(name="sort", cells={Question.TYPE: {columns[0]: 10.0}})
    found = classify(known, seen).by_type[columns[1]]
    assert 10.0 < found.value < 14.0
    assert found.low < 10.0
    # Where many programs agree, they are believed.
    for number in range(LINKED_MIN):
        for column, value in zip(columns, (50.0, 100.0), strict=True):
            known = known.feed(f"other-{number}", Question.TYPE, column, value)
    assert classify(known, seen).by_type[columns[1]].value == pytest.approx(20.0, rel=0.1)
