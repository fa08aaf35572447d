"""Spot preemption: what follows when providers preempt instances.

A job that lost its instance is queued again (``retries`` counts it). After ``spot.most_losses``
preemptions it avoids spot, if anything else is on offer: each loss may cost all its work, so a long job might never
end. Draining an instance on a provider's notice is part of ``instance_lifecycle``.

Where machines were preempted, spot offers are compared by their expected cost: a run of ``r`` seconds on machines that
are lost at random, ``rate`` times per second, and that begins anew after each loss, takes ``(e^(rate r) - 1) / rate``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from math import expm1

from hcloud.core.model import FailureCause, Instance, Job, JobSpec, Market, Offer, Reason, matches
from hcloud.forecast.fleet_tracker import SpotLifetime
from hcloud.planner.topology import admits
from hcloud.spec.policy import SpotPolicy
from hcloud.spec.validation import counted

PRIOR_S = 900.0
"""Time without a loss that is assumed of each region, and that its rate weighs beside what is seen of a type."""
RUN_S = 600.0
"""Run time that is assumed where none was seen."""
EXPONENT_MAX = 20.0
LOST = (FailureCause.PREEMPTED, FailureCause.INSTANCE_LOST)
"""Causes for which a job passes through the state PREEMPTED."""


def requeue_reason(job: Job) -> Reason:
    """Return why a job that lost its instance is queued again."""
    lost = sum(job.failures.count(cause) for cause in LOST)
    text = f"requeued after losing its machine ({counted(lost, 'time')} so far)"
    return Reason(code="back_after_preemption", text=text, numbers={"times_lost": lost, "attempts": job.attempts_made})


class SpotRisk:
    """The rates at which spot machines are preempted, as seen within the last hour."""

    def __init__(self, lifetimes: Iterable[SpotLifetime], live: Iterable[Instance], now: float) -> None:
        """``lifetimes``: spot machines that ended; ``live``: count with their time so far."""
        self._losses: Counter[tuple[str, ...]] = Counter()
        self._up_s: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for lifetime in lifetimes:
            self._count((lifetime.provider, lifetime.region), lifetime.type, lifetime.up_s, lost=lifetime.preempted)
        for each in live:
            if each.offer.market is Market.SPOT and each.launched_at is not None:
                place, kind = (each.offer.provider, each.offer.region), each.offer.instance_type.name
                self._count(place, kind, max(0.0, now - each.launched_at), lost=each.preempt_at is not None)

    def _count(self, place: tuple[str, str], kind: str, up_s: float, *, lost: bool) -> None:
        for key in (place, (*place, kind)):
            self._losses[key] += lost
            self._up_s[key] += up_s

    def rate_per_s(self, offer: Offer) -> float:
        """Return how often a machine of a spot offer is expected to be preempted; 0 if none was in its region.

        The region's other types count as much as ``PRIOR_S`` of the type's own.
        """
        place = (offer.provider, offer.region)
        own = (*place, offer.instance_type.name)
        losses, up_s = self._losses[own], self._up_s.get(own, 0.0)
        others = (self._losses[place] - losses) / (self._up_s.get(place, 0.0) - up_s + PRIOR_S)
        return (losses + others * PRIOR_S) / (up_s + PRIOR_S)

    def cost_factor(self, offer: Offer, run_s: float) -> float:
        """Return by what a spot offer's price is multiplied by losses, for runs of ``run_s``: 1 or more."""
        exponent = self.rate_per_s(offer) * (run_s + offer.instance_type.boot_delay_s)
        return expm1(min(exponent, EXPONENT_MAX)) / exponent if exponent > 1e-9 else 1.0


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
