"""The least expected loss of performance, of the job and of its neighbours together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hcloud.classifier.interference import EXCESS
from hcloud.planner.fit.interference import FULL, Floats, PressureState, Sensitivity
from hcloud.planner.fit.observed_slowdowns import or_else
from hcloud.planner.fit.paragon import SLACK, Places, Selection, margin
from hcloud.planner.placement.order import OrderNeeds, PlacementOrder, Preference
from hcloud.planner.placement.orders.interference_oblivious import BEST_TYPE

if TYPE_CHECKING:
    from hcloud.planner.context import PlanContext
    from hcloud.planner.fleet import Mask
    from hcloud.planner.job_groups import JobGroup

LASTS = 0.5
"""Share of a run during which the neighbours present at its start are assumed to stay."""

MOST_LOOKED_UP = 500
"""Of more machines, what was observed together counts on those on which the newcomer loses least by pressures."""


class LeastLoss:
    """Interference is a loss like that of a worse type, not a limit; so no instance is closed for it."""

    name = "least_loss"
    needs = OrderNeeds(interference=True, types=True)

    def choose(self, context: PlanContext, group: JobGroup, fits: Mask, neighbours_too: bool | None) -> int:
        """Return the instance of ``fits`` with the least expected total loss."""
        return context.suitability.select(group.application, fits, least_loss_choice)

    def explain(self, context: PlanContext, group: JobGroup) -> Preference:
        """Return whether interference was known and counted, or the type alone."""
        if context.suitability.sensitivity_of(group.application) is None:
            return BEST_TYPE
        return Preference("least_loss", "least expected loss, by type and by interference with its neighbours")


def least_loss_choice(
    pressure: PressureState, newcomer: Sensitivity, among: Mask, preference: Floats | None
) -> Selection | None:
    """Return the machine of ``among`` with the least expected total loss; None if ``among`` is empty.

    ``preference``: by machine (shape ``(N,)``), the logarithm of its type's slowness for the newcomer; None: all are
    equal. Ties: the largest spare, then the lowest index.
    """
    places = among.nonzero()[0]
    if not places.size:
        return None
    slower, observed = 0.0 if preference is None else preference[places], pressure.observed_of(newcomer)
    lengthened = _lengthened(newcomer.bears[:, None], pressure.expected[:, places], pressure.factors[places])
    own = LASTS * lengthened + slower
    if observed is not None:
        if places.size > MOST_LOOKED_UP:
            nearest = np.sort(np.argsort(own, kind="stable")[:MOST_LOOKED_UP])
            places, own, lengthened = places[nearest], own[nearest], lengthened[nearest]
        looked_up = or_else(observed.own(newcomer, pressure.residents, places.tolist()), lengthened)
        own += LASTS * (looked_up - lengthened)
    first = np.argmin(own, keepdims=True)
    # A newcomer never speeds residents up, so machines on which it alone loses more than the best total are skipped.
    near = own <= own[first] + LASTS * _harm(pressure, newcomer, places[first]) + SLACK
    places, lost = places[near], own[near]
    lost = lost + LASTS * _harm(pressure, newcomer, places)
    least = places[lost <= lost.min() + SLACK]
    at = int(least[pressure.spare[least].argmax()])
    return Selection(at=at, pool=int(pressure.level[at]), among=int(near.size), margin=margin(pressure, newcomer, at))


def _harm(pressure: PressureState, newcomer: Sensitivity, places: Places) -> Floats:
    """Return, by machine of ``places``, by how much the newcomer lengthens its residents' runs (sum of logarithms)."""
    where = [number for number, at in enumerate(places.tolist()) for _ in pressure.residents[at]]
    residents = [resident for at in places.tolist() for resident in pressure.residents[at]]
    if not residents:
        return np.zeros(places.size)
    bears, own = np.array([each.bears for each in residents]).T, np.array([each.expected for each in residents]).T
    others, factors = pressure.expected[:, places[where]] - own, pressure.factors[places[where]]
    more = _lengthened(bears, others + newcomer.expected[:, None], factors) - _lengthened(bears, others, factors)
    harm: Floats = np.bincount(where, weights=more, minlength=places.size).astype(np.float64)
    observed = pressure.observed_of(newcomer)
    return harm if observed is None else or_else(observed.harm(newcomer, pressure.residents, places.tolist()), harm)


def _lengthened(bears: Floats, pressures: Floats, factors: Floats) -> Floats:
    """Return the logarithm of the factor by which ``pressures`` lengthen runs that lose 5 % at ``bears``.

    Shapes ``(K, N)``, ``bears`` also ``(K, 1)``, ``factors`` ``(N,)``; see
    :func:`hcloud.planner.fit.expected_performance.losses_beside`.
    """
    worst = (np.minimum(pressures, FULL) / np.maximum(bears, 1.0)).max(axis=0, initial=0.0)
    longer: Floats = np.log1p(EXCESS * factors * worst)
    return longer


ORDER: Final[PlacementOrder] = LeastLoss()
