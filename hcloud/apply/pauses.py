"""Pause and resume units of running attempts, each with its intent first.

The row says what is wanted; the intent is open until the worker has taken it, and is repeated after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hcloud.apply.transitions import reason_fields
from hcloud.core.clock import Clock
from hcloud.core.errors import Refused
from hcloud.core.model import JOB_ON_INSTANCE, Allocation, EventKind, Intent, IntentKind, Job, Reason
from hcloud.planner.plan import Pause
from hcloud.provider import PauseResult, Runner
from hcloud.store import LeaderLease, Store, Transaction

RETRY_S = 10.0
_PREFIX = "pause:"


@dataclass(slots=True)
class PauseActions:
    """Pauses and resumes units."""

    store: Store
    runner: Runner
    clock: Clock

    def record(self, txn: Transaction, action: Pause) -> Intent:
        """Write that a rank is paused, or resumed, and the intent to have that done.

        Raises Refused if it does not run there, is so already, or an earlier pause is not complete.
        """
        job = txn.job(action.job_id)
        attempt = job.attempt
        if attempt is None or job.state not in JOB_ON_INSTANCE or attempt.stop_requested_at is not None:
            raise Refused(f"{job.id} is not running, or is stopping")
        held = attempt.held(action.rank)
        if held is None or held.released or held.started_at is None or held.instance_id != action.instance_id:
            raise Refused(f"rank {action.rank} of {attempt.id} is not running on {action.instance_id}")
        if (held.paused_at is not None) is not action.undo or (held.refuses_pause and not action.undo):
            raise Refused(f"rank {action.rank} of {attempt.id} cannot be paused or resumed as it is")
        token = _PREFIX + attempt.unit_id(held.rank)
        if txn.intent(token) is not None:
            raise Refused(f"an earlier pause of rank {action.rank} of {attempt.id} is not complete")
        if action.undo:
            _resume(txn, job, held, action.reason)
        else:
            _put(txn, job, replace(held, paused_at=txn.now, paused_text=action.reason.text))
            _emit(txn, EventKind.UNIT_PAUSED, job, held, action.reason)
        intent = Intent(token=token, kind=IntentKind.PAUSE, subject=job.id, created_at=txn.now)
        txn.open_intent(intent)
        return intent

    def drive(self, intents: Sequence[Intent], lease: LeaderLease | None) -> None:
        """Send workers what is wanted of their units until they take it. What a worker refuses to pause runs on."""
        wanted = dict[str, tuple[str, bool]]()
        for intent in intents:
            held = _rank_of(self.store.job(intent.subject), intent)
            if held is not None:
                wanted[intent.token.removeprefix(_PREFIX)] = (held.instance_id, held.paused_at is not None)
        epoch = lease.epoch if lease is not None else 0
        results = self.runner.pause(wanted, epoch=epoch) if wanted else {}
        with self.store.transaction(self.clock.now(), lease) as txn:
            for intent in intents:
                _settle(txn, intent, results.get(intent.token.removeprefix(_PREFIX)))


def _settle(txn: Transaction, intent: Intent, result: PauseResult | None) -> None:
    """Close an intent, or repeat it later. ``result``: None if the unit has ended."""
    if result is not None and result.outcome == "unknown":
        txn.put_intent(replace(intent, tries=intent.tries + 1, retry_at=txn.now + RETRY_S))
        return
    job = txn.job(intent.subject)
    held = _rank_of(job, intent)
    if result is None or result.outcome == "done" or held is None or held.paused_at is None:
        txn.close_intent(intent.token)
        return
    reason = Reason(code="pause_refused", text=f"not paused: {result.detail}")
    _resume(txn, job, replace(held, paused_at=txn.now, refuses_pause=True), reason)
    if intent.tries:  # an earlier call may have paused it
        txn.put_intent(replace(intent, tries=0, retry_at=txn.now))
    else:
        txn.close_intent(intent.token)


def _resume(txn: Transaction, job: Job, held: Allocation, reason: Reason) -> None:
    paused_s = max(0.0, txn.now - (txn.now if held.paused_at is None else held.paused_at))
    runs = replace(held, paused_at=None, paused_text="", resumed_at=txn.now, paused_s=held.paused_s + paused_s)
    _put(txn, job, runs)
    _emit(txn, EventKind.UNIT_RESUMED, job, held, reason, paused_s=round(paused_s, 3))


def _rank_of(job: Job, intent: Intent) -> Allocation | None:
    """Return the running rank that an intent is about; None if it has ended."""
    attempt = job.attempt
    for held in attempt.allocations if attempt is not None and job.state in JOB_ON_INSTANCE else ():
        if attempt is not None and _PREFIX + attempt.unit_id(held.rank) == intent.token and not held.released:
            return held
    return None


def _put(txn: Transaction, job: Job, changed: Allocation) -> None:
    assert job.attempt is not None
    ranks = tuple(changed if each.rank == changed.rank else each for each in job.attempt.allocations)
    txn.put_job(replace(job, attempt=replace(job.attempt, allocations=ranks)))


def _emit(txn: Transaction, kind: EventKind, job: Job, held: Allocation, reason: Reason, **more: object) -> None:
    txn.emit(
        kind,
        job_id=job.id,
        instance_id=held.instance_id,
        user=job.spec.user,
        attempt=job.attempt.id if job.attempt is not None else "",
        rank=held.rank,
        **{**reason_fields(reason), **more},
    )
