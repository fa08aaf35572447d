"""Spot preemption: what follows when providers preempt instances.

A job that lost its instance is queued again (``retries`` counts it). After ``spot.most_losses``
preemptions it avoids spot, if anything else is on offer: each loss may cost all its work, so a long job might never
end, unless it keeps checkpoints. Draining an instance on a provider's notice is part of ``instance_lifecycle``.

Where machines were preempted, spot offers are compared by their expected cost: a run of ``r`` seconds on machines that
are lost at random, ``rate`` times per second, and that begins anew after each loss, takes ``(e^(rate r) - 1) / rate``.
With checkpoints ``r`` is the time between two of them.

A job with a deadline avoids spot if a loss would probably break it (:class:`SpotDeadlines`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import exp, expm1, inf

from hcloud.core.model import FailureCause, Instance, Job, JobSpec, JobState, Market, Offer, Reason, matches
from hcloud.forecast.fleet_tracker import KEPT_S, SPOT_KEPT_S, SpotLifetime
from hcloud.planner.topology import admits
from hcloud.spec.policy import SpotPolicy
from hcloud.spec.validation import counted

PRIOR_S = 900.0
"""Time without a loss that is assumed of each region, and that its rate weighs beside what is seen of a type."""
ASSUMED_PER_S = 0.1 / 3600.0
"""Losses of spot machines per second that are assumed where a deadline is at stake: between what AWS states of most
types (below 5 % a month) and 0.27 an hour, as measured of large ones (:data:`hcloud.simulator.clouds.SPOT`)."""
ASSUMED_WEIGHT_S = 3600.0
"""The assumption weighs as much as so many seconds of one machine."""
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
            if lifetime.ended_at >= now - KEPT_S:
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


@dataclass(frozen=True, slots=True)
class SpotDeadlines:
    """Which deadlines a loss of spot machines would break with more than the tolerated probability.

    A run of ``r`` seconds that is lost after ``t`` begins anew once another machine has booted (``b`` seconds). With
    ``left`` seconds to the deadline, ``b`` for its own boot included, it fails if it is lost after ``left - 2 b - r``
    and before its end: with probability ``e^(-rate (left - 2 b - r)) - e^(-rate r)``. A second loss is not considered.
    That is averaged over the distribution of ``r``. A job whose run time is unknown is not judged until it was lost
    once: then it needs twice what it had (Lindy). A job with checkpoints repeats what it did since the last one only:
    where there is time for that, no loss breaks its deadline.
    """

    rate_per_s: float
    """How often a spot machine is expected to be lost."""
    risk: float
    """Tolerated probability (0..1) that a loss breaks a deadline."""
    now: float

    @classmethod
    def from_history(
        cls, lifetimes: Iterable[SpotLifetime], live: Iterable[Instance], risk: float, now: float
    ) -> SpotDeadlines:
        """Return them by what was seen of all spot machines within ``SPOT_KEPT_S``.

        Time before that does not count: of it the losses are forgotten, and only the survivors would be left.
        """
        losses, up_s, since = 0, 0.0, now - SPOT_KEPT_S
        for lifetime in lifetimes:
            losses += lifetime.preempted
            up_s += min(lifetime.up_s, max(0.0, lifetime.ended_at - since))
        for each in live:
            if each.offer.market is Market.SPOT and each.launched_at is not None:
                losses += each.preempt_at is not None
                up_s += max(0.0, now - max(since, each.launched_at))
        rate_per_s = (losses + ASSUMED_PER_S * ASSUMED_WEIGHT_S) / (up_s + ASSUMED_WEIGHT_S)
        return cls(rate_per_s, risk, now)

    def avoids_spot(self, job: Job, runs_s: Callable[[float], Sequence[float]], boot_s: Callable[[], float]) -> bool:
        """Return whether ``job`` should be placed on other markets. One that awaits an instance keeps what it awaits.

        ``runs_s`` returns run times, in seconds, that are as likely as each other for a run that takes longer than its
        argument (empty: unknown), ``boot_s`` how long an instance takes to boot.
        """
        deadline_at = job.deadline_at
        if deadline_at is None or job.state is JobState.AWAITING_INSTANCE:
            return False
        ran_s = _ran_s(job)
        likely_s = runs_s(ran_s) or ([2.0 * ran_s] if ran_s > 0.0 else [])
        if not (count := len(likely_s)):
            return False
        boots_s = boot_s()
        left_s = deadline_at - self.now - (2.0 * boots_s if boots_s < inf else 0.0)
        checkpoint = job.spec.checkpoint
        if checkpoint is not None:  # longer runs miss it anyway, and shorter ones have time for what they repeat
            likely_s = [run_s for run_s in likely_s if left_s - checkpoint.every_s < run_s <= left_s]
        return sum([self.broken_probability(run_s, left_s) for run_s in likely_s]) / count > self.risk

    def broken_probability(self, run_s: float, left_s: float) -> float:
        """Return the probability that a loss breaks a deadline in ``left_s``, boots left out, of a run of ``run_s``."""
        restarts_until_s = min(max(0.0, left_s - run_s), run_s)
        return exp(-self.rate_per_s * restarts_until_s) - exp(-self.rate_per_s * run_s)


def _ran_s(job: Job) -> float:
    """Return for how long the last attempt of a waiting job ran until it was lost, in seconds; 0: none, or unknown."""
    if job.attempt is None or not job.attempt.over:
        return 0.0
    ends_at = [each.ended_at for each in job.attempt.allocations if each.ended_at is not None]
    return max(0.0, max(ends_at, default=0.0) - job.attempt.placed_at)


def spot_loss_limit_reached(job: Job, spot: SpotPolicy) -> bool:
    """Return whether ``job`` was preempted so often that it should avoid spot instances; not if it keeps its work."""
    if job.spec.checkpoint is not None:
        return False
    return 0 < spot.most_losses <= job.failures.count(FailureCause.PREEMPTED)


def has_non_spot_offer(spec: JobSpec, offers: Iterable[Offer]) -> bool:
    """Return whether any of ``offers`` suits this job and is not spot."""
    return any(
        offer.market is not Market.SPOT
        and spec.resources.fits(offer.instance_type.capacity)
        and (not spec.instance_types or matches(offer.instance_type.name, spec.instance_types))
        and offer.suits_gpus(spec.resources.gpus, named=bool(spec.instance_types))
        and admits(spec.placement, offer)
        for offer in offers
    )
