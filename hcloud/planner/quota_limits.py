"""Account limits on vCPUs that no offer states, as learned from launches that a cloud refused.

A refusal shows with how many vCPUs of its region and market a quota is exceeded. That is remembered for a day, each
further time twice as long, or until a launch shows that the quota is larger now. Types whose names begin with the same
letters share a quota; vCPUs in use are counted over all types, since clouds differ in which letters belong together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from hcloud.core.model import Instance, InstanceState, Offer
from hcloud.planner.snapshot import OfferBackoff

QUOTA_MEMORY_S = 86_400.0
"""How long a refused number of vCPUs is taken to be too large, the first time."""
QUOTA_DOUBLINGS_MAX = 3
_DUST = 1e-6
Place = tuple[str, str, str]
"""Provider, region and market."""


def place_of(offer: Offer) -> Place:
    """Return the provider, region and market of an offer."""
    return (offer.provider, offer.region, offer.market.value)


def letters_of(offer: Offer) -> str:
    """Return the letters with which the name of an offer's type begins: ``m`` of m7i.large, ``n`` of n2-standard-4."""
    return (re.match(r"[A-Za-z]*", offer.instance_type.name) or [""])[0]


def vcpus_at(place: Place, instances: Iterable[Instance]) -> float:
    """Return how many vCPUs instances use of a region and market; those that are ending still count."""
    live = (each for each in instances if each.state is not InstanceState.TERMINATED)
    return sum(each.capacity.vcpus for each in live if place_of(each.offer) == place)


def limit_key(offer: Offer) -> tuple[str, str, str, str]:
    """Return the key of the row that remembers the limit of an offer."""
    provider, region, market = place_of(offer)
    return provider, region, letters_of(offer), market


def refused_limit(offer: Offer, vcpus: float, why: str, now: float, earlier: OfferBackoff | None) -> OfferBackoff:
    """Return the row that remembers a refusal with ``vcpus`` in use, those of the refused instance included."""
    if earlier is None:
        times = 1
    else:  # several launches at once are refused for one quota
        times = earlier.failures if earlier.until_at > now else earlier.failures + 1
    return OfferBackoff(
        provider=offer.provider,
        zone=offer.region,
        instance_type=letters_of(offer),
        market=offer.market.value,
        until_at=now + QUOTA_MEMORY_S * 2.0 ** min(times - 1, QUOTA_DOUBLINGS_MAX),
        error=why,
        failures=times,
        refused_vcpus=vcpus,
        refused_size_vcpus=offer.instance_type.capacity.vcpus,
    )


@dataclass(slots=True)
class QuotaLimits:
    """Learned limits, with what a plan adds to what is in use."""

    refused: dict[tuple[Place, str], OfferBackoff]
    """By place and letters of the types."""
    in_use: dict[Place, float]
    """vCPUs in use when the plan began, at places with a limit."""
    planned: dict[Place, float] = field(default_factory=dict)

    @classmethod
    def of(cls, backoffs: Iterable[OfferBackoff], instances: Iterable[Instance], now: float) -> QuotaLimits:
        """Return the limits that ``backoffs`` remember."""
        rows = [each for each in backoffs if each.refused_vcpus and each.until_at > now]
        refused = {((each.provider, each.zone, each.market), each.instance_type): each for each in rows}
        in_use = dict.fromkeys((place for place, _ in refused), 0.0)
        for instance in instances if refused else ():
            place = place_of(instance.offer)
            if place in in_use:
                in_use[place] += instance.capacity.vcpus
        return cls(refused=refused, in_use=in_use)

    def take(self, offer: Offer, count: int) -> None:
        """Count ``count`` more instances of this plan; negative: fewer."""
        place = place_of(offer)
        if place in self.in_use:
            self.planned[place] = self.planned.get(place, 0.0) + count * offer.instance_type.capacity.vcpus

    def exceeded_by(self, offer: Offer) -> OfferBackoff | None:
        """Return the limit that one more instance would exceed after others of this plan that would not.

        Those would be idle, and paid for. What is refused from the first instance on costs nothing, and shows whether
        the quota has grown.
        """
        if not self.refused:
            return None
        place = place_of(offer)
        limit, planned = self.refused.get((place, letters_of(offer))), self.planned.get(place, 0.0)
        if limit is None or not planned:
            return None
        first = self.in_use[place] + offer.instance_type.capacity.vcpus
        bound = limit.refused_vcpus - _DUST
        return limit if first < bound <= first + planned else None
