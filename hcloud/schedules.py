"""Schedules in the store: made and changed by users, and fired by the leader's cycle.

A run is submitted in the transaction that records when the schedule fires next, so that each run is submitted at most
once, and none is lost, whenever the daemon is killed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from hcloud.core.clock import Clock
from hcloud.core.cron import next_fire_at
from hcloud.core.dependencies import Ending, Upstream
from hcloud.core.errors import HCloudError, NotFound, Refused, StoreError, defect_text
from hcloud.core.model import JOB_ENDED, EventKind, Job, JobSpec
from hcloud.core.schedules import JOBS_KEPT, SCHEDULE_TAG, Schedule, ScheduledRun, ScheduleId, runs_due
from hcloud.core.units import utc_text
from hcloud.spec.validation import counted
from hcloud.store import LeaderLease, Store, Submission, Transaction
from hcloud.store.store import cancel_in

_log = logging.getLogger("hcloud")
DUE_MOST = 200
"""Schedules that fire in one cycle; the others follow in the next."""
SCHEDULES_MOST = 1000
"""Schedules of one user."""
LOOK_AHEAD_EVERY_S = 10.0
"""Upcoming runs are read again after so long, or once a schedule has fired."""
LOOK_AHEAD_MOST = 1000
DEFECT_PAUSE_S = 300.0
"""Pause before a schedule that failed with a defect is tried again."""


@dataclass(slots=True)
class Schedules:
    """Submits the jobs of schedules when they are due."""

    store: Store
    clock: Clock
    admit: Callable[[Sequence[JobSpec]], None] = lambda specs: None
    """Raises Refused if policy forbids submitting these jobs."""
    _upcoming: tuple[ScheduledRun, ...] = ()
    _upcoming_read_at: float = -inf
    _failed_until: dict[ScheduleId, float] = field(default_factory=dict)

    def fire(self, lease: LeaderLease | None) -> int:
        """Submit what is due; return how many schedules fired. Raises StoreBusy, StaleWrite."""
        now, fired = self.clock.now(), 0
        for schedule in self.store.due_schedules(now, DUE_MOST):
            if self._failed_until.get(schedule.id, 0.0) > now:
                continue
            try:
                with self.store.transaction(now, lease) as txn:
                    self._fire(txn, schedule, now)
            except (StoreError, HCloudError):
                raise
            except Exception as defect:  # noqa: BLE001 any defect: the other schedules fire
                _log.exception("%s failed", schedule.id)
                self._failed_until[schedule.id] = now + DEFECT_PAUSE_S
                with self.store.transaction(now, lease) as txn:
                    _emit(txn, schedule, "skipped", f"failed with a defect of HCloud ({defect_text(defect)})")
            fired += 1
        if fired:
            self._upcoming_read_at = -inf
        return fired

    def upcoming(self, now: float, within_s: float) -> tuple[ScheduledRun, ...]:
        """Return the next run of each schedule that fires within that time, the first ones. Raises StoreBusy."""
        if not now - LOOK_AHEAD_EVERY_S < self._upcoming_read_at <= now:
            found = self.store.due_schedules(now + within_s, LOOK_AHEAD_MOST)
            runs = [(each.id, each.next_at, each.spec) for each in found]
            self._upcoming = tuple(
                ScheduledRun(schedule=name, due_at=at, spec=spec) for name, at, spec in runs if at is not None
            )
            self._upcoming_read_at = now
        return self._upcoming

    def _fire(self, txn: Transaction, seen: Schedule, now: float) -> None:
        schedule = txn.schedule(seen.id)
        if schedule is None or schedule.next_at is None or schedule.next_at > now:
            return  # changed since it was read
        runs, missed = runs_due(schedule.recurrence, schedule.next_at, now)
        if missed:
            text = f"{counted(missed, 'run')} since {utc_text(schedule.next_at)} were missed, as no daemon ran"
            _emit(txn, schedule, "missed", text, count=missed)
        for due_at in runs:
            schedule = self._run(txn, schedule, due_at)
        rule = schedule.recurrence
        txn.put_schedule(replace(schedule, next_at=next_fire_at(rule.cron, rule.timezone, now)))

    def _run(self, txn: Transaction, schedule: Schedule, due_at: float) -> Schedule:
        """Submit the run of ``due_at``, or record why not; return the schedule with what became of it."""
        live, overlap = _live_jobs(txn, schedule), schedule.recurrence.overlap
        queued = [job for job in live if job.is_held]
        if live and (overlap == "skip" or (overlap == "queue" and queued)):
            what = f"{queued[0].id} waits already" if overlap == "queue" else f"{live[-1].id} has not ended"
            return _skipped(txn, schedule, due_at, what)
        try:
            self.admit([schedule.spec])
        except Refused as error:
            return _skipped(txn, schedule, due_at, str(error))
        if overlap == "replace":
            for job in live:
                cancel_in(txn, job, f"schedule {schedule.id}")
        after: dict[Upstream, Ending] = {} if overlap == "allow" else {job.id: "finished" for job in live}
        spec = replace(schedule.spec, tags={**schedule.spec.tags, SCHEDULE_TAG: schedule.id})
        submission = Submission(
            spec=spec,
            actor=spec.user,
            token=f"{schedule.id}:{due_at:.0f}",
            secrets=schedule.secrets,
            after=after,
        )
        (job,) = txn.add_jobs([submission])
        _emit(txn, schedule, "fired", f"submitted {job.id} for {utc_text(due_at)}", job_id=job.id, due_at=due_at)
        return replace(schedule, fired_at=due_at, jobs=(*schedule.jobs, job.id)[-JOBS_KEPT:])


def _live_jobs(txn: Transaction, schedule: Schedule) -> list[Job]:
    found = list[Job]()
    for job_id in schedule.jobs:
        try:
            job = txn.job(job_id)
        except NotFound:
            continue
        if job.state not in JOB_ENDED:
            found.append(job)
    return found


def _skipped(txn: Transaction, schedule: Schedule, due_at: float, why: str) -> Schedule:
    _emit(txn, schedule, "skipped", f"the run of {utc_text(due_at)} was left out: {why}", due_at=due_at)
    return schedule


def _emit(
    txn: Transaction,
    schedule: Schedule,
    what: str,
    text: str,
    *,
    job_id: str | None = None,
    actor: str = "",
    **fields: Any,
) -> None:
    spec = schedule.spec
    named = {"schedule": schedule.id, "name": spec.name, "what": what, "text": text, **fields}
    txn.emit(EventKind.SCHEDULE, job_id=job_id, user=spec.user, actor=actor or "hcloud", **named)


# ------------------------------------------------------------------------------------------------------------- changing
def save_schedule(store: Store, schedule: Schedule, actor: str, now: float) -> Schedule:
    """Add a schedule, or replace the user's one of the same name, which keeps its jobs; return it.

    Raises Refused: the user has too many.
    """
    spec, rule = schedule.spec, schedule.recurrence
    with store.transaction(now) as txn:
        before = txn.schedule_named(spec.user, spec.name)
        if before is None and len(store.schedules(user=spec.user)) >= SCHEDULES_MOST:
            raise Refused(f"{spec.user} has {SCHEDULES_MOST} schedules, which is the most; delete one first")
        next_at = next_fire_at(rule.cron, rule.timezone, now)
        if before is not None:
            next_at = None if before.paused_by else next_at
            kept = {"id": before.id, "created_at": before.created_at, "paused_by": before.paused_by}
            schedule = replace(schedule, **kept, fired_at=before.fired_at, jobs=before.jobs)  # type: ignore[arg-type]
        saved = txn.put_schedule(replace(schedule, next_at=next_at))
        what = "created" if before is None else "replaced"
        _emit(txn, saved, what, f"{what}: {rule.cron} ({rule.timezone})", actor=actor)
        return saved


def find_schedule(store: Store, reference: str) -> Schedule:
    """Return the schedule with this id. Raises NotFound."""
    found = next((each for each in store.schedules() if each.id == reference), None)
    if found is None:
        known = ", ".join(each.id for each in store.schedules()[-3:])
        raise NotFound(f"there is no {reference}; {'the newest are ' + known if known else 'there are no schedules'}")
    return found


def pause_schedule(store: Store, schedule_id: ScheduleId, actor: str, now: float) -> Schedule:
    """Let a schedule fire no more until it is resumed; return it. Raises NotFound."""
    with store.transaction(now) as txn:
        schedule = _existing(txn, schedule_id)
        if schedule.paused_by:
            return schedule
        _emit(txn, schedule, "paused", f"paused by {actor}", actor=actor)
        return txn.put_schedule(replace(schedule, next_at=None, paused_by=actor))


def resume_schedule(store: Store, schedule_id: ScheduleId, actor: str, now: float) -> Schedule:
    """Let a schedule fire again, from its next time on: what it missed is not made up for. Raises NotFound."""
    with store.transaction(now) as txn:
        schedule = _existing(txn, schedule_id)
        if not schedule.paused_by:
            return schedule
        _emit(txn, schedule, "resumed", f"resumed by {actor}", actor=actor)
        rule = schedule.recurrence
        next_at = next_fire_at(rule.cron, rule.timezone, now)
        return txn.put_schedule(replace(schedule, next_at=next_at, paused_by=""))


def remove_schedule(store: Store, schedule_id: ScheduleId, actor: str, now: float) -> Schedule:
    """Delete a schedule; its jobs go on. Return it as it was. Raises NotFound."""
    with store.transaction(now) as txn:
        schedule = _existing(txn, schedule_id)
        _emit(txn, schedule, "deleted", f"deleted by {actor}", actor=actor)
        txn.delete_schedule(schedule.id)
        return schedule


def _existing(txn: Transaction, schedule_id: ScheduleId) -> Schedule:
    schedule = txn.schedule(schedule_id)
    if schedule is None:
        raise NotFound(f"there is no {schedule_id}; 'hcloud schedule list' shows those there are")
    return schedule
