"""Size curves: the vCPUs of one rank that meet a target, on many kinds of machines at once (Quasar).

The least size is the one :mod:`hcloud.planner.fit.sizing` would take on each kind, computed on arrays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import numpy.typing as npt

from hcloud.core.estimates import Classification
from hcloud.planner.fit.expected_performance import ALIKE, factor, on_type, quantile_of
from hcloud.planner.fit.interference import Floats
from hcloud.planner.fit.sizing import Places, SizeTarget

NEAR = 0.1
"""A step with at most half the vCPUs may replace another if it performs at most this share worse."""
LEAST_DOUBT = 1e-3
"""Minimum standard deviation of the logarithm of a performance."""
USABLE_VCPUS = 1.0
"""Fewer vCPUs that a rank would leave of an otherwise empty machine, and less than half of its own, are of no use to
others: it gets them, too, and ends sooner."""
ROOM = 0.05
"""A step that replaces another must exceed the target by this share, because neighbours cost performance."""
_DUST = 1e-9
_NOTHING_LOST = float(np.log(1.0 + _DUST))
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SizeCurves:
    """Performance by step for K kinds of machines with up to S steps each, ascending; shape ``(K, S)`` unless stated.

    Shorter curves repeat their last step. A kind without estimate has one step, the default size, which meets any
    target.
    """

    vcpus: Floats
    performance: Floats
    """Expected isolated performance."""
    mean: Floats
    """Its logarithm; minus infinity where there is no such step."""
    doubt: Floats
    """Standard deviation of ``mean``."""
    surely: Floats
    """Logarithm of the performance reached with the required confidence; minus infinity where there is no such step."""
    halves: Flags
    """Shape ``(K, S, S)``: which steps have at most half the vCPUs of another and perform nearly as well."""
    halved: bool
    """Whether ``halves`` has any entry."""
    itself: Flags
    """Identity matrix, shape ``(S, S)``."""
    kinds: Places
    """Indices of all kinds, shape ``(K,)``."""
    alike: Floats
    """The least performance that counts as equal."""
    most_surely: Floats
    """Maximum of ``surely`` by kind, shape ``(K,)``."""
    asked: list[object] = field(default_factory=list, repr=False)
    """Cache of the last target and its curve."""

    def towards(self, target: float) -> SizeCurve:
        """Return the curve for ``target``; the last one is cached."""
        if not self.asked or self.asked[0] != target:
            self.asked[:] = target, SizeCurve(curves=self, target=math.log(target), taken=self.worth(target))
        return cast(SizeCurve, self.asked[1])

    def worth(self, target: float) -> Floats:
        """Return the vCPUs taken for each kind and step.

        The fewest vCPUs, at most half the step's own, that are expected to meet ``target`` and perform nearly as well;
        otherwise the step's own. Slightly more performance or certainty is not worth twice the price; correction
        handles later misses.
        """
        if not self.halved:
            return self.vcpus
        whole = self.performance
        room = np.where(whole >= target, np.minimum(target * (1.0 + ROOM), self.alike), 0.0)
        does_as_well = self.halves & (whole[:, None, :] >= room[:, :, None])
        # argmax takes the first True: smaller steps come before the step itself.
        found: Floats = self.vcpus[self.kinds[:, None], (does_as_well | self.itself).argmax(axis=2)]
        return found


@dataclass(slots=True, kw_only=True, eq=False)
class SizeCurve:
    """Size curves relative to a target; derived values are computed on first use."""

    curves: SizeCurves
    target: float
    """Logarithm of the target."""
    taken: Floats
    """vCPUs taken for each step, shape ``(K, S)``."""
    _above: tuple[Floats, Floats] | None = None
    _best: Places | None = None

    def above(self) -> tuple[Floats, Floats]:
        """Return by how many standard deviations each step exceeds the target, and the maximum by kind."""
        if self._above is None:
            above = (self.curves.mean - self.target) / self.curves.doubt
            self._above = above, np.maximum.reduce(above, axis=1)
        return self._above

    def best(self) -> Places:
        """Return, by kind, the first of the steps most likely to meet the target."""
        if self._best is None:
            above, highest = self.above()
            self._best = (above >= highest[:, None] - _DUST).argmax(axis=1)
        return self._best

    def least(self, kind_at: Places, losses: Floats) -> Floats:
        """Return the fewest vCPUs that meet the target at each of ``losses``, on machines of kind ``kind_at``.

        Both have shape ``(N,)``. If no step meets it with the required confidence, the most likely one is taken.
        """
        enough = self.curves.surely[kind_at] >= (self.target - np.log(1.0 - losses + _DUST))[:, None]
        return self._first(kind_at, enough)

    def _first(self, kind_at: Places, enough: Flags) -> Floats:
        """Return the vCPUs of the first step that is ``enough``, by row; otherwise of the best step of its kind."""
        places, met = enough.argmax(axis=1), np.logical_or.reduce(enough, axis=1)
        if np.count_nonzero(met) < len(met):
            places = np.where(met, places, self.best()[kind_at])
        found: Floats = self.taken[kind_at, places]
        return found

    def least_on(self, kind: int, loss: float) -> float:
        """Return :meth:`least` for one machine."""
        wanted, surely = float(self.target - np.log(1.0 - loss + _DUST)), self.curves.surely[kind].tolist()
        place = next((place for place, each in enumerate(surely) if each >= wanted), None)
        return float(self.taken[kind, self.best()[kind] if place is None else place])

    def alone(self) -> Floats:
        """Return :meth:`least` for an empty machine of each kind, shape ``(K,)``."""
        return self._first(self.curves.kinds, self.curves.surely >= self.target - _NOTHING_LOST)

    def shortfalls(self) -> Places:
        """Return how far an empty machine of each kind falls short of the target, in steps.

        0: it meets the target with the required confidence, or is unknown. 1: it is more likely than not to meet it.
        Higher values add one per standard deviation below it.
        """
        below = np.maximum(np.ceil(-self.above()[1] - _DUST), 0.0)
        found: Places = np.where(self._surely(), 0, 1 + below.astype(np.intp))
        return found

    def likely(self) -> Flags:
        """Return by kind whether an empty machine is more likely than not to meet the target."""
        found: Flags = self._surely() | (self.above()[1] >= -_DUST)
        return found

    def _surely(self) -> Flags:
        surely: Flags = self.curves.most_surely >= self.target - _DUST
        return surely


def size_curves(
    known: Classification, kinds: tuple[tuple[str, float], ...], aim: SizeTarget, confidence: float
) -> SizeCurves:
    """Return the curves of ``kinds``, each a type and the vCPUs of one machine. They do not depend on the target."""
    question = ("size curves", kinds, aim.asked_vcpus, aim.low, aim.high, aim.nodes, confidence)
    return known.answer(question, lambda: _size_curves(known, kinds, aim, confidence))


def _size_curves(
    known: Classification, kinds: Sequence[tuple[str, float]], aim: SizeTarget, confidence: float
) -> SizeCurves:
    steps = aim.steps(known)
    factors, count = np.array([factor(known, step, aim.asked_vcpus, aim.nodes) for step in steps]), len(steps)
    types = np.array([on_type(known, column) for column, _ in kinds]).reshape(-1, 2)
    is_known = ~(np.isnan(types[:, 0]) | np.isnan(factors[:, 0].sum()))
    fitting = np.searchsorted(np.array(steps), np.array([most for _, most in kinds]) + _DUST, side="right")
    step_counts: Places = np.where(is_known, fitting, 0)
    last = np.minimum(np.arange(count)[None, :], np.maximum(step_counts, 1)[:, None] - 1)
    at, there = np.arange(len(kinds))[:, None], np.arange(count)[None, :] < step_counts[:, None]
    mean = (types[:, None, 0] + factors[None, :, 0] + factors[None, :, 2])[at, last]
    doubt = np.sqrt(types[:, None, 1] ** 2 + factors[None, :, 1] ** 2 + factors[None, :, 3] ** 2)[at, last]
    surely = np.where(there, mean - quantile_of(confidence) * doubt, -np.inf)
    nothing = step_counts == 0
    surely[nothing, 0], mean[nothing], doubt[nothing] = np.inf, 0.0, 1.0
    vcpus = np.where(nothing[:, None], aim.asked_vcpus, _with_rest(np.array(steps)[last], kinds, aim))
    return size_curves_of(vcpus, mean, doubt, surely)


def _with_rest(vcpus: Floats, kinds: Sequence[tuple[str, float]], aim: SizeTarget) -> Floats:
    """Return the vCPUs of steps with what they would leave of a machine, if that is of no use and permitted."""
    if aim.low >= aim.high:
        return vcpus
    most = np.array([vcpus for _, vcpus in kinds])[:, None]
    rest = most - vcpus
    found: Floats = np.where(
        (rest < USABLE_VCPUS) & (rest < vcpus / 2), np.maximum(np.minimum(most, aim.high), vcpus), vcpus
    )
    return found


def size_curves_of(vcpus: Floats, mean: Floats, doubt: Floats, surely: Floats) -> SizeCurves:
    """Return curves from their steps, each of shape ``(K, S)``; see :class:`SizeCurves`."""
    performance = np.exp(mean)
    half = 2 * vcpus[:, None, :] <= vcpus[:, :, None] + _DUST
    near: Flags = performance[:, None, :] >= performance[:, :, None] / (1.0 + NEAR)
    halves = half & near
    return SizeCurves(
        vcpus=vcpus,
        performance=performance,
        doubt=np.maximum(doubt, LEAST_DOUBT),
        surely=surely,
        mean=np.where(np.isneginf(surely), -np.inf, mean),
        halves=halves,
        halved=bool(halves.any()),
        itself=np.eye(vcpus.shape[1], dtype=np.bool_),
        kinds=np.arange(len(vcpus)),
        alike=performance / (1.0 + ALIKE),
        most_surely=surely.max(axis=1),
    )
