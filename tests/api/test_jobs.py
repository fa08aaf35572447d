"""Submitting, planning, listing and cancelling jobs."""

import hashlib
from pathlib import Path

import pytest

from hcloud.core.model import EventKind
from tests.api.deployment import POLICY, READER, ROOT, STRANGER, SUBMITTER, Deployment, job, sentence
from tests.registry import FakeRegistry


def test_submit_answers_with_ids_in_order_and_asks_for_a_cycle(deployment: Deployment) -> None:
    answer = deployment.client(SUBMITTER).post("/v1/jobs", json=[job("a"), job("b", target={"batch": {"within": 60}})])
    assert answer.status_code == 201
    assert [(each["id"], each["name"], each["state"]) for each in answer.json()] == [
        ("job-1", "a", "submitted"),
        ("job-2", "b", "submitted"),
    ]
    assert answer.json()[1]["deadline_at"] == deployment.clock.now() + 60
    assert deployment.wakes == 1


def test_submit_records_the_caller_as_user_and_actor(deployment: Deployment) -> None:
    deployment.client(STRANGER).post("/v1/jobs", json=[job()])
    (event,) = deployment.store.events(kinds=[EventKind.JOB_SUBMITTED])
    assert (event.user, event.actor) == (f"uid:{STRANGER}", f"uid:{STRANGER}")


def test_an_image_that_its_registry_has_not_is_refused_before_anything_is_stored(
    deployment: Deployment, tmp_path: Path
) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    with FakeRegistry({"tool": tmp_path}, login="ann:correct-horse").serve() as registry:
        images = deployment.context.images
        images.is_asked, images.private = True, (f"http://{registry.address}",)
        login = {"HCLOUD_IMAGE_LOGIN": {"secret": "ann:correct-horse"}}
        client = deployment.client(SUBMITTER)
        for path in ("/v1/plan", "/v1/jobs"):
            answer = client.post(path, json=[job(image=f"{registry.address}/tool:2", env=login)])
            assert "body[0].job.image: image 127.0.0.1" in sentence(answer) and "has no '2'" in sentence(answer)
        assert not deployment.store.jobs()
        assert client.post("/v1/jobs", json=[job(image=f"{registry.address}/tool:1", env=login)]).status_code == 201
        assert deployment.store.jobs()[0].spec.secrets == ("HCLOUD_IMAGE_LOGIN",)


def test_submit_repeated_with_its_token_submits_nothing_twice(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    first = client.post("/v1/jobs", json=[job(token="t-1")]).json()
    again = client.post("/v1/jobs", json=[job(token="t-1"), job(token="t-2")]).json()
    assert [each["id"] for each in first + again] == ["job-1", "job-1", "job-2"]


def test_tokens_of_different_users_do_not_meet(deployment: Deployment) -> None:
    first = deployment.client(SUBMITTER).post("/v1/jobs", json=[job(token="t")]).json()
    second = deployment.client(ROOT).post("/v1/jobs", json=[job(token="t")]).json()
    assert first[0]["id"] != second[0]["id"]


def test_submit_takes_thousands_in_one_request(deployment: Deployment) -> None:
    answer = deployment.client(SUBMITTER).post("/v1/jobs", json=[job(f"j{n}", token=f"t{n}") for n in range(3000)])
    assert len({each["id"] for each in answer.json()}) == 3000


@pytest.mark.parametrize(
    ("bad", "wanted"),
    [
        ({"resources": {"memroy": 5}}, "body[1].job.resources.memroy: unknown key; did you mean 'memory'?"),
        ({"command": 7}, "body[1].job.command: must be text for the shell or a list"),
        ({"command": []}, "body[1].job.command: must name a program to run"),
        ({"target": "bacth"}, "body[1].job.target: must be one of batch, service, best_effort, not 'bacth'"),
        ({"target": {"batch": {"by": "1999-01-01T00:00:00Z"}}}, "body[1].job.target.batch.by: is in the past"),
        ({"workdir": "/data"}, "body[1].job.workdir: must be uploaded first"),
        ({"workdir_sha256": "0" * 64}, "body[1].job.workdir_sha256: archive 00"),
        ({"resources": {"vcpus": -1}}, "body[1].job.resources.vcpus: must be at least 0.001, not -1"),
        ({"env": {"A": "x\x00y"}}, "body[1].job.env.A"),
        ({"env": {"A": {"secret_from": "env:TOKEN"}}}, "body[1].job.env.A.secret_from: is read by `hcloud submit`"),
    ],
)
def test_a_batch_with_one_bad_job_is_refused_whole_with_one_sentence(
    deployment: Deployment, bad: dict[str, object], wanted: str
) -> None:
    answer = deployment.client(SUBMITTER).post("/v1/jobs", json=[job("good"), job("bad", **bad)])
    assert answer.status_code == 400
    assert wanted in sentence(answer)
    assert deployment.store.jobs() == ()
    assert deployment.wakes == 0


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (b"{", "the body is not JSON"),
        (b"", "body: must be a list, not nothing"),
        (b"[]", "body: "),
        (b'{"job": {}}', "body: must be a list"),
        (b'[{"jb": {}}]', "body[0].jb: unknown key; did you mean 'job'?"),
        (b'[{"job": {"name": "\\ud800", "command": "x"}}]', "body[0].job.name"),
        (b"[" * 100_000, "body"),
        (b"\xff\xfe", "body"),
    ],
)
def test_a_body_that_is_no_submission_is_refused_with_one_sentence(
    deployment: Deployment, body: bytes, wanted: str
) -> None:
    answer = deployment.client(SUBMITTER).post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert wanted in sentence(answer)


def test_a_policy_refusal_is_told_with_its_numbers(deployment: Deployment) -> None:
    deployment.refusal = "the queue is full: 5 of 5"
    answer = deployment.client(SUBMITTER).post("/v1/jobs", json=[job()])
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "refused")
    assert sentence(answer) == "the queue is full: 5 of 5"


def test_plan_prices_what_it_would_launch_and_changes_nothing(deployment: Deployment) -> None:
    deployment.cycle()
    before = deployment.store.events()
    (planned,) = deployment.client(SUBMITTER).post("/v1/plan", json=[job(resources={"vcpus": 4})]).json()
    assert planned["action"] == "launch"
    chosen = [each for each in planned["candidates"] if each["chosen"]]
    assert [each["instance_type"] for each in chosen] == ["m.two"]
    assert planned["price_usd_per_h"] == chosen[0]["price_usd_per_h"] > 0
    assert deployment.store.events() == before
    assert deployment.store.jobs() == ()


def test_list_filters_and_pages(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    client.post("/v1/jobs", json=[job(f"j{n}", tags={"team": str(n % 2)}) for n in range(5)])
    names = [each["spec"]["name"] for each in client.get("/v1/jobs", params={"limit": 2}).json()]
    rest = [each["spec"]["name"] for each in client.get("/v1/jobs", params={"before": "job-4"}).json()]
    assert (names, rest) == (["j4", "j3"], ["j2", "j1", "j0"])
    assert len(client.get("/v1/jobs", params={"tag": "team=1"}).json()) == 2
    assert len(client.get("/v1/jobs", params={"name": "j3"}).json()) == 1
    assert client.get("/v1/jobs", params={"user": "nobody-here"}).json() == []
    assert client.get("/v1/jobs", params={"state": ["succeeded", "failed"]}).json() == []


@pytest.mark.parametrize(
    ("question", "wanted"),
    [
        ({"limit": "0"}, "query limit: input should be greater than or equal to 1, not '0'"),
        ({"state": "runing"}, "query state.0: "),
        ({"before": "x"}, "'x' is not the id of a job"),
        ({"name": "a\x00b"}, "NUL"),
    ],
)
def test_a_bad_question_is_refused_with_one_sentence(
    deployment: Deployment, question: dict[str, str], wanted: str
) -> None:
    answer = deployment.client(SUBMITTER).get("/v1/jobs", params=question)
    assert answer.status_code in (400, 404)
    assert wanted in sentence(answer)


def test_an_unknown_job_names_the_nearest(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    client.post("/v1/jobs", json=[job("sort")])
    for question in ("/v1/jobs/job-7", "/v1/jobs/job-7/logs", "/v1/jobs/job-7/explain"):
        answer = client.get(question)
        assert answer.status_code == 404
        assert "the newest is job-1" in sentence(answer)


def test_environment_is_shown_to_its_owner_and_admins_only(deployment: Deployment) -> None:
    deployment.client(SUBMITTER).post("/v1/jobs", json=[job(env={"PASSWORD": "hunter2"})])
    shown = {
        uid: deployment.client(uid).get("/v1/jobs/job-1").json()["spec"]["env"]["PASSWORD"]
        for uid in (SUBMITTER, ROOT, READER, STRANGER)
    }
    assert shown == {SUBMITTER: "hunter2", ROOT: "hunter2", READER: "***", STRANGER: "***"}
    assert "hunter2" not in deployment.client(STRANGER).get("/v1/jobs").text


def test_cancel_is_for_the_owner_and_admins(deployment: Deployment) -> None:
    deployment.client(SUBMITTER).post("/v1/jobs", json=[job(), job()])
    refused = deployment.client(STRANGER).post("/v1/jobs/job-1/cancel")
    assert (refused.status_code, deployment.store.job("job-1").cancelled_by) == (403, None)
    assert deployment.client(SUBMITTER).post("/v1/jobs/job-1/cancel").json()["cancelled_by"] == "daemon"
    assert deployment.client(ROOT).post("/v1/jobs/job-2/cancel").json()["cancelled_by"] == "root"


def test_jobs_of_one_request_are_cancelled_together_or_not_at_all(deployment: Deployment) -> None:
    client, others = deployment.client(SUBMITTER), deployment.client(STRANGER)
    client.post("/v1/jobs", json=[job(), job(array="0-9"), job()])
    others.post("/v1/jobs", json=[job()])
    names = [each["id"] for each in client.get("/v1/jobs").json()]
    theirs, third, array, first = names
    for wrong, status in ((theirs, 403), ("job-99", 404), (f"{array}[12]", 404)):
        assert client.post("/v1/jobs/cancel", json=[first, third, wrong]).status_code == status
    assert client.post("/v1/jobs/cancel", json=[]).status_code == 400
    assert deployment.store.job(first).cancelled_by is None
    shown = client.post("/v1/jobs/cancel", json=[first, f"{array}[3-5]", f"{array}[5-6]", third]).json()
    assert [each["id"] for each in shown] == [first, array, array, third]
    assert [each["cancelled_by"] for each in shown] == ["daemon", None, None, "daemon"]
    assert shown[2]["tasks"]["cancelled"] == 4
    assert deployment.store.job(theirs).cancelled_by is None


def test_a_job_runs_and_waiting_for_it_returns_when_it_has_ended(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    client.post("/v1/jobs", json=[job()])
    with deployment.running():
        ended = client.get("/v1/jobs/job-1", params={"wait_s": 20}).json()
    assert ended["state"] == "succeeded"


def test_explain_says_to_the_owner_why_a_running_unknown_program_is_not_profiled(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, policy={**POLICY, "profiling": {"when": "beside"}})
    asked = job(command=["sleep", "1000"], target={"batch": {"within": "1h"}})
    deployment.client(SUBMITTER).post("/v1/jobs", json=[asked])
    deployment.cycle_until(lambda: deployment.controller.unprofiled)
    own, others = (deployment.client(uid).get("/v1/jobs/job-1/explain").json() for uid in (SUBMITTER, STRANGER))
    assert own["profiling"].startswith("not profiled yet: knowing it may save $") and own["profiling"] in own["lines"]
    assert others["profiling"] == ""


def test_a_finished_job_stays_as_it_is_when_cancelled(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    client.post("/v1/jobs", json=[job()])
    deployment.cycle_until(lambda: deployment.store.job("job-1").finished_at)
    assert client.post("/v1/jobs/job-1/cancel").json()["state"] == "succeeded"


def test_a_job_may_use_an_uploaded_work_directory(deployment: Deployment) -> None:
    client, archive = deployment.client(SUBMITTER), b"any bytes"
    sha256 = hashlib.sha256(archive).hexdigest()
    client.put(f"/v1/uploads/{sha256}", content=archive)
    assert client.post("/v1/jobs", json=[job(workdir_sha256=sha256)]).status_code == 201


def test_explain_tells_what_was_decided_in_order_and_with_numbers(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    client.post("/v1/jobs", json=[job(command="exit 3")])
    deployment.cycle_until(lambda: deployment.store.job("job-1").finished_at)
    story = client.get("/v1/jobs/job-1/explain").json()
    told = [step["code"] for step in story["steps"]]
    assert told[0] == "submitted"
    wanted = [
        "admitted",
        "bought",
        "launched_for_jobs",
        "machine_ready",
        "placed",
        "unit_ended",
        "exit_code",
        "finished",
    ]
    assert [code for code in wanted if code in told] == wanted
    launch = next(step for step in story["steps"] if step["code"] == "bought")
    assert "m.one" in launch["text"]
    assert launch["numbers"]["price_usd_per_h"] == 0.3
    assert told[-1] == "cost"
    assert len(story["lines"]) == len(told) + 1
    assert all("\n" not in line for line in story["lines"])


def test_a_repeated_request_is_answered_as_before_when_the_queue_is_full_by_then(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    client.post("/v1/jobs", json=[job(token="t-1")])
    deployment.refusal = "the queue is full"
    again = client.post("/v1/jobs", json=[job(token="t-1")])
    assert (again.status_code, again.json()[0]["id"]) == (201, "job-1")
    assert client.post("/v1/jobs", json=[job(token="t-1"), job(token="t-2")]).status_code == 409
    assert client.post("/v1/jobs", json=[job()]).status_code == 409
    assert deployment.client(ROOT).post("/v1/jobs", json=[job(token="t-1")]).status_code == 409
    assert len(deployment.store.jobs()) == 1


@pytest.mark.parametrize(
    "secret",
    [
        {"secret": ["hunter2"]},
        {"secret": "hunter2", "secret_from": "env:hunter2"},
        {"secret": "hunter2\x00"},
        {"secret": "hunter2" * 20_000},
        {"secret_from": "hunter2"},
        {"secret": {"secret": "hunter2"}},
        {"sekret": "hunter2"},
        ["hunter2"],
    ],
)
def test_no_message_quotes_a_secret_that_is_written_wrongly(deployment: Deployment, secret: object) -> None:
    answer = deployment.client(SUBMITTER).post("/v1/jobs", json=[job("a", env={"TOKEN": secret})])
    said = sentence(answer)
    assert answer.status_code == 400 and said.startswith("body[0].job.env.TOKEN: ")
    assert "hunter2" not in said or isinstance(secret, list)  # a list is no secret
    assert deployment.store.secret_key_counts() == {}


def test_secret_is_marked_for_its_owner_too_and_shown_to_none(deployment: Deployment) -> None:
    owner, other = deployment.client(SUBMITTER), deployment.client(STRANGER)
    sent = job("a", command=["sleep", "100"], env={"TOKEN": {"secret": "hunter2"}, "PLAIN": "visible"})
    assert owner.post("/v1/jobs", json=[sent]).status_code == 201
    assert owner.post("/v1/plan", json=[sent]).status_code == 200
    deployment.cycle(6)
    for client in (owner, other, deployment.client(ROOT)):
        for path in ("jobs", "jobs/job-1", "jobs/job-1/explain", "events", "status", "instances"):
            answer = client.get(f"/v1/{path}")
            assert answer.status_code == 200 and "hunter2" not in answer.text, path
    shown = owner.get("/v1/jobs/job-1").json()["spec"]
    assert (shown["secrets"], shown["env"]) == (["TOKEN"], {"PLAIN": "visible"})
    [started] = deployment.engine.starts()
    assert deployment.engine._units[started.unit_id].spec.env["TOKEN"] == "hunter2"


def test_secret_is_refused_while_its_key_cannot_be_used_and_other_jobs_are_not(deployment: Deployment) -> None:
    (deployment.home / "secrets.key").write_text("ab" * 32)
    (deployment.home / "secrets.key").chmod(0o644)
    client = deployment.client(SUBMITTER)
    answer = client.post("/v1/jobs", json=[job("a", env={"TOKEN": {"secret": "hunter2"}})])
    assert answer.status_code == 503 and "is open to other users (mode 0644)" in sentence(answer)
    assert client.post("/v1/jobs", json=[job("b")]).json()[0]["id"] == "job-1"
