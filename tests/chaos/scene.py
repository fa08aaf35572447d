"""A whole small deployment that outlives its process: store, mock cloud, fake engine and clock are in files.

Every call to a port and every commit passes a :class:`CrashPoints`, which counts them and, when told to, kills this
process with SIGKILL immediately before or after one of them.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from hcloud.controller import Controller
from hcloud.core.arrays import TaskList
from hcloud.core.dependencies import Ending, Upstream
from hcloud.core.errors import StoreBusy
from hcloud.core.model import JOB_ENDED, BatchTarget, BestEffortTarget, InstanceState, Job, JobSpec, Nodes, Resources
from hcloud.fake_runner.runner import FakeRunner
from hcloud.forecast.run_time_tracker import RunTimeTracker
from hcloud.provider import Provider, Runner, unmarked
from hcloud.store import Store, Submission
from lab.soak.crash_points import CrashPointProxy
from providers.mock import MockProvider
from tests.assembled import assembled
from tests.databases import sqlite_url

OWNER = "hcloud-chaos"
START_AT = 1_900_000_000.0
MOST_CYCLES = 300
LATE_AFTER_CYCLES, LATE_STEP_S = 150, 5.0
"""A life that has not settled by then goes on in longer steps, until the last lease has long run out."""
BUDGET_PER_DAY_USD = 10.0
"""Room for three machines paid ahead to their horizon ($3 each), and for many that end early."""
POLICY = {
    "budgets": {"per_day_usd": BUDGET_PER_DAY_USD},
    "caps": {"max_instances": 4},
    "retention": {"spin_up_multiple": 1, "maximum_s": 10},
    "lease": {"horizon_s": 600, "renew_before_s": 120},
    "boot": {"timeout_s": 60},
    "timing": {"sample_every_s": 5},
}
CLOUD: dict[str, object] = {
    "types": {"m.one": {"vcpus": 2, "memory_mib": 4096, "usd_per_h": 18.0}},
    "zones": ["east-1a"],
    "markets": ["on_demand"],
    "boot": {"p50_s": 2, "p95_s": 2},
    "stop_s": 1,
    "list_lag_s": 3,
    "persist": True,
}
SPECS = (
    ("quick", ("sleep", "2"), Nodes()),
    ("fails", ("/bin/sh", "-c", "exit 3"), Nodes()),
    ("pair", ("sleep", "3"), Nodes(count=2, minimum=2)),
    ("cancelled", ("sleep", "500"), Nodes()),
)
ENDS = {"quick": "succeeded", "fails": "failed", "pair": "succeeded", "cancelled": "cancelled"}


class FileClock:
    """A manual clock whose time is in a file, so that it goes on where a killed process left it."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(struct.pack("d", START_AT))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8)

    def now(self) -> float:
        """Return the time last set, by whichever process."""
        moment: float = struct.unpack("d", self._map[:8])[0]
        return moment

    def advance(self, seconds: float) -> None:
        """Move on."""
        self._map[:8] = struct.pack("d", self.now() + seconds)

    def wait(self, wake: threading.Event, timeout_s: float) -> bool:
        """Jump ahead at once."""
        self.advance(timeout_s)
        return wake.is_set()


@dataclass(slots=True)
class CrashPoints:
    """Counts the moments around effects; kills the process at number ``kill_at`` (from 1). ``look`` is told each."""

    kill_at: int | None = None
    look: Callable[[int], None] = lambda _: None
    passed: list[str] = field(default_factory=list)
    fail_commit_in: int | None = None
    """So many commits from now, one fails."""

    def hit(self, label: str) -> None:
        """Note a moment, and die here if this is the one."""
        self.passed.append(label)
        self.look(len(self.passed))
        if label == "commit:before" and self.fail_commit_in is not None:
            self.fail_commit_in -= 1
            if self.fail_commit_in == 0:
                raise StoreBusy("the database is locked (a test says so)")
        if len(self.passed) == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, inner: object, names: Sequence[str], prefix: str) -> object:
        """Return ``inner`` with the methods ``names`` hit before and after."""
        return CrashPointProxy(inner, {name: f"{prefix}.{name}" for name in names}, self.hit)


@dataclass(frozen=True, slots=True)
class Cast:
    """The jobs that are played (name, command, nodes), how they must end, what is added to the policy; ``step_s`` lies
    between two cycles."""

    specs: Sequence[tuple[str, tuple[str, ...], Nodes]]
    ends: Mapping[str, str]
    policy: Mapping[str, object] = field(default_factory=dict)
    promised: frozenset[str] = frozenset({"quick"})
    step_s: float = 1.0
    tasks: Mapping[str, TaskList] = field(default_factory=dict)
    """The tasks of those that are arrays."""
    after: Mapping[str, Mapping[Upstream, Ending]] = field(default_factory=dict)
    """What jobs wait for, by place."""


EVERYDAY = Cast(SPECS, ENDS)
PROFILED = Cast(
    specs=(
        ("learns", ("sleep", "2"), Nodes()),
        ("alike", ("sleep", "3"), Nodes()),
        ("cancelled", ("/bin/sh", "-c", "sleep 400; echo done"), Nodes()),
    ),
    ends={"learns": "succeeded", "alike": "succeeded", "cancelled": "cancelled"},
    policy={"profiling": {"when": "before", "types": 1, "run_s": 0.5, "total_s": 6, "max_share_of_slack": 1,
                          "skip_if_shorter_than_s": 0, "max_usd_per_job": None, "max_share_of_budget": 1}},
    promised=frozenset({"learns", "alike", "cancelled"}),
)  # fmt: skip
"""A job that is profiled, one of the same program that is looked at, one that is cancelled while it is profiled."""


ARRAYS = Cast(
    specs=(("sweep", ("sleep", "1"), Nodes()), ("cancelled", ("sleep", "500"), Nodes())),
    ends={"sweep": "succeeded", "cancelled": "cancelled"},
    promised=frozenset({"sweep"}),
    tasks={
        "sweep": TaskList(ranges=((0, 4, 1), (10, 16, 3)), at_most=3),
        "cancelled": TaskList(ranges=((0, 29, 1),), at_most=1),
    },
)
"""An array that may run three tasks at once, and one that is cancelled while its first tasks run."""


RUNS = Cast(
    specs=(("short", ("sleep", "1"), Nodes()), ("cancelled", ("sleep", "500"), Nodes())),
    ends={"short": "succeeded", "cancelled": "cancelled"},
    promised=frozenset({"short"}),
    tasks={
        "short": TaskList(ranges=((0, 11, 1),), at_most=2, per_unit=4),
        "cancelled": TaskList(ranges=((0, 7, 1),), at_most=1, per_unit=4),
    },
)
"""An array of which four tasks share a unit, and one that is cancelled while the first of them runs."""


DEPENDENT = Cast(
    specs=(
        ("quick", ("sleep", "1"), Nodes()),
        ("fails", ("/bin/sh", "-c", "exit 3"), Nodes()),
        ("follows", ("sleep", "1"), Nodes()),
        ("never", ("sleep", "1"), Nodes()),
        ("cleans", ("sleep", "1"), Nodes()),
        ("cancelled", ("sleep", "500"), Nodes()),
    ),
    ends={"quick": "succeeded", "fails": "failed", "follows": "succeeded", "never": "cancelled", "cleans": "succeeded",
          "cancelled": "cancelled"},
    after={"follows": {0: "succeeded", 1: "failed"}, "never": {1: "succeeded"}, "cleans": {3: "finished"},
           "cancelled": {0: "succeeded"}},
)  # fmt: skip
"""Jobs that wait for others: for an end that comes, for one that does not come, and for a job that never starts."""


@dataclass(slots=True)
class Scene:
    """The parts of one process's life."""

    home: Path
    clock: FileClock
    cloud: MockProvider
    engine: FakeRunner
    controller: Controller
    cast: Cast = EVERYDAY

    @property
    def store(self) -> Store:
        """The database."""
        return self.controller.store

    def close(self) -> None:
        """Let go of the database."""
        self.store.close()


def build(
    home: Path,
    crash: CrashPoints,
    *,
    cloud_settings: Mapping[str, object] | None = None,
    policy: Mapping[str, object] | None = None,
    provider_of: Callable[[MockProvider], object] = lambda cloud: cloud,
    bug: Callable[[Controller], None] = lambda _: None,
    cast_of: Cast = EVERYDAY,
) -> Scene:
    """Open the deployment in ``home``, whatever an earlier process left there; the options seed faults and bugs."""
    clock = FileClock(home / "clock")
    cloud = MockProvider("mock", {**CLOUD, **(cloud_settings or {})}, clock, OWNER, str(home))
    engine = FakeRunner([cloud], clock)
    runner = cast(
        Runner, crash.around(engine, ("observe", "start", "stop", "resize", "renew", "read_logs", "forget"), "runner")
    )
    plain = {**POLICY, **cast_of.policy, **(policy or {})}
    controller = opened(home, crash, clock, provider_of(cloud), runner, plain)
    bug(controller)
    return Scene(home=home, clock=clock, cloud=cloud, engine=engine, controller=controller, cast=cast_of)


def opened(
    home: Path,
    crash: CrashPoints,
    clock: FileClock,
    cloud: object,
    runner: Runner,
    policy: Mapping[str, object],
    *,
    poll_s: float = 1.0,
    tls_dir: Path | None = None,
) -> Controller:
    """Open the store in ``home``, put the cycle together; each call to the cloud and each commit passes ``crash``."""
    store = Store.open(sqlite_url(home / "hcloud.db"))
    store.crash_point = crash.hit
    provider = cast(Provider, crash.around(cloud, ("offers", "launch", "instances", "terminate"), "provider"))
    return assembled(home, store, provider, runner, clock, policy, owner=OWNER, poll_s=poll_s, tls_dir=tls_dir)


def submissions(cast_of: Cast = EVERYDAY) -> list[Submission]:
    """The jobs a stubborn client submits again and again under the same tokens until it hears that they were taken."""
    return [
        Submission(
            spec=JobSpec(
                name=name,
                user="ada",
                command=command,
                target=BatchTarget(finish_within_s=120) if name in cast_of.promised else BestEffortTarget(),
                nodes=nodes,
                resources=Resources(vcpus=1.5, memory_mib=1024, disk_gib=1.0),
                tasks=cast_of.tasks.get(name),
            ),
            actor="ada",
            after=cast_of.after.get(name, {}),
            token=f"token-{name}",
        )
        for name, command, nodes in cast_of.specs
    ]


def play(scene: Scene) -> int:
    """Submit, cycle until every job and machine has ended; return the number of cycles, or fail after too many."""
    jobs = scene.store.submit(submissions(scene.cast), scene.clock.now())
    victim = next(job.id for job in jobs if job.spec.name == "cancelled")
    for cycle in range(MOST_CYCLES):
        scene.controller.cycle()
        if settled(scene):
            return cycle
        if scene.clock.now() > START_AT + 6:
            scene.store.request_cancel(victim, "ada", scene.clock.now())
        scene.clock.advance(scene.cast.step_s if cycle < LATE_AFTER_CYCLES else max(scene.cast.step_s, LATE_STEP_S))
    raise AssertionError(f"not settled after {MOST_CYCLES} cycles: {scene.store.live()}")


def settled(scene: Scene) -> bool:
    """Return whether nothing is left to do, run or pay."""
    view = scene.store.live()
    up = [m for m in scene.cloud.machines(scene.clock.now()) if m.terminated_at is None]
    return not view.submitted and not view.jobs and not view.instances and not view.intents and not up


def violations(scene: Scene) -> list[str]:
    """Return every broken promise: jobs lost or run twice, machines and records without each other, overspending."""
    now = scene.clock.now()
    everybody, ends = scene.store.jobs(limit=1000), scene.cast.ends
    jobs = {job.spec.name: job for job in everybody if job.spec.profile is None}
    found = [f"job {name} was lost" for name in ends if name not in jobs]
    found += [
        f"{job.id} ({name}) is {job.state}, not {ends[name]}: {job.outcome}"
        for name, job in jobs.items()
        if job.state not in JOB_ENDED or job.state != ends[name]
    ]
    found += _profiled_twice(everybody) + _run_twice(scene)
    machines = scene.cloud.machines(now)
    rows = scene.store.instances(live_only=False)
    tokens = {row.token for row in rows}
    found += [f"machine {m.provider_id} has no record" for m in machines if m.token not in tokens]
    found += [f"token {t} launched twice" for t in tokens if sum(m.token == t for m in machines) > 1]
    real = {m.token for m in machines}
    found += [f"{r.id} was never a machine" for r in rows if r.launched_at is not None and r.token not in real]
    found += [f"{r.id} is left {r.state}" for r in rows if r.state is not InstanceState.TERMINATED]
    found += [f"machine {m.provider_id} still runs" for m in machines if m.terminated_at is None]
    billed = scene.cloud.billed_usd(now)
    if billed > BUDGET_PER_DAY_USD:
        found.append(f"{billed} USD were billed, {BUDGET_PER_DAY_USD} allowed")
    return found + _miscounted_run_times(scene)


def _miscounted_run_times(scene: Scene) -> list[str]:
    """What is stored of run times is what one reading of the log teaches, up to the same event."""
    state = scene.store.run_times()
    if state is None:
        return []
    stored, expected = RunTimeTracker.load(state), RunTimeTracker()
    expected.follow(event for event in scene.store.iter_events() if event.seq <= stored.seq)
    same = expected.dump() == state
    return [] if same else [f"{stored.runs} run times were learnt up to event {stored.seq}, not {expected.runs}"]


def _profiled_twice(everybody: Sequence[Job]) -> list[str]:
    """Every profiling run has ended and belongs to a job that knows it; no job has two runs for the same."""
    by_id = {job.id: job for job in everybody}
    runs = [job for job in everybody if job.spec.profile is not None]
    found = [f"{run.id} is left {run.state}" for run in runs if run.state not in JOB_ENDED]
    for run in runs:
        parent = by_id.get(run.spec.profile.job_id) if run.spec.profile is not None else None
        if parent is None or run.id not in parent.profile_runs:
            found.append(f"{run.id} is a profiling run of nobody")
    for job in everybody:
        names = [by_id[run].spec.name for run in job.profile_runs if run in by_id]
        if len(names) < len(job.profile_runs) or len(set(names)) < len(names):
            found.append(f"{job.id} has the profiling runs {names} of {job.profile_runs}")
    return found


def _run_twice(scene: Scene) -> list[str]:
    """No machine was lost here, so every rank of every job may have been started once, over all attempts."""
    starts: dict[str, int] = {}
    for start in scene.engine.starts("job-"):
        job, _attempt, rank = unmarked(start.unit_id).split(".")
        job_and_rank = f"{job} rank {rank}"
        starts[job_and_rank] = starts.get(job_and_rank, 0) + 1
    return [f"{who} was started {times} times" for who, times in sorted(starts.items()) if times > 1]
