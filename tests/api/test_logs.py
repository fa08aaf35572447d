"""Output of jobs: live from the engine, later from the archive, waiting for more where asked."""

import os
import threading
from dataclasses import dataclass

import pytest
from starlette.testclient import TestClient

from hcloud.core.model import JobState
from tests.api.deployment import SUBMITTER, Deployment, job, sentence

TALK = ["/bin/sh", "-c", "echo one; sleep 5; echo two; echo oops >&2"]
FAIL = ["/bin/sh", "-c", "echo try; exit 3"]


@dataclass(frozen=True)
class Part:
    """What one question for output was answered with."""

    text: str
    next_offset: int
    end: bool
    attempt: int
    state: str


def _read(client: TestClient, job_id: str = "job-1", **question: object) -> Part:
    answer = client.get(f"/v1/jobs/{job_id}/logs", params=question)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    head = answer.headers
    return Part(
        text=answer.text,
        next_offset=int(head["X-HCloud-Next-Offset"]),
        end=head["X-HCloud-End"] == "true",
        attempt=int(head["X-HCloud-Attempt"]),
        state=head["X-HCloud-Job-State"],
    )


@pytest.fixture
def client(deployment: Deployment) -> TestClient:
    """A submitter's client, with one talking job submitted."""
    made = deployment.client(SUBMITTER)
    made.post("/v1/jobs", json=[job(command=TALK)])
    return made


def _run(deployment: Deployment) -> None:
    deployment.cycle_until(lambda: deployment.store.job("job-1").state is JobState.RUNNING)
    deployment.clock.advance(1.0)


def _finish(deployment: Deployment) -> None:
    deployment.cycle_until(lambda: deployment.store.job("job-1").finished_at)


def test_a_job_that_has_not_started_has_no_output_yet(client: TestClient) -> None:
    assert _read(client) == Part("", 0, False, 0, "submitted")


def test_output_is_read_live_from_an_offset(deployment: Deployment, client: TestClient) -> None:
    _run(deployment)
    assert _read(client) == Part("one\n", 4, False, 1, "running")
    assert _read(client, offset=1, limit=2).text == "ne"
    assert _read(client, offset=4) == Part("", 4, False, 1, "running")


def test_output_is_kept_after_the_end(deployment: Deployment, client: TestClient) -> None:
    _finish(deployment)
    assert list((deployment.home / "logs").glob("job-1.1.0_*.stdout"))
    assert _read(client) == Part("one\ntwo\n", 8, True, 1, "succeeded")
    assert _read(client, limit=5) == Part("one\nt", 5, False, 1, "succeeded")
    assert _read(client, stream="stderr").text == "oops\n"
    assert _read(client, offset=100) == Part("", 100, True, 1, "succeeded")


def test_waiting_returns_as_soon_as_there_is_more(deployment: Deployment, client: TestClient) -> None:
    _run(deployment)
    answers: list[Part] = []
    reader = threading.Thread(target=lambda: answers.append(_read(client, offset=4, wait_s=20)))
    reader.start()
    deployment.clock.advance(10.0)
    reader.join()
    assert answers[0].text == "two\n"


def test_a_silent_worker_is_503_now_and_waited_for_when_asked(deployment: Deployment, client: TestClient) -> None:
    _run(deployment)
    deployment.engine.disconnect()
    answer = client.get("/v1/jobs/job-1/logs")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "worker_unreachable")
    back = threading.Timer(0.2, deployment.engine.reconnect)
    back.start()
    assert _read(client, wait_s=20).text == "one\n"
    back.join()


def test_each_attempt_has_its_own_output_and_the_next_one_can_be_awaited(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    client.post("/v1/jobs", json=[job(command=FAIL, retries={"exit_code": 1, "backoff": 2})])
    deployment.cycle_until(lambda: deployment.store.job("job-1").attempts_made == 2)
    assert _read(client, attempt=1).text == "try\n"
    _finish(deployment)
    assert _read(client) == Part("try\n", 4, True, 2, "failed")
    assert _read(client, attempt=3) == Part("", 0, True, 3, "failed")  # it will never come


def test_an_attempt_that_is_over_is_told_as_it_was_last_started(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    client.post("/v1/jobs", json=[job(command=FAIL, retries={"exit_code": 1, "backoff": 2})])
    deployment.cycle_until(lambda: deployment.store.job("job-1").attempts_made == 2)
    (kept,) = (deployment.home / "logs").glob("job-1.1.0_*.stdout")
    for later, name in enumerate(("job-1.1.0.stdout", "job-1.1.0-1_5.stdout", "job-1.1.01_5.stdout"), 1):
        (kept.parent / name).write_text(name)
        os.utime(kept.parent / name, (kept.stat().st_mtime + later,) * 2)
    assert _read(client, attempt=1).text == "job-1.1.0-1_5.stdout"


@pytest.mark.parametrize(
    ("question", "wanted"),
    [({"rank": 1}, "has no rank 1"), ({"attempt": 9}, "has no attempt 9"), ({"stream": "sound"}, "query stream")],
)
def test_output_that_cannot_be_is_refused_with_a_sentence(
    deployment: Deployment, client: TestClient, question: dict[str, object], wanted: str
) -> None:
    _finish(deployment)
    answer = client.get("/v1/jobs/job-1/logs", params=question)  # type: ignore[arg-type]
    assert answer.status_code in (400, 404)
    assert wanted in sentence(answer)


def test_output_past_its_retention_is_said_to_be_gone(deployment: Deployment, client: TestClient) -> None:
    _finish(deployment)
    deployment.cycle_until(lambda: not deployment.store.live().instances)
    deployment.logs.prune(before=1e12)
    answer = client.get("/v1/jobs/job-1/logs")
    assert (answer.status_code, sentence(answer)) == (404, "output of attempt 1, rank 0 of job-1 has been deleted")
    client.post("/v1/jobs", json=[job(command=FAIL, retries=1)])
    deployment.cycle_until(lambda: deployment.store.job("job-2").finished_at)
    deployment.logs.prune(before=1e12)
    answer = client.get("/v1/jobs/job-2/logs", params={"attempt": 1})
    assert (answer.status_code, sentence(answer)) == (404, "output of attempt 1, rank 0 of job-2 has been deleted")
