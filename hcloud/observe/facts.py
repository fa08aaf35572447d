"""What was observed, as row changes: facts only, each recorded once however often it is reported."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from hcloud.apply.feedback import UnitTotals, record_findings, record_performance
from hcloud.apply.machines import record_preemption, record_registration
from hcloud.apply.transitions import release_allocation, transition_instance
from hcloud.apply.unit_index import UnitIndex
from hcloud.apply.units import record_started
from hcloud.core.estimates import Classification, Findings
from hcloud.core.model import EventKind, FailureCause, Instance, InstanceState, Job, JobId, Market, Reason
from hcloud.core.rows import replace_fields
from hcloud.provider import ExitRecord, WorkerReport
from hcloud.spec.policy import Policy
from hcloud.store import LiveView, Transaction

Change = Callable[[Transaction], object]
NOTICE_TOLERANCE_S = 5.0
"""A worker's notice that is earlier than what is known by less is the same; the provider's times count first."""


class UnitHost(NamedTuple):
    """Where a unit runs: its worker's report, the machine's row, and whether no other unit holds part of it."""

    worker: WorkerReport
    instance: Instance
    alone: bool


def instance_registered(instance: Instance, worker: WorkerReport, now: float) -> Iterator[Change]:
    """An instance's worker registered, or reports a preemption notice earlier than the known one."""
    if instance.state is InstanceState.BOOTING:
        boot_s = now - (instance.launched_at or instance.requested_at)

        def ready(txn: Transaction) -> None:
            """Note it once: an earlier cycle, killed after its commit, may have."""
            fresh = txn.instance(instance.id)
            if fresh.state is InstanceState.BOOTING:
                reason = Reason(code="registered", text=f"worker registered {boot_s:.1f} s after launch")
                transition_instance(txn, fresh, InstanceState.READY, reason, ready_at=now, seen_at=now, idle_since=now)
                record_registration(txn, fresh.offer)
                isolation = list(worker.isolation)
                txn.emit(EventKind.INSTANCE_READY, instance_id=instance.id, boot_s=boot_s, isolation=isolation)

        yield ready
    if worker.preempt_at is not None and worker.preempt_at < (instance.preempt_at or math.inf) - NOTICE_TOLERANCE_S:
        yield preemption_notice(instance.id, worker.preempt_at)


def instance_gone(
    instance: Instance, view: LiveView, unit_index: UnitIndex, at: float, why: str, taken: Policy | None
) -> Change:
    """The provider confirmed that a machine is gone: so are its units, and the intents about it are settled.

    ``taken``: it was taken back, and this policy says what that means for its offer; None: it went otherwise.
    """
    held_by = unit_index.jobs_on(instance.id)

    def record(txn: Transaction) -> None:
        """Settle everything in one transaction, so that no job is freed of a machine that still counts as live."""
        fresh = txn.instance(instance.id)
        if fresh.state is InstanceState.TERMINATED:
            return
        if taken is not None and fresh.state is not InstanceState.TERMINATING:  # else it was noted as it was ended
            record_preemption(txn, fresh, at, taken)
        code = "gone" if taken is None else "preempted"
        reason = Reason(code=code, text=f"confirmed terminated: {why}" + (f" ({fresh.reason})" if fresh.reason else ""))
        transition_instance(
            txn, fresh, InstanceState.TERMINATED, reason, terminated_at=max(at, fresh.launched_at or at)
        )
        tokens = {fresh.token, f"terminate:{fresh.id}"}
        for intent in view.intents:
            if intent.token in tokens:
                txn.close_intent(intent.token)
        cause = FailureCause.INSTANCE_LOST if taken is None else FailureCause.PREEMPTED
        for job in held_by:
            _release_on(txn, job, instance.id, at, cause, why)

    return record


def _release_on(txn: Transaction, job: Job, instance_id: str, at: float, cause: FailureCause, why: str) -> None:
    """Units ended with their machine, ``at`` by its provider's clock, which may be long before it is reported: no unit
    pays for more."""
    fresh = txn.job(job.id)
    assert fresh.attempt is not None
    for held in fresh.attempt.allocations:
        if held.instance_id == instance_id and not held.released:
            ended_at = txn.now if held.started_at is None else min(txn.now, max(at, held.started_at))
            detail = f"{instance_id} {why}"
            fresh = release_allocation(txn, fresh, held.rank, ended_at=ended_at, cause=cause, detail=detail)


def preemption_notice(instance_id: str, preempt_at: float) -> Change:
    """The provider is to take a machine back at ``preempt_at`` (Unix seconds)."""

    def record(txn: Transaction) -> None:
        """Note a notice that says something new."""
        fresh = txn.instance(instance_id)
        if fresh.preempt_at != preempt_at:
            txn.put_instance(replace(fresh, preempt_at=preempt_at))
            txn.emit(EventKind.INSTANCE_NOTICE, instance_id=instance_id, preempt_at=preempt_at)

    return record


def price_changed(instance_id: str, price_usd_per_h: float) -> Change:
    """An hour of a machine costs something else from now on."""

    def record(txn: Transaction) -> None:
        """Note what an hour costs from now on; what was reserved costs what was agreed."""
        fresh = txn.instance(instance_id)
        if fresh.offer.market is not Market.RESERVED:
            txn.put_instance(replace(fresh, offer=replace(fresh.offer, price_usd_per_h=price_usd_per_h)))
            txn.emit(EventKind.INSTANCE_PRICE, instance_id=instance_id, price_usd_per_h=price_usd_per_h)

    return record


def instance_idle(instance_id: str) -> Change:
    """Nothing is on a machine any more."""

    def record(txn: Transaction) -> None:
        """Note since when, unless it is known or the machine is ending."""
        fresh = txn.instance(instance_id)
        if fresh.idle_since is None and fresh.state in (InstanceState.READY, InstanceState.DRAINING):
            txn.put_instance(replace_fields(fresh, idle_since=txn.now))

    return record


def unit_started(job_id: str, rank: int, started_at: float) -> Change:
    """A rank's unit runs since ``started_at`` (Unix seconds)."""
    return lambda txn: record_started(txn, txn.job(job_id), rank, started_at)


@dataclass(frozen=True, slots=True)
class UnitEnd:
    """The end of a rank's unit; that it ``teaches`` something may be passed over, where that fails."""

    job_id: JobId
    rank: int
    exited: ExitRecord
    host: UnitHost
    totals: UnitTotals
    believed: Classification | None
    with_feedback: bool = True

    def __call__(self, txn: Transaction) -> None:
        """Free the rank, learn from the end, and note both once."""
        before, exited = txn.job(self.job_id), self.exited
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
        if after is not before and self.with_feedback:  # else it was recorded already, and so was what it taught
            self._learn(txn, after)

    def _learn(self, txn: Transaction, job: Job) -> None:
        exited, host = self.exited, self.host
        if job.spec.profile is not None and (exited.findings is not None or self.rank == 0):
            none = Findings(notes=(f"profiling run measured nothing: {_how(exited)}",))
            record_findings(txn, job, exited.findings or none)
        elif job.application:
            record_performance(txn, job, host.instance, self.totals, self.believed, alone=host.alone)


def _how(exited: ExitRecord) -> str:
    return exited.detail or (str(exited.cause) if exited.cause is not None else f"exit code {exited.exit_code}")


def _plausible_times(job: Job, rank: int, exited: ExitRecord, now: float) -> tuple[float | None, float]:
    """Return start and end by the machine's clock where they agree with ours, else by ours: clocks of machines differ.

    How long it ran is true by any clock, and is what it costs. A unit that never started has no start.
    """
    assert job.attempt is not None
    noted_at = next(a.started_at for a in job.attempt.allocations if a.rank == rank)
    if noted_at is None:
        return None, now
    agrees = job.attempt.placed_at <= exited.started_at <= noted_at
    started_at, ran_s = exited.started_at if agrees else noted_at, max(0.0, exited.ended_at - exited.started_at)
    return started_at, min(now, max(exited.ended_at, started_at) if agrees else started_at + ran_s)


def unit_vanished(job_id: str, rank: int) -> Change:
    """A unit is no longer on the machine where it ran."""
    detail = "the unit's directory is missing on the instance"
    return lambda txn: release_allocation(
        txn, txn.job(job_id), rank, ended_at=txn.now, cause=FailureCause.INSTANCE_LOST, detail=detail
    )
