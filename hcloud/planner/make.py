"""``make_plan``: the one place where anything is decided. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from hcloud.core.model import Reason
from hcloud.planner.admission import admit
from hcloud.planner.context import PlanContext, open_context
from hcloud.planner.correction.correct import correct
from hcloud.planner.correction.scaling import add_missing_ranks
from hcloud.planner.instance_lifecycle import reconcile_instances, release_degraded, release_idle
from hcloud.planner.job_outcomes import PLANNING_FAILS, decide_outcomes
from hcloud.planner.late_boots import find_late_boots
from hcloud.planner.placement.place import hold_booting_capacity, place
from hcloud.planner.plan import Plan
from hcloud.planner.provisioning.consolidation import consolidate
from hcloud.planner.provisioning.provision import expand, launch, provision, start_provisioning
from hcloud.planner.provisioning.upsizing import upsize_machines
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import Policy

GROWTH = "growth"


def make_plan(snapshot: Snapshot, policy: Policy, rng: np.random.Generator) -> Plan:
    """Return what to do now, each action with the reason that decided it.

    The order of the stages is fixed: what became of jobs and machines, who may go on, who is helped to keep its target,
    who starts where, what is launched for the rest, what is let go. The same snapshot, policy and generator state give
    the same plan, in whatever order jobs and instances are listed. A plan applied to its own snapshot leaves nothing to
    launch, place or end. ``snapshot.left_out`` says what planning failed on before: that is passed over.
    """
    context = open_context(snapshot, policy, rng)
    decide_outcomes(context)
    reconcile_instances(context)
    for name, stage in STAGES.items():
        if name not in snapshot.left_out.stages:
            stage(context)
        elif stage in (admit, _serve):
            _serve_nobody(context, name, snapshot.left_out.stages[name])
    context.open_of = None  # it knows the draft: without this only the collector of reference cycles could let go of it
    return context.plan()


def _note_late(context: PlanContext) -> None:
    context.late = find_late_boots(context.snapshot, context.policy, context.fleet)


def _serve(context: PlanContext) -> None:
    """Place and provision: first more nodes for those who miss their target, then for everybody with a promise, then,
    in what that leaves, for best effort."""
    if context.snapshot.paused:
        context.used = set(context.kept)
        return
    state, grows = start_provisioning(context), GROWTH not in context.snapshot.left_out.stages
    hold_booting_capacity(context)
    if grows:
        add_missing_ranks(context, behind=True)
        expand(state)
    for promise in (True, False):
        place(context, promise)
        provision(state)
    launch(state)
    if grows:
        upsize_machines(state)
        add_missing_ranks(context)


def _serve_nobody(context: PlanContext, stage: str, error: str) -> None:
    """Keep the machines that are awaited, and say to all who wait why they do."""
    context.used.update(context.kept)
    text = f"waiting: planning stage {stage} fails with a defect of HCloud ({error}); retried soon"
    for job in context.waiting:
        context.wait(job, PLANNING_FAILS, lambda: Reason(code=PLANNING_FAILS, text=text))


STAGES: Mapping[str, Callable[[PlanContext], None]] = {
    "lateness": _note_late,
    "misbehaviour": release_degraded,
    "admission": admit,
    "correction": correct,
    "service": _serve,
    "release": release_idle,
    "consolidation": consolidate,
}
"""What a plan can do without for a while, in order. What became of jobs, and what is paid for, are not among them: a
machine that nobody renews ends, with all that runs there."""
OPTIONAL_STAGES = ("consolidation", "lateness", "misbehaviour", GROWTH, "release", "correction", "service", "admission")
"""What may be left out of plans (:class:`hcloud.planner.snapshot.LeftOut`), what is missed least first."""
