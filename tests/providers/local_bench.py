"""A local provider in a temporary directory that takes everything it started down with it, also after a failed test."""

import os
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from hcloud.clock import SystemClock
from hcloud.model import Market, Offer
from hcloud.provider import CloudInstance, Provider, WorkerBootstrap
from providers.local import LocalProvider
from providers.local.slices import SliceDirectory, marked
from tests.contract.benches import RealTime
from tests.contract.provider_contract import ProviderAbility, ProviderBench
from tests.waiting import wait_until

STAND_IN = Path(__file__).with_name("stand_in_worker.py")


class LocalBench(RealTime, ProviderBench):
    """Spot slices (the only ones that can be taken back) with a stand-in worker."""

    boot_patience_s = 20.0
    end_patience_s = 20.0
    expiry_s = 2.0
    misspelt_setting = ("oversubscribtion", "oversubscription")
    bootstrap = WorkerBootstrap(scheduler_address="tls://127.0.0.1:1", tls_dir="/nowhere")

    def __init__(self, state_dir: Path) -> None:
        RealTime.__init__(self, SystemClock())
        ProviderBench.__init__(self)
        self.state_dir = state_dir
        self._made: list[LocalProvider] = []
        self.local = self.build({})
        self.provider: Provider = self.local

    def build(self, settings: Mapping[str, object]) -> LocalProvider:
        """Build one over the same directory."""
        return self._build(self.owner, settings)

    def _build(self, owner: str, settings: Mapping[str, object]) -> LocalProvider:
        # A tenth of a CPU each: the suite may run on a busy host of any size.
        tiny = {"vcpus": 0.1, "memory_mib": 64, "disk_gib": 0.1}
        own: dict[str, object] = {
            "worker_command": [sys.executable, str(STAND_IN)],
            "types": {"local.tiny": tiny, "local.double": {**tiny, "vcpus": 0.2}},
            "memory_mib": 4096,
            "cgroup_parent": f"hcloud-test-{os.getpid()}",
        }
        made = LocalProvider("local", {**own, **settings}, self.clock, owner, str(self.state_dir))
        self._made.append(made)
        return made

    def strike(self, provider_id: str, how: ProviderAbility) -> None:
        """Kill the supervisor, or ask for the slice back."""
        if how is ProviderAbility.PREEMPT:
            (self.directory(provider_id).path / "preempt").write_text("2")
            return
        supervisor = self.directory(provider_id).supervisor()
        assert supervisor is not None
        supervisor.signal(signal.SIGKILL)

    def restarted(self) -> LocalProvider:
        """As after a kill -9: nothing of the old object is used."""
        return self.build({})

    def for_owner(self, owner: str) -> LocalProvider:
        """Another deployment on the same directory."""
        return self._build(owner, {})

    def offer(self) -> Offer:
        """The cheapest spot offer."""
        offers = [each for each in self.provider.offers() if each.market is Market.SPOT]
        return min(offers, key=lambda each: (each.price_usd_per_h, each.key))

    def directory(self, provider_id: str) -> SliceDirectory:
        """The slice's files."""
        return SliceDirectory(self.state_dir / "instances" / provider_id)

    def worker_pid(self, machine: CloudInstance) -> int:
        """Wait until the stand-in worker runs; its process id."""
        return int(wait_until(lambda: self._text(machine, "machine/worker.pid"), 20))

    def unit_pid(self, machine: CloudInstance) -> int:
        """Wait until the stand-in's detached unit runs; its process id."""
        return int(wait_until(lambda: self._text(machine, "machine/unit.pid"), 20))

    def _text(self, machine: CloudInstance, name: str) -> str:
        path = self.directory(machine.provider_id).path / name
        return path.read_text().strip() if path.exists() else ""

    def close(self) -> None:
        """Power everything off and check that nothing is left."""
        left = list((self.state_dir / "instances").glob("local-*"))
        for path in left:
            wait_until(lambda path=path: SliceDirectory(path).power_off(reason="test over", at=0.0), 20)  # type: ignore[misc]
        assert [path.name for path in left if marked(path)] == []
        assert [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/hcloud-test-{os.getpid()}/*")] == []
        shutil.rmtree(self.state_dir, ignore_errors=True)
