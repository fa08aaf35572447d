"""``make_plan``: the only function that decides, and the order of its stages.

The planner is pure: no I/O, no clock, no state outside the snapshot and the generator it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from hcloud.core.model import Reason
from hcloud.planner.admission import admit
from hcloud.planner.array_tasks import plan_tasks
from hcloud.planner.co_scheduling import co_schedule_residents
from hcloud.planner.context import PlanContext, open_context
from hcloud.planner.correction.correct import correct
from hcloud.planner.correction.scaling import add_missing_ranks
from hcloud.planner.instance_lifecycle import reconcile_instances, release_broken, release_idle
from hcloud.planner.job_outcomes import PLANNING_FAILS, decide_outcomes
from hcloud.planner.late_boots import find_late_boots
from hcloud.planner.placement.awaited_instances import hold_booting_capacity
from hcloud.planner.placement.place import place
from hcloud.planner.plan import Plan
from hcloud.planner.plan_ahead.stage import plan_ahead
from hcloud.planner.profiling_beside import classify_unknown, profile_beside
from hcloud.planner.provisioning.provision import expand, launch, provision, start_provisioning
from hcloud.planner.provisioning.surplus_ranks import give_up_optional_ranks
from hcloud.planner.provisioning.upsizing import upsize_machines
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import Policy

GROWTH = "growth"


def make_plan(snapshot: Snapshot, policy: Policy, rng: np.random.Generator) -> Plan:
    """Return the actions to take now, each with the reason that decided it.

    Stages run in a fixed order: outcomes of jobs, tasks of arrays, state of instances, admission, corrections,
    placement and provisioning, pauses, release of idle instances, optional ranks. The same snapshot, policy and
    generator state give the same plan, whatever the order of jobs and instances. Planning again after the plan was
    applied to its own snapshot launches, places and terminates nothing more. Jobs and stages in ``snapshot.left_out``
    are skipped.
    """
    context = open_context(snapshot, policy, rng)
    decide_outcomes(context)
    classify_unknown(context)
    plan_tasks(context)
    reconcile_instances(context)
    for name, stage in STAGES.items():
        if name not in snapshot.left_out.stages:
            stage(context)
        elif stage in (admit, _serve):
            _record_failed_stage(context, name, snapshot.left_out.stages[name])
    return context.plan()


def _set_late_boots(context: PlanContext) -> None:
    context.reservations.expect_late_boots(find_late_boots(context.snapshot, context.policy, context.fleet))


def _serve(context: PlanContext) -> None:
    """Place and provision: missing ranks of jobs behind their target first, then jobs with a target, then best
    effort."""
    if context.snapshot.paused:
        context.reservations.keep_awaited()
        return
    state, grows = start_provisioning(context), GROWTH not in context.snapshot.left_out.stages
    hold_booting_capacity(context)
    if grows:
        add_missing_ranks(state.placement, behind=True)
        expand(state)
    if context.policy.admission.queues == "planned":
        plan_ahead(state.placement, state.offer_market)
    for promise in (True, False):
        place(state.placement, promise)
        provision(state, promise)
    launch(state)
    if grows:
        upsize_machines(state)
        add_missing_ranks(state.placement)


def _record_failed_stage(context: PlanContext, stage: str, error: str) -> None:
    """Keep the instances that jobs await, and give every waiting job the reason it waits."""
    context.reservations.keep_awaited()
    text = f"planning stage {stage} fails with a defect of HCloud ({error}); retried soon"
    for job in context.waiting.all_jobs():
        context.decisions.wait(job, PLANNING_FAILS, lambda: Reason(code=PLANNING_FAILS, text=text))


STAGES: Mapping[str, Callable[[PlanContext], None]] = {
    "lateness": _set_late_boots,
    "misbehaviour": release_broken,
    "admission": admit,
    "correction": correct,
    "service": _serve,
    "co_scheduling": co_schedule_residents,
    "profiling": profile_beside,
    "release": release_idle,
    "optional_ranks": give_up_optional_ranks,
}
"""The stages a plan can skip for a while, in order. Job outcomes and lease renewals are not among them: an instance
that is not renewed expires, and its units with it."""
OPTIONAL_STAGES = (
    "co_scheduling",
    "optional_ranks",
    "profiling",
    "lateness",
    "misbehaviour",
    GROWTH,
    "release",
    "correction",
    "service",
    "admission",
)
"""The stages that may be left out of a plan (:class:`hcloud.planner.snapshot.LeftOut`), the most expendable first."""
