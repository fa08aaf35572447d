"""Provider port for Compute Engine. The client library is imported with the first call, not with the settings."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hcloud.core.clock import Clock
from hcloud.core.model import Offer
from hcloud.provider import CloudInstance, CommitmentUse, Finding, LaunchRequest, Listing
from providers.gce.settings import GceSettings, parse_settings, refuse_missing_prices

if TYPE_CHECKING:
    from providers.gce.project import ComputeProject


class GceProvider:
    """Instances of one Compute Engine project.

    Raises ConfigError: a setting is unknown or wrong, the client library is not installed, or a file is missing.
    """

    def __init__(self, name: str, settings: Mapping[str, object], clock: Clock, owner: str, state_dir: str) -> None:
        """Check the settings, without any call. Nothing is stored in ``state_dir``."""
        self.name, self.owner = name, owner
        self.settings: GceSettings = parse_settings(name, settings)
        refuse_missing_prices(name, self.settings)
        self.launches_at_once = self.settings.launches_at_once
        self._clock = clock
        self._lock = threading.Lock()
        self._built: ComputeProject | None = None

    @staticmethod
    def check_settings(name: str, settings: Mapping[str, object]) -> None:
        """Raise ConfigError as the constructor would; the price file may be missing."""
        parse_settings(name, settings)

    def offers(self) -> tuple[Offer, ...]:
        """Return an offer for every selected type with a price, by zone and market."""
        return self._project.offers()

    def launch(self, request: LaunchRequest) -> CloudInstance:
        """Launch an instance or find the one of this token; waits up to ``operation_wait_s`` for its operation."""
        return self._project.launch(request)

    def instances(self, owner: str) -> Listing:
        """List an owner's instances in all zones of the project, and for ten minutes those that ended."""
        return self._project.instances(owner)

    def terminate(self, provider_ids: Sequence[str]) -> None:
        """Request the deletion of instances of this owner."""
        self._project.terminate(provider_ids)

    def examine(self) -> Sequence[Finding]:
        """Check permissions, quotas and clock, without side effects."""
        return self._project.examine()

    def why_no_images(self) -> str:
        """Return that public images of Debian and Ubuntu have no podman and none is installed; empty for others."""
        public = self.settings.image.startswith(("projects/debian-cloud/", "projects/ubuntu-os-cloud/"))
        has_podman = not public or self.settings.worker.container_images
        return "" if has_podman else "its public image has no podman; set `worker.container_images: true`"

    def commitments(self) -> Mapping[str, Sequence[CommitmentUse]]:
        """Return reservations and commitments by kind, without any call; unread kinds are absent."""
        return self._built.commitments() if self._built is not None else {}

    def facts(self) -> Mapping[str, str]:
        """Return project, zones, prices and expiry, and what is known of commitments and failing zones."""
        settings = self.settings
        known = self._built.facts() if self._built is not None else {}
        return {
            "kind": f"Google Compute Engine, project {settings.project}, {', '.join(settings.zones)}",
            "endpoint": settings.endpoint,
            "prices": f"from {settings.prices_file}",
            "expiry": (
                "enforced by the instance itself (worker and guard); as a last resort, Compute Engine deletes it "
                f"{settings.longest_run_s / 86400:g} days after its start"
            ),
            "interruption notice": "spot: about 30 s, seen by the instance itself",
            "public address": "yes" if settings.external_ip else "no",
            **known,
        }

    @property
    def _project(self) -> ComputeProject:
        with self._lock:
            if self._built is None:
                from providers.gce.project import ComputeProject

                self._built = ComputeProject(self.name, self.settings, self._clock, self.owner)
            return self._built
