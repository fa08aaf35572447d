"""How much of a machine a rank gets: the least that meets its target there, on several kinds of machines at once.

A performance whose logarithm is normal meets the target at a loss ``l`` with the confidence of quantile ``z`` where
``mean + log(1 - l) - z deviation >= log target``. So all that a job's classification says, the *ladder* of steps of
each kind, stays the same while its target changes with the time that is left: it is worked out once for many plans.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import numpy.typing as npt

from hcloud.known import Classification
from hcloud.planner.pressure import Floats
from hcloud.planner.sizing import ALIKE, SizeTarget, factor, on_type, quantile_of

NEAR = 0.1
"""Half a size comes near to it where it does so much less at most."""
LEAST_DOUBT = 1e-3
"""No performance is known more exactly than this (standard deviation of its logarithm)."""
ROOM = 0.05
"""And it is to be expected to do so much more than what is wanted, where the whole is: neighbours cost something."""
_DUST = 1e-9
_NOTHING_LOST = float(np.log(1.0 + _DUST))
Places = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SizeCurves:
    """The steps of K kinds of machines, least first, S at most; shorter ones are filled up with their last.

    Shape ``(K, S)``: ``vcpus``, the ``performance`` expected alone and its logarithm (``mean``), the standard deviation
    of that (``doubt``), what it surely reaches, with the confidence wanted (``surely``; both logarithms are minus
    infinity where there is no such step), and the least performance as good as its own (``alike``). ``halves``, shape
    ``(K, S, S)``: which steps, by size and by how much they do less than another, may be taken for it; ``halved``:
    whether any may. ``itself``, shape ``(S, S)``: each step. ``kinds``, shape ``(K,)``: all of them; ``most_surely``,
    of the same shape: the most of ``surely``. Of a kind of which nothing is known the only step is what was asked for,
    and it meets everything. ``asked``: the last target, and what became of it.
    """

    vcpus: Floats
    performance: Floats
    mean: Floats
    doubt: Floats
    surely: Floats
    halves: Flags
    halved: bool
    itself: Flags
    kinds: Places
    alike: Floats
    most_surely: Floats
    asked: list[object] = field(default_factory=list, repr=False)

    def towards(self, target: float) -> SizeCurve:
        """Return which steps meet ``target``; the answer to the same question as before is kept."""
        if not self.asked or self.asked[0] != target:
            self.asked[:] = target, self._towards(target)
        return cast(SizeCurve, self.asked[1])

    def _towards(self, target: float) -> SizeCurve:
        return SizeCurve(ladders=self, target=math.log(target), taken=self.worth(target))

    def worth(self, target: float) -> Floats:
        """Return by kind and step the vCPUs taken for it: the least, at most half of its own, that are expected to meet
        ``target`` as well and come near it, if any.

        A little more performance, or a little more certainty of it, is not worth twice the price; whoever then misses
        its target is corrected.
        """
        if not self.halved:
            return self.vcpus
        whole = self.performance
        room = np.where(whole >= target, np.minimum(target * (1.0 + ROOM), self.alike), 0.0)
        does_as_well = self.halves & (whole[:, None, :] >= room[:, :, None])
        # Half of a step comes before it.
        found: Floats = self.vcpus[self.kinds[:, None], (does_as_well | self.itself).argmax(axis=2)]
        return found


@dataclass(slots=True, kw_only=True, eq=False)
class SizeCurve:
    """How ladders stand to a ``target`` (its logarithm): what is ``taken`` for each step, shape ``(K, S)``. Worked out
    when it is first asked for: by how many standard deviations each is ``above`` the target, the most of that
    (``highest``), and which one of each kind (``best``) is taken where none meets it with the confidence: the likeliest
    to."""

    ladders: SizeCurves
    target: float
    taken: Floats
    _above: tuple[Floats, Floats] | None = None
    _best: Places | None = None

    def above(self) -> tuple[Floats, Floats]:
        """Return by how many standard deviations each step is above the target, and of each kind the most of that."""
        if self._above is None:
            above = (self.ladders.mean - self.target) / self.ladders.doubt
            self._above = above, np.maximum.reduce(above, axis=1)
        return self._above

    def best(self) -> Places:
        """Return by kind the first of the steps that are likeliest to meet the target."""
        if self._best is None:
            above, highest = self.above()
            self._best = (above >= highest[:, None] - _DUST).argmax(axis=1)
        return self._best

    def least(self, kind_at: Places, losses: Floats) -> Floats:
        """Return the least vCPUs that meet the target at each of ``losses`` on a machine of that kind (both of shape
        ``(N,)``), and are worth it; where none do, the best."""
        enough = self.ladders.surely[kind_at] >= (self.target - np.log(1.0 - losses + _DUST))[:, None]
        return self._first(kind_at, enough)

    def _first(self, kind_at: Places, enough: Flags) -> Floats:
        """Return what is taken for the first step that is ``enough`` (of each row), else for the best of its kind."""
        places, met = enough.argmax(axis=1), np.logical_or.reduce(enough, axis=1)
        if np.count_nonzero(met) < len(met):
            places = np.where(met, places, self.best()[kind_at])
        found: Floats = self.taken[kind_at, places]
        return found

    def least_on(self, kind: int, loss: float) -> float:
        """Return :meth:`least` of one machine."""
        wanted, surely = float(self.target - np.log(1.0 - loss + _DUST)), self.ladders.surely[kind].tolist()
        place = next((place for place, each in enumerate(surely) if each >= wanted), None)
        return float(self.taken[kind, self.best()[kind] if place is None else place])

    def alone(self) -> Floats:
        """Return by kind what :meth:`least` does for a machine with nobody else on it, shape ``(K,)``."""
        return self._first(self.ladders.kinds, self.ladders.surely >= self.target - _NOTHING_LOST)

    def shortfalls(self) -> Places:
        """Return by kind 0 where an empty machine meets the target with the wanted confidence (or nothing is known of
        it), 1 where it is more likely than not to, else one more for each standard deviation below it."""
        below = np.maximum(np.ceil(-self.above()[1] - _DUST), 0.0)
        found: Places = np.where(self._surely(), 0, 1 + below.astype(np.intp))
        return found

    def likely(self) -> Flags:
        """Return by kind whether an empty machine is more likely than not to meet the target: :meth:`shortfalls` of 1
        at most."""
        found: Flags = self._surely() | (self.above()[1] >= -_DUST)
        return found

    def _surely(self) -> Flags:
        surely: Flags = self.ladders.most_surely >= self.target - _DUST
        return surely


def size_curves(
    known: Classification, kinds: tuple[tuple[str, float], ...], aim: SizeTarget, confidence: float
) -> SizeCurves:
    """Return the steps of ``kinds``: of each its type and the vCPUs of a machine. They do not depend on the target."""
    question = ("ladders", kinds, aim.asked_vcpus, aim.low, aim.high, aim.nodes, confidence)
    return known.answer(question, lambda: _ladders(known, kinds, aim, confidence))


def _ladders(
    known: Classification, kinds: Sequence[tuple[str, float]], aim: SizeTarget, confidence: float
) -> SizeCurves:
    steps = aim.steps(known)
    factors, count = np.array([factor(known, step, aim.asked_vcpus, aim.nodes) for step in steps]), len(steps)
    types = np.array([on_type(known, column) for column, _ in kinds]).reshape(-1, 2)
    told = ~(np.isnan(types[:, 0]) | np.isnan(factors[:, 0].sum()))
    fitting = np.searchsorted(np.array(steps), np.array([most for _, most in kinds]) + _DUST, side="right")
    rungs: Places = np.where(told, fitting, 0)
    last = np.minimum(np.arange(count)[None, :], np.maximum(rungs, 1)[:, None] - 1)
    at, there = np.arange(len(kinds))[:, None], np.arange(count)[None, :] < rungs[:, None]
    mean = (types[:, None, 0] + factors[None, :, 0] + factors[None, :, 2])[at, last]
    doubt = np.sqrt(types[:, None, 1] ** 2 + factors[None, :, 1] ** 2 + factors[None, :, 3] ** 2)[at, last]
    surely = np.where(there, mean - quantile_of(confidence) * doubt, -np.inf)
    nothing = rungs == 0
    surely[nothing, 0], mean[nothing], doubt[nothing] = np.inf, 0.0, 1.0
    vcpus = np.where(nothing[:, None], aim.asked_vcpus, np.array(steps)[last])
    return size_curves_of(vcpus, mean, doubt, surely)


def size_curves_of(vcpus: Floats, mean: Floats, doubt: Floats, surely: Floats) -> SizeCurves:
    """Return ladders of these steps, each of shape ``(K, S)``: see :class:`Ladders`."""
    performance = np.exp(mean)
    halves = _halves(vcpus, performance)
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


def _halves(vcpus: Floats, performance: Floats) -> Flags:
    """Return which steps have at most half of the vCPUs of others and come near them, shape ``(K, S, S)``."""
    half = 2 * vcpus[:, None, :] <= vcpus[:, :, None] + _DUST
    near: Flags = performance[:, None, :] >= performance[:, :, None] / (1.0 + NEAR)
    return half & near
