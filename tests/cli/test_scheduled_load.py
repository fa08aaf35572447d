"""Schedules count in advice on reservations as if they had always run."""

from typing import Any

import pytest

from hcloud.cli.reservations import load_curve
from hcloud.cli.scheduled_load import LaunchedMachine, scheduled_load
from hcloud.core.errors import NotFound

DAY, HOUR = 86_400.0, 3600.0
MACHINES = {"inst-1": LaunchedMachine(provider="ec2", region="r", type="m5", vcpus=4.0, memory_mib=16_384.0)}


class Api:
    """The answers of a daemon."""

    def __init__(self, jobs: dict[str, Any], **changes: Any) -> None:
        plain = {"id": "sched-1", "created_at": 10 * DAY, "paused_by": "", "jobs": list(jobs) or ["job-9"],
                 "recurrence": {"cron": "0 3 * * *", "timezone": "UTC"}}  # fmt: skip
        self.schedules, self.jobs = [{**plain, **changes}], jobs

    def get(self, path: str, **_: Any) -> Any:
        if path == "/v1/schedules":
            return self.schedules
        if (job := path.removeprefix("/v1/jobs/")) not in self.jobs:
            raise NotFound(f"there is no {job}")
        return self.jobs[job]


def job(*nodes: tuple[float, float | None]) -> dict[str, Any]:
    """A job with nodes of so many vCPUs that ran so long."""
    allocations = [
        {
            "instance_id": "inst-1",
            "resources": {"vcpus": vcpus, "memory_mib": 1024},
            "started_at": 0.0,
            "ended_at": ended,
        }
        for vcpus, ended in nodes
    ]
    return {"attempt": {"allocations": allocations} if nodes else None}


def test_runs_of_before_a_schedule_was_made_count_as_its_last_one_was() -> None:
    found = scheduled_load(Api({"job-1": job((2.0, 2 * HOUR)), "job-2": job((2.0, None))}), MACHINES, 4 * DAY)
    load = load_curve([(4 * DAY, 0.0), *found.changes["inst-1"]], 10 * DAY)
    assert load.peak == 0.5 and load.mean == pytest.approx(0.5 * 2 / 24)  # once each of six days
    assert found.notes == (
        "load includes runs of 1 schedule as if always made: sched-1 (0.5 machines for 2 h, 0 3 * * *)",
    )


@pytest.mark.parametrize("changes", [{"paused_by": "ann"}, {"created_at": 3 * DAY}])
def test_what_does_not_fire_or_is_in_the_record_adds_nothing(changes: dict[str, Any]) -> None:
    found = scheduled_load(Api({"job-1": job((2.0, HOUR))}, **changes), MACHINES, 4 * DAY)
    assert (found.changes, found.notes) == ({}, ())


def test_a_schedule_of_which_no_run_is_known_is_named() -> None:
    for jobs in ({}, {"job-1": job()}):
        [note] = scheduled_load(Api(jobs), MACHINES, 4 * DAY).notes
        assert note.startswith("not included") and note.endswith("sched-1")
