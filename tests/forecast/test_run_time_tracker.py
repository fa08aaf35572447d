"""Run times learnt from the event log: each job once, whenever the reader stopped and went on."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hcloud.core.errors import BadInput
from hcloud.core.model import Event, EventKind
from hcloud.forecast import run_time_tracker
from hcloud.forecast.run_time_tracker import RENEWED_AFTER_S, RunTimeTracker, submission_hour_and_weekday
from hcloud.forecast.runtimes.features import OF_ONE_PROGRAM, RunFeatures

MONDAY_NOON = 1_700_481_600.0
SORT = RunFeatures(user="ann", name="nightly", application="ann:sort", executable="ann:sort~1", size=2.0)


def submitted(seq: int, job: int, features: RunFeatures = SORT) -> Event:
    """Return the event of a submission."""
    fields = {"features": features.to_fields()}
    return Event(seq=seq, at=MONDAY_NOON, kind=EventKind.JOB_SUBMITTED, job_id=f"job-{job}", fields=fields)


def finished(seq: int, job: int, run_s: float, features: RunFeatures = SORT, *, stopped: bool = False) -> Event:
    """Return the event of an end."""
    fields = {"run_s": run_s, "stopped": stopped, "features": features.to_fields()}
    return Event(seq=seq, at=MONDAY_NOON, kind=EventKind.JOB_FINISHED, job_id=f"job-{job}", fields=fields)


def tracker_of(*events: Event) -> RunTimeTracker:
    """Return a tracker that followed these events."""
    tracker = RunTimeTracker()
    tracker.follow(events)
    return tracker


def histories(count: int, run_s: float = 100.0) -> Iterator[Event]:
    """Yield submission and end of jobs that run one after the other."""
    for job in range(1, count + 1):
        yield submitted(2 * job - 1, job)
        yield finished(2 * job, job, run_s)


@st.composite
def logs(draw: st.DrawFn) -> list[Event]:
    """Jobs of few programs that overlap in time, and other events between theirs."""
    events, running, job = list[Event](), list[int](), 0
    programs = [RunFeatures(user=user, application=f"{user}:x", size=1.0) for user in ("ann", "bob")]
    for seq in range(1, draw(st.integers(1, 14)) + 1):
        what = draw(st.integers(0, 3))
        if what == 0:
            events.append(Event(seq=seq, at=MONDAY_NOON, kind=EventKind.SAMPLE, job_id="job-1"))
        elif what == 1 and running:
            ended = running.pop(draw(st.integers(0, len(running) - 1)))
            run_s = draw(st.sampled_from([0.0, 5.0, 60.0, 3000.0]))
            events.append(finished(seq, ended, run_s, programs[ended % 2], stopped=draw(st.booleans())))
        else:
            running.append(job := job + 1)
            events.append(submitted(seq, job, programs[job % 2]))
    return events


@given(logs(), st.lists(st.tuples(st.integers(0, 14), st.integers(0, 14)), max_size=2))
@settings(max_examples=40)
def test_a_reader_that_stops_anywhere_and_reads_some_twice_ends_as_one_that_never_stopped(
    log: Sequence[Event], stops: Sequence[tuple[int, int]]
) -> None:
    interrupted = RunTimeTracker()
    for stored_at, killed_at in sorted(stops):
        interrupted.follow(log[:stored_at])
        state = interrupted.dump()
        interrupted.follow(log[: max(stored_at, killed_at)])  # learnt, but never stored
        interrupted = RunTimeTracker.load(state)
    interrupted.follow(log)
    assert interrupted.dump() == tracker_of(*log).dump()


def test_a_run_is_judged_by_what_was_known_when_it_was_submitted() -> None:
    early = [*histories(8), submitted(17, 9), submitted(18, 10), finished(19, 9, 900.0), finished(20, 10, 900.0)]
    late = [*histories(8), submitted(17, 9), finished(18, 9, 900.0), submitted(19, 10), finished(20, 10, 900.0)]
    judged_early, judged_late = tracker_of(*early).predictor, tracker_of(*late).predictor
    assert judged_early.histories.now == judged_late.histories.now == 10
    assert (judged_early.past_pits != judged_late.past_pits).any()


def test_stopped_runs_count_as_at_least_so_long() -> None:
    stopped = tracker_of(*histories(5), submitted(11, 6), finished(12, 6, 100.0, stopped=True))
    ended = tracker_of(*histories(5), submitted(11, 6), finished(12, 6, 100.0))
    assert stopped.predictor.predict(SORT).quantile(0.5) > ended.predictor.predict(SORT).quantile(0.5)


def test_runs_without_features_or_time_are_left_out() -> None:
    nothing = RunFeatures()
    tracker = tracker_of(
        *(submitted(1, 1, nothing), finished(2, 1, 50.0, nothing)),  # services and profiling runs have none
        *(submitted(3, 2), finished(4, 2, 0.0)),  # cancelled before it ran
    )
    assert (tracker.runs, tracker.seq) == (0, 4)


def test_events_of_releases_without_features_tell_user_name_size_and_time() -> None:
    plain = {"name": "nightly", "target_kind": "batch", "vcpus": 2.0, "nodes": 3, "priority": 1}
    told = [
        Event(seq=1, at=MONDAY_NOON, kind=EventKind.JOB_SUBMITTED, job_id="job-1", user="ann", fields=plain),
        Event(seq=2, at=MONDAY_NOON, kind=EventKind.JOB_FINISHED, job_id="job-1",
              fields={"state": "succeeded", "run_s": 70.0}),
        Event(seq=3, at=MONDAY_NOON, kind=EventKind.JOB_SUBMITTED, job_id="job-2", user="ann",
              fields={**plain, "name": "nightly:profile-type"}),
        Event(seq=4, at=MONDAY_NOON, kind=EventKind.JOB_FINISHED, job_id="job-2",
              fields={"state": "succeeded", "run_s": 5.0}),
    ]  # fmt: skip
    tracker = tracker_of(*told)
    known = RunFeatures(user="ann", name="nightly", queue="batch:1", size=6.0, submit_hour=12, submit_weekday=0)
    assert tracker.runs == 1
    assert tracker.predictor.runs_of(known, ("user", "name")) == tracker.predictor.runs_of(known, ("queue",)) == 1
    assert tracker.predictor.runs_of(known, ("user", "size")) == tracker.predictor.runs_of(known, ("user", "weekday"))


def test_hour_and_weekday_are_those_of_utc() -> None:
    assert submission_hour_and_weekday(MONDAY_NOON) == (12, 0)
    assert submission_hour_and_weekday(MONDAY_NOON + 6.5 * 86400.0) == (0, 0)
    assert submission_hour_and_weekday(0.0) == (0, 3)


def test_jobs_that_never_end_are_forgotten_beyond_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_time_tracker, "MAX_SUBMITTED", 5)
    many = tracker_of(*(submitted(job, job) for job in range(1, 50)))
    few = tracker_of(*(submitted(job, job) for job in range(45, 50)))
    assert many.dump() == few.dump()
    many.follow([finished(50, 1, 30.0)])
    assert many.runs == 1


def test_a_snapshot_never_changes_and_is_renewed_after_a_minute() -> None:
    tracker, now, soon = tracker_of(*histories(20)), MONDAY_NOON, MONDAY_NOON + RENEWED_AFTER_S
    before = tracker.snapshot(now)
    limit_s = before.predict(SORT).quantile(0.9)
    tracker.follow([submitted(41, 21), finished(42, 21, 1e5)])
    assert before.predict(SORT).quantile(0.9) == limit_s
    assert tracker.snapshot(soon - 1.0) is before
    after = tracker.snapshot(soon)
    assert after.predict(SORT).quantile(0.9) == tracker.predictor.predict(SORT).quantile(0.9) > limit_s
    assert tracker.snapshot(soon + RENEWED_AFTER_S) is after, "nothing more was learnt"


def test_a_snapshot_is_renewed_at_once_when_a_program_becomes_known_or_many_runs_ended() -> None:
    other = RunFeatures(user="bob", name="daily", application="bob:zip", executable="bob:zip~1", size=2.0)
    tracker = tracker_of(*histories(20))
    first = tracker.snapshot(MONDAY_NOON)
    tracker.follow([submitted(41, 21, other), finished(42, 21, 7.0, other)])
    known = tracker.snapshot(MONDAY_NOON)
    assert first.runs_of(other, *OF_ONE_PROGRAM) == 0
    assert known.runs_of(other, *OF_ONE_PROGRAM) == 1
    tracker.follow([submitted(43, 22, other), finished(44, 22, 7.0, other), submitted(45, 23), finished(46, 23, 7.0)])
    assert tracker.snapshot(MONDAY_NOON) is known, "two more of 21"
    tracker.follow([submitted(47, 24), finished(48, 24, 7.0)])
    assert tracker.snapshot(MONDAY_NOON) is not known, "three more of 21"


@pytest.mark.parametrize("cut", [0, 20, 37, 60, 100, -1])
def test_a_damaged_state_is_refused(cut: int) -> None:
    with pytest.raises(BadInput, match=r"the state of (tracked )?run times"):
        RunTimeTracker.load(tracker_of(*histories(3)).dump()[:cut])
