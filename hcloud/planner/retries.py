"""Retries: whether a failed attempt is repeated, after which back-off, and the reason if it is not.

Retries are counted by cause. A job that lost its instance passes through PREEMPTED (``spot_preemption``), so that
reports can tell it from a job that failed on its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from hcloud.core.model import Attempt, FailureCause, Job, Number, Reason
from hcloud.planner.context import PlanContext
from hcloud.planner.plan import Preempted
from hcloud.planner.spot_preemption import LOST
from hcloud.planner.text import deadline_numbers, failure, seconds
from hcloud.spec.validation import counted


def may_retry(context: PlanContext, job: Job, cause: FailureCause) -> bool:
    """Return whether the job file allows another attempt after a failure of this cause, and it may end otherwise."""
    left = job.failures.count(cause) < job.spec.retries.limits.get(cause.value, 0)
    return left and not _has_all_memory(context, job, cause)


def _has_all_memory(context: PlanContext, job: Job, cause: FailureCause) -> bool:
    """Return whether a job that ran out of memory had as much as there is."""
    return cause is FailureCause.OUT_OF_MEMORY and next_memory_mib(context, job) is None


def next_memory_mib(context: PlanContext, job: Job) -> int | None:
    """Return the memory that each rank of ``job`` gets after it ran out of it; None: it has as much as there is.

    It grows by the job's ``memory_factor``, up to the largest machine that the job may use.
    """
    asked = job.spec.resources
    offers = [*context.snapshot.offers, *(each.offer for each in context.fleet.instances)]
    sizes = [each.instance_type.capacity for each in offers if job.spec.may_use(each)]
    largest_mib = max(
        [each.memory_mib for each in sizes if replace(asked, memory_mib=0).fits(each)], default=asked.memory_mib
    )
    grown_mib = min(math.ceil(asked.memory_mib * job.spec.retries.memory_factor), largest_mib)
    return grown_mib if grown_mib > asked.memory_mib else None


def retry(context: PlanContext, job: Job, attempt: Attempt, cause: FailureCause) -> None:
    """Requeue ``job`` after a failed attempt, with a back-off that doubles with each failure of this cause, but not
    where a provider took the machine back: that is no sign of what comes next.

    One that ran out of memory gets more, if there are machines with more.
    """
    retries, used = job.spec.retries, job.failures.count(cause)
    doublings = 0 if cause is FailureCause.PREEMPTED else min(used, 60)
    delay_s = min(retries.backoff_cap_s, retries.backoff_s * 2.0**doublings)
    not_before_at, limit = context.now + delay_s, retries.limits.get(cause.value, 0)
    numbers: dict[str, Number] = {"retry": used + 1, "limit": limit, "backoff_s": delay_s}
    numbers |= _failure_numbers(attempt, cause)
    text = f"attempt {attempt.number} {_failure_words(numbers)}; retry {used + 1} of {limit} in {seconds(delay_s)}"
    memory_mib = next_memory_mib(context, job) if cause is FailureCause.OUT_OF_MEMORY else None
    if memory_mib is not None:
        numbers["memory_mib"] = memory_mib
        text += f" with {memory_mib} MiB"
    reason = Reason(code=f"retry_{cause.value}", text=text, numbers=numbers)
    if cause in LOST:
        context.decisions.add(Preempted(job_id=job.id, failure=cause, not_before_at=not_before_at, reason=reason))
    else:
        queued = context.decisions.enqueue(
            job, reason, not_before_at=not_before_at, failure=cause, memory_mib=memory_mib
        )
        context.waiting.add(queued)


def failure_reason(context: PlanContext, job: Job, attempt: Attempt, cause: FailureCause) -> Reason:
    """Return why ``job`` fails for good: how the attempt ended, and that its retries are used up."""
    limit = job.spec.retries.limits.get(cause.value, 0)
    numbers: dict[str, Number] = {"attempts": job.attempts_made, "retries": limit, **_failure_numbers(attempt, cause)}
    retries = "no retries configured" if limit == 0 else f"{counted(limit, 'retry', 'retries')} used up"
    if job.failures.count(cause) < limit and _has_all_memory(context, job, cause):
        retries = f"no machine that it may use has more than {job.spec.resources.memory_mib} MiB for it"
    text = f"{_failure_words(numbers)}; {retries}"
    return Reason(code=cause.value, text=text, numbers={**numbers, **deadline_numbers(job, context.now)})


def _failure_words(numbers: Mapping[str, Number]) -> str:
    return failure(str(numbers["cause"]), numbers.get("exit_code"), numbers.get("detail"))


def _failure_numbers(attempt: Attempt, cause: FailureCause) -> dict[str, Number]:
    # Ranks of a gang that are stopped for another one's failure end after it, and with its cause.
    alike = [a for a in attempt.allocations if a.cause is cause]
    failed = min(alike, key=lambda each: math.inf if each.ended_at is None else each.ended_at, default=None)
    failed = failed or next((a for a in attempt.allocations if a.cause is not None), None)
    if failed is None:
        return {"cause": cause.value}
    ending: dict[str, Number] = {"cause": cause.value, "rank": failed.rank, "exit_code": failed.exit_code}
    return {**ending, "instance": failed.instance_id, "detail": failed.detail}
