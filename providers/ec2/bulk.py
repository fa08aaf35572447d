"""Listings without their bulk: what HCloud never reads of a machine is dropped before the library turns it into values.

Networks, volumes and options are most of what EC2 tells of a machine, and most of the time that the library takes to
read a listing of thousands. They cannot be left out by asking.
"""

from __future__ import annotations

import re
from typing import Any

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
_BULK = re.compile("|".join(rf"<{name}>.*?</{name}>" for name in _UNREAD).encode(), re.DOTALL)
EVENT = "before-parse.ec2.DescribeInstances"


def drop_bulk(response_dict: dict[str, Any], **_: Any) -> None:
    """Handle botocore's event before an answer is read; what tells of an error stays as it is."""
    if response_dict["status_code"] == 200:
        response_dict["body"] = _BULK.sub(b"", response_dict["body"])
