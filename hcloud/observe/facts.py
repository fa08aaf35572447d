"""Observed facts as row changes: each is recorded once, however often it is reported."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from hcloud.apply.feedback import (
    CoRunPeriod,
    UnitTotals,
    record_co_run,
    record_findings,
    record_own_run,
    record_performance,
)
from hcloud.apply.machines import record_preemption, record_registration, record_unregistered
from hcloud.apply.task_runs import record_tasks
from hcloud.apply.transitions import release_allocation, transition_instance
from hcloud.apply.unit_index import UnitIndex
from hcloud.apply.units import record_started
from hcloud.core.estimates import Classification, Findings
from hcloud.core.model import EventKind, FailureCause, Instance, InstanceState, Job, JobId, Market, Reason
from hcloud.core.resources import devices_words
from hcloud.core.rows import replace_fields
from hcloud.core.task_runs import TaskProgress
from hcloud.provider import WIREGUARD, ExitRecord, WorkerReport
from hcloud.quarantine import Failure
from hcloud.spec.policy import Policy
from hcloud.store import LiveView, Transaction

Change = Callable[[Transaction], object]
"""Writes one fact; does nothing if it is written already."""
NOTICE_TOLERANCE_S = 5.0
"""A worker's preemption notice must be earlier than the known one by more than this to replace it."""


class FactBatch(NamedTuple):
    """Changes from one report, written together or not at all."""

    instance_id: str
    source: str
    """The unit or instance that was reported."""
    changes: tuple[Change, ...]


@dataclass(slots=True)
class ObservationRound:
    """What one round of observation has found so far."""

    failing: dict[str, Failure] = field(default_factory=dict)
    """Reports that could not be processed or recorded because of a defect; they are retried in each round."""
    unclear: set[str] = field(default_factory=set)
    """Instances with a report in ``failing``."""
    ended: dict[str, str] = field(default_factory=dict)
    """The instance of each unit with an end that is being, or was, recorded."""
    answering: frozenset[str] = frozenset()
    """Instances with a worker that answers."""
    archived: set[str] = field(default_factory=set)
    """Ended units whose output is all archived."""


class UnitHost(NamedTuple):
    """Where a unit runs."""

    worker: WorkerReport
    instance: Instance
    jobs: Mapping[JobId, Job]
    """The jobs that hold part of the instance."""
    job_ids: frozenset[JobId]
    """The same by identifier."""


# ----------------------------------------------------------------------------------------------------------- instances
def instance_registered(instance: Instance, worker: WorkerReport, now: float) -> Iterator[Change]:
    """Yield the changes for a worker that registered, or that reports an earlier preemption than is known."""
    if instance.state is InstanceState.BOOTING:
        boot_s = now - (instance.launched_at or instance.requested_at)

        def ready(txn: Transaction) -> None:
            fresh = txn.instance(instance.id)
            if fresh.state is not InstanceState.BOOTING:  # an earlier cycle was killed after it committed this
                return
            reason = Reason(code="registered", text=f"worker registered {boot_s:.1f} s after launch")
            cpus = worker.cpu_topology
            changes = {"ready_at": now, "seen_at": now, "idle_since": now, "cpu_topology": cpus}
            changes["has_wireguard"] = WIREGUARD in worker.isolation
            transition_instance(txn, fresh, InstanceState.READY, reason, **changes)
            record_registration(txn, fresh.offer)
            seen: dict[str, Any] = {"boot_s": boot_s, "isolation": list(worker.isolation)}
            if cpus is not None:
                seen["cpus"] = cpus.words()
            if worker.gpus or fresh.capacity.gpus is not None:
                seen["gpus"] = devices_words(worker.gpus) or "no GPUs"
            txn.emit(EventKind.INSTANCE_READY, instance_id=instance.id, **seen)

        yield ready
    else:
        has_wireguard, cpus = WIREGUARD in worker.isolation, worker.cpu_topology or instance.cpu_topology
        if (has_wireguard, cpus) != (instance.has_wireguard, instance.cpu_topology):
            yield facts_reported(instance.id, has_wireguard=has_wireguard, cpu_topology=cpus)
    if worker.preempt_at is not None and worker.preempt_at < (instance.preempt_at or math.inf) - NOTICE_TOLERANCE_S:
        yield preemption_notice(instance.id, worker.preempt_at)


def instance_gone(
    instance: Instance,
    view: LiveView,
    unit_index: UnitIndex,
    at: float,
    why: str,
    policy: Policy,
    *,
    preempted: bool = False,
) -> Change:
    """Return the change for an instance that is confirmed gone: its units end and its intents are closed.

    One that ended by itself counts against its offer if it was preempted soon, or never registered.
    """
    jobs = unit_index.jobs_on(instance.id)

    def record(txn: Transaction) -> None:
        # One transaction, so that no job is released from an instance that still counts as live.
        fresh = txn.instance(instance.id)
        if fresh.state is InstanceState.TERMINATED:
            return
        # An instance that was TERMINATING was counted when that began.
        if fresh.state is not InstanceState.TERMINATING:
            if preempted:
                record_preemption(txn, fresh, at, policy)
            elif fresh.ready_at is None:
                text = f"{fresh.id} ended before its worker registered: {why}"
                record_unregistered(txn, fresh, text, policy)
        code = "preempted" if preempted else "gone"
        reason = Reason(code=code, text=f"confirmed terminated: {why}" + (f" ({fresh.reason})" if fresh.reason else ""))
        ended_at = max(at, fresh.launched_at or at)
        transition_instance(txn, fresh, InstanceState.TERMINATED, reason, terminated_at=ended_at)
        tokens = {fresh.token, f"terminate:{fresh.id}"}
        for intent in view.intents:
            if intent.token in tokens:
                txn.close_intent(intent.token)
        cause = FailureCause.PREEMPTED if preempted else FailureCause.INSTANCE_LOST
        for job in jobs:
            _release_on(txn, job, instance.id, at, cause, why)

    return record


def _release_on(txn: Transaction, job: Job, instance_id: str, at: float, cause: FailureCause, why: str) -> None:
    """Record that a job's units ended with their instance, ``at`` by the provider's clock, which may be long ago."""
    fresh = txn.job(job.id)
    assert fresh.attempt is not None
    for held in fresh.attempt.allocations:
        if held.instance_id == instance_id and not held.released:
            ended_at = txn.now if held.started_at is None else min(txn.now, max(at, held.started_at))
            detail = f"{instance_id} {why}"
            fresh = release_allocation(txn, fresh, held.rank, ended_at=ended_at, cause=cause, detail=detail)


def preemption_notice(instance_id: str, preempt_at: float) -> Change:
    """Return the change for an instance that the provider will preempt at ``preempt_at`` (Unix seconds)."""

    def record(txn: Transaction) -> None:
        fresh = txn.instance(instance_id)
        if fresh.preempt_at != preempt_at:
            txn.put_instance(replace(fresh, preempt_at=preempt_at))
            txn.emit(EventKind.INSTANCE_NOTICE, instance_id=instance_id, preempt_at=preempt_at)

    return record


def facts_reported(instance_id: str, **reported: object) -> Change:
    """Return the change for an instance whose worker reports something else of it than is known."""

    def record(txn: Transaction) -> None:
        txn.put_instance(replace_fields(txn.instance(instance_id), **reported))

    return record


def price_changed(instance_id: str, price_usd_per_h: float) -> Change:
    """Return the change for an instance with another price from now on; reserved instances keep theirs."""

    def record(txn: Transaction) -> None:
        fresh = txn.instance(instance_id)
        if fresh.offer.market is not Market.RESERVED:
            txn.put_instance(replace(fresh, offer=replace(fresh.offer, price_usd_per_h=price_usd_per_h)))
            txn.emit(EventKind.INSTANCE_PRICE, instance_id=instance_id, price_usd_per_h=price_usd_per_h)

    return record


def addresses_changed(instance_id: str, addresses: tuple[str, ...] | None) -> Change:
    """Return the change for an instance that its provider has at other addresses."""

    def record(txn: Transaction) -> None:
        txn.put_instance(replace_fields(txn.instance(instance_id), addresses=addresses))

    return record


def instance_idle(instance_id: str) -> Change:
    """Return the change for an instance that holds no unit any more, and is not ending."""

    def record(txn: Transaction) -> None:
        fresh = txn.instance(instance_id)
        if fresh.idle_since is None and fresh.state in (InstanceState.READY, InstanceState.DRAINING):
            txn.put_instance(replace_fields(fresh, idle_since=txn.now))

    return record


# --------------------------------------------------------------------------------------------------------------- units
def unit_started(job_id: str, rank: int, started_at: float, restored_at: float | None) -> Change:
    """Return the change for a rank that has run since ``started_at``, from a checkpoint of ``restored_at`` on (both
    Unix seconds), or None."""
    return lambda txn: record_started(txn, txn.job(job_id), rank, started_at, restored_at)


def runs_on_cpus(job_id: str, rank: int, cpus: tuple[int, ...]) -> Change:
    """Return the change for a rank that is found on these CPUs only (empty: any), whoever pinned it."""

    def record(txn: Transaction) -> None:
        job = txn.job(job_id)
        held = job.attempt.held(rank) if job.attempt is not None else None
        if job.attempt is None or held is None or held.released or held.pinned_from is not None or held.cpus == cpus:
            return
        ranks = tuple(replace_fields(a, cpus=cpus) if a.rank == rank else a for a in job.attempt.allocations)
        txn.put_job(replace_fields(job, attempt=replace_fields(job.attempt, allocations=ranks)))

    return record


@dataclass(frozen=True, slots=True)
class UnitEnd:
    """The change for the end of a rank's unit: releases the rank and records what the run shows of its application."""

    job_id: JobId
    rank: int
    exited: ExitRecord
    host: UnitHost
    totals: UnitTotals
    believed: Classification | None
    last_period: CoRunPeriod | None = None
    """What it did since its neighbours last changed; None: too short a time, or not known."""
    learns: bool = False
    """Whether the run of a job that is not classified is recorded as well."""
    tasks: TaskProgress | None = None
    """What became of the tasks of a unit with many."""
    with_feedback: bool = True
    """False drops what the run shows of its application: recording that failed, and the end must not be lost."""

    def __call__(self, txn: Transaction) -> None:
        """Record the end, unless it is recorded already."""
        before, exited = txn.job(self.job_id), self.exited
        if self.tasks is not None:
            before = record_tasks(txn, before, self.tasks)
        started_at, ended_at = _plausible_times(before, self.rank, exited, txn.now)
        after = release_allocation(
            txn,
            before,
            self.rank,
            started_at=started_at,
            ended_at=ended_at,
            exit_code=exited.exit_code,
            cause=exited.cause,
            detail=exited.detail,
            cpu_s=exited.cpu_s,
            memory_mib_max=exited.memory_mib_max,
        )
        if (
            after is not before and self.with_feedback and before.run is None
        ):  # the same row: it was recorded already, with its feedback
            self._learn(txn, after)

    def _learn(self, txn: Transaction, job: Job) -> None:
        exited, host = self.exited, self.host
        if job.spec.profile is not None and (exited.findings is not None or self.rank == 0):
            how = exited.detail or (str(exited.cause) if exited.cause is not None else f"exit code {exited.exit_code}")
            record_findings(txn, job, exited.findings or Findings(notes=(f"profiling run measured nothing: {how}",)))
        elif job.application:
            record_performance(txn, job, host.instance, self.totals, self.believed)
            if self.last_period is not None:
                record_co_run(txn, job, host.instance, self.last_period, self.believed)
        elif self.learns:
            record_own_run(txn, job, host.instance, self.totals)


def tasks_ended(job_id: str, progress: TaskProgress) -> Change:
    """Return the change for tasks that ended in a unit that goes on."""
    return lambda txn: record_tasks(txn, txn.job(job_id), progress)


def _plausible_times(job: Job, rank: int, exited: ExitRecord, now: float) -> tuple[float | None, float]:
    """Return a unit's start and end by the instance's clock if that agrees with ours, else by ours.

    The duration is right by either clock, and is what the unit costs. A unit that never started has no start.
    """
    assert job.attempt is not None
    noted_at = next(a.started_at for a in job.attempt.allocations if a.rank == rank)
    if noted_at is None:
        return None, now
    agrees = job.attempt.placed_at <= exited.started_at <= noted_at
    started_at, ran_s = exited.started_at if agrees else noted_at, max(0.0, exited.ended_at - exited.started_at)
    return started_at, min(now, max(exited.ended_at, started_at) if agrees else started_at + ran_s)


def unit_vanished(job_id: str, rank: int) -> Change:
    """Return the change for a unit that is no longer on the instance where it ran."""
    detail = "the unit's directory is missing on the instance"
    return lambda txn: release_allocation(
        txn, txn.job(job_id), rank, ended_at=txn.now, cause=FailureCause.INSTANCE_LOST, detail=detail
    )
