"""Commands inside running jobs: for owners and admins, in the audit log before they are run, never repeated."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from hcloud.api.app import build_app
from hcloud.core.errors import UnitRefused, WorkerUnreachable
from hcloud.core.model import EventKind
from hcloud.fake_runner.runner import FakeRunner
from hcloud.provider import CommandResult
from tests.api.deployment import READER, ROOT, STRANGER, SUBMITTER, Deployment, job, sentence


class ExecutingRunner(FakeRunner):
    """Says of each command what ``result`` is, or raises it."""

    result: CommandResult | Exception
    executed: list[tuple[str, str, Sequence[str], float]]

    def execute(self, unit: str, instance_id: str, command: Sequence[str], timeout_s: float) -> CommandResult:
        self.executed.append((unit, instance_id, command, timeout_s))
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.fixture
def runner(deployment: Deployment) -> ExecutingRunner:
    """What the API asks, with one running job."""
    runner = ExecutingRunner((deployment.cloud,), deployment.clock)
    runner.result, runner.executed = CommandResult(exit_code=3, stdout=b"out\xff", stderr=b"err"), []
    deployment.context = replace(deployment.context, runner=runner)
    deployment.client(SUBMITTER).post("/v1/jobs", json=[job(command="sleep 1000")])
    deployment.cycle_until(lambda: deployment.store.job("job-1").state == "running")
    return runner


def texts(deployment: Deployment) -> list[tuple[str, str]]:
    """Who did what, by the audit log."""
    events = deployment.store.events(job_id="job-1", kinds={EventKind.EXEC}, limit=100)
    return [(each.actor, str(each.fields["text"])) for each in events]


def test_a_command_is_recorded_run_and_answered(deployment: Deployment, runner: ExecutingRunner) -> None:
    body = {"command": ["ls", "a b"], "timeout_s": 7}
    answer = deployment.client(SUBMITTER).post("/v1/jobs/job-1/exec", json=body)
    assert answer.json() == {"exit_code": 3, "stdout": "out�", "stderr": "err", "is_cut": False}
    ((unit, instance, command, timeout_s),) = runner.executed
    assert (unit.partition("_")[0], instance, command, timeout_s) == ("job-1.1.0", "inst-1", ["ls", "a b"], 7.0)
    assert texts(deployment) == [("daemon", "ls 'a b' begins"), ("daemon", "ls 'a b' ended with code 3")]
    lines = deployment.client(SUBMITTER).get("/v1/jobs/job-1/explain").json()["lines"]
    assert any("command of daemon on rank 0: ls 'a b' ended with code 3" in line for line in lines)
    shown = deployment.client(READER).get("/v1/events", params={"kind": "exec"}).json()
    assert len(shown) == 2 and not any(each["fields"] for each in shown)


def test_it_is_for_the_owner_and_admins(deployment: Deployment, runner: ExecutingRunner) -> None:
    body = {"command": ["true"]}
    for uid in (STRANGER, READER):
        assert deployment.client(uid).post("/v1/jobs/job-1/exec", json=body).status_code == 403
    assert not runner.executed and not texts(deployment)
    assert deployment.client(ROOT).post("/v1/jobs/job-1/exec", json=body).status_code == 200


def test_it_can_be_switched_off(deployment: Deployment, runner: ExecutingRunner) -> None:
    app = build_app(replace(deployment.context, has_exec=False))
    answer = deployment.client(ROOT, app).post("/v1/jobs/job-1/exec", json={"command": ["true"]})
    assert (answer.status_code, "api.exec: false" in sentence(answer), runner.executed) == (409, True, [])


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (UnitRefused("its command does not run"), "its command does not run"),
        (WorkerUnreachable("inst-1: no answer"), "the command may or may not have been run"),
    ],
)
def test_a_failure_is_said_once_and_recorded(
    deployment: Deployment, runner: ExecutingRunner, result: Exception, words: str
) -> None:
    runner.result = result
    answer = deployment.client(SUBMITTER).post("/v1/jobs/job-1/exec", json={"command": ["true"]})
    assert answer.status_code == 409 and words in sentence(answer)  # a 503 would be tried again
    assert len(texts(deployment)) == 2


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"command": []}, 400),
        ({"command": ["a\0b"]}, 400),
        ({"command": ["true"], "timeout_s": 61}, 400),
        ({"command": ["true"], "rank": 1}, 409),
    ],
)
def test_bad_input_runs_nothing(
    deployment: Deployment, runner: ExecutingRunner, body: dict[str, object], status: int
) -> None:
    assert deployment.client(SUBMITTER).post("/v1/jobs/job-1/exec", json=body).status_code == status
    assert not runner.executed


def test_what_does_not_run_has_no_commands(deployment: Deployment) -> None:
    deployment.client(SUBMITTER).post("/v1/jobs", json=[job()])
    answer = deployment.client(SUBMITTER).post("/v1/jobs/job-1/exec", json={"command": ["true"]})
    assert sentence(answer) == "job-1 does not run (submitted); commands can be run only in what runs"
