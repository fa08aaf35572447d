"""The shipped alert rules: each fires on what a daemon exposes in that state, and none on a healthy one."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from hcloud.api import build_app
from hcloud.config import package_data
from hcloud.store.live import LiveView
from providers.mock.faults import Fault, FaultKind
from tests.api.deployment import CLOUD, ROOT, Deployment, job
from tests.deploy.promtool import RULES, Case, failures, run
from tests.machine import needs_promtool

DAY_S = 86_400.0
FLEET: dict[str, object] = {"caps": {"max_instances": 4}, "retention": {"maximum_s": 10}}
MARKETS = {**CLOUD, "markets": ["on_demand", "spot"]}


class Fleet:
    """A deployment whose states are scraped one after the other; its daemon may say other things of itself."""

    def __init__(self, home: Path) -> None:
        self.deployment = Deployment(home, policy=FLEET, cloud=MARKETS)
        self.policy = self.deployment.policy
        self.app = build_app(self.deployment.context)
        self.client = self.deployment.client(ROOT, self.app)

    def scrape(self) -> str:
        """Return what Prometheus gets."""
        text: str = self.client.get("/metrics").text
        return text

    def submit(self, *command: str, **changes: Any) -> None:
        """Submit one job."""
        answer = self.client.post("/v1/jobs", json=[job(command=command or ["sleep", "3"], **changes)])
        assert answer.status_code == 201, answer.text

    def calm(self) -> None:
        """Let all jobs and machines end, with nothing in the way any more."""
        self.app.state.context = self.deployment.context
        self.deployment.policy = self.policy
        self.deployment.engine.reconnect()
        self.deployment.cycle()
        self.deployment.cycle_until(lambda: not self._live.instances and not self._live.jobs)

    @property
    def _live(self) -> LiveView:
        return self.deployment.store.live()

    def with_status(self, **parts: Mapping[str, object]) -> None:
        """Let the daemon say other things of itself."""
        status: Any = self.deployment.status()
        changed = {**status, **{key: {**status[key], **part} for key, part in parts.items()}}
        self.app.state.context = replace(self.deployment.context, status=lambda: changed)


State = Callable[[Fleet], None]


# --------------------------------------------------------------------------------------------------------------- states
def gone(fleet: Fleet) -> None:
    """Nothing answers a scrape any more (see ``case``)."""


def without_leader(fleet: Fleet) -> None:
    fleet.deployment.controller.release()


def failing_cycles(fleet: Fleet) -> None:
    fleet.with_status(cycle={"error": "database unavailable: disk is full"})


def slow_cycles(fleet: Fleet) -> None:
    fleet.deployment.telemetry.record_cycle(8.0)


def quarantined(fleet: Fleet) -> None:
    fleet.with_status(cycle={"left_out": {"job-7": "ValueError: planned to nowhere"}})


def engine_away(fleet: Fleet) -> None:
    fleet.deployment.engine.disconnect()
    fleet.deployment.cycle()


def silent_worker(fleet: Fleet) -> None:
    fleet.submit("sleep", "10")
    fleet.deployment.cycle(6)
    for each in fleet.deployment.store.live().instances:
        fleet.deployment.engine.silence(each.id)
    fleet.deployment.cycle()
    status = fleet.deployment.status()
    fleet.app.state.context = replace(fleet.deployment.context, status=lambda: status)
    for each in fleet.deployment.store.live().instances:
        fleet.deployment.engine.unsilence(each.id)


def refused_launches(fleet: Fleet) -> None:
    for _ in range(2):
        fleet.deployment.cloud.inject(Fault(kind=FaultKind.RUN_OUT))
    fleet.submit()
    fleet.deployment.cycle()


def taken_spot(fleet: Fleet) -> None:
    fleet.deployment.cloud.inject(Fault(kind=FaultKind.PREEMPT, delay_s=5.0))
    fleet.submit("sleep", "20")
    fleet.deployment.cycle(15)


def spent_budget(fleet: Fleet) -> None:
    policy, spent = fleet.deployment.policy, fleet.deployment.controller.last_spend
    fleet.deployment.policy = replace(policy, budgets=replace(policy.budgets, per_day_usd=1.05 * spent.day_usd))


def missed_deadline(fleet: Fleet) -> None:
    fleet.submit("sleep", "20", target={"batch": {"within": "10s"}})
    fleet.deployment.cycle_until(lambda: not fleet.deployment.store.live().jobs)


def long_wait(fleet: Fleet) -> None:
    fleet.client.post("/v1/pause", json={"reason": "maintenance"})
    fleet.submit()
    fleet.deployment.cycle(10, step_s=360.0)
    fleet.client.post("/v1/resume")
    fleet.deployment.cycle_until(lambda: not fleet.deployment.store.live().jobs)


def old_prices(fleet: Fleet) -> None:
    fleet.deployment.clock.advance(15 * DAY_S)


def failing_requests(fleet: Fleet) -> None:
    def broken() -> Any:
        raise RuntimeError("a defect")

    fleet.app.state.context = replace(fleet.deployment.context, status=broken)
    for _ in range(2):
        assert fleet.client.get("/v1/status").status_code == 500
    fleet.app.state.context = fleet.deployment.context


STATES: dict[str, State] = {
    "HCloudAbsent": gone,
    "HCloudCycleFails": failing_cycles,
    "HCloudCycleSlow": slow_cycles,
    "HCloudQuarantine": quarantined,
    "HCloudEngineUnreachable": engine_away,
    "HCloudWorkersSilent": silent_worker,
    "HCloudLaunchesFail": refused_launches,
    "HCloudSpotTaken": taken_spot,
    "HCloudBudgetNearlyUsed": spent_budget,
    "HCloudTargetsMissed": missed_deadline,
    "HCloudJobsWaitLong": long_wait,
    "HCloudRequestsFail": failing_requests,
    "HCloudPricesOld": old_prices,
    "HCloudNoLeader": without_leader,
}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """The scrapes of a fleet before and in each state, by alert."""
    fleet, found = Fleet(tmp_path_factory.mktemp("alerts")), dict[str, Case]()
    fleet.submit()
    for alert, enter in STATES.items():
        fleet.calm()
        before = fleet.scrape()
        enter(fleet)
        if alert not in ("HCloudNoLeader", "HCloudPricesOld"):
            fleet.deployment.cycle()  # events are counted by the cycle that follows
        after = "" if alert == "HCloudAbsent" else fleet.scrape()
        firing = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) > bool 0'
        none = {"count(ALERTS)": None}
        found[alert] = Case(name=alert, before=before, after=after, at_first=none, at_last={firing: 1.0})
    fleet.deployment.close()
    return found


def rules() -> list[dict[str, Any]]:
    document: Any = yaml.safe_load(RULES.read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


@needs_promtool
def test_every_alert_fires_in_its_state_and_none_before(cases: dict[str, Case], tmp_path: Path) -> None:
    assert failures(list(cases.values()), tmp_path) == ""


@needs_promtool
def test_an_alert_that_does_not_fire_is_noticed(cases: dict[str, Case], tmp_path: Path) -> None:
    healthy = cases["HCloudNoLeader"]
    assert "HCloudNoLeader" in failures([replace(healthy, after=healthy.before)], tmp_path)


@needs_promtool
def test_rules_and_metrics_are_as_prometheus_wants_them(cases: dict[str, Case]) -> None:
    assert run("check", "rules", str(RULES)) == ""
    busy = cases["HCloudRequestsFail"].after
    assert run("check", "metrics", text=busy) == ""
    assert run("check", "metrics", text=busy.replace("launches_total", "launches")) != ""


def test_every_rule_has_a_state_that_makes_it_fire_and_says_what_to_do() -> None:
    assert sorted(rule["alert"] for rule in rules()) == sorted(STATES)
    for rule in rules():
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["labels"]["severity"] in ("critical", "warning")


@pytest.mark.parametrize("document", ["docs/operations.md"])
def test_the_rules_are_where_the_documents_say(document: str) -> None:
    assert "deploy/prometheus/hcloud.rules.yml" in (package_data.root() / document).read_text()
