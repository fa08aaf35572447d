"""What a rank gets on each machine where its size is the planner's choice: worked out for as few machines as are asked
about."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hcloud.planner.fleet import Amounts, Places
from hcloud.planner.sizing import SizeTarget, loss_beside, losses_beside

if TYPE_CHECKING:
    from hcloud.planner.suitability import Suitability

FEW = 8
"""Of so many machines sizes are worked out sooner one by one."""


@dataclass(slots=True, eq=False)
class RankSizes:
    """The vCPUs that a rank gets on each machine beside those who cause so much there (``beside``, shape ``(K, N)``);
    worked out when they are first asked for, as most who wait find no room that suits them whatever they would get.
    ``one``: of single machines."""

    suit: Suitability
    application: str
    aim: SizeTarget
    beside: Amounts | None
    found: Amounts | None = None
    one: dict[int, float] = field(default_factory=dict)

    def losses(self) -> Amounts:
        """Return what is lost on each machine beside its residents (0..1), shape ``(N,)``."""
        who, count = self.suit.who(self.application), len(self.suit.fleet.instances)
        return np.zeros(count) if who is None or self.beside is None or not count else losses_beside(who, self.beside)

    def vcpus(self) -> Amounts:
        """Return what a rank gets on each machine, shape ``(N,)``."""
        if self.found is None:
            self.found = self.suit.granted(self.application, self.aim, self.suit.fleet.kinds, self.losses())
        return self.found

    def vcpus_at(self, at: int) -> float:
        """Return :meth:`vcpus` of machine ``at``."""
        known = self.one.get(at)
        if known is None:
            known = self.one[at] = self._vcpus_at(at) if self.found is None else float(self.found[at])
        return known

    def _vcpus_at(self, at: int) -> float:
        who = self.suit.who(self.application)
        loss = 0.0 if who is None or self.beside is None else loss_beside(who, self.beside[:, at])
        return self.suit.granted_on(self.application, self.aim, self.suit.fleet.kinds, at, loss)

    def vcpus_on(self, places: Places) -> Amounts:
        """Return :meth:`vcpus` of the machines ``places`` only."""
        if self.found is None and places.size <= FEW:
            return np.array([self.vcpus_at(at) for at in places.tolist()], dtype=np.float64)
        return self.vcpus()[places]
