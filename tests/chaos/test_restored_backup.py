"""A database that is restored from a backup, at random moments: what it does not know ends, and nobody is taken for the
one that had the same number before."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from itertools import combinations
from math import inf
from pathlib import Path

import numpy as np
import pytest

from hcloud.core.model import Attempt, BestEffortTarget, FailureCause, Job, JobSpec, JobState, Resources
from hcloud.provider import unmarked
from hcloud.store import Submission
from tests.chaos.lives import fresh_home
from tests.chaos.scene import CrashPoints, Scene, build, settled

SEEDS = range(8)
MOST_CYCLES = 2_000
# Machines that outlive the backup are what makes it dangerous.
POLICY: dict[str, object] = {"retention": {"spin_up_multiple": 100, "minimum_s": 300}}
BEFORE, LOST, NOW = ["sleep 4", "sleep 30", "true"], ["sleep 3", "sleep 40", "true", "sleep 400"], ["exit 3", "sleep 5"]


def _open(home: Path) -> Scene:
    return build(home, CrashPoints(), policy=POLICY, cloud_settings={"stop_s": 20.0})


def _submit(scene: Scene, when: str, commands: Sequence[str]) -> None:
    specs = [
        JobSpec(
            name=f"{when}: {command}",
            user="ada",
            command=("/bin/sh", "-c", command),
            target=BestEffortTarget(),
            resources=Resources(vcpus=0.5, memory_mib=256, disk_gib=1.0),
        )
        for command in commands
    ]
    scene.store.submit([Submission(spec=each, actor="ada") for each in specs], scene.clock.now())


def _cycle(scene: Scene, times: int) -> None:
    for _ in range(times):
        scene.controller.cycle()
        scene.clock.advance(1.0)


def _copy(source: Path, target: Path) -> None:
    for stale in target.parent.glob(f"{target.name}*"):
        stale.unlink()
    with closing(sqlite3.connect(source)) as live, closing(sqlite3.connect(target)) as copy:
        live.backup(copy)


def _live(home: Path, seed: int) -> Scene:
    """Play a life of which the second part is lost; return its last scene, once all is over."""
    rng = np.random.default_rng(seed)
    scene = _open(home)
    _submit(scene, "before", BEFORE)
    _cycle(scene, int(rng.integers(1, 20)))
    _copy(home / "hcloud.db", home / "backup.db")
    _submit(scene, "lost", [LOST[at] for at in rng.permutation(len(LOST))])
    _cycle(scene, int(rng.integers(3, 40)))
    scene.close()
    _copy(home / "backup.db", home / "hcloud.db")
    scene = _open(home)
    _submit(scene, "now", NOW * 2)
    for _ in range(MOST_CYCLES):
        _cycle(scene, 1)
        if settled(scene):
            return scene
    raise AssertionError(f"seed {seed}: not settled, {scene.store.live()}")


def _as_it_deserves(job: Job) -> bool:
    """Return whether a job ended as its command does, at once; of before, one may have ended in what was lost, which
    leaves nothing to be found."""
    lost = job.spec.name.startswith("before") and set(job.failures) == {FailureCause.INSTANCE_LOST}
    exits = [FailureCause.EXIT_CODE] if "exit" in job.spec.name else []
    ended = JobState.FAILED if exits else JobState.SUCCEEDED
    return job.state is ended and (lost or list(job.failures) == exits)


def _namesakes(scene: Scene) -> list[str]:
    """Return the machines that were up while another had their name, by which their workers are known."""
    by_launch = sorted(scene.cloud.machines(scene.clock.now()), key=lambda each: each.launched_at)
    return [
        f"{later.provider_id} is called {later.instance_id}, as {earlier.provider_id} is that is still up"
        for earlier, later in combinations(by_launch, 2)
        if later.instance_id == earlier.instance_id and later.launched_at < (earlier.terminated_at or inf)
    ]


def _violations(seed: int) -> list[str]:
    with fresh_home() as home:
        scene = _live(home, seed)
        try:
            everybody = scene.store.jobs(limit=100)
            assert len(everybody) == len(BEFORE) + 2 * len(NOW)
            found = [
                f"{job.id} ({job.spec.name}) ended as {job.state} after {job.failures}"
                for job in everybody
                if not _as_it_deserves(job)
            ]
            found += _namesakes(scene)
            units = [start.unit_id for start in scene.engine.starts()]
            return found + [f"{unit} was started twice" for unit in {u for u in units if units.count(u) > 1}]
        finally:
            scene.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_jobs_of_a_restored_database_end_as_they_deserve(seed: int) -> None:
    assert _violations(seed) == []


def test_units_that_share_an_id_with_those_of_before_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeded fault: ids without the time of placement."""
    honest = Attempt.unit_id
    monkeypatch.setattr(Attempt, "unit_id", lambda self, rank: unmarked(honest(self, rank)))
    assert any(_violations(seed) for seed in SEEDS)
