"""Dependencies over the API: submitted as one, refused with one sentence, shown while they wait."""

from collections.abc import Sequence

from tests.api.deployment import ROOT, SUBMITTER, Deployment, job, sentence


def submit(deployment: Deployment, *jobs: dict[str, object]) -> list[dict[str, object]]:
    """Submit jobs and return the answer."""
    answer = deployment.client(SUBMITTER).post("/v1/jobs", json=list(jobs))
    assert answer.status_code == 201, answer.text
    found: list[dict[str, object]] = answer.json()
    return found


def test_jobs_that_name_each_other_are_submitted_as_one(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    within = {"target": {"batch": {"within": 100}}}
    submit(deployment, job("last", after={"first": "succeeded"}, **within), job("first"))
    held = client.get("/v1/jobs/job-1").json()
    assert (held["state"], held["wait_code"]) == ("submitted", "dependency")
    assert held["wait_text"] == "waits for job-2 first to succeed"
    assert held["spec"]["after"] == {"first": "succeeded"}
    deployment.cycle()
    lines = client.get("/v1/jobs/job-1/explain").json()["lines"]
    assert lines[1].endswith("waits for job-2 first to succeed")
    path = client.get("/v1/jobs/job-2/explain").json()["critical_path"]
    assert path.startswith("critical path: job-2 -> job-1; job-1 is due at ")
    deployment.cycle_until(lambda: deployment.store.job("job-1").finished_at is not None)
    explained = client.get("/v1/jobs/job-1/explain").json()
    assert "job-2 first succeeded: it waits for no other job any more" in str(explained["lines"])
    assert client.get("/v1/jobs/job-2/explain").json()["critical_path"] == ""


IMPOSSIBLE: Sequence[tuple[dict[str, str], str]] = (
    ({"nobody": "succeeded"}, "body[1].job.after.nobody: is no job of this submission and no id such as job-7"),
    ({"first": "ended"}, "body[1].job.after.first: must be one of succeeded, finished, failed, not 'ended'"),
    ({"last": "failed"}, "names last, the job itself"),
    ({"job-99": "failed"}, "body[1].job.after.job-99: there is no job-99"),
    ({"job-3": "failed"}, "body[1].job.after.job-3: is a task of job-2; wait for job-2"),
    ({"job-6": "failed"}, "body[1].job.after.job-6: is a job of "),
    ({"job-1": "failed"}, "body[1].job.after.job-1: has succeeded already, so this could never start"),
    ({"job-5": "succeeded"}, "body[1].job.after.job-5: is a service, which never succeeds by itself"),
)


def test_what_could_never_start_is_refused_with_one_sentence(deployment: Deployment) -> None:
    service = {"service": {"requests_per_s": 1, "latency_ms": 50}}
    submit(deployment, job("done"))
    deployment.cycle_until(lambda: deployment.store.job("job-1").finished_at is not None)
    submit(deployment, job("sweep", array="0-1"), job("serves", target=service))
    deployment.client(ROOT).post("/v1/jobs", json=[job("theirs")])
    for after, wanted in IMPOSSIBLE:
        answer = deployment.client(SUBMITTER).post("/v1/jobs", json=[job("first"), job("last", after=after)])
        assert (answer.status_code, wanted in sentence(answer)) == (400, True), answer.text
    assert deployment.store.newest_job_number() == 6  # nothing of it was submitted


def test_a_cycle_is_refused_and_a_plan_says_what_is_waited_for(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    both = [job("a", after=["b"]), job("b", after="a")]
    for path in ("/v1/jobs", "/v1/plan"):
        assert "body[0].job.after.b: is a cycle: a -> b -> a; none" in sentence(client.post(path, json=both))
    deployment.cycle()
    first, second = client.post("/v1/plan", json=[job("a"), job("b", after="a")]).json()
    assert (first["action"], second["action"], second["code"]) == ("launch", "wait", "dependency")
    assert second["text"].startswith("waits for job-1000000000000 to succeed")


def test_a_job_that_is_run_again_waits_for_nothing(deployment: Deployment) -> None:
    submit(deployment, job("a", command="exit 1"), job("b", after="a"))
    deployment.cycle_until(lambda: deployment.store.job("job-2").finished_at is not None)
    again = deployment.client(SUBMITTER).post("/v1/jobs/job-2/rerun", json={}).json()
    assert deployment.store.job(str(again["id"])).spec.after == {}
