"""The critical path: a job that others wait for is planned by their deadlines, less what follows it."""

from hcloud.core.dependencies import Dependency
from hcloud.core.model import BatchTarget, BestEffortTarget, Job, JobState, ServiceTarget, Target
from hcloud.core.rows import RowJournal, number_of
from hcloud.due_times import DueTimes
from hcloud.planner.due_times import critical_path, due_times, planned_by
from hcloud.planner.run_times import NO_RUN_TIMES
from tests.planner.scenes import NOW, job, spec

RUN_S = {"job-1": 10.0, "job-2": 20.0, "job-3": 40.0, "job-4": 5.0}
NONE = BestEffortTarget()


def held(number: int, *upstream: int, by: float | None = None, ending: str = "succeeded") -> Job:
    """Return a job that waits for others, with a deadline so many seconds from now."""
    target: Target = NONE if by is None else BatchTarget(finish_by_at=NOW + by)
    waits_for = tuple(Dependency(job_id=f"job-{each}", ending=ending) for each in upstream)  # type: ignore[arg-type]
    return job(number, JobState.SUBMITTED, asks=spec(target=target), waits_for=waits_for)


def due(*jobs: Job) -> dict[str, float]:
    """Return the due times, in seconds from now."""
    return {name: each.at - NOW for name, each in due_times(jobs, lambda each: RUN_S.get(each.id)).items()}


def test_each_job_of_a_chain_has_what_follows_less() -> None:
    assert due(held(2, 1), held(3, 2, by=100)) == {"job-2": 60, "job-1": 40}


def test_the_tightest_of_several_paths_counts() -> None:
    assert due(held(2, 1, by=100), held(3, 1, by=90)) == {"job-1": 50}
    assert due(held(2, 1, by=30), held(3, 2, by=1000)) == {"job-2": 960, "job-1": 10}
    assert due(held(3, 1, 2, by=90)) == {"job-1": 50, "job-2": 50}


def test_unknown_run_times_and_missing_deadlines_take_no_slack() -> None:
    assert due(held(9, 1, by=100)) == {"job-1": 100}
    assert due(held(2, 1), held(3, 2)) == {}


def test_what_only_follows_a_failure_takes_no_slack() -> None:
    assert due(held(2, 1, by=30, ending="failed")) == {}
    assert due(held(2, 1, by=30, ending="finished")) == {"job-1": 10}


def test_a_long_chain_is_followed_to_its_end() -> None:
    chain = [held(at, at - 1) for at in range(10, 3000)]
    assert due(*chain, held(3000, 2999, by=100))["job-9"] == 100


def test_a_job_is_planned_by_the_due_time_unless_its_own_deadline_is_earlier() -> None:
    found = due_times([held(2, 1, by=100)], lambda _: 20.0)["job-1"]
    plain = job(1, asks=spec(target=NONE))
    planned = planned_by(plain, found)
    assert (planned.deadline_at, planned.needed_for, planned.spec.target.kind) == (NOW + 80, "job-2", "batch")
    later = job(1, asks=spec(target=BatchTarget(finish_by_at=NOW + 81)))
    assert planned_by(later, found).deadline_at == NOW + 80
    earlier = job(1, asks=spec(target=BatchTarget(finish_by_at=NOW + 79)))
    assert planned_by(earlier, found) is earlier
    service = job(1, asks=spec(target=ServiceTarget(requests_per_s=1, latency_ms=1)))
    assert planned_by(service, found) is service


def test_the_path_is_named_with_the_deadline_that_decides() -> None:
    found = due_times([held(2, 1), held(3, 2, by=100)], lambda each: RUN_S.get(each.id))
    assert critical_path("job-1", found) == (
        "critical path: job-1 -> job-2 -> job-3; job-3 is due at 1970-01-01T13:55:00Z, "
        "what follows takes about 60 s: job-1 should end by 1970-01-01T13:54:00Z"
    )
    assert critical_path("job-3", found) == ""
    long = due_times([held(at, at - 1) for at in range(2, 20)] + [held(20, 19, by=9)], lambda _: None)
    assert "job-1 -> job-2 -> job-3 -> job-4 -> job-5 -> job-6 -> ... -> job-20;" in critical_path("job-1", long)


def test_rows_are_the_same_objects_while_nothing_changes_and_their_own_again_afterwards() -> None:
    rows, waiting = RowJournal[Job](), RowJournal[Job]()
    rows.write({number_of(each.id): each for each in (job(1, asks=spec(target=NONE)), job(2))})
    waiting.write({3: held(3, 1, by=100)})
    times = DueTimes()
    first = times.apply(rows.snapshot(), waiting.snapshot(), (), NO_RUN_TIMES)
    assert [each.needed_for for each in first] == ["job-3", ""]
    second = times.apply(rows.snapshot(), waiting.snapshot(), (), NO_RUN_TIMES)
    assert all(mine is its for mine, its in zip(first, second, strict=True))
    waiting.write({3: None})
    after = times.apply(rows.snapshot(), waiting.snapshot(), (), NO_RUN_TIMES)
    assert [each.needed_for for each in after] == ["", ""]
    assert times.apply(rows.snapshot(), waiting.snapshot(), (), NO_RUN_TIMES) is rows.snapshot()
