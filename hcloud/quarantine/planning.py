"""A plan despite a defect: what planning fails on is found by trying, and left out, so that one job does not stop all
the others. Without a plan nothing starts, and instances end at their lease with all that runs on them.

A plan is a pure function, so it can be tried as often as need be. First it is tried without any job: if it still fails,
no job is at fault, and stages are left out. Else jobs are taken in again, all at once, and by halves where that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain
from traceback import format_exception

import numpy as np

from hcloud.core.model import JobId
from hcloud.planner.cache import PlanCache
from hcloud.planner.make import OPTIONAL_STAGES
from hcloud.planner.plan import Plan
from hcloud.planner.snapshot import NOTHING_LEFT_OUT, LeftOut, Snapshot
from hcloud.spec.policy import Policy

Planner = Callable[[Snapshot, Policy, np.random.Generator], Plan]
"""What decides: pure, see :func:`hcloud.planner.make_plan`."""
FAILING_JOBS_MAX, MINOR_STAGES = 3, tuple(name for name in OPTIONAL_STAGES if name not in ("service", "admission"))
"""Where planning fails on more jobs than these one of the minor stages is left out instead, if that helps. Those that
serve everybody are not, for the sake of however many."""
TRIALS_MAX = 250
"""After so many plans all jobs stay left out that were not taken in again."""


@dataclass(frozen=True, slots=True)
class RecoveredPlan:
    """A plan, all that was left out to make it, and the trace of the last trial that failed."""

    plan: Plan
    left_out: LeftOut
    trace: str = ""


def plan_without_failing(
    plan: Planner, snapshot: Snapshot, policy: Policy, rng: np.random.Generator, defect: Exception,
    suspects: LeftOut = NOTHING_LEFT_OUT, between: Callable[[], object] = lambda: None,
) -> RecoveredPlan:  # fmt: skip
    """Return a plan over ``snapshot``, of which planning failed with ``defect``, without what it fails on.

    ``rng`` is as it was before that, and is left alone; ``suspects`` were left out of earlier plans, and are tried
    first; ``between`` is called before each trial. Raises ``defect`` where nothing that may be left out helps.
    """
    return _Trials(plan, snapshot, policy, rng, defect, between).search(suspects)


def plan_or_recover(planner: Planner, snapshot: Snapshot, policy: Policy, rng: np.random.Generator) -> RecoveredPlan:
    """Return a plan, without what it fails on if it does; ``rng`` is left alone. Raises what planning failed with where
    it fails whatever is left out."""
    try:
        return RecoveredPlan(planner(snapshot, policy, deepcopy(rng)), NOTHING_LEFT_OUT)
    except Exception as defect:  # noqa: BLE001 any defect is to be got round
        found = plan_without_failing(planner, snapshot, policy, rng, defect)
        return replace(found, trace=found.trace or "".join(format_exception(defect)))


class _Trials:
    def __init__(
        self, planner: Planner, snapshot: Snapshot, policy: Policy, rng: np.random.Generator, defect: Exception,
        between: Callable[[], object],
    ) -> None:  # fmt: skip
        self.planner, self.snapshot, self.policy, self.rng = planner, snapshot, policy, rng
        self.defect, self.between, self.trace, self.trials = defect, between, "", 0

    def plan(self, left_out: LeftOut) -> Plan | None:
        """Return the plan without ``left_out``; None where it fails, which is kept as the last ``defect``."""
        self.between()
        self.trials += 1
        trial = replace(
            self.snapshot, left_out=left_out, plan_cache=PlanCache()
        )  # what a failed plan left behind proves nothing
        try:
            return self.planner(trial, self.policy, deepcopy(self.rng))
        except Exception as defect:  # noqa: BLE001 any defect is to be got round
            self.defect, self.trace = defect, "".join(format_exception(defect))
            return None

    def search(self, suspects: LeftOut) -> RecoveredPlan:
        """Return a plan without as little as seems to be needed. Raises the first defect where nothing helps."""
        first, before = self.defect, self.snapshot.left_out
        known = LeftOut(jobs={**before.jobs, **suspects.jobs}, stages={**before.stages, **suspects.stages})
        if suspects and (plan := self.plan(known)) is not None:
            return RecoveredPlan(plan, known)
        found = self._without_jobs(before) or self._without_stages(before)
        if found is None:
            raise first
        return replace(found, trace=self.trace)

    def _all_jobs(self, before: LeftOut) -> LeftOut:
        return self._with_jobs(before, {}, [self._others(before)])

    def _others(self, before: LeftOut) -> list[JobId]:
        return [job.id for job in self.snapshot.jobs if job.id not in before.jobs]

    def _without_jobs(self, before: LeftOut) -> RecoveredPlan | None:
        """Leave out the jobs that planning fails on, or a minor stage where these are many; None: that helps not."""
        passing = self.plan(self._all_jobs(before))
        if passing is None:
            return None
        at_fault, untried, stage_tried = dict[JobId, str](), [self._others(before)], False
        while untried and self.trials < TRIALS_MAX:
            some = untried.pop()
            plan = self.plan(self._with_jobs(before, at_fault, untried))
            if plan is not None:
                passing = plan
            elif len(some) > 1:
                untried += [some[len(some) // 2 :], some[: len(some) // 2]]
            else:
                at_fault.update(dict.fromkeys(some, error_text(self.defect)))
            if len(at_fault) > FAILING_JOBS_MAX and not stage_tried:
                stage_tried = True
                if (instead := self._without_one_stage(before)) is not None:
                    return instead
        return RecoveredPlan(passing, self._with_jobs(before, at_fault, untried))

    def _without_stages(self, before: LeftOut) -> RecoveredPlan | None:
        """Leave out the one stage that fails whatever jobs there are, or all that a plan can do without; then the jobs
        that it fails on as well."""
        for names in (*((name,) for name in OPTIONAL_STAGES if name not in before.stages), OPTIONAL_STAGES):
            less = _with_stages(before, names, self.defect)
            if self.plan(self._all_jobs(less)) is not None:
                plan = self.plan(less)
                return self._without_jobs(less) if plan is None else RecoveredPlan(plan, less)
        return None

    def _without_one_stage(self, before: LeftOut) -> RecoveredPlan | None:
        for name in MINOR_STAGES:
            less = _with_stages(before, (name,), self.defect)
            if name not in before.stages and (plan := self.plan(less)) is not None:
                return RecoveredPlan(plan, less)
        return None

    def _with_jobs(self, before: LeftOut, at_fault: Mapping[JobId, str], more: Iterable[Sequence[JobId]]) -> LeftOut:
        others = dict.fromkeys(chain.from_iterable(more), error_text(self.defect))
        return replace(before, jobs={**others, **at_fault, **before.jobs})


def _with_stages(before: LeftOut, names: Sequence[str], defect: Exception) -> LeftOut:
    return replace(before, stages={**dict.fromkeys(names, error_text(defect)), **before.stages})


def error_text(defect: Exception) -> str:
    """Return what went wrong, and in which function: for a sentence about it."""
    trace, where = defect.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        where = f" in {code.co_filename.rpartition('/')[2]}, {code.co_name}"
        trace = trace.tb_next
    return f"{type(defect).__name__}: {defect}{where}"
