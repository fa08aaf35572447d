"""``make_plan``: the one place where anything is decided. Pure."""

from __future__ import annotations

import numpy as np

from hcloud.planner.adaptation import adapt
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


def make_plan(snapshot: Snapshot, policy: Policy, rng: np.random.Generator) -> Plan:
    """Return what to do now, each action with the reason that decided it.

    The order of the stages is fixed: what became of jobs and machines, who may go on, who is helped to keep its target,
    who starts where, what is launched for the rest, what is let go. The same snapshot, policy and generator state give
    the same plan, in whatever order jobs and instances are listed. A plan applied to its own snapshot leaves nothing to
    launch, place or end.
    """
    draft = open_draft(snapshot, policy, rng)
    adapt(draft)
    tend_machines(draft)
    draft.late = find_late(snapshot, policy, draft.fleet)
    let_misbehaving_go(draft)
    admit(draft)
    correct(draft)
    _serve(draft)
    release_idle(draft)
    consolidate(draft)
    draft.open_of = None  # it knows the draft: without this only the collector of reference cycles could let go of it
    return draft.plan()


def _serve(draft: Draft) -> None:
    """Place and provision: first more nodes for those who miss their target, then for everybody with a promise, then,
    in what that leaves, for best effort."""
    if draft.snapshot.paused:
        draft.used = set(draft.kept)
        return
    desk = open_desk(draft)
    hold_what_comes(draft)
    grow(draft, behind=True)
    expand(desk)
    for promise in (True, False):
        place(draft, promise)
        provision(desk)
    launch(desk)
    enlarge(desk)
    grow(draft)
