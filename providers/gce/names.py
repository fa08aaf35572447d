"""Names, labels and ids of instances, all derived from the launch request.

The name is the second key that makes a launch idempotent, next to the request id: it follows from owner, instance and
token, and Compute Engine refuses a second instance of one name in a zone.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping

from hcloud.core.errors import LaunchRejected
from hcloud.provider import LaunchRequest
from providers.gce.settings import MAX_LABELS

OWNER_LABEL = "hcloud-owner"
INSTANCE_LABEL = "hcloud-instance"
TOKEN_LABEL = "hcloud-token"
EXPIRY_LABEL = "hcloud-expires-at"
MARKET_LABEL = "hcloud-market"
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_REQUESTS = uuid.UUID("6d5c6d52-6d1f-5d0a-9d0e-0d6f3f0d3b0e")


def name_of(request: LaunchRequest) -> str:
    """Return the instance's name: owner, instance id and ten digits of the token's digest.

    Raises LaunchRejected: owner, instance or token have characters that names or labels must not have.
    """
    digest = hashlib.sha256(f"{request.owner}/{request.instance_id}/{request.token}".encode()).hexdigest()[:10]
    name = f"{request.owner}-{request.instance_id}-{digest}"
    if not _NAME.fullmatch(name) or not _LABEL_VALUE.fullmatch(request.token) or not request.token:
        raise LaunchRejected(
            f"owner {request.owner!r}, instance {request.instance_id!r} and token {request.token!r} must be lower-case "
            "letters, digits and dashes, the first two at most 52 characters together: they form a name and labels"
        )
    return name


def request_id(project: str, request: LaunchRequest, failures: int) -> str:
    """Return the UUID of this launch request.

    Compute Engine answers a repeated id with the first operation, even if that failed. So a launch that is retried
    after ``failures`` failed operations needs a new id.
    """
    return str(uuid.uuid5(_REQUESTS, f"{project}/{request.owner}/{request.instance_id}/{request.token}/{failures}"))


def labels_of(request: LaunchRequest, more: Mapping[str, str]) -> dict[str, str]:
    """Return HCloud's labels, the configured ones, and as many of the request's tags as fit."""
    labels = {
        OWNER_LABEL: request.owner,
        INSTANCE_LABEL: request.instance_id,
        TOKEN_LABEL: request.token,
        EXPIRY_LABEL: str(round(request.expires_at)),
        MARKET_LABEL: request.offer.market.value,
    }
    tags = {f"hcloud-tag-{as_label(key)}"[:63]: as_label(value) for key, value in request.tags.items()}
    added = [(key, value) for key, value in {**more, **tags}.items() if key not in labels]
    return labels | dict(added[: MAX_LABELS - len(labels)])


def as_label(text: str) -> str:
    """Return text as a label value: invalid characters become dashes, at most 63."""
    return re.sub(r"[^a-z0-9_-]", "-", text.lower())[:63]


def provider_id(zone: str, name: str) -> str:
    """Return the provider id of an instance: ``ZONE/NAME``, since the zone is needed to reach it."""
    return f"{zone}/{name}"


def parse_provider_id(text: str, owner: str) -> tuple[str, str] | None:
    """Return zone and name, or None if the id cannot belong to an instance of this owner."""
    zone, _, name = text.partition("/")
    ours = re.fullmatch(re.escape(owner) + r"-.+-[0-9a-f]{10}", name)
    return (zone, name) if ours and re.fullmatch(r"[a-z0-9-]+", zone) else None


def last_part(link: str) -> str:
    """Return the last part of a resource's link."""
    return link.rpartition("/")[2]
