"""The one helper that waits, and the watch for processes that tests leave behind."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from hcloud.core.clock import holds_within
from tests.conftest import SESSION_VARIABLE, processes_of_session
from tests.waiting import wait_until


def test_wait_until_returns_the_first_true_value() -> None:
    answers = iter([0, "", "there"])
    assert wait_until(lambda: next(answers), timeout_s=5, interval_s=0) == "there"


def test_wait_until_names_the_condition_and_its_last_value() -> None:
    def never_ready() -> int:
        return 0

    with pytest.raises(TimeoutError, match=r"never_ready was still 0 after 0"):
        wait_until(never_ready, timeout_s=0)


def test_who_gets_no_cpu_until_the_time_is_over_looks_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    now, looks = [0.0], []

    def there_at_the_second_look() -> bool:
        looks.append(now[0])
        now[0] += 100.0
        return len(looks) == 2

    monkeypatch.setattr("hcloud.core.clock.time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _: None))
    assert holds_within(there_at_the_second_look, 5.0, 0.02)
    assert not holds_within(there_at_the_second_look, 5.0, 0.02)
    assert len(looks) == 4


def test_a_process_left_behind_is_seen() -> None:
    token = "seeded-fault"
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={**os.environ, SESSION_VARIABLE: token}
    )
    try:
        assert child.pid in wait_until(lambda: processes_of_session(token), timeout_s=10)
    finally:
        child.communicate(b"\n")
    assert processes_of_session(token) == {}
