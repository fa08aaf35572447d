"""Placement constraints of users: zones and labels, anti-affinity between jobs, spreading of nodes.

Constraints are hard and never relaxed. Anti-affinity is mutual, whichever job was placed first; stopping units count
until they are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hcloud.core.model import Constraints, Job, JobSpec, Offer, matches
from hcloud.planner.fleet import Fleet, Mask

Counts = npt.NDArray[np.int64]


class AffinityGroup(NamedTuple):
    """What decides which jobs a job may share an instance with. Anti-affinity applies between jobs of one user."""

    user: str
    name: str
    apart_from: tuple[str, ...]
    """Patterns of job names it must not share an instance with."""

    def clashes(self, other: AffinityGroup) -> bool:
        """Return whether jobs of the two groups must not share an instance."""
        is_apart = matches(other.name, self.apart_from) or matches(self.name, other.apart_from)
        return self.user == other.user and is_apart


class TopologyConstraints:
    """The constraints of jobs over one fleet. Counts have shape ``(N,)``; without anti-affinity nothing is counted."""

    def __init__(self, fleet: Fleet, jobs: Sequence[Job]) -> None:
        """Read the constraints of ``jobs``, which are all that have not ended."""
        self._fleet = fleet
        stated = [job.spec for job in jobs if job.spec.placement is not None]
        self.users = {spec.user for spec in stated if spec.placement is not None and spec.placement.apart_from}
        """Users of whom at least one job states an anti-affinity."""
        self._admitted: dict[Constraints, Mask] = {}
        self._counts: dict[AffinityGroup, Counts] = {}
        self._clashing: dict[AffinityGroup, Counts] = {}
        self._journal: list[tuple[int, AffinityGroup, int]] = []
        for at, held in enumerate(fleet.holdings if self.users else ()):
            for job, _ in held:
                self.arrive(at, self.company(job.spec))

    def company(self, spec: JobSpec) -> AffinityGroup | None:
        """Return the affinity group of a job; None if no job of its user states an anti-affinity."""
        if spec.user not in self.users:
            return None
        apart_from = spec.placement.apart_from if spec.placement is not None else ()
        return AffinityGroup(user=spec.user, name=spec.name, apart_from=apart_from)

    def admitted(self, constraints: Constraints) -> Mask:
        """Return which instances have the required zone, labels and gang network, or are the only one permitted."""
        known = self._admitted.get(constraints)
        if known is None:
            only = constraints.instance_id
            flags = [admits(constraints, each.offer) if not only else each.id == only for each in self._fleet.instances]
            if constraints.gang_network:
                pairs = zip(flags, self._fleet.instances, strict=True)
                flags = [flag and not each.lacks_gang_network for flag, each in pairs]
            known = self._admitted[constraints] = np.array(flags, dtype=np.bool_)
        return known

    def without_conflicts(self, company: AffinityGroup) -> Mask:
        """Return which instances hold no job that ``company`` must not share one with."""
        conflicts = self._clashing.get(company)
        if conflicts is None:
            conflicts = np.zeros(len(self._fleet.instances), dtype=np.int64)
            for other, counts in self._counts.items():
                if company.clashes(other):
                    conflicts += counts
            self._clashing[company] = conflicts
        free: Mask = conflicts == 0
        return free

    def spread(self, constraints: Constraints, taken: Sequence[int]) -> Mask:
        """Return where one more node may go, given the instances ``taken`` by the job's other nodes."""
        free = np.ones(len(self._fleet.instances), dtype=np.bool_)
        if constraints.spread != "none":
            free[list(taken)] = False
        if constraints.spread == "zone":
            zones = [instance.offer.zone for instance in self._fleet.instances]
            taken_zones = {zones[at] for at in taken}
            free &= np.array([zone not in taken_zones for zone in zones], dtype=np.bool_)
        return free

    # ------------------------------------------------------------------------------------------------- coming and going
    def arrive(self, at: int, company: AffinityGroup | None, by: int = 1) -> None:
        """Count ``by`` units as placed on, or promised room on, instance ``at``; -1: as gone."""
        if company is not None:
            self._journal.append((at, company, by))
            self._count(at, company, by)

    @property
    def moment(self) -> int:
        """The present position in the journal, for :meth:`back_to`."""
        return len(self._journal)

    def back_to(self, moment: int) -> None:
        """Undo all arrivals and departures since ``moment``."""
        while len(self._journal) > moment:
            at, company, by = self._journal.pop()
            self._count(at, company, -by)

    def _count(self, at: int, company: AffinityGroup, by: int) -> None:
        if company not in self._counts:
            self._counts[company] = np.zeros(len(self._fleet.instances), dtype=np.int64)
        self._counts[company][at] += by
        for other, counts in self._clashing.items():
            if other.clashes(company):
                counts[at] += by


def admits(constraints: Constraints | None, offer: Offer) -> bool:
    """Return whether new instances of ``offer`` have the required zone and labels; none does for a job that may use
    one instance only, which exists."""
    return constraints is None or (
        not constraints.instance_id
        and constraints.accepts_zone(offer.zone)
        and constraints.accepts_labels(offer.labels)
    )
