"""Random clouds full of trouble, random restarts, a store that fails now and then: all still ends as promised."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hcloud.controller import Controller
from hcloud.core.errors import StoreError
from hcloud.core.model import (
    BestEffortTarget,
    EventKind,
    FailureCause,
    Instance,
    JobSpec,
    JobState,
    Nodes,
    Resources,
    Retries,
)
from hcloud.fake_runner.runner import StartFault
from hcloud.observe.instances import InstanceObserver
from hcloud.planner.invariants import check_invariants
from hcloud.planner.snapshot import Snapshot
from hcloud.provider import Listing, unmarked
from hcloud.store import Submission
from tests.assembled import observes_as
from tests.chaos.lives import fresh_home
from tests.chaos.scene import CrashPoints, Scene, build, settled

SEEDS = range(6)
JOBS = 12
TROUBLED_S = 400.0
MOST_CYCLES = 6_000
PATIENT = Retries(limits={cause.value: 1000 for cause in FailureCause}, backoff_s=1.0, backoff_cap_s=10.0)
POLICY: dict[str, object] = {
    "budgets": {"per_day_usd": 400.0},
    "caps": {"max_instances": 6},
    "boot": {"timeout_s": 60},
    "unreachable": {"terminate_after_s": 30},
    "stockout": {"backoff_s": 5, "backoff_cap_s": 20},
    "lease": {"horizon_s": 900, "renew_before_s": 300},
}


def _cloud(seed: int) -> dict[str, Any]:
    """A cloud in which each kind of trouble is common for a while."""
    kinds = ("throttle", "be_away", "run_out", "lose_request", "lose_reply", "answer_late", "list_partly", "list_late")
    chances = {kind: float(p) for kind, p in zip(kinds, np.random.default_rng(seed).uniform(0, 0.25, 8), strict=True)}
    return {
        "seed": seed,
        "zones": ["east-1a", "east-1b"],
        "markets": ["on_demand", "spot"],
        "boot": {"p50_s": 5, "p95_s": 40},
        "chances": {**chances, "never_boot": 0.05},
        "deaths_per_h": 6.0,
        "spot": {"preemptions_per_h": 10.0, "notice_s": 20},
        "list_lag_s": 8,
    }


def _submit(scene: Scene, rng: np.random.Generator) -> None:
    """Submit jobs of 5 to 60 s, some of them gangs."""
    specs = [
        JobSpec(
            name=f"job {n}",
            user=f"user{n % 3}",
            command=("sleep", str(int(rng.integers(5, 60)))),
            target=BestEffortTarget(),
            resources=Resources(vcpus=1.0, memory_mib=512, disk_gib=1.0),
            nodes=Nodes(count=2, minimum=2) if n % 5 == 0 else Nodes(),
            retries=PATIENT,
        )
        for n in range(JOBS)
    ]
    scene.store.submit([Submission(spec=s, actor=s.user, token=s.name) for s in specs], scene.clock.now())


def _trouble(scene: Scene, rng: np.random.Generator, moment: CrashPoints) -> None:
    """Now and then: the engine away, a worker silent, starts whose outcome is unknown, a commit that fails."""
    workers = sorted(scene.controller.last_seen.reachable)
    draw = rng.random()
    if draw < 0.02:
        scene.engine.disconnect()
    elif draw < 0.2:
        scene.engine.reconnect()
    elif draw < 0.24 and workers:
        scene.engine.silence(workers[int(rng.integers(len(workers)))])
    elif draw < 0.4:
        lost = StartFault.LOSE_REQUEST if draw < 0.35 else StartFault.NOT_SENT
        scene.engine.inject(StartFault.LOSE_REPLY if draw < 0.3 else lost)
    for worker in sorted(scene.controller.observer.silent):
        if rng.random() < 0.05:
            scene.engine.unsilence(worker)
    moment.fail_commit_in = int(rng.integers(1, 4)) if rng.random() < 0.1 else None


def _calm(scene: Scene, moment: CrashPoints) -> None:
    """Let all trouble of our own making stop."""
    moment.fail_commit_in = None
    scene.engine.reconnect()
    for worker in sorted(scene.controller.observer.silent):
        scene.engine.unsilence(worker)


def _live(home: Path, seed: int, bug: Callable[[Controller], None] = lambda _: None) -> Scene:
    """Play one random life with restarts; return its last scene."""
    rng = np.random.default_rng(seed)
    moment = CrashPoints()
    reopen = partial(build, home, moment, policy=POLICY, bug=bug)
    scene = reopen(cloud_settings=_cloud(seed))
    _submit(scene, rng)
    began_at = scene.clock.now()
    for _ in range(MOST_CYCLES):
        troubled = scene.clock.now() - began_at < TROUBLED_S
        if rng.random() < 0.02 and troubled:
            scene.close()
            scene = reopen(cloud_settings=_cloud(seed))
        if troubled:
            _trouble(scene, rng, moment)
        else:
            _calm(scene, moment)
        with suppress(StoreError):
            scene.controller.cycle()
        view = scene.store.live()
        snapshot = Snapshot(now=scene.clock.now(), jobs=view.jobs, instances=view.instances)
        assert check_invariants(snapshot, None) == []
        if not troubled and settled(scene):
            return scene
        scene.clock.advance(float(rng.choice([0.2, 1.0, 1.0, 3.0])))
    raise AssertionError(f"seed {seed}: not settled, {scene.store.live()}")


def _violations(scene: Scene) -> list[str]:
    now = scene.clock.now()
    found = [
        f"{j.id} is {j.state}: {j.outcome}" for j in scene.store.jobs(limit=100) if j.state is not JobState.SUCCEEDED
    ]
    units = [unmarked(start.unit_id) for start in scene.engine.starts("job-")]
    found += [f"{unit} was started twice" for unit in sorted(set(units)) if units.count(unit) > 1]
    machines = scene.cloud.machines(now)
    tokens = {row.token for row in scene.store.instances(live_only=False, limit=10_000)}
    found += [f"{m.provider_id} has no record" for m in machines if m.token not in tokens]
    found += [f"{m.provider_id} still runs" for m in machines if m.terminated_at is None]
    if scene.cloud.billed_usd(now) > 400.0:
        found.append("overspent")
    return found + _reruns_beside_the_living(scene)


def _reruns_beside_the_living(scene: Scene) -> list[str]:
    """A job whose machine was lost may start again only when, in truth, that machine was gone."""
    gone_at = {m.instance_id: m.terminated_at for m in scene.cloud.machines(scene.clock.now())}
    starts = {unmarked(start.unit_id): start for start in scene.engine.starts("job-")}
    found = []
    for event in scene.store.events(kinds=[EventKind.UNIT_ENDED], limit=100_000):
        if event.fields["cause"] not in ("instance_lost", "preempted") or event.fields["exit_code"] is not None:
            continue
        job, number = str(event.fields["attempt"]).split(".")
        again = starts.get(f"{job}.{int(number) + 1}.{event.fields['rank']}")
        ended_at = gone_at.get(event.instance_id or "")
        if again is not None and (ended_at is None or again.at < ended_at):
            found.append(f"{again.unit_id} started while {event.instance_id} was up")
    return found


def _broken(seed: int, bug: Callable[[Controller], None] = lambda _: None) -> list[str]:
    """Return the promises broken in one random life."""
    with fresh_home() as home:
        scene = _live(home, seed, bug)
        try:
            return _violations(scene)
        finally:
            scene.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_everything_ends_as_promised_whatever_the_trouble(seed: int) -> None:
    assert _broken(seed) == []


class Gullible(InstanceObserver):
    """A seeded fault: takes absence from any listing, however partial, for the end of a machine."""

    def _surely_absent(self, instance: Instance, listing: Listing, asked_at: float) -> bool:
        return instance.provider_id is not None


def test_a_daemon_that_believes_partial_listings_is_found_out() -> None:
    assert any("while" in violation for seed in SEEDS for violation in _broken(seed, observes_as(Gullible)))
