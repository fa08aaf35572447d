"""`hcloud report` on the log of a deployment with the mock cloud."""

import csv
import io
import json

import pytest

from hcloud.report import REPORT_NAMES
from hcloud.spend_ledger import SpendLedger
from tests.api.deployment import Deployment
from tests.cli.conftest import Shell
from tests.waiting import wait_until

BILLING_MINIMUM_S = 60.0
JOBS = """
name: good
command: sleep 30
target: {batch: {within: 10m}}
tags: {team: search}
---
name: bad
command: exit 3
target: {batch: {within: 10m}}
"""


@pytest.fixture
def done(shell: Shell, deployment: Deployment) -> Shell:
    """A shell after one job succeeded and one failed, with all machines terminated and billed."""
    (shell.directory / "jobs.yaml").write_text(JOBS)
    shell.run("run", "-q", "jobs.yaml", exit_code=1)

    # A short-lived machine is billed for a minimum, which is in the report only once that time has passed.
    def billed_to_the_end() -> bool:
        machines = deployment.store.instances(live_only=False)
        ends = [max(m.terminated_at, (m.launched_at or 0.0) + BILLING_MINIMUM_S) for m in machines if m.terminated_at]
        return len(ends) == len(machines) and max(ends) < deployment.clock.now()

    wait_until(billed_to_the_end, timeout_s=60)
    return shell


def test_every_report_is_shown(done: Shell) -> None:
    for name in (each for each in REPORT_NAMES if each != "focus"):
        out, _ = done.run("report", name)
        assert out.splitlines()[0].lower().startswith(name)
        assert "UTC" in out
    header, *lines = csv.reader(io.StringIO(done.run("report", "--by", "tag:team", "-o", "csv")[0]))
    assert header[:2] == ["tag:team", "unit_h"]
    assert "search" in {line[0] for line in lines}
    _options_are_heeded(done)


def _options_are_heeded(done: Shell) -> None:
    """Check what the options of reports do, on the same jobs."""
    separate = json.loads(done.run("report", "-o", "json")[0])
    shared = json.loads(done.run("report", "--idle", "share", "-o", "json")[0])
    assert "(idle)" in {row["user"] for row in separate["rows"]} - {row["user"] for row in shared["rows"]}
    assert shared["total"]["cost_usd"] == pytest.approx(separate["total"]["cost_usd"])
    assert "Asia/Tokyo" in done.run("report", "--by", "day", "--zone", "Asia/Tokyo")[0].splitlines()[0]
    _, err = done.run("report", "--zone", "Tokyo", exit_code=2)
    assert "no time zone 'Tokyo'" in err
    _, err = done.run("report", "--plot", "cost.png")
    assert err == "wrote cost.png\n" and (done.directory / "cost.png").read_bytes().startswith(b"\x89PNG")
    assert "must end with .svg, .png or .pdf" in done.run("report", "--plot", "cost.gif", exit_code=2)[1]
    charges = csv.DictReader(io.StringIO(done.run("report", "focus")[0]))
    assert sum(float(each["EffectiveCost"]) for each in charges) == pytest.approx(separate["total"]["cost_usd"])


def test_cost_equals_the_spend_ledger(done: Shell, deployment: Deployment) -> None:
    document = json.loads(done.run("report", "cost", "--by", "job", "-o", "json")[0])
    ledger = SpendLedger()
    ledger.follow(deployment.store.iter_events())
    spent = ledger.spend(deployment.clock.now()).month_usd
    assert spent > 0
    assert document["total"]["cost_usd"] == pytest.approx(spent)
    jobs = {row["job"]: row["cost_usd"] for row in document["rows"]}
    assert jobs["job-1"] > 0
    assert sum(jobs.values()) == pytest.approx(document["total"]["cost_usd"])
    assert "the newest is" in document["notes"][0]


def test_accounts_sum_to_the_cost(done: Shell) -> None:
    cost = json.loads(done.run("report", "cost", "-o", "json")[0])["total"]["cost_usd"]
    (accounts,) = json.loads(done.run("report", "utilisation", "-o", "json")[0])["further"]
    assert accounts["total"]["cost_usd"] == pytest.approx(cost) and cost > 0.0
    header, *lines = csv.reader(io.StringIO(done.run("report", "utilisation", "--by", "account", "-o", "csv")[0]))
    spent = {line[0]: line[header.index("cost_usd")] for line in lines}
    assert sum(float(each) for each in spent.values() if each) == pytest.approx(cost)
    assert float(spent["used"]) > 0.0 == float(spent["reserved_unused"])
    shown, _ = done.run("report", "utilisation")
    assert "\nWhere the money went\naccount " in shown and "held by jobs, up to their need" in shown


def test_performance_shows_waits_and_targets(done: Shell) -> None:
    document = json.loads(done.run("report", "performance", "--by", "job", "-o", "json")[0])
    good, bad = document["rows"]
    assert (good["state"], good["target_met_pct"], good["attempts"]) == ("succeeded", 100.0, 1)
    assert (bad["state"], bad["target_met_pct"]) == ("failed", 0.0)
    assert good["run_s"] == pytest.approx(30.0, abs=2.0)
    assert good["target"] == "within 600 s"


def test_period_is_a_duration_or_a_time(done: Shell) -> None:
    assert json.loads(done.run("report", "--since", "7d", "-o", "json")[0])["rows"]
    assert json.loads(done.run("report", "--since", "2020-01-01", "-o", "json")[0])["rows"]
    out, _ = done.run("report", "--until", "2020-01-01T00:00:00Z")
    assert "nothing to report for this period" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["costs"], "'costs' is not one of"),
        (["cost", "--by", "usr"], "did you mean user?"),
        (["cost", "--since", "soon"], "--since 'soon': write a duration such as 7d, or a UTC date or time"),
        (["cost", "--until", "2026-01-01T10:00"], "--until '2026-01-01T10:00': write a duration"),
        (["cost", "--since", "1h", "--until", "2h"], "after"),
    ],
)
def test_invalid_options_are_refused_in_one_sentence(shell: Shell, arguments: list[str], words: str) -> None:
    _, err = shell.run("report", *arguments, exit_code=2)
    assert words in err
