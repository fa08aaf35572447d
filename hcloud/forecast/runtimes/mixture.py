"""Run times as a mixture of smoothed histories, weighed by how well each predicted before, and recalibrated.

An expert is the history of one combination's value under one decay. Its weight follows from how many runs it has, how
well its latest two agree and how long ago it was seen last, and from how well it predicted for this user. The weights
are learnt by gradient steps on the log score of the mixture. How often runs ended below each quantile in the past
(PIT, the probability integral transform) then corrects the quantiles.

Other than the predictor of the paper (:mod:`hcloud.forecast.runtimes.printed`), it chooses no single history.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcloud.forecast.runtimes.distribution import Floats, RunTimes
from hcloud.forecast.runtimes.features import COMBINATIONS, RunFeatures, combination_keys
from hcloud.forecast.runtimes.histories import (
    BIN_WIDTH,
    BINS,
    CENSORED,
    COARSE,
    COUNTED,
    EDGES_S,
    EMPTY,
    PLACES,
    Codes,
    Counts,
    HistoryTable,
    Integers,
    KeyIndex,
    bin_of,
    decay_weights,
    grown,
    weights_by_count,
)

DECAYS = (0.5, 0.93, 0.995)
"""Weight of a run beside that of the next later one."""
SMOOTHING = ((0.7, 0.05), (0.2, 0.35), (0.1, 1.2))
"""Kernel over log run times: weight and scale of each of its Laplace parts. Tuned, as is all below, on half a log."""
PRIOR_RUNS = 0.2
"""Runs that the history of all jobs counts for in each expert."""
FIRST_RUNS = 5.0
"""Runs that "all orders of magnitude are as likely" counts for in the history of all jobs."""
COUNT_LIMITS = (0.5, 1.5, 2.5, 4.5, 8.5, 16.5, 50.0, 200.0)
"""Limits of the classes of decayed counts of runs."""
FIRST_WEIGHTS = (0.0, 0.15, 0.3, 0.45, 0.6, 0.7, 0.75, 0.75, 0.75)
"""Log weight of an expert by that class before anything is learnt."""
AGREEMENT_LIMITS = (1, 7)
"""Limits of the classes of the difference between the latest two runs, in bins (7: a factor 2)."""
RECENCY_LIMITS = (20, 200, 2000)
"""Limits of the classes of the number of runs observed since the value was seen last."""
LEARNING_RATE, USER_LEARNING_RATE, USER_DECAY = 0.15, 0.1, 0.998
"""Gradient steps of the log weights of all and of a user, and what remains of a user's at the next of its runs."""
PIT_BINS, PIT_PRIOR, PIT_DECAY, PIT_FLOOR = 50, 4.0, 0.999, 0.1
"""Bins of past PITs, what each has at first, what remains of it at the next run, and what each has at least."""
MAX_VALUES, MAX_USERS = 49_151, 4_095

_COUNT_CLASSES, _PAIR_CLASSES = len(COUNT_LIMITS) + 1, len(AGREEMENT_LIMITS) + 2
_CLASSES = _COUNT_CLASSES + _PAIR_CLASSES + len(RECENCY_LIMITS) + 1
_EXPERTS = len(COMBINATIONS) * len(DECAYS)
_SOURCES = tuple("+".join(each) or "all jobs" for each in COMBINATIONS)
_PLACE_WEIGHTS = decay_weights(DECAYS)
_RUNS = weights_by_count(DECAYS)
_CLASS_OF_COUNT: Integers = np.searchsorted(COUNT_LIMITS, _RUNS)
_SHARE_OF_RUN: Floats = 1.0 / (_RUNS + PRIOR_RUNS)
_PIT_GRID = np.linspace(0.0, 1.0, PIT_BINS + 1)
_CENSORED_CODES = slice(CENSORED, CENSORED + BINS // COARSE)
_CENSORED_BINS = np.arange(0, BINS, COARSE)
_BIN_OF_CODE: Integers = np.zeros(EMPTY + 1, np.int64)
_BIN_OF_CODE[:BINS], _BIN_OF_CODE[_CENSORED_CODES] = np.arange(BINS), _CENSORED_BINS


def _kernel() -> Floats:
    distance = BIN_WIDTH * np.abs(np.arange(BINS)[None, :] - np.arange(BINS)[:, None])
    parts = [(weight, np.exp(-distance / scale)) for weight, scale in SMOOTHING]
    kernel: Floats = np.sum([weight * part / part.sum(axis=1, keepdims=True) for weight, part in parts], axis=0)
    return kernel


_KERNEL = _kernel()
_KERNEL_FROM: Floats = np.cumsum(_KERNEL[:, ::-1], axis=1)[:, ::-1]


class _Experts(NamedTuple):
    """Those of the combinations known of a job; arrays of shape ``(combinations, decays)``."""

    numbers: Integers
    first_class: Integers
    """Where the log weights of each begin."""


@lru_cache(maxsize=512)
def _experts(known: tuple[int, ...]) -> _Experts:
    numbers = np.array(known)[:, None] * len(DECAYS) + np.arange(len(DECAYS))[None, :]
    return _Experts(numbers, numbers * _CLASSES)


class _Known(NamedTuple):
    """What the histories say of one job's combinations."""

    codes: Codes
    """Shape ``(combinations, PLACES)``."""
    counts: Counts
    recency: Codes
    """Class of recency, shape ``(combinations,)``."""

    def to_bytes(self) -> bytes:
        return self.codes.tobytes() + self.counts.astype("<u2").tobytes() + self.recency.tobytes()

    @classmethod
    def from_bytes(cls, packed: bytes, combinations: int) -> _Known | None:
        """Return what was packed, or None if that was of other combinations."""
        if len(packed) != combinations * (PLACES + 3):
            return None
        codes, counts = combinations * PLACES, combinations * (PLACES + 2)
        known = cls(
            np.frombuffer(packed, np.uint8, codes).reshape(combinations, PLACES),
            np.frombuffer(packed, "<u2", combinations, codes).astype(np.uint16),
            np.frombuffer(packed, np.uint8, combinations, counts),
        )
        valid = known.counts.max() <= COUNTED and known.recency.max() <= len(RECENCY_LIMITS)
        return known if valid else None


class _Mixture(NamedTuple):
    """A mixture before it is recalibrated."""

    weights: Floats
    """Of each expert, shape ``(combinations, decays)``; the sum is 1."""
    shares: Floats
    """What one run of weight 1 counts in each expert, same shape."""
    classes: tuple[Integers, Integers, Integers]
    """Which log weights made the weights, by count, agreement and recency; same shape each."""
    mass: Floats
    """Probability of each bin, shape ``(BINS,)``."""


@dataclass(slots=True, eq=False)
class MixturePredictor:
    """Predicts run times, and learns from each run that ended. See :class:`~.distribution.Predictor`."""

    max_values: int = MAX_VALUES
    """Maximum number of values of combinations that are remembered; the default takes 12 MB."""
    max_users: int = MAX_USERS
    """Maximum number of users whose log weights are remembered."""
    histories: HistoryTable = field(init=False)
    """Run times of each value of each combination."""
    all_runs: Floats = field(init=False)
    """Smoothed run times of all jobs, without decay, shape ``(BINS,)``."""
    log_weights: Floats = field(init=False)
    """Of each expert by class of count, agreement and recency; shape ``(experts * classes,)``."""
    users: KeyIndex = field(init=False)
    """Rows of ``user_log_weights``."""
    user_log_weights: NDArray[np.float32] = field(init=False)
    """Of each expert by user, shape ``(rows, experts)``."""
    past_pits: Floats = field(init=False)
    """How many runs ended in each fiftieth of what was predicted, decayed, shape ``(PIT_BINS,)``."""

    def __post_init__(self) -> None:
        self.histories = HistoryTable(max(self.max_values, len(COMBINATIONS)))
        self.all_runs = np.full(BINS, FIRST_RUNS / BINS)
        first = np.zeros((_EXPERTS, _CLASSES))
        first[:, :_COUNT_CLASSES] = FIRST_WEIGHTS
        self.log_weights = first.ravel()
        self.users = KeyIndex(max(self.max_users, 1))
        self.user_log_weights = np.zeros((len(self.users.last_used), _EXPERTS), np.float32)
        self.past_pits = np.full(PIT_BINS, PIT_PRIOR)

    def predict(self, features: RunFeatures, age_s: float = 0.0) -> RunTimes:
        """Return the distribution of a job's run time; ``age_s``: how long it ran already, in seconds."""
        combinations, keys = combination_keys(features, COMBINATIONS)
        known = self._known(keys)
        mixture = self._mixture(_experts(combinations), known, self._user_row(combinations, keys))
        mass = mixture.mass
        below = np.empty(BINS + 1)
        below[0] = 0.0
        np.cumsum(mass, out=below[1:])
        below /= below[-1]
        pits = np.empty(PIT_BINS + 1)
        pits[0] = 0.0
        np.cumsum(self.past_pits + PIT_FLOOR, out=pits[1:])
        pits /= pits[-1]
        # What is not of a history's own runs is of all jobs. Of equal combinations the last is the most special.
        own = (mixture.weights * (1.0 - PRIOR_RUNS * mixture.shares)).sum(axis=1)
        found = RunTimes(
            EDGES_S,
            np.interp(below, _PIT_GRID, pits),
            evidence=known.to_bytes(),
            source=_SOURCES[combinations[len(own) - 1 - int(own[::-1].argmax())]],
        )
        return found.after(age_s) if age_s > 0.0 else found

    def observe(
        self, features: RunFeatures, run_s: float, censored: bool = False, *, predicted: RunTimes | None = None
    ) -> None:
        """Learn that a job ran for ``run_s`` seconds; ``censored``: it was stopped then and would have run longer.

        ``predicted`` is what :meth:`predict` returned when the job was submitted; without it the weights are learnt
        from what is known now. A time that is negative or not finite is ignored.
        """
        if not 0.0 <= run_s < math.inf:
            return
        combinations, keys = combination_keys(features, COMBINATIONS)
        known = _Known.from_bytes(predicted.evidence, len(combinations)) if predicted is not None else None
        at = bin_of(run_s)
        self._learn(combinations, keys, known or self._known(keys), at, censored)
        code = CENSORED + at // COARSE if censored else at
        self.histories.extend(self.histories.rows_to_extend(keys), code)
        if censored:
            self.all_runs[at:] *= 1.0 + 1.0 / self.all_runs[at:].sum()
        else:
            self.all_runs += _KERNEL[at]

    def evidence(self, features: RunFeatures) -> bytes:
        """Return the evidence of what :meth:`predict` would return now: all that :meth:`observe` needs of it."""
        return self._known(combination_keys(features, COMBINATIONS)[1]).to_bytes()

    def runs_of(self, features: RunFeatures, *combinations: tuple[str, ...]) -> int:
        """Return how many runs with these values of a combination of ``COMBINATIONS`` are remembered, at most
        ``COUNTED``; the most of several. 0 if a value is not known."""
        assert set(combinations) <= set(COMBINATIONS), combinations
        _, keys = combination_keys(features, combinations)
        return max([int(self.histories.counts[row]) for row in self.histories.rows_to_read(keys)], default=0)

    def copy(self) -> MixturePredictor:
        """Return a predictor that predicts the same, whatever this one learns later."""
        other = object.__new__(MixturePredictor)
        other.max_values, other.max_users = self.max_values, self.max_users
        other.histories, other.users = self.histories.copy(), self.users.copy()
        for name in ("all_runs", "log_weights", "user_log_weights", "past_pits"):
            setattr(other, name, getattr(self, name).copy())
        return other

    def _known(self, keys: Sequence[int]) -> _Known:
        table = self.histories
        rows = np.array(table.rows_to_read(keys))
        unseen = np.minimum(table.now - table.index.last_used[rows], RECENCY_LIMITS[-1] + 1)
        recency = np.searchsorted(RECENCY_LIMITS, unseen).astype(np.uint8)
        return _Known(table.codes[rows], table.counts[rows], recency)

    def _user_row(self, combinations: tuple[int, ...], keys: tuple[int, ...]) -> int:
        return self.users.rows.get(_user_key(combinations, keys), 0)

    def _mixture(self, experts: _Experts, known: _Known, user_row: int) -> _Mixture:
        latest, before = _BIN_OF_CODE[known.codes[:, 0]], _BIN_OF_CODE[known.codes[:, 1]]
        agreement = np.searchsorted(AGREEMENT_LIMITS, np.abs(latest - before)) + 1
        agreement[known.counts < 2] = 0
        classes = (
            experts.first_class + _CLASS_OF_COUNT[known.counts],
            experts.first_class + (agreement + _COUNT_CLASSES)[:, None],
            experts.first_class + (known.recency + (_COUNT_CLASSES + _PAIR_CLASSES))[:, None],
        )
        logs = self.user_log_weights[user_row].take(experts.numbers).astype(np.float64)
        for each in classes:
            logs += self.log_weights.take(each)
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        shares = _SHARE_OF_RUN[known.counts]
        per_run = weights * shares
        by_place = (per_run @ _PLACE_WEIGHTS).ravel()
        counted: Floats = np.asarray(np.bincount(known.codes.ravel(), by_place, EMPTY + 1), np.float64)
        prior = self.all_runs * (PRIOR_RUNS * per_run.sum() / self.all_runs.sum())
        mass = counted[:BINS] @ _KERNEL + prior
        stopped = counted[_CENSORED_CODES]
        if stopped.any():
            mass = _with_stopped(mass, stopped)
        return _Mixture(weights, shares, classes, mass)

    def _learn(
        self, combinations: tuple[int, ...], keys: tuple[int, ...], known: _Known, at: int, censored: bool
    ) -> None:
        """Take one gradient step of the log weights, and count the PIT."""
        experts, user_key = _experts(combinations), _user_key(combinations, keys)
        mixture = self._mixture(experts, known, self.users.rows.get(user_key, 0))
        prior_from = np.cumsum(self.all_runs[::-1])[::-1]
        prior_from = prior_from / prior_from[0]
        scores = np.zeros(EMPTY + 1)
        if censored:
            scores[:BINS] = _KERNEL_FROM[:, at]
            prior = float(prior_from[at])
            scores[_CENSORED_CODES] = prior_from[np.maximum(_CENSORED_BINS, at)] / prior_from[_CENSORED_BINS]
        else:
            scores[:BINS] = _KERNEL[:, at]
            prior = float(self.all_runs[at] / self.all_runs.sum())
            scores[_CENSORED_CODES] = np.where(at >= _CENSORED_BINS, prior / prior_from[_CENSORED_BINS], 0.0)
        likelihood = (scores[known.codes] @ _PLACE_WEIGHTS.T + PRIOR_RUNS * prior) * mixture.shares
        share = mixture.weights * likelihood
        step = share / share.sum() - mixture.weights
        for each in mixture.classes:
            self.log_weights[each] += LEARNING_RATE * step
        self._extend_users(user_key)
        row = self.user_log_weights[self.users.add(user_key, self.histories.now)]
        row[experts.numbers] += USER_LEARNING_RATE * step
        row *= USER_DECAY
        below = float(mixture.mass[:at].sum() + 0.5 * mixture.mass[at]) / float(mixture.mass.sum())
        pit = min(PIT_BINS - 1, int(PIT_BINS * below))
        self.past_pits *= PIT_DECAY
        if censored:
            self.past_pits[pit:] += (self.past_pits[pit:] + PIT_FLOOR) / (self.past_pits[pit:] + PIT_FLOOR).sum()
        else:
            self.past_pits[pit] += 1.0

    def _extend_users(self, key: int) -> None:
        if key in self.users.rows:
            return
        if (stay := self.users.make_room(1)) is not None:
            self.user_log_weights[: len(stay)] = self.user_log_weights[stay]
            self.user_log_weights[len(stay) :] = 0.0
        self.users.add(key, self.histories.now)
        while len(self.user_log_weights) < len(self.users.last_used):
            self.user_log_weights = grown(self.user_log_weights, self.users.limit)


def _user_key(combinations: tuple[int, ...], keys: tuple[int, ...]) -> int:
    # The first combination is of all jobs, the second of the user's.
    return keys[1] if combinations[1:2] == (1,) else 0


def _with_stopped(mass: Floats, stopped: Floats) -> Floats:
    """Return the mass of each bin with that of stopped runs passed on to later bins (Kaplan and Meier, 1958).

    ``stopped``: mass by the first bin of each ``COARSE``. Such a run is only known not to have ended before.
    """
    censored = np.zeros(BINS)
    censored[_CENSORED_BINS] = stopped
    at_risk = np.cumsum(mass[::-1])[::-1] + np.cumsum(censored[::-1])[::-1] - censored
    hazard = np.minimum(mass / at_risk, 1.0)
    hazard[-1] = 1.0
    outlived = np.concatenate(((1.0,), np.cumprod(1.0 - hazard)[:-1]))
    redistributed: Floats = outlived * hazard * (mass.sum() + stopped.sum())
    return redistributed
