"""Defects planted while a soak's trouble lasts: planning, or whatever else is done with it, fails on some jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from traceback import format_exception
from typing import cast

import numpy as np

from hcloud.apply.unit_index import UnitOwner
from hcloud.apply.units import UnitActions
from hcloud.controller import Controller
from hcloud.core.model import JOB_ON_INSTANCE, Allocation, Attempt, Event, EventKind, Intent, Job, Resources
from hcloud.observe.facts import Change, ObservationRound, UnitEnd, UnitHost
from hcloud.observe.units import UnitObserver
from hcloud.planner.job_outcomes import has_to_end
from hcloud.planner.plan import Place, Plan
from hcloud.planner.snapshot import Snapshot
from hcloud.provider import UnitReport, UnitSpec
from hcloud.quarantine import Planner
from hcloud.spec.policy import Policy
from hcloud.store import LeaderLease, Transaction

ReportTrace = Callable[[Sequence[str]], object]
DEFECT = "planning_fails"
"""A tag of a soak job: planning fails with it (while it is ``waiting``, ``running``, ``always``), or one of DEEDS."""
FAILING_STEPS = ("placing", "starting", "stopping", "hearing", "ending", "learning")
"""What may fail with a job besides planning; ``hearing`` what its units tell, ``learning`` from the end of one."""
UNRECORDED = ("hearing", "ending")
"""With these it is not known that a unit has ended."""


class Planted(Exception):
    """What a defective planner fails with."""


def failing_planner(planner: Planner, stage: str, lasts: Callable[[], bool], fails: ReportTrace) -> Planner:
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
            if job.id not in snapshot.left_out.jobs and _fails_planning(job):
                raise Planted(f"planted in {job.id}")
        if stage and stage not in snapshot.left_out.stages and lasts():
            raise Planted(f"planted in {stage}")
        return made

    return plan


def _fails_planning(job: Job) -> bool:
    now = "running" if job.state in JOB_ON_INSTANCE else "waiting"
    return not has_to_end(job) and job.spec.tags.get(DEFECT) in ("always", now)


def _fails_at(job: Job, deed: str, lasts: Callable[[], bool]) -> bool:
    return job.spec.tags.get(DEFECT) == deed and lasts()


@dataclass(slots=True)
class FailingUnits(UnitActions):
    """Fails while it ``lasts`` to place the jobs that are tagged so, when half of that is written down; to start them;
    to stop them, when they have been asked to end."""

    active: Callable[[], bool] = lambda: True

    def unit_spec(self, job: Job, attempt: Attempt, allocation: Allocation) -> UnitSpec:
        """Return what the engine is told, or fail."""
        if _fails_at(job, "starting", self.active):
            raise Planted(f"planted in starting {job.id}")
        return UnitActions.unit_spec(self, job, attempt, allocation)

    def drive_stops(self, intents: Sequence[Intent], lease: LeaderLease | None) -> None:
        """Ask units to end, and perhaps fail then."""
        UnitActions.drive_stops(self, intents, lease)
        for intent in intents:
            if _fails_at(self.store.job(intent.subject), "stopping", self.active):
                raise Planted(f"planted in stopping {intent.subject}")

    def record_place(self, txn: Transaction, action: Place, free: dict[str, Resources]) -> Intent:
        """Write what is placed, or half of it."""
        clumsy = _fails_at(txn.job(action.job_id), "placing", self.active)
        return UnitActions.record_place(
            self, cast(Transaction, _FailingTransaction(txn)) if clumsy else txn, action, free
        )


class _FailingTransaction:
    """A transaction that opens no intents."""

    def __init__(self, txn: Transaction) -> None:
        self._txn = txn

    def __getattr__(self, name: str) -> object:
        return getattr(self._txn, name)

    def open_intent(self, intent: Intent) -> None:
        """Fail."""
        raise Planted(f"planted in placing {intent.subject}")


@dataclass(frozen=True, slots=True)
class FailingUnitEnd(UnitEnd):
    """The end of a unit that cannot be written down, or (``learning``) not what it teaches; half of it is."""

    step: str = "ending"

    def __call__(self, txn: Transaction) -> None:
        """Write it down, and fail then."""
        UnitEnd.__call__(self, txn)
        if self.with_feedback or self.step == "ending":
            raise Planted(f"planted in {self.step} of {self.job_id}")


@dataclass(slots=True)
class FailingUnitObserver(UnitObserver):
    """Fails while it ``lasts`` to hear what units tell of the jobs that are tagged so, or to write down their end."""

    lasts: Callable[[], bool] = lambda: True

    def _unit_changes(
        self, report: UnitReport, host: UnitHost, owner: UnitOwner | None, policy: Policy, observed: ObservationRound
    ) -> Iterator[Change]:
        for change in UnitObserver._unit_changes(self, report, host, owner, policy, observed):
            deed = owner[0].spec.tags.get(DEFECT, "") if owner is not None else ""
            if isinstance(change, UnitEnd) and deed == "hearing" and self.lasts():
                raise Planted(f"planted in hearing the end of {report.id}")
            if isinstance(change, UnitEnd) and deed in ("ending", "learning") and self.lasts():
                told = {each.name: getattr(change, each.name) for each in fields(UnitEnd)}
                yield FailingUnitEnd(**told, step=deed)
            else:
                yield change
        if owner is not None and _fails_at(owner[0], "hearing", self.lasts):
            raise Planted(f"planted in hearing {report.id}")


def with_defects(controller: Controller, stage: str, lasts: Callable[[], bool], fails: ReportTrace) -> None:
    """Plant what tags and ``stage`` say in a daemon."""
    controller.planner = failing_planner(controller.planner, stage, lasts, fails)
    units = controller.applier.units
    if type(units) is UnitActions:  # no other bug is in its place
        controller.applier.units = FailingUnits(
            store=units.store, runner=units.runner, clock=units.clock, uploads_dir=units.uploads_dir, active=lasts
        )
    observer = controller.observer.units
    if type(observer) is UnitObserver:
        made_of = {each.name: getattr(observer, each.name) for each in fields(UnitObserver)}
        controller.observer.units = FailingUnitObserver(**made_of, lasts=lasts)


def unplanned_errors(event: Event, job: Job | None, stage: str) -> Iterator[str]:
    """Return a sentence where planning failed on what nobody planted; ``job``: the one that is left out, if any."""
    if event.kind is not EventKind.PLANNING_TROUBLE:
        return
    what = str(event.fields["left_out"])
    # Who is asked to end with others has been, when that fails: nobody is to blame.
    planted = DEFECT in job.spec.tags if job is not None else what == stage or what.startswith("stop of ")
    if not planted:
        yield f"bug: {event.fields['text']}: {event.fields['error']}"
