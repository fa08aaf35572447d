"""Listings without their bulk: what HCloud never reads of a machine is dropped before the library turns it into values.

Networks, volumes and options are most of EC2's description of a machine, and most of the time that the library takes to
read a listing of thousands. They cannot be left out by asking. What is left out is first a few large groups, then
every single value that is not among those that are read; and the library is given a description of machines that knows
no more than that, because it looks for everything that is described.
"""

from __future__ import annotations

import re
from typing import Any

from botocore.loaders import Loader

_UNREAD = (
    "networkInterfaceSet",
    "blockDeviceMapping",
    "groupSet",
    "productCodes",
    "privateDnsNameOptions",
    "metadataOptions",
    "maintenanceOptions",
    "hibernationOptions",
    "enclaveOptions",
    "networkPerformanceOptions",
    "capacityReservationSpecification",
    "iamInstanceProfile",
    "monitoring",
)
"""None of these lies within another of its name."""
_READ = (
    "instanceId",
    "instanceType",
    "instanceLifecycle",
    "launchTime",
    "availabilityZone",
    "capacityReservationId",
    "coreCount",
    "threadsPerCore",
    "reason",
    "code",
    "message",
    "name",
    "key",
    "value",
    "nextToken",
    "requestId",
)
_BULK = re.compile("|".join(rf"<{name}>.*?</{name}>" for name in _UNREAD).encode(), re.DOTALL)
_LEAF = re.compile(rf"<(?!(?:{'|'.join(_READ)})>)([A-Za-z]+)>[^<]*</\1>\s*".encode())
"""A value, not a group: text holds no ``<`` of its own. Empty lists (``<reservationSet/>``) are none."""
_MEMBERS = (
    "CapacityReservationId",
    "CpuOptions",
    "InstanceId",
    "InstanceLifecycle",
    "InstanceType",
    "LaunchTime",
    "Placement",
    "State",
    "StateReason",
    "StateTransitionReason",
    "Tags",
)
PARSE_EVENT = "before-parse.ec2.DescribeInstances"


def drop_unread_fields(response_dict: dict[str, Any], **_: Any) -> None:
    """Handle botocore's event before an answer is read; an error stays as it is."""
    if response_dict["status_code"] == 200:
        response_dict["body"] = _LEAF.sub(b"", _BULK.sub(b"", response_dict["body"]))


class TrimmedModels(Loader):
    """The library's descriptions of services, where an EC2 machine has only what HCloud reads of it."""

    def load_service_model(self, service_name: str, type_name: str, api_version: str | None = None) -> Any:
        """Return a description; EC2's is changed in a copy, because the library keeps what it has read."""
        model = super().load_service_model(service_name, type_name, api_version)
        if (service_name, type_name) != ("ec2", "service-2"):
            return model
        machine = model["shapes"]["Instance"]
        members = {name: machine["members"][name] for name in _MEMBERS}
        return {**model, "shapes": {**model["shapes"], "Instance": {**machine, "members": members}}}
