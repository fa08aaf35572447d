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

from hcloud.core.clock import Clock
from hcloud.core.model import InstanceId
from hcloud.engine.tls import make_ca
from hcloud.fake_runner.runner import FakeRunner
from hcloud.provider import Journal, Provider, Runner, SimulatedMachine
from providers.mock.journal import FileJournal
from tests.chaos.scene import CrashPoints, FileClock, Scene, opened

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
        self._running: Mapping[InstanceId, SimulatedMachine] = {}

    @abc.abstractmethod
    def up(self, now: float) -> Mapping[InstanceId, tuple[str, SimulatedMachine]]:
        """Return the machines whose worker is up, with the provider's ids."""

    @abc.abstractmethod
    def machines(self, now: float) -> list[Launched]:
        """Return every machine ever launched."""

    @abc.abstractmethod
    def billed_usd(self, now: float) -> float:
        """Return the bill: by the second, a minute at least."""

    def running(self, now: float) -> Mapping[InstanceId, SimulatedMachine]:
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
    make_ca(tls_dir)
    engine = FakeRunner([machines], clock)
    plain = {**POLICY, **(policy or {})}
    controller = opened(home, crash, clock, cloud, cast(Runner, engine), plain, poll_s=5.0, tls_dir=tls_dir)
    return Scene(home=home, clock=clock, cloud=cast(Any, machines), engine=engine, controller=controller)
