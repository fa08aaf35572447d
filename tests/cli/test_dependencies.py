"""Dependencies as people type them."""

from hcloud.core.model import JobState
from tests.api.deployment import Deployment
from tests.cli.conftest import Shell
from tests.waiting import wait_until

CHAIN = """
name: last
command: "true"
after: {first: succeeded}
---
name: first
command: exit 2
"""


def test_a_file_of_several_jobs_is_submitted_as_one_and_says_what_it_waits_for(
    shell: Shell, deployment: Deployment
) -> None:
    (shell.directory / "chain.yaml").write_text(CHAIN)
    out, _ = shell.run("submit", "--dry-run", "chain.yaml")
    assert "last: wait, waits for first to succeed" in out
    assert shell.run("submit", "-q", "chain.yaml")[0] == "job-1 last\njob-2 first\n"
    wait_until(lambda: deployment.store.job("job-1").state is JobState.CANCELLED, 30)
    out = shell.run("status", "1")[0]
    assert "first: succeeded" in out and "waited for job-2 first to succeed, which failed" in out
    _, err = shell.run("submit", "-q", "--after", "1", "--", "true", exit_code=2)
    assert err == "hcloud: job true: after.job-1: has been cancelled already, so this could never start\n"


def test_mistakes_name_file_line_and_key(shell: Shell) -> None:
    (shell.directory / "chain.yaml").write_text(CHAIN.replace("{first: succeeded}", "frist"))
    _, err = shell.run("submit", "-q", "chain.yaml", exit_code=2)
    wanted = (
        "after.frist: is no job of this submission and no id such as job-7; the others of this submission are first"
    )
    assert err.endswith(f"chain.yaml:4: {wanted}\n")
