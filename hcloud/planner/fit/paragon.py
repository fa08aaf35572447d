"""Paragon's greedy server selection (§3.2): no interference, then the best type, then the tightest sure fit.

Servers are filtered by one constraint after the other, the hardest to satisfy first: what the new job causes must stay
within what residents still tolerate (``D1``), what residents cause within what the job tolerates (``D2``). Where a
constraint would leave no server it is relaxed, and so named. The search stops at a budget of comparisons, not of
seconds, so that the same snapshot always gives the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from hcloud.classifier.interference import EXCESS
from hcloud.planner.fit.interference import FULL, Floats, Mask, PressureState, Sensitivity

_SLACK = 1e-9
Places = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A constraint that does not hold: ``by`` so much pressure, on the new job itself or on its ``neighbours``."""

    source: str
    neighbours: bool
    by: float

    def __str__(self) -> str:
        who = "neighbours" if self.neighbours else "itself"
        return f"{self.source} on {who} by {self.by:.0f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A chosen machine, and the pool it is in. ``among``: how many satisfied the same; ``margin``: the least of D1 and
    D2 there."""

    at: int
    pool: int
    among: int
    margin: float
    relaxed: tuple[Violation, ...] = ()
    cut_short: bool = False


class Pools(Enum):
    """Whether machines of the lowest pool are preferred (ARQ §4.2), so that better ones are left to jobs that need
    them: never, of machines of the best type, or before any type is preferred."""

    NO = "no"
    OF_BEST_TYPE = "of best type"
    FIRST = "first"


def select(
    pressure: PressureState,
    who: Sensitivity,
    among: Mask,
    preference: Floats | None,
    *,
    pools: Pools = Pools.NO,
    wanted_margin: float = 0.0,
) -> Selection | None:
    """Return the machine of ``among`` that suits ``who`` best, or None where none suits it.

    ``preference``: by machine (shape ``(N,)``), the smaller the better its type; None: all types are alike. Ties: where
    D1 and D2 are at least ``wanted_margin`` or come nearest to it, then the tightest fit, then the lowest number.
    """
    candidates = pressure.suited_among(who, among).nonzero()[0]
    if not candidates.size:
        return None
    at = _best(pressure, candidates, preference, pools, who, wanted_margin)
    pool = int(pressure.level[at])
    return Selection(at=at, pool=pool, among=int(candidates.size), margin=margin(pressure, who, at))


def select_relaxed(
    pressure: PressureState,
    who: Sensitivity,
    among: Mask,
    preference: Floats | None,
    *,
    neighbours_too: bool,
    work_cells: int,
) -> Selection | None:
    """Return the machine of ``among`` where the least is disturbed, naming what is; None only where ``among`` is empty.

    Constraints that would leave no server are passed over, the others hold. Without ``neighbours_too`` no resident is
    disturbed: then there may be none. ``work_cells``: after so many comparisons the best so far is taken.
    """
    candidates, cut_short = _least_disturbed(pressure, who, among, neighbours_too, work_cells)
    if not candidates.size:
        return None
    at = _best(pressure, candidates, preference, Pools.NO)
    strains = violations(pressure, who, at)
    if not neighbours_too and any(strain.neighbours for strain in strains):
        return None
    return Selection(
        at=at,
        pool=int(pressure.level[at]),
        among=int(candidates.size),
        margin=margin(pressure, who, at),
        relaxed=strains,
        cut_short=cut_short,
    )


def relaxed_margin(pressure: PressureState, who: Sensitivity, among: Mask, work_cells: int) -> float | None:
    """Return the margin of what :func:`select_relaxed` would choose if all types were alike."""
    candidates, _ = _least_disturbed(pressure, who, among, True, work_cells)
    return margin(pressure, who, _best(pressure, candidates, None, Pools.NO)) if candidates.size else None


def _least_disturbed(
    pressure: PressureState, who: Sensitivity, among: Mask, neighbours_too: bool, work_cells: int
) -> tuple[Places, bool]:
    """Return the machines that are left of ``among`` by those constraints that leave any, and whether the search was
    cut short; none where a constraint that may not be relaxed leaves none.

    Each set of machines is one whole number, a bit for each: there are few machines with room and many constraints.
    """
    count, places = len(pressure.sources), among.nonzero()[0]
    holds = np.packbits(pressure.state.take(places, axis=1) >= who.bounds[:, None], axis=1)
    width, data = holds.shape[1], holds.tobytes()
    left, cut_short = int.from_bytes(np.packbits(np.ones(places.size, dtype=np.bool_)).tobytes()), False
    for constraint in _order(who, count, neighbours_too) if places.size else ():
        if work_cells <= 0:
            cut_short = True
            break
        work_cells -= among.size
        kept = left & int.from_bytes(data[constraint * width : (constraint + 1) * width])
        if kept:
            left = kept
        elif constraint < count and not neighbours_too:
            return places[:0], cut_short
    bits = np.frombuffer(left.to_bytes(width), dtype=np.uint8)
    return places[np.unpackbits(bits, count=places.size).nonzero()[0]], cut_short


def _order(who: Sensitivity, count: int, neighbours_too: bool) -> Sequence[int]:
    """Return the constraints in the order they are asked for; those that may not be relaxed come first."""
    if neighbours_too:
        return who.hardest
    return sorted(who.hardest, key=lambda constraint: constraint >= count)


def _shortage(pressure: PressureState, who: Sensitivity, wanted_margin: float, places: Places) -> Floats:
    """Return what D1 and D2 are short of a wanted margin on the machines ``places``."""
    left = np.minimum.reduce(pressure.state.take(places, axis=1) - who.bounds[:, None], axis=0)
    shortage: Floats = np.maximum(0.0, wanted_margin - left)
    return shortage


def _best(
    pressure: PressureState,
    candidates: Places,
    preference: Floats | None,
    pools: Pools,
    who: Sensitivity | None = None,
    wanted_margin: float = 0.0,
) -> int:
    if pools is Pools.FIRST:
        candidates = _least(candidates, pressure.level[candidates])
    if preference is not None:
        candidates = _least(candidates, preference[candidates])
    if pools is Pools.OF_BEST_TYPE:
        candidates = _least(candidates, pressure.level[candidates])
    if who is not None and wanted_margin > 0.0 and pressure.sources:
        candidates = _least(candidates, _shortage(pressure, who, wanted_margin, candidates))
    # With every D at least 0, ||D1 + D2||_1 is the machine's spare plus what is the same for all.
    return int(candidates[pressure.spare[candidates].argmin()])


def _least(candidates: Places, values: Floats) -> Places:
    """Return those of ``candidates`` of which the value is the least."""
    found: Places = candidates[values <= np.minimum.reduce(values) + _SLACK]
    return found


def margin(pressure: PressureState, who: Sensitivity, at: int) -> float:
    """Return the least of D1 and D2 of ``who`` on machine ``at``; below 0 something is disturbed."""
    if not pressure.sources:
        return 100.0
    return float(np.minimum.reduce(pressure.state[:, at] - who.bounds)) - _SLACK


def violations(pressure: PressureState, who: Sensitivity, at: int) -> tuple[Violation, ...]:
    """Return the constraints that ``who`` would break on machine ``at``, the worst first."""
    count, left = len(pressure.sources), pressure.state[:, at] - who.bounds - _SLACK
    broken = [
        Violation(source=pressure.sources[k % count], neighbours=k < count, by=-float(left[k]))
        for k in np.flatnonzero(left < -_SLACK).tolist()
    ]
    return tuple(sorted(broken, key=lambda each: (-each.by, each.source, each.neighbours)))


LASTS = 0.5
"""Of a run, the neighbours that are there at its start stay for about so much, and others follow them in any case."""


def least_loss_choice(
    pressure: PressureState, who: Sensitivity, among: Mask, preference: Floats | None
) -> Selection | None:
    """Return the machine of ``among`` on which the least is expected to be lost; None only where there is none.

    ``preference``: by machine (shape ``(N,)``), the logarithm of how slow its type is for ``who``; None: all are alike.
    Ties: the most that is left to others, then the lowest number.
    """
    places = among.nonzero()[0]
    if not places.size:
        return None
    own = LASTS * _lengthened(who.bears[:, None], pressure.expected[:, places])
    own = own if preference is None else own + preference[places]
    first = np.argmin(own, keepdims=True)
    # Nobody gains by a newcomer: where it loses more alone than all of them together elsewhere, no more need be asked.
    near = own <= own[first] + LASTS * _harm(pressure, who, places[first]) + _SLACK
    places, lost = places[near], own[near]
    lost = lost + LASTS * _harm(pressure, who, places)
    least = places[lost <= lost.min() + _SLACK]
    at = int(least[pressure.spare[least].argmax()])
    return Selection(at=at, pool=int(pressure.level[at]), among=int(near.size), margin=margin(pressure, who, at))


def _harm(pressure: PressureState, who: Sensitivity, places: Places) -> Floats:
    """Return by machine of ``places`` by how much ``who`` lengthens its residents' runs: logarithms, summed up."""
    where = [number for number, at in enumerate(places.tolist()) for _ in pressure.residents[at]]
    residents = [resident for at in places.tolist() for resident in pressure.residents[at]]
    if not residents:
        return np.zeros(places.size)
    bears, own = np.array([each.bears for each in residents]).T, np.array([each.expected for each in residents]).T
    others = pressure.expected[:, places[where]] - own
    more = _lengthened(bears, others + who.expected[:, None]) - _lengthened(bears, others)
    harm: Floats = np.bincount(where, weights=more, minlength=places.size).astype(np.float64)
    return harm


def _lengthened(bears: Floats, pressures: Floats) -> Floats:
    """Return by how much ``pressures`` lengthen runs, as logarithms, of applications that lose 5 % at what they
    tolerate.

    Shapes ``(K, N)``, ``bears`` also ``(K, 1)``; see :func:`hcloud.planner.fit.sizing.losses_beside`.
    """
    worst = (np.minimum(pressures, FULL) / np.maximum(bears, 1.0)).max(axis=0, initial=0.0)
    longer: Floats = np.log1p(EXCESS * worst)
    return longer
