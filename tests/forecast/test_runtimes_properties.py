"""What holds of run-time predictors whatever they observe; each property catches a seeded fault."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from hcloud.forecast.runtimes.distribution import Predictor, RunTimes
from hcloud.forecast.runtimes.features import RunFeatures
from hcloud.forecast.runtimes.histories import KeyIndex
from hcloud.forecast.runtimes.mixture import MixturePredictor
from hcloud.forecast.runtimes.printed import PrintedPredictor
from hcloud.forecast.runtimes.state import dump, load

PROBABILITIES = np.linspace(0.0, 1.0, 21)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One run that a predictor observes."""

    features: RunFeatures
    run_s: float
    censored: bool
    handed_back: bool
    """The prediction is given back when the run ends."""


texts = st.none() | st.sampled_from(["ann", "ben", "", "\ud800", "x" * 50])
numbers = st.none() | st.sampled_from([1.0, 4.0, -1.0, math.nan, math.inf, 1e300]) | st.floats(0.0, 1e6)
features = st.builds(
    RunFeatures,
    user=texts,
    name=texts,
    application=texts,
    executable=texts,
    group=texts,
    queue=texts,
    requested_s=numbers,
    size=numbers,
    input_size=numbers,
    submit_hour=st.none() | st.integers(0, 23),
    submit_weekday=st.none() | st.integers(0, 6),
)
times = (
    st.sampled_from([0.0, 1.0, 60.0, 3600.0, 1e6]) | st.floats(0.0, 1e9) | st.sampled_from([-1.0, math.nan, math.inf])
)
seen = st.builds(Seen, features=features, run_s=times, censored=st.booleans(), handed_back=st.booleans())
histories = st.lists(seen, max_size=12)
ages = st.floats(0.0, 1e9)


def learn(predictor: Predictor, runs: Sequence[Seen]) -> None:
    for each in runs:
        predicted = predictor.predict(each.features) if each.handed_back else None
        predictor.observe(each.features, each.run_s, each.censored, predicted=predicted)


# ---------------------------------------------------------------------------------------------------------- properties
def is_a_distribution(made: Callable[[], Predictor], runs: Sequence[Seen], job: RunFeatures, age_s: float) -> None:
    """Probabilities rise from 0 to 1 over times that rise; quantiles lie where the probabilities say, past the age."""
    predictor = made()
    learn(predictor, runs)
    found = predictor.predict(job, age_s)
    assert found.cumulative[0] == 0.0
    assert found.cumulative[-1] == pytest.approx(1.0)
    assert (np.diff(found.cumulative) >= 0.0).all()
    assert (np.diff(found.times_s) >= 0.0).all()
    quantiles = found.quantiles(PROBABILITIES)
    assert np.isfinite(quantiles).all()
    assert (np.diff(quantiles) >= 0.0).all()
    assert (quantiles >= age_s * (1.0 - 1e-9)).all()
    assert quantiles[0] <= found.expected_s <= quantiles[-1]
    for probability, quantile in zip(PROBABILITIES, quantiles, strict=True):
        assert found.cdf(quantile * (1.0 + 1e-9)) >= probability - 1e-6
        assert found.quantile(probability) == pytest.approx(quantile)
        later = found.after(3.0 * age_s).quantile(probability)
        assert found.quantile_after(3.0 * age_s, probability) == pytest.approx(later, rel=1e-6)


def predicting_changes_nothing(made: Callable[[], MixturePredictor], runs: Sequence[Seen], job: RunFeatures) -> None:
    """What is predicted in between has no effect on what is predicted later."""
    predictor = made()
    learn(predictor, runs)
    before, first = dump(predictor), predictor.predict(job)
    assert predictor.predict(job, 100.0).age_s == 100.0
    assert dump(predictor) == before
    assert predictor.predict(job).cumulative.tolist() == first.cumulative.tolist()


def survives_writing(read: Callable[[bytes], MixturePredictor], runs: Sequence[Seen], job: RunFeatures) -> None:
    """A predictor that was written and read predicts the same, now and after the same runs."""
    predictor = MixturePredictor(max_values=60, max_users=2)
    learn(predictor, runs)
    again = read(dump(predictor))
    for _ in range(2):
        assert again.predict(job).cumulative.tolist() == predictor.predict(job).cumulative.tolist()
        learn(predictor, runs)
        learn(again, runs)
    assert dump(again) == dump(predictor)


def stays_bounded(made: Callable[[], MixturePredictor], runs: Sequence[Seen]) -> None:
    """However many values it sees, it remembers no more than it may."""
    predictor = made()
    learn(predictor, runs)
    for number in range(8):
        learn(predictor, [replace(each, features=replace(each.features, user=f"u{number}")) for each in runs[:3]])
    assert len(predictor.histories.index.rows) <= predictor.max_values
    assert len(predictor.users.rows) <= predictor.max_users


def stopping_never_shortens(made: Callable[[], MixturePredictor], runs: Sequence[Seen], last: Seen) -> None:
    """Had the latest run been stopped instead of ended, longer runs would be no less likely."""
    beyond = []
    for censored in (False, True):
        predictor = made()
        learn(predictor, [each for each in runs if not each.censored])
        weights = predictor.log_weights.copy(), predictor.user_log_weights.copy(), predictor.past_pits.copy()
        predictor.observe(last.features, last.run_s, censored)
        # Compared is what the histories say: the score of a stopped run is another than that of one that ended.
        predictor.log_weights, predictor.user_log_weights, predictor.past_pits = weights
        beyond.append(1.0 - predictor.predict(last.features).cdf(last.run_s * 1.6))
    assert beyond[1] >= beyond[0] - 1e-9


def age_is_conditional(after: Callable[[RunTimes, float], RunTimes], runs: Sequence[Seen], age_s: float) -> None:
    """Once a job ran for some time, later ends are as likely as before, among those still possible."""
    predictor = MixturePredictor()
    learn(predictor, runs)
    found = predictor.predict(RunFeatures(user="ann"))
    reached = found.cdf(age_s)
    if 1.0 - reached < 1e-3:
        return
    aged = after(found, age_s)
    for factor in (1.0, 1.5, 4.0, 100.0):
        at_s = max(age_s, 0.1) * factor
        assert aged.cdf(at_s) == pytest.approx((found.cdf(at_s) - reached) / (1.0 - reached), abs=1e-6)
    assert after(aged, age_s * 2.0 + 1.0).quantile(0.5) == pytest.approx(after(found, age_s * 2.0 + 1.0).quantile(0.5))


# --------------------------------------------------------------------------------------------------- the seeded faults
class _NotNormalised(MixturePredictor):
    """Fault: the distribution of a job that ran already is cut off below its age, no more."""

    def predict(self, features: RunFeatures, age_s: float = 0.0) -> RunTimes:
        found = super().predict(features)
        return replace(found, cumulative=np.maximum(found.cumulative, found.cdf(age_s)), age_s=age_s)


class _CountsPredictions(MixturePredictor):
    """Fault: what is asked for is taken for what runs."""

    def predict(self, features: RunFeatures, age_s: float = 0.0) -> RunTimes:
        found = super().predict(features, age_s)
        self.all_runs[-1] += 1.0
        return found


class _TakesStoppedForEnded(MixturePredictor):
    """Fault: a run that was stopped counts as one twice as short that ended."""

    def observe(
        self, features: RunFeatures, run_s: float, censored: bool = False, *, predicted: RunTimes | None = None
    ) -> None:
        super().observe(features, run_s / 2.0 if censored else run_s, False, predicted=predicted)


def _forgets_users(state: bytes) -> MixturePredictor:
    """Fault: what was learnt about users is not read."""
    found = load(state)
    found.users = KeyIndex(found.users.limit)
    return found


def _small() -> MixturePredictor:
    return MixturePredictor(max_values=40, max_users=3)


class _Unbounded(KeyIndex):
    """Fault: nothing is forgotten."""

    def make_room(self, number: int) -> None:
        return None


def _forgets_nothing() -> MixturePredictor:
    predictor = _small()
    predictor.histories.index = _Unbounded(predictor.histories.limit)
    return predictor


def _late(found: RunTimes, age_s: float) -> RunTimes:
    """Fault: the age is counted twice."""
    return found.after(2.0 * age_s)


CASES: dict[str, tuple[Any, tuple[Any, ...], dict[str, st.SearchStrategy[Any]]]] = {
    "distribution": (
        is_a_distribution, (MixturePredictor, _NotNormalised), {"runs": histories, "job": features, "age_s": ages}
    ),
    "pure": (predicting_changes_nothing, (MixturePredictor, _CountsPredictions), {"runs": histories, "job": features}),
    "written": (survives_writing, (load, _forgets_users), {"runs": histories, "job": features}),
    "stopped": (stopping_never_shortens, (MixturePredictor, _TakesStoppedForEnded), {"runs": histories, "last": seen}),
    "bounded": (stays_bounded, (_small, _forgets_nothing), {"runs": histories}),
    "age": (age_is_conditional, (RunTimes.after, _late), {"runs": histories, "age_s": ages}),
}  # fmt: skip
"""Property, what has it and what breaks it, and what is drawn."""


def search(
    check: Callable[..., None], subject: object, drawn: dict[str, st.SearchStrategy[Any]], examples: int
) -> None:
    @settings(max_examples=examples, deadline=None, database=None, phases=[Phase.generate])
    @given(st.fixed_dictionaries(drawn))
    def holds(values: dict[str, Any]) -> None:
        check(subject, **values)

    holds()


@pytest.mark.parametrize("name", CASES)
def test_property_holds_whatever_was_observed(name: str) -> None:
    check, (subject, _), drawn = CASES[name]
    search(check, subject, drawn, 25)


@pytest.mark.parametrize("name", CASES)
def test_property_catches_its_seeded_fault(name: str) -> None:
    check, (_, fault), drawn = CASES[name]
    with pytest.raises(AssertionError):
        search(check, fault, drawn, 200)


def test_printed_predictor_gives_distributions_too() -> None:
    drawn = {"runs": histories, "job": features, "age_s": ages}
    search(is_a_distribution, PrintedPredictor, drawn, 25)
