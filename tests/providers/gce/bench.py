"""The GCE provider on the fake, as the contract suite and other tests drive it: on a clock that stands still."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from hcloud.core.clock import ManualClock
from hcloud.core.model import Offer
from hcloud.provider import CloudInstance, LaunchRequest, Listing, Provider
from providers.gce import GceProvider
from tests.contract.benches import VirtualTime
from tests.contract.provider_contract import ProviderAbility, ProviderBench
from tests.providers.gce.compute import PROJECT, FakeCompute, Fault
from tests.providers.gce.server import Server

T = TypeVar("T")
PRICES: dict[str, dict[str, dict[str, float]]] = {
    region: {
        "e2-standard-2": {"on_demand": 0.067, "spot": 0.02},
        "e2-standard-4": {"on_demand": 0.134, "spot": 0.04},
        "e2-medium": {"on_demand": 0.0335},
        "n2-standard-2": {"on_demand": 0.097, "spot": 0.0},
        "n2-custom-2-4096": {"on_demand": 0.09},
    }
    for region in ("us-central1", "europe-west1")
}
FAULTS: Mapping[ProviderAbility, tuple[str, Fault]] = {
    ProviderAbility.LOSE_REPLY: ("launch", Fault("lose_reply", "instances.insert")),
    ProviderAbility.LOSE_REQUEST: ("launch", Fault("lose_request", "instances.insert")),
    ProviderAbility.ANSWER_LATE: ("launch", Fault("late", "instances.insert")),
    ProviderAbility.LOSE_TERMINATE_REPLY: ("terminate", Fault("lose_reply", "instances.delete")),
    ProviderAbility.THROTTLE: ("", Fault("throttle")),
    ProviderAbility.RUN_OUT: ("launch", Fault("stockout", "instances.insert")),
    ProviderAbility.EXCEED_QUOTA: ("launch", Fault("quota", "instances.insert")),
    ProviderAbility.BE_AWAY: ("", Fault("away")),
    ProviderAbility.LIST_PARTLY: ("instances", Fault("unreachable", "instances.aggregatedList", "us-central1-a")),
    ProviderAbility.LIST_LATE: ("launch", Fault("list_late", "instances.insert")),
}
"""Which call of the port a fault meets ("": any), and what it does to the requests made during it."""


class Struck:
    """A provider that meets armed faults, each for one whole call: repeated reads do not get around them."""

    def __init__(self, inner: Provider, server: Server) -> None:
        self.name, self._inner, self._server = inner.name, inner, server
        self.armed: list[tuple[str, Fault]] = []

    def offers(self) -> tuple[Offer, ...]:
        return self._struck("offers", self._inner.offers)

    def launch(self, request: LaunchRequest) -> CloudInstance:
        return self._struck("launch", lambda: self._inner.launch(request))

    def instances(self, owner: str) -> Listing:
        return self._struck("instances", lambda: self._inner.instances(owner))

    def terminate(self, provider_ids: Sequence[str]) -> None:
        self._struck("terminate", lambda: self._inner.terminate(provider_ids))

    def facts(self) -> Mapping[str, str]:
        return self._inner.facts()

    def _struck(self, call: str, act: Callable[[], T]) -> T:
        met = next((each for each in self.armed if each[0] in ("", call)), None)
        if met is None:
            return act()
        self.armed.remove(met)
        fault = met[1]
        try:
            if fault.kind == "away":
                self._server.go_away()
            else:
                self._server.compute.faults.append(Fault(fault.kind, fault.method, fault.zone, times=None))
            return act()
        finally:
            self._server.come_back()
            self._server.compute.faults.clear()


class GceBench(VirtualTime, ProviderBench):
    """A fake Compute Engine on a manual clock, behind a real socket."""

    misspelt_setting = ("list_lags", "list_lag_s")

    def __init__(self, folder: Path, **changes: object) -> None:
        self.manual = ManualClock(1_900_000_000.0)
        VirtualTime.__init__(self, self.manual)
        ProviderBench.__init__(self)
        self.compute = FakeCompute(self.manual)
        self.server = Server(self.compute)
        self.folder = folder
        self.prices_file = folder / "prices.json"
        self.prices_file.write_text(json.dumps(PRICES))
        self.settings: dict[str, object] = {
            "project": PROJECT,
            "zones": ["us-central1-a", "us-central1-b", "europe-west1-d"],
            "types": ["e2-*", "n2-standard-*"],
            "prices_file": str(self.prices_file),
            "endpoint": self.server.endpoint,
            "credentials": "anonymous",
            "list_lag_s": 8.0,
            **changes,
        }
        self.provider: Provider = self._made(self.owner)

    def close(self) -> None:
        """End the server; whatever broke the API's description fails the test."""
        self.server.close()
        assert self.compute.problems == []

    def build(self, settings: Mapping[str, object]) -> Provider:
        return self._made(self.owner, settings)

    def break_next(self, fault: ProviderAbility) -> None:
        assert isinstance(self.provider, Struck)
        self.provider.armed.append(FAULTS[fault])

    def strike(self, provider_id: str, how: ProviderAbility) -> None:
        zone, _, name = provider_id.partition("/")
        if how is ProviderAbility.DIE:
            self.compute.settle()
            self.compute.crash(zone, name)
        else:
            self.compute.shut_down_gracefully(zone, name, after_s=30.0)

    def restarted(self) -> Provider:
        return self._made(self.owner)

    def for_owner(self, owner: str) -> Provider:
        return self._made(owner)

    def reserve(self, counts: Sequence[int]) -> None:
        for number, count in enumerate(counts):
            self.compute.reserve(f"kept-{number}", "us-central1-a", "e2-standard-2", count, named=True)
        self.settings["markets"] = ["reserved", "on_demand"]
        self.provider = self._made(self.owner)

    def reservation_uses(self) -> list[int]:
        return [int(each["specificReservation"]["inUseCount"]) for each in self.compute.reservations]

    def plain(self, **changes: object) -> GceProvider:
        """A provider over the same cloud, with other settings, that meets no armed faults."""
        return GceProvider("gce", {**self.settings, **changes}, self.clock, self.owner, str(self.folder))

    def _made(self, owner: str, settings: Mapping[str, object] | None = None) -> Provider:
        chosen = {**self.settings, **(settings or {})}
        return Struck(GceProvider("gce", chosen, self.clock, owner, str(self.folder)), self.server)
