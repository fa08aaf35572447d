"""Which neighbour a running job loses how much to: how much faster it would be without each, and without them all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from hcloud.forecast.course import Trend
from hcloud.model import Allocation, Job, JobId
from hcloud.planner.context import PlanContext
from hcloud.planner.fleet import SLACK
from hcloud.planner.stragglers import faster_anew
from hcloud.planner.watching import Assessment, RankSamples


class _Neighbour(NamedTuple):
    """A neighbour: what it holds on the machine, and when it came."""

    vcpus: float
    placed_at: float
    started_at: float


class LossAttribution:
    """What a job that misses its target loses to whom, as things stand: after a step it is to be asked anew."""

    def __init__(self, context: PlanContext, look: RankSamples, found: Assessment) -> None:
        """Note which job it is about."""
        self.context, self.look, self.found = context, look, found

    def faster_alone(self) -> float:
        """Return how much faster the job is without neighbours, and what else makes it a straggler where it is."""
        here_too = {job.id: job for job, _ in self._holdings}
        here_too.pop(self.look.job.id, None)
        without = [self.faster_without(each, assume=False) for each in here_too.values()]
        return 1.0 + math.fsum(factor - 1.0 for factor in without) if without else faster_anew(self.context, self.look)

    def faster_without(self, neighbour: Job, *, assume: bool = True) -> float:
        """Return how much faster the job is without a neighbour, which is charged with its share of what is lost.

        What is lost is what the job did less after the neighbour came than before: nothing, where it did not fall then.
        Where that was not measured, it is what separates the job from what it is expected to do alone, or else from the
        best it did lately; of a neighbour that was there from the start it is assumed (``assume``) that the vCPUs it
        holds are what is missing.
        """
        look, found, margin = self.look, self.found, self.context.policy.correction.margin
        mean = max(found.pace.mean, found.wanted * 0.01)
        own = self._beside.get(neighbour.id, _Neighbour(0.0, 0.0, 0.0))
        fell = self._course.around((own.placed_at, own.started_at), look.span_s) if self._course is not None else None
        if fell is not None:
            before, after = fell
            if before < after * (1.0 + margin):
                return 1.0
            came = [each.vcpus for each in self._beside.values() if abs(each.placed_at - own.placed_at) <= look.span_s]
            return 1.0 + max(0.0, min(before / after, before / mean) - 1.0) * own.vcpus / max(sum(came), SLACK)
        share = own.vcpus / max(self._vcpus_beside, SLACK)
        expected = look.departure() is not None and found.by != "latency"
        if self._alone >= mean * (1.0 + margin):
            charged = expected or own.placed_at >= look.samples[0].at
            return 1.0 + (self._alone / mean - 1.0) * share if charged else 1.0
        if assume and not expected and own.placed_at <= (look.held.started_at or 0.0):
            return min(found.wanted / mean, 1.0 + own.vcpus / look.held.resources.vcpus)
        return 1.0

    @property
    def _holdings(self) -> Sequence[tuple[Job, Allocation]]:
        fleet = self.context.fleet
        return fleet.holdings[fleet.index[self.look.held.instance_id]]

    @cached_property
    def _beside(self) -> dict[JobId, _Neighbour]:
        """Who stays beside the job on its machine."""
        found: dict[JobId, _Neighbour] = {}
        for job, held in self._holdings:
            if job.id != self.look.job.id and job.id not in self.context.stopping:
                placed_at = job.attempt.placed_at if job.attempt is not None else 0.0
                before = found.get(job.id, _Neighbour(0.0, placed_at, placed_at))
                started_at = max(before.started_at, held.started_at or placed_at)
                found[job.id] = _Neighbour(before.vcpus + held.resources.vcpus, placed_at, started_at)
        return found

    @cached_property
    def _vcpus_beside(self) -> float:
        return sum(each.vcpus for each in self._beside.values())

    @cached_property
    def _course(self) -> Trend | None:
        return self.look.course(self.found)

    @cached_property
    def _alone(self) -> float:
        """What the job would do without neighbours, in the unit of its target, as far as that is known.

        A service's rate says how much was asked of it, not how much it could do: there only what it has reached counts.
        """
        pace = self.found.pace
        departure = self.look.departure() if self.found.by != "latency" else None
        if departure is None or departure.measured.mean <= 0:
            return pace.best
        return max(pace.best, pace.mean * departure.would.value / departure.measured.mean)
