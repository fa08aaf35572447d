"""`hcloud forecast` on a deployment with the mock cloud."""

import json

import pytest

from hcloud.core.model import Job
from tests.api.deployment import SUBMITTER, Deployment, job
from tests.cli.conftest import Shell


@pytest.fixture
def ended(deployment: Deployment) -> Job:
    """A job that ran to its end before the shell is opened."""
    deployment.client(SUBMITTER).post("/v1/jobs", json=[job(command="sleep 30")])
    deployment.cycle_until(lambda: deployment.store.job("job-1").finished_at)
    return deployment.store.job("job-1")


def test_forecast_shows_history_limits_and_a_chart(ended: Job, shell: Shell) -> None:
    out, _ = shell.run("forecast", "1")
    head, limits, *bars = out.splitlines()
    assert head == f"job-1, {ended.spec.user}:sleep: 1 similar run remembered"
    assert limits.startswith("median ") and ", 80 % within " in limits and ", 90 % within " in limits
    assert len(bars) > 2 and bars[0].lstrip().startswith("up to ") and bars[-1].lstrip().startswith("over ")
    assert max(bar.count("#") for bar in bars) == 40
    document = json.loads(shell.run("forecast", f"{ended.spec.user}:sleep", "-o", "json")[0])
    assert (document["job"], document["runs"]) == (None, 1)


def test_what_cannot_be_forecast_ends_with_one_sentence(shell: Shell) -> None:
    for of in ("ann:nothing", "job-7", "a/b"):
        out, err = shell.run("forecast", of, exit_code=2)
        assert (out, len(err.splitlines())) == ("", 1)
