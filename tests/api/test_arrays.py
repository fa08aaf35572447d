"""Arrays over the API: submitted as one, shown with counts, and their tasks named in brackets."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hcloud.core.model import JobState
from tests.api.deployment import READER, ROOT, STRANGER, SUBMITTER, Deployment, job, sentence

ENDS = {"matrix": {"code": [0, 3, 4]}, "command": "exit $code"}


def submitted(deployment: Deployment, **changes: object) -> str:
    """Submit one array and return its id."""
    given: dict[str, object] = {"array": "0-9", **changes}
    (answer,) = deployment.client(SUBMITTER).post("/v1/jobs", json=[job("sweep", **given)]).json()
    return str(answer["id"])


def ended(deployment: Deployment, **changes: object) -> str:
    """Submit an array of which tasks 1 and 2 fail, and let it end."""
    name = submitted(deployment, array=None, **ENDS, **changes)
    deployment.cycle_until(lambda: deployment.store.job(name).state is JobState.FAILED)
    return name


@pytest.fixture(scope="module")
def waiting() -> Iterator[Deployment]:
    """A deployment with an array of ten tasks and a job, of which nothing has begun; its tests change nothing."""
    with tempfile.TemporaryDirectory(prefix="hcloud-api-") as made:
        deployment = Deployment(Path(made))
        submitted(deployment)
        deployment.client(SUBMITTER).post("/v1/jobs", json=[job("plain")])
        yield deployment
        deployment.close()


def test_an_array_is_one_job_with_the_number_of_its_tasks(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    answer = client.post("/v1/jobs", json=[job("sweep", array="0-9%2"), job("after")]).json()
    assert [(each["id"], each["tasks"]) for each in answer] == [("job-1", 10), ("job-12", None)]
    listed = client.get("/v1/jobs").json()
    assert [each["id"] for each in listed] == ["job-12", "job-1"]
    counts = {"total": 10, "waiting": 10, "running": 0, "succeeded": 0, "failed": 0, "cancelled": 0}
    assert [each["tasks"] for each in listed] == [None, counts]


def test_counts_follow_the_tasks(deployment: Deployment) -> None:
    client, name = deployment.client(SUBMITTER), submitted(deployment, command="sleep 5", array="0-9%4")
    deployment.cycle_until(lambda: client.get(f"/v1/jobs/{name}").json()["tasks"]["running"] == 4)
    shown = client.get(f"/v1/jobs/{name}").json()
    assert (shown["state"], shown["tasks"]["waiting"]) == ("running", 6)
    deployment.cycle_until(lambda: deployment.store.job(name).state is JobState.SUCCEEDED)
    shown = client.get(f"/v1/jobs/{name}").json()
    assert (shown["tasks"]["succeeded"], shown["tasks"]["waiting"], shown["wait_text"]) == (10, 0, "")


def test_a_task_is_shown_whether_it_waits_or_has_ended(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    name = submitted(deployment, array="10-20:5")
    waiting = client.get(f"/v1/jobs/{name}[15]").json()
    assert (waiting["id"], waiting["array"], waiting["task"], waiting["state"]) == ("job-3", name, 15, "queued")
    name = ended(deployment)
    failed = client.get(f"/v1/jobs/{name}[2]").json()
    assert (failed["state"], failed["outcome"]) == ("failed", "failed with exit code 4; no retries configured")
    assert failed["attempt"]["allocations"][0]["exit_code"] == 4


@pytest.mark.parametrize(
    ("reference", "code", "wanted"),
    [
        ("job-1[12]", 404, "job-1 has no task 12; its tasks are 0-9"),
        ("job-1[3-4]", 400, "job-1[3-4] names 2 tasks; name one, such as job-1[3]"),
        ("job-1[x]", 404, "must be a range such as 0-999"),
        ("job-1[]", 404, "must be a range such as 0-999"),
        ("job-1[%3]", 404, "job-1[%3] must name tasks, such as job-1[3] or job-1[3-9]"),
        ("job-12[0]", 404, "job-12 is no array and has no tasks; leave out what is in brackets"),
        ("job-2[0]", 404, "job-2 is no array and has no tasks"),
        ("job-99[0]", 404, "there is no job-99"),
    ],
)
def test_what_names_no_task_is_refused_with_one_sentence(
    waiting: Deployment, reference: str, code: int, wanted: str
) -> None:
    answer = waiting.client(SUBMITTER).get(f"/v1/jobs/{reference}")
    assert answer.status_code == code
    assert wanted in sentence(answer)


@pytest.mark.parametrize(
    ("bad", "wanted"),
    [
        ({"array": "5-2"}, "body[0].job.array: 5-2 ends before it begins; write 2-5"),
        ({"array": "0-9%0"}, "body[0].job.array: %0 must be the number of tasks that may run at once"),
        ({"array": "%5"}, "body[0].job.array: must name its tasks, such as 0-999%5"),
        ({"array": "1,1"}, "body[0].job.array: names task 1 twice"),
        ({"array": [1]}, "body[0].job.array: must be a range"),
        ({"matrix": {"a": list(range(1000)), "b": list(range(1000))}}, "job.matrix: has 1,000,000 combinations"),
        ({"matrix": {"a": [1, 2]}, "array": "0-2"}, "job.array: names task 2, but the matrix has the tasks 0-1"),
        ({"matrix": {"a": [1]}, "env": {"a": "1"}}, "job.matrix: has a, which is in env too"),
        ({"matrix": {"HCLOUD_RANK": [1]}}, "job.matrix: has HCLOUD_RANK, which is a name that HCloud itself sets"),
        ({"matrix": {"a": [1, "1"]}}, "job.matrix: has 1 twice in a"),
        ({"matrix": {"a": [True]}}, "job.matrix.a[0]: must be a number or text"),
        ({"matrix": {}}, "job.matrix: names no variable; name one, such as lr: [0.1, 0.2], or leave it out"),
        ({"matrix": {"a": []}}, "job.matrix.a: must have at least 1 entries"),
        ({"array": "0-9", "budget_usd": 5}, "job.budget_usd: is the limit of one job"),
    ],
)
def test_bad_arrays_are_refused_with_one_sentence_and_nothing_is_submitted(
    waiting: Deployment, bad: dict[str, object], wanted: str
) -> None:
    before = waiting.store.newest_job_number()
    answer = waiting.client(SUBMITTER).post("/v1/jobs", json=[job("bad", **bad)])
    assert answer.status_code == 400
    assert wanted in sentence(answer)
    assert waiting.store.newest_job_number() == before


def test_tasks_are_listed_page_by_page(deployment: Deployment) -> None:
    client, name = deployment.client(SUBMITTER), submitted(deployment, array="10-28:3")
    pages, after = list[list[int]](), ""
    while page := client.get(f"/v1/jobs/{name}/tasks?limit=3{after}").json():
        pages.append([each["task"] for each in page])
        after = f"&after={page[-1]['id']}"
    assert pages == [[10, 13, 16], [19, 22, 25], [28]]
    [other] = client.post("/v1/jobs", json=[job("plain")]).json()
    refused = client.get(f"/v1/jobs/{name}/tasks?after={other['id']}")
    assert (refused.status_code, sentence(refused)) == (400, f"after: {other['id']} is no task of {name}")
    assert client.get(f"/v1/jobs/{name}/tasks?after=job-99").status_code == 404


def test_tasks_are_listed_by_state(deployment: Deployment) -> None:
    client, name = deployment.client(SUBMITTER), ended(deployment)
    everyone = client.get(f"/v1/jobs/{name}/tasks").json()
    assert [(each["task"], each["state"]) for each in everyone] == [(0, "succeeded"), (1, "failed"), (2, "failed")]
    failed = client.get(f"/v1/jobs/{name}/tasks?state=failed&limit=1").json()
    assert [each["task"] for each in failed] == [1]
    assert [each["task"] for each in client.get(f"/v1/jobs/{name}[1-2]/tasks?state=succeeded").json()] == []


def test_named_tasks_are_cancelled_by_their_owner(deployment: Deployment) -> None:
    name = submitted(deployment)
    refused = deployment.client(STRANGER).post(f"/v1/jobs/{name}[3-9]/cancel")
    assert refused.status_code == 403
    shown = deployment.client(SUBMITTER).post(f"/v1/jobs/{name}[3-9]/cancel").json()
    assert (shown["id"], shown["tasks"]["cancelled"], shown["cancelled_by"]) == (name, 7, None)
    again = deployment.client(SUBMITTER).post(f"/v1/jobs/{name}/cancel").json()
    assert (again["tasks"]["cancelled"], again["cancelled_by"]) == (10, "daemon")


def test_the_output_of_a_task_is_read_and_that_of_an_array_is_not_one(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    name = submitted(deployment, array="0-2", command="echo task $HCLOUD_TASK_ID")
    assert client.get(f"/v1/jobs/{name}[1]/logs").content == b""
    deployment.cycle_until(lambda: deployment.store.job(name).state is JobState.SUCCEEDED)
    answer = client.get(f"/v1/jobs/{name}[1]/logs")
    assert (answer.content, answer.headers["x-hcloud-end"]) == (b"task 1\n", "true")
    assert client.get("/v1/jobs/job-3/logs").content == b"task 1\n"
    whole = client.get(f"/v1/jobs/{name}/logs")
    assert (whole.status_code, sentence(whole)) == (400, "job-1 is an array; name one of its tasks, such as job-1[0]")


def test_a_task_is_explained_by_its_own_events(deployment: Deployment) -> None:
    client, name = deployment.client(SUBMITTER), ended(deployment)
    timeline = client.get(f"/v1/jobs/{name}[1]/explain").json()
    assert timeline["job"] == "job-3"
    assert any("may run soon: task 1 of job-1 sweep" in line for line in timeline["lines"])
    assert any("failed with exit code 3" in line for line in timeline["lines"])
    assert [each["job_id"] for each in client.get(f"/v1/events?job_id={name}[1]&limit=1").json()] == ["job-3"]


def test_failed_tasks_are_run_again_with_their_ids_and_values(deployment: Deployment) -> None:
    client, name = deployment.client(SUBMITTER), ended(deployment)
    body = {"failed": True, "token": "t"}
    again = client.post(f"/v1/jobs/{name}/rerun", json=body).json()
    assert (again["id"], again["tasks"]) == ("job-5", 2)
    assert client.post(f"/v1/jobs/{name}/rerun", json=body).json()["id"] == "job-5"
    tasks = deployment.store.job("job-5").spec.tasks
    assert tasks is not None and tasks.ranges == ((1, 2, 1),)
    assert tasks.environment(0)["code"] == "3"
    one = client.post(f"/v1/jobs/{name}[0]/rerun", json={}).json()
    assert one["tasks"] == 1


@pytest.mark.parametrize(
    ("reference", "body", "wanted"),
    [
        ("job-1", {}, "job-1[0] and 9 more tasks have not ended; wait for job-1, or cancel it first"),
        ("job-1", {"failed": True}, "no task of job-1 that you named has failed; nothing is run again"),
        ("job-12", {}, "job-12 has not ended (submitted); wait for it, or cancel it first"),
    ],
)
def test_what_has_not_ended_or_failed_is_not_run_again(
    waiting: Deployment, reference: str, body: dict[str, object], wanted: str
) -> None:
    answer = waiting.client(SUBMITTER).post(f"/v1/jobs/{reference}/rerun", json=body)
    assert (answer.status_code, sentence(answer)) == (409, wanted)
    assert len(waiting.store.jobs()) == 2


def test_only_the_owner_runs_a_job_again_and_others_see_no_values(deployment: Deployment) -> None:
    name = ended(deployment)
    assert deployment.client(ROOT).post(f"/v1/jobs/{name}/rerun", json={}).status_code == 409
    shown = deployment.client(READER).get(f"/v1/jobs/{name}").json()
    assert shown["spec"]["tasks"]["matrix"] == [["code", ["***"] * 3]]


def test_an_ended_job_is_run_again_with_its_secrets(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    client.post("/v1/jobs", json=[job("plain", command="exit 3", env={"KEY": {"secret": "hush"}})])
    deployment.cycle_until(lambda: deployment.store.job("job-1").state is JobState.FAILED)
    assert client.post("/v1/jobs/job-1/rerun", json={"failed": True}).json()["id"] == "job-2"
    assert deployment.store.job_secrets("job-2") == deployment.store.job_secrets("job-1") != {}


def test_a_preview_prices_all_tasks_that_would_start(deployment: Deployment) -> None:
    deployment.cycle()
    client = deployment.client(SUBMITTER)
    (one,) = client.post("/v1/plan", json=[job("one", resources={"vcpus": 8})]).json()
    (many,) = client.post("/v1/plan", json=[job("many", resources={"vcpus": 8}, array="0-99%3")]).json()
    assert many["action"] == "launch"
    assert many["price_usd_per_h"] == pytest.approx(3 * one["price_usd_per_h"])
    assert many["text"].endswith("3 of 100 tasks would start at first")
    assert deployment.store.jobs() == ()
