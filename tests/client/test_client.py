"""The Python client against a real server on a real socket: jobs and tasks as futures."""

import re
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, CancelledError, as_completed, wait
from pathlib import Path

import pytest

from hcloud.client import Client, JobFailed
from hcloud.client import connection as connections
from hcloud.core.errors import BadInput, DaemonUnreachable, NotFound, Refused
from tests.api.deployment import Deployment

SOON_S = 30.0


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    with tempfile.TemporaryDirectory(prefix="hcloud-client-") as made:
        deployment = Deployment(Path(made))
        yield deployment
        deployment.close()


@pytest.fixture
def client(deployment: Deployment) -> Iterator[Client]:
    """A client of a deployment whose cycles run."""
    deployment.cycle()
    with deployment.served() as server, deployment.running(), Client(socket=server.socket_path) as client:
        yield client


def test_a_job_is_a_future_with_its_result_and_output(client: Client) -> None:
    job = client.submit({"name": "hello", "command": ["echo", "one"]}, command="echo hello; echo oh >&2")
    result = job.result(SOON_S)
    assert (result.id, result.name, result.state) == (job.id, "hello", "succeeded")
    assert result.finished_at > result.submitted_at
    assert (job.output(), job.output("stderr")) == (b"hello\n", b"oh\n")
    assert [each["id"] for each in client.jobs(state="succeeded", name="hello")] == [job.id]
    assert not job.cancel() and not job.running()


def test_a_failed_job_raises_how_it_failed_and_a_cancelled_one_is_cancelled(client: Client) -> None:
    failing, endless = client.submit_all(
        [{"name": "failing", "command": ["exit", "3"]}, {"name": "endless", "command": ["sleep", "100000"]}]
    )
    assert wait([failing, endless], SOON_S, return_when=FIRST_EXCEPTION).done == {failing}
    with pytest.raises(JobFailed, match=r"failing: .*3") as caught:
        failing.result(0)
    assert (caught.value.result.state, caught.value.result.view["failures"]) == ("failed", ["exit_code"])
    assert endless.cancel()
    with pytest.raises(CancelledError):
        endless.result(SOON_S)
    assert endless.cancelled() and endless.done()


def test_tasks_of_an_array_are_futures_that_end_one_by_one(client: Client) -> None:
    tasks = client.submit_array(name="sweep", command="echo $HCLOUD_TASK_ID; exit $CODE", matrix={"CODE": ["0", "7"]})
    assert [each.id.partition("[")[2] for each in tasks] == ["0]", "1]"]
    ended = {each.id: each.exception(0) for each in as_completed(tasks, SOON_S)}
    assert ended[tasks[0].id] is None and isinstance(ended[tasks[1].id], JobFailed)
    assert tasks[0].output() == b"0\n"
    again = client.tasks(tasks[0].id.partition("[")[0])
    assert again[0].result(SOON_S).state == "succeeded"


def test_many_tasks_are_cancelled_in_one_request(client: Client) -> None:
    tasks = client.submit_array(name="sweep", command="sleep 100000", array="0-4")
    client.cancel(tasks[1:])
    for each in tasks[1:]:
        with pytest.raises(CancelledError):
            each.result(SOON_S)
    assert not tasks[0].done()


def test_jobs_of_a_file_wait_for_each_other_and_a_work_directory_is_sent(client: Client, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "main.py").write_text("print('hello')\n")
    file = tmp_path / "jobs.yaml"
    file.write_text(
        f"name: first\ncommand: sleep 1\nworkdir: {tmp_path}/code\n"
        "---\nname: second\ncommand: sleep 1\nafter: {first: succeeded}\n"
    )
    first, second = client.submit_file(file)
    assert second.result(SOON_S).view["spec"]["name"] == "second"
    assert first.done() and first.view()["spec"]["workdir_sha256"]


def test_a_plan_says_what_would_be_bought_and_submits_nothing(client: Client) -> None:
    (planned,) = client.plan({"name": "big", "command": ["true"], "resources": {"vcpus": 8}})
    assert planned["action"] == "launch" and planned["price_usd_per_h"] == pytest.approx(1.2)
    assert client.jobs() == []


def test_a_report_is_what_the_command_line_prints(client: Client) -> None:
    client.submit(name="paid", command=["sleep", "2"]).result(SOON_S)
    assert client.report("cost")["rows"]


def test_wrong_input_is_one_sentence_and_submits_nothing(client: Client, deployment: Deployment) -> None:
    with pytest.raises(BadInput, match=r"job x: resources\.vcpus"):
        client.submit(name="x", command=["true"], resources={"vcpus": -1})
    with pytest.raises(BadInput, match=r"a job must be a mapping of job file keys, such as .*, not 'true'"):
        client.submit("true")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="array: is missing; write"):
        client.submit_array(name="x", command=["true"])
    with pytest.raises(BadInput, match="is no array"):
        client.tasks(client.submit(name="plain", command=["true"]).id)
    with pytest.raises(NotFound, match="job-99"):
        client.job("job-99").result(SOON_S)
    with pytest.raises(BadInput, match="https"):
        Client("http://example.org")
    deployment.refusal = "the queue is full"
    with pytest.raises(Refused, match="the queue is full"):
        client.submit(name="y", command=["true"])
    assert [each["spec"]["name"] for each in client.jobs()] == ["plain"]


def test_futures_fail_when_no_daemon_answers_any_more(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hcloud.client.futures.WAITING_PATIENCE_S", 0.05)
    monkeypatch.setattr(connections, "PATIENCE_S", 0.05)
    deployment.cycle()
    with deployment.served() as server, Client(socket=server.socket_path) as client:
        jobs = client.submit_all([{"name": "a", "command": ["true"]}, {"name": "b", "command": ["true"]}])
    assert client.job(jobs[0].id) is not jobs[0]  # attached again, by whoever wants to wait on
    with pytest.raises(DaemonUnreachable):
        Client(socket=deployment.home / "none.sock").job("job-1").result(SOON_S)


def test_no_thread_is_left_when_all_jobs_have_ended(client: Client) -> None:
    client.submit(name="quick", command=["true"]).result(SOON_S)
    client.close()
    assert "hcloud jobs" not in [each.name for each in threading.enumerate()]


def test_examples_of_the_page_work(
    client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HCLOUD_SOCKET", str(client.endpoint.socket))
    page = Path(__file__).parents[2] / "docs" / "python.md"
    for example in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        exec(compile(example, str(page), "exec"), {})
    written = capsys.readouterr().out
    assert "job-1 succeeded in" in written and "trained" in written
    assert "job-2[0] seed 0" in written and "job-2[1] sweep: " in written
