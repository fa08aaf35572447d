"""A deployment on the mock cloud and the fake engine, driven cycle by cycle on a clock that stands still in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hcloud.core.model import BestEffortTarget, Event, EventKind, Job, JobSpec, JobState, Resources
from hcloud.planner.invariants import check_invariants
from hcloud.planner.snapshot import Snapshot
from hcloud.provider import unmarked
from hcloud.store import Submission
from tests.chaos.scene import CrashPoints, Scene, build

SMALL = Resources(vcpus=1.0, memory_mib=512, disk_gib=1.0)


@dataclass(slots=True)
class Deployment:
    """Wraps a scene with the verbs of these tests."""

    scene: Scene
    build: Callable[[], Scene]

    def restart(self) -> None:
        """Let a new process take over: all that was only in memory is gone (the cloud must be a persistent one)."""
        self.scene.close()
        self.scene = self.build()

    @property
    def now(self) -> float:
        return self.scene.clock.now()

    def submit(self, *command: str, count: int = 1, **spec: Any) -> list[Job]:
        """Submit ``count`` jobs that run ``command``."""
        given: dict[str, Any] = {
            "name": "job",
            "user": "ada",
            "command": command or ("sleep", "5"),
            "target": BestEffortTarget(),
            "resources": SMALL,
            **spec,
        }
        return list(self.scene.store.submit([Submission(spec=JobSpec(**given), actor="ada")] * count, self.now))

    def cycle(self, times: int = 1, step_s: float = 1.0) -> None:
        """Run cycles, each followed by a step of the clock; after each the world must be in order."""
        for _ in range(times):
            self.scene.controller.cycle()
            self.check()
            self.scene.clock.advance(step_s)

    def check(self) -> None:
        """Assert what must hold after every cycle."""
        view = self.scene.store.live()
        assert check_invariants(Snapshot(now=self.now, jobs=view.jobs, instances=view.instances)) == []

    def until(self, condition: Callable[[], object], cycles: int = 120, step_s: float = 1.0) -> None:
        """Run cycles until ``condition`` holds."""
        for _ in range(cycles):
            if condition():
                return
            self.cycle(step_s=step_s)
        raise AssertionError(f"still not after {cycles} cycles; {self.scene.store.live()}")

    def job(self, number: int = 1) -> Job:
        return self.scene.store.job(f"job-{number}")

    def state(self, number: int = 1) -> JobState:
        return self.job(number).state

    def until_state(self, *states: JobState, number: int = 1) -> None:
        """Run cycles until a job is in one of ``states``."""
        self.until(lambda: self.state(number) in states)

    def events(self, kind: EventKind) -> list[Event]:
        return list(self.scene.store.events(kinds=[kind], limit=10_000))

    def machines_up(self) -> list[str]:
        """Return the provider's ids of machines that are up in truth."""
        return [m.provider_id for m in self.scene.cloud.machines(self.now) if m.terminated_at is None]

    def starts(self, job_id: str) -> list[str]:
        """Return the units of a job that were really started, without their marks."""
        return [unmarked(start.unit_id) for start in self.scene.engine.starts(f"{job_id}.")]

    def unit(self, number: int = 1, rank: int = 0) -> str:
        """Return the id of a rank's unit, of the present attempt."""
        attempt = self.job(number).attempt
        assert attempt is not None
        return attempt.unit_id(rank)


def deployment(
    home: Path, cloud: Mapping[str, object] | None = None, policy: Mapping[str, object] | None = None
) -> Deployment:
    """Open a deployment on a cloud in memory: one type of 2 vCPUs at $0.30/h, up 2 s after launch."""
    settings: dict[str, object] = {
        "types": {"m.one": {"vcpus": 2, "memory_mib": 4096, "usd_per_h": 0.3}},
        **(cloud or {}),
    }
    plain: dict[str, object] = {"budgets": {}, "caps": {"max_instances": 10}, **(policy or {})}
    rebuild = partial(build, home, CrashPoints(), cloud_settings=settings, policy=plain)
    return Deployment(rebuild(), rebuild)
