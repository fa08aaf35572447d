"""How much of a machine a rank gets: the least that meets its target there, on several kinds of machines at once.

A performance whose logarithm is normal meets the target at a loss ``l`` with the confidence of quantile ``z`` where
``mean + log(1 - l) - z deviation >= log target``. So all that a job's classification says, the *ladder* of steps of
each kind, stays the same while its target changes with the time that is left: it is worked out once for many plans.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hcloud.known import Classification
from hcloud.planner.pressure import Floats
from hcloud.planner.sizing import ALIKE, Aim, expected, quantile_of

NEAR = 0.1
"""Half a size comes near to it where it does so much less at most."""
LEAST_DOUBT = 1e-3
"""No performance is known more exactly than this (standard deviation of its logarithm)."""
ROOM = 0.05
"""And it is to be expected to do so much more than what is wanted, where the whole is: neighbours cost something."""
_DUST = 1e-9
Places = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ladders:
    """The steps of K kinds of machines, least first, S at most; shorter ones are filled up with their last.

    Shape ``(K, S)``: ``vcpus``, the logarithm of the performance expected alone (``mean``), its standard deviation
    (``doubt``), and what it surely reaches, with the confidence wanted (``surely``); where there is no such step the
    last two say that it meets nothing. ``halves``, shape ``(K, S, S)``: which steps, by size and by how much they do
    less than another, may be taken for it. ``unknown``, shape ``(K,)``: kinds of which nothing is known; there the only
    step is what was asked for, and it meets everything.
    """

    vcpus: Floats
    mean: Floats
    doubt: Floats
    surely: Floats
    halves: Flags
    unknown: Flags

    def least(self, target: float, kind_at: Places, losses: Floats) -> Floats:
        """Return the least vCPUs that meet ``target`` at each of ``losses`` on a machine of that kind (both of shape
        ``(N,)``), and are worth it; where none do, the best."""
        needed = math.log(target) - np.log(1.0 - losses + _DUST)
        enough = self.surely[kind_at] >= needed[:, None]
        places = np.where(np.logical_or.reduce(enough, axis=1), enough.argmax(axis=1), self.best(target)[kind_at])
        found: Floats = self.taken(target)[kind_at, places]
        return found

    def alone(self, target: float) -> Floats:
        """Return by kind what :meth:`least` does for a machine with nobody else on it, shape ``(K,)``."""
        kinds = np.arange(len(self.vcpus))
        return self.least(target, kinds, np.zeros(len(kinds)))

    def best(self, target: float) -> Places:
        """Return by kind the step that is taken where none meets the target with the confidence: the likeliest to."""
        deviations = self._deviations_above(target)
        likeliest: Places = (deviations >= deviations.max(axis=1, keepdims=True) - _DUST).argmax(axis=1)
        return likeliest

    def taken(self, target: float) -> Floats:
        """Return by kind and step the vCPUs that are taken for it: those of :meth:`worth`."""
        found: Floats = np.take_along_axis(self.vcpus, self.worth(target), axis=1)
        return found

    def worth(self, target: float) -> Places:
        """Return by kind and step which one is taken for it: the least with at most half of its vCPUs that is expected
        to meet the target as well and comes near it, if any.

        A little more performance, or a little more certainty of it, is not worth twice the price; whoever then misses
        its target is corrected.
        """
        itself = np.broadcast_to(np.arange(self.vcpus.shape[1]), self.vcpus.shape)
        if not self.halves.any():
            return itself
        whole = np.exp(self.mean)
        room = np.where(whole >= target, np.minimum(target * (1.0 + ROOM), whole / (1.0 + ALIKE)), 0.0)
        does_as_well = self.halves & (whole[:, None, :] >= room[:, :, None])
        found: Places = np.where(np.logical_or.reduce(does_as_well, axis=2), does_as_well.argmax(axis=2), itself)
        return found

    def shortfalls(self, target: float) -> Places:
        """Return by kind 0 where an empty machine meets the target with the wanted confidence (or nothing is known of
        it), 1 where it is more likely than not to, else one more for each standard deviation below it."""
        surely = self.surely.max(axis=1) >= math.log(target) - _DUST
        below = np.ceil(-self._deviations_above(target).max(axis=1) - _DUST).clip(min=0.0)
        found: Places = np.where(surely | self.unknown, 0, 1 + below.astype(np.intp))
        return found

    def _deviations_above(self, target: float) -> Floats:
        above: Floats = np.where(np.isneginf(self.surely), -1e9, (self.mean - math.log(target)) / self.doubt)
        return above


def ladders(known: Classification, kinds: tuple[tuple[str, float], ...], aim: Aim, confidence: float) -> Ladders:
    """Return the steps of ``kinds``: of each its type and the vCPUs of a machine. They do not depend on the target."""
    question = ("ladders", kinds, aim.asked_vcpus, aim.low, aim.high, aim.nodes, confidence)
    return known.answer(question, lambda: _ladders(known, kinds, aim, confidence))


def _ladders(known: Classification, kinds: Sequence[tuple[str, float]], aim: Aim, confidence: float) -> Ladders:
    steps, quantile = aim.steps(known), quantile_of(confidence)
    shape, nothing = (len(kinds), len(steps)), np.zeros(len(kinds), dtype=np.bool_)
    vcpus, mean, doubt = np.full(shape, aim.asked_vcpus), np.zeros(shape), np.ones(shape)
    surely, unknown = np.full(shape, -np.inf), nothing
    for at, (column, most_vcpus) in enumerate(kinds):
        rungs = _rungs(known, column, aim, [step for step in steps if step <= most_vcpus + _DUST])
        if rungs:
            count = len(rungs)
            vcpus[at], mean[at], doubt[at] = rungs[-1]
            vcpus[at, :count], mean[at, :count], doubt[at, :count] = np.array(rungs).T
            surely[at, :count] = mean[at, :count] - quantile * doubt[at, :count]
        else:
            unknown[at], surely[at, 0] = True, np.inf
    halves, doubt = halves_of(vcpus, np.exp(mean)), np.maximum(doubt, LEAST_DOUBT)
    return Ladders(vcpus=vcpus, mean=mean, doubt=doubt, surely=surely, halves=halves, unknown=unknown)


def _rungs(known: Classification, column: str, aim: Aim, steps: Sequence[float]) -> list[tuple[float, float, float]]:
    """Return those of ``steps`` of which something is known on a type, each with its performance alone."""
    tried = [(s, expected(known, column, vcpus=s, asked_vcpus=aim.asked_vcpus, nodes=aim.nodes)) for s in steps]
    return [(step, would.mean, would.deviation) for step, would in tried if would is not None]


def halves_of(vcpus: Floats, performance: Floats) -> Flags:
    """Return which steps have at most half of the vCPUs of others and come near them, shape ``(K, S, S)``."""
    half = 2 * vcpus[:, None, :] <= vcpus[:, :, None] + _DUST
    near: Flags = performance[:, None, :] >= performance[:, :, None] / (1.0 + NEAR)
    return half & near
