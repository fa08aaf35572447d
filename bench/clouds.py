"""Clouds with very many machines: how long listing and reconciling 10,000 take, and how many API calls a cycle makes.

The fakes run in a process of their own, as clouds do; what is timed is ours and their answers over HTTP. To be as quick
as clouds they check no answer by the official description here (tests do), and moto renders one machine, of which
thousands of copies are made.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.rows import Row
from hcloud.controller import Controller
from hcloud.core.clock import ManualClock, SystemClock
from hcloud.core.model import Instance, InstanceState, Market
from hcloud.engine.tls import authority_pem, make_ca
from hcloud.fake_runner.runner import FakeRunner
from hcloud.provider import LaunchRequest, Provider, WorkerBootstrap
from hcloud.store import Store
from tests.assembled import assembled
from tests.providers.ec2.ec2_bench import ENVIRONMENT, settings_for
from tests.providers.ec2.fake_ec2 import FakeEc2
from tests.providers.gce.bench import PRICES
from tests.providers.gce.compute import PROJECT, FakeCompute
from tests.providers.gce.server import Server

OWNER = "hcloud-bench"
FEW, MANY = (10, 100, 1_000), 10_000
CYCLES = 300
POLL_S = 10.0
POLICY: dict[str, object] = {"name": "bench", "timing": {"sample_every_s": 5.0}}
GCE_ZONES = ("us-central1-a", "us-central1-b", "europe-west1-d")


def run() -> list[Row]:
    """List and reconcile on both clouds; count calls."""
    os.environ.update(ENVIRONMENT)
    rows: list[Row] = []
    for name, serve, make in (("GCE", _serve_gce, _gce), ("EC2", _serve_ec2, _ec2)):
        for machines in (*FEW, MANY):
            with tempfile.TemporaryDirectory() as made, Fake(serve) as fake:
                rows += _measured(name, fake, make(fake.endpoint, Path(made)), Path(made), machines)
    return rows


def _measured(name: str, fake: Fake, provider: Provider, home: Path, machines: int) -> list[Row]:
    """Launch one machine through the provider, let the fake make thousands of its like, then observe."""
    make_ca(home / "tls")
    clock = ManualClock(SystemClock().now())
    request = _first(provider, clock.now(), home)
    provider.launch(request)
    fake.ask(machines - 1)
    store = Store.open(f"sqlite:///{home / 'hcloud.db'}")
    with store.transaction(clock.now()) as txn:
        for number in range(machines):
            txn.new_instance(lambda key, n=number: _row(key, request, n, clock.now()))  # type: ignore[misc]
    runner = FakeRunner([], clock)
    controller = assembled(
        home, store, provider, runner, clock, POLICY, owner=OWNER, poll_s=POLL_S, tls_dir=home / "tls"
    )
    first = _timed(fake, lambda: controller.observer.observe(controller.policy))
    adopted = sum(each.provider_id is not None for each in store.live().instances)
    assert adopted == machines, f"{adopted} machines were reconciled"
    if machines == MANY:
        clock.advance(POLL_S)
        again = _timed(fake, lambda: controller.observer.observe(controller.policy))
        rows = [_reconciled(name, "all new", first), _reconciled(name, "all known", again)]
    else:
        label = f"{name}: API calls per cycle, {machines:,} machines"
        rows = [Row(name=label, value=_calls_per_cycle(fake, controller, clock), unit="calls", target=2.0)]
    store.close()
    return rows


def _first(provider: Provider, now: float, home: Path) -> LaunchRequest:
    return LaunchRequest(
        token="token-0",
        instance_id="inst-0",
        owner=OWNER,
        offer=next(each for each in provider.offers() if each.market is Market.ON_DEMAND),
        expires_at=now + 86400,
        bootstrap=WorkerBootstrap(gateway_addresses=("10.0.0.1:8786",), authority_pem=authority_pem(home / "tls")),
    )


def _reconciled(name: str, what: str, took: tuple[float, float, float]) -> Row:
    wall_s, cpu_s, fake_cpu_s = took
    return Row(
        name=f"{name}: {MANY:,} machines, {what}, listed and reconciled",
        value=wall_s,
        unit="s",
        target=10.0,
        note=f"{cpu_s:.1f} s of our own CPU time, {fake_cpu_s:.1f} s of the fake's",
    )


def _timed(fake: Fake, act: Callable[[], object]) -> tuple[float, float, float]:
    """Return the seconds it took by the clock, of this process's CPU time, and of the fake's."""
    wall, cpu, theirs = time.monotonic(), time.process_time(), fake.cpu_s()
    act()
    return time.monotonic() - wall, time.process_time() - cpu, fake.cpu_s() - theirs


def _calls_per_cycle(fake: Fake, controller: Controller, clock: ManualClock) -> float:
    """Five minutes of cycles a second apart while machines boot, so that they are listed as often as ever."""
    before = fake.ask("calls")
    for _ in range(CYCLES):
        assert not controller.offers.refresh()
        controller.observer.observe(controller.policy)
        clock.advance(1.0)
    return (fake.ask("calls") - before) / CYCLES


def _row(key: str, request: LaunchRequest, number: int, now: float) -> Instance:
    return Instance(
        id=key,
        offer=request.offer,
        state=InstanceState.REQUESTED,
        token=f"token-{number}",
        requested_at=now,
        expires_at=request.expires_at,
    )


# ---------------------------------------------------------------------------------------------- the fakes' own process
_fork = multiprocessing.get_context("fork")


class Fake:
    """A fake in a child process."""

    def __init__(self, serve: Callable[[Any, Any], None]) -> None:
        self._orders, self._answers = _fork.Queue(), _fork.Queue()
        self._child = _fork.Process(target=serve, args=(self._orders, self._answers), daemon=True)

    def __enter__(self) -> Fake:
        self._child.start()
        self.endpoint: str = self._answers.get(timeout=60)
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.join()

    def cpu_s(self) -> float:
        """Return how much CPU time the fake has used."""
        times = Path(f"/proc/{self._child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")

    def ask(self, order: int | str) -> int:
        """Make so many more machines like the first; or tell how many calls there were ("calls")."""
        self._orders.put(order)
        answer: int = self._answers.get(timeout=600)
        return answer


class Crowded(FakeCompute):
    """A fake that sorts its machines once a listing, not once a page: thousands of them take a cloud no time."""

    _listed_now: list[tuple[str, Any]]

    def _aggregated_instances(self, parts: Any, query: Any, body: Any) -> Any:
        if len(self.machines) < MANY or "status" in query["filter"]:
            return FakeCompute._aggregated_instances(self, parts, query, body)
        if "pageToken" not in query:
            assert query["filter"] == f'labels.hcloud-owner = "{OWNER}"'
            self._listed_now = [(f"zones/{zone}", each) for (zone, _), each in sorted(self.machines.items())]
        first, size = int(query.get("pageToken", 0)), int(query["maxResults"])
        page = self._listed_now[first : first + size]
        told = self._aggregated("compute#instanceAggregatedList", "instances", page, {"maxResults": str(size)})
        more = {"nextPageToken": str(first + size)} if first + size < len(self._listed_now) else {}
        return told | more


def _serve_gce(orders: Any, answers: Any) -> None:
    compute = Crowded(SystemClock(), operation_s=0.0, quota_cpus=1e6, checked=False)
    answers.put(Server(compute).endpoint)
    for order in iter(orders.get, None):
        if order != "calls":
            _make_like(compute, order)
        answers.put(len(compute.seen))


def _make_like(compute: FakeCompute, count: int) -> None:
    ((_, first),) = compute.machines.items()
    plain = json.dumps(first)
    for number in range(1, count + 1):
        machine = json.loads(plain.replace("token-0", f"token-{number}").replace("inst-0", f"inst-{number}"))
        zone = GCE_ZONES[number % len(GCE_ZONES)]
        machine["zone"] = f"{machine['zone'].rpartition('/')[0]}/{zone}"
        machine["name"] = f"{OWNER}-inst-{number}-{number:010x}"
        compute.machines[zone, machine["name"]] = machine


def _serve_ec2(orders: Any, answers: Any) -> None:
    fake = FakeEc2()
    fake.reset(SystemClock())
    fake.quota_vcpus = 1e6
    answers.put(fake.url)
    for order in iter(orders.get, None):
        if order != "calls":
            fake.make_like(order)
        answers.put(len(fake.calls))


def _gce(endpoint: str, home: Path) -> Provider:
    from providers.gce import GceProvider

    (home / "prices.json").write_text(json.dumps(PRICES))
    settings = {
        "project": PROJECT,
        "zones": list(GCE_ZONES),
        "types": ["e2-standard-2"],
        "prices_file": str(home / "prices.json"),
        "endpoint": endpoint,
        "credentials": "anonymous",
        "operation_poll_s": 0.05,
    }
    return GceProvider("GCE", settings, SystemClock(), OWNER, str(home))


def _ec2(endpoint: str, home: Path) -> Provider:
    from providers.ec2 import factory

    class Here:
        """What settings are made for: a server, by its address."""

        url = endpoint

    return factory("EC2", settings_for(Here(), timeout_s=300), SystemClock(), OWNER, str(home))  # type: ignore[arg-type]
