"""Instances that boot far later than is usual for their type, and the jobs that do not wait for them.

Boot times have a long tail: a late boot is likely to stay late (:mod:`hcloud.forecast.boot_times`). A job that would
probably miss its deadline by waiting, and any service, gets other room or another instance, within every limit. This
includes room held back for others (:mod:`hcloud.planner.provisioning.holdback`). The late instance serves whichever job
comes first, or is released like any idle one. All of this follows from the snapshot, so a partly applied plan is
completed by the next one, and no second instance is launched for the same need.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from hcloud.core.model import InstanceState, Job, Reason
from hcloud.forecast.boot_times import broken_by_waiting, is_late
from hcloud.planner.fit.job_run_times import JobRunTimes
from hcloud.planner.fleet import Fleet, Mask
from hcloud.planner.snapshot import Snapshot
from hcloud.planner.text import seconds
from hcloud.spec.policy import Policy


class Urgency(IntEnum):
    """Whether a job can wait for late instances: it can; it cannot; it cannot, and awaits one."""

    NONE = 0
    CANNOT_WAIT = 1
    CANNOT_WAIT_LONGER = 2


@dataclass(frozen=True, slots=True, eq=False)
class LateBoots:
    """The instances that boot late."""

    now: float
    risk: float
    """Tolerated probability that waiting breaks a deadline."""
    age_s: dict[str, float]
    """How long each late instance has been booting, by id."""
    mask: Mask
    """The same as a mask, shape ``(N,)``."""

    def urgency(self, job: Job, run_times: JobRunTimes) -> Urgency:
        """Return whether ``job`` can wait for late instances."""
        awaited_s = [self.age_s[name] for name in job.awaiting if name in self.age_s]
        if job.spec.profile is not None or self._lost_by_waiting(job, awaited_s, run_times) <= self.risk:
            return Urgency.NONE
        return Urgency.CANNOT_WAIT_LONGER if awaited_s else Urgency.CANNOT_WAIT

    def _lost_by_waiting(self, job: Job, awaited_s: list[float], run_times: JobRunTimes) -> float:
        if job.spec.target.kind == "service":
            return 1.0
        if job.deadline_at is None:
            return 0.0
        age_s, left_s = min(awaited_s or self.age_s.values()), job.deadline_at - self.now
        return broken_by_waiting(age_s, left_s, run_times.equally_likely_s(job))


def requeue_reason(job: Job, late: LateBoots | None) -> Reason:
    """Return the reason to requeue ``job``: an instance it awaits is late, or has no room for it any more."""
    ages_s = {name: late.age_s[name] for name in job.awaiting if name in late.age_s} if late is not None else {}
    if not ages_s:
        names = ", ".join(job.awaiting)
        return Reason(code="awaited_full", text=f"awaited {names} no longer has room; choosing another machine")
    name = max(ages_s, key=lambda each: ages_s[each])
    text = f"awaited {name} has been booting for {seconds(ages_s[name])}, longer than nearly all of its type;"
    text += " choosing another machine to keep its target"
    return Reason(code="awaited_late", text=text, numbers={"late": name, "starting_s": round(ages_s[name], 3)})


def find_late_boots(snapshot: Snapshot, policy: Policy, fleet: Fleet) -> LateBoots | None:
    """Return the late instances of ``fleet.coming``; None if there are none. While the engine does not answer, no
    worker can register and nothing is late."""
    if not snapshot.engine_reachable or not fleet.coming.any():
        return None
    ages_s: dict[int, float] = {}
    for at in np.flatnonzero(fleet.coming).tolist():
        instance = fleet.instances[at]
        since = max(instance.requested_at, instance.launched_at or 0.0, snapshot.engine_reachable_since)
        # An instance that was only requested is not booting yet.
        ages_s[at] = snapshot.now - since if instance.state is InstanceState.BOOTING else 0.0
    late: dict[str, float] = {}
    mask = np.zeros(len(fleet.instances), dtype=np.bool_)
    for at, age_s in ages_s.items():
        offer = fleet.instances[at].offer
        others_s = [s for n, s in ages_s.items() if n != at and fleet.instances[n].offer.provider == offer.provider]
        seen_s = snapshot.fleet_stats.boots_s.get(offer.provider, ())
        if is_late(age_s, offer.instance_type.boot_delay_s, seen_s, others_s):
            late[fleet.instances[at].id], mask[at] = age_s, True
    return LateBoots(snapshot.now, 1.0 - policy.placement.confidence, late, mask) if late else None
