"""Listings without their bulk: of each machine only what HCloud reads is turned into messages.

A machine carries its user data, disks and networks; of ten thousand that is a hundred megabytes, and turning them
into messages takes ten seconds. Whether Compute Engine would leave fields of aggregated lists out by itself is not sure
enough to rely on. So the text is read once as it is, and unused parts are dropped before the library sees it.
"""

from __future__ import annotations

import json
from typing import Any

import requests

READ = frozenset(
    {
        "creationTimestamp",
        "labels",
        "lastStopTimestamp",
        "machineType",
        "name",
        "resourceStatus",
        "scheduling",
        "status",
        "statusMessage",
        "zone",
    }
)
_LIST = "/aggregated/instances"
_READ_OF_SCHEDULING = ("onHostMaintenance", "provisioningModel")


def _trimmed(machine: dict[str, Any]) -> dict[str, Any]:
    """Return what is read of a machine."""
    kept = {key: value for key, value in machine.items() if key in READ}
    if "scheduling" in kept:
        kept["scheduling"] = {key: kept["scheduling"][key] for key in _READ_OF_SCHEDULING if key in kept["scheduling"]}
    return kept


def drop_unread_fields(response: requests.Response, *_: Any, **__: Any) -> requests.Response:
    """Hook of ``requests`` on responses. What is not a whole listing is left as it is, for the library to judge.

    Raises requests.RequestException: the answer broke off.
    """
    if response.status_code != 200 or not response.url.partition("?")[0].endswith(_LIST):
        return response
    try:
        listing = json.loads(response.content)
        for scope in listing.get("items", {}).values():
            scope["instances"] = [_trimmed(each) for each in scope.get("instances", ())]
    except (ValueError, AttributeError, TypeError):
        return response
    response._content = json.dumps(listing).encode()  # what `content` gives from now on
    return response
