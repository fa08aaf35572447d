"""Jobs that wait for others, from submission to end."""

from hcloud.core.dependencies import Ending, Upstream
from hcloud.core.model import BatchTarget, BestEffortTarget, EventKind, JobSpec, JobState
from hcloud.planner.due_times import critical_path
from hcloud.store import Submission
from tests.apply.deployment import SMALL, Deployment


def submit(site: Deployment, *jobs: tuple[str, dict[Upstream, Ending]], within_s: float | None = None) -> None:
    """Submit jobs with the command and what they wait for; the last one has the deadline."""
    last = BestEffortTarget() if within_s is None else BatchTarget(finish_within_s=within_s)
    specs = [
        JobSpec(
            name=f"n{at}",
            user="ada",
            command=("/bin/sh", "-c", command),
            target=last if at == len(jobs) - 1 else BestEffortTarget(),
            resources=SMALL,
        )
        for at, (command, _) in enumerate(jobs)
    ]
    given = zip(specs, jobs, strict=True)
    site.scene.store.submit([Submission(spec=spec, actor="ada", after=after) for spec, (_, after) in given], site.now)


def test_each_job_starts_once_those_before_it_have_ended_as_it_awaits(site: Deployment) -> None:
    submit(site, ("sleep 3", {}), ("exit 2", {0: "succeeded"}), ("true", {1: "failed"}), ("true", {1: "succeeded"}),
           ("true", {3: "finished"}))  # fmt: skip
    site.cycle(2)
    assert [site.state(number) for number in (2, 3, 4, 5)] == [JobState.SUBMITTED] * 4
    site.until(lambda: not site.scene.store.live().submitted)
    states = [site.state(number) for number in (1, 2, 3, 4, 5)]
    assert states == [JobState.SUCCEEDED, JobState.FAILED, JobState.SUCCEEDED, JobState.CANCELLED, JobState.SUCCEEDED]
    assert site.job(4).outcome == "waited for job-2 n1 to succeed, which failed"
    placed = {event.job_id: event.seq for event in site.events(EventKind.ATTEMPT_PLACED)}
    ended = {event.job_id: event.seq for event in site.events(EventKind.JOB_FINISHED)}
    assert ended["job-1"] < placed["job-2"] and ended["job-2"] < placed["job-3"] and "job-4" not in placed
    queue_s = {event.job_id: event.fields["queue_s"] for event in site.events(EventKind.JOB_FINISHED)}
    assert float(str(queue_s["job-3"])) < 3.0  # what it waited for others is not counted


def test_a_held_job_that_is_cancelled_ends_in_the_next_cycle(site: Deployment) -> None:
    submit(site, ("sleep 50", {}), ("true", {0: "succeeded"}), ("true", {1: "succeeded"}))
    site.cycle()
    site.scene.store.request_cancel("job-2", "ada", site.now)
    site.cycle()
    assert (site.state(2), site.state(3)) == (JobState.CANCELLED, JobState.CANCELLED)
    assert site.job(3).outcome == "waited for job-2 n1 to succeed, which was cancelled"


def test_a_deadline_gives_slack_to_what_comes_before_it(site: Deployment) -> None:
    submit(site, ("sleep 3", {}), ("true", {0: "succeeded"}), within_s=100.0)
    site.cycle()
    controller = site.scene.controller
    planned = {job.id: job for job in controller.last_snapshot.jobs}
    assert planned["job-1"].deadline_at == site.job(2).deadline_at
    assert site.job(1).deadline_at is None  # its own promise stays what it was
    assert critical_path("job-1", controller.due_times.by_job).startswith("critical path: job-1 -> job-2; job-2 is due")
    site.until(lambda: not site.scene.store.live().submitted)
    met = {event.job_id: event.fields["target_met"] for event in site.events(EventKind.JOB_FINISHED)}
    assert met == {"job-1": None, "job-2": True}
    assert "deadline" not in site.job(1).outcome
