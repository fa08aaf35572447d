"""Who is kept from reserved room that others fill better: jobs that press on shared resources by more than their part.

What limits how full a machine becomes is seldom its vCPUs: one job that takes an eighth of them and half of the memory
bandwidth leaves room that nobody else can use. On a small rented machine it disturbs nobody. So while jobs that press
no more than their part have to be rented for, as much reserved room is kept for those that come after them; their like
goes on coming. Whoever presses more gets what is free beyond that (``provisioning.keep_for_quiet``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hcloud.model import Allocation, Job
from hcloud.planner.draft import Draft, Group
from hcloud.planner.fleet import SLACK, Amounts, Mask
from hcloud.planner.pressure import FULL


@dataclass(slots=True, eq=False)
class QuietRoom:
    """The answers for one plan. ``paid``: places of reserved machines that may be used now."""

    draft: Draft
    paid: npt.NDArray[np.intp]
    _wanted_vcpus: float | None = None
    _pressures: dict[str, float] = field(default_factory=dict)

    def kept_from(self, group: Group) -> Mask | None:
        """Return the reserved machines that ``group`` is kept from: with it, less would be free of all of them together
        than quiet jobs hold on rented ones; None: none."""
        fleet, limit = self.draft.fleet, self.draft.policy.provisioning.keep_for_quiet
        if limit <= 0.0 or not self.paid.size or group.moved or not group.application:
            return None
        taken: Amounts = np.broadcast_to(group.taken_everywhere(fleet.capacity)[0], fleet.capacity[0].shape)[self.paid]
        loud = self._pressure(group.application) > limit * FULL * taken / fleet.capacity[0, self.paid]
        if not loud.any() or self.wanted_vcpus <= 0.0:
            return None
        free_vcpus = float(np.minimum(fleet.free[0, self.paid], fleet.room[0, self.paid]).clip(min=0.0).sum())
        kept: Mask = np.zeros(len(fleet.instances), dtype=np.bool_)
        kept[self.paid] = loud & (free_vcpus - taken < self.wanted_vcpus - SLACK)
        return kept if kept.any() else None

    @property
    def wanted_vcpus(self) -> float:
        """How many vCPUs quiet jobs hold on rented machines."""
        if self._wanted_vcpus is None:
            fleet = self.draft.fleet
            limit = self.draft.policy.provisioning.keep_for_quiet * FULL / float(fleet.capacity[0, self.paid].max())
            rented = [fleet.holdings[at] for at in np.flatnonzero(~fleet.reserved).tolist()]
            self._wanted_vcpus = sum(self._quiet_vcpus(job, unit, limit) for held in rented for job, unit in held)
        return self._wanted_vcpus

    def _quiet_vcpus(self, job: Job, unit: Allocation, limit: float) -> float:
        """Return how many vCPUs ``unit`` of ``job`` holds, if it would be quiet on a reserved machine, where each vCPU
        may press by ``limit``."""
        if job.spec.profile is not None or job.application not in self.draft.snapshot.applications:
            return 0.0
        vcpus = unit.resources.vcpus
        return vcpus if self._pressure(job.application) <= limit * vcpus else 0.0

    def _pressure(self, application: str) -> float:
        """Return the most that an application is expected to press on any shared resource (0..100)."""
        if application not in self._pressures:
            who = self.draft.suit.who(application) if self.draft.suit is not None else None
            self._pressures[application] = float(who.expected.max(initial=0.0)) if who is not None else 0.0
        return self._pressures[application]
