"""Which permission each request needs, as the API's reference says ("IAM permissions" of each method)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.providers.gce.compute import Seen

OF_METHOD = {
    "instances.get": "compute.instances.get",
    "instances.delete": "compute.instances.delete",
    "instances.aggregatedList": "compute.instances.list",
    "zoneOperations.get": "compute.zoneOperations.get",
    "zoneOperations.list": "compute.zoneOperations.list",
    "machineTypes.get": "compute.machineTypes.get",
    "machineTypes.list": "compute.machineTypes.list",
    "regions.get": "compute.regions.get",
    "reservations.aggregatedList": "compute.reservations.list",
    "firewalls.list": "compute.firewalls.list",
    "routers.aggregatedList": "compute.routers.list",
    "regionCommitments.aggregatedList": "compute.commitments.list",
}


def needed(requests: Iterable[Seen]) -> set[str]:
    """Return the permissions that were needed for all of these requests."""
    found: set[str] = set()
    for each in requests:
        found |= set(_insert(each)) if each.method == "instances.insert" else {OF_METHOD[each.method]}
    return found


def _insert(seen: Seen) -> Iterator[str]:
    """An insert needs a permission for every part that it sets."""
    body = seen.body
    yield "compute.instances.create"
    if body.get("labels"):
        yield "compute.instances.setLabels"
    if body.get("metadata", {}).get("items"):
        yield "compute.instances.setMetadata"
    if body.get("tags", {}).get("items"):
        yield "compute.instances.setTags"
    if body.get("serviceAccounts"):
        yield "compute.instances.setServiceAccount"
    for disk in body.get("disks", []):
        made = disk.get("initializeParams", {})
        yield "compute.disks.create"
        if made.get("labels"):
            yield "compute.disks.setLabels"
        if not made.get("sourceImage", "").startswith("projects/ubuntu-os-cloud/"):
            yield "compute.images.useReadOnly"
    for interface in body.get("networkInterfaces", []):
        yield "compute.subnetworks.use" if interface.get("subnetwork") else "compute.networks.use"
        if interface.get("accessConfigs"):
            yield "compute.subnetworks.useExternalIp"
