"""What `hcloud status` says of a daemon's health and of jobs, and which of them it and its siblings choose."""

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from hcloud.cli.jobs import target_text
from hcloud.cli.machines import PAGE, _offer_row, _shown_offer
from hcloud.cli.output import gib, span, usd
from hcloud.cli.status import daemon_lines, troubles
from hcloud.core.model import EventKind, JobState
from hcloud.store import Submission
from tests.api.deployment import START_AT, Deployment
from tests.cli.conftest import Shell
from tests.waiting import wait_until

WELL = {
    "version": "1.2",
    "now": 10_000.0,
    "you": "ada",
    "role": "admin",
    "paused": "",
    "jobs": {"running": 2, "failed": 0, "queued": 1},
    "instances": {"ready": 3},
    "price_usd_per_h": 1.5,
    "priced_at": 10_000.0 - 60,
    "daemon": {
        "started_at": 10_000.0 - 3600,
        "leader": True,
        "policy": {"name": "thrifty", "digest": "0123456789abcdef", "error": ""},
        "cycle": {"at": 9_998.0, "duration_s": 0.25, "actions": 4, "refused": 1, "error": ""},
        "engine": {"reachable": True, "workers": 3, "silent": 1},
        "providers": {"mock": {"ok": True, "error": "", "offers": 7, "facts": {"missing": "control groups"}}},
        "spend": {"day_usd": 2.0, "per_day_limit_usd": 10.0, "month_usd": 30.0, "per_month_limit_usd": None},
    },
}
ILL = {"policy": {"error": "p.yaml:3: bad"},
       "cycle": {"error": "the database is locked", "left_out": {"job-7": "KeyError: 3"}}}  # fmt: skip


def test_health_is_told_line_by_line() -> None:
    assert daemon_lines(WELL) == [
        "daemon   hcloud 1.2, up 1h00m, leader; you are ada (admin)",
        "cycle    2s ago, took 250 ms, 4 actions, 1 refused",
        "policy   thrifty 0123456789ab",
        "engine   reachable, 3 workers, 1 silent",
        "provider mock: 7 offers",
        "money    $1.50/h now, $2.00 of $10.00 today, $30.00 this month; oldest price 1m00s old",
        "jobs     2 running, 1 queued; machines: 3 ready",
        "missing  control groups (mock)",
    ]


def test_age_of_prices_is_shown_per_provider_and_market_with_a_warning_past_30_days() -> None:
    now, day_s = 1e9, 86_400.0
    providers = {"aws": {"offers": 2, "priced_at": {"spot": now - 60, "on_demand": now - 31 * day_s}}}
    lines = daemon_lines({**WELL, "now": now, "daemon": {**WELL["daemon"], "providers": providers}})  # type: ignore[dict-item]
    assert "provider aws: 2 offers; age of prices: on_demand 31d00h, spot 1m00s" in lines
    assert [line for line in lines if line.startswith("PRICES")] == [
        "PRICES   on_demand prices of aws are 31d00h old (warning: over 30 days; update with `hcloud catalog refresh`)"
    ]


def test_whatever_is_wrong_is_told_and_nothing_else() -> None:
    assert troubles(WELL) == []
    daemon = {**WELL["daemon"], "leader": False, "engine": {"reachable": False}}  # type: ignore[dict-item]
    daemon |= {part: {**daemon[part], **said} for part, said in ILL.items()}
    daemon["providers"] = {"mock": {"error": "throttled"}, "other": {"error": ""}}
    lines = daemon_lines({**WELL, "paused": "kernel update", "daemon": daemon})
    assert lines[0].endswith(", standby; you are ada (admin)")
    assert "engine   NOT REACHABLE, 0 workers, 0 silent" in lines
    assert lines[-5:] == [
        "TROUBLE  paused: kernel update; continue with 'hcloud resume'",
        "TROUBLE  policy file rejected, the previous policy stays in force: p.yaml:3: bad",
        "TROUBLE  the last cycle failed: the database is locked",
        "TROUBLE  defect in HCloud, job-7 is quarantined: KeyError: 3",
        "TROUBLE  provider mock: throttled",
    ]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ({"kind": "service", "requests_per_s": 50.0, "percentile": 99.0, "latency_ms": 20.0}, "50/s, p99 <= 20 ms"),
        ({"kind": "best_effort"}, "best effort"),
        ({"kind": "batch", "finish_within_s": 600.0, "finish_by_at": None}, "within 10m00s"),
        ({"kind": "batch", "finish_within_s": None, "finish_by_at": None}, "batch"),
    ],
)
def test_a_target_is_said_in_few_words(target: dict[str, object], said: str) -> None:
    assert target_text(target) == said


@pytest.fixture
def three(shell: Shell, deployment: Deployment) -> Shell:
    """A shell where two jobs of ours (one has ended) and one of somebody else's are known."""
    shell.run("submit", "-q", "-t", "team=search", "--", "true")
    shell.run("wait", "1")
    shell.run("submit", "-q", "-t", "team=ads", "--within", "1h", "--", "sleep", "1000000")
    spec = replace(deployment.store.job("job-2").spec, user="eve", tags={})
    deployment.store.submit([Submission(spec=spec, actor="eve")], deployment.clock.now())
    wait_until(lambda: deployment.store.job("job-3").state is JobState.RUNNING, timeout_s=60)
    return shell


def test_jobs_are_chosen_by_user_state_tag_and_number(three: Shell) -> None:
    chosen = {
        (): ["job-2", "job-1"],
        ("--all-users",): ["job-3", "job-2", "job-1"],
        ("--state", "running"): ["job-2"],
        ("--tag", "team=search"): ["job-1"],
        ("--tag", "team"): ["job-2", "job-1"],
        ("--limit", "1"): ["job-2"],
    }
    asked = [("queue", *words) for words in chosen] + [("status", "--tag", "team=search"), ("status",)]
    for words in asked:
        rows = csv.DictReader(io.StringIO(three.run(*words, "-o", "csv")[0]))
        assert [row["job"] for row in rows] == chosen[words[1:]], words


def test_a_job_is_shown_with_its_age_what_is_left_and_its_machine(three: Shell, deployment: Deployment) -> None:
    before_at = deployment.clock.now()  # it moves on while the command runs: how far, this machine says
    ended, running = sorted(line.split() for line in three.run("queue")[0].splitlines()[1:])
    asked_at = [before_at + passed_s for passed_s in range(round(deployment.clock.now() - before_at) + 1)]
    first, second = deployment.store.job("job-1"), deployment.store.job("job-2")
    assert first.finished_at is not None
    assert ended[3:10] == ["succeeded", "best", "effort", "1", "1", span(first.finished_at - first.submitted_at), "-"]
    (machine,) = second.attempt.allocations  # type: ignore[union-attr]
    assert running[-1] == machine.instance_id
    assert running[-2] in {span(second.submitted_at + 3600.0 - at) for at in asked_at}


def test_cancelling_all_leaves_what_is_not_ours(three: Shell, deployment: Deployment) -> None:
    assert [row["id"] for row in json.loads(three.run("cancel", "--all", "-y", "-o", "json")[0])] == ["job-2"]
    assert deployment.store.job("job-3").cancelled_by is None
    first, *_ = json.loads(three.run("cancel", "--all", "-u", "-y", "-o", "json")[0])
    assert first["id"] == "job-3"


@pytest.mark.parametrize(
    ("about", "says"),
    [
        (("--job", "99"), "there is no job-99"),
        (("--instance", "inst-99"), "there is no inst-99"),
        (("--instance", "no?such"), "'no?such' is not the id of a machine"),
    ],
)
def test_events_of_what_there_is_not_are_a_mistake(shell: Shell, about: tuple[str, ...], says: str) -> None:
    assert says in shell.run("events", *about, exit_code=2)[1]


def test_offers_are_no_more_than_asked_for(shell: Shell, deployment: Deployment) -> None:
    shell.run("submit", "-q", "--", "true")
    wait_until(lambda: deployment.controller.offers.all, timeout_s=60)
    offers = json.loads(shell.run("offers", "-o", "json")[0])
    assert len(offers) == 2
    assert json.loads(shell.run("offers", "-n", "1", "-o", "json")[0]) == offers[:1]
    assert json.loads(shell.run("offers", "--market", "spot", "-o", "json")[0]) == []
    region = offers[0]["region"]
    assert len(json.loads(shell.run("offers", "--region", "nowhere", "--region", region, "-o", "json")[0])) == 2
    assert json.loads(shell.run("offers", "--region", f"{region}?", "-o", "json")[0]) == []


@pytest.fixture
def quiet(deployment: Deployment) -> Iterator[Shell]:
    """A shell before a daemon in whose log nothing happens but what a test writes."""
    environment = {"HOME": str(deployment.home), "TZ": "UTC"}
    with deployment.served() as server:
        yield Shell(directory=deployment.home, environment={**environment, "HCLOUD_SOCKET": str(server.socket_path)})


def seqs(shell: Shell, *words: str) -> list[int]:
    return [each["seq"] for each in json.loads(shell.run("events", *words, "-o", "json")[0])]


def test_events_are_the_newest_in_order_of_time_and_say_that_older_ones_are_left_out(
    quiet: Shell, deployment: Deployment
) -> None:
    with deployment.store.transaction(now=START_AT) as transaction:
        for _ in range(2 * PAGE + 10):
            transaction.emit(EventKind.DAEMON)
    last = 2 * PAGE + 10
    assert seqs(quiet, "-n", "3") == [last - 2, last - 1, last]
    assert seqs(quiet) == list(range(1, last + 1))
    assert seqs(quiet, "-n", str(2 * PAGE)) == list(range(11, last + 1))
    assert seqs(quiet, "-n", "3", "--after", "5") == [6, 7, 8]
    _, err = quiet.run("events", "-n", "3")
    assert err == "older events are left out; -n N shows the newest N\n"
    assert quiet.run("events", "-n", "3", "--after", "5")[1] == "newer events are left out; go on with --after 8\n"
    for words in (("-n", str(last)), ("-n", "3", "-o", "csv"), ("-n", "3", "--after", str(last - 3))):
        assert quiet.run("events", *words)[1] == ""


def test_times_in_an_events_fields_are_told_as_its_own_time_is(quiet: Shell, deployment: Deployment) -> None:
    with deployment.store.transaction(now=START_AT) as transaction:
        transaction.emit(EventKind.OPERATOR_ORDER, deadline_at=START_AT + 3600, price_usd_per_h=0.25)
    out, _ = quiet.run("events")
    assert "2030-03-17 17:46:40" in out
    assert "deadline_at=2030-03-17 18:46:40 price_usd_per_h=0.25" in out


@pytest.mark.parametrize(
    ("amount", "said"),
    [
        *((0.0, "$0.00"), (-0.0045, "-$0.0045"), (-2.5, "-$2.50"), (0.25, "$0.2500"), (None, "")),
        *((0.0001, "$0.0001"), (0.000038, "$0.000038"), (1e-17, "$0.00")),
    ],
)
def test_money_has_its_sign_before_the_dollar(amount: float | None, said: str) -> None:
    assert usd(amount) == said


@pytest.mark.parametrize(
    ("amount", "said"), [(100 / 1024, "100 MiB"), (1.0, "1 GiB"), (1.5, "1.5 GiB"), (1e5 / 1024, "97.66 GiB")]
)
def test_sizes_are_told_in_units_that_fit(amount: float, said: str) -> None:
    assert gib(amount) == said


def test_prices_of_offers_are_short_in_tables_and_whole_for_programs(shell: Shell, deployment: Deployment) -> None:
    wait_until(lambda: deployment.controller.offers.all, timeout_s=60)
    offer = {**json.loads(shell.run("offers", "-o", "json")[0])[0], "price_usd_per_h": 0.007687285687647157}
    assert "0.007687" in _shown_offer(offer)
    assert 0.007687285687647157 in _offer_row(offer)


def test_what_loosens_a_limit_is_shown_and_accepted_on_purpose(shell: Shell, deployment: Deployment) -> None:
    assert shell.run("policy", "accept")[0] == "nothing waits to be accepted\n"
    deployment.unaccepted_changes = ["budgets.per_day_usd from 5 to none"]
    assert (
        "TROUBLE  not in force until 'hcloud policy accept': budgets.per_day_usd from 5 to none"
        in shell.run("status")[0]
    )
    out, err = shell.run("policy", "accept", exit_code=2)
    assert out == "budgets.per_day_usd from 5 to none\n" and "nothing was accepted" in err
    assert deployment.unaccepted_changes
    assert shell.run("policy", "accept", "--yes")[0].endswith("accepted\n")
    assert deployment.unaccepted_changes == []
