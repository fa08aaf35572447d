"""Messages to systemd, received by a real socket in its place."""

import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from hcloud import sd_notify


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    name = f"hcloud-{uuid.uuid4().hex}"
    address, announced = (str(tmp_path / "notify"),) * 2 if request.param == "path" else (f"\0{name}", f"@{name}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(address)
        receiver.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", announced)
        yield receiver


def test_each_call_is_one_message_in_systemds_words(systemd: socket.socket) -> None:
    assert sd_notify.ready("serving /run/hcloud/api.sock")
    assert sd_notify.status("3 instances")
    assert sd_notify.watchdog()
    assert sd_notify.stopping()
    messages = [systemd.recv(4096).decode() for _ in range(4)]
    assert messages == [
        "READY=1\nSTATUS=serving /run/hcloud/api.sock",
        "STATUS=3 instances",
        "WATCHDOG=1",
        "STOPPING=1",
    ]


def test_line_break_in_a_status_cannot_become_another_assignment(systemd: socket.socket) -> None:
    sd_notify.status("error:\nMAINPID=1")
    assert systemd.recv(4096) == b"STATUS=error: MAINPID=1"


def test_full_queue_does_not_block_the_caller(systemd: socket.socket) -> None:
    while sd_notify.watchdog():
        pass
    assert systemd.recv(4096) == b"WATCHDOG=1"


@pytest.mark.parametrize("address", [None, "", "relative/path", "/nowhere/at/all"])
def test_nobody_listening_is_no_error(monkeypatch: pytest.MonkeyPatch, address: str | None) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if address is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert not sd_notify.ready()


@pytest.mark.parametrize(
    ("environment", "expected_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": "own"}, 0.5),
    ],
)
def test_watchdog_interval_is_ours_alone(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected_s: float | None
) -> None:
    for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value.replace("own", str(os.getpid())))
    assert sd_notify.watchdog_interval_s() == expected_s
