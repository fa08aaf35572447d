"""The four classifications together: answers, notes, neighbours, and never a NaN."""

import math
from collections.abc import Mapping
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hcloud.classifier.classify import Classifier, classify
from hcloud.classifier.library import Library, MeasuredApplication, Question
from hcloud.core.estimates import Classification, Estimate

TYPES = ("small", "medium", "large")
SOURCES = ("cpu", "l3", "disk", "net")


def application(name: str, *, parallel: float, disk: float, scale: float) -> MeasuredApplication:
    """An application with a given parallel share that presses on the disk."""
    size = {"small": 1.0, "medium": 2.0, "large": 4.0}
    speed = {each: scale * of ** (1.2 * parallel - 0.1) for each, of in size.items()}
    return MeasuredApplication(
        name=name,
        cells={
            Question.TYPE: speed,
            Question.STEP: {str(n): scale * n**parallel for n in (1, 2, 4)},
            Question.NODES: {str(n): scale * n ** (0.8 * parallel) for n in (1, 2, 4, 8)},
            Question.TOLERATED: {"cpu": 100 * parallel, "l3": 60.0, "disk": 100 - disk, "net": 80.0},
            Question.CAUSED: {"cpu": 90 * (1 - parallel), "l3": 30.0, "disk": disk, "net": disk / 2},
        },
    )


def library(size: int = 24) -> Library:
    rng = np.random.default_rng(0)
    known = Library()
    for i in range(size):
        known = known.learn(
            application(
                f"app{i:02d}",
                parallel=float(rng.uniform(0.1, 0.95)),
                disk=float(rng.uniform(0, 95)),
                scale=float(np.exp(rng.normal())),
            )
        )
    return known


FITTED = Classifier().fit(library())
TRUTH = application("new", parallel=0.7, disk=40.0, scale=3.0)


def part(whole: MeasuredApplication, **columns: tuple[str, ...]) -> MeasuredApplication:
    """Only some of the cells of an application."""
    cells = {question: whole.cells[question] for question in Question}
    return MeasuredApplication(
        name=whole.name,
        cells={
            Question(question): {c: cells[Question(question)][c] for c in chosen}
            for question, chosen in columns.items()
        },
    )


def numbers(found: Classification) -> list[float]:
    """Every number in the answer."""
    collected: list[float] = [found.quality_target.value, found.quality_target.low, found.quality_target.high]
    for each in fields(found):
        value = getattr(found, each.name)
        if isinstance(value, Mapping):
            for estimate in value.values():
                collected += [estimate.value, estimate.low, estimate.high]
                assert estimate.low <= estimate.value <= estimate.high
    return collected + [each.similarity for each in found.nearest]


def test_two_numbers_per_question_tell_the_rest() -> None:
    seen = part(
        TRUTH,
        type=("small", "large"),
        step=("1", "4"),
        nodes=("1", "2"),
        tolerated=("cpu", "disk"),
        caused=("cpu", "disk"),
    )
    found = FITTED.classify(seen)
    assert found.by_type["medium"].value == pytest.approx(TRUTH.cells[Question.TYPE]["medium"], rel=0.1)
    assert found.by_step["2"].value == pytest.approx(TRUTH.cells[Question.STEP]["2"], rel=0.1)
    assert found.by_nodes[8].value == pytest.approx(TRUTH.cells[Question.NODES]["8"], rel=0.3)
    assert found.caused["net"].value == pytest.approx(20, abs=5)
    assert found.by_type["small"].observed and not found.by_type["medium"].observed
    assert found.quality_target.low <= found.quality_target.value <= found.quality_target.high
    assert found.notes == ()


def test_performance_is_more_is_better_on_both_sides() -> None:
    found = FITTED.classify(part(TRUTH, type=("small", "large")))
    assert found.by_type["large"].value == pytest.approx(TRUTH.cells[Question.TYPE]["large"])
    assert found.by_type["large"].value > found.by_type["medium"].value > found.by_type["small"].value


def test_the_same_application_under_another_name_is_the_nearest() -> None:
    twin = library().known["app07"]
    found = FITTED.classify(
        MeasuredApplication(name="twin", cells={q: dict(list(c.items())[:2]) for q, c in twin.cells.items()})
    )
    assert found.nearest[0].name == "app07"
    assert 0.8 < found.nearest[0].similarity <= 1.0
    assert [each.similarity for each in found.nearest] == sorted((n.similarity for n in found.nearest), reverse=True)


def test_nothing_observed_is_answered_from_the_prior_and_said() -> None:
    found = FITTED.classify(MeasuredApplication(name="crashed"))
    assert len([note for note in found.notes if "not measured" in note]) == 5
    assert found.by_type["large"].high / found.by_type["large"].low > 3
    assert found.nearest == ()
    assert all(map(math.isfinite, numbers(found)))


def test_an_empty_library_answers_from_what_was_observed() -> None:
    found = classify(Library(), part(TRUTH, type=("small",), caused=("cpu",)))
    assert found.by_type["small"].value == pytest.approx(TRUTH.cells[Question.TYPE]["small"])
    assert found.by_step == {} and found.by_nodes == {}
    assert any("scale" in note or "step: not measured, and no known" in note for note in found.notes)
    nothing = classify(Library(), MeasuredApplication(name="x"))
    assert nothing.quality_target == Estimate(value=0.5, low=0.0, high=1.0)
    assert all(map(math.isfinite, numbers(nothing)))


@pytest.mark.parametrize("bad", [math.nan, 0.0, -3.0, math.inf])
def test_an_unusable_value_is_left_out_and_named(bad: float) -> None:
    seen = MeasuredApplication(name="x", cells={Question.TYPE: {"small": bad, "large": 2.0}})
    found = FITTED.classify(seen)
    assert any(note.startswith("left out: type 'small': performance is") for note in found.notes)
    assert not found.by_type["small"].observed
    assert all(map(math.isfinite, numbers(found)))


def test_a_type_nobody_knows_is_answered_widely() -> None:
    found = FITTED.classify(MeasuredApplication(name="x", cells={Question.TYPE: {"huge": 8.0}}))
    assert any("first measurement at huge" in note for note in found.notes)
    assert found.by_type["huge"].observed
    known = FITTED.classify(MeasuredApplication(name="x", cells={Question.TYPE: {"small": 8.0}}))
    assert (
        found.by_type["large"].high / found.by_type["large"].low
        > known.by_type["large"].high / known.by_type["large"].low
    )


anything = st.one_of(st.floats(), st.sampled_from([0.0, 1e-300, 1e300, 50.0]))


@given(
    st.fixed_dictionaries(
        {},
        optional={
            Question.TYPE: st.dictionaries(st.sampled_from([*TYPES, "other"]), anything, max_size=3),
            Question.STEP: st.dictionaries(st.sampled_from(["1", "2", "4"]), anything, max_size=3),
            Question.NODES: st.dictionaries(st.sampled_from(["1", "2", "8", "0", "x"]), anything, max_size=3),
            Question.TOLERATED: st.dictionaries(st.sampled_from(SOURCES), anything, max_size=3),
            Question.CAUSED: st.dictionaries(st.sampled_from(SOURCES), anything, max_size=3),
        },
    )
)
@settings(max_examples=60)
def test_whatever_profiling_brings_nothing_downstream_is_nan(cells: dict[Question, dict[str, float]]) -> None:
    nothing_is_nan(FITTED.classify(MeasuredApplication(name="x", cells=cells)))


def nothing_is_nan(found: Classification) -> None:
    for each in numbers(found):
        assert math.isfinite(each)
    for estimate in (*found.tolerated.values(), *found.caused.values()):
        assert 0 <= estimate.low <= estimate.high <= 100
    assert 0 <= found.quality_target.low <= found.quality_target.high <= 1


def test_the_nan_check_catches_a_planted_nan() -> None:
    spoiled = Classification(
        by_type={"x": Estimate(value=1.0, low=math.nan, high=2.0)},
        quality_target=Estimate(value=0.5, low=0.0, high=1.0),
    )
    with pytest.raises(AssertionError):
        nothing_is_nan(spoiled)


def test_amounts_nobody_else_was_measured_at_tell_of_those_between_them() -> None:
    known, rng = Library(), np.random.default_rng(0)
    for n in range(24):
        parallel, scale = 0.2 + 0.03 * n, float(np.exp(rng.normal()))
        growth = {f"{v:g} vCPU": scale * v**parallel for v in (0.5, 1.0, 2.0, 4.0)}
        known = known.learn(MeasuredApplication(name=f"app{n}", cells={Question.STEP: growth}))
    fitted = Classifier().fit(known)
    steep = {f"{v:g} vCPU": 3.0 * v**0.9 for v in (0.3, 0.6)}
    found = fitted.classify(MeasuredApplication(name="new", cells={Question.STEP: steep}))
    assert found.by_step["0.5 vCPU"].value == pytest.approx(3.0 * 0.5**0.9, rel=0.05)
    assert found.by_step["1 vCPU"].value == pytest.approx(3.0, rel=0.35)
