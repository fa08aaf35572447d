"""Planning that fails on some jobs, or in some stage, and placing that does, while a soak's trouble lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from traceback import format_exception
from typing import cast

import numpy as np

from hcloud.apply.units import UnitActions
from hcloud.controller import Controller
from hcloud.model import JOB_ON_INSTANCE, Event, EventKind, Intent, Job, Resources
from hcloud.planner.adaptation import has_to_end
from hcloud.planner.despite import Planner
from hcloud.planner.plan import Place, Plan
from hcloud.planner.snapshot import Snapshot
from hcloud.policy import Policy
from hcloud.store import Transaction

Told = Callable[[Sequence[str]], object]
DEFECT = "planning_fails"
"""A tag of a soak job with which planning fails (while it is ``waiting``, ``running``, ``always``), or ``placing``."""


class Planted(Exception):
    """What a defective planner fails with."""


def defective(planner: Planner, stage: str, lasts: Callable[[], bool], fails: Told) -> Planner:
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
    now = "running" if job.state in JOB_ON_INSTANCE else "waiting"
    return not has_to_end(job) and job.spec.tags.get(DEFECT) in ("always", now)


@dataclass(slots=True)
class ClumsyUnits(UnitActions):
    """Fails while it ``lasts`` to place the jobs that are tagged so, when half of that is written down."""

    lasts: Callable[[], bool] = lambda: True

    def record_place(self, txn: Transaction, action: Place, free: dict[str, Resources]) -> Intent:
        """Write what is placed, or half of it."""
        clumsy = self.lasts() and txn.job(action.job_id).spec.tags.get(DEFECT) == "placing"
        return UnitActions.record_place(self, cast(Transaction, _Failing(txn)) if clumsy else txn, action, free)


class _Failing:
    """A transaction that opens no intents."""

    def __init__(self, txn: Transaction) -> None:
        self._txn = txn

    def __getattr__(self, name: str) -> object:
        return getattr(self._txn, name)

    def open_intent(self, intent: Intent) -> None:
        """Fail."""
        raise Planted(f"planted in placing {intent.subject}")


def with_defects(controller: Controller, stage: str, lasts: Callable[[], bool], fails: Told) -> None:
    """Plant what tags and ``stage`` say in a daemon."""
    controller.planner = defective(controller.planner, stage, lasts, fails)
    units = controller.applier.units
    if type(units) is UnitActions:  # no other bug is in its place
        controller.applier.units = ClumsyUnits(
            store=units.store, runner=units.runner, clock=units.clock, uploads_dir=units.uploads_dir, lasts=lasts
        )


def unplanted(event: Event, job: Job | None, stage: str) -> Iterator[str]:
    """Return a sentence where planning failed on what nobody planted; ``job``: the one that is left out, if any."""
    if event.kind is not EventKind.PLANNING_TROUBLE:
        return
    planted = DEFECT in job.spec.tags if job is not None else event.fields["left_out"] == stage
    if not planted:
        yield f"bug: {event.fields['text']}: {event.fields['error']}"
