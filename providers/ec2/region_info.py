"""What a region provides: subnets by zone, the machine image, and instance types with the zones that offer them."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hcloud.core.errors import ProviderUnavailable
from hcloud.core.model import InstanceType, Resources
from hcloud.core.paging import checked
from hcloud.core.resources import Gpus, gpu_kind
from providers.ec2.clients import Clients
from providers.ec2.errors import Call, translating_errors
from providers.ec2.settings import Ec2Settings

SYSTEM_MEMORY_SHARE = 0.06
SYSTEM_MEMORY_MIB_MIN = 320
"""Memory that is not available to units: kernel, system services and the worker use it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The parts of a machine image that launches need."""

    id: str
    root_device: str
    smallest_disk_gib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionInfo:
    """A region as last read."""

    subnets: Mapping[str, str]
    """Subnet id by zone."""
    image: Image
    types: Mapping[str, InstanceType]
    """Usable instance types by name."""
    offered: frozenset[tuple[str, str]]
    """Pairs of zone and type that the region offers."""


def read_region_info(clients: Clients, settings: Ec2Settings, provider: str) -> RegionInfo:
    """Read subnets, image and types. Raises Throttled;

    ProviderUnavailable, also if a configured resource does not exist.
    """
    with translating_errors(Call.READ, f"{provider}: reading subnets, image and types of {settings.region}"):
        subnets = _subnets(clients, settings, provider)
        return RegionInfo(
            subnets=subnets,
            image=_image(clients, settings, provider),
            types=_types(clients, settings, provider),
            offered=frozenset(_offered(clients, settings, subnets)),
        )


def _subnets(clients: Clients, settings: Ec2Settings, provider: str) -> dict[str, str]:
    request: dict[str, Any] = {"Filters": [{"Name": "default-for-az", "Values": ["true"]}]}
    if settings.subnets:
        request = {"SubnetIds": list(settings.subnets)}
    pages = clients.reading().get_paginator("describe_subnets").paginate(**request)
    found: dict[str, str] = {}
    for subnet in sorted(
        (each for page in checked(pages, "the list of subnets") for each in page["Subnets"]),
        key=lambda each: str(each["SubnetId"]),
    ):
        zone = str(subnet["AvailabilityZone"])
        if not settings.zones or zone in settings.zones:
            found.setdefault(zone, str(subnet["SubnetId"]))
    if not found:
        raise ProviderUnavailable(f"{provider}: no subnet in {settings.region} for the configured zones; set `subnets`")
    return found


def _image(clients: Clients, settings: Ec2Settings, provider: str) -> Image:
    image_id = settings.image_or_default
    if image_id.startswith("ssm:"):
        name = image_id.removeprefix("ssm:")
        image_id = clients.reading("ssm").get_parameter(Name=name)["Parameter"]["Value"]
    images = clients.reading().describe_images(ImageIds=[image_id])["Images"]
    if not images:
        raise ProviderUnavailable(f"{provider}: image {image_id} does not exist in {settings.region}")
    image = images[0]
    if image.get("Architecture", settings.architecture) != settings.architecture:
        raise ProviderUnavailable(
            f"{provider}: image {image_id} is for {image['Architecture']}, not {settings.architecture}"
        )
    root = str(image.get("RootDeviceName") or "/dev/xvda")
    disks = {each.get("DeviceName"): each.get("Ebs", {}) for each in image.get("BlockDeviceMappings", ())}
    return Image(id=image_id, root_device=root, smallest_disk_gib=int(disks.get(root, {}).get("VolumeSize") or 1))


def _types(clients: Clients, settings: Ec2Settings, provider: str) -> dict[str, InstanceType]:
    filters = [
        {"Name": "instance-type", "Values": list(settings.instance_types)},
        {"Name": "processor-info.supported-architecture", "Values": [settings.architecture]},
    ]
    pages = clients.reading().get_paginator("describe_instance_types").paginate(Filters=filters)
    described = {
        each["InstanceType"]: each for page in checked(pages, "the list of types") for each in page["InstanceTypes"]
    }
    return {
        name: _type(each, settings, provider) for name, each in sorted(described.items()) if _usable(each, settings)
    }


def _usable(description: Mapping[str, Any], settings: Ec2Settings) -> bool:
    # Checked again: an endpoint that ignores a filter must not widen the offers.
    named = any(fnmatch.fnmatchcase(description["InstanceType"], pattern) for pattern in settings.instance_types)
    right = settings.architecture in description.get("ProcessorInfo", {}).get("SupportedArchitectures", ())
    small = description["VCpuInfo"]["DefaultVCpus"] <= settings.max_vcpus
    return named and right and small and not description.get("BareMetal", False)


def _type(description: Mapping[str, Any], settings: Ec2Settings, provider: str) -> InstanceType:
    memory_mib = int(description["MemoryInfo"]["SizeInMiB"])
    system_mib = max(SYSTEM_MEMORY_MIB_MIN, round(memory_mib * SYSTEM_MEMORY_SHARE))
    gpus = _gpus(description)
    labels = {
        "family": str(description["InstanceType"]).partition(".")[0],
        "architecture": settings.architecture,
        "clock_ghz": str(description.get("ProcessorInfo", {}).get("SustainedClockSpeedInGhz", "")),
        "network": str(description.get("NetworkInfo", {}).get("NetworkPerformance", "")),
        "burstable": "yes" if description.get("BurstablePerformanceSupported") else "",
        "gpus": str(gpus.count) if gpus is not None else "",
        "spot": "yes" if "spot" in description.get("SupportedUsageClasses", ("spot",)) else "no",
    }
    return InstanceType(
        provider=provider,
        name=str(description["InstanceType"]),
        capacity=Resources(
            vcpus=float(description["VCpuInfo"]["DefaultVCpus"]),
            memory_mib=max(64, memory_mib - system_mib),
            disk_gib=settings.disk_gib - settings.system_disk_gib,
            gpus=gpus,
        ),
        boot_delay_s=settings.boot_delay_s,
        labels={**settings.tags, **{key: value for key, value in labels.items() if value}},
    )


def _gpus(description: Mapping[str, Any]) -> Gpus | None:
    """Return a type's GPUs; None if it has none, or others than NVIDIA's, which agents do not know."""
    found = [each for each in description.get("GpuInfo", {}).get("Gpus", ()) if each.get("Count", 0) > 0]
    if not found or any(str(each.get("Manufacturer", "")).lower() != "nvidia" for each in found):
        return None
    kind, count = str(found[0].get("Name", "")), sum(int(each["Count"]) for each in found)
    memory_mib = min(int(each.get("MemoryInfo", {}).get("SizeInMiB", 0)) for each in found)
    return Gpus(count=count, kind=gpu_kind(kind), memory_gib=round(memory_mib / 1024.0, 3))


def _offered(clients: Clients, settings: Ec2Settings, subnets: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    pages = (
        clients.reading()
        .get_paginator("describe_instance_type_offerings")
        .paginate(
            LocationType="availability-zone",
            Filters=[
                {"Name": "location", "Values": sorted(subnets)},
                {"Name": "instance-type", "Values": list(settings.instance_types)},
            ],
        )
    )
    for page in checked(pages, "the list of types by zone"):
        for each in page["InstanceTypeOfferings"]:
            if each["Location"] in subnets:
                yield str(each["Location"]), str(each["InstanceType"])
