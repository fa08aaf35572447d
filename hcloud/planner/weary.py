"""Jobs from which too many spot machines were taken: each loss may cost all they did, so a long one might never end.

Where whole days of work are lost with each machine, cheap machines are dear: of real spot machines a quarter was taken
back per hour (SkyPilot's spot traces, NSDI 2024), and a job of ten hours would hardly ever end there.
"""

from __future__ import annotations

from collections.abc import Iterable

from hcloud.constraints import matches
from hcloud.model import FailureCause, Job, JobSpec, Market, Offer
from hcloud.planner.whereabouts import admits
from hcloud.policy import SpotPolicy


def spot_loss_limit_reached(job: Job, spot: SpotPolicy) -> bool:
    """Whether ``job`` lost so many spot machines that it should go elsewhere."""
    return 0 < spot.most_losses <= job.failures.count(FailureCause.PREEMPTED)


def has_non_spot_offer(spec: JobSpec, offers: Iterable[Offer]) -> bool:
    """Whether any of ``offers`` is a machine for this job that is not taken back."""
    return any(
        offer.market is not Market.SPOT
        and spec.resources.fits(offer.instance_type.capacity)
        and (not spec.instance_types or matches(offer.instance_type.name, spec.instance_types))
        and admits(spec.placement, offer)
        for offer in offers
    )
