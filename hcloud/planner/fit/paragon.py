"""Paragon's greedy server selection (§3.2), which several placement orders share.

It filters servers by one constraint after the other, hardest first: what the new job causes must not exceed what
residents still tolerate (``D1``), and what residents cause must not exceed what the job tolerates (``D2``). Then the
best type is preferred, then the tightest fit. A constraint that would leave no server is relaxed and reported. The
search stops at a budget of comparisons, not seconds, so the same snapshot always gives the same result.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from hcloud.planner.fit.interference import Floats, Mask, PressureState, Sensitivity

SLACK = 1e-9
Places = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A violated constraint."""

    source: str
    neighbours: bool
    """Whether the residents are affected; otherwise the new job itself."""
    by: float
    """Pressure in excess of the bound."""

    def __str__(self) -> str:
        affected = "neighbours" if self.neighbours else "itself"
        return f"{self.source} on {affected} by {self.by:.0f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A chosen machine."""

    at: int
    pool: int
    """Pool of the machine."""
    among: int
    """Number of machines that satisfied the same constraints."""
    margin: float
    """The least of D1 and D2 on the machine."""
    relaxed: tuple[Violation, ...] = ()
    cut_short: bool = False


class Pools(Enum):
    """Whether machines of the lowest pool are preferred (ARQ §4.2), which keeps better ones for more demanding jobs.

    Never, among machines of the best type, or before any preference for a type.
    """

    NO = "no"
    OF_BEST_TYPE = "of best type"
    FIRST = "first"


def select(
    pressure: PressureState,
    newcomer: Sensitivity,
    among: Mask,
    preference: Floats | None,
    *,
    pools: Pools = Pools.NO,
    wanted_margin: float = 0.0,
) -> Selection | None:
    """Return the machine of ``among`` that suits the newcomer best, or None if none does.

    ``preference``: by machine (shape ``(N,)``), smaller is better; None: all types are equal. Ties: D1 and D2 at least
    ``wanted_margin`` (or closest to it), then the tightest fit, then the lowest index.
    """
    candidates = pressure.suited_among(newcomer, among).nonzero()[0]
    if not candidates.size:
        return None
    at = _best(pressure, candidates, preference, pools, newcomer, wanted_margin)
    pool = int(pressure.level[at])
    return Selection(at=at, pool=pool, among=int(candidates.size), margin=margin(pressure, newcomer, at))


def select_relaxed(
    pressure: PressureState,
    newcomer: Sensitivity,
    among: Mask,
    preference: Floats | None,
    *,
    neighbours_too: bool,
    work_cells: int,
) -> Selection | None:
    """Return the machine of ``among`` with the least disturbance, listing violations; None if ``among`` is empty.

    Constraints that would leave no server are skipped. Without ``neighbours_too`` residents must not be disturbed, so
    None is possible. ``work_cells``: comparisons after which the best so far is taken.
    """
    candidates, cut_short = _least_disturbed(pressure, newcomer, among, neighbours_too, work_cells)
    if not candidates.size:
        return None
    at = _best(pressure, candidates, preference, Pools.NO)
    strains = violations(pressure, newcomer, at)
    if not neighbours_too and any(strain.neighbours for strain in strains):
        return None
    return Selection(
        at=at,
        pool=int(pressure.level[at]),
        among=int(candidates.size),
        margin=margin(pressure, newcomer, at),
        relaxed=strains,
        cut_short=cut_short,
    )


def relaxed_margin(pressure: PressureState, newcomer: Sensitivity, among: Mask, work_cells: int) -> float | None:
    """Return the margin of the machine :func:`select_relaxed` would choose if all types were equal."""
    candidates, _ = _least_disturbed(pressure, newcomer, among, True, work_cells)
    return margin(pressure, newcomer, _best(pressure, candidates, None, Pools.NO)) if candidates.size else None


def _least_disturbed(
    pressure: PressureState, newcomer: Sensitivity, among: Mask, neighbours_too: bool, work_cells: int
) -> tuple[Places, bool]:
    """Return the machines of ``among`` left after applying the constraints, and whether the search was cut short.

    A constraint that leaves none is skipped, unless it must hold: then no machine is returned.
    """
    count, places = len(pressure.sources), among.nonzero()[0]
    holds = pressure.state.take(places, axis=1) >= newcomer.bounds[:, None]
    left, cut_short = np.ones(places.size, dtype=np.bool_), False
    # Constraints that must hold (those of residents) are applied first.
    constraints = newcomer.hardest
    if not neighbours_too:
        constraints = tuple(sorted(constraints, key=lambda constraint: constraint >= count))
    for constraint in constraints if places.size else ():
        if work_cells <= 0:
            cut_short = True
            break
        work_cells -= among.size
        kept = left & holds[constraint]
        if np.count_nonzero(kept):
            left = kept
        elif constraint < count and not neighbours_too:
            return places[:0], cut_short
    return places[left], cut_short


def _best(
    pressure: PressureState,
    candidates: Places,
    preference: Floats | None,
    pools: Pools,
    newcomer: Sensitivity | None = None,
    wanted_margin: float = 0.0,
) -> int:
    if pools is Pools.FIRST:
        candidates = _least(candidates, pressure.level[candidates])
    if preference is not None:
        candidates = _least(candidates, preference[candidates])
    if pools is Pools.OF_BEST_TYPE:
        candidates = _least(candidates, pressure.level[candidates])
    if newcomer is not None and wanted_margin > 0.0 and pressure.sources:
        margins = np.minimum.reduce(pressure.state.take(candidates, axis=1) - newcomer.bounds[:, None], axis=0)
        candidates = _least(candidates, np.maximum(0.0, wanted_margin - margins))
    # With every D at least 0, ||D1 + D2||_1 is the machine's spare plus a constant.
    return int(candidates[pressure.spare[candidates].argmin()])


def _least(candidates: Places, values: Floats) -> Places:
    """Return the candidates with the smallest value."""
    found: Places = candidates[values <= np.minimum.reduce(values) + SLACK]
    return found


def margin(pressure: PressureState, newcomer: Sensitivity, at: int) -> float:
    """Return the least of D1 and D2 of the newcomer on machine ``at``; negative if something is disturbed."""
    if not pressure.sources:
        return 100.0
    return float(np.minimum.reduce(pressure.state[:, at] - newcomer.bounds)) - SLACK


def violations(pressure: PressureState, newcomer: Sensitivity, at: int) -> tuple[Violation, ...]:
    """Return the constraints the newcomer would violate on machine ``at``, worst first."""
    count, left = len(pressure.sources), pressure.state[:, at] - newcomer.bounds - SLACK
    broken = [
        Violation(source=pressure.sources[k % count], neighbours=k < count, by=-float(left[k]))
        for k in np.flatnonzero(left < -SLACK).tolist()
    ]
    return tuple(sorted(broken, key=lambda each: (-each.by, each.source, each.neighbours)))
