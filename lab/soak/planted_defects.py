"""Defects planted in a daemon while faults last: planning, or another step, fails on tagged jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
"""A tag of a soak job: planning fails on it (while it is ``waiting``, ``running``, or ``always``), or one of
FAILING_STEPS."""
FAILING_STEPS = ("placing", "starting", "stopping", "observing", "ending", "learning")
"""Steps that may fail on a job besides planning. ``observing`` processes reports on its units, ``learning`` uses
feedback from their end."""
UNRECORDED = ("observing", "ending")
"""With these, the end of a unit cannot be recorded."""


class Planted(Exception):
    """The error that planted defects raise."""


def failing_planner(planner: Planner, stage: str, active: Callable[[], bool], report: ReportTrace) -> Planner:
    """Return ``planner``, failing while ``active`` on tagged jobs and in ``stage``, except where they are left out.

    It fails after planning, so that its use of memory and random numbers is unchanged. ``report`` receives the
    traceback of any other error.
    """

    def plan(snapshot: Snapshot, policy: Policy, rng: np.random.Generator) -> Plan:
        try:
            made = planner(snapshot, policy, rng)
        except Exception as defect:  # reported, and raised again
            report(format_exception(defect))
            raise
        for job in snapshot.jobs if active() else ():
            if job.id not in snapshot.left_out.jobs and _fails_planning(job):
                raise Planted(f"planted in {job.id}")
        if stage and stage not in snapshot.left_out.stages and active():
            raise Planted(f"planted in {stage}")
        return made

    return plan


def _fails_planning(job: Job) -> bool:
    now = "running" if job.state in JOB_ON_INSTANCE else "waiting"
    return not has_to_end(job) and job.spec.tags.get(DEFECT) in ("always", now)


def _fails_at(job: Job, step: str, active: Callable[[], bool]) -> bool:
    return job.spec.tags.get(DEFECT) == step and active()


@dataclass(slots=True)
class FailingUnits(UnitActions):
    """While ``active``, fails to place, start or stop tagged jobs. Placing fails halfway, stopping after the
    request."""

    active: Callable[[], bool] = lambda: True

    def unit_spec(self, job: Job, attempt: Attempt, allocation: Allocation) -> UnitSpec:
        """Return the engine's specification of a unit, or fail."""
        if _fails_at(job, "starting", self.active):
            raise Planted(f"planted in starting {job.id}")
        return UnitActions.unit_spec(self, job, attempt, allocation)

    def drive_stops(self, intents: Sequence[Intent], lease: LeaderLease | None) -> None:
        """Request stops, then perhaps fail."""
        UnitActions.drive_stops(self, intents, lease)
        for intent in intents:
            if _fails_at(self.store.job(intent.subject), "stopping", self.active):
                raise Planted(f"planted in stopping {intent.subject}")

    def record_place(
        self, txn: Transaction, action: Place, free: dict[str, Resources], gpus_in_use: Mapping[str, set[int]]
    ) -> Intent:
        """Record a placement, or half of it."""
        failing = _fails_at(txn.job(action.job_id), "placing", self.active)
        return UnitActions.record_place(
            self, cast(Transaction, _FailingTransaction(txn)) if failing else txn, action, free, gpus_in_use
        )


class _FailingTransaction:
    """A transaction that cannot open intents."""

    def __init__(self, txn: Transaction) -> None:
        self._txn = txn

    def __getattr__(self, name: str) -> object:
        return getattr(self._txn, name)

    def open_intent(self, intent: Intent) -> None:
        raise Planted(f"planted in placing {intent.subject}")


@dataclass(frozen=True, slots=True)
class FailingUnitEnd(UnitEnd):
    """The end of a unit that cannot be recorded or, with ``learning``, whose feedback cannot; half of it is written."""

    step: str = "ending"

    def __call__(self, txn: Transaction) -> None:
        """Record it, then fail."""
        UnitEnd.__call__(self, txn)
        if self.with_feedback or self.step == "ending":
            raise Planted(f"planted in {self.step} of {self.job_id}")


@dataclass(slots=True)
class FailingUnitObserver(UnitObserver):
    """While ``active``, fails to process reports on units of tagged jobs, or to record their end."""

    active: Callable[[], bool] = lambda: True

    def _unit_changes(
        self, report: UnitReport, host: UnitHost, owner: UnitOwner | None, policy: Policy, observed: ObservationRound
    ) -> Iterator[Change]:
        for change in UnitObserver._unit_changes(self, report, host, owner, policy, observed):
            step = owner[0].spec.tags.get(DEFECT, "") if owner is not None else ""
            if isinstance(change, UnitEnd) and step == "observing" and self.active():
                raise Planted(f"planted in observing the end of {report.id}")
            if isinstance(change, UnitEnd) and step in ("ending", "learning") and self.active():
                values = {each.name: getattr(change, each.name) for each in fields(UnitEnd)}
                yield FailingUnitEnd(**values, step=step)
            else:
                yield change
        if owner is not None and _fails_at(owner[0], "observing", self.active):
            raise Planted(f"planted in observing {report.id}")


def with_defects(controller: Controller, stage: str, active: Callable[[], bool], report: ReportTrace) -> None:
    """Plant the defects of tags and ``stage`` in a daemon."""
    controller.planner = failing_planner(controller.planner, stage, active, report)
    units = controller.applier.units
    if type(units) is UnitActions:  # no other bug is in its place
        controller.applier.units = FailingUnits(
            store=units.store, runner=units.runner, clock=units.clock, uploads_dir=units.uploads_dir, active=active
        )
    observer = controller.observer.units
    if type(observer) is UnitObserver:
        made_of = {each.name: getattr(observer, each.name) for each in fields(UnitObserver)}
        controller.observer.units = FailingUnitObserver(**made_of, active=active)


def unplanned_errors(event: Event, job: Job | None, stage: str) -> Iterator[str]:
    """Yield a violation if planning failed where no defect was planted. ``job``: the one that is left out, if any."""
    if event.kind is not EventKind.PLANNING_TROUBLE:
        return
    what = str(event.fields["left_out"])
    # A failing stop is not attributed to a job: all jobs of its batch have been asked to stop by then.
    planted = DEFECT in job.spec.tags if job is not None else what == stage or what.startswith("stop of ")
    if not planted:
        yield f"bug: {event.fields['text']}: {event.fields['error']}"
