"""Idle machines that are kept because the next run of a schedule needs them soon.

Retention keeps an idle machine for as long as its boot costs, since it is not known when the next job comes. Of a
schedule it is known: a machine past its retention is kept if a run is due within the same time from now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hcloud.core.model import Instance, Market
from hcloud.core.schedules import ScheduledRun
from hcloud.planner.context import PlanContext
from hcloud.planner.topology import admits


def kept_for_schedules(context: PlanContext, idle: Sequence[int]) -> Mapping[int, ScheduledRun]:
    """Return which ``idle`` instances are needed by runs that are due within their retention, each with the first run.

    Runs take reserved instances first, then those that have been idle the shortest. Room on instances that run
    something does not count, as it may not be free then.
    """
    ahead = (run for run in context.snapshot.scheduled if run.due_at > context.now)
    runs = sorted(ahead, key=lambda run: (run.due_at, run.schedule))
    if not runs:
        return {}
    instances, retention = context.fleet.instances, context.policy.retention
    order = sorted(
        idle, key=lambda at: (instances[at].offer.market is not Market.RESERVED, -_idle_since(instances[at]))
    )
    room = {at: instances[at].capacity for at in order}
    kept = dict[int, ScheduledRun]()
    for run in runs:
        left = run.nodes
        for at in order:
            if run.due_at - context.now > retention.keep_idle_s(instances[at].retention_s):
                continue
            need = run.spec.resources_on(instances[at].capacity)
            while left and _may_run_on(run, instances[at]) and need.fits(room[at]):
                room[at] = room[at].minus(need)
                kept.setdefault(at, run)
                left -= 1
    return kept


def _may_run_on(run: ScheduledRun, instance: Instance) -> bool:
    offer, spec = instance.offer, run.spec
    is_lasting = spec.interruptible or offer.market is not Market.SPOT
    return is_lasting and spec.may_run_on(offer.instance_type.name) and admits(spec.placement, offer)


def _idle_since(instance: Instance) -> float:
    return instance.idle_since or instance.ready_at or 0.0
