"""Retries: whether a failed attempt is repeated, after which back-off, and the reason if it is not.

Retries are counted by cause. A job that lost its instance passes through PREEMPTED (``spot_preemption``), so that
reports can tell it from a job that failed on its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from hcloud.core.model import Attempt, FailureCause, Job, Number, Reason
from hcloud.planner.context import PlanContext
from hcloud.planner.plan import Preempted
from hcloud.planner.spot_preemption import LOST
from hcloud.planner.text import deadline_numbers, failure, seconds
from hcloud.spec.validation import counted


def may_retry(job: Job, cause: FailureCause) -> bool:
    """Return whether the job file allows another attempt after a failure of this cause."""
    return job.failures.count(cause) < job.spec.retries.limits.get(cause.value, 0)


def retry(context: PlanContext, job: Job, attempt: Attempt, cause: FailureCause) -> None:
    """Requeue ``job`` after a failed attempt, with a back-off that doubles with each failure of this cause."""
    retries, used = job.spec.retries, job.failures.count(cause)
    delay_s = min(retries.backoff_cap_s, retries.backoff_s * 2.0 ** min(used, 60))
    not_before_at, limit = context.now + delay_s, retries.limits.get(cause.value, 0)
    numbers: dict[str, Number] = {"retry": used + 1, "limit": limit, "backoff_s": delay_s}
    numbers |= _failure_numbers(attempt, cause)
    text = f"attempt {attempt.number} {_failure_words(numbers)}; retry {used + 1} of {limit} in {seconds(delay_s)}"
    reason = Reason(code=f"retry_{cause.value}", text=text, numbers=numbers)
    if cause in LOST:
        context.decisions.add(Preempted(job_id=job.id, failure=cause, not_before_at=not_before_at, reason=reason))
    else:
        context.waiting.add(context.decisions.enqueue(job, reason, not_before_at=not_before_at, failure=cause))


def failure_reason(context: PlanContext, job: Job, attempt: Attempt, cause: FailureCause) -> Reason:
    """Return why ``job`` fails for good: how the attempt ended, and that its retries are used up."""
    limit = job.spec.retries.limits.get(cause.value, 0)
    numbers: dict[str, Number] = {"attempts": job.attempts_made, "retries": limit, **_failure_numbers(attempt, cause)}
    retries = "no retries configured" if limit == 0 else f"{counted(limit, 'retry', 'retries')} used up"
    text = f"{_failure_words(numbers)}; {retries}"
    return Reason(code=cause.value, text=text, numbers={**numbers, **deadline_numbers(job, context.now)})


def _failure_words(numbers: Mapping[str, Number]) -> str:
    return failure(str(numbers["cause"]), numbers.get("exit_code"), numbers.get("detail"))


def _failure_numbers(attempt: Attempt, cause: FailureCause) -> dict[str, Number]:
    failed = next((a for a in attempt.allocations if a.cause is cause), None)
    failed = failed or next((a for a in attempt.allocations if a.cause is not None), None)
    if failed is None:
        return {"cause": cause.value}
    ending: dict[str, Number] = {"cause": cause.value, "rank": failed.rank, "exit_code": failed.exit_code}
    return {**ending, "instance": failed.instance_id, "detail": failed.detail}
