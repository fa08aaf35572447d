"""A whole deployment on the fake Compute Engine; see :mod:`tests.providers.cloud_scene`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hcloud.core.model import InstanceId, Resources
from hcloud.provider import SimulatedMachine
from providers.gce import GceProvider
from tests.chaos.scene import OWNER, CrashPoints, FileClock, Scene
from tests.providers.cloud_scene import CloudMachines, Launched, open_scene
from tests.providers.gce.answers import TYPES
from tests.providers.gce.bench import PRICES
from tests.providers.gce.compute import PROJECT
from tests.providers.gce.server import TRUTH_PATH


class GceMachines(CloudMachines):
    """What the fake tells of its machines."""

    def up(self, now: float) -> Mapping[InstanceId, tuple[str, SimulatedMachine]]:
        """See :meth:`CloudMachines.up`."""
        up = (told for told in self.ask() if told["ready_at"] is not None and told["ended_at"] is None)
        return {told["labels"]["hcloud-instance"]: (told["provider_id"], _machine(told)) for told in up}

    def machines(self, now: float) -> list[Launched]:
        """See :meth:`CloudMachines.machines`."""
        return [Launched(told["provider_id"], told["labels"]["hcloud-token"], told["ended_at"]) for told in self.ask()]

    def billed_usd(self, now: float) -> float:
        """See :meth:`CloudMachines.billed_usd`."""
        return sum(_usd_per_h(told) / 3600 * _billed_s(told, now) for told in self.ask())


def _machine(told: Mapping[str, Any]) -> SimulatedMachine:
    vcpus, memory_mb = TYPES[told["type_name"]]
    return SimulatedMachine(
        instance_id=told["labels"]["hcloud-instance"],
        capacity=Resources(vcpus=vcpus, memory_mib=memory_mb - 512, disk_gib=22.0),
        ready_at=told["ready_at"],
        expires_at=told["expires_at"],
    )


def _billed_s(told: Mapping[str, Any], now: float) -> float:
    ended_at: float = now if told["ended_at"] is None else told["ended_at"]
    return max(60.0, ended_at - float(told["born_at"]))


def _usd_per_h(told: Mapping[str, Any]) -> float:
    region = told["provider_id"].partition("/")[0][:-2]
    prices: Mapping[str, float] = PRICES[region][told["type_name"]]
    return prices[told["labels"]["hcloud-market"]]


def build_on_gce(
    home: Path,
    crash: CrashPoints,
    *,
    endpoint: str,
    operation_wait_s: float = 20.0,
    timeout_s: float = 20.0,
    policy: Mapping[str, object] | None = None,
    prices: Mapping[str, Mapping[str, Mapping[str, float]]] = PRICES,
    more: Mapping[str, object] | None = None,
) -> Scene:
    """Open the deployment in ``home``, whatever an earlier process left there. ``more``: settings of the provider."""
    clock = FileClock(home / "clock")
    (home / "prices.json").write_text(json.dumps(prices))
    settings = {
        "project": PROJECT,
        "zones": ["us-central1-a", "us-central1-b"],
        "types": ["e2-standard-2"],
        "prices_file": str(home / "prices.json"),
        "endpoint": endpoint,
        "credentials": "anonymous",
        "list_lag_s": 8.0,
        "read_tries": 1,
        "operation_wait_s": operation_wait_s,
        "timeout_s": timeout_s,
        **(more or {}),
    }
    machines = GceMachines(endpoint + TRUTH_PATH, clock, home)
    cloud = GceProvider("gce", settings, clock, OWNER, str(home))
    return open_scene(home, crash, clock, cloud, machines, home, policy)
