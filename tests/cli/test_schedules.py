"""Schedules over the API and on the command line."""

from tests.api.deployment import ROOT, SUBMITTER, Deployment, job, sentence
from tests.cli.conftest import Shell

HOURLY = {"cron": "@hourly"}


def test_a_schedule_is_saved_shown_paused_resumed_and_deleted_by_its_owner_only(deployment: Deployment) -> None:
    client, admin = deployment.client(SUBMITTER), deployment.client(ROOT)
    (saved,) = client.post("/v1/schedules", json=[job("nightly", schedule=HOURLY)]).json()
    assert (saved["id"], saved["name"], saved["recurrence"]["overlap"]) == ("sched-1", "nightly", "skip")
    (theirs,) = admin.post("/v1/schedules", json=[job("theirs", schedule=HOURLY, env={"A": "b"})]).json()
    shown = client.get(f"/v1/schedules/{theirs['id']}").json()
    assert (shown["spec"]["env"], shown["spec"]["command"]) == ({"A": "***"}, ["***"])
    assert "only" in sentence(client.post(f"/v1/schedules/{theirs['id']}/pause"))
    assert client.post("/v1/schedules/sched-1/pause").json()["next_at"] is None
    assert client.post("/v1/schedules/sched-1/resume").json()["next_at"] == saved["next_at"]
    assert [each["id"] for each in client.get("/v1/schedules").json()] == ["sched-1", "sched-2"]
    assert client.post("/v1/schedules/sched-1/delete").json()["id"] == "sched-1"
    assert client.get("/v1/schedules/sched-1").status_code == 404


def test_the_cycle_submits_what_is_due(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    client.post("/v1/schedules", json=[job("often", command="true", schedule={"cron": "* * * * *"})])
    deployment.cycle_until(lambda: deployment.store.schedules()[0].jobs)
    assert client.get("/v1/jobs/job-1").json()["spec"]["tags"] == {"hcloud.schedule": "sched-1"}


def test_what_can_be_no_schedule_is_refused_with_one_sentence(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    for given, wanted in (
        ({"schedule": {"cron": "0 0 30 2 *"}}, "body[0].job.schedule.cron: never fires: there is no such day"),
        ({"schedule": {"cron": "@daily", "timezone": "Mars"}}, "schedule.timezone: there is no time zone 'Mars'"),
        ({"schedule": HOURLY, "after": {"job-1": "failed"}}, "after: is for jobs that are submitted once"),
        ({"schedule": HOURLY, "target": {"batch": {"by": "2999-01-01T00:00:00Z"}}}, "is one moment"),
        ({"schedule": {"cron": "@daily", "overlap": "forbid"}}, "schedule.overlap"),
        ({}, "body[0].job.schedule: is missing; a job without it is submitted to /v1/jobs"),
    ):
        answer = client.post("/v1/schedules", json=[job("x", **given)])
        assert (answer.status_code, wanted in sentence(answer)) == (400, True), answer.text
    twice = client.post("/v1/schedules", json=[job("x", schedule=HOURLY)] * 2)
    assert "two schedules are named x" in sentence(twice)
    assert "POST it to /v1/schedules" in sentence(client.post("/v1/jobs", json=[job("x", schedule=HOURLY)]))
    assert deployment.store.schedules() == ()


def test_schedules_as_people_type_them(shell: Shell, deployment: Deployment) -> None:
    out, _ = shell.run("submit", "--dry-run", "--cron", "30 2 * * *", "--timezone", "Europe/Berlin", "--", "true")
    assert "true: submitted at " in out
    out, _ = shell.run("submit", "-q", "--cron", "0 0 1 1 *", "--name", "yearly", "--", "true")
    assert out.startswith("sched-1 yearly, next at ")
    assert shell.run("schedule", "pause", "1")[0] == "sched-1 yearly: paused\n"
    assert "paused by" in shell.run("schedule", "list")[0]
    assert shell.run("schedule", "delete", "-y", "sched-1")[0] == "sched-1 deleted\n"
    assert shell.run("schedule", "resume", "1", exit_code=2)[1].startswith("hcloud: there is no sched-1; ")
