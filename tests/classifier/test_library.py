"""Feedback from runs: cells and rows are updated, and drift is detected without false alarms."""

import math

import numpy as np
import pytest

from hcloud.classifier.classify import classify
from hcloud.classifier.gaussian import GaussianFoldIn
from hcloud.classifier.library import Drift, Library, MeasuredApplication, Question
from hcloud.core.errors import BadInput
from hcloud.core.estimates import Estimate
from tests.classifier.matrices import synthetic
from tests.classifier.test_classify import TRUTH, library, part


def test_an_observed_cell_is_written_back_and_moves_the_estimates() -> None:
    known = library()
    before = classify(known, part(TRUTH, type=("small",))).by_type["large"]
    seen = part(TRUTH, type=("small",)).with_cell(Question.TYPE, "medium", TRUTH.cells[Question.TYPE]["medium"])
    after = classify(known, seen).by_type["large"]
    truth = TRUTH.cells[Question.TYPE]["large"]
    assert abs(math.log(after.value / truth)) < abs(math.log(before.value / truth))
    assert after.high / after.low < before.high / before.low


def test_a_job_that_ran_becomes_a_row() -> None:
    fed = library().feed("job", Question.TYPE, "small", 2.0).feed("job", Question.TYPE, "large", 5.0)
    assert "job" in fed.rows(Question.TYPE).names
    assert "job" not in fed.rows(Question.STEP).names
    assert "job" not in library().known


def test_feeding_nonsense_is_refused_with_its_place() -> None:
    with pytest.raises(BadInput, match=r"job, type 'small': performance is 0.0; it must be a finite number above 0"):
        Library().feed("job", Question.TYPE, "small", 0.0)
    spoiled = Library().learn(MeasuredApplication(name="job", cells={Question.STEP: {"1": math.nan}}))
    with pytest.raises(BadInput, match="job, step '1': performance is nan"):
        spoiled.rows(Question.STEP)


def test_one_more_row_moves_the_moments_as_a_refit_would() -> None:
    known = synthetic(2, 60)
    estimator = GaussianFoldIn(tail=None, calibrate=False)
    learned = estimator.fit(known.take(range(59))).learned(known.values[59])
    again = estimator.fit(known)
    seen = {"c0": 2.0, "c3": 2.5}
    stale = estimator.fit(known.take(range(59)))
    np.testing.assert_allclose(learned.complete(seen).mean, again.complete(seen).mean, atol=0.01)
    gap = np.abs(learned.moments.covariance - again.moments.covariance).max()
    assert gap < np.abs(stale.moments.covariance - again.moments.covariance).max()
    assert learned.learned(np.full(6, np.nan)) is learned


ESTIMATE = Estimate(value=10.0, low=8.0, high=12.5)


def test_repeated_departure_is_drift() -> None:
    watch = Drift()
    for measured in (10.0, 5.0, 5.5):
        watch = watch.seen(ESTIMATE, measured)
    assert not watch.drifted
    assert watch.seen(ESTIMATE, 4.0).drifted


def test_measurements_within_the_stated_uncertainty_are_no_drift() -> None:
    rng = np.random.default_rng(0)
    sd = math.log(12.5 / 10.0) / 1.2816
    alarms = 0
    for _ in range(200):
        watch = Drift()
        for _ in range(20):
            watch = watch.seen(ESTIMATE, 10.0 * float(np.exp(sd * rng.normal())))
            alarms += watch.drifted
    assert alarms < 40


def test_a_run_that_brings_nothing_counts_as_a_miss() -> None:
    watch = Drift()
    for measured in (math.nan, 0.0, math.nan):
        watch = watch.seen(ESTIMATE, measured)
    assert watch.drifted


def test_old_departures_are_forgotten() -> None:
    watch = Drift()
    for measured in (1.0, 1.0, *(10.0,) * 5):
        watch = watch.seen(ESTIMATE, measured)
    assert watch.missed == (False,) * 5


def test_pressures_are_judged_in_points() -> None:
    watch = Drift()
    for _ in range(3):
        watch = watch.seen(Estimate(value=5.0, low=0.0, high=12.0), 0.0)
    assert not watch.drifted
