"""Maps a Compute Engine instance to a ``CloudInstance``: state, times, price and announced preemption."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from google.cloud import compute_v1 as compute

from hcloud.core.model import Market
from hcloud.provider import CloudInstance, CloudState
from providers.gce.names import (
    EXPIRY_LABEL,
    INSTANCE_LABEL,
    MARKET_LABEL,
    OWNER_LABEL,
    TOKEN_LABEL,
    last_part,
    provider_id,
)

LIMIT_NOTICE_S = 600.0
"""How long before Compute Engine's own time limit an instance is reported as preempted, so that its jobs can move."""

STATES: Mapping[str, CloudState] = {
    "PENDING": CloudState.PENDING,
    "PROVISIONING": CloudState.PENDING,
    "STAGING": CloudState.PENDING,
    "RUNNING": CloudState.RUNNING,
    "REPAIRING": CloudState.RUNNING,  # billed, and may recover
    "PENDING_STOP": CloudState.RUNNING,  # still runs; its end is announced
    "STOPPING": CloudState.STOPPING,
    "SUSPENDING": CloudState.STOPPING,
    "DEPROVISIONING": CloudState.STOPPING,
    "STOPPED": CloudState.TERMINATED,
    "SUSPENDED": CloudState.TERMINATED,
    "TERMINATED": CloudState.TERMINATED,
}
"""A stopped instance counts as terminated: HCloud never restarts one, and deletes what is left of it."""

PriceOf = Callable[[str, str, Market], float]
"""Maps zone, type and market to USD per hour; 0 if unknown."""


def to_cloud_instance(machine: compute.Instance, price_of: PriceOf, now: float) -> CloudInstance | None:
    """Return an instance as a ``CloudInstance``, or None if it lacks any of HCloud's labels."""
    raw = compute.Instance.pb(machine)  # plain protobuf: reading thousands through the wrapper takes seconds
    labels, zone = dict(raw.labels), last_part(raw.zone)
    if not {OWNER_LABEL, INSTANCE_LABEL, TOKEN_LABEL} <= labels.keys():
        return None
    market = Market(labels[MARKET_LABEL]) if labels.get(MARKET_LABEL) in set(Market) else Market.ON_DEMAND
    state = STATES.get(raw.status, CloudState.RUNNING)
    expiry = labels.get(EXPIRY_LABEL, "")
    expires_at = float(expiry) if expiry.isdecimal() else None
    ended_at = (seconds(raw.last_stop_timestamp) or now) if state is CloudState.TERMINATED else None
    return CloudInstance(
        provider_id=provider_id(zone, raw.name),
        instance_id=labels[INSTANCE_LABEL],
        token=labels[TOKEN_LABEL],
        owner=labels[OWNER_LABEL],
        state=state,
        zone=zone,
        launched_at=seconds(raw.creation_timestamp) or now,
        price_usd_per_h=price_of(zone, last_part(raw.machine_type), market),
        terminated_at=ended_at,
        preempt_at=None if state is CloudState.TERMINATED else _announced_end(raw, expires_at, now),
        expires_at=expires_at,
        detail=raw.status_message or raw.status.lower(),
        addresses=_addresses(raw),
        market=market,
    )


def _addresses(raw: compute.Instance) -> tuple[str, ...] | None:
    found = [
        address
        for each in raw.network_interfaces
        for address in (each.network_i_p, each.ipv6_address, *(access.nat_i_p for access in each.access_configs))
    ]
    return tuple(filter(None, found)) or None


def _announced_end(raw: compute.Instance, expires_at: float | None, now: float) -> float | None:
    """Return the announced end of the instance, or None.

    That is the end of a graceful shutdown in progress, maintenance that terminates the instance, or Compute
    Engine's own time limit if that is near and is not the expiry.
    """
    status = raw.resource_status
    shutdown = status.shutdown_details
    if raw.status == "PENDING_STOP" and shutdown.request_timestamp:
        return (seconds(shutdown.request_timestamp) or now) + shutdown.max_duration.seconds
    if raw.scheduling.on_host_maintenance == "TERMINATE" and status.upcoming_maintenance.window_start_time:
        return seconds(status.upcoming_maintenance.window_start_time)
    limit_at = seconds(status.scheduling.termination_timestamp)
    if limit_at is None or (expires_at is not None and limit_at < expires_at + 60) or now < limit_at - LIMIT_NOTICE_S:
        return None
    return limit_at


def seconds(timestamp: str) -> float | None:
    """Return RFC 3339 text as Unix seconds, or None if it is not a time."""
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except ValueError:
        return None
