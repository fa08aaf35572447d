"""Maps EC2 instances to ``CloudInstance``, and defines the tags that identify HCloud's instances."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from hcloud.core.model import Market
from hcloud.provider import CloudInstance, CloudState, LaunchRequest
from providers.ec2.settings import Ec2Settings

OWNER, INSTANCE, TOKEN, EXPIRES_AT, MARKET, PRICE = (
    f"hcloud:{name}" for name in ("owner", "instance", "token", "expires-at", "market", "usd-per-h")
)
_STATES = {
    "pending": CloudState.PENDING,
    "running": CloudState.RUNNING,
    "shutting-down": CloudState.STOPPING,
    "terminated": CloudState.TERMINATED,
    # HCloud never stops instances, so a user stopped them. Their disks still cost money: report them as to be ended.
    "stopping": CloudState.RUNNING,
    "stopped": CloudState.RUNNING,
}
_TAKEN_BACK = frozenset({"Server.SpotInstanceTermination", "Server.SpotInstanceShutdown"})
_REASON_TIME = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")


def tags_of(request: LaunchRequest, settings: Ec2Settings) -> list[dict[str, str]]:
    """Return the tags of an instance and its volumes, in the form that RunInstances expects."""
    own = {
        "Name": f"{request.owner}/{request.instance_id}",
        OWNER: request.owner,
        INSTANCE: request.instance_id,
        TOKEN: request.token,
        EXPIRES_AT: f"{request.expires_at:.3f}",
        MARKET: request.offer.market.value,
        PRICE: f"{request.offer.price_usd_per_h:.6f}",
    }
    extra = {key: value for key, value in request.tags.items() if not key.startswith(("aws:", "hcloud:"))}
    return [{"Key": key, "Value": value[:256]} for key, value in ({**extra, **settings.tags, **own}).items()]


def tag_values(machine: Mapping[str, Any]) -> dict[str, str]:
    """Return a described instance's tags by key."""
    return {str(each["Key"]): str(each["Value"]) for each in machine.get("Tags", ())}


def type_zone_market(machine: Mapping[str, Any]) -> tuple[str, str, Market]:
    """Return type, zone and market of a described instance. The market is that of our tag, else of its life cycle."""
    tagged = tag_values(machine).get(MARKET, "")
    spot = machine.get("InstanceLifecycle") == "spot"
    market = Market(tagged) if tagged in set(Market) else Market.SPOT if spot else Market.ON_DEMAND
    return str(machine["InstanceType"]), str(machine["Placement"]["AvailabilityZone"]), market


def to_cloud_instance(
    machine: Mapping[str, Any], *, price_usd_per_h: float | None, ended_at: float | None, preempt_at: float | None
) -> CloudInstance:
    """Return a described instance as a ``CloudInstance``.

    ``price_usd_per_h``: the current price; None for the price at launch. ``ended_at``: when it was first seen
    terminated, used if EC2 does not report the time.
    """
    tags = tag_values(machine)
    state = _STATES.get(str(machine["State"]["Name"]), CloudState.PENDING)
    launched_at = _seconds(machine["LaunchTime"])
    terminated_at = None
    if state is CloudState.TERMINATED:
        terminated_at = max(launched_at, _ended_at(machine) or ended_at or launched_at)
        if was_taken_back(machine):
            preempt_at = preempt_at or terminated_at
    return CloudInstance(
        provider_id=str(machine["InstanceId"]),
        instance_id=tags.get(INSTANCE, ""),
        token=tags.get(TOKEN, ""),
        owner=tags.get(OWNER, ""),
        state=state,
        zone=str(machine["Placement"]["AvailabilityZone"]),
        launched_at=launched_at,
        price_usd_per_h=price_usd_per_h if price_usd_per_h is not None else _number(tags.get(PRICE)) or 0.0,
        terminated_at=terminated_at,
        preempt_at=preempt_at,
        expires_at=_number(tags.get(EXPIRES_AT)),
        detail=_detail(machine),
        addresses=_addresses(machine),
        market=type_zone_market(machine)[2],
    )


def _addresses(machine: Mapping[str, Any]) -> tuple[str, ...] | None:
    found = (machine.get(name) for name in ("PrivateIpAddress", "PublicIpAddress", "Ipv6Address"))
    return tuple(str(each) for each in found if each) or None


def was_taken_back(machine: Mapping[str, Any]) -> bool:
    """Return whether EC2 itself terminated this spot instance."""
    return machine.get("StateReason", {}).get("Code") in _TAKEN_BACK


def _detail(machine: Mapping[str, Any]) -> str:
    reason = machine.get("StateReason", {}).get("Message") or machine.get("StateTransitionReason") or ""
    stopped = str(machine["State"]["Name"]) in ("stopping", "stopped")
    return f"stopped, not terminated: {reason}" if stopped else str(reason)


def _ended_at(machine: Mapping[str, Any]) -> float | None:
    found = _REASON_TIME.search(str(machine.get("StateTransitionReason", "")))
    if found is None:
        return None
    return datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()


def _seconds(moment: datetime) -> float:
    return moment.timestamp()


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
