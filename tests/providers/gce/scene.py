"""A whole deployment on the fake Compute Engine: real store, planner and provider; the engine pretends to run things.

It is the scene of the crash tests with another cloud: it outlives its process, and other processes of the same home see
the same machines over HTTP.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from hcloud.apply import Applier
from hcloud.clock import Clock
from hcloud.controller import Controller
from hcloud.engine.fake import FakeRunner
from hcloud.logs import LogArchive
from hcloud.model import InstanceId, Resources
from hcloud.observe import Observer
from hcloud.policy import parse_policy
from hcloud.provider import Journal, Machine, Provider, Runner, WorkerBootstrap
from hcloud.store import Store
from providers.gce import GceProvider
from providers.mock.journal import FileJournal
from tests.chaos.scene import OWNER, CrashPoints, FileClock, Scene
from tests.providers.gce.answers import TYPES
from tests.providers.gce.bench import PRICES
from tests.providers.gce.compute import PROJECT
from tests.providers.gce.server import TRUTH_PATH

POLICY: dict[str, object] = {
    "budgets": {"per_day_usd": 10.0},
    "caps": {"max_instances": 4},
    "retention": {"spin_up_multiple": 1, "maximum_s": 5},
    "lease": {"horizon_s": 600, "renew_before_s": 120},
    "boot": {"timeout_s": 120},
    "timing": {"sample_every_s": 5},
}


@dataclass(frozen=True, slots=True)
class Launched:
    """A machine as it really is."""

    provider_id: str
    token: str
    terminated_at: float | None


class GceMachines:
    """The machines of the fake, asked for over HTTP: what an engine on them, and a bill, would know."""

    def __init__(self, endpoint: str, clock: Clock, home: Path) -> None:
        self._url, self._clock, self._home = endpoint + TRUTH_PATH, clock, home
        self._running: Mapping[InstanceId, Machine] = {}

    def running(self, now: float) -> Mapping[InstanceId, Machine]:
        """Return the machines whose worker is up; the same object again while nothing has changed."""
        up = (told for told in self._ask() if told["ready_at"] is not None and told["ended_at"] is None)
        found = {told["labels"]["hcloud-instance"]: _machine(told) for told in up}
        if found != self._running:
            self._running = found
        return self._running

    def set_expiry(self, expiries: Mapping[InstanceId, float]) -> frozenset[InstanceId]:
        """Tell machines that they are paid further ahead, as their workers would."""
        up = self.running(self._clock.now())
        ids = {told["labels"]["hcloud-instance"]: told["provider_id"] for told in self._ask()}
        took = {name: at for name, at in expiries.items() if name in up}
        self._ask({ids[name]: at for name, at in took.items()})
        return frozenset(took)

    def journal(self, name: str) -> Journal | None:
        """Return where the engine writes down its units."""
        return FileJournal(self._home / f"{name}.journal")

    def machines(self, now: float) -> list[Launched]:
        """Return every machine ever launched."""
        return [Launched(told["provider_id"], told["labels"]["hcloud-token"], told["ended_at"]) for told in self._ask()]

    def billed_usd(self, now: float) -> float:
        """Return the bill: by the second, a minute at least."""
        return sum(_usd_per_h(told) / 3600 * _billed_s(told, now) for told in self._ask())

    def _ask(self, expiries: Mapping[str, float] | None = None) -> list[dict[str, Any]]:
        with urllib.request.urlopen(self._url, json.dumps(expiries or {}).encode(), timeout=60) as answer:
            found: list[dict[str, Any]] = json.load(answer)
            return found


def _machine(told: Mapping[str, Any]) -> Machine:
    vcpus, memory_mb = TYPES[told["type_name"]]
    return Machine(
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
) -> Scene:
    """Open the deployment in ``home``, whatever an earlier process left there."""
    clock = FileClock(home / "clock")
    (home / "prices.json").write_text(json.dumps(PRICES))
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
    }
    store = Store.open(f"sqlite:///{home / 'hcloud.db'}")
    store.crash_point = crash.hit
    machines = GceMachines(endpoint, clock, home)
    engine = FakeRunner([machines], clock)
    cloud = GceProvider("gce", settings, clock, OWNER, str(home))
    providers = {"gce": cast(Provider, crash.around(cloud, ("offers", "launch", "instances", "terminate"), "provider"))}
    runner = cast(Runner, engine)
    logs = LogArchive(folder=home / "logs")
    logs.folder.mkdir(exist_ok=True)
    observer = Observer(
        store=store, providers=providers, runner=runner, clock=clock, owner=OWNER, logs=logs, poll_s={"gce": 5.0}
    )
    bootstrap = WorkerBootstrap(scheduler_address="10.0.0.1:8786", tls_dir=str(home))
    applier = Applier(store, providers, runner, clock, owner=OWNER, bootstrap=bootstrap, uploads_dir=home / "uploads")
    controller = Controller(
        store=store,
        providers=providers,
        runner=runner,
        clock=clock,
        policy=parse_policy({**POLICY, **(policy or {})}),
        observer=observer,
        applier=applier,
        rng=np.random.default_rng(1),
        holder="gce",
    )
    return Scene(home=home, clock=clock, store=store, cloud=cast(Any, machines), engine=engine, controller=controller)
