"""Kill the daemon while jobs end that others wait for; restart: none is forgotten, and none starts too early."""

from __future__ import annotations

import os
from functools import partial

from hcloud.core.model import EventKind
from tests.chaos.lives import broken_after_kills, fresh_home, live
from tests.chaos.scene import DEPENDENT, Scene, build, violations

EVERY = 1 if os.environ.get("CHAOS_LIVES") == "all" else 40
play_dependent = partial(build, cast_of=DEPENDENT)


def broken_promises(scene: Scene) -> list[str]:
    """Those of all scenes, and no job was placed before what it waits for had ended."""
    found, ended = violations(scene), set[str]()
    names = {job.id: job.spec.name for job in scene.store.jobs()}
    awaited = {"follows": {"quick", "fails"}, "cleans": {"never"}, "cancelled": {"quick"}}
    for event in scene.store.events(kinds=[EventKind.JOB_FINISHED, EventKind.ATTEMPT_PLACED], limit=1000):
        name = names[event.job_id or ""]
        if event.kind is EventKind.JOB_FINISHED:
            ended.add(name)
        elif not awaited.get(name, set()) <= ended:
            found.append(f"{name} was placed before {awaited[name] - ended}")
    return found


def test_a_kill_between_two_jobs_loses_neither() -> None:
    with fresh_home() as home:
        life = live(home, play_dependent, check=broken_promises)
    assert life.violations == ()
    numbers = [n for n, moment in enumerate(life.passed, 1) if moment.startswith("commit:")]
    broken = broken_after_kills(play_dependent, numbers[::EVERY], broken_promises)
    assert {f"{number} {life.passed[number - 1]}": told for number, told in broken.items()} == {}
