"""A reading with wide limits is believed between its value and what other readings and known programs predict."""

import math

import numpy as np
import pytest

from hcloud.classifier.belief_store import BeliefStore
from hcloud.classifier.interference import CORE_SOURCES, NOT_COUNTED
from hcloud.classifier.library import Library, MeasuredApplication, Question
from hcloud.classifier.utility_matrix import Scale
from hcloud.config import load_library, package_data
from hcloud.core.estimates import Application, Classification, Estimate, Measure

SOURCES = ("llc-capacity", "memory-bandwidth", "storage-bandwidth")


def library(question: Question = Question.TOLERATED, size: int = 20) -> Library:
    """Programs that tolerate about as much of the second source as of the first, and anything of the third."""
    rng, known = np.random.default_rng(1), {}
    for number in range(size):
        level = 5.0 + 90.0 * number / (size - 1)
        row = (level, min(100.0, max(0.0, level + rng.normal(0, 2))), rng.uniform(0, 100))
        known[f"p{number}"] = MeasuredApplication(
            name=f"p{number}", cells={question: dict(zip(SOURCES, row, strict=True))}
        )
    return Library(known=known)


def believed(
    library: Library, cells: dict[str, dict[str, float]], spreads: dict[str, dict[str, float]]
) -> Classification:
    store = BeliefStore(library=library)
    row = Application(name="a", program="p", measure=Measure.PROGRESS, cells=cells, spreads=spreads, revision=1)
    store.follow({"a": row})
    return store.believe(["a"])["a"]


def tolerated(values: dict[str, float], spreads: dict[str, float]) -> dict[str, Estimate]:
    return dict(believed(library(), {"tolerated": values}, {"tolerated": spreads}).tolerated)


def test_wide_reading_is_corrected_by_a_sure_one_of_a_source_that_goes_with_it() -> None:
    values = {"llc-capacity": 20.0, "memory-bandwidth": 60.0}
    sure = tolerated(values, {"llc-capacity": 2.0, "memory-bandwidth": 2.0})
    wide = tolerated(values, {"llc-capacity": 2.0, "memory-bandwidth": 55.0})
    assert sure["memory-bandwidth"].value == pytest.approx(60.0, abs=3.0)
    assert 15.0 < wide["memory-bandwidth"].value < 40.0
    assert wide["memory-bandwidth"].high < 60.0  # surer than its own reading, by the other
    assert wide["llc-capacity"].value == pytest.approx(20.0, abs=3.0)
    assert wide["memory-bandwidth"].observed


def test_wide_reading_alone_lies_between_its_value_and_the_typical_program() -> None:
    found = [tolerated({"storage-bandwidth": 100.0}, {"storage-bandwidth": each}) for each in (1.0, 40.0, 100.0)]
    values = [each["storage-bandwidth"].value for each in found]
    assert 100.0 > values[0] > values[1] > values[2] > 45.0
    widths = [each["storage-bandwidth"].high - each["storage-bandwidth"].low for each in found]
    assert widths[0] < widths[1] <= widths[2]


def test_wide_rate_on_a_type_follows_the_types_that_were_measured_well() -> None:
    known = {
        f"p{n}": MeasuredApplication(
            name=f"p{n}", cells={Question.TYPE: {f"mock/{t}": (1 + n) * (1 + 0.01 * (n % 3)) for t in "abc"}}
        )
        for n in range(12)
    }
    cells = {"type": {"mock/a": 10.0, "mock/b": 20.0}}
    found = believed(Library(known=known), cells, {"type": {"mock/a": 0.02, "mock/b": 1.0}}).by_type
    assert found["mock/b"].value == pytest.approx(10.0, rel=0.1)  # all others are as fast on both
    assert found["mock/a"].value == pytest.approx(10.0, rel=0.02)
    assert found["mock/c"].value == pytest.approx(10.0, rel=0.05)


@pytest.mark.parametrize("question", [Question.TOLERATED, Question.CAUSED])
def test_readings_of_shipped_programs_with_added_noise_are_believed_nearer_to_the_truth(question: Question) -> None:
    """Each program left out in turn, its sources read with a standard deviation of 15 % of the axis."""
    shipped = load_library([package_data.path("profiles")])
    rng, noise = np.random.default_rng(0), 0.15
    raw, nearer, within = list[float](), list[float](), list[bool]()
    for name, whole in shipped.known.items():
        others = Library(known={n: row for n, row in shipped.known.items() if row.program != whole.program})
        truth = dict(whole.cells[question])
        axis = {s: question.scale.to_axis(value, s) + rng.normal(0, noise) for s, value in truth.items()}
        read = {s: float(Scale.SCORE.from_axis(np.array(value))) for s, value in axis.items()}
        spreads = {s: _points(value, 1.96 * noise) for s, value in read.items()}
        found = believed(others, {question.value: read}, {question.value: spreads})
        answers = found.tolerated if question is Question.TOLERATED else found.caused
        for source, value in truth.items():
            estimate = answers[source]
            raw.append(abs(read[source] - value))
            nearer.append(abs(estimate.value - value))
            if source not in CORE_SOURCES | NOT_COUNTED:
                within.append(estimate.low <= value <= estimate.high)
        assert name
    assert math.fsum(nearer) < 0.85 * math.fsum(raw)
    assert sum(within) / len(within) >= 0.7


def test_program_unlike_all_others_is_not_taken_for_one_of_them() -> None:
    alike = {f"p{n}": {"llc-capacity": 100.0 - n / 10, "memory-bandwidth": 100.0 - n / 7} for n in range(20)}
    rows = {n: MeasuredApplication(name=n, cells={Question.TOLERATED: row}) for n, row in alike.items()}
    spread = 10.0
    cells, spreads = {"tolerated": {"llc-capacity": 30.0}}, {"tolerated": {"llc-capacity": spread}}
    estimate = believed(Library(known=rows), cells, spreads).tolerated["llc-capacity"]
    assert 30.0 < estimate.value < 30.0 + spread  # all others tolerate 98 or more
    assert estimate.low < 30.0 < estimate.high < 50.0


def _points(value: float, reach: float) -> float:
    """The half-width in points that is a half-width of ``reach`` on the axis."""
    at = Scale.SCORE.to_axis(value, "reading")
    low, high = (float(Scale.SCORE.from_axis(np.array(each))) for each in (at - reach, at + reach))
    return max(value - low, high - value)
