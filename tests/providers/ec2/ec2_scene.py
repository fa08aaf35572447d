"""A whole deployment on the fake EC2: real store, planner and provider; the engine pretends to run what is placed.

It is the scene of the crash tests with another cloud: it outlives its process, and other processes of the same home see
the same machines over HTTP.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from hcloud.apply import Applier
from hcloud.clock import Clock
from hcloud.controller import Controller
from hcloud.engine.fake import FakeRunner
from hcloud.engine.tls import make_ca
from hcloud.logs import LogArchive
from hcloud.model import InstanceId, Resources
from hcloud.observe import Observer
from hcloud.policy import parse_policy
from hcloud.provider import Journal, Machine, Provider, Runner, WorkerBootstrap
from hcloud.store import Store
from providers.ec2 import factory
from providers.mock.journal import FileJournal
from tests.chaos.scene import OWNER, CrashPoints, FileClock, Scene
from tests.providers.ec2.fake_ec2 import TRUTH_PATH

POLICY: dict[str, object] = {
    "budgets": {"per_day_usd": 10.0},
    "caps": {"max_instances": 4},
    "retention": {"spin_up_multiple": 1, "maximum_s": 5},
    "lease": {"horizon_s": 600, "renew_before_s": 120},
    "boot": {"timeout_s": 120},
    "timing": {"sample_every_s": 5},
}


@dataclass(frozen=True, slots=True)
class Truth:
    """A machine as it really is."""

    provider_id: str
    token: str
    terminated_at: float | None


class Ec2Machines:
    """The machines of the fake, asked for over HTTP: what an engine on them, and a bill, would know."""

    def __init__(self, url: str, clock: Clock, home: Path) -> None:
        self._url, self._clock, self._home = url + TRUTH_PATH, clock, home
        self._running: Mapping[InstanceId, Machine] = {}

    def running(self, now: float) -> Mapping[InstanceId, Machine]:
        """Return the machines whose worker is up."""
        found = {
            told["tags"]["hcloud:instance"]: Machine(
                instance_id=told["tags"]["hcloud:instance"],
                capacity=Resources(vcpus=told["vcpus"], memory_mib=told["memory_mib"], disk_gib=10.0),
                ready_at=told["ready_at"],
                expires_at=told["expires_at"],
                preempt_at=told["preempt_at"],
            )
            for told in self._ask().values()
            if told["ready_at"] <= now and told["ended_at"] is None
        }
        if found != self._running:
            self._running = found
        return self._running

    def set_expiry(self, expiries: Mapping[InstanceId, float]) -> frozenset[InstanceId]:
        """Tell machines that they are paid further ahead, as their workers would."""
        up = self.running(self._clock.now())
        ids = {told["tags"]["hcloud:instance"]: key for key, told in self._ask().items()}
        took = {name: at for name, at in expiries.items() if name in up}
        self._ask({ids[name]: at for name, at in took.items()})
        return frozenset(took)

    def journal(self, name: str) -> Journal | None:
        """Return where the engine writes down its units."""
        return FileJournal(self._home / f"{name}.journal")

    def machines(self, now: float) -> list[Truth]:
        """Return every machine ever launched."""
        return [Truth(key, told["tags"]["hcloud:token"], told["ended_at"]) for key, told in self._ask().items()]

    def billed_usd(self, now: float) -> float:
        """Return the bill: by the second, a minute at least."""
        return sum(
            float(told["tags"]["hcloud:usd-per-h"]) / 3600 * max(60.0, (told["ended_at"] or now) - told["born_at"])
            for told in self._ask().values()
        )

    def _ask(self, expiries: Mapping[str, float] | None = None) -> dict[str, Any]:
        with urllib.request.urlopen(self._url, json.dumps(expiries or {}).encode(), timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
            return found


def build_on_ec2(
    home: Path,
    crash: CrashPoints,
    *,
    settings: Mapping[str, object],
    policy: Mapping[str, object] | None = None,
    clock: Callable[[Path], FileClock] = FileClock,
) -> Scene:
    """Open the deployment in ``home``, whatever an earlier process left there."""
    moments = clock(home / "clock")
    make_ca(home / "tls")
    store = Store.open(f"sqlite:///{home / 'hcloud.db'}")
    store.crash_point = crash.hit
    machines = Ec2Machines(str(settings["endpoint_url"]), moments, home)
    cloud = factory("ec2", settings, moments, OWNER, str(home / "ec2"))
    engine = FakeRunner([machines], moments)
    calls = ("offers", "launch", "instances", "terminate")
    providers = {"ec2": cast(Provider, crash.around(cloud, calls, "provider"))}
    runner = cast(Runner, engine)
    logs = LogArchive(folder=home / "logs")
    logs.folder.mkdir(exist_ok=True)
    bootstrap = WorkerBootstrap(scheduler_address="10.0.0.1:8786", tls_dir=str(home / "tls"))
    controller = Controller(
        store=store,
        providers=providers,
        runner=runner,
        clock=moments,
        policy=parse_policy({**POLICY, **(policy or {})}),
        observer=Observer(
            store=store,
            providers=providers,
            runner=runner,
            clock=moments,
            owner=OWNER,
            logs=logs,
            poll_s={"ec2": 5.0},
        ),
        applier=Applier(
            store, providers, runner, moments, owner=OWNER, bootstrap=bootstrap, uploads_dir=home / "uploads"
        ),
        rng=np.random.default_rng(1),
        holder="ec2",
    )
    return Scene(home=home, clock=moments, store=store, cloud=cast(Any, machines), engine=engine, controller=controller)
