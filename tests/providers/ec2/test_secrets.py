"""A whole life on EC2, with errors, leaves no secret behind: not in the database, logs, events or state directory."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.scene import CrashPoints, play, violations
from tests.providers.ec2.ec2_bench import ENVIRONMENT, settings_for
from tests.providers.ec2.ec2_scene import build_on_ec2
from tests.providers.ec2.fake_ec2 import FakeEc2

SESSION = "session-token-of-the-tests"
WHERE_KEYS_BELONG = "tls"


def secrets(home: Path) -> list[bytes]:
    """Everything that must not be found: the account's keys, and the middle of each private key of the engine."""
    found = [ENVIRONMENT["AWS_SECRET_ACCESS_KEY"].encode(), SESSION.encode()]
    keys = [each.read_bytes() for each in (home / WHERE_KEYS_BELONG).rglob("*") if each.is_file()]
    private = [text for text in keys if b"PRIVATE KEY" in text]
    assert private
    return found + [text.splitlines()[1] for text in private]


def files(home: Path) -> Iterator[Path]:
    """What a deployment has written, but for the directory of its keys."""
    for each in home.rglob("*"):
        if each.is_file() and WHERE_KEYS_BELONG not in each.relative_to(home).parts:
            yield each


def leaks(home: Path, log: str) -> list[str]:
    """Return where a secret was found."""
    wanted = secrets(home)
    found = [str(each.relative_to(home)) for each in files(home) if any(word in each.read_bytes() for word in wanted)]
    return found + ["the log"] * any(word in log.encode() for word in wanted)


def test_no_secret_is_left_behind_by_a_whole_life(
    fake: FakeEc2, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", SESSION)
    caplog.set_level(logging.INFO)
    scene = build_on_ec2(tmp_path, CrashPoints(), settings=settings_for(fake, list_lag_s=10, read_attempts=1))
    fake.reset(scene.clock)
    for action, kind in (("DescribeSubnets", "expired"), ("RunInstances", "internal")):
        fake.arm(action, kind)
    play(scene)
    assert violations(scene) == []
    scene.close()
    assert fake.unused_faults() == []
    assert len(list(files(tmp_path))) > 3
    assert leaks(tmp_path, caplog.text) == []


def test_a_secret_that_is_left_is_found(fake: FakeEc2, tmp_path: Path) -> None:
    scene = build_on_ec2(tmp_path, CrashPoints(), settings=settings_for(fake))
    scene.store.set_meta("careless", SESSION)
    scene.close()
    (tmp_path / "careless.log").write_text(ENVIRONMENT["AWS_SECRET_ACCESS_KEY"])
    found = leaks(tmp_path, SESSION)
    assert {"careless.log", "the log"} < set(found)
    assert any(each.startswith("hcloud.db") for each in found)
