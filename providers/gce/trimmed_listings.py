"""Shortens listings of instances before the client library parses them.

An instance carries its user data, disks and networks. For ten thousand instances that is a hundred megabytes, and
parsing takes ten seconds. Field masks of aggregated lists are not reliable enough. So the JSON is parsed once here, and
fields that HCloud does not read are removed before the library sees it.
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
        "networkInterfaces",
        "resourceStatus",
        "scheduling",
        "status",
        "statusMessage",
        "zone",
    }
)
_LIST = "/aggregated/instances"
_READ_OF_INTERFACES = ("networkIP", "ipv6Address", "accessConfigs")
_READ_OF_SCHEDULING = ("onHostMaintenance", "provisioningModel")


def _trimmed(machine: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in machine.items() if key in READ}
    if "networkInterfaces" in kept:
        kept["networkInterfaces"] = [
            {key: each[key] for key in _READ_OF_INTERFACES if key in each} for each in kept["networkInterfaces"]
        ]
    if "scheduling" in kept:
        kept["scheduling"] = {key: kept["scheduling"][key] for key in _READ_OF_SCHEDULING if key in kept["scheduling"]}
    return kept


def drop_unread_fields(response: requests.Response, *_: Any, **__: Any) -> requests.Response:
    """Trim a listing; a response hook of ``requests``. Anything but a complete listing is returned unchanged.

    Raises requests.RequestException: the response was cut off.
    """
    if response.status_code != 200 or not response.url.partition("?")[0].endswith(_LIST):
        return response
    try:
        listing = json.loads(response.content)
        for scope in listing.get("items", {}).values():
            scope["instances"] = [_trimmed(each) for each in scope.get("instances", ())]
    except (ValueError, AttributeError, TypeError):
        return response
    response._content = json.dumps(listing).encode()  # the value of `content` from now on
    return response
