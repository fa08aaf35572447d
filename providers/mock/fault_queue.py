"""Which fault the next call meets: scripted ones first, then by chance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from hcloud.core.model import Offer
from providers.mock.cloud import Cloud
from providers.mock.faults import CALLS, Call, Fault, FaultKind
from providers.mock.random_streams import draws_for
from providers.mock.settings import MockSettings

FAULT = "fault:"


class FaultQueue:
    """The armed faults of one cloud. Their counts are written down with the cloud's machines."""

    def __init__(self, settings: MockSettings, cloud: Cloud) -> None:
        self._settings = settings
        self._cloud = cloud
        self._armed: dict[str, tuple[Fault, int | None]] = {
            f"{FAULT}script-{number}": (fault, fault.times) for number, fault in enumerate(settings.script)
        }
        self._calls = 0
        cloud.listen(self._learn)

    def arm(self, fault: Fault) -> None:
        """Add a fault; only while the cloud is held."""
        number = 1 + sum(not key.startswith(f"{FAULT}script-") for key in self._armed)
        self._put(f"{FAULT}{number}", fault, fault.times)

    def take(self, kind: FaultKind, call: Call, offer: Offer | None = None) -> Fault | None:
        """Return the fault of this kind that a call meets now, using it up once; None when it goes well."""
        age_s = self._cloud.now - (self._cloud.born_at or 0.0)
        for key, (fault, left) in self._armed.items():
            if fault.kind is kind and left != 0 and fault.meets(call, offer, age_s):
                if left is not None:
                    self._put(key, fault, left - 1)
                return fault
        return self._by_chance(kind, call)

    def _by_chance(self, kind: FaultKind, call: Call) -> Fault | None:
        chance = self._settings.chances.get(kind, 0.0)
        if chance <= 0 or call not in CALLS.get(kind, frozenset({"launch"})):
            return None
        self._calls += 1
        draws = draws_for(self._settings.seed, "chance", kind.value, call, len(self._cloud.machines), self._calls)
        return Fault(kind=kind) if draws.random() < chance else None

    def _put(self, key: str, fault: Fault, left: int | None) -> None:
        self._cloud.write({key: {"fault": asdict(fault), "left": left}})
        self._armed[key] = (fault, left)

    def _learn(self, key: str, row: Mapping[str, Any]) -> None:
        if key.startswith(FAULT):
            told = row["fault"]
            self._armed[key] = (Fault(**{**told, "kind": FaultKind(told["kind"])}), row["left"])
