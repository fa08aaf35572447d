"""What a new program reaches in placements that were never tried, from its profile and a few that were (Mage §3.2).

Two ways: Mage's three stages of matrix completion as printed, and a sensitivity that scales what each set of neighbours
costs on average. Matrices are programs x columns; NaN: not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Complete = Callable[[Floats], Floats]
"""Fills the NaN cells of a matrix."""
LEAST_COST = 0.01
"""Least additional run time that a set of neighbours counts with."""


def staged_completion(
    profiles: Floats, tried: Floats, untried: int, complete: Complete, rng: np.random.Generator
) -> Floats:
    """Return performance in ``tried`` and ``untried`` further placements, shape ``(programs, tried + untried)``.

    Stage 1 completes the ``profiles`` (programs under contentious kernels), stage 2 those and the placements of which
    some were measured, stage 3 all; columns without any measurement are drawn within the range of what is there first
    (the print does not say that they count as measured; here they do).
    """
    profile = complete(profiles)
    partial = complete(np.hstack([profile, tried]))
    begun = rng.uniform(partial.min(), partial.max(), size=(len(partial), untried))
    whole = complete(np.hstack([partial, begun]))
    return np.asarray(whole[:, profiles.shape[1] :])


def best_placement(performance: Floats, columns: Sequence[int]) -> int:
    """Return which of these placements has the highest geometric mean over the programs."""
    means = np.log(np.maximum(performance[:, list(columns)], 1e-6)).mean(axis=0)
    return int(np.asarray(columns)[means.argmax()])


def sensitivity(costs: Floats, probes: Sequence[int], measured: Floats) -> float:
    """Return how many times what others lose a program loses, by least squares over its probes.

    ``costs``: additional run time (1: twice as long) by set of neighbours, averaged over known programs; ``measured``:
    the program's own in the sets ``probes``.
    """
    cost = np.maximum(costs[list(probes)], LEAST_COST)
    return max(0.0, float(measured @ cost) / float(cost @ cost)) if len(cost) else 1.0


def by_sensitivity(costs: Floats, probes: Sequence[int], measured: Floats) -> Floats:
    """Return the speed (1: alone) of a program in all sets of neighbours, by its sensitivity to two or more of them."""
    return np.asarray(1.0 / (1.0 + sensitivity(costs, probes, measured) * np.maximum(costs, LEAST_COST)))


def average_costs(speeds: Floats) -> Floats:
    """Return by set of neighbours the geometric mean of the additional run times of known programs beside them; sets
    that few were measured in are corrected for how sensitive these are."""
    costs = np.log(np.maximum(1.0 / np.clip(speeds, 0.02, 1.0) - 1.0, LEAST_COST))
    column = np.nanmean(costs, axis=0)
    row = np.nanmean(costs - column, axis=1)
    filled = np.where(np.isnan(costs), column + row[:, None], costs)
    return np.asarray(np.exp(filled.mean(axis=0)))
