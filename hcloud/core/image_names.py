"""Names of container images. No more: agents, which have no pydantic, check them too."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

IMAGE_MOST: Final = 512
"""Upper limit of an image's name in characters."""
_PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]{{1,5}})?/)?{_PART}(?:/{_PART})*"
    r"(?P<tag>:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
IMAGE_LOGIN: Final = "HCLOUD_IMAGE_LOGIN"
"""Secret variable of a job: USER:PASSWORD for its image's registry. Machines use it, and take it from the program."""
SHORT_NAMES_IN: Final = "docker.io"
"""Where images without a registry's name are, as Docker has it."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePlace:
    """Where an image is fetched."""

    registry: str
    """Host, with its port if that is a special one."""
    repository: str
    reference: str
    """Tag or digest."""

    def full_name(self) -> str:
        """Return the whole name, which podman takes on any machine."""
        sign = "@" if self.reference.startswith("sha256:") else ":"
        return f"{self.registry}/{self.repository}{sign}{self.reference}"


def image_place(image: str) -> ImagePlace | None:
    """Return where an image is fetched; None: it is on the machine only (``localhost/...``)."""
    first, slash, rest = image.partition("/")
    has_host = bool(slash) and ("." in first or ":" in first or first == "localhost")
    registry, name = (first, rest) if has_host else (SHORT_NAMES_IN, image)
    if registry == "localhost":
        return None
    name, _, digest = name.partition("@")
    repository, _, tag = name.partition(":")
    if registry == SHORT_NAMES_IN and "/" not in repository:
        repository = f"library/{repository}"
    return ImagePlace(registry=registry, repository=repository, reference=digest or tag or "latest")
