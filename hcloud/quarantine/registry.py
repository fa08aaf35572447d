"""The quarantine of one daemon: jobs and stages that plans are made without for a while, and the events about them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from hcloud.core.clock import Clock
from hcloud.core.model import EventKind, JobId
from hcloud.planner.cache import PlanCache
from hcloud.planner.plan import Action, Plan
from hcloud.planner.snapshot import NOTHING_LEFT_OUT, LeftOut, Snapshot
from hcloud.quarantine.failures import Failure, Failures
from hcloud.quarantine.planning import Planner, plan_without_failing
from hcloud.spec.policy import Policy
from hcloud.store import LeaderLease, Store, Transaction

_log = logging.getLogger("hcloud")
QUARANTINE_S = 300.0
"""How long a job or stage is excluded; a new version, policy or measurement may have fixed it by then."""
REPORTED_MAX = 20
"""Of more failures than these in one cycle, only the number of the rest is reported."""
CLASSIFICATION = "classification"
"""A stage like those of the planner: the classification of applications, which precedes planning."""
_Entries = dict[str, tuple[float, str]]
"""By name: until when the entry counts (Unix seconds), and the error."""


@dataclass(slots=True)
class Quarantine:
    """What fails in this daemon because of a defect. Not stored: the next daemon finds out for itself."""

    store: Store
    clock: Clock
    jobs: _Entries = field(default_factory=dict)
    """Jobs that plans are made without."""
    stages: _Entries = field(default_factory=dict)
    """Stages that plans are made without; CLASSIFICATION may be one."""
    operations: _Entries = field(default_factory=dict)
    """Other operations that failed lately: they are retried every cycle, and reported once per QUARANTINE_S."""
    plan_cache: PlanCache = field(default_factory=PlanCache)
    """What plans keep for the next plan; replaced when a plan fails, because it may hold half of something."""

    def __bool__(self) -> bool:
        """Whether it holds any entry, expired ones included."""
        return bool(self.jobs or self.stages or self.operations)

    def left_out(self, now: float) -> LeftOut:
        """Return the jobs and stages that a plan made ``now`` must leave out."""
        if not self:
            return NOTHING_LEFT_OUT
        return LeftOut(jobs=dict(_current(self.jobs, now)), stages=dict(_current(self.stages, now)))

    def failing(self, now: float) -> dict[str, str]:
        """Return the error of each job, stage and operation that failed within the last QUARANTINE_S seconds."""
        return dict(chain.from_iterable(_current(each, now) for each in (self.jobs, self.stages, self.operations)))

    # -------------------------------------------------------------------------------------------------------- planning
    def plan(
        self,
        planner: Planner,
        snapshot: Snapshot,
        policy: Policy,
        rng: np.random.Generator,
        keep_lease: Callable[[], LeaderLease | None],
    ) -> Plan:
        """Return a plan; if planning fails, one without the jobs or stages at fault, which are quarantined.

        ``keep_lease`` is called before each trial and returns the renewed leader lease. Raises what ``planner`` raised
        if leaving out does not help, and what ``keep_lease`` raises.
        """
        drawn = rng.bit_generator.state
        try:
            plan = planner(snapshot, policy, rng)
        except Exception as defect:  # noqa: BLE001 any defect: leases must be renewed and other jobs served
            _log.exception("planning failed; searching for the job or stage at fault")
            rng.bit_generator.state = drawn
            self.plan_cache = PlanCache()
            recovered = plan_without_failing(
                planner, snapshot, policy, rng, defect, self._suspects({job.id for job in snapshot.jobs}), keep_lease
            )
            if recovered.trace:
                _log.error("last failure during that search:\n%s", recovered.trace)
            self.exclude(recovered.left_out, snapshot.now, keep_lease())
            return recovered.plan
        if self:
            self._drop_expired(snapshot.now)
        return plan

    def exclude(self, left_out: LeftOut, now: float, lease: LeaderLease | None) -> None:
        """Exclude jobs and stages for QUARANTINE_S seconds; write an event for each that was not excluded before."""
        news = self._add(left_out, now)
        with self.store.transaction(self.clock.now(), lease) as txn:
            for job_id, error in news.jobs.items():
                _emit_excluded(txn, job_id, error, job_id)
            for stage, error in news.stages.items():
                _emit_excluded(txn, stage, error)

    def _add(self, left_out: LeftOut, now: float) -> LeftOut:
        """Add entries, or renew expired ones; return those that were not excluded before."""
        before = self.left_out(now)
        for entries, names in ((self.jobs, left_out.jobs), (self.stages, left_out.stages)):
            expired = [name for name in names if name not in entries or entries[name][0] <= now]
            entries.update({name: (now + QUARANTINE_S, names[name]) for name in expired})
        jobs = {name: error for name, error in left_out.jobs.items() if name not in before.jobs}
        return LeftOut(jobs=jobs, stages={n: error for n, error in left_out.stages.items() if n not in before.stages})

    def _suspects(self, living: Collection[JobId]) -> LeftOut:
        """Return all entries, expired ones included: when planning fails, one of them is most likely at fault again."""
        jobs = {name: error for name, (_, error) in self.jobs.items() if name in living}
        return LeftOut(jobs=jobs, stages={name: error for name, (_, error) in self.stages.items()})

    def _drop_expired(self, now: float) -> None:
        # A plan that succeeded included whatever had expired: that has recovered.
        self.jobs = {name: each for name, each in self.jobs.items() if each[0] > now}
        self.stages = {name: each for name, each in self.stages.items() if each[0] > now}
        self.operations = {name: each for name, each in self.operations.items() if each[0] > now}

    # ------------------------------------------------------------------------------------------------------- reporting
    def record_failed_actions(self, failed: Iterable[tuple[Action, str]], lease: LeaderLease | None) -> None:
        """Exclude the jobs of actions that a defect kept from being applied, given with the error; report the rest."""
        jobs, others = dict[str, str](), dict[str, Failure]()
        for action, error in failed:
            kind, job_id = type(action).__name__, getattr(action, "job_id", None)
            if job_id is not None:
                jobs[job_id] = f"{kind}: {error}"
            else:
                others[f"{kind} of {getattr(action, 'instance_id', 'an instance')}"] = Failure(error, None)
        if jobs or others:
            self.record_failures(others, lease)
            self.exclude(LeftOut(jobs=jobs), self.clock.now(), lease)

    def record_failures(self, failures: Failures, lease: LeaderLease | None) -> None:
        """Report failed operations, each once per QUARANTINE_S. Nothing is excluded: they are retried every cycle."""
        now = self.clock.now()
        news = [name for name in failures if name not in self.operations or self.operations[name][0] <= now]
        if not news:
            return
        reported = {name: failures[name] for name in news[:REPORTED_MAX]}
        for name, failure in reported.items():
            text = "defect in HCloud: %s failed: %s"
            _log.error(text, name, failure.error, exc_info=failure.exc_info)
        with self.store.transaction(now, lease) as txn:
            for name, failure in reported.items():
                _emit_failure(txn, name, failure)
            if len(news) > len(reported):
                last = failures[news[-1]]
                _emit_failure(txn, f"{len(news) - len(reported)} more", last._replace(job_id=None))
        self.operations = {name: each for name, each in self.operations.items() if each[0] > now}
        self.operations.update({name: (now + QUARANTINE_S, failures[name].error) for name in news})


def _emit_excluded(txn: Transaction, name: str, error: str, job_id: JobId | None = None) -> None:
    text = f"defect in HCloud: {name} fails; quarantined, retried in {QUARANTINE_S:.0f} s"
    _log.error("%s: %s", text, error)
    txn.emit(EventKind.PLANNING_TROUBLE, job_id=job_id, left_out=name, error=error, text=text)


def _emit_failure(txn: Transaction, name: str, failure: Failure) -> None:
    text = f"defect in HCloud: {name} fails; everything else goes on, and it is retried"
    txn.emit(EventKind.PLANNING_TROUBLE, job_id=failure.job_id, left_out=name, error=failure.error, text=text)


def _current(entries: Mapping[str, tuple[float, str]], now: float) -> Iterator[tuple[str, str]]:
    return ((name, error) for name, (until, error) in entries.items() if until > now)
