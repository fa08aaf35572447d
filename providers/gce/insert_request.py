"""The body of an ``instances.insert`` request: disks, network, scheduling, metadata, labels and reservations."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from google.cloud import compute_v1 as compute

from hcloud.core.model import Market
from hcloud.provider import LaunchRequest
from providers.gce.names import INSTANCE_LABEL, OWNER_LABEL, labels_of, name_of
from providers.gce.settings import SHORTEST_RUN_S, GceSettings
from providers.gce.worker_metadata import worker_metadata

RESERVATION_KEY = "compute.googleapis.com/reservation-name"


def body_of(request: LaunchRequest, settings: GceSettings, reservation: str | None) -> compute.Instance:
    """Return the instance to insert. Equal arguments give an equal body, which a repeated request id needs.

    ``reservation``: name of the reservation to use, if it is one that must be named.
    """
    zone = request.offer.zone
    shielded = compute.ShieldedInstanceConfig(
        enable_vtpm=True, enable_integrity_monitoring=True, enable_secure_boot=settings.secure_boot
    )
    return compute.Instance(
        name=name_of(request),
        description="Instance of an HCloud deployment; HCloud deletes it",
        machine_type=f"zones/{zone}/machineTypes/{request.offer.instance_type.name}",
        labels=labels_of(request, settings.labels),
        disks=[_boot_disk(request, settings)],
        network_interfaces=[_network(request, settings)],
        scheduling=_scheduling(request, settings),
        metadata=_metadata(request, settings),
        tags=compute.Tags(items=list(settings.network_tags)) if settings.network_tags else None,
        service_accounts=_service_accounts(settings),
        shielded_instance_config=shielded if settings.shielded else None,
        reservation_affinity=_affinity(request, settings, reservation),
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
    # Every instance deletes itself at its end and is never restarted. Without a worker, Compute Engine enforces the
    # expiry. With a worker, the worker does, because its expiry can be renewed and Compute Engine's limit cannot be
    # moved; the limit is then only a safety net.
    spot = request.offer.market is Market.SPOT
    # Instances with GPUs cannot be moved to another host.
    stays = request.offer.instance_type.capacity.gpus is not None
    scheduling = compute.Scheduling(
        provisioning_model="SPOT" if spot else "STANDARD",
        on_host_maintenance="TERMINATE" if spot or stays else None,
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
    # Without an account the instance has no permissions, and needs none.
    if settings.service_account is None:
        return []
    scope = "https://www.googleapis.com/auth/cloud-platform"
    return [compute.ServiceAccount(email=settings.service_account, scopes=[scope])]


def _affinity(
    request: LaunchRequest, settings: GceSettings, reservation: str | None
) -> compute.ReservationAffinity | None:
    """Return the reservation affinity. Launches of other markets must not consume reservations that are offered."""
    if Market.RESERVED not in settings.markets:
        return None
    if request.offer.market is not Market.RESERVED:
        return compute.ReservationAffinity(consume_reservation_type="NO_RESERVATION")
    if reservation is None:
        return compute.ReservationAffinity(consume_reservation_type="ANY_RESERVATION")
    return compute.ReservationAffinity(
        consume_reservation_type="SPECIFIC_RESERVATION", key=RESERVATION_KEY, values=[reservation]
    )
