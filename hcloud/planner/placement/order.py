"""What a placement order is: the rule that chooses, among the instances with room, the one for a rank of a job.

Each order of HCloud is one file of :mod:`hcloud.planner.placement.orders`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from hcloud.core.model import Job, Reason
    from hcloud.planner.context import PlanContext
    from hcloud.planner.fleet import Mask
    from hcloud.planner.job_groups import JobGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderNeeds:
    """What an order needs from the rest of the planner; by default nothing."""

    interference: bool = False
    """Estimates of the pressure that applications cause and tolerate."""
    types: bool = False
    """Estimates of the speed of applications on instance types."""
    tolerable_neighbours: bool = False
    """While a job can wait, only instances where no job exceeds what another tolerates (Paragon §3.2). Needs
    ``interference``."""
    sizes: bool = False
    """The fewest vCPUs and nodes that meet a job's target, where the job allows a range (Quasar, Dissertation §4.3.4).
    A slower type then costs a larger size; otherwise it counts as a loss of performance."""
    turns: bool = False
    """Jobs that share a machine may be paused for each other (``placement.pause_step_s``)."""
    waits: bool = False
    """That jobs may wait although there is room. The order is a :class:`WaitingOrder` then."""

    @property
    def classifications(self) -> bool:
        """Whether the order depends on what is known about applications."""
        return self.interference or self.types or self.sizes


class Preference(NamedTuple):
    """Why an order prefers the instance that it chose."""

    code: str
    """Code of the placement's reason."""
    text: str
    """The same in words, as in "inst-3: <text>; takes 2 vCPU"."""


class PlacementOrder(Protocol):
    """A rule that chooses the instance for a rank. It keeps no state: the same context gives the same choice."""

    @property
    def name(self) -> str:
        """The value of ``placement.order`` in a policy."""

    @property
    def needs(self) -> OrderNeeds:
        """What the planner computes for this order. If that includes classifications, jobs of unknown applications go
        to the least loaded instance, and :meth:`choose` is not asked."""

    def choose(self, context: PlanContext, group: JobGroup, fits: Mask, neighbours_too: bool | None) -> int:
        """Return the place of the best instance for a rank of ``group``, or -1 if none will do.

        ``fits``, shape ``(N,)``: the instances with room that are open to the group, at least one. ``neighbours_too``
        says what interference is acceptable: None, none at all; False, only to the rank itself; True, any.
        """

    def explain(self, context: PlanContext, group: JobGroup) -> Preference:
        """Return why the instance chosen for ``group`` was preferred, where nothing had to be relaxed."""


@runtime_checkable
class WaitingOrder(PlacementOrder, Protocol):
    """An order whose ``choose`` may return -1 although there is room, as waiting for other room is better."""

    def wait(self, context: PlanContext, job: Job, group: JobGroup, fits: Mask) -> Reason | None:
        """Return why ``job`` waits although the instances of ``fits`` have room; None: it does not."""
