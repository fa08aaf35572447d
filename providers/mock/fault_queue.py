"""Selects the fault for the next call: scripted faults first, then random ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from hcloud.core.model import Offer
from providers.mock.cloud import Cloud
from providers.mock.faults import CALLS, Call, Fault, FaultKind
from providers.mock.random_streams import draws_for
from providers.mock.settings import MockSettings

FAULT_PREFIX = "fault:"


class FaultQueue:
    """Armed faults of one cloud. Their remaining counts are persisted with the cloud's machines."""

    def __init__(self, settings: MockSettings, cloud: Cloud) -> None:
        self._settings = settings
        self._cloud = cloud
        self._armed: dict[str, tuple[Fault, int | None]] = {
            f"{FAULT_PREFIX}script-{number}": (fault, fault.times) for number, fault in enumerate(settings.script)
        }
        self._calls = 0
        cloud.on_foreign_row(self._apply_row)

    def arm(self, fault: Fault) -> None:
        """Add a fault. Call only while the cloud is held."""
        number = 1 + sum(not key.startswith(f"{FAULT_PREFIX}script-") for key in self._armed)
        self._put(f"{FAULT_PREFIX}{number}", fault, fault.times)

    def take(self, kind: FaultKind, call: Call, offer: Offer | None = None) -> Fault | None:
        """Return the fault of this kind that applies to the call and use it up once; None if there is none."""
        age_s = self._cloud.now - (self._cloud.created_at or 0.0)
        for key, (fault, left) in self._armed.items():
            if fault.kind is kind and left != 0 and fault.applies_to(call, offer, age_s):
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

    def _apply_row(self, key: str, row: Mapping[str, Any]) -> None:
        if key.startswith(FAULT_PREFIX):
            fault = row["fault"]
            self._armed[key] = (Fault(**{**fault, "kind": FaultKind(fault["kind"])}), row["left"])
