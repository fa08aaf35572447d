"""Planners that fail on some jobs, or in some stage, while a soak's trouble lasts: defects that nobody knows of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from traceback import format_exception

import numpy as np

from hcloud.model import JOB_ON_INSTANCE, Event, EventKind, Job
from hcloud.planner.despite import Planner
from hcloud.planner.plan import Plan
from hcloud.planner.snapshot import Snapshot
from hcloud.policy import Policy

DEFECT = "planning_fails"
"""A tag of a soak job with which planning fails: while it is ``waiting``, ``running``, or ``always``."""


class Planted(Exception):
    """What a defective planner fails with."""


def defective(
    planner: Planner, stage: str, lasts: Callable[[], bool], fails: Callable[[Sequence[str]], object]
) -> Planner:
    """Return ``planner``, failing while it ``lasts`` with every job that is tagged so, and in ``stage`` (if any), but
    where they are left out. It fails last, so that it leaves behind in the memo, and draws, all it otherwise would.
    ``fails`` is told the trace where it fails by itself."""

    def plan(snapshot: Snapshot, policy: Policy, rng: np.random.Generator) -> Plan:
        """Plan, or fail as planted."""
        try:
            made = planner(snapshot, policy, rng)
        except Exception as defect:  # it is told of, and passed on
            fails(format_exception(defect))
            raise
        for job in snapshot.jobs if lasts() else ():
            if job.id not in snapshot.left_out.jobs and _fails_with(job):
                raise Planted(f"planted in {job.id}")
        if stage and stage not in snapshot.left_out.stages and lasts():
            raise Planted(f"planted in {stage}")
        return made

    return plan


def _fails_with(job: Job) -> bool:
    running, limit_usd = job.state in JOB_ON_INSTANCE, job.spec.budget_usd
    ends = job.cancelled_by is not None or (limit_usd is not None and job.spent_usd >= limit_usd)
    return not ends and job.spec.tags.get(DEFECT) in ("always", "running" if running else "waiting")


def unplanted(event: Event, job: Job | None, stage: str) -> Iterator[str]:
    """Return a sentence where planning failed on what nobody planted; ``job``: the one that is left out, if any."""
    if event.kind is not EventKind.PLANNING_TROUBLE:
        return
    planted = DEFECT in job.spec.tags if job is not None else event.fields["left_out"] == stage
    if not planted:
        yield f"bug: {event.fields['text']}: {event.fields['error']}"
