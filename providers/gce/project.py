"""Offers, launches, listings and terminations of one owner's instances in one project."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from hcloud.core.clock import Clock
from hcloud.core.errors import OutcomeUnknown, ProviderError, ProviderUnavailable, Throttled
from hcloud.core.model import Market, Offer
from hcloud.provider import CloudInstance, CloudState, CommitmentUse, Finding, LaunchRequest, Listing
from providers.gce.account_checks import check_project
from providers.gce.api import AggregatedList, Api
from providers.gce.catalog import GceCatalog
from providers.gce.ended_instances import EndedInstances
from providers.gce.instance_mapping import to_cloud_instance
from providers.gce.launch import Launcher
from providers.gce.names import OWNER_LABEL, parse_provider_id
from providers.gce.prices import PriceFile
from providers.gce.settings import GceSettings

CALLS_AT_ONCE = 8
MAX_DELETED_PER_LISTING = 20
"""Stopped instances deleted per listing; the next listing deletes more."""


class ComputeProject:
    """Implements the provider port with the API. Thread-safe."""

    def __init__(self, name: str, settings: GceSettings, clock: Clock, owner: str) -> None:
        self._name, self._settings, self._clock, self._owner = name, settings, clock, owner
        self._api = Api(settings, clock)
        self._prices = PriceFile(settings.prices_file)
        self._catalog = GceCatalog(self._api, settings, self._prices, clock)
        self._launcher = Launcher(self._api, settings, clock, self._catalog, self._price_of)
        self._ended = EndedInstances(self._api)
        self._terminating: set[str] = set()

    def offers(self) -> tuple[Offer, ...]:
        """See the provider port."""
        return self._catalog.offers(self._name)

    def launch(self, request: LaunchRequest) -> CloudInstance:
        """See the provider port."""
        return self._launcher.launch(request)

    def instances(self, owner: str) -> Listing:
        """List instances; see the provider port. Stopped ones are deleted on the way, since their disks cost money."""
        found = self._api.instances(OWNER_LABEL, owner)
        now = self._clock.now()
        listed = {each.provider_id: each for each in self._owned_instances(found, owner, now)}
        ended: tuple[CloudInstance, ...] = ()
        if owner == self._owner:
            stopping = [each for each in listed.values() if each.state is CloudState.STOPPING]
            unexpected = [each for each in stopping if each.provider_id not in self._terminating]
            listed |= self._ended.preempted(unexpected, owner)
            if not found.unanswered:
                ended = self._ended.ended_since(listed, owner, now)
                self._terminating &= listed.keys()
            self._delete_stopped(listed.values())
        return Listing(
            instances=tuple(sorted((*listed.values(), *ended), key=lambda each: each.provider_id)),
            complete=not found.unanswered,
            unanswered=found.unanswered,
            consistent_after_s=self._settings.list_lag_s,
        )

    def terminate(self, provider_ids: Sequence[str]) -> None:
        """Delete instances; see the provider port. Ids that this owner cannot have created are ignored."""
        ours = {each: parsed for each in provider_ids if (parsed := parse_provider_id(each, self._owner)) is not None}
        if not ours:
            return
        self._terminating |= ours.keys()
        with ThreadPoolExecutor(min(CALLS_AT_ONCE, len(ours)), "gce-delete") as pool:
            errors = [each for each in pool.map(self._delete, ours.values()) if each is not None]
        if errors:
            raise _least_certain(errors)

    def examine(self) -> tuple[Finding, ...]:
        """Check the project without side effects."""
        return tuple(check_project(self._api, self._settings, self._clock))

    def commitments(self) -> Mapping[str, Sequence[CommitmentUse]]:
        """Return reservations and commitments by kind, as last read; unread kinds are absent."""
        return self._catalog.commitment_uses()

    def facts(self) -> Mapping[str, str]:
        """Return commitments, and zones with unreadable types."""
        facts = {
            f"zone {zone}": f"cannot read its machine types: {why}" for zone, why in self._catalog.read_errors.items()
        }
        if self._catalog.commitments:
            facts["commitments"] = "; ".join(self._catalog.commitments)
        return facts

    def _owned_instances(self, found: AggregatedList, owner: str, now: float) -> list[CloudInstance]:
        """Return the owner's instances, without undecided launches, which may turn out to be a stockout."""
        machines = (to_cloud_instance(each, self._price_of, now) for _, each in found.items)
        return [
            each
            for each in machines
            if each is not None
            and each.owner == owner
            and not (each.state is CloudState.PENDING and each.provider_id in self._launcher.undecided)
        ]

    def _price_of(self, zone: str, type_name: str, market: Market) -> float:
        with suppress(ProviderUnavailable):
            self._prices.refresh()
        return self._catalog.listed_usd_per_h(zone, type_name, market)

    def _delete_stopped(self, machines: Iterable[CloudInstance]) -> None:
        stopped = [each for each in machines if each.state is CloudState.TERMINATED]
        for each in stopped[:MAX_DELETED_PER_LISTING]:
            parsed = parse_provider_id(each.provider_id, self._owner)
            if parsed is not None:
                self._delete(parsed)  # if that fails, the next listing retries

    def _delete(self, where: tuple[str, str]) -> ProviderError | None:
        try:
            self._api.delete(*where)
        except ProviderError as error:
            return error
        return None


def _least_certain(errors: Sequence[ProviderError]) -> ProviderError:
    """Return the error that is least certain about what was done."""
    order = (OutcomeUnknown, ProviderUnavailable, Throttled)
    return min(errors, key=lambda each: order.index(type(each)) if type(each) in order else len(order))
