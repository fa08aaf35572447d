"""Trouble inside the daemon leaves it in one form, and without its insides."""

import logging
import sqlite3
from pathlib import Path

import pytest

from tests.api.deployment import ROOT, SUBMITTER, Deployment, job, sentence


def test_a_locked_database_is_503_with_a_time_to_retry(home: Path) -> None:
    deployment = Deployment(home, busy_timeout_s=0.2)
    client = deployment.client(SUBMITTER)
    other = sqlite3.connect(deployment.home / "hcloud.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    answer = client.post("/v1/jobs", json=[job(token="t")])
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert answer.json()["error"]["code"] == "store_busy"
    assert sentence(answer)
    other.execute("ROLLBACK")
    other.close()
    assert client.post("/v1/jobs", json=[job(token="t")]).status_code == 201
    deployment.close()


def test_a_defect_is_logged_whole_and_told_without_its_insides(
    deployment: Deployment, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(*_: object) -> object:
        raise ZeroDivisionError("secret insides")

    monkeypatch.setattr("hcloud.api.operations.instance_views", defect)
    with caplog.at_level(logging.ERROR):
        answer = deployment.client(ROOT).get("/v1/instances")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "defect")
    assert "secret" not in sentence(answer)
    assert "secret insides" in caplog.text


@pytest.mark.parametrize(
    ("method", "path", "status", "wanted"),
    [
        ("GET", "/v1/job", 404, "no route GET /v1/job"),
        ("DELETE", "/v1/jobs", 405, "/v1/jobs does not allow DELETE"),
        ("GET", "/v1/jobs/", 404, "no route GET /v1/jobs/"),
        ("GET", "/v1/reports/costs", 400, "path name: "),
        ("GET", "/v1/jobs/%00", 400, "NUL"),
        ("GET", "/v1/events?after_seq=99999999999999999999", 400, "query after_seq"),
        ("GET", "/v1/events?since=nan", 400, "query since"),
        (
            "GET",
            "/v1/reports/cost?since=2&until=1",
            400,
            "since (1970-01-01T00:00:02Z) is after until (1970-01-01T00:00:01Z)",
        ),
    ],
)
def test_what_does_not_exist_is_said_in_the_one_form(
    deployment: Deployment, method: str, path: str, status: int, wanted: str
) -> None:
    answer = deployment.client(ROOT).request(method, path)
    assert answer.status_code == status
    assert wanted in sentence(answer)
