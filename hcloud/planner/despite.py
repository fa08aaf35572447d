"""A plan despite a defect: what planning fails on is found by trying, and left out, so that one job does not stop all
the others. Without a plan nothing starts, and machines that nobody renews end with all that runs on them.

A plan is a pure function, so it can be tried as often as need be. First it is tried without any job: if it still fails,
no single job is at fault, and stages are left out. Else those that it fails on are found by halves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from traceback import format_exception

import numpy as np

from hcloud.model import JobId
from hcloud.planner.make import OPTIONAL
from hcloud.planner.memo import Memo
from hcloud.planner.plan import Plan
from hcloud.planner.snapshot import NOTHING_LEFT_OUT, LeftOut, Snapshot
from hcloud.policy import Policy

Planner = Callable[[Snapshot, Policy, np.random.Generator], Plan]
"""What decides: pure, see :func:`hcloud.planner.make_plan`."""
MOST_JOBS = 3
"""Where planning fails on more jobs than these a stage is to blame, if it goes well without one."""


@dataclass(frozen=True, slots=True)
class Despite:
    """A plan, all that was left out to make it, and the trace of the last trial that failed."""

    plan: Plan
    left_out: LeftOut
    trace: str = ""


def plan_despite(
    plan: Planner, snapshot: Snapshot, policy: Policy, rng: np.random.Generator, defect: Exception,
    suspects: LeftOut = NOTHING_LEFT_OUT, between: Callable[[], object] = lambda: None,
) -> Despite:  # fmt: skip
    """Return a plan over ``snapshot``, of which planning failed with ``defect``, without what it fails on.

    ``rng`` is as it was before that, and is left alone; ``suspects`` were left out of earlier plans, and are tried
    first; ``between`` is called before each trial. Raises ``defect`` where nothing that may be left out helps.
    """
    return _Trials(plan, snapshot, policy, rng, defect, between).search(suspects)


class _Trials:
    def __init__(
        self, planner: Planner, snapshot: Snapshot, policy: Policy, rng: np.random.Generator, defect: Exception,
        between: Callable[[], object],
    ) -> None:  # fmt: skip
        self.planner, self.snapshot, self.policy, self.rng = planner, snapshot, policy, rng
        self.defect, self.between, self.trace = defect, between, ""

    def plan(self, left_out: LeftOut) -> Plan | None:
        """Return the plan without ``left_out``; None where it fails, which is kept as the last ``defect``."""
        self.between()
        trial = replace(self.snapshot, left_out=left_out, memo=Memo())  # what a failed plan left behind proves nothing
        try:
            return self.planner(trial, self.policy, deepcopy(self.rng))
        except Exception as defect:  # noqa: BLE001 any defect is to be got round
            self.defect, self.trace = defect, "".join(format_exception(defect))
            return None

    def search(self, suspects: LeftOut) -> Despite:
        """Return a plan without as little as seems to be needed. Raises the first defect where nothing helps."""
        first, before = self.defect, self.snapshot.left_out
        known = LeftOut(jobs={**before.jobs, **suspects.jobs}, stages={**before.stages, **suspects.stages})
        if suspects and (plan := self.plan(known)) is not None:
            return Despite(plan, known)
        found = self._without_jobs(before) or self._without_stages(before)
        if found is None:
            raise first
        return replace(found, trace=self.trace)

    def _all_jobs(self, before: LeftOut) -> LeftOut:
        return _with_jobs(before, self._others(before), self.defect)

    def _others(self, before: LeftOut) -> list[JobId]:
        return [job.id for job in self.snapshot.jobs if job.id not in before.jobs]

    def _without_jobs(self, before: LeftOut) -> Despite | None:
        """Leave out the jobs that planning fails on, or one stage where these would be many; None: that helps not."""
        everybody = self._all_jobs(before)
        without_any = self.plan(everybody)
        if without_any is None:
            return None
        found, rest = before, self._others(before)
        for _ in range(min(MOST_JOBS, len(rest))):
            at = self._first_of(found, rest)
            found = _with_jobs(found, rest[at : at + 1], self.defect)
            if (plan := self.plan(found)) is not None:
                return Despite(plan, found)
            rest = rest[:at] + rest[at + 1 :]
        return self._without_one_stage(before) or Despite(without_any, everybody)

    def _first_of(self, found: LeftOut, names: Sequence[JobId]) -> int:
        """Return the place of a job with which planning fails, and without which, and all after it, it does not."""
        passes, fails = 0, len(names)
        while fails - passes > 1:
            middle = (passes + fails) // 2
            if self.plan(_with_jobs(found, names[middle:], self.defect)) is not None:
                passes = middle
            else:
                fails = middle
        return passes

    def _without_stages(self, before: LeftOut) -> Despite | None:
        """Leave out the one stage that fails whatever jobs there are, or all that a plan can do without; then the jobs
        that it fails on as well."""
        for names in (*((name,) for name in OPTIONAL if name not in before.stages), OPTIONAL):
            less = _with_stages(before, names, self.defect)
            if self.plan(self._all_jobs(less)) is not None:
                plan = self.plan(less)
                return self._without_jobs(less) if plan is None else Despite(plan, less)
        return None

    def _without_one_stage(self, before: LeftOut) -> Despite | None:
        for name in OPTIONAL:
            less = _with_stages(before, (name,), self.defect)
            if name not in before.stages and (plan := self.plan(less)) is not None:
                return Despite(plan, less)
        return None


def _with_jobs(before: LeftOut, names: Sequence[JobId], defect: Exception) -> LeftOut:
    return replace(before, jobs={**dict.fromkeys(names, said(defect)), **before.jobs})


def _with_stages(before: LeftOut, names: Sequence[str], defect: Exception) -> LeftOut:
    return replace(before, stages={**dict.fromkeys(names, said(defect)), **before.stages})


def said(defect: Exception) -> str:
    """Return what went wrong, and in which function: for a sentence about it."""
    trace, where = defect.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        where = f" in {code.co_filename.rpartition('/')[2]}, {code.co_name}"
        trace = trace.tb_next
    return f"{type(defect).__name__}: {defect}{where}"
