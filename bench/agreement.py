"""How alike a running daemon and the simulator place the same jobs: the demo's 14, run once for real on slices of this
machine, then replayed from what the daemon recorded, on a virtual cloud with its offers and the times it measured
that machines take to start and to end.

Only what no simulation can know may differ: which of two machines is free first where that is less than a cycle apart.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any

from bench.rows import Row
from demo.stage import DEMO, Stage
from hcloud.cli.history import offered_clouds, recorded_workload
from hcloud.client.connection import Connection, Endpoint
from hcloud.config import load_policy
from hcloud.core.clock import holds_within
from hcloud.core.model import Event
from hcloud.simulator.run import Setting, simulated

JOBS, PATIENCE_S, EVER_S = 14, 300.0, 86_400.0
KINDS = [
    "job_submitted", "job_finished", "unit_started",
    "instance_requested", "instance_launched", "instance_ready", "instance_state", "instance_terminated",
]  # fmt: skip
APART_S = 5.0
"""A real job is started, its end seen and its machine let go each in the next of cycles of a second, and machines boot
unlike their median; jobs of the demo run in up to three rounds, one after another."""
Clouds = Mapping[str, Mapping[str, object]]
OVER = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A rented machine's type and market, and when it was asked for, came up and was gone (inf: never)."""

    kind: tuple[str, str]
    asked_s: float
    up_s: float
    gone_s: float

    @property
    def lived_s(self) -> float:
        """Return for how long it was there, asked for and not gone."""
        return self.gone_s - self.asked_s


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What became of jobs, by name, and the machines in the order in which they were asked for; in seconds from the
    first submission. A job that was started again counts with its last start."""

    places: Mapping[str, Place]
    began_s: Mapping[str, float]
    ended_s: Mapping[str, float]
    machines: tuple[Machine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a job began: the machine's type and market, and who had been placed there before it."""

    on: tuple[str, str]
    beside: tuple[str, ...]


def run() -> list[Row]:
    """Run the demo's jobs, replay them, and say how far apart the two are."""
    with tempfile.TemporaryDirectory() as made, _daemon(Path(made) / "home") as client:
        clouds, _ = offered_clouds(client)  # while all of this machine is free
        _run_jobs(client, Path(made) / "home")
        events = client.get("/v1/events", kind=KINDS, limit=10_000)
        real = history(events, _names(client.get("/v1/jobs", limit=JOBS)))
        boot_s = statistics.median(each["fields"]["boot_s"] for each in events if each["kind"] == "instance_ready")
        stop_s = statistics.median(ends_s(events))
        replayed = _replay(client, clouds, boot_s, stop_s, Path(made))
    return _rows(real, replayed, f"machines took {boot_s:.2g} s to start and {stop_s:.2g} s to end")


def ends_s(events: Iterable[Mapping[str, Any]]) -> list[float]:
    """Return how long each machine took to end, in seconds from when the daemon meant it to, by events in their order
    as the API tells them."""
    meant_at: dict[str, float] = {}
    took_s = []
    for event in events:
        machine, fields = event["instance_id"] or "", event["fields"]
        if event["kind"] == "instance_state" and fields["to"] == "terminating":
            meant_at[machine] = event["at"]
        elif event["kind"] == "instance_terminated" and machine in meant_at:
            took_s.append(max(0.0, (fields["terminated_at"] or event["at"]) - meant_at[machine]))
    return took_s


def _rows(real: History, replayed: History, measured: str) -> list[Row]:
    same_type = sum(real.places[name].on == replayed.places[name].on for name in real.places)
    same_place = sum(real.places[name] == replayed.places[name] for name in real.places)
    ended = [abs(at - replayed.ended_s[name]) for name, at in real.ended_s.items()]
    last_s, again_s = max(real.ended_s.values()), max(replayed.ended_s.values())
    lived_s, lived_again_s = (sum(each.lived_s for each in one.machines) for one in (real, replayed))
    fewer = abs(len(real.machines) - len(replayed.machines))
    sums = f"{lived_s:.0f} s, in the replay {lived_again_s:.0f} s"
    return [
        Row(name="jobs on the same type and market", value=same_type, unit="jobs", target=JOBS, better="higher"),
        Row(name="jobs that joined the same company there", value=same_place, unit="jobs", note=measured),
        Row(name="a job ended apart by, in the median", value=statistics.median(ended), unit="s", target=APART_S),
        Row(name="all jobs were over apart by", value=abs(last_s - again_s), unit="s", target=APART_S),
        Row(
            name="machines more or fewer", value=fewer, unit="machines", target=0, note=f"{len(real.machines)} of them"
        ),
        Row(
            name="machine time, apart by", value=100 * abs(lived_again_s / lived_s - 1), unit="%", target=10, note=sums
        ),
    ]


@contextmanager
def _daemon(home: Path) -> Iterator[Connection]:
    stage = Stage(home)
    try:
        stage.init(DEMO / "unprofiled.yaml")
        stage.start("daemon")
        stage.until_daemon_answers(90)
        yield Connection(Endpoint(socket=home / "run" / "hcloud.sock"))
    finally:
        stage.take_down()


def _run_jobs(client: Connection, home: Path) -> None:
    """Submit the demo's jobs together, and wait until they are over and their machines gone."""
    stage = Stage(home)
    stage.hcloud("submit", "-y", "-q", str(DEMO / "service.yaml"))
    stage.hcloud("submit", "-y", "-q", str(DEMO / "batch.yaml"))

    def over() -> bool:
        """Whether none of them goes on."""
        states = [job["state"] for job in client.get("/v1/jobs", limit=JOBS)]
        return all(state in OVER for state in states) and not client.get("/v1/instances", limit=JOBS)

    if not holds_within(over, PATIENCE_S, every_s=1.0):
        raise RuntimeError(f"the demo's jobs are not over, or their machines not gone, after {PATIENCE_S:.0f} s")


def _names(jobs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    return {job["id"]: job["spec"]["name"] for job in jobs}


def _replay(client: Connection, clouds: Clouds, boot_s: float, stop_s: float, folder: Path) -> History:
    """Return what becomes of the recorded jobs on these clouds with equal machines that boot and end as those did."""
    measured = {"quality": {"spread": 0.0}, "boot": {"p50_s": boot_s, "p95_s": boot_s}, "stop_s": stop_s}
    equal = {name: {**settings, **measured} for name, settings in clouds.items()}
    setting = Setting(
        workload=recorded_workload(client, EVER_S), policy=load_policy(DEMO / "unprofiled.yaml"), clouds=equal, seed=1
    )
    with simulated(setting, folder) as simulation:
        simulation.run()
        names = {job.id: job.spec.name for job in simulation.store.jobs()}
        return history(told(simulation.events()), names)


def told(events: Iterable[Event]) -> Iterator[dict[str, Any]]:
    """Yield events as the daemon's API tells them."""
    for event in events:
        yield {**asdict(event), "kind": event.kind.value}


def history(events: Iterable[Mapping[str, Any]], names: Mapping[str, str]) -> History:
    """Return what became of the jobs named (names by id), from events as the API tells them, in their order."""
    jobs = _Reader(names)
    for event in events:
        jobs.read(event)
    return jobs.history()


class _Reader:
    """Follows the events; times are kept as they are told, until all is known."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names
        self.kinds: dict[str, tuple[str, str]] = {}
        self.guests: dict[str, list[str]] = {}
        self.began: dict[str, tuple[float, str]] = {}
        self.places: dict[str, Place] = {}
        self.ended: dict[str, float] = {}
        self.machines: dict[str, list[float]] = {}
        self.rented: set[str] = set()
        self.submitted: list[float] = []

    def read(self, event: Mapping[str, Any]) -> None:
        """Take note of one event."""
        machine, name, at = event["instance_id"] or "", self.names.get(event["job_id"] or ""), event["at"]
        match event["kind"]:
            case "job_submitted" if name:
                self.submitted.append(at)
            case "instance_requested":
                self.kinds[machine] = (event["fields"]["type"], event["fields"]["market"])
                self.machines[machine] = [at, inf, inf]
            case "instance_launched":
                self.rented.add(machine)
            case "instance_ready":
                self.machines[machine][1] = at
            case "instance_terminated":
                self.machines[machine][2] = at
            case "unit_started" if name:
                self.began[name] = (at, machine)
                self.places[name] = Place(on=self.kinds[machine], beside=tuple(self.guests.setdefault(machine, [])))
                self.guests[machine].append(name)
            case "job_finished" if name:
                self.ended[name] = at

    def history(self) -> History:
        """Return it all, in seconds from the first submission."""
        first = min(self.submitted, default=0.0)
        return History(
            places=self.places,
            began_s={name: at - first for name, (at, _) in self.began.items()},
            ended_s={name: at - first for name, at in self.ended.items()},
            machines=tuple(
                Machine(kind=self.kinds[name], asked_s=times[0] - first, up_s=times[1] - first, gone_s=times[2] - first)
                for name, times in self.machines.items()
                if name in self.rented
            ),
        )


def differences(real: History, replayed: History, within_s: float) -> list[str]:
    """Return in sentences in what two histories differ; nothing where they agree.

    Places must be the same. Each job must begin and end, and each machine come up and go, within ``within_s`` seconds
    of what the other history says, machines in the order in which they were asked for.
    """
    found = [f"{name} began on {a} and in the replay on {b}" for name, a, b in _differing(real.places, replayed.places)]
    for what, ours, theirs in (("began", real.began_s, replayed.began_s), ("ended", real.ended_s, replayed.ended_s)):
        late = [(name, a, b) for name, a, b in _differing(ours, theirs) if not _near(a, b, within_s)]
        found += [f"{name} {what} after {a} s and in the replay after {b} s" for name, a, b in late]
    if [each.kind for each in real.machines] != [each.kind for each in replayed.machines]:
        return [
            *found,
            f"{len(real.machines)} machines were rented and in the replay {len(replayed.machines)}, or others",
        ]
    for number, (one, other) in enumerate(zip(real.machines, replayed.machines, strict=True), 1):
        for what in ("asked_s", "up_s", "gone_s"):
            a, b = getattr(one, what), getattr(other, what)
            if not _near(a, b, within_s):
                found.append(f"machine {number}, {'/'.join(one.kind)}: {what} is {a:.3g} and in the replay {b:.3g}")
    return found


def _differing(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in sorted({*ours, *theirs}):
        if ours.get(name) != theirs.get(name):
            yield name, ours.get(name), theirs.get(name)


def _near(a: float | None, b: float | None, within_s: float) -> bool:
    return a is not None and b is not None and abs(a - b) <= within_s
