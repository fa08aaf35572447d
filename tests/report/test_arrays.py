"""Reports on arrays: by job they are one row, by task each task is."""

import pytest

from hcloud.core.arrays import TaskList
from hcloud.core.model import JobState
from hcloud.report import build_report
from tests.apply.conftest import make
from tests.apply.deployment import Deployment

__all__ = ["make"]


@pytest.fixture
def ended(make: object) -> Deployment:
    """A deployment in which an array of four tasks and a job have run; task 3 failed."""
    site: Deployment = make()  # type: ignore[operator]
    matrix = (("code", ("0", "0", "0", "3")),)
    site.submit("/bin/sh", "-c", "sleep 4; exit $code", tasks=TaskList(ranges=((0, 3, 1),), at_most=2, matrix=matrix))
    site.submit("sleep", "4", name="plain")
    site.until(lambda: not site.scene.store.live().submitted)
    return site


def rows(site: Deployment, name: str, by: str) -> list[dict[str, object]]:
    """Return a report's rows by column."""
    document = build_report(name, site.scene.store.iter_events(), site.now, by=by).to_json()
    return [dict(each) for each in document["rows"]]


def test_cost_by_job_is_that_of_all_tasks_and_by_task_that_of_each(ended: Deployment) -> None:
    by_job = {row["job"]: row for row in rows(ended, "cost", "job")}
    by_task = {row["task"]: row for row in rows(ended, "cost", "task")}
    tasks = [f"job-1[{n}]" for n in range(4)]
    assert set(by_job) >= {"job-1", "job-6"} and set(by_task) >= {*tasks, "job-6"}
    assert "job-2" not in by_job and "job-1" not in by_task
    total = sum(float(str(by_task[each]["cost_usd"])) for each in tasks)
    assert float(str(by_job["job-1"]["cost_usd"])) == pytest.approx(total)


def test_performance_by_job_has_medians_over_tasks_and_by_task_each(ended: Deployment) -> None:
    by_job = {row["job"]: row for row in rows(ended, "performance", "job")}
    assert set(by_job) == {"job-1", "job-6"}
    assert (by_job["job-1"]["state"], by_job["job-1"]["attempts"], by_job["job-1"]["run_s"]) == ("failed", 4, 4.0)
    by_task = {row["task"]: row for row in rows(ended, "performance", "task")}
    assert list(by_task) == ["job-1[0]", "job-1[1]", "job-1[2]", "job-1[3]", "job-6"]
    assert by_task["job-1[3]"]["state"] == JobState.FAILED
    waits = [float(str(by_task[f"job-1[{n}]"]["queue_s"])) for n in range(4)]
    assert waits[2] > waits[0] + 3.0  # from the submission of the array, though it was made later


def test_performance_by_user_counts_tasks_and_not_their_array(ended: Deployment) -> None:
    (row,) = rows(ended, "performance", "user")
    assert (row["jobs"], row["succeeded"], row["failed"], row["live"]) == (5, 4, 1, 0)


def test_performance_of_tasks_that_share_a_unit_is_that_of_each(make: object) -> None:
    site: Deployment = make()  # type: ignore[operator]
    matrix = (("s", ("2", "3", "4", "5")), ("code", ("0", "7")))
    site.submit(
        "/bin/sh",
        "-c",
        "sleep $s; exit $code",
        tasks=TaskList(ranges=((0, 4, 2), (7, 7, 1)), matrix=matrix, per_unit=4),
    )
    site.until(lambda: not site.scene.store.live().submitted and not site.scene.store.live().arrays)
    by_task = {row["task"]: row for row in rows(site, "performance", "task")}
    assert list(by_task) == [f"job-1[{n}]" for n in (0, 2, 4, 7)]
    assert [row["state"] for row in by_task.values()] == ["succeeded"] * 3 + ["failed"]
    # Of tasks in a row that succeeded, which are reported together, the mean.
    assert [row["run_s"] for row in by_task.values()] == pytest.approx([2.0, 3.5, 3.5, 5.0], abs=0.1)
    assert [row["attempts"] for row in by_task.values()] == [1] * 4
    (by_user,) = rows(site, "performance", "user")
    assert (by_user["jobs"], by_user["succeeded"], by_user["failed"]) == (4, 3, 1)
    (by_job,) = rows(site, "performance", "job")
    assert (by_job["attempts"], by_job["run_s"]) == (4, pytest.approx(3.5, abs=0.1))


def test_the_cost_of_a_unit_is_shared_by_the_run_times_of_its_tasks(make: object) -> None:
    site: Deployment = make()  # type: ignore[operator]
    listed = TaskList(ranges=((10, 13, 1),), matrix=(("s", tuple(map(str, range(14)))),), per_unit=4)
    site.submit("/bin/sh", "-c", "sleep $s", tasks=listed)
    site.until(lambda: site.state() is JobState.SUCCEEDED)
    by_task = {row["task"]: float(str(row["cost_usd"])) for row in rows(site, "cost", "task")}
    each = [by_task[f"job-1[{n}]"] for n in range(10, 14)]
    assert each == pytest.approx([sum(each) * n / 46 for n in range(10, 14)], rel=0.01)
