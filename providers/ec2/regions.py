"""Several regions as one provider, asked at the same time; one that does not answer takes nothing from the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from hcloud.core.clock import Clock
from hcloud.core.errors import LaunchRejected, ProviderError
from hcloud.core.model import Offer
from hcloud.provider import CloudInstance, Finding, LaunchRequest, Listing
from providers.ec2.provider import Ec2Provider
from providers.ec2.settings import Ec2Settings

T = TypeVar("T")


class Ec2Regions:
    """One ``Ec2Provider`` per region. Which region an id is in is remembered; ids never seen are asked of all."""

    def __init__(
        self, name: str, settings: Mapping[str, Ec2Settings], clock: Clock, owner: str, state_dir: str
    ) -> None:
        """Raises ConfigError: a named profile or the state directory is not usable."""
        self.name = name
        self.regions = {
            region: Ec2Provider(name, each, clock, owner, str(Path(state_dir, region)))
            for region, each in settings.items()
        }
        self.launches_at_once = sum(each.launches_at_once for each in self.regions.values())
        self._lock = threading.Lock()
        self._region_of: dict[str, str] = {}
        self._offers: dict[str, tuple[Offer, ...]] = {}
        self._troubles: dict[str, str] = {}

    def offers(self) -> tuple[Offer, ...]:
        """Return the offers of all regions; those of one that does not answer are its last ones."""
        told, troubles = self._of_all(lambda each: each.offers())
        self._offers |= told
        self._troubles = {region: str(trouble) for region, trouble in troubles.items()}
        if not told:
            raise next(iter(troubles.values()))
        return tuple(sorted((o for offers in self._offers.values() for o in offers), key=lambda each: each.key))

    def launch(self, request: LaunchRequest) -> CloudInstance:
        """Launch in the region of the offer."""
        region = self.regions.get(request.offer.region)
        if region is None:
            raise LaunchRejected(f"{self.name} does not use {request.offer.region}; it uses {', '.join(self.regions)}")
        machine = region.launch(request)
        with self._lock:
            self._region_of[machine.provider_id] = request.offer.region
        return machine

    def instances(self, owner: str) -> Listing:
        """List the machines of all regions; one that does not answer makes the listing incomplete."""
        told, troubles = self._of_all(lambda each: each.instances(owner))
        if not told:
            raise next(iter(troubles.values()))
        with self._lock:
            for region, listing in told.items():
                self._region_of.update((each.provider_id, region) for each in listing.instances)
        machines = sorted((m for listing in told.values() for m in listing.instances), key=lambda m: m.provider_id)
        return Listing(
            instances=tuple(machines),
            complete=not troubles and all(each.complete for each in told.values()),
            unanswered=tuple(sorted({*troubles, *(zone for each in told.values() for zone in each.unanswered)})),
            consistent_after_s=max(each.consistent_after_s for each in told.values()),
        )

    def terminate(self, provider_ids: Sequence[str]) -> None:
        """Begin to end machines, each where it is."""
        with self._lock:
            known = {each: self._region_of.get(each) for each in provider_ids}
        wanted = {name: [each for each, region in known.items() if region in (None, name)] for name in self.regions}
        _, troubles = self._of_all(lambda each: each.terminate(wanted[each.settings.region]))
        if troubles:
            raise next(iter(troubles.values()))

    def examine(self) -> Sequence[Finding]:
        """Look every region over; each finding names its region, and one that is in trouble hides no other."""
        told, troubles = self._of_all(lambda each: each.examine())
        found = [replace(each, check=f"{each.check} {region}") for region in told for each in told[region]]
        do = "see that the region's endpoint is reached"
        return [
            *found,
            *(Finding(check=f"region {name}", verdict="fail", finding=str(e), do=do) for name, e in troubles.items()),
        ]

    def facts(self) -> Mapping[str, str]:
        """Say what each region says."""
        found = {f"{region} {key}": text for region, each in self.regions.items() for key, text in each.facts().items()}
        return found | {f"{region} unread": text for region, text in self._troubles.items()}

    def _of_all(self, ask: Callable[[Ec2Provider], T]) -> tuple[dict[str, T], dict[str, ProviderError]]:
        """Ask all regions at once; return answers and troubles by region."""
        told: dict[str, T] = {}
        troubles: dict[str, ProviderError] = {}
        with ThreadPoolExecutor(len(self.regions), "ec2-regions") as pool:
            asked = {region: pool.submit(ask, each) for region, each in self.regions.items()}
        for region, answer in asked.items():
            try:
                told[region] = answer.result()
            except ProviderError as trouble:
                troubles[region] = trouble
        return told, troubles
