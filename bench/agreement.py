"""How alike a running daemon and the simulator place the same jobs: the demo's 14, run once for real on slices of this
machine, then replayed from what the daemon recorded, on a virtual cloud with its offers and the boots it measured.

Only what no simulation can know may differ: which of two machines is free first where that is less than a cycle apart.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.rows import Row
from demo.stage import DEMO, Stage
from hcloud.cli.client import Client, Door
from hcloud.cli.past import offered_clouds, recorded_workload
from hcloud.clock import holds_within
from hcloud.config import load_policy
from hcloud.simulator.run import Setting, Simulation, simulated

JOBS, PATIENCE_S, EVER_S = 14, 300.0, 86_400.0
Clouds = Mapping[str, Mapping[str, object]]
OVER = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a job began: the machine's type and market, and who had been placed there before it."""

    on: tuple[str, str]
    beside: tuple[str, ...]


def run() -> list[Row]:
    """Run the demo's jobs, replay them, and count those that were placed alike."""
    with tempfile.TemporaryDirectory() as made, _daemon(Path(made) / "home") as client:
        clouds = offered_clouds(client)  # while all of this machine is free
        _run_jobs(client, Path(made) / "home")
        events = client.get("/v1/events", kind=["instance_requested", "instance_ready", "unit_started"], limit=10_000)
        real = places(events, _names(client.get("/v1/jobs", limit=JOBS)))
        boot_s = statistics.median(each["fields"]["boot_s"] for each in events if each["kind"] == "instance_ready")
        replayed = _replay(client, clouds, boot_s, Path(made))
    same_type = sum(real[name].on == replayed[name].on for name in real)
    same_place = sum(real[name] == replayed[name] for name in real)
    note = f"machines took {boot_s:.2g} s to start"
    return [
        Row(name="jobs on the same type and market", value=same_type, unit="jobs", target=JOBS, better="higher"),
        Row(name="jobs that joined the same company there", value=same_place, unit="jobs", note=note),
    ]


@contextmanager
def _daemon(home: Path) -> Iterator[Client]:
    stage = Stage(home)
    try:
        stage.init()
        stage.start("engine")
        stage.start("daemon")
        stage.until_daemon_answers(90)
        yield Client(Door(socket=home / "run" / "hcloud.sock"))
    finally:
        stage.take_down()


def _run_jobs(client: Client, home: Path) -> None:
    """Submit the demo's jobs together, and wait until they are over."""
    stage = Stage(home)
    stage.hcloud("submit", "-y", "-q", str(DEMO / "service.yaml"))
    stage.hcloud("submit", "-y", "-q", str(DEMO / "batch.yaml"))

    def over() -> bool:
        """Whether none of them goes on."""
        states = [job["state"] for job in client.get("/v1/jobs", limit=JOBS)]
        return all(state in OVER for state in states)

    if not holds_within(over, PATIENCE_S, every_s=1.0):
        raise RuntimeError(f"the demo's jobs are not over after {PATIENCE_S:.0f} s")


def _names(jobs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    return {job["id"]: job["spec"]["name"] for job in jobs}


def _replay(client: Client, clouds: Clouds, boot_s: float, folder: Path) -> dict[str, Place]:
    """Return where the recorded jobs are placed on these clouds with equal machines that boot as those did."""
    measured = {"quality": {"spread": 0.0}, "boot": {"p50_s": boot_s, "p95_s": boot_s}}
    equal = {name: {**settings, **measured} for name, settings in clouds.items()}
    setting = Setting(
        workload=recorded_workload(client, EVER_S), policy=load_policy(DEMO / "policy.yaml"), clouds=equal, seed=1
    )
    with simulated(setting, folder) as simulation:
        simulation.run()
        names = {job.id: job.spec.name for job in simulation.store.jobs()}
        return places(_told(simulation), names)


def _told(simulation: Simulation) -> Iterator[dict[str, Any]]:
    """Yield the events as the daemon's API tells them."""
    for event in simulation.events():
        yield {**asdict(event), "kind": event.kind.value}


def places(events: Iterable[Mapping[str, Any]], names: Mapping[str, str]) -> dict[str, Place]:
    """Return by job where it began, from events in their order."""
    kinds: dict[str, tuple[str, str]] = {}
    guests: dict[str, list[str]] = {}
    found: dict[str, Place] = {}
    for event in events:
        machine, fields = event["instance_id"], event["fields"]
        if event["kind"] == "instance_requested":
            kinds[machine] = (fields["type"], fields["market"])
        elif event["kind"] == "unit_started":
            name = names[event["job_id"]]
            found[name] = Place(on=kinds[machine], beside=tuple(guests.setdefault(machine, [])))
            guests[machine].append(name)
    return found
