"""Small makers shared by the tests of the mock cloud and of the fake engine on it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from hcloud.core.clock import ManualClock
from hcloud.core.model import Market, Offer, Resources
from hcloud.provider import LaunchRequest, UnitSpec
from providers.mock import MockProvider

OWNER = "hcloud-test"
AT_ONCE: dict[str, Any] = {"boot": {"p50_s": 0}, "stop_s": 0}


def cloud_on(clock: ManualClock, state_dir: Path | str = "", owner: str = OWNER, **settings: Any) -> MockProvider:
    """A mock cloud, in memory unless the settings say otherwise."""
    return MockProvider("mock", settings, clock, owner, str(state_dir))


def offer_of(
    cloud: MockProvider, type_name: str = "m.medium", market: Market = Market.ON_DEMAND, zone: str = "east-1a"
) -> Offer:
    """An offer by what it is."""
    return next(each for each in cloud.offers() if each.key == ("mock", zone, type_name, market.value))


def request_for(
    cloud: MockProvider, number: int, now: float, offer: Offer | None = None, **changes: Any
) -> LaunchRequest:
    """A request for the machine ``inst-<number>`` with its own token, a day before expiry."""
    request = LaunchRequest(
        token=f"token-{number}",
        instance_id=f"inst-{number}",
        owner=cloud.owner,
        offer=offer or offer_of(cloud),
        expires_at=now + 86400,
    )
    return replace(request, **changes)


def unit_on(instance_id: str, script: str = "sleep 10", unit_id: str = "job-1.1.0", **changes: Any) -> UnitSpec:
    """A unit that runs a shell script."""
    unit = UnitSpec(
        id=unit_id,
        instance_id=instance_id,
        rank=0,
        command=("/bin/sh", "-c", script),
        resources=Resources(vcpus=1.0, memory_mib=256, disk_gib=1.0),
    )
    return replace(unit, **changes)
