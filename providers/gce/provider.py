"""The Provider port on Compute Engine; the client library is loaded with the first call, not with the settings."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hcloud.core.clock import Clock
from hcloud.core.model import Offer
from hcloud.provider import CloudInstance, Finding, LaunchRequest, Listing
from providers.gce.settings import GceSettings, parse_settings, refuse_missing_prices

if TYPE_CHECKING:
    from providers.gce.project import ComputeProject


class GceProvider:
    """Machines of one Compute Engine project.

    Raises:
        ConfigError: a setting is unknown or wrong, the client library is not installed, a named file is missing.
    """

    def __init__(self, name: str, settings: Mapping[str, object], clock: Clock, owner: str, state_dir: str) -> None:
        """Take the settings; nothing is asked yet, and nothing is ever kept in ``state_dir``."""
        self.name, self.owner = name, owner
        self.settings: GceSettings = parse_settings(name, settings)
        refuse_missing_prices(name, self.settings)
        self.launches_at_once = self.settings.launches_at_once
        self._clock = clock
        self._lock = threading.Lock()
        self._built: ComputeProject | None = None

    @staticmethod
    def check_settings(name: str, settings: Mapping[str, object]) -> None:
        """Raise ConfigError as building would, and build nothing; the prices may still be missing."""
        parse_settings(name, settings)

    def offers(self) -> tuple[Offer, ...]:
        """Return every wanted type that has a price, by zone and market."""
        return self._project.offers()

    def launch(self, request: LaunchRequest) -> CloudInstance:
        """Launch a machine or find the one of this token; waits for its operation up to ``operation_wait_s``."""
        return self._project.launch(request)

    def instances(self, owner: str) -> Listing:
        """List an owner's machines in all zones of the project, and for ten minutes those that have ended."""
        return self._project.instances(owner)

    def terminate(self, provider_ids: Sequence[str]) -> None:
        """Ask to delete machines of this owner."""
        self._project.terminate(provider_ids)

    def examine(self) -> Sequence[Finding]:
        """Look the project over, without any effect: permissions one by one, quotas, clock."""
        return self._project.examine()

    def facts(self) -> Mapping[str, str]:
        """Say what is rented where, and what became known of commitments and of zones that do not answer."""
        settings = self.settings
        known = self._built.facts() if self._built is not None else {}
        return {
            "kind": f"Google Compute Engine, project {settings.project}, {', '.join(settings.zones)}",
            "endpoint": settings.endpoint,
            "prices": f"from {settings.prices_file}",
            "expiry": (
                "kept by the machine itself (worker and guard); whatever happens, Compute Engine deletes a machine "
                f"{settings.longest_run_s / 86400:g} days after its start"
            ),
            "interruption notice": "spot: about 30 s, seen by the machine itself",
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
