"""Spot preemption: what follows when providers take instances back.

A job whose instance was preempted, or lost, is queued again (``retries`` counts it). After ``spot.most_losses``
preemptions it avoids spot, if anything else is on offer: each loss may cost all its work, so a long job might never
end. Draining an instance on a provider's notice is part of ``instance_lifecycle``.
"""

from __future__ import annotations

from collections.abc import Iterable

from hcloud.core.model import FailureCause, Job, JobSpec, Market, Offer, Reason, matches
from hcloud.planner.topology import admits
from hcloud.spec.policy import SpotPolicy
from hcloud.spec.validation import counted

LOST = (FailureCause.PREEMPTED, FailureCause.INSTANCE_LOST)
"""Causes for which a job passes through the state PREEMPTED."""


def requeue_reason(job: Job) -> Reason:
    """Return why a job that lost its instance is queued again."""
    lost = sum(job.failures.count(cause) for cause in LOST)
    text = f"requeued after losing its machine ({counted(lost, 'time')} so far)"
    return Reason(code="back_after_preemption", text=text, numbers={"times_lost": lost, "attempts": job.attempts_made})


def spot_loss_limit_reached(job: Job, spot: SpotPolicy) -> bool:
    """Return whether ``job`` was preempted so often that it should avoid spot instances."""
    return 0 < spot.most_losses <= job.failures.count(FailureCause.PREEMPTED)


def has_non_spot_offer(spec: JobSpec, offers: Iterable[Offer]) -> bool:
    """Return whether any of ``offers`` suits this job and is not spot."""
    return any(
        offer.market is not Market.SPOT
        and spec.resources.fits(offer.instance_type.capacity)
        and (not spec.instance_types or matches(offer.instance_type.name, spec.instance_types))
        and admits(spec.placement, offer)
        for offer in offers
    )
