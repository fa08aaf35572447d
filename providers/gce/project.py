"""One owner's machines in one project: offers, launches, listings and ends, over the API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from hcloud.core.clock import Clock
from hcloud.core.errors import OutcomeUnknown, ProviderError, ProviderUnavailable, Throttled
from hcloud.core.model import Market, Offer
from hcloud.provider import CloudInstance, CloudState, Finding, LaunchRequest, Listing
from providers.gce.api import AggregatedList, Api
from providers.gce.catalogue import GceCatalogue
from providers.gce.departures import EndedMachines
from providers.gce.examination import examine
from providers.gce.launch import Launcher
from providers.gce.machine import told
from providers.gce.names import OWNER_LABEL, parse_provider_id
from providers.gce.prices import PriceBook
from providers.gce.settings import GceSettings

CALLS_AT_ONCE = 8
MOST_SWEPT = 20
"""So many stopped machines are deleted at one listing; the next goes on."""


class ComputeProject:
    """Does what the port promises. Safe to use from several threads."""

    def __init__(self, name: str, settings: GceSettings, clock: Clock, owner: str) -> None:
        self._name, self._settings, self._clock, self._owner = name, settings, clock, owner
        self._api = Api(settings, clock)
        self._prices = PriceBook(settings.prices_file)
        self._catalogue = GceCatalogue(self._api, settings, self._prices, clock)
        self._launcher = Launcher(self._api, settings, clock, self._catalogue, self._price_of)
        self._departures = EndedMachines(self._api)
        self._asked_to_end: set[str] = set()

    def offers(self) -> tuple[Offer, ...]:
        """See the port."""
        return self._catalogue.offers(self._name)

    def launch(self, request: LaunchRequest) -> CloudInstance:
        """See the port."""
        return self._launcher.launch(request)

    def instances(self, owner: str) -> Listing:
        """See the port. What a stopped machine leaves behind (a disk that costs money) is deleted on the way."""
        found = self._api.instances(OWNER_LABEL, owner)
        now = self._clock.now()
        listed = {each.provider_id: each for each in self._told(found, owner, now)}
        gone: tuple[CloudInstance, ...] = ()
        if owner == self._owner:
            stopping = [each for each in listed.values() if each.state is CloudState.STOPPING]
            unasked = [each for each in stopping if each.provider_id not in self._asked_to_end]
            listed |= self._departures.taken_back(unasked, owner)
            if not found.unanswered:
                gone = self._departures.told(listed, owner, now)
                self._asked_to_end &= listed.keys()
            self._sweep(listed.values())
        return Listing(
            instances=tuple(sorted((*listed.values(), *gone), key=lambda each: each.provider_id)),
            complete=not found.unanswered,
            unanswered=found.unanswered,
            consistent_after_s=self._settings.list_lag_s,
        )

    def terminate(self, provider_ids: Sequence[str]) -> None:
        """See the port. Ids that this owner cannot have made are left alone."""
        ours = {each: parsed for each in provider_ids if (parsed := parse_provider_id(each, self._owner)) is not None}
        if not ours:
            return
        self._asked_to_end |= ours.keys()
        with ThreadPoolExecutor(min(CALLS_AT_ONCE, len(ours)), "gce-delete") as pool:
            troubles = [each for each in pool.map(self._delete, ours.values()) if each is not None]
        if troubles:
            raise _gravest(troubles)

    def examine(self) -> tuple[Finding, ...]:
        """Look the project over, without any effect."""
        return tuple(examine(self._api, self._settings, self._clock))

    def facts(self) -> Mapping[str, str]:
        """Say what was learnt from the API."""
        facts = {f"zone {zone}": f"does not tell its types: {why}" for zone, why in self._catalogue.troubles.items()}
        if self._catalogue.commitments:
            facts["commitments"] = "; ".join(self._catalogue.commitments)
        return facts

    def _told(self, found: AggregatedList, owner: str, now: float) -> list[CloudInstance]:
        """The owner's machines, without those whose launch is not decided: they may turn out to be a stockout."""
        machines = (told(each, self._price_of, now) for _, each in found.items)
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
        return self._catalogue.price(zone, type_name, market)

    def _sweep(self, machines: Iterable[CloudInstance]) -> None:
        stopped = [each for each in machines if each.state is CloudState.TERMINATED]
        for each in stopped[:MOST_SWEPT]:
            parsed = parse_provider_id(each.provider_id, self._owner)
            if parsed is not None:
                self._delete(parsed)  # failing that, the next listing tries again

    def _delete(self, where: tuple[str, str]) -> ProviderError | None:
        try:
            self._api.delete(*where)
        except ProviderError as trouble:
            return trouble
        return None


def _gravest(troubles: Sequence[ProviderError]) -> ProviderError:
    """The error that promises least about what was done."""
    order = (OutcomeUnknown, ProviderUnavailable, Throttled)
    return min(troubles, key=lambda each: order.index(type(each)) if type(each) in order else len(order))
