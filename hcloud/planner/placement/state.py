"""What placement keeps while one plan is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

import numpy as np

from hcloud.core.model import JobId
from hcloud.planner.context import PlanContext
from hcloud.planner.fleet import Amounts
from hcloud.planner.job_groups import JobGroup
from hcloud.planner.placement.explain_choice import Alternatives
from hcloud.planner.placement.holdback import Holdback


@dataclass(slots=True, eq=False)
class PlacementState:
    """The state of placement in one plan; provisioning places jobs with it too."""

    context: PlanContext
    holdback: Holdback
    """Which instances are closed to a group while better ones can be launched."""
    alternatives: Alternatives = field(default_factory=Alternatives)
    """The types considered, to be explained."""
    diverting: bool = True
    """Whether jobs may accept unsuitable instances at present."""
    tried: dict[JobId, int] = field(default_factory=dict)
    """By job, how many changes :attr:`Suitability.changed` had when the job last found no room in this pass."""
    down_within_s: dict[JobGroup, float] = field(default_factory=dict)
    """Slack in seconds below which the jobs of a group accept a worse instance, where it was asked for."""
    lost: dict[JobGroup, Amounts] = field(default_factory=dict)
    """Part of performance (0..1) that a group loses to each instance's type, shape ``(N,)``, where it was asked for."""
    reservations_sought: int = 0
    """For how many groups a reservation was sought."""
    _least_queued: Amounts | None = None

    def least_queued(self) -> Amounts:
        """Return the least that any queued job asks for of each resource, shape ``(4,)``; inf if none is queued."""
        if self._least_queued is None:
            queues = self.context.waiting.queues.values()
            groups = {segment.group for queue in queues for segment in queue.segments}
            demands = [group.demand for group in groups]
            self._least_queued = np.min(demands, axis=0) if demands else np.full(4, inf)
        return self._least_queued
