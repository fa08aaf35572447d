"""Kill the daemon while tasks of arrays are made, run and recorded; restart: each runs once, and none is lost."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from hcloud.apply import task_runs
from hcloud.core.arrays import positions_in
from hcloud.core.model import Job
from hcloud.core.rows import number_of
from hcloud.store.transaction import Transaction
from tests.chaos.lives import broken_after_kills, fresh_home, live
from tests.chaos.scene import ARRAYS, RUNS, Scene, build, violations

EVERY = 1 if os.environ.get("CHAOS_LIVES") == "all" else 5
play_arrays = partial(build, cast_of=ARRAYS)


def broken_promises(scene: Scene) -> list[str]:
    """Those of all scenes, and each task is recorded once, without a row of its own."""
    found = violations(scene)
    for job in scene.store.jobs():
        tasks, record = job.spec.tasks, job.task_record
        if tasks is not None and record is not None and record.ended != len(tasks):
            found.append(f"{job.id} has recorded {record.ended} of {len(tasks)} tasks")
        found += [f"{task.id} has a row left" for task in scene.store.tasks(job.id)]
    started = {start.unit_id.partition(".")[0] for start in scene.engine.starts("job-")}
    sweep = next(job for job in scene.store.jobs() if job.spec.name == "sweep")
    wanted = {f"job-{int(sweep.id.removeprefix('job-')) + n}" for n in range(1, 9)}
    return found + [f"{each} never ran" for each in sorted(wanted - started)]


@pytest.fixture(scope="module")
def moments() -> tuple[str, ...]:
    """Every moment of an undisturbed life."""
    with fresh_home() as home:
        life = live(home, play_arrays, check=broken_promises)
    assert life.violations == ()
    return life.passed


def test_a_kill_in_an_array_loses_no_task_and_runs_none_twice(moments: tuple[str, ...]) -> None:
    wanted = ("commit:after", "runner.start:")
    numbers = [n for n, moment in enumerate(moments, 1) if moment.startswith(wanted)]
    broken = broken_after_kills(play_arrays, numbers[::EVERY], broken_promises)
    assert {f"{number} {moments[number - 1]}": told for number, told in broken.items()} == {}


def broken_runs(scene: Scene) -> list[str]:
    """Those of all scenes, and each task was given to one unit, which ended it, and has no row."""
    found = violations(scene)
    array = next(job for job in scene.store.jobs() if job.spec.name == "short")
    record = array.task_record
    if record is None or record.succeeded != ((0, 11),):
        found.append(f"what is recorded of its tasks is {record}")
    given = Counter[int]()
    for start in scene.engine.starts("job-"):
        if not 0 < number_of(start.unit_id.partition(".")[0]) - number_of(array.id) <= 12:
            continue  # of the other array
        given.update(positions_in([(first, last) for first, last in start.tasks]))
    found += [f"task {each} was given to {given[each]} units" for each in range(12) if given[each] != 1]
    return found + [f"{task.id} has a row left" for task in scene.store.tasks(array.id)]


def test_a_kill_in_a_run_loses_no_task_and_runs_none_twice() -> None:
    play = partial(build, cast_of=RUNS)
    with fresh_home() as home:
        life = live(home, play, check=broken_runs)
    assert life.violations == ()
    wanted = ("commit:after", "runner.start:")
    numbers = [n for n, moment in enumerate(life.passed, 1) if moment.startswith(wanted)]
    broken = broken_after_kills(play, numbers[:: 7 * EVERY - 6], broken_runs)
    assert {f"{number} {life.passed[number - 1]}": told for number, told in broken.items()} == {}


def test_a_run_whose_tasks_are_made_again_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeded fault: what a unit did counts as not made once it is over."""
    right = task_runs.end_run

    def forgetful(txn: Transaction, job: Job) -> Job:
        array = txn.job(job.array)
        assert array.task_record is not None
        again = replace(array.task_record, made=(), succeeded=())
        txn.put_job(replace(array, task_record=again))
        return right(txn, job)

    monkeypatch.setattr(task_runs, "end_run", forgetful)
    with fresh_home() as home:
        assert live(home, partial(build, cast_of=RUNS), check=broken_runs).violations


def test_a_task_that_is_recorded_but_keeps_its_row_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeded fault: the rows of recorded tasks are not deleted in the same transaction."""
    monkeypatch.setattr(Transaction, "_delete_job_rows", lambda self, numbers: None)
    with fresh_home() as home:
        assert live(home, play_arrays, check=broken_promises).violations
