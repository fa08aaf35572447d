"""Classifying many jobs at once gives each what it gets alone, and what the formulas say for one row."""

import copy
import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcloud.classifier.classify import Classifier, FittedClassifier
from hcloud.classifier.estimator import EstimatedRow, Estimates, ObservedRows
from hcloud.classifier.gaussian import SCALE_STEPS, FittedGaussian, GaussianFoldIn
from hcloud.classifier.library import Library, MeasuredApplication, Question
from hcloud.classifier.needed_quality import SourceReliability, ToleranceScale
from hcloud.classifier.readings import readings_of, with_between
from hcloud.classifier.similar_programs import NEAREST
from hcloud.classifier.step_curve import rate_at, rates_by_vcpus
from hcloud.classifier.utility_matrix import NORMAL_95, Matrix, Scale
from hcloud.config import load_library, package_data
from hcloud.core import quality
from hcloud.core.errors import BadInput
from hcloud.core.estimates import Classification, Estimate
from tests.classifier.matrices import synthetic
from tests.classifier.test_classify import library, numbers

NEW_COLUMN = {
    Question.TYPE: "gce/n2-standard-4",
    Question.STEP: "3 vCPU",
    Question.NODES: "3",
    Question.TOLERATED: "new-source",
    Question.CAUSED: "new-source",
}


def profiled(known: Library, rng: np.random.Generator, number: int) -> MeasuredApplication:
    """A job that resembles a known one: no to three readings of each question, some with limits, some unusable."""
    like = known.known[sorted(known.known)[number % len(known.known)]]
    cells, spreads = dict[Question, dict[str, float]](), dict[Question, dict[str, float]]()
    for question, row in like.cells.items():
        columns = [str(each) for each in rng.permutation(sorted(row))[: rng.integers(0, 4)]]
        found = {column: row[column] * float(np.exp(0.1 * rng.normal())) for column in columns}
        if question.scale is Scale.SCORE:
            found = {column: min(100.0, value) for column, value in found.items()}
        if rng.random() < 0.15:
            found[NEW_COLUMN[question]] = 30.0
        if rng.random() < 0.1:
            found |= dict.fromkeys(list(found)[:1], math.nan)
        cells[question] = found
        if rng.random() < 0.6:
            widest = 0.5 if question.scale is Scale.RATIO else 40.0
            spreads[question] = {column: float(rng.uniform(0.0, widest)) for column in found}
    return MeasuredApplication(name=like.name if number % 3 else f"job-{number}", cells=cells, spreads=spreads)


def same(one: Classification, other: Classification) -> None:
    assert one.notes == other.notes
    assert [each.name for each in one.nearest] == [each.name for each in other.nearest]
    assert [list(each) for each in (one.by_type, one.by_step, one.by_nodes, one.tolerated, one.caused)] == [
        list(each) for each in (other.by_type, other.by_step, other.by_nodes, other.tolerated, other.caused)
    ]
    assert numbers(one) == pytest.approx(numbers(other), rel=1e-9, abs=1e-9)


@pytest.fixture(scope="module", params=["shipped", "synthetic", "three rows", "none"])
def fitted(request: pytest.FixtureRequest) -> FittedClassifier:
    shipped = load_library([package_data.path("profiles")])
    known = {"shipped": shipped, "synthetic": library(), "three rows": library(3), "none": Library()}
    return Classifier().fit(known[request.param])


def test_jobs_classified_together_get_what_each_gets_alone(fitted: FittedClassifier) -> None:
    rng, known = np.random.default_rng(0), fitted.library if fitted.library.known else library()
    jobs = [profiled(known, rng, number) for number in range(120)]
    for job, found in zip(jobs, fitted.classify_many(jobs), strict=True):
        same(found, fitted.classify(job))


def test_no_job_is_classified_to_nothing(fitted: FittedClassifier) -> None:
    assert fitted.classify_many([]) == []


def test_jobs_are_compared_in_parts_where_all_at_once_need_too_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted, rng = Classifier().fit(library()), np.random.default_rng(1)
    jobs = [profiled(fitted.library, rng, number) for number in range(10)]
    whole = fitted.classify_many(jobs)
    monkeypatch.setattr("hcloud.classifier.classify.CELLS_AT_ONCE", 300)
    for one, other in zip(fitted.classify_many(jobs), whole, strict=True):
        same(one, other)


def test_known_program_is_not_among_its_own_neighbours() -> None:
    fitted = Classifier().fit(library())
    rows = [*fitted.library.known.values()]
    for row, found in zip(rows, fitted.classify_many(rows), strict=True):
        assert len(found.nearest) == NEAREST
        assert row.name not in {each.name for each in found.nearest}


# ------------------------------------------------------------------------------------------ the formulas, row by row
def by_hand(fitted: FittedGaussian, index: Matrix, values: Matrix, noise: Matrix) -> tuple[Matrix, Matrix]:
    """Mean and deviation of one row by the printed formulas: kriging, and a multivariate t in steps."""
    scale, widening = 1.0, 1.0
    residual, whole = values - fitted.moments.mean[index], fitted.moments.covariance
    for _ in range(SCALE_STEPS + 1 if noise.any() else 1):
        covariance = scale * whole
        inverse = np.linalg.inv(covariance[np.ix_(index, index)] + np.diag(noise**2))
        cross, ones = covariance[:, index], inverse.sum(1)
        variance = covariance.diagonal() - (cross @ inverse * cross).sum(1)
        gain, precision = cross @ inverse, inverse
        if fitted.free_bias:
            precision = inverse - np.outer(ones, ones) / ones.sum()
            gain, variance = cross @ precision + ones / ones.sum(), variance + (1.0 - cross @ ones) ** 2 / ones.sum()
        freedom, surprise = len(index) - fitted.free_bias, residual @ precision @ residual
        widening = max(1.0, (fitted.tail + surprise) / (fitted.tail + freedom)) if freedom and fitted.tail else 1.0
        scale *= widening if noise.any() else 1.0
    return fitted.moments.mean + gain @ residual, fitted.stretch * np.sqrt(widening * np.maximum(variance, 0.0))


@pytest.mark.parametrize("scale", [Scale.RATIO, Scale.SCORE])
@pytest.mark.parametrize("tail", [8.0, None])
def test_rows_are_conditioned_as_the_formulas_say(scale: Scale, tail: float | None) -> None:
    known, rng = synthetic(3, 30, missing=0.2), np.random.default_rng(2)
    if scale is Scale.SCORE:
        known = replace(known, scale=scale, values=np.clip(0.5 + known.values / 6, 0.0, 1.0))
    fitted = GaussianFoldIn(tail=tail).fit(known)
    values = np.where(rng.random((80, 6)) < 0.5, rng.normal(0.4, 0.4, (80, 6)), np.nan)
    noise = np.where((rng.random((80, 6)) < 0.4) & ~np.isnan(values), rng.uniform(0.01, 0.3, (80, 6)), 0.0)
    mean, sd = fitted.predict(ObservedRows(values=values, noise=noise))
    widened = 0
    for row in np.flatnonzero((~np.isnan(values)).any(1)):
        index = np.flatnonzero(~np.isnan(values[row]))
        expected_mean, expected_sd = by_hand(fitted, index, values[row, index], noise[row, index])
        np.testing.assert_allclose(mean[row], expected_mean, rtol=1e-9, atol=1e-9)
        # A measured cell's own deviation is a difference of nearly equal numbers, and replaced by its noise.
        others = np.setdiff1d(np.arange(6), index)
        np.testing.assert_allclose(sd[row, others], expected_sd[others], rtol=1e-9)
        widened += noise[row].any()
    assert widened > 20


# --------------------------------------------------------------------------------------------------------- readings
@given(st.sampled_from(Scale), st.floats())
def test_values_are_coded_as_single_ones_are(scale: Scale, value: float) -> None:
    found = float(scale.encoded(np.array([value]))[0])
    try:
        assert found == pytest.approx(scale.to_axis(value, "here"), abs=1e-12)
    except BadInput:
        assert math.isnan(found)


def test_limits_are_coded_as_half_widths_of_the_axis() -> None:
    values, widths = np.array([50.0, 98.0, 3.0]), np.array([5.0, 30.0, 5.0])
    low, high = np.maximum(values - widths, 0.0), np.minimum(values + widths, 100.0)
    reach = [Scale.SCORE.to_axis(b, "") - Scale.SCORE.to_axis(a, "") for a, b in zip(low, high, strict=True)]
    np.testing.assert_allclose(Scale.SCORE.deviation(values, widths), np.array(reach) / 2 / NORMAL_95)
    np.testing.assert_allclose(Scale.RATIO.deviation(values, np.full(3, 0.1)), 0.1 / NORMAL_95)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 100.5])
def test_unusable_pressure_with_limits_is_left_out_and_named(bad: float) -> None:
    seen = MeasuredApplication(
        name="x", cells={Question.CAUSED: {"cpu": bad, "l3": 20.0}}, spreads={Question.CAUSED: {"cpu": 5.0, "l3": 5.0}}
    )
    found = Classifier().fit(library()).classify(seen)
    assert any(note.startswith("left out: caused 'cpu': interference is") for note in found.notes)
    assert found.caused["l3"].observed and not found.caused["cpu"].observed


def test_amounts_between_two_near_ones_are_interpolated_and_as_sure_as_the_least_sure() -> None:
    columns = ("0.25 vCPU", "0.5 vCPU", "1 vCPU", "2 vCPU", "8 vCPU", "whole")
    near = {"0.5 vCPU": 2.0, "2 vCPU": 5.0, "whole": 1.0}
    jobs = [
        MeasuredApplication(name="far", cells={Question.STEP: near}),
        MeasuredApplication(
            name="near",
            cells={Question.STEP: {"0.5 vCPU": 2.0, "1.2 vCPU": 3.0}},
            spreads={Question.STEP: {"0.5 vCPU": 0.1, "1.2 vCPU": 0.2}},
        ),
    ]
    notes: list[list[str]] = [[], []]
    far, close = readings_of(Question.STEP, jobs, columns, notes).by_new_columns()
    assert with_between(far.cells, far.columns) is far.cells
    filled = with_between(close.cells, close.columns)
    at = close.columns.index("1 vCPU")
    expected = rate_at(rates_by_vcpus(jobs[1].cells[Question.STEP]), 1.0)
    assert math.exp(-filled.values[0, at]) == pytest.approx(expected)
    assert filled.noise[0, at] == pytest.approx(0.2 / NORMAL_95)
    assert np.isnan(filled.values[0]).sum() == len(close.columns) - 3
    assert notes == [[], []]


def test_needed_quality_is_the_code_of_what_each_job_cannot_bear() -> None:
    rng = np.random.default_rng(4)
    tolerated, readings = rng.uniform(-5.0, 105.0, (30, 3)), rng.uniform(0.0, 100.0, (30, 3))
    observed, spreads = rng.random((30, 3)) < 0.5, rng.uniform(0.0, 60.0, (30, 3))
    estimates = Estimates(
        columns=("a", "b", "c"), values=tolerated, low=tolerated - 5.0, high=tolerated + 5.0, observed=observed
    )
    scale = ToleranceScale(
        sources={
            "a": SourceReliability(mean=60.0, variance=200.0, error_variance=50.0),
            "b": SourceReliability(mean=40.0, variance=math.inf, error_variance=50.0),
        }
    )
    found = scale.needed(estimates, np.where(observed, readings, np.nan), spreads)
    for job, needed in enumerate(found):
        values = tolerated[job].copy()
        if observed[job, 0]:
            reading, spread = readings[job, 0], spreads[job, 0]
            error_sd = (min(100.0, reading + spread) - max(0.0, reading - spread)) / 2.0 / NORMAL_95
            values[0] = 60.0 + 200.0 / (200.0 + error_sd**2) * (reading - 60.0)
        if observed[job, 1]:
            values[1] = readings[job, 1]
        # "c" is of no known program, so it does not count.
        assert needed.value == pytest.approx(
            quality.encode([100.0 - min(100.0, max(0.0, each)) for each in values[:2]])
        )
        assert needed.low <= needed.value <= needed.high
        assert needed.observed == observed[job, :2].all()


# ------------------------------------------------------------------------------------------ rows that are read later
def rows_of_two() -> list[EstimatedRow[str]]:
    cells = np.array([[1.0, 2.0], [3.0, 4.0]])
    observed = np.array([[True, False], [False, True]])
    estimates = Estimates(columns=("a", "b"), values=cells, low=cells - 0.5, high=cells + 0.5, observed=observed)
    return estimates.by_row(("a", "b"))


def test_a_row_of_estimates_is_the_mapping_that_its_cells_make() -> None:
    first, second = rows_of_two()
    cells = {"a": Estimate(3.0, 2.5, 3.5, observed=False), "b": Estimate(4.0, 3.5, 4.5, observed=True)}
    assert second == cells and cells == second and second != first
    assert first["a"] == Estimate(1.0, 0.5, 1.5, observed=True)
    assert {**second} == dict(second.items()) == cells
    assert (list(second), len(second), list(second.values())) == (["a", "b"], 2, [*cells.values()])
    assert "a" in second and "c" not in second
    assert second.get("c") is None and second.get("c", cells["a"]) is cells["a"]
    with pytest.raises(KeyError):
        second["c"]
    assert all(type(each.value) is float and type(each.observed) is bool for each in second.values())


@pytest.mark.parametrize("copied", [pickle.loads, copy.deepcopy])
def test_a_copy_of_a_row_does_not_hold_the_others(copied: Callable[[Any], Any]) -> None:
    row = rows_of_two()[1]
    found = copied(pickle.dumps(row) if copied is pickle.loads else row)
    assert type(found) is dict and found == row
