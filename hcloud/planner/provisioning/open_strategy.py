"""The policy's provisioning strategy over one snapshot: what may be rented, and the mapping of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hcloud.core.model import Market, Offer
from hcloud.planner.fleet import Fleet
from hcloud.planner.provisioning.mapping import Hybrid, open_mapping
from hcloud.planner.provisioning.offer_rules import full_from
from hcloud.planner.provisioning.strategies import ProvisioningStrategy, strategy_named
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import Policy, ProvisioningPolicy


@dataclass(slots=True, eq=False)
class OpenStrategy:
    """A strategy over the offers and instances of one snapshot."""

    rules: ProvisioningStrategy
    policy: ProvisioningPolicy
    full_from: Mapping[str, float]
    """vCPUs from which an instance is a full server, by provider."""
    hybrid: Hybrid | None = None
    """The mapping of jobs; None for strategies that map none, and without reserved capacity: jobs then take the best
    value of what may be rented."""

    def refusal(self, offer: Offer) -> str | None:
        """Return why ``offer`` may not be rented under this strategy; None: it may."""
        return self.rules.refusal(offer, self.full_from, self.policy)


def open_strategy(snapshot: Snapshot, policy: Policy, fleet: Fleet) -> OpenStrategy:
    """Return the strategy named by ``policy``, over the instances of ``fleet``."""
    rules, full_servers = strategy_named(policy.provisioning.strategy), dict[str, float]()
    if rules.tells_full_servers:
        full_servers = snapshot.plan_cache.get(
            "full from", (snapshot.offers, policy), lambda: full_from(snapshot, policy)
        )
    strategy = OpenStrategy(rules=rules, policy=policy.provisioning, full_from=full_servers)
    if rules.maps_jobs and _has_reserved(snapshot, fleet):
        strategy.hybrid = open_mapping(snapshot, policy, fleet, rules, full_servers)
    return strategy


def _has_reserved(snapshot: Snapshot, fleet: Fleet) -> bool:
    """Return whether there is reserved capacity to map jobs to, launched or not."""
    offered = snapshot.plan_cache.get(
        "reserved offered",
        (snapshot.offers,),
        lambda: any(o.market is Market.RESERVED and o.available != 0 for o in snapshot.offers),
    )
    return offered or bool(fleet.reserved.any())
