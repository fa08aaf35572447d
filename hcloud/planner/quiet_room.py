"""Who is kept from reserved room that others fill better: jobs that press on shared resources by more than their part.

What limits how full a machine becomes is seldom its vCPUs: one job that takes an eighth of them and half of the memory
bandwidth leaves room that nobody else can use. On a small rented machine it disturbs nobody. So while jobs that press
no more than their part have to be rented for, as much reserved room is kept for those that come after them; their like
goes on coming. Whoever presses more gets what is free beyond that (``provisioning.keep_for_quiet``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hcloud.planner.context import JobGroup, PlanContext
from hcloud.planner.fleet import SLACK, Mask, Places
from hcloud.planner.pressure import FULL


@dataclass(slots=True, eq=False)
class NoisyJobHoldback:
    """The answers for one plan. ``paid``: places of reserved machines that may be used now, ``is_paid``: which of all
    machines these are, shape ``(N,)``."""

    context: PlanContext
    paid: Places
    is_paid: Mask
    _wanted_vcpus: float | None = None

    def kept_from(self, group: JobGroup, places: Places) -> Mask | None:
        """Return which of the machines ``places`` are reserved ones that ``group`` is kept from: with it, less would be
        free of all of them together than quiet jobs hold on rented ones; None: none."""
        fleet, limit = self.context.fleet, self.context.policy.provisioning.keep_for_quiet
        if limit <= 0.0 or not self.paid.size or group.moved or not group.application:
            return None
        here: Mask = self.is_paid[places]
        asked = places[here]
        if not asked.size or self.wanted_vcpus <= 0.0:
            return None
        taken = group.taken_on(fleet.capacity, asked)[0]
        loud = self._loudest(group.application) > limit * FULL * taken / fleet.capacity[0, asked]
        if not np.count_nonzero(loud):
            return None
        free = np.minimum(fleet.free[0].take(self.paid), fleet.room[0].take(self.paid))
        free_vcpus = float(np.add.reduce(np.maximum(free, 0.0)))
        here[here] = loud & (free_vcpus - taken < self.wanted_vcpus - SLACK)
        return here

    @property
    def wanted_vcpus(self) -> float:
        """How many vCPUs quiet jobs hold on rented machines: those that would be quiet on a reserved machine too."""
        if self._wanted_vcpus is None:
            fleet, known = self.context.fleet, self.context.snapshot.applications
            limit = self.context.policy.provisioning.keep_for_quiet * FULL / float(fleet.capacity[0, self.paid].max())
            units = [
                (job.application, unit.resources.vcpus)
                for at in np.flatnonzero(~fleet.reserved).tolist()
                for job, unit in fleet.holdings[at]
                if job.spec.profile is None
            ]
            loudest = {name: self._loudest(name) for name in {name for name, _ in units} if name in known}
            quiet = (vcpus for name, vcpus in units if name in loudest and loudest[name] <= limit * vcpus)
            self._wanted_vcpus = sum(quiet, 0.0)
        return self._wanted_vcpus

    def _loudest(self, application: str) -> float:
        """Return the most that an application is expected to press on any shared resource (0..100)."""
        who = self.context.suit.who(application) if self.context.suit is not None else None
        return who.loudest if who is not None else 0.0
