"""How Compute Engine words things: links, times, errors and the little that machines are made of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

BASE = "https://www.googleapis.com/compute/v1/"
PACIFIC = timezone(timedelta(hours=-8))
Json = dict[str, Any]

TYPES: Mapping[str, tuple[int, int]] = {
    "e2-medium": (2, 4096),
    "e2-standard-2": (2, 8192),
    "e2-standard-4": (4, 16384),
    "n2-standard-2": (2, 8192),
    "c2-standard-4": (4, 16384),
    "t2a-standard-1": (1, 4096),
    "g2-standard-4": (4, 16384),
    "a2-highgpu-2g": (24, 174080),
    "ct5lp-hightpu-1t": (24, 49152),
}
"""Predefined types: vCPUs and MB."""
ACCELERATORS: Mapping[str, tuple[str, int]] = {
    "g2-standard-4": ("nvidia-l4", 1),
    "a2-highgpu-2g": ("nvidia-tesla-a100", 2),
    "ct5lp-hightpu-1t": ("ct5lp", 1),
}
"""What types bring beside processors: kind and count."""
CUSTOM = re.compile(r"(?:(e2|n1|n2|n2d)-)?custom-(\d+)-(\d+)")


class Refusal(Exception):
    """An HTTP error as the API words it."""

    def __init__(self, code: int, reason: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.code, self.headers = code, dict(headers or {})
        self.body: Json = {
            "error": {
                "code": code,
                "message": message,
                "errors": [{"message": message, "domain": "global", "reason": reason}],
            }
        }


def invalid(message: str) -> Refusal:
    """A request that is wrong in itself."""
    return Refusal(400, "invalid", message)


def missing(what: str) -> Refusal:
    """A thing that does not exist."""
    return Refusal(404, "notFound", f"The resource '{what}' was not found")


def stamp(at: float) -> str:
    """RFC 3339 as the API writes it: Pacific time with milliseconds."""
    return datetime.fromtimestamp(at, PACIFIC).isoformat(timespec="milliseconds")


def machine_type(zone_link: str, name: str) -> Json | None:
    """A machine type by name, predefined or custom."""
    custom = CUSTOM.fullmatch(name)
    found = (int(custom[2]), int(custom[3])) if custom else TYPES.get(name)
    if found is None:
        return None
    return {
        "kind": "compute#machineType",
        "id": str(1000 + sum(map(ord, name))),
        "name": name,
        "guestCpus": found[0],
        "memoryMb": found[1],
        "isSharedCpu": name == "e2-medium",
        "architecture": "ARM64" if name.startswith("t2a") else "X86_64",
        "zone": zone_link.rpartition("/")[2],
        "selfLink": f"{zone_link}/machineTypes/{name}",
        **_accelerators(name),
    }


def _accelerators(name: str) -> Json:
    if name not in ACCELERATORS:
        return {}
    kind, count = ACCELERATORS[name]
    return {"accelerators": [{"guestAcceleratorType": kind, "guestAcceleratorCount": count}]}


def stockout(project: str, zone: str, type_name: str, code: str) -> Json:
    """The error of an operation that found no room; the order of details is the one seen in the field."""
    message = (
        f"The zone 'projects/{project}/zones/{zone}' does not have enough resources available to fulfill the request.  "
        "Try a different zone, or try again later."
    )
    details: list[Json] = [
        {"help": {"links": [{"description": "Troubleshooting", "url": "https://cloud.google.com/compute/docs"}]}},
        {"localizedMessage": {"locale": "en-US", "message": f"A {type_name} VM is currently unavailable in {zone}."}},
        {
            "errorInfo": {
                "reason": "resource_availability",
                "domain": "compute.googleapis.com",
                "metadatas": {"zone": zone, "vmType": type_name, "attachment": "", "zonesAvailable": ""},
            }
        },
    ]
    return {"code": code, "message": message, "errorDetails": details if code.endswith("DETAILS") else []}


def quota_exceeded(region: str) -> Json:
    """The error of an operation that met a quota."""
    return {"code": "QUOTA_EXCEEDED", "message": f"Quota 'CPUS' exceeded.  Limit: 24.0 in region {region}."}


def reservation_full(name: str) -> Json:
    """The error of an operation whose reservation has no free capacity."""
    message = f"Specified reservation '{name}' does not have available resources for the request."
    return {"code": "CONDITION_NOT_MET", "message": message}


def warning(scope: str, code: str, message: str) -> Json:
    """A warning in place of a scope's list."""
    return {"warning": {"code": code, "message": message, "data": [{"key": "scope", "value": scope}]}}
