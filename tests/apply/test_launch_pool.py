"""Launches of one plan at the same time: bounded, recorded in order, and no less safe than one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hcloud.apply.launch_pool import SEND_TIME_S, send_launches
from hcloud.core.clock import ManualClock
from hcloud.core.errors import InsufficientCapacity, OutcomeUnknown, ProviderError
from hcloud.core.model import EventKind
from hcloud.provider import CloudInstance, LaunchRequest
from providers.mock import MockProvider
from tests.apply.deployment import Deployment
from tests.chaos.lives import crash_and_recover, fresh_home, live
from tests.chaos.scene import CrashPoints, Scene, build
from tests.providers.clouds import cloud_on, request_for

TYPES = {"m.one": {"vcpus": 2, "memory_mib": 4096, "usd_per_h": 0.3}}


class Slow:
    """A cloud whose launches answer only when ``width`` of them are under way, or last first."""

    def __init__(self, cloud: MockProvider, width: int) -> None:
        self._cloud, self.launches_at_once = cloud, width
        self._together = threading.Barrier(width, timeout=20)
        self._lock = threading.Lock()
        self.under_way = self.most_under_way = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cloud, name)

    def launch(self, request: LaunchRequest) -> CloudInstance:
        with self._lock:
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
        self._together.wait()
        try:
            return self._cloud.launch(request)
        finally:
            with self._lock:
                self.under_way -= 1


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def _requests(cloud: MockProvider, clock: ManualClock, count: int) -> list[LaunchRequest]:
    return [request_for(cloud, number, clock.now()) for number in range(1, count + 1)]


def test_as_many_launches_as_allowed_are_under_way_and_answers_keep_the_order(clock: ManualClock) -> None:
    cloud = cloud_on(clock)
    slow, requests = Slow(cloud, 3), _requests(cloud, clock, 6)
    answers = list(send_launches({"mock": slow}, requests, clock))  # type: ignore[dict-item]
    assert [a.instance_id for a in answers if isinstance(a, CloudInstance)] == [r.instance_id for r in requests]
    assert slow.most_under_way == 3


def test_a_provider_that_does_not_say_takes_one_launch_after_the_other(clock: ManualClock) -> None:
    cloud = cloud_on(clock)
    answers = send_launches({"mock": cloud}, _requests(cloud, clock, 3), clock)
    for sent, _ in enumerate(answers, start=1):
        assert len(cloud.machines(clock.now())) == sent


def test_errors_stand_in_their_place(clock: ManualClock) -> None:
    cloud = cloud_on(clock)

    class Picky(Slow):
        def launch(self, request: LaunchRequest) -> CloudInstance:
            if request.instance_id == "inst-2":
                raise InsufficientCapacity("none left")
            return self._cloud.launch(request)

    answers = list(send_launches({"mock": Picky(cloud, 3)}, _requests(cloud, clock, 3), clock))  # type: ignore[dict-item]
    assert [isinstance(each, ProviderError) for each in answers] == [False, True, False]


@pytest.mark.parametrize("width", [1, 2])
def test_what_time_is_not_left_for_is_not_sent(clock: ManualClock, width: int) -> None:
    cloud = cloud_on(clock)

    class TakesLong(Slow):
        def launch(self, request: LaunchRequest) -> CloudInstance:
            clock.advance(SEND_TIME_S)
            return self._cloud.launch(request)

    answers = list(send_launches({"mock": TakesLong(cloud, width)}, _requests(cloud, clock, 6), clock))  # type: ignore[dict-item]
    sent = [each for each in answers if each is not None]
    assert 1 <= len(sent) <= width
    assert answers[-1] is None
    assert len(cloud.machines(clock.now())) == len(sent)


def test_whoever_stops_listening_stops_what_is_not_sent(clock: ManualClock) -> None:
    cloud, may_answer = cloud_on(clock), threading.Semaphore(1)

    class Held(Slow):
        def launch(self, request: LaunchRequest) -> CloudInstance:
            may_answer.acquire()
            return self._cloud.launch(request)

    answers: Any = send_launches({"mock": Held(cloud, 2)}, _requests(cloud, clock, 200), clock)  # type: ignore[dict-item]
    next(answers)
    closing = threading.Thread(target=answers.close)
    closing.start()
    while closing.is_alive():
        may_answer.release()
        closing.join(0.01)
    assert len(cloud.machines(clock.now())) < 200


def _site(home: Path, provider_of: Callable[[MockProvider], object]) -> Deployment:
    policy = {"budgets": {}, "caps": {"max_instances": 10}}
    rebuild = partial(
        build, home, CrashPoints(), cloud_settings={"types": TYPES}, policy=policy, provider_of=provider_of
    )
    return Deployment(rebuild(), rebuild)


def test_launches_of_a_plan_are_recorded_in_its_order_whichever_answers_first(tmp_path: Path) -> None:
    site = _site(tmp_path, lambda cloud: Slow(cloud, 3))
    site.submit(count=3, exclusive=True)
    site.cycle()
    told = [event.instance_id for event in site.events(EventKind.INSTANCE_LAUNCHED)]
    assert told == ["inst-1", "inst-2", "inst-3"]
    assert len(site.machines_up()) == 3


class Forgetful(Slow):
    """Every first reply is lost."""

    def __init__(self, cloud: MockProvider, width: int) -> None:
        super().__init__(cloud, width)
        self.heard: set[str] = set()

    def launch(self, request: LaunchRequest) -> CloudInstance:
        machine = self._cloud.launch(request)
        if request.token not in self.heard:
            self.heard.add(request.token)
            raise OutcomeUnknown("the reply was lost")
        return machine


def test_launches_whose_replies_are_lost_together_are_one_machine_each(tmp_path: Path) -> None:
    site = _site(tmp_path, lambda cloud: Forgetful(cloud, 3))
    site.submit(count=3, exclusive=True)
    site.until(lambda: len(site.events(EventKind.INSTANCE_LAUNCHED)) == 3)
    assert len(site.scene.cloud.machines(site.now)) == 3


class Wide:
    """The mock cloud, taking four launches at once."""

    launches_at_once = 4

    def __init__(self, cloud: MockProvider) -> None:
        self._cloud = cloud

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cloud, name)


def _wide(home: Path, crash: CrashPoints) -> Scene:
    return build(home, crash, provider_of=Wide)


def test_killed_among_launches_under_way_nothing_is_lost_doubled_or_leaked() -> None:
    with fresh_home() as home:
        whole = live(home / "whole", _wide)
        assert whole.violations == ()
        points = [n for n, label in enumerate(whole.passed, start=1) if label.startswith("provider.launch:")]
        assert len(points) >= 6
        for point in points[:6]:
            after = crash_and_recover(home / f"killed-at-{point}", _wide, point)
            assert after.violations == (), f"killed at {point}"
