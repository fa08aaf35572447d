"""Names of container images. No more: agents, which have no pydantic, check them too."""

from __future__ import annotations

import re
from typing import Final

IMAGE_MOST: Final = 512
"""Upper limit of an image's name in characters."""
_PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]{{1,5}})?/)?{_PART}(?:/{_PART})*"
    r"(?P<tag>:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_TRANSPORTS = (
    "containers-storage", "dir", "docker", "docker-archive", "docker-daemon", "oci", "oci-archive", "ostree", "sif",
    "tarball",
)  # fmt: skip


def image_name(text: str) -> str:
    """Return a container image's name such as ``debian:12`` or ``registry.example.org/team/tool@sha256:...``.

    Raises:
        ValueError: not a name; it could be an option, or a path on the machine that fetches it.
    """
    shown = ascii(text if len(text) <= 60 else text[:57] + "...")
    match = _IMAGE.fullmatch(text) if len(text) <= IMAGE_MOST else None
    if match is None:
        raise ValueError(f"must be an image such as debian:12 or registry.example.org/team/tool:1.2, not {shown}")
    if match["tag"] and text[: match.start("tag")] in _TRANSPORTS:
        raise ValueError(f"must be an image's name without a transport such as dir:, not {shown}")
    return text
