"""A local provider in a temporary directory that takes everything it started down with it, also after a failed test."""

import os
import resource
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from hcloud.core.clock import SystemClock
from hcloud.core.model import Market, Offer
from hcloud.provider import CloudInstance, Provider, WorkerBootstrap
from providers.local import LocalProvider
from providers.local.slices import SliceDirectory, processes_of
from tests.contract.benches import RealTime
from tests.contract.provider_contract import ProviderAbility, ProviderBench
from tests.waiting import wait_until

STAND_IN = Path(__file__).with_name("stand_in_worker.py")


class Struck:
    """A provider that is really in trouble while its next call lasts: ``trouble`` is entered for that."""

    def __init__(self, inner: LocalProvider) -> None:
        self._inner = inner
        self.trouble: AbstractContextManager[None] | None = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in ("launch", "instances", "offers", "terminate"):
            return found

        def called(*arguments: object) -> object:
            trouble, self.trouble = self.trouble, None
            with trouble or nullcontext():
                return found(*arguments)

        return called


@contextmanager
def no_more_files() -> Iterator[None]:
    """Let this process open nothing: no file, no directory, no pipe."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def started_by(script: str, folder: Path) -> Iterator[None]:
    """Have supervisors started by a shell script, which finds Python and its arguments in ``$@``."""
    python, path = sys.executable, folder / "python"
    path.write_text(f'#!/bin/sh\nset -- {python} "$@"\n{script}\n')
    path.chmod(0o755)
    sys.executable = str(path)
    try:
        yield
    finally:
        sys.executable = python


STARTS = {
    ProviderAbility.LOSE_REPLY: '"$@"; exit 1',
    ProviderAbility.LOSE_REQUEST: "exit 1",
    ProviderAbility.ANSWER_LATE: '(sleep 0.5; "$@") > /dev/null 2>&1 & exit 1',
}
"""How the start of a supervisor goes: it runs and nobody hears of it, it never does, it does later."""


class LocalBench(RealTime, ProviderBench):
    """Spot slices (the only ones that can be preempted) with a stand-in worker."""

    boot_patience_s = 120.0
    end_patience_s = 120.0
    expiry_s, expiry_slack_s = 2.0, 60.0
    misspelt_setting = ("oversubscribtion", "oversubscription")
    bootstrap = WorkerBootstrap(gateway_addresses=("127.0.0.1:1",), authority_pem="CERTIFICATE")

    def __init__(self, state_dir: Path) -> None:
        RealTime.__init__(self, SystemClock())
        ProviderBench.__init__(self)
        self.state_dir = state_dir
        self._made: list[LocalProvider] = []
        self.local = self.build({})
        self._struck = Struck(self.local)
        self.provider: Provider = self._struck  # type: ignore[assignment]

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

    def break_next(self, fault: ProviderAbility) -> None:
        """Use up all files this process may open, or all memory there is to share, or start supervisors badly."""
        if fault is ProviderAbility.BE_AWAY:
            self._struck.trouble = no_more_files()
        elif fault is ProviderAbility.RUN_OUT:
            self._struck.trouble = self._full()
        else:
            self._struck.trouble = started_by(STARTS[fault], self.state_dir)

    @contextmanager
    def _full(self) -> Iterator[None]:
        """Have another deployment hold the whole host."""
        whole = {"local.all": {"vcpus": 0.1, "memory_mib": 4096, "disk_gib": 0.1}}
        other = self._build("somebody-greedy", {"types": whole})
        held = other.launch(self.request(owner="somebody-greedy", offer=other.offers()[0], bootstrap=None))
        try:
            yield
        finally:
            other.terminate([held.provider_id])

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
        return int(wait_until(lambda: self._text(machine, "machine/worker.pid"), 60))

    def unit_pid(self, machine: CloudInstance) -> int:
        """Wait until the stand-in's detached unit runs; its process id."""
        return int(wait_until(lambda: self._text(machine, "machine/unit.pid"), 60))

    def _text(self, machine: CloudInstance, name: str) -> str:
        path = self.directory(machine.provider_id).path / name
        return path.read_text().strip() if path.exists() else ""

    def close(self) -> None:
        """Power everything off and check that nothing is left."""
        left = list((self.state_dir / "instances").glob("local-*"))
        for path in left:
            wait_until(lambda path=path: SliceDirectory(path).power_off(reason="test over", at=0.0), 60)  # type: ignore[misc]
        assert [path.name for path in left if processes_of(path)] == []
        assert [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/hcloud-test-{os.getpid()}/*")] == []
        shutil.rmtree(self.state_dir, ignore_errors=True)
