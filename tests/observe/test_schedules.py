"""Schedules fire by a given clock: once for each time, and as their overlap says."""

from contextlib import suppress
from dataclasses import replace

import pytest

from hcloud.apply.transitions import transition_job
from hcloud.core.arrays import TaskList
from hcloud.core.clock import ManualClock
from hcloud.core.errors import Refused
from hcloud.core.model import Event, EventKind, Job, JobState, Reason
from hcloud.core.schedules import Overlap, Recurrence, Schedule
from hcloud.schedules import Schedules, pause_schedule, save_schedule
from hcloud.store import MemoryStore
from tests.store.samples import SPEC

HOUR = 3600.0
WHY = Reason(code="test", text="a test says so")


class Site:
    """A store, a clock at the beginning of an hour, and a schedule that fires each hour."""

    def __init__(self, overlap: Overlap = "skip", **changes: object) -> None:
        self.store, self.clock = MemoryStore(), ManualClock(1_900_000_800.0)
        self.schedules = Schedules(self.store, self.clock)
        rule = Recurrence(cron="@hourly", overlap=overlap)
        spec = replace(SPEC, **changes)  # type: ignore[arg-type]
        given = Schedule(id="", spec=spec, recurrence=rule, created_at=0.0, next_at=None, secrets={"T": "k.x"})
        save_schedule(self.store, given, "ann", self.clock.now())

    def pass_hours(self, count: int = 1) -> None:
        """Let hours pass, with a cycle after each."""
        for _ in range(count):
            self.clock.advance(HOUR)
            self.schedules.fire(None)
            self.schedules.fire(None)  # what fired is not due any more

    def end(self, job_id: str, state: JobState = JobState.FAILED) -> None:
        """End a job."""
        with self.store.transaction(self.clock.now()) as tx:
            transition_job(tx, tx.job(job_id), state, WHY)

    @property
    def jobs(self) -> list[Job]:
        """Its jobs, oldest first."""
        return list(reversed(self.store.jobs()))

    def events(self, what: str) -> list[Event]:
        """Return its events of one kind."""
        return [each for each in self.store.events(kinds=[EventKind.SCHEDULE]) if each.fields["what"] == what]


def test_each_time_submits_one_job_with_tag_and_secrets() -> None:
    site = Site("allow")
    site.pass_hours(2)
    first, second = site.jobs
    assert (first.spec.tags, first.spec.user) == ({"team": "search", "hcloud.schedule": "sched-1"}, "ann")
    assert second.submitted_at - first.submitted_at == HOUR
    assert site.store.job_secrets(first.id) == {"T": "k.x"}
    (schedule,) = site.store.schedules()
    assert (schedule.jobs, schedule.fired_at) == (("job-1", "job-2"), site.clock.now())
    assert [event.job_id for event in site.events("fired")] == ["job-1", "job-2"]


def test_skip_leaves_a_run_out_while_the_one_before_goes_on() -> None:
    site = Site("skip")
    site.pass_hours(2)
    assert [job.id for job in site.jobs] == ["job-1"]
    (skipped,) = site.events("skipped")
    assert str(skipped.fields["text"]).endswith("was left out: job-1 has not ended")
    site.end("job-1")
    site.pass_hours()
    assert [job.id for job in site.jobs] == ["job-1", "job-2"]


def test_queue_lets_one_run_wait_for_the_one_before() -> None:
    site = Site("queue")
    site.pass_hours(3)
    assert [(job.id, job.is_held) for job in site.jobs] == [("job-1", False), ("job-2", True)]
    assert "job-2 waits already" in str(site.events("skipped")[0].fields["text"])
    site.end("job-1")
    site.pass_hours()
    assert [(job.id, job.is_held) for job in site.jobs[1:]] == [("job-2", False), ("job-3", True)]


def test_replace_cancels_the_run_before_and_starts_once_that_has_ended() -> None:
    site = Site("replace", tasks=TaskList(ranges=((0, 1, 1),)))
    site.pass_hours(2)
    first, second = site.jobs
    assert (first.cancelled_by, second.is_held) == ("schedule sched-1", True)
    site.end(first.id, JobState.CANCELLED)
    assert not site.store.job(second.id).is_held


def test_allow_starts_runs_beside_each_other() -> None:
    site = Site("allow")
    site.pass_hours(3)
    assert [job.is_held for job in site.jobs] == [False] * 3


def test_nothing_is_made_up_for_after_a_pause_and_missed_runs_are_counted() -> None:
    site = Site("allow")
    site.clock.advance(5.5 * HOUR)
    site.schedules.fire(None)
    assert site.jobs == []
    assert [event.fields["count"] for event in site.events("missed")] == [5]
    pause_schedule(site.store, "sched-1", "ann", site.clock.now())
    site.pass_hours(2)
    assert site.jobs == []


def test_a_run_that_policy_forbids_is_left_out_with_the_reason() -> None:
    site = Site("allow")

    def full(specs: object) -> None:
        raise Refused("the queue is full")

    site.schedules.admit = full
    site.pass_hours()
    assert site.jobs == [] and "the queue is full" in str(site.events("skipped")[0].fields["text"])


def test_a_crash_submits_a_run_once_and_loses_none() -> None:
    for moment in ("commit:before", "commit:after"):
        site = Site("allow")
        site.clock.advance(HOUR)

        def crash(label: str, moment: str = moment) -> None:
            if label == moment:
                raise KeyboardInterrupt

        site.store.crash_point = crash
        with suppress(KeyboardInterrupt):
            site.schedules.fire(None)
        site.store.crash_point = None
        Schedules(site.store, site.clock).fire(None)
        assert [job.id for job in site.jobs] == ["job-1"], moment


def test_a_defect_of_one_schedule_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site("allow")
    other = Schedule(id="", spec=replace(SPEC, name="other"), recurrence=Recurrence(cron="@hourly"), created_at=0.0,
                     next_at=None)  # fmt: skip
    save_schedule(site.store, other, "ann", site.clock.now())
    run = Schedules._run

    def broken(self: Schedules, txn: object, schedule: Schedule, due_at: float) -> Schedule:
        return 1 / 0 if schedule.id == "sched-1" else run(self, txn, schedule, due_at)  # type: ignore[arg-type, return-value]

    monkeypatch.setattr(Schedules, "_run", broken)
    site.pass_hours()
    assert [job.spec.name for job in site.jobs] == ["other"]
    monkeypatch.undo()
    site.clock.advance(400.0)
    site.schedules.fire(None)
    assert site.events("missed")  # it goes on, though that run came too late


def test_the_next_runs_are_known_ahead_until_they_fire_or_are_paused() -> None:
    site = Site()
    now = site.clock.now()
    [run] = site.schedules.upcoming(now, HOUR)
    assert (run.schedule, run.due_at - now, run.spec.name, run.nodes) == ("sched-1", HOUR, SPEC.name, 1)
    site.clock.advance(run.due_at - now)
    site.schedules.fire(None)
    [after] = site.schedules.upcoming(site.clock.now(), 2 * HOUR)
    assert after.due_at == run.due_at + HOUR
    pause_schedule(site.store, "sched-1", "ann", site.clock.now())
    site.clock.advance(20.0)
    assert site.schedules.upcoming(site.clock.now(), 2 * HOUR) == ()
