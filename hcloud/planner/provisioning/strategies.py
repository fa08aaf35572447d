"""The provisioning strategies (HCloud §8.3): what may be rented, and whether jobs are mapped to reserved instances.

A strategy is a few facts, so all of them stand here, where they can be compared. To add one, add it to ``SHIPPED`` and
its name to ``STRATEGIES`` in ``spec/policy.py``. An installed package offers one through the entry point group
``hcloud.provisioning_strategies``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from hcloud.core.model import Market, Offer
from hcloud.planner.provisioning.offer_rules import is_full
from hcloud.planner.registry import Registry
from hcloud.spec.policy import STRATEGIES, ProvisioningPolicy


class Rented(Enum):
    """Which instances a strategy rents on demand and spot."""

    NONE = "none"
    FULL_SERVERS = "full servers"
    ANY = "any"


class Reserves(Enum):
    """For how much of the load a strategy reserves instances beforehand (§8.4)."""

    NOTHING = "nothing"
    STEADY = "steady load"
    PEAK = "peak"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisioningStrategy:
    """What a strategy allows. A subclass may refuse further offers."""

    name: str
    """The value of ``provisioning.strategy`` in a policy."""
    rented: Rented = Rented.ANY
    """Which instances may be rented."""
    uses_reserved: bool = True
    """Whether reserved instances may be launched."""
    reserves: Reserves = Reserves.NOTHING
    """What is reserved for it in simulations and recommendations."""
    maps_jobs: bool = False
    """Whether ``provisioning.mapping`` decides which jobs go to reserved instances. It uses classifications."""

    @property
    def tells_full_servers(self) -> bool:
        """Whether it treats full servers differently."""
        return self.rented is Rented.FULL_SERVERS or self.maps_jobs

    def refusal(self, offer: Offer, full_from: Mapping[str, float], policy: ProvisioningPolicy) -> str | None:
        """Return why ``offer`` may not be launched; None: it may. ``full_from``: by provider the vCPUs of full servers
        (:func:`hcloud.planner.provisioning.offer_rules.full_from`)."""
        reserved = offer.market is Market.RESERVED
        if self.rented is Rented.NONE and not reserved:
            return f"provisioning.strategy {self.name} uses reserved machines only"
        if not self.uses_reserved and reserved:
            return f"provisioning.strategy {self.name} uses no reserved machines"
        if self.rented is Rented.FULL_SERVERS and not reserved and not is_full(full_from, offer):
            least = full_from.get(offer.provider, policy.full_server_vcpus)
            return f"provisioning.strategy {self.name} rents full servers only ({least:g} vCPUs or more)"
        return None


SHIPPED: Final = (
    ProvisioningStrategy(name="best_value"),
    ProvisioningStrategy(name="sr", rented=Rented.NONE, reserves=Reserves.PEAK),
    ProvisioningStrategy(name="odf", rented=Rented.FULL_SERVERS, uses_reserved=False),
    ProvisioningStrategy(name="odm", uses_reserved=False),
    ProvisioningStrategy(name="hf", rented=Rented.FULL_SERVERS, reserves=Reserves.STEADY, maps_jobs=True),
    ProvisioningStrategy(name="hm", reserves=Reserves.STEADY, maps_jobs=True),
)
_STRATEGIES = Registry[ProvisioningStrategy]("provisioning strategy", STRATEGIES, lambda each: each.maps_jobs)
register, strategy_named = _STRATEGIES.register, _STRATEGIES.named


def strategies_that_reserve(reserves: Reserves) -> list[str]:
    """Return the names of the strategies that reserve for this part of the load, in order of registration."""
    return [strategy.name for strategy in _STRATEGIES if strategy.reserves is reserves]


for _strategy in SHIPPED:
    register(_strategy)
