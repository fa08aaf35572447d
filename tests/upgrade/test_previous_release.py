"""This release on the home of the previous one: its configuration, policies, keys, database and mock cloud."""

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hcloud.config import load_config
from hcloud.core.model import EventKind
from hcloud.core.units import utc_text
from hcloud.forecast.run_time_tracker import RunTimeTracker
from hcloud.store import Store, verify_audit_log
from tests.daemon.home import PATIENCE_S, Home
from tests.engine.site import free_port
from tests.upgrade.restore import RECORDED, restore
from tests.waiting import wait_until

ENDED = {"job-1": "succeeded", "job-2": "failed", "job-3": "cancelled"}
HOLDING = {"inst-1", "inst-2", "inst-7"}
"""The instances with units."""
RUNNING = {"job-4": "running", "job-5": "running"}
LATER_RELEASE = {"tests.upgrade.later_release.IMPORTED": 1.0}


@pytest.fixture(params=sorted(RECORDED.glob("home-*")), ids=lambda path: path.name)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    """A home whose daemon, of an earlier release, was killed 50 s ago."""
    restored = restore(request.param, tmp_path / "home")
    yield restored
    restored.end()


def _states(home: Home) -> dict[str, str]:
    jobs = json.loads(home.run("queue", "--all-users", "-o", "json"))
    return {job["id"]: job["state"] for job in jobs}


def test_units_of_agents_that_cannot_be_reached_end_the_start_unless_they_are_given_up(home: Home) -> None:
    config, policy = home.path / "config.yaml", home.path / "policies" / "default.yaml"
    text = config.read_text().replace("runner: fake", "runner: dask")
    config.write_text(text.replace("127.0.0.1:8786", f"127.0.0.1:{free_port()}"))
    said = home.run("daemon", exit_code=2)
    assert "run under agents of an earlier HCloud" in said, said
    assert f"{config}:" in said and "hcloud daemon --abandon" in said
    policy.write_text(re.sub(r"terminate_after_s: .*", "terminate_after_s: 2", policy.read_text()))
    home.daemon("--abandon")
    wait_until(lambda: _ended_as_unreachable(home) == HOLDING, PATIENCE_S)
    waiting = {"queued", "awaiting_instance"}
    wait_until(lambda: {_states(home)[name] for name in RUNNING} <= waiting, PATIENCE_S)


def _ended_as_unreachable(home: Home) -> set[str]:
    events = json.loads(home.run("events", "--kind", "instance_state", "-n", "1000", "-o", "json"))
    return {event["instance_id"] for event in events if event["fields"].get("code") == "unreachable"}


def test_ended_jobs_are_known_and_live_ones_go_on_without_running_twice(home: Home) -> None:
    home.daemon()
    wait_until(lambda: _states(home)["job-6"] == "failed", PATIENCE_S)
    wait_until(lambda: _states(home)["job-7"] == "succeeded", PATIENCE_S)
    assert _states(home) == ENDED | RUNNING | {"job-6": "failed", "job-7": "succeeded"}
    rows = json.loads(home.run("queue", "--all-users", "-o", "json"))
    assert {row["unmet_text"] for row in rows} == {""}  # rows of before know nothing of missed targets
    _check_accounts_of_its_log(home)
    _check_run_times_of_its_log(home)
    events = json.loads(home.run("events", "--kind", "unit_started", "-n", "1000", "-o", "json"))
    started = [event["job_id"] for event in events]
    # Only the retry, for which the previous daemon waited, is a second start.
    assert sorted(started) == ["job-1", "job-2", "job-3", "job-4", "job-5", "job-6", "job-6", "job-7"]
    status = home.status()
    assert status["daemon"]["daemon"]["unaccepted_changes"] == []  # the limits that were in force are taken as accepted
    notes = status["daemon"]["daemon"]["notes"]
    programs, ports, learnt, renamed, removed, rest, drained, moved, gain, ranks, kept = notes
    assert ": engine.runner was replaced by engine.programs in 0.2.0 (dask is now real, fake is " in programs
    assert ": engine.worker_ports was removed in 0.2.0 and is ignored (nothing listens on a machine any more)" in ports
    assert ": profiling.enabled was replaced by profiling.when in 0.2.0 " in renamed
    assert ": retention.release_below_quality was removed in 0.2.0 and is ignored (slow instances stay" in removed
    assert ": disruption.evict_rest_s was removed in 0.2.0 and is ignored (jobs that lose least " in rest
    assert ": retention.drain_below was replaced by retention.drain in 0.2.0 (0 is now false; " in drained
    assert ": disruption.consolidate was removed in 0.2.0 and is ignored (jobs are no longer moved to empty " in moved
    assert ": disruption.consolidate_gain was removed in 0.2.0 " in gain
    assert ": disruption.consolidate_rest_s was renamed to disruption.optional_ranks_rest_s in 0.2.0" in ranks
    assert "default.yaml states the rules that were the default before 0.2.0 (placement.order: least_loaded, " in kept
    assert "to keep these rules, set name: simple" in kept
    assert "leaves out keys whose defaults changed in 0.2.0: retention.learn is true (was false); " in learnt
    assert {instance["state"] for instance in status["instances"]} == {"ready"}
    home.run("run", "-q", "--", "true")
    assert _states(home)["job-8"] == "succeeded"
    # No key of secrets was configured: it is made with the first secret.
    assert not (home.path / "secrets.key").exists()
    home.run("run", "-q", "--secret", "HOME", "--", "true")
    assert (home.path / "secrets.key").exists() and _states(home)["job-9"] == "succeeded"
    # Arrays, which it does not know, have columns of their own in its table of jobs.
    home.run("submit", "-y", "-q", "--array", "0-2", "--", "true")
    wait_until(lambda: _states(home)["job-10"] == "succeeded", PATIENCE_S)
    # So does what jobs wait for, in a table of its own.
    home.run("submit", "-y", "-q", "--after", "job-10", "--", "true")
    home.run("submit", "-y", "-q", "--after", "14=finished", "--", "true")
    wait_until(lambda: _states(home)["job-15"] == "succeeded", PATIENCE_S)
    # Schedules have a table of their own, too.
    assert home.run("submit", "-y", "-q", "--cron", "@yearly", "--", "true").startswith("sched-1 true, next at ")
    # The chain of its event log begins with this release.
    log = verify_audit_log(f"sqlite:///{home.path}/hcloud.db")
    assert log is not None and log.fault == "" and log.unlinked > 0 and log.records == log.head.link > 5


def _check_run_times_of_its_log(home: Home) -> None:
    with closing(Store.open(f"sqlite:///{home.path}/hcloud.db")) as store:
        state = store.run_times()
        ran = [event for event in store.iter_events(kinds=[EventKind.JOB_FINISHED]) if event.fields["run_s"]]
    # Stored when the log of before was read, in which two jobs ran to an end; later runs follow within the hour.
    assert state is not None and 2 <= RunTimeTracker.load(state).runs <= len(ran)


def _check_accounts_of_its_log(home: Home) -> None:
    latest_at = max(event["at"] for event in json.loads(home.run("events", "-n", "1000", "-o", "json")))
    until = ("--until", utc_text(latest_at), "-o", "json")
    cost = json.loads(home.run("report", "cost", *until))["total"]["cost_usd"]
    table = json.loads(home.run("report", "utilisation", "--by", "account", *until))
    assert table["total"]["cost_usd"] == pytest.approx(cost) and cost > 0.0
    spent = {row["account"]: row["cost_usd"] for row in table["rows"]}
    assert spent["used"] > 0.0 and spent["lost_work"] >= 0.0


def test_its_configuration_and_every_policy_it_wrote_pass_the_checks(home: Home) -> None:
    assert home.run("config", "check").count("note: ") == 10  # of its configuration and its policy
    policies = sorted((home.path / "policies").glob("*.yaml"))
    assert len(policies) == 10
    checked = home.run("policy", "check", *map(str, policies))
    assert checked.count(": ok\n") == 10
    assert checked.count("profiling.enabled was replaced by profiling.when") == 2
    assert checked.count("retention.release_below_quality was removed in 0.2.0") == 3
    assert checked.count("disruption.evict_rest_s was removed in 0.2.0") == 2
    assert checked.count("disruption.consolidate was removed in 0.2.0") == 2
    assert checked.count("disruption.consolidate_rest_s was renamed to disruption.optional_ranks_rest_s") == 2
    assert checked.count("states the rules that were the default") == 1
    assert checked.count("retention.drain_below was replaced by retention.drain") == 4
    assert checked.count("note: ") == 18


CLOUDS = """
  - name: amazon
    type: ec2
    settings:
      region: eu-central-1
      package: https://files.example.com/hcloud.whl
      package_index: https://mirror.example.com/simple
  - name: amazons
    type: ec2
    settings: {regions: {eu-west-1: {package: https://files.example.com/hcloud.whl}}}
  - name: google
    type: gce
    settings:
      project: my-project
      zones: [us-central1-a]
      worker: {package: https://files.example.com/hcloud.whl, package_index: https://mirror.example.com/simple}
  - name: other
    type: elsewhere
    settings: {package: of the plug-in}
"""


def test_what_machines_installed_with_pip_is_ignored_and_named(home: Home) -> None:
    """Settings of other plug-ins are theirs, whatever their keys are called."""
    config = home.path / "config.yaml"
    config.write_text(config.read_text().replace("\nproviders:\n", f"\nproviders:{CLOUDS}"))
    notes: list[str] = []
    settings = {each.name: each.settings for each in load_config(config, notes).providers}
    assert settings["other"] == {"package": "of the plug-in"}
    assert "package" not in str({name: settings[name] for name in ("amazon", "amazons", "google")})
    said = [note for note in notes if "(instances fetch their agent from the gateway)" in note]
    assert sorted(note.split(" was removed in 0.2.0 and is ignored ")[0].split(": ")[1] for note in said) == [
        "providers[0].settings.package",
        "providers[0].settings.package_index",
        "providers[1].settings.regions.eu-west-1.package",
        "providers[2].settings.worker.package",
        "providers[2].settings.worker.package_index",
    ]


def test_a_copied_default_policy_keeps_its_rules_until_its_keys_are_deleted(home: Home) -> None:
    policy = home.path / "policies" / "default.yaml"
    assert "strategy best_value, placement order least_loaded, queues one, profiling never" in home.run(
        "policy", "check", str(policy)
    )
    gone = re.compile(r"^  (queues|strategy|soft_limit|hard_limit|order: least_loaded)\b.*\n", re.MULTILINE)
    policy.write_text(gone.sub("", policy.read_text()))
    checked = home.run("policy", "check", str(policy))
    assert "strategy hm, placement order quasar, queues planned, profiling beside" in checked
    assert "was the default" not in checked and "were the default" not in checked


def test_defaults_that_changed_under_a_policy_are_named_by_one_daemon(home: Home) -> None:
    config, names = (
        home.path / "config.yaml",
        "leaves out keys whose defaults changed in 0.2.0: placement.order is quasar",
    )
    config.write_text(config.read_text().replace("policies/default.yaml", "policies/cheapest.yaml"))
    for said in (1, 0):
        daemon = home.daemon()
        wait_until(home.answers, PATIENCE_S)
        assert sum(names in note for note in home.status()["daemon"]["daemon"]["notes"]) == said
        daemon.terminate()
        daemon.wait(PATIENCE_S)


@pytest.fixture
def later(home: Home) -> Home:
    """The home with keys that a later release has renamed or removed; commands and daemons are of that release."""
    config, policy = home.path / "config.yaml", home.path / "policies" / "default.yaml"
    text = config.read_text().replace("cycle_interval_s:", "tick_s:")
    config.write_text(text.replace("engine:\n", "engine:\n  log_level: info\n"))
    policy.write_text(policy.read_text().replace("  max_instances:", "  machines:"))
    home.constants = {**home.constants, **LATER_RELEASE}
    return home


def test_renamed_and_removed_keys_are_accepted_and_named_once(later: Home) -> None:
    later.daemon()
    assert later.answers(), later.log
    config, policy = (str(later.path / name) for name in ("config.yaml", "policies/default.yaml"))
    _, _, renamed, removed, *of_policy = later.status()["daemon"]["daemon"]["notes"]
    (capped,) = [note for note in of_policy if "caps.machines" in note]
    assert renamed.startswith(f"{config}:") and ": tick_s was renamed to cycle_interval_s in 0.2.0; " in renamed
    assert ": engine.log_level was removed in 0.2.0 and is ignored (use log_level); " in removed
    assert capped.startswith(f"{policy}:") and ": caps.machines was renamed to caps.max_instances in 0.2.0" in capped
    assert later.status()["daemon"]["daemon"]["cycle"]["error"] == ""
    for text in (later.run("status"), later.log, later.run("config", "check")):
        assert (text.count("was renamed to"), text.count("was removed in")) == (3, 6)
    assert later.run("policy", "check").count("  note: ") == 9


def test_an_old_name_next_to_the_new_one_and_an_unknown_key_end_the_start(later: Home) -> None:
    config = later.path / "config.yaml"
    config.write_text(config.read_text() + "cycle_interval_s: 2\n")
    assert ": tick_s: is the old name of cycle_interval_s, which is also set; keep cycle_interval_s only" in later.run(
        "daemon", exit_code=2
    )
    config.write_text(config.read_text().replace("cycle_interval_s: 2\n", "cycle_intervall_s: 2\n"))
    assert "cycle_intervall_s: unknown key; did you mean 'cycle_interval_s'?" in later.run("daemon", exit_code=2)
