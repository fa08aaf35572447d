"""Which offers a policy forbids to launch, and which instances are full servers."""

from __future__ import annotations

from collections.abc import Mapping

from hcloud.core.model import Market, Offer
from hcloud.planner.fleet import SLACK
from hcloud.planner.snapshot import Snapshot
from hcloud.planner.text import price
from hcloud.spec.policy import Policy


def forbidden(policy: Policy, offer: Offer) -> str | None:
    """Return why caps or ``allow`` of the policy forbid to launch ``offer``, or None."""
    caps, name = policy.caps, offer.instance_type.name
    if caps.max_price_usd_per_h is not None and offer.price_usd_per_h > caps.max_price_usd_per_h:
        return f"{price(offer.price_usd_per_h)} is above caps.max_price_usd_per_h ({price(caps.max_price_usd_per_h)})"
    if caps.max_instances_per_type.get(name) == 0:
        return f"caps.max_instances_per_type forbids {name}"
    return policy.allow.refusal(offer)


def full_from(snapshot: Snapshot, policy: Policy) -> dict[str, float]:
    """Return by provider the vCPUs from which an instance is a full server: the policy's number, or the largest
    offer."""
    largest: dict[str, float] = {}
    for offer in snapshot.offers:
        if offer.market is not Market.RESERVED and forbidden(policy, offer) is None:
            vcpus = offer.instance_type.capacity.vcpus
            largest[offer.provider] = max(largest.get(offer.provider, 0.0), vcpus)
    return {name: min(vcpus, policy.provisioning.full_server_vcpus) for name, vcpus in largest.items()}


def is_full(full_from: Mapping[str, float], offer: Offer) -> bool:
    """Return whether instances of ``offer`` are full servers, which share a host with few other tenants (HCloud
    §8.1)."""
    least = full_from.get(offer.provider)
    return least is not None and offer.instance_type.capacity.vcpus >= least - SLACK
