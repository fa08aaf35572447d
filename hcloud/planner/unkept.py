"""Machines on which services miss the latency they promise: while others can be had, no more services are placed there.

A machine may be slower than its type should be, or have neighbours nobody sees. Of a service that was profiled more is
known (:mod:`hcloud.planner.suitability`); of others only how those do that are there. Where services miss theirs
elsewhere as well, the promises are to blame, and nothing is concluded. Batch jobs may go on using such a machine, and
once the services there have ended, another one finds out whether it still is as it was.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hcloud.forecast.watch import Sampled
from hcloud.model import Job, ServiceTarget
from hcloud.planner.context import PlanContext
from hcloud.planner.fleet import Mask


def machines_failing_services(context: PlanContext) -> Mask:
    """Return the machines on which most of the services that run there miss their latency now, shape ``(N,)``."""
    if context.unkept is None:
        seen, missed = (np.zeros(len(context.fleet.instances)) for _ in range(2))
        for job in context.running:
            for at, misses in _judged(context, job):
                seen[at] += 1
                missed[at] += misses
        elsewhere_kept = 2 * (missed.sum() - missed) <= seen.sum() - seen
        context.unkept = (2 * missed > seen) & elsewhere_kept
    return context.unkept


def _judged(context: PlanContext, job: Job) -> Iterator[tuple[int, bool]]:
    """Yield where each rank of a service is that was looked at often enough, and whether it misses its latency."""
    watched, target, attempt = context.snapshot.job_samples.get(job.id), job.spec.target, job.attempt
    if watched is None or attempt is None or watched.attempt != attempt.id or not isinstance(target, ServiceTarget):
        return
    for held in attempt.allocations:
        at = context.fleet.index.get(held.instance_id)
        samples = watched.ranks.get(held.rank, ())
        if at is not None and not held.released:
            looks, missed = _looks(samples, target, context.policy.correction.readings)
            if looks >= context.policy.correction.readings:
                yield at, 2 * missed > looks


def _looks(samples: tuple[Sampled, ...], target: ServiceTarget, enough: int) -> tuple[int, int]:
    """Return at how many of the last looks latency was measured, ``enough`` of them or all there are, and missed."""
    looks = missed = 0
    for sample in reversed(samples):
        told = [percentile for percentile in sample.latency_ms if percentile >= target.percentile]
        if told:
            stands_for = min(sample.looks, enough - looks)  # of older ones no more than are needed
            looks += stands_for
            missed += stands_for * (sample.latency_ms[min(told)] > target.latency_ms)
        if looks >= enough:
            break
    return looks, missed
