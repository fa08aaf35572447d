"""``make_plan``: the one place where anything is decided. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from hcloud.model import Reason
from hcloud.planner.adaptation import PLANNING_FAILS, adapt
from hcloud.planner.admission import admit
from hcloud.planner.consolidation import consolidate
from hcloud.planner.correction import correct
from hcloud.planner.draft import Draft, open_draft
from hcloud.planner.enlarging import enlarge
from hcloud.planner.growing import grow
from hcloud.planner.lateness import find_late
from hcloud.planner.leases import tend_machines
from hcloud.planner.placement import hold_what_comes, place
from hcloud.planner.plan import Plan
from hcloud.planner.provisioning import expand, launch, open_desk, provision
from hcloud.planner.retention import let_misbehaving_go, release_idle
from hcloud.planner.snapshot import Snapshot
from hcloud.policy import Policy

GROWTH = "growth"


def make_plan(snapshot: Snapshot, policy: Policy, rng: np.random.Generator) -> Plan:
    """Return what to do now, each action with the reason that decided it.

    The order of the stages is fixed: what became of jobs and machines, who may go on, who is helped to keep its target,
    who starts where, what is launched for the rest, what is let go. The same snapshot, policy and generator state give
    the same plan, in whatever order jobs and instances are listed. A plan applied to its own snapshot leaves nothing to
    launch, place or end. ``snapshot.left_out`` says what planning failed on before: that is passed over.
    """
    draft = open_draft(snapshot, policy, rng)
    adapt(draft)
    tend_machines(draft)
    for name, stage in STAGES.items():
        if name not in snapshot.left_out.stages:
            stage(draft)
        elif stage in (admit, _serve):
            _serve_nobody(draft, name, snapshot.left_out.stages[name])
    draft.open_of = None  # it knows the draft: without this only the collector of reference cycles could let go of it
    return draft.plan()


def _note_late(draft: Draft) -> None:
    draft.late = find_late(draft.snapshot, draft.policy, draft.fleet)


def _serve(draft: Draft) -> None:
    """Place and provision: first more nodes for those who miss their target, then for everybody with a promise, then,
    in what that leaves, for best effort."""
    if draft.snapshot.paused:
        draft.used = set(draft.kept)
        return
    desk, grows = open_desk(draft), GROWTH not in draft.snapshot.left_out.stages
    hold_what_comes(draft)
    if grows:
        grow(draft, behind=True)
        expand(desk)
    for promise in (True, False):
        place(draft, promise)
        provision(desk)
    launch(desk)
    if grows:
        enlarge(desk)
        grow(draft)


def _serve_nobody(draft: Draft, stage: str, error: str) -> None:
    """Keep the machines that are awaited, and say to all who wait why they do."""
    draft.used.update(draft.kept)
    text = (
        f"nothing is started now: the planning of {stage} fails, a defect of HCloud ({error}); it is tried again soon"
    )
    for job in draft.waiting:
        draft.wait(job, PLANNING_FAILS, lambda: Reason(code=PLANNING_FAILS, text=text))


STAGES: Mapping[str, Callable[[Draft], None]] = {
    "lateness": _note_late,
    "misbehaviour": let_misbehaving_go,
    "admission": admit,
    "correction": correct,
    "service": _serve,
    "release": release_idle,
    "consolidation": consolidate,
}
"""What a plan can do without for a while, in order. What became of jobs, and what is paid for, are not among them: a
machine that nobody renews ends, with all that runs there."""
OPTIONAL = ("consolidation", "lateness", "misbehaviour", GROWTH, "release", "correction", "service", "admission")
"""What may be left out of plans (:class:`hcloud.planner.snapshot.LeftOut`), what is missed least first."""
