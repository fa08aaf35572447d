"""The daemon as a process: started, killed, stopped, misconfigured, doubled, and left without its database."""

import json
import re
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hcloud.config import package_data
from tests.daemon.home import HCLOUD, PATIENCE_S, Home
from tests.machine import needs_sqlite3
from tests.waiting import wait_until


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A deployment that has been set up; its daemons are ended with the test."""
    made = Home(tmp_path / "home")
    made.set_up()
    yield made
    made.end()


def test_daemon_runs_a_job_and_leaves_machines_alone_when_told_to_stop(home: Home) -> None:
    home.program = HCLOUD  # as users start it
    daemon = home.daemon()
    home.run("submit", "-y", "-d", "--name", "long", "--", "sleep 500")
    wait_until(lambda: home.job_state("job-1") == "running", PATIENCE_S)
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(PATIENCE_S) == 0
    assert not home.socket.exists()
    home.daemon()
    assert home.job_state("job-1") == "running"
    assert [i["state"] for i in home.status()["instances"]] == ["ready"]


def test_standard_error_of_a_failing_job_is_shown_as_it_comes_and_again_in_its_status(home: Home) -> None:
    home.daemon()
    shown = home.run("run", "-y", "--", "echo out; echo bad >&2; exit 3", exit_code=1)
    assert "\nout\n" in f"\n{shown}" and "stderr: bad\n" in shown
    [row] = re.findall(r"last lines .*", home.run("status", "job-1"))
    assert "bad" in row and "bad" in home.run("explain", "job-1")


def test_daemon_that_was_killed_goes_on_where_it_was(home: Home) -> None:
    daemon = home.daemon()
    home.run("submit", "-y", "-d", "--", "sleep 3")
    wait_until(lambda: home.job_state("job-1") != "submitted", PATIENCE_S)
    daemon.send_signal(signal.SIGKILL)
    daemon.wait()
    home.daemon()
    wait_until(lambda: home.job_state("job-1") == "succeeded", PATIENCE_S)
    events = home.run("events", "-o", "csv")
    assert events.count("unit_started") == 1


def test_second_daemon_says_so_and_leaves_the_first_alone(home: Home) -> None:
    first = home.daemon()
    second = home.daemon()
    assert second.wait(PATIENCE_S) != 0
    assert "another daemon serves" in home.log
    assert first.poll() is None
    assert home.answers()


def test_second_daemon_on_one_state_directory_stands_by_though_it_has_a_run_dir_of_its_own(home: Home) -> None:
    home.daemon()
    wait_until(lambda: home.run("events", "--kind", "daemon").count("leader") == 1, PATIENCE_S)
    other = home.path / "other.yaml"
    other.write_text((home.path / "config.yaml").read_text().replace("run_dir: null", f"run_dir: {home.path}/else"))
    home.daemon(HCLOUD_CONFIG=str(other))
    wait_until((home.path / "else" / "hcloud.sock").exists, PATIENCE_S)
    wait_until(lambda: "standby: another daemon" in home.log, PATIENCE_S)
    assert home.run("events", "--kind", "daemon").count("leader") == 1


def test_edited_policy_takes_effect_and_a_broken_one_leaves_the_old_in_force(home: Home) -> None:
    daemon = home.daemon()
    policy = home.path / "policies" / "default.yaml"
    policy.write_text("name: strict\nbudgets: {per_hour_usd: 1}\n")
    wait_until(lambda: home.status()["daemon"]["daemon"]["policy"]["name"] == "strict", PATIENCE_S)
    policy.write_text("name: broken\nbudgets: {per_hour: 1}\n")
    daemon.send_signal(signal.SIGHUP)
    told = wait_until(lambda: home.status()["daemon"]["daemon"]["policy"]["error"], PATIENCE_S)
    assert told == f"{policy}:2: budgets.per_hour: unknown key; did you mean 'per_hour_usd'?"
    assert home.status()["daemon"]["daemon"]["policy"]["name"] == "strict"
    assert "did you mean 'per_hour_usd'?" in home.run("status")


def test_locked_database_is_told_and_waited_for(home: Home) -> None:
    home.constants["hcloud.store.store.BUSY_TIMEOUT_S"] = 1.0
    home.daemon()
    other = sqlite3.connect(home.path / "hcloud.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    wait_until(lambda: "database unavailable" in home.log, PATIENCE_S)
    other.execute("COMMIT")
    other.close()
    home.run("submit", "-y", "-d", "--", "true")
    wait_until(lambda: home.job_state("job-1") == "succeeded", PATIENCE_S)


@pytest.mark.parametrize(
    ("key", "wrong", "sentence"),
    [
        ("type: mock", "type: mokc", "there is no provider type 'mokc'; did you mean 'mock'?"),
        ("settings: {", "settings: {zoens: [a], ", "unknown setting zoens; did you mean zones?"),
        ("policy: policies/default.yaml", "policy: policies/defualt.yaml", ": policy: there is no "),
        ("state_dir: ", "state_dir: /proc/nothing #", ": state_dir: /proc/nothing cannot be created: "),
        ("programs: simulated", "programs: simulatde", "did you mean 'simulated'?"),
        (
            "database: null",
            "database: sqlite:////proc/nothing/here.db",
            ": database: the directory /proc/nothing does not exist",
        ),
    ],
)
def test_wrong_configuration_ends_the_start_with_one_sentence(home: Home, key: str, wrong: str, sentence: str) -> None:
    config = home.path / "config.yaml"
    assert key in config.read_text()
    config.write_text(config.read_text().replace(key, wrong))
    told = home.run("daemon", exit_code=2)
    assert sentence in told
    assert "Traceback" not in told


def test_file_that_is_no_database_is_named_and_not_touched(home: Home) -> None:
    database = home.path / "hcloud.db"
    database.write_text("these are my holiday notes, all of them" * 100)
    before = database.read_bytes()
    assert home.daemon().wait(PATIENCE_S) == 2
    assert str(database) in home.log
    assert database.read_bytes() == before


def test_systemd_is_told_when_the_daemon_is_ready_and_that_it_lives(home: Home, tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(str(tmp_path / "notify"))
    listener.settimeout(PATIENCE_S)
    daemon = home.daemon(NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="1000000")
    assert listener.recv(1000).startswith(b"READY=1")
    assert listener.recv(1000) == b"WATCHDOG=1"
    daemon.send_signal(signal.SIGTERM)
    wait_until(lambda: listener.recv(1000) == b"STOPPING=1", PATIENCE_S)
    listener.close()


def test_output_of_jobs_of_a_lost_database_is_not_shown_as_that_of_new_ones(home: Home) -> None:
    daemon = home.daemon()
    home.run("run", "-q", "--", "echo of the old job")
    assert home.run("logs", "1") == "of the old job\n"
    daemon.send_signal(signal.SIGTERM)
    daemon.wait()
    for lost in (*home.path.glob("hcloud.db*"), *home.path.glob("providers/mock/*")):
        lost.unlink()
    home.daemon()
    assert "to earlier/ beside them" in home.log
    home.run("run", "-q", "--", "echo of the new job")
    assert home.run("logs", "1") == "of the new job\n"
    (kept,) = (home.path / "logs" / "earlier").glob("job-1.1.0_*.stdout")
    assert kept.read_text() == "of the old job\n"


def test_jobs_after_a_restored_backup_are_not_taken_for_those_that_had_their_numbers(home: Home) -> None:
    policy = home.path / "policies" / "default.yaml"
    policy.write_text(policy.read_text().replace("  minimum_s: 0\n", "  minimum_s: 30m\n"))
    daemon = home.daemon()
    home.run("run", "-q", "--", "echo 1 before")
    daemon.send_signal(signal.SIGTERM)
    daemon.wait()
    backup = {path.name: path.read_bytes() for path in home.path.glob("hcloud.db*")}
    daemon = home.daemon()
    home.run("run", "-q", "--", "echo 2 of then")  # over, and forgotten by the worker
    home.run("submit", "-y", "-d", "--", "echo 3 of then; sleep 500")
    wait_until(lambda: home.job_state("job-3") == "running", PATIENCE_S)
    daemon.send_signal(signal.SIGTERM)
    daemon.wait()
    for name, content in backup.items():
        (home.path / name).write_bytes(content)
    home.daemon()
    for number in (2, 3):
        home.run("run", "-q", "--", f"echo {number} of now; exit {number}", exit_code=1)
        assert home.run("logs", f"job-{number}") == f"{number} of now\n"
    assert {i["id"] for i in home.status()["instances"]} == {"inst-1"}
    events = home.run("events", "-o", "csv")
    assert events.count("unit_started") == 3
    assert "job-3.1.0_" in next(line for line in events.splitlines() if "stop unit" in line)


def test_status_tells_the_number_of_the_newest_event(home: Home) -> None:
    home.daemon()
    home.run("run", "-q", "--", "true")
    newest = json.loads(home.run("events", "-o", "json"))[-1]["seq"]
    assert home.status()["daemon"]["daemon"]["event_seq"] >= newest


def _change(home: Home, before: str, after: str) -> None:
    config = home.path / "config.yaml"
    assert before in config.read_text()
    config.write_text(config.read_text().replace(before, after))


def _running_service(home: Home) -> None:
    home.run("submit", "--yes", "-q", "--", "sleep 1000")
    wait_until(lambda: home.job_state("job-1") == "running", PATIENCE_S)


def test_another_owner_is_refused_while_machines_of_the_one_before_live(home: Home) -> None:
    daemon = home.daemon()
    _running_service(home)
    daemon.send_signal(signal.SIGTERM)
    daemon.wait()
    owner = next(line for line in (home.path / "config.yaml").read_text().splitlines() if line.startswith("owner: "))
    _change(home, owner, "owner: somebody-else")
    assert home.daemon().wait(PATIENCE_S) == 2
    assert f"inst-1 of this database carry the tag {owner.removeprefix('owner: ')!r}" in home.log
    _change(home, "owner: somebody-else", owner)
    daemon = home.daemon()
    home.run("cancel", "1")
    wait_until(lambda: not home.status()["instances"], PATIENCE_S)
    daemon.send_signal(signal.SIGTERM)
    daemon.wait()
    _change(home, owner, "owner: somebody-else")
    assert home.daemon().poll() is None


def test_provider_taken_out_of_the_configuration_is_told_of_while_machines_of_it_live(home: Home) -> None:
    daemon = home.daemon()
    _running_service(home)
    daemon.send_signal(signal.SIGTERM)
    daemon.wait()
    _change(home, "- name: mock", "- name: renamed")
    home.daemon()
    assert "provider mock: not configured, but 1 of its machines may be running" in home.run("status")
    assert "restore the provider until they are terminated" in home.run("doctor", exit_code=1)


def _as_the_guide_says(home: Home, what: str) -> None:
    """Run the guide's commands in which that stands in a home: without systemd, and as who we are."""
    guide = (package_data.root() / "docs" / "operations.md").read_text()
    [commands] = [block for block in re.findall(r"```sh\n(.*?)```", guide, re.DOTALL) if what in block]
    ours = re.sub(r"sudo (-u hcloud )?|-o hcloud -g hcloud ", "", commands)
    ours = re.sub(r"^systemctl .*$", "", ours, flags=re.MULTILINE).replace("/var/lib/hcloud", str(home.path))
    subprocess.run(["bash", "-ec", ours.replace("/var/backups", str(home.path / "kept"))], check=True)


@needs_sqlite3
def test_a_backup_is_made_and_restored_as_the_guide_says_also_over_a_killed_daemon(home: Home) -> None:
    daemon = home.daemon()
    home.run("run", "-q", "--", "echo before")
    _as_the_guide_says(home, ".backup ")
    assert (home.path / "kept" / "hcloud").stat().st_mode & 0o077 == 0
    home.run("run", "-q", "--", "echo since")
    daemon.kill()
    daemon.wait()
    _as_the_guide_says(home, "sudo -u hcloud cp ")
    home.daemon()
    assert [job["id"] for job in home.status()["jobs"]] == ["job-1"]
    assert home.run("logs", "1") == "before\n"
