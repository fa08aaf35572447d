"""A paused job says on every surface that it is, beside which job, and for how long."""

from dataclasses import replace

from hcloud.cli.jobs import job_detail
from hcloud.cli.status import waits_for
from hcloud.core.model import JobState
from tests.api.deployment import ROOT
from tests.web.conftest import Site, serving

WHY = "paused on inst-1 while job-2 runs, for about 60 s: in turns all are expected to be done in 600 s"


def paused_on(site: Site) -> dict[str, object]:
    """Pause job-1 as its row says it, and return it as the API shows it."""
    store = site.deployment.store
    with store.transaction(site.deployment.context.clock.now()) as txn:
        row = txn.job("job-1")
        assert row.attempt is not None
        (held,) = row.attempt.allocations
        held = replace(held, paused_at=txn.now, paused_text=WHY)
        txn.put_job(replace(row, attempt=replace(row.attempt, allocations=(held,))))
    found: dict[str, object] = site.peer(ROOT).get("/v1/jobs/job-1").json()
    return found


def running(site: Site) -> None:
    site.submitted("ada", name="counts", command=["sleep", "900"])
    site.deployment.cycle_until(lambda: site.deployment.store.job("job-1").state is JobState.RUNNING)


def test_pages_and_commands_say_that_it_is_paused() -> None:
    with serving() as site:
        running(site)
        shown, browser = paused_on(site), site.browser("root")
        for path in ("/jobs", "/jobs/job-1"):
            assert "while job-2 runs, for about 60 s" in browser.get(path).text, path
        assert waits_for(shown) == f"inst-1; {WHY}"
        assert ("paused", WHY) in job_detail(shown, 0.0)


def test_pages_show_where_a_job_runs_that_is_not_paused() -> None:
    with serving() as site:
        running(site)
        for path in ("/jobs", "/jobs/job-1"):
            page = site.browser("root").get(path)
            assert page.status_code == 200, path
            assert "inst-1" in page.text and "paused on" not in page.text, path
