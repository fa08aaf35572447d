"""Several EC2 regions as one provider, called in parallel. A region that fails does not affect the others."""

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
from hcloud.provider import CloudInstance, CommitmentUse, Finding, LaunchRequest, Listing
from providers.ec2.commitment_uses import of_all_regions
from providers.ec2.provider import Ec2Provider
from providers.ec2.settings import Ec2Settings

T = TypeVar("T")


class Ec2Regions:
    """One ``Ec2Provider`` per region. It remembers each instance's region; unknown ids go to every region."""

    def __init__(
        self, name: str, settings: Mapping[str, Ec2Settings], clock: Clock, owner: str, state_dir: str
    ) -> None:
        """Create the regions' providers. Raises ConfigError: a profile or state directory is unusable."""
        self.name = name
        self.regions = {
            region: Ec2Provider(name, each, clock, owner, str(Path(state_dir, region)))
            for region, each in settings.items()
        }
        self.launches_at_once = sum(each.launches_at_once for each in self.regions.values())
        self._lock = threading.Lock()
        self._region_of: dict[str, str] = {}
        self._offers: dict[str, tuple[Offer, ...]] = {}
        self._errors: dict[str, str] = {}

    def offers(self) -> tuple[Offer, ...]:
        """Return the offers of all regions; a region that fails contributes its last known ones."""
        results, errors = self._call_all(lambda each: each.offers())
        self._offers |= results
        self._errors = {region: str(error) for region, error in errors.items()}
        if not results:
            raise next(iter(errors.values()))
        return tuple(sorted((o for offers in self._offers.values() for o in offers), key=lambda each: each.key))

    def launch(self, request: LaunchRequest) -> CloudInstance:
        """Launch in the region of the offer. Raises LaunchRejected for a region that is not configured."""
        region = self.regions.get(request.offer.region)
        if region is None:
            raise LaunchRejected(
                f"{self.name} is not configured for {request.offer.region}; its regions: {', '.join(self.regions)}"
            )
        machine = region.launch(request)
        with self._lock:
            self._region_of[machine.provider_id] = request.offer.region
        return machine

    def instances(self, owner: str) -> Listing:
        """List the instances of all regions. A region that fails makes the listing incomplete."""
        results, errors = self._call_all(lambda each: each.instances(owner))
        if not results:
            raise next(iter(errors.values()))
        with self._lock:
            for region, listing in results.items():
                self._region_of.update((each.provider_id, region) for each in listing.instances)
        machines = sorted((m for listing in results.values() for m in listing.instances), key=lambda m: m.provider_id)
        return Listing(
            instances=tuple(machines),
            complete=not errors and all(each.complete for each in results.values()),
            unanswered=tuple(sorted({*errors, *(zone for each in results.values() for zone in each.unanswered)})),
            consistent_after_s=max(each.consistent_after_s for each in results.values()),
        )

    def terminate(self, provider_ids: Sequence[str]) -> None:
        """Terminate instances, each in its region."""
        with self._lock:
            known = {each: self._region_of.get(each) for each in provider_ids}
        ids_by_region = {
            name: [each for each, region in known.items() if region in (None, name)] for name in self.regions
        }
        _, errors = self._call_all(lambda each: each.terminate(ids_by_region[each.settings.region]))
        if errors:
            raise next(iter(errors.values()))

    def examine(self) -> Sequence[Finding]:
        """Check every region. Each finding names its region; one that fails hides no other."""
        results, errors = self._call_all(lambda each: each.examine())
        found = [replace(each, check=f"{each.check} {region}") for region in results for each in results[region]]
        do = "make sure that the region's endpoint is reachable"
        return [
            *found,
            *(Finding(check=f"region {name}", verdict="fail", finding=str(e), do=do) for name, e in errors.items()),
        ]

    def why_no_images(self) -> str:
        """Return why no region's instances can run container images; empty if one's may."""
        reasons = [each.why_no_images() for each in self.regions.values()]
        return reasons[0] if all(reasons) else ""

    def commitments(self) -> Mapping[str, Sequence[CommitmentUse]]:
        """Return the commitments of all regions by kind; those of all regions count once."""
        return of_all_regions([each.commitments() for each in self.regions.values()])

    def facts(self) -> Mapping[str, str]:
        """Return the facts of every region, with the region in each key."""
        found = {f"{region} {key}": text for region, each in self.regions.items() for key, text in each.facts().items()}
        return found | {f"{region} unread": text for region, text in self._errors.items()}

    def _call_all(self, call: Callable[[Ec2Provider], T]) -> tuple[dict[str, T], dict[str, ProviderError]]:
        """Call all regions in parallel; return results and errors by region."""
        results: dict[str, T] = {}
        errors: dict[str, ProviderError] = {}
        with ThreadPoolExecutor(len(self.regions), "ec2-regions") as pool:
            futures = {region: pool.submit(call, each) for region, each in self.regions.items()}
        for region, future in futures.items():
            try:
                results[region] = future.result()
            except ProviderError as error:
                errors[region] = error
        return results, errors
