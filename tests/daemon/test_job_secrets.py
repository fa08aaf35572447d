"""Secrets of jobs in a whole deployment: where they are, where they never are, and what a lost key does."""

import json
import os
import re
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.home import PATIENCE_S, Home
from tests.waiting import wait_until

SECRET = "s3cr3t-5c9f1b7e-value"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A deployment that has been set up; its daemons are ended with the test."""
    made = Home(tmp_path / "home")
    made.set_up()
    yield made
    made.end()


def files_with(home: Home, text: str) -> list[str]:
    """Names of all files of a deployment in which the bytes of ``text`` are: database, its log and journal too."""
    files = [path for path in home.path.rglob("*") if path.is_file()]
    assert {"hcloud.db", "hcloud.db-wal", "daemon.log"} <= {path.name for path in files}
    return [path.name for path in files if text.encode() in path.read_bytes()]


def submit(home: Home, directory: Path, name: str, env: str, command: str = "exit 0") -> str:
    file = directory / f"{name}.yaml"
    file.write_text(f"name: {name}\ncommand: {command}\nenv: {env}\nretries: {{start_refused: 0}}\n")
    return home.run("submit", "-y", str(file))


def ended(home: Home, job_id: str) -> str:
    states = ("succeeded", "failed")
    return wait_until(lambda: state if (state := home.job_state(job_id)) in states else "", PATIENCE_S)


def test_secret_reaches_its_unit_and_nothing_else(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", SECRET)
    daemon = home.daemon()
    shown = submit(
        home,
        tmp_path,
        "quiet",
        f"{{TOKEN: {{secret_from: 'env:MY_TOKEN'}}, KEY: {{secret: {SECRET}}}, PLAIN: visible}}",
    )
    shown += home.run("submit", "-y", "--secret", "TOKEN=env:MY_TOKEN", "--", "true")
    shown += home.run("submit", "--dry-run", "--secret", "MY_TOKEN", "--", "true")
    submit(home, tmp_path, "echoes", "{CODE: {secret: 17}}", "exit $CODE")
    assert [ended(home, f"job-{number}") for number in (1, 2, 3)] == ["succeeded", "succeeded", "failed"]
    assert "exit code 17" in home.run("explain", "job-3")
    for command in ("status", "status job-1", "explain job-1", "queue -o json", "status job-1 -o json",
                    "events -n 1000 -o json", "report cost -o json", "report performance"):  # fmt: skip
        shown += home.run(*command.split())
    assert SECRET not in shown and SECRET not in home.log
    assert "visible" in home.run("status", "job-1", "-o", "json")  # the search can find something
    assert json.loads(home.run("status", "job-1", "-o", "json"))[0]["spec"]["secrets"] == ["KEY", "TOKEN"]
    assert files_with(home, SECRET) == []
    daemon.send_signal(signal.SIGTERM)
    daemon.wait(PATIENCE_S)
    assert [path.name for path in home.path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()] == []
    assert stat.S_IMODE((home.path / "secrets.key").stat().st_mode) == 0o400


def test_with_a_lost_key_jobs_with_secrets_wait_for_it_and_nothing_is_rented(home: Home, tmp_path: Path) -> None:
    daemon = home.daemon()
    home.run("pause", "a test")
    submit(home, tmp_path, "hidden", f"{{TOKEN: {{secret: {SECRET}}}}}")
    daemon.send_signal(signal.SIGKILL)
    daemon.wait()
    key = home.path / "secrets.key"
    os.rename(key, tmp_path / "kept")
    home.daemon()
    warning = r"1 secrets of jobs cannot be decrypted: their key [0-9a-f]{12} is not in"
    wait_until(lambda: re.search(warning, home.log), PATIENCE_S)
    home.run("resume")
    sentence = "secret TOKEN cannot be decrypted: its key"
    wait_until(lambda: sentence in home.run("status", "job-1"), PATIENCE_S)
    assert sentence in home.run("explain", "job-1") and home.status()["instances"] == []
    submit(home, tmp_path, "plain", "{A: b}")
    assert ended(home, "job-2") == "succeeded"
    submit(home, tmp_path, "anew", f"{{TOKEN: {{secret: {SECRET}}}}}")  # under a new key
    assert ended(home, "job-3") == "succeeded"
    assert "missing" in home.run("secrets", "keys", exit_code=1)
    assert "instance_requested" not in home.run("explain", "job-1", "-o", "json")
    key.chmod(0o644)
    home.constants["hcloud.client.connection.BUSY_PATIENCE_S"] = 0.5
    refusal = home.run("submit", "-y", str(tmp_path / "anew.yaml"), exit_code=3)
    assert f"the key of secrets {key} is open to other users (mode 0644); run: chmod 400 {key}" in refusal
    key.write_text(key.read_text() + (tmp_path / "kept").read_text())
    key.chmod(0o400)
    assert ended(home, "job-1") == "succeeded"  # no restart is needed


def test_rotation_encrypts_everything_anew_while_jobs_wait(home: Home, tmp_path: Path) -> None:
    daemon = home.daemon()
    home.run("pause", "a test")
    submit(home, tmp_path, "one", f"{{TOKEN: {{secret: {SECRET}}}}}")
    key = home.path / "secrets.key"
    first = key.read_text().split()
    assert "1 secrets are encrypted with the new key" in home.run("secrets", "rotate")
    second = key.read_text().split()
    assert second[1:] == first and "dropped key" in home.run("secrets", "rotate")
    third = key.read_text().split()
    assert len(third) == 2 and third[1] == second[0]
    rows = json.loads(home.run("secrets", "keys", "-o", "json"))
    assert [(each["use"], each["secrets"]) for each in rows] == [("encrypts", 1), ("decrypts", 0)]
    # Of a systemd credential: a new key is put first, and the daemon restarted.
    daemon.send_signal(signal.SIGTERM)
    daemon.wait(PATIENCE_S)
    key.chmod(0o600)
    key.write_text("ab" * 32 + "\n" + "\n".join(third))
    home.daemon()
    wait_until(lambda: "encrypted 1 secrets of jobs anew" in home.log, PATIENCE_S)
    key.write_text("ab" * 32 + "\n")
    home.run("resume")
    assert ended(home, "job-1") == "succeeded"
