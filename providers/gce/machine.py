"""One machine: the body that asks for it, and what is read of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from google.cloud import compute_v1 as compute

from hcloud.core.model import Market
from hcloud.provider import CloudInstance, CloudState, LaunchRequest
from providers.gce.names import (
    EXPIRY_LABEL,
    INSTANCE_LABEL,
    MARKET_LABEL,
    OWNER_LABEL,
    TOKEN_LABEL,
    labels_of,
    last_part,
    name_of,
    provider_id,
)
from providers.gce.settings import SHORTEST_RUN_S, GceSettings
from providers.gce.worker import worker_metadata

RESERVATION_KEY = "compute.googleapis.com/reservation-name"
LIMIT_NOTICE_S = 600.0
"""So long before Compute Engine's own limit a machine is told to be taken back, so that its jobs can end in time."""

STATES: Mapping[str, CloudState] = {
    "PENDING": CloudState.PENDING,
    "PROVISIONING": CloudState.PENDING,
    "STAGING": CloudState.PENDING,
    "RUNNING": CloudState.RUNNING,
    "REPAIRING": CloudState.RUNNING,  # billed, and may come back
    "PENDING_STOP": CloudState.RUNNING,  # still runs its programs; the end is announced
    "STOPPING": CloudState.STOPPING,
    "SUSPENDING": CloudState.STOPPING,
    "DEPROVISIONING": CloudState.STOPPING,
    "STOPPED": CloudState.TERMINATED,
    "SUSPENDED": CloudState.TERMINATED,
    "TERMINATED": CloudState.TERMINATED,
}
"""A stopped machine has ended for HCloud, which never starts one again; what is left of it is deleted."""

PriceOf = Callable[[str, str, Market], float]
"""Zone, type and market to USD per hour; 0 where it is not known."""


def body_of(request: LaunchRequest, settings: GceSettings, reservations: Sequence[str]) -> compute.Instance:
    """Return the machine to ask for. It depends on the request alone: a repeated request id needs the same body.

    ``reservations`` are the names of those to use, for a RESERVED offer that must name them.
    """
    zone = request.offer.zone
    return compute.Instance(
        name=name_of(request),
        description="Machine of an HCloud deployment; HCloud ends it",
        machine_type=f"zones/{zone}/machineTypes/{request.offer.instance_type.name}",
        labels=labels_of(request, settings.labels),
        disks=[_boot_disk(request, settings)],
        network_interfaces=[_network(request, settings)],
        scheduling=_scheduling(request, settings),
        metadata=_metadata(request, settings),
        tags=compute.Tags(items=list(settings.network_tags)) if settings.network_tags else None,
        service_accounts=_service_accounts(settings),
        shielded_instance_config=_shielded(settings) if settings.shielded else None,
        reservation_affinity=_affinity(request, settings, reservations),
    )


def _boot_disk(request: LaunchRequest, settings: GceSettings) -> compute.AttachedDisk:
    made = compute.AttachedDiskInitializeParams(
        source_image=settings.image,
        disk_size_gb=settings.disk_gib,
        disk_type=f"zones/{request.offer.zone}/diskTypes/{settings.disk_type}",
        labels={OWNER_LABEL: request.owner, INSTANCE_LABEL: request.instance_id},
    )
    return compute.AttachedDisk(boot=True, auto_delete=True, initialize_params=made)


def _network(request: LaunchRequest, settings: GceSettings) -> compute.NetworkInterface:
    outside = [compute.AccessConfig(name="External NAT", type_="ONE_TO_ONE_NAT")] if settings.external_ip else []
    if settings.subnetwork is None:
        return compute.NetworkInterface(network=settings.network, access_configs=outside)
    path = f"regions/{request.offer.region}/subnetworks/{settings.subnetwork}"
    path = settings.subnetwork if "/" in settings.subnetwork else path
    return compute.NetworkInterface(subnetwork=path, access_configs=outside)


def _scheduling(request: LaunchRequest, settings: GceSettings) -> compute.Scheduling:
    """When and how it ends by itself: always by deletion, and never restarted.

    Without a worker the expiry is Compute Engine's to keep. With one it is the worker's, because it can be renewed and
    Compute Engine's limit cannot; then the limit stands behind it.
    """
    spot = request.offer.market is Market.SPOT
    scheduling = compute.Scheduling(
        provisioning_model="SPOT" if spot else "STANDARD",
        on_host_maintenance="TERMINATE" if spot else None,
        automatic_restart=False,
        instance_termination_action="DELETE",
    )
    if request.bootstrap is None:
        scheduling.termination_time = datetime.fromtimestamp(request.expires_at, UTC).isoformat(timespec="milliseconds")
    else:
        scheduling.max_run_duration = compute.Duration(seconds=math.ceil(max(settings.longest_run_s, SHORTEST_RUN_S)))
    return scheduling


def _metadata(request: LaunchRequest, settings: GceSettings) -> compute.Metadata:
    items = {"block-project-ssh-keys": "TRUE", "enable-oslogin": "TRUE", "serial-port-enable": "FALSE"}
    items |= worker_metadata(request, settings)
    return compute.Metadata(items=[compute.Items(key=key, value=value) for key, value in sorted(items.items())])


def _service_accounts(settings: GceSettings) -> list[compute.ServiceAccount]:
    """Without an account a machine has no right to anything, which is right unless it fetches its keys."""
    if settings.service_account is None:
        return []
    scope = "https://www.googleapis.com/auth/cloud-platform"
    return [compute.ServiceAccount(email=settings.service_account, scopes=[scope])]


def _shielded(settings: GceSettings) -> compute.ShieldedInstanceConfig:
    return compute.ShieldedInstanceConfig(
        enable_vtpm=True, enable_integrity_monitoring=True, enable_secure_boot=settings.secure_boot
    )


def _affinity(
    request: LaunchRequest, settings: GceSettings, reservations: Sequence[str]
) -> compute.ReservationAffinity | None:
    """Reserved machines use a reservation; others leave them alone where reserved ones are on offer."""
    if Market.RESERVED not in settings.markets:
        return None
    if request.offer.market is not Market.RESERVED:
        return compute.ReservationAffinity(consume_reservation_type="NO_RESERVATION")
    if not reservations:
        return compute.ReservationAffinity(consume_reservation_type="ANY_RESERVATION")
    return compute.ReservationAffinity(
        consume_reservation_type="SPECIFIC_RESERVATION", key=RESERVATION_KEY, values=list(reservations)
    )


# ------------------------------------------------------------------------------------------------------------- reading
def told(machine: compute.Instance, price_of: PriceOf, now: float) -> CloudInstance | None:
    """Return a machine as HCloud knows it, or None where it does not carry all of our labels."""
    raw = compute.Instance.pb(machine)  # plain protobuf: reading thousands through the wrapper takes seconds
    labels, zone = dict(raw.labels), last_part(raw.zone)
    if not {OWNER_LABEL, INSTANCE_LABEL, TOKEN_LABEL} <= labels.keys():
        return None
    market = Market(labels[MARKET_LABEL]) if labels.get(MARKET_LABEL) in set(Market) else Market.ON_DEMAND
    state = STATES.get(raw.status, CloudState.RUNNING)
    expires_at = _expiry(labels)
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
    )


def _expiry(labels: Mapping[str, str]) -> float | None:
    text = labels.get(EXPIRY_LABEL, "")
    return float(text) if text.isdecimal() else None


def _announced_end(raw: compute.Instance, expires_at: float | None, now: float) -> float | None:
    """Return when the machine will be taken away, as far as that has been announced.

    By a graceful shutdown that has begun, by maintenance that ends the machine, or by Compute Engine's own limit where
    that is not the expiry and is near.
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
    """Return RFC 3339 text as Unix seconds, or None where there is none."""
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except ValueError:
        return None
