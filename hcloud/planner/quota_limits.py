"""Account limits on vCPUs that no offer states, as learned from launches that a cloud refused.

A refusal shows with how many vCPUs a limit is exceeded. That is remembered for a day, each further time twice as long,
or until a launch shows that the limit is larger now. vCPUs in use are counted by limit, which each offer names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hcloud.core.model import Instance, InstanceState, Offer
from hcloud.planner.snapshot import RefusedQuota

QUOTA_MEMORY_S = 86_400.0
"""How long a refused number of vCPUs is taken to be too large, the first time."""
QUOTA_DOUBLINGS_MAX = 3
_DUST = 1e-6
QuotaKey = tuple[str, str, str]
"""See ``Offer.quota_key``."""


def vcpus_in_use(quota: QuotaKey, instances: Iterable[Instance]) -> float:
    """Return how many vCPUs of instances count against a limit; those that are ending still count."""
    live = (each for each in instances if each.state is not InstanceState.TERMINATED)
    return sum(each.capacity.vcpus for each in live if each.offer.quota_key == quota)


def refused_quota(
    offer: Offer,
    vcpus: float,
    why: str,
    now: float,
    backoff_after_s: Callable[[int], float],
    earlier: RefusedQuota | None,
) -> RefusedQuota:
    """Return the limit as a refusal with ``vcpus`` in use shows it, those of the refused instance included.

    ``backoff_after_s``: for how long nothing is launched, by the number of failures in a row.
    """
    if earlier is None:
        periods = failures = 1
    else:  # several launches at once are refused for one limit
        periods = earlier.periods if earlier.until_at > now else earlier.periods + 1
        failures = earlier.failures + 1
    provider, region, quota = offer.quota_key
    return RefusedQuota(
        provider=provider,
        region=region,
        quota=quota,
        vcpus=vcpus,
        instance_vcpus=offer.instance_type.capacity.vcpus,
        until_at=now + QUOTA_MEMORY_S * 2.0 ** min(periods - 1, QUOTA_DOUBLINGS_MAX),
        periods=periods,
        retry_at=now + backoff_after_s(failures),
        failures=failures,
        error=why,
    )


@dataclass(slots=True)
class QuotaLimits:
    """Learned limits, with what a plan adds to what is in use."""

    refused: dict[QuotaKey, RefusedQuota]
    in_use: dict[QuotaKey, float]
    """vCPUs in use when the plan began, of limits in ``refused``."""
    planned: dict[QuotaKey, float] = field(default_factory=dict)

    @classmethod
    def of(cls, quotas: Iterable[RefusedQuota], instances: Iterable[Instance], now: float) -> QuotaLimits:
        """Return the limits that are remembered at ``now``."""
        refused = {each.key: each for each in quotas if each.until_at > now}
        in_use = dict.fromkeys(refused, 0.0)
        for instance in instances if refused else ():
            key = instance.offer.quota_key
            if key in in_use:
                in_use[key] += instance.capacity.vcpus
        return cls(refused=refused, in_use=in_use)

    def take(self, offer: Offer, count: int) -> None:
        """Count ``count`` more instances of this plan; negative: fewer."""
        if (key := offer.quota_key) in self.refused:
            self.planned[key] = self.planned.get(key, 0.0) + count * offer.instance_type.capacity.vcpus

    def exceeded_by(self, offer: Offer) -> RefusedQuota | None:
        """Return the limit that one more instance would exceed after others of this plan that would not.

        Those would be idle, and paid for. What is refused from the first instance on costs nothing, and shows whether
        the limit has grown.
        """
        if not self.refused:
            return None
        limit = self.refused.get(offer.quota_key)
        if limit is None:
            return None
        first, planned = self.in_use[limit.key] + offer.instance_type.capacity.vcpus, self.planned.get(limit.key, 0.0)
        bound = limit.vcpus - _DUST
        return limit if first < bound <= first + planned else None
