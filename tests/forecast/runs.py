"""Made-up runs for the tests of run-time predictors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hcloud.forecast.runtimes.distribution import Predictor, RunTimes
from hcloud.forecast.runtimes.features import RunFeatures


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeRun:
    """One job, and how long it ran."""

    features: RunFeatures
    run_s: float


def runs_of(user: str, times_s: Sequence[float], **features: float) -> list[MadeRun]:
    """Return runs of one user."""
    return [MadeRun(features=RunFeatures(user=user, size=2.0, **features), run_s=each) for each in times_s]


def sweeps(rng: np.random.Generator, count: int, together: int) -> Iterator[list[MadeRun]]:
    """Yield ``count`` sweeps of ``together`` jobs submitted at once by one of eight users.

    The jobs of a sweep run for nearly the same time, those of another for up to ten times longer or shorter.
    """
    for _ in range(count):
        user = int(rng.integers(8))
        typical_s = 100.0 * 3.0**user * float(np.exp(rng.normal(0.0, 1.0)))
        yield runs_of(f"user-{user}", (typical_s * np.exp(rng.normal(0.0, 0.1, together))).tolist())


def replayed(predictor: Predictor, sweep: Sequence[MadeRun], *, judged_when_submitted: bool = True) -> list[RunTimes]:
    """Predict all jobs of a sweep, then learn from them; return what was predicted."""
    predicted = [predictor.predict(each.features) for each in sweep]
    for each, made in zip(sweep, predicted, strict=True):
        predictor.observe(each.features, each.run_s, predicted=made if judged_when_submitted else None)
    return predicted
