"""Shortens DescribeInstances responses before botocore parses them.

Networks, volumes and options are most of an instance's description, and most of the time that botocore takes to parse
thousands of instances. EC2 offers no way to leave them out of the response. So large groups are cut from the XML first,
then every single value that HCloud does not read. botocore also gets a service model without the unread members,
because it looks for every member that the model describes.
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
"""Groups that are removed whole. No group contains another of the same name, so a lazy match is safe."""
_READ = (
    "instanceId",
    "instanceType",
    "ipAddress",
    "ipv6Address",
    "privateIpAddress",
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
"""One element with text only, which never contains ``<``. Empty lists (``<reservationSet/>``) do not match."""
_MEMBERS = (
    "CapacityReservationId",
    "CpuOptions",
    "InstanceId",
    "InstanceLifecycle",
    "InstanceType",
    "Ipv6Address",
    "LaunchTime",
    "Placement",
    "PrivateIpAddress",
    "PublicIpAddress",
    "State",
    "StateReason",
    "StateTransitionReason",
    "Tags",
)
PARSE_EVENT = "before-parse.ec2.DescribeInstances"


def drop_unread_fields(response_dict: dict[str, Any], **_: Any) -> None:
    """Remove unread fields from a response body; an event handler of botocore. Error responses stay unchanged."""
    if response_dict["status_code"] == 200:
        response_dict["body"] = _LEAF.sub(b"", _BULK.sub(b"", response_dict["body"]))


class TrimmedModels(Loader):
    """Loads botocore's service models, with an EC2 ``Instance`` that has only the members that HCloud reads."""

    def load_service_model(self, service_name: str, type_name: str, api_version: str | None = None) -> Any:
        """Return a service model. EC2's is a modified copy, because botocore caches the original."""
        model = super().load_service_model(service_name, type_name, api_version)
        if (service_name, type_name) != ("ec2", "service-2"):
            return model
        machine = model["shapes"]["Instance"]
        members = {name: machine["members"][name] for name in _MEMBERS}
        return {**model, "shapes": {**model["shapes"], "Instance": {**machine, "members": members}}}
