"""Groups of waiting jobs with the same requirements: whatever holds for one of them holds for all.

What a group asks for never changes (:class:`JobDemand`). What a plan finds out about it while it serves jobs is kept
apart (:class:`GroupState`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hcloud.core.model import Constraints, InstanceId, Job, Reason, Resources
from hcloud.planner.fit.job_sizes import RankSizes
from hcloud.planner.fit.sizing import SizeTarget
from hcloud.planner.fleet import Amounts, Places
from hcloud.planner.late_boots import Urgency
from hcloud.planner.provisioning.mapping import PLAIN, MappingNeed
from hcloud.planner.topology import AffinityGroup


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobDemand:
    """What each job of a group asks for."""

    example: Job
    """One of the jobs."""
    resources: Resources
    """Resources requested per rank."""
    demand: Amounts
    """The same as an array, shape ``(4,)``. Where the planner chooses the size: the least a rank may get."""
    needed: int
    """Ranks that must start together."""
    wanted: int
    """Ranks that may start at most."""
    spot_ok: bool
    """Whether the group may run on spot instances."""
    promise: bool
    """Whether the jobs have a target (anything but best effort)."""
    off_spot: str = ""
    """Why the group avoids spot instances although the policy and its jobs permit them; empty: it does not."""
    serves: bool = False
    """Whether the target is a latency."""
    max_runtime_s: float | None = None
    """When its units are stopped at the latest, in seconds after their start; None: never."""
    checkpoint_s: float | None = None
    """How much of a run is done again when its machine is lost, in seconds; None: all."""
    instance_types: tuple[str, ...] = ()
    """Patterns of permitted instance types; empty: any."""
    preferred_types: tuple[str, ...] = ()
    """Patterns of the instance types on which the jobs run fastest; empty: no preference."""
    slower_elsewhere: float = 1.0
    """How many times as long they run on other types."""
    exclusive: bool = False
    """Whether a rank takes a whole instance."""
    mapping_need: MappingNeed = PLAIN
    """What the mapping of a hybrid strategy requires."""
    moved: bool = False
    """The jobs were stopped to be moved to other running instances."""
    application: str = ""
    """Name of the application, if it is known and the placement order uses classifications; else empty."""
    avoid: tuple[InstanceId, ...] = ()
    """Instances the jobs were moved away from."""
    constraints: Constraints | None = None
    """Zones, labels and spread required by the job file; None: none."""
    company: AffinityGroup | None = None
    """Affinity group; None: no anti-affinity applies."""
    sizable: bool = False
    """Whether the planner may choose the size of a rank, once it knows the application."""
    aim: SizeTarget | None = None
    """What the size of a rank is chosen for, where the planner chooses it now."""
    portions: RankSizes | None = None
    """The size of a rank on each instance, where the planner chooses it."""
    urgency: Urgency = Urgency.NONE
    """Whether the jobs can wait for instances that boot late."""

    @property
    def spreads(self) -> bool:
        """Whether the place of one rank restricts the places of the others."""
        return self.company is not None or (self.constraints is not None and self.constraints.spread != "none")


@dataclass(slots=True, eq=False)
class GroupState:
    """What a plan has found out about a group. Placement and provisioning, which serve jobs by turns, change it; room
    and money only shrink meanwhile. :attr:`pending` is counted by the queue."""

    stuck: Reason | None = None
    """Why no job of the group can be served any more in this plan."""
    fits_now: bool = True
    """Whether a rank may fit on an instance that is usable now."""
    fits_later: bool = True
    """Whether a rank may fit on room that stopping units or booting instances will provide."""
    fits_well: bool = True
    """Whether a rank may fit on an instance with tolerable interference."""
    offered: bool = True
    """Whether any offer is large enough."""
    lifted: bool = False
    """Instances held back are open to the group, because nothing can be launched for it."""
    on_paid: frozenset[int] | None = None
    """Of all instances only reserved ones of these types (:attr:`Fleet.type_at`) are open to the group, however full: a
    plan ahead starts its jobs there. None: others too."""
    awaits_type: bool = True
    """Whether there may be room on instances that only their type makes unsuitable."""
    may_reserve: bool = True
    """Whether room may still be reserved for a member; it is sought once per group and plan."""
    pending: int = 0
    """Members not yet decided."""
    sized: Amounts | None = None
    """Cache of :attr:`JobGroup.here`, shape ``(4, N)``; None: not computed yet."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobGroup(JobDemand):
    """Waiting jobs with the same requirements."""

    place: int
    """Number of groups created before this one in the same plan."""
    state: GroupState = field(default_factory=GroupState)

    @property
    def here(self) -> Amounts | None:
        """Resources of a rank on each instance, shape ``(4, N)``, where the planner chooses its size; else None."""
        if self.state.sized is None and self.portions is not None:
            self.state.sized = self._with_vcpus(self.portions.vcpus())
        return self.state.sized

    @property
    def unsized(self) -> bool:
        """Whether the size of a rank on each instance is still to be computed; until then ``demand`` is its lower
        bound."""
        return self.portions is not None and self.state.sized is None

    @property
    def asks(self) -> Amounts:
        """Resources of a rank: shape ``(4,)`` if the same everywhere, else ``(4, N)``."""
        return self.demand if self.portions is None or self.here is None else self.here

    def asks_on(self, at: int) -> Amounts:
        """Return :attr:`asks` on instance ``at``, shape ``(4,)``."""
        if self.portions is None:
            return self.demand
        if self.state.sized is not None:
            return self.state.sized[:, at]
        asks = self.demand.copy()
        asks[0] = self.portions.vcpus_at(at)
        return asks

    def taken_everywhere(self, capacity: Amounts) -> Amounts:
        """Return what one rank takes of each instance, given ``capacity`` of shape ``(4, N)``; an exclusive rank takes
        all."""
        if self.exclusive:
            return capacity
        return self.demand[:, None] if self.here is None else self.here

    def taken_on(self, capacity: Amounts, places: Places) -> Amounts:
        """Return :meth:`taken_everywhere` for the instances ``places`` only: shape ``(4, n)``, or ``(4, 1)`` if it is
        the same everywhere."""
        if self.exclusive:
            return capacity.take(places, axis=1)
        if self.unsized and self.portions is not None:
            return self._with_vcpus(self.portions.vcpus_on(places))
        return self.demand[:, None] if self.here is None else self.here.take(places, axis=1)

    def _with_vcpus(self, vcpus: Amounts) -> Amounts:
        taken = np.empty((4, vcpus.size))
        taken[0], taken[1:] = vcpus, self.demand[1:, None]
        return taken
