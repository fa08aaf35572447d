"""The engine's targets: a unit's start on a named worker, and what 2,000 idle agents cost."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.rows import Row
from hcloud.core.model import Resources
from hcloud.provider import UnitSpec
from tests.engine.site import Machine, Site, Watch
from tests.waiting import wait_until

STARTS = 60
ONE_CPU = Resources(vcpus=1.0, memory_mib=128, disk_gib=0.1)
IDLE_WORKERS = 2000
IDLE_S = 20.0
REGISTER_S = 500.0


def starts(folder: Path) -> tuple[list[float], list[float]]:
    """Milliseconds from the call of ``start`` until it returned, and until the command ran; one unit at a time."""
    site = Site(folder, isolation="best_effort")
    returned, ran = [], []
    try:
        site.machine("inst-1")
        watch = Watch(site.runner())
        watch.registered("inst-1")
        print(f"  isolation in force: {', '.join(watch.runner.observe().workers[0].isolation)}")
        for number in range(STARTS):
            unit = UnitSpec(
                id=f"job-{number}.1.0",
                instance_id="inst-1",
                rank=0,
                command=("/bin/sh", "-c", "exec date +%s.%N"),
                resources=ONE_CPU,
            )
            began = watch.runner._clock.now()
            began_s = time.perf_counter()
            watch.runner.start([unit])
            returned.append((time.perf_counter() - began_s) * 1e3)
            watch.ended(unit)
            ran.append((float(watch.output(unit)) - began) * 1e3)
    finally:
        site.close()
    return returned, ran


def idle(folder: Path) -> dict[str, float]:
    """Per cent of a core that the gateway, and the process with all agents, take while nothing happens."""
    site = Site(folder)
    assert site.engine is not None
    empty_kb = _rss_kb(site.engine.pid)
    site.admit_many(f"inst-{number}" for number in range(IDLE_WORKERS))
    workers = subprocess.Popen([sys.executable, "-m", "bench.engine", "workers", site.address, str(folder)])
    try:
        runner = site.runner()
        wait_until(lambda: len(runner.observe().workers) == IDLE_WORKERS, timeout_s=REGISTER_S)
        processes = {
            "gateway": site.engine.pid,
            "agents": workers.pid,
            "daemon (observes every second)": os.getpid(),
        }
        before = {name: _cpu_s(pid) for name, pid in processes.items()}
        held_kb = (_rss_kb(site.engine.pid) - empty_kb) / IDLE_WORKERS
        observed = list(_observing(site, IDLE_S))
        found = {name: 100 * (_cpu_s(pid) - before[name]) / IDLE_S for name, pid in processes.items()}
        return {**found, "kB": held_kb, "observe() p50 ms": statistics.median(observed)}
    finally:
        workers.kill()
        workers.wait()
        site.close()


def _observing(site: Site, seconds: float) -> Iterator[float]:
    runner = site._runners[0]
    for second in range(int(seconds)):
        began_s = time.perf_counter()
        view = runner.observe()
        assert len(view.workers) + len(view.silent) == IDLE_WORKERS and not view.silent, len(view.silent)
        yield (time.perf_counter() - began_s) * 1e3
        time.sleep(max(0.0, began_s + 1.0 - time.perf_counter()) if second < seconds else 0.0)


def run_workers(address: str, folder: Path) -> None:
    """Be thousands of agents in one process, each connected as a real one is."""
    import grpc
    import grpc.aio

    from hcloud.engine import gateway_pb2 as pb
    from hcloud.engine.bootstrap import load_bootstrap
    from hcloud.engine.channel import CONNECT, agent_options
    from hcloud.engine.credential import Credential
    from hcloud.engine.link import AgentLink, LinkHost
    from hcloud.engine.tls import Authority, machine_request, new_machine_key

    async def supervise(_: object) -> dict[str, object]:
        """Refuse: there is no supervisor behind these agents."""
        return {"refused": "a bench has no supervisor"}

    async def run() -> None:
        """Connect all IDLE_WORKERS, and stay."""
        authority, signer, key = (folder / "tls" / "ca.pem").read_bytes(), Authority(folder / "tls"), new_machine_key()
        for number in range(IDLE_WORKERS):
            made = Machine(folder, f"inst-{number}", address, folder / "tls")
            made.state_dir.mkdir()
            credential = Credential(load_bootstrap(made.bootstrap_file))
            signed = signer.sign(machine_request(key), made.name, f"token-{made.name}")
            credential.accept(signed)
            credentials = grpc.ssl_channel_credentials(authority, key, signed)
            host = LinkHost(load_bootstrap(made.bootstrap_file), supervise, ("bench",))
            channel = grpc.aio.secure_channel(address, credentials, agent_options())
            connect = channel.stream_stream(CONNECT, pb.FromAgent.SerializeToString, pb.ToAgent.FromString)
            tasks.append(asyncio.create_task(AgentLink(connect(), host, credential).run()))
            await asyncio.sleep(0.01)
        await asyncio.Event().wait()

    tasks: list[asyncio.Task[bool]] = []
    asyncio.run(run())


def _rss_kb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1000


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run() -> list[Row]:
    """Measure starts on one worker, then what hundreds of idle ones cost."""
    with tempfile.TemporaryDirectory() as folder:
        returned, ran = starts(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        found = idle(Path(folder))
    rows = [
        Row(name="unit start, until the command runs (p50)", value=statistics.median(ran), unit="ms", target=50.0),
        Row(name="unit start, until start() returned (p50)", value=statistics.median(returned), unit="ms"),
        Row(name="unit start, until the command runs (p99)", value=_p99(ran), unit="ms"),
        Row(name=f"gateway of {IDLE_WORKERS} idle agents", value=found.pop("gateway"), unit="% of core", target=10.0),
        Row(name="its memory for each of them", value=found.pop("kB"), unit="kB", target=100.0),
    ]
    return rows + [
        Row(name=f"  meanwhile: {name}", value=value, unit="ms" if name.endswith("ms") else "% of core")
        for name, value in found.items()
    ]


def _p99(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[int(0.99 * (len(ordered) - 1))]


if __name__ == "__main__":
    if sys.argv[1:2] != ["workers"]:
        sys.exit("run it with: python -m bench engine")
    run_workers(sys.argv[2], Path(sys.argv[3]))
