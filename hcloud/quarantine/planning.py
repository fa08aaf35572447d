"""Plan despite a defect: find the jobs or stages that make planning fail, and plan without them.

Without a plan nothing starts, and instances without lease renewals end with everything that runs on them.
A plan is a pure function, so it can be tried as often as needed. The first trial has no jobs: if it still fails, no job
is at fault and stages are left out. Otherwise jobs are added back, all at once, then by halves where that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain
from traceback import format_exception

import numpy as np

from hcloud.core.errors import defect_text
from hcloud.core.model import JobId
from hcloud.planner.cache import PlanCache
from hcloud.planner.make import OPTIONAL_STAGES
from hcloud.planner.plan import Plan
from hcloud.planner.snapshot import NOTHING_LEFT_OUT, LeftOut, Snapshot
from hcloud.spec.policy import Policy

Planner = Callable[[Snapshot, Policy, np.random.Generator], Plan]
"""A pure planning function; see :func:`hcloud.planner.make_plan`."""
FAILING_JOBS_MAX = 3
"""If more jobs than these fail, leaving out one minor stage is tried instead."""
MINOR_STAGES = tuple(name for name in OPTIONAL_STAGES if name not in ("service", "admission"))
"""Stages that may be left out for the sake of a few jobs; the others serve all jobs."""
TRIALS_MAX = 250
"""After this many trial plans, all jobs that were not added back stay left out."""


@dataclass(frozen=True, slots=True)
class RecoveredPlan:
    """A plan that was made despite a defect."""

    plan: Plan
    left_out: LeftOut
    """The jobs and stages that the plan was made without."""
    trace: str = ""
    """The traceback of the last trial that failed; "" if none was recorded."""


def plan_without_failing(
    plan: Planner, snapshot: Snapshot, policy: Policy, rng: np.random.Generator, defect: Exception,
    suspects: LeftOut = NOTHING_LEFT_OUT, before_trial: Callable[[], object] = lambda: None,
) -> RecoveredPlan:  # fmt: skip
    """Return a plan over ``snapshot``, for which ``plan`` raised ``defect``, without the jobs or stages at fault.

    ``rng`` is copied for each trial, never advanced. ``suspects`` are left out in the first trial.
    Raises ``defect`` if planning fails without any job and optional stage too.
    """
    return _PlanSearch(plan, snapshot, policy, rng, defect, before_trial).search(suspects)


def plan_or_recover(planner: Planner, snapshot: Snapshot, policy: Policy, rng: np.random.Generator) -> RecoveredPlan:
    """Return a plan, without the jobs or stages that make it fail, if any; ``rng`` is not advanced.

    Raises what ``planner`` raised if nothing that may be left out helps.
    """
    try:
        return RecoveredPlan(planner(snapshot, policy, deepcopy(rng)), NOTHING_LEFT_OUT)
    except Exception as defect:  # noqa: BLE001 any defect
        recovered = plan_without_failing(planner, snapshot, policy, rng, defect)
        return replace(recovered, trace=recovered.trace or "".join(format_exception(defect)))


class _PlanSearch:
    """Trial plans over one snapshot, each without some jobs or stages."""

    def __init__(
        self, planner: Planner, snapshot: Snapshot, policy: Policy, rng: np.random.Generator, defect: Exception,
        before_trial: Callable[[], object],
    ) -> None:  # fmt: skip
        self.planner, self.snapshot, self.policy, self.rng = planner, snapshot, policy, rng
        self.defect, self.before_trial, self.trace, self.trials = defect, before_trial, "", 0

    def search(self, suspects: LeftOut) -> RecoveredPlan:
        """Return a plan with as little left out as the search finds. Raises the first defect if there is none."""
        first, before = self.defect, self.snapshot.left_out
        known = LeftOut(jobs={**before.jobs, **suspects.jobs}, stages={**before.stages, **suspects.stages})
        if suspects and (plan := self._try(known)) is not None:
            return RecoveredPlan(plan, known)
        recovered = self._without_jobs(before) or self._without_stages(before)
        if recovered is None:
            raise first
        return replace(recovered, trace=self.trace)

    def _try(self, left_out: LeftOut) -> Plan | None:
        """Return the plan without ``left_out``; None if it fails, with the exception kept in ``defect``."""
        self.before_trial()
        self.trials += 1
        # A fresh cache: entries that a failed plan left behind cannot be trusted.
        trial = replace(self.snapshot, left_out=left_out, plan_cache=PlanCache())
        try:
            return self.planner(trial, self.policy, deepcopy(self.rng))
        except Exception as defect:  # noqa: BLE001 any defect
            self.defect, self.trace = defect, "".join(format_exception(defect))
            return None

    def _candidate_jobs(self, before: LeftOut) -> list[JobId]:
        everything = (*self.snapshot.arrays, *self.snapshot.jobs)
        return [job.id for job in everything if job.id not in before.jobs]

    def _without_jobs(self, before: LeftOut) -> RecoveredPlan | None:
        """Leave out the jobs at fault, or one minor stage if they are many; None if planning fails without any job."""
        everything = self._candidate_jobs(before)
        passing = self._try(self._with_jobs(before, {}, [everything]))
        if passing is None:
            return None
        at_fault, untried, stage_tried = dict[JobId, str](), [everything], False
        while untried and self.trials < TRIALS_MAX:
            some = untried.pop()
            plan = self._try(self._with_jobs(before, at_fault, untried))
            if plan is not None:
                passing = plan
            elif len(some) > 1:
                untried += [some[len(some) // 2 :], some[: len(some) // 2]]
            else:
                at_fault.update(dict.fromkeys(some, defect_text(self.defect)))
            if len(at_fault) > FAILING_JOBS_MAX and not stage_tried:
                stage_tried = True
                if (without_stage := self._without_minor_stage(before)) is not None:
                    return without_stage
        return RecoveredPlan(passing, self._with_jobs(before, at_fault, untried))

    def _without_stages(self, before: LeftOut) -> RecoveredPlan | None:
        """Leave out the one stage that fails without any job, else all optional stages; then the jobs at fault too."""
        for names in (*((name,) for name in OPTIONAL_STAGES if name not in before.stages), OPTIONAL_STAGES):
            less = _with_stages(before, names, self.defect)
            if self._try(self._with_jobs(less, {}, [self._candidate_jobs(less)])) is not None:
                plan = self._try(less)
                return self._without_jobs(less) if plan is None else RecoveredPlan(plan, less)
        return None

    def _without_minor_stage(self, before: LeftOut) -> RecoveredPlan | None:
        for name in MINOR_STAGES:
            less = _with_stages(before, (name,), self.defect)
            if name not in before.stages and (plan := self._try(less)) is not None:
                return RecoveredPlan(plan, less)
        return None

    def _with_jobs(self, before: LeftOut, at_fault: Mapping[JobId, str], more: Iterable[Sequence[JobId]]) -> LeftOut:
        others = dict.fromkeys(chain.from_iterable(more), defect_text(self.defect))
        return replace(before, jobs={**others, **at_fault, **before.jobs})


def _with_stages(before: LeftOut, names: Sequence[str], defect: Exception) -> LeftOut:
    return replace(before, stages={**dict.fromkeys(names, defect_text(defect)), **before.stages})
