"""The machine on which the least is lost in all: by a new job to its type and its neighbours, and by them to it.

Paragon bars a machine where anybody would lose more than is tolerated, and asks for the type only then (§3.2). On full
servers that keeps jobs off their type, which costs them far more than those neighbours would have: so here both are
weighed, as the run time that they add. What a type costs it costs for the whole run; neighbours come and go.
"""

from __future__ import annotations

import numpy as np

from hcloud.classifier.interference import EXCESS
from hcloud.planner.paragon import Places, Selection, margin
from hcloud.planner.pressure import FULL, Floats, Mask, PressureState, Sensitivity

LASTS = 0.5
"""Of a run, the neighbours that are there at its start stay for about so much, and others follow them in any case."""
_SLACK = 1e-9


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
    """Return by how much ``pressures`` lengthen runs, as logarithms, of those who lose 5 % at what they bear.

    Shapes ``(K, N)``, ``bears`` also ``(K, 1)``; see :func:`hcloud.planner.sizing.losses_beside`.
    """
    worst = (np.minimum(pressures, FULL) / np.maximum(bears, 1.0)).max(axis=0, initial=0.0)
    longer: Floats = np.log1p(EXCESS * worst)
    return longer
