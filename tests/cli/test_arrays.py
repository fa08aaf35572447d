"""Arrays as people type them."""

import json
from pathlib import Path

import pytest

from hcloud.cli.jobs import each_task, job_id
from hcloud.core.errors import BadInput
from hcloud.core.model import JobState
from tests.api.deployment import Deployment
from tests.cli.conftest import Shell
from tests.waiting import wait_until

SWEEP = """
name: sweep
command: echo $code; exit $code
matrix: {code: [0, 3, 4]}
"""


def ended_sweep(shell: Shell, deployment: Deployment) -> None:
    """Submit an array of which tasks 1 and 2 fail, and let it end."""
    (shell.directory / "sweep.yaml").write_text(SWEEP)
    assert shell.run("submit", "-q", "sweep.yaml") == ("job-1 sweep, 3 tasks\n", "")
    wait_until(lambda: deployment.store.job("job-1").state is JobState.FAILED, 30)


def test_an_array_is_one_line_with_counts(shell: Shell, deployment: Deployment) -> None:
    shell.run("submit", "-q", "--array", "0-9%4", "--", "sleep", "5")
    out, _ = shell.run("queue")
    assert out.count("job-1") == 1 and " of 10 tasks" in out
    wait_until(lambda: deployment.store.job("job-1").state is JobState.SUCCEEDED, 30)
    assert "10 of 10 tasks succeeded" in shell.run("status", "1")[0]


def test_tasks_are_shown_read_explained_and_waited_for_by_their_ids(shell: Shell, deployment: Deployment) -> None:
    ended_sweep(shell, deployment)
    out, _ = shell.run("status", "1[1]")
    assert "job-1[1] sweep (job-3)" in out and "exit code 3" in out
    out, _ = shell.run("status", "job-1", "--state", "failed")
    assert "job-1[1]" in out and "job-1[2]" in out and "job-1[0]" not in out
    assert [each["task"] for each in json.loads(shell.run("status", "1[0-1]", "-o", "json")[0])] == [0, 1]
    assert shell.run("logs", "job-1[2]")[0] == "4\n"
    assert shell.run("logs", "1[1-2]")[0] == "==> job-1[1] <==\n3\n==> job-1[2] <==\n4\n"
    parts = [json.loads(line) for line in shell.run("logs", "1[1-2]", "-o", "json")[0].splitlines()]
    assert [(each["task"], each["content"]) for each in parts] == [("job-1[1]", "3\n"), ("job-1[2]", "4\n")]
    err = shell.run("logs", "-f", "1[1-2]", exit_code=2)[1]
    assert err == "hcloud: 1[1-2] names 2 tasks; follow one, such as job-1[1]\n"
    assert shell.run("logs", "1[1-3]", exit_code=2) == ("", "hcloud: job-1 has no task 3; its tasks are 0-2\n")
    assert "task 2 of job-1" in shell.run("explain", "1[2]")[0]
    explained, _ = shell.run("explain", "1[1-2]")
    assert explained.index("task 1 of job-1") < explained.index("task 2 of job-1")
    timelines = json.loads(shell.run("explain", "1[1-2]", "-o", "json")[0])
    assert [each["job"] for each in timelines] == ["job-3", "job-4"]
    assert shell.run("wait", "1[0]")[1].startswith("job-1[0] sweep succeeded")
    _, err = shell.run("wait", "1[0-1]", exit_code=1)
    assert "job-1[1] sweep failed with exit code 3" in err
    assert shell.run("logs", "1", exit_code=2)[1] == (
        "hcloud: job-1 is an array; name one of its tasks, such as job-1[0]\n"
    )


def test_failed_tasks_are_submitted_again(shell: Shell, deployment: Deployment) -> None:
    ended_sweep(shell, deployment)
    assert shell.run("rerun", "--failed", "1")[0] == "job-5 sweep, 2 tasks\n"
    assert shell.run("rerun", "1[0]")[0] == "job-8 sweep, 1 task\n"
    err = shell.run("rerun", "--failed", "1[0]", exit_code=4)[1]
    assert err == "hcloud: no task of job-1 that you named has failed; nothing is run again\n"


def test_named_tasks_are_cancelled(shell: Shell, deployment: Deployment) -> None:
    shell.run("submit", "-q", "--array", "0-9", "--", "sleep", "5")
    assert "job-1" in shell.run("cancel", "-y", "1[3-9]")[0]
    assert ", 7 cancelled" in shell.run("queue")[0]
    err = shell.run("cancel", "-y", "1[8-12]", exit_code=2)[1]
    assert err == "hcloud: job-1 has no task 10; its tasks are 0-9\n"


WRONG = {
    "array: 5-2": "array: 5-2 ends before it begins; write 2-5",
    "array: 0-9%0": "array: %0 must be the number of tasks that may run at once, at least 1, such as %50",
    "array: 1,2,1": "array: names task 1 twice; name each id once",
    f"matrix: {{a: {list(range(1000))}, b: {list(range(1000))}}}": "matrix: has 1,000,000 combinations; at most",
    "matrix: {a: [1, 2]}\narray: 0-5": "array: names task 5, but the matrix has the tasks 0-1",
}


def test_a_wrong_array_is_refused_with_file_and_line(shell: Shell) -> None:
    for text, wanted in WRONG.items():
        (shell.directory / "bad.yaml").write_text(f"name: bad\ncommand: 'true'\n{text}\n")
        _, err = shell.run("job", "check", "bad.yaml", exit_code=2)
        assert f"bad.yaml:{4 if chr(10) in text else 3}: {wanted}" in err
        assert len(err.splitlines()) == 1
    for command in (("submit", "-y", "bad.yaml"), ("submit", "--dry-run", "bad.yaml")):
        assert shell.run(*command, exit_code=2)[1] == err


def test_a_check_says_how_many_tasks_there_are(shell: Shell, tmp_path: Path) -> None:
    (shell.directory / "sweep.yaml").write_text(SWEEP)
    assert "an array of 3 tasks (0-2), each with a combination of code" in shell.run("job", "check", "sweep.yaml")[0]
    out, err = shell.run("submit", "--array", "5-2", "--", "true", exit_code=2)
    assert (out, err) == ("", "hcloud: array (--array): 5-2 ends before it begins; write 2-5\n")


def test_references_are_read_as_typed() -> None:
    assert job_id("7[3-5]") == "job-7[3-5]"
    assert each_task("job-7[3-5,9]") == ["job-7[3]", "job-7[4]", "job-7[5]", "job-7[9]"]
    assert each_task("job-7") == ["job-7"]
    for bad, wanted in (("7[5-2]", "5-2 ends"), ("7[%2]", "must name tasks"), ("7[", "is not the id of a job")):
        with pytest.raises(BadInput, match=wanted):
            job_id(bad)
    with pytest.raises(BadInput, match="names 2000 tasks; name at most 1000, or job-7 itself"):
        each_task("job-7[0-1999]")


def test_the_plan_of_an_array_names_no_made_up_ids(shell: Shell) -> None:
    out, _ = shell.run("submit", "--dry-run", "--array", "0-9", "--vcpus", "0.5", "--", "sleep", "5")
    assert "another task" in out and "job-" not in out


@pytest.mark.parametrize("number", ["0", "1001"])
def test_a_number_of_tasks_that_no_unit_can_run_is_refused(shell: Shell, number: str) -> None:
    out, err = shell.run("submit", "--array", "0-9", "--tasks-per-unit", number, "--", "true", exit_code=2)
    said = f"tasks_per_unit (--tasks-per-unit): must be auto or a number from 1 to 1000, not {number}"
    assert (out, err) == ("", f"hcloud: {said}\n")
