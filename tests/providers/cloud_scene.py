"""A whole deployment on the fake of a cloud: real store, planner and provider; the engine pretends to run things.

It is the scene of the crash tests with another cloud: it outlives its process, and other processes of the same home see
the same machines over HTTP.
"""

from __future__ import annotations

import abc
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
from hcloud.model import InstanceId
from hcloud.observe import Observer
from hcloud.policy import parse_policy
from hcloud.provider import Journal, Machine, Provider, Runner, WorkerBootstrap
from hcloud.store import Store
from providers.mock.journal import FileJournal
from tests.chaos.scene import OWNER, CrashPoints, FileClock, Scene

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


class CloudMachines(abc.ABC):
    """The machines of a fake, asked for over HTTP: what an engine on them, and a bill, would know."""

    def __init__(self, url: str, clock: Clock, home: Path) -> None:
        self._url, self._clock, self._home = url, clock, home
        self._running: Mapping[InstanceId, Machine] = {}

    @abc.abstractmethod
    def up(self, now: float) -> Mapping[InstanceId, tuple[str, Machine]]:
        """Return the machines whose worker is up, with the provider's ids."""

    @abc.abstractmethod
    def machines(self, now: float) -> list[Launched]:
        """Return every machine ever launched."""

    @abc.abstractmethod
    def billed_usd(self, now: float) -> float:
        """Return the bill: by the second, a minute at least."""

    def running(self, now: float) -> Mapping[InstanceId, Machine]:
        """Return the machines whose worker is up; the same object again while nothing has changed."""
        found = {name: machine for name, (_, machine) in self.up(now).items()}
        if found != self._running:
            self._running = found
        return self._running

    def set_expiry(self, expiries: Mapping[InstanceId, float]) -> frozenset[InstanceId]:
        """Tell machines that they are paid further ahead, as their workers would."""
        up = self.up(self._clock.now())
        took = {name: at for name, at in expiries.items() if name in up}
        self.ask({up[name][0]: at for name, at in took.items()})
        return frozenset(took)

    def journal(self, name: str) -> Journal | None:
        """Return where the engine writes down its units."""
        return FileJournal(self._home / f"{name}.journal")

    def ask(self, expiries: Mapping[str, float] | None = None) -> Any:
        """Return what the fake tells of all machines, and have it extend those of the given ids."""
        with urllib.request.urlopen(self._url, json.dumps(expiries or {}).encode(), timeout=60) as answer:
            return json.load(answer)


def open_scene(
    home: Path,
    crash: CrashPoints,
    clock: FileClock,
    cloud: Provider,
    machines: CloudMachines,
    tls_dir: Path,
    policy: Mapping[str, object] | None,
) -> Scene:
    """Open the deployment in ``home`` with one provider, whatever an earlier process left there."""
    store = Store.open(f"sqlite:///{home / 'hcloud.db'}")
    store.crash_point = crash.hit
    engine = FakeRunner([machines], clock)
    calls = ("offers", "launch", "instances", "terminate")
    providers = {cloud.name: cast(Provider, crash.around(cloud, calls, "provider"))}
    runner = cast(Runner, engine)
    logs = LogArchive(folder=home / "logs")
    logs.folder.mkdir(exist_ok=True)
    observer = Observer(
        store=store,
        providers=providers,
        runner=runner,
        clock=clock,
        owner=OWNER,
        logs=logs,
        poll_s={cloud.name: 5.0},
    )
    bootstrap = WorkerBootstrap(scheduler_address="10.0.0.1:8786", tls_dir=str(tls_dir))
    controller = Controller(
        store=store,
        providers=providers,
        runner=runner,
        clock=clock,
        policy=parse_policy({**POLICY, **(policy or {})}),
        observer=observer,
        applier=Applier(
            store, providers, runner, clock, owner=OWNER, bootstrap=bootstrap, uploads_dir=home / "uploads"
        ),
        rng=np.random.default_rng(1),
        holder=cloud.name,
    )
    return Scene(home=home, clock=clock, store=store, cloud=cast(Any, machines), engine=engine, controller=controller)
