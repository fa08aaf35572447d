"""What holds in every history of the mock cloud and the fake engine; each rule is shown to catch a seeded fault."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from hcloud.core.clock import ManualClock
from hcloud.fake_runner.runner import FakeRunner
from providers.mock import MockProvider
from providers.mock.cloud import Cloud
from tests.providers.broken import (
    BillsOn,
    EndsTwice,
    FencesNothing,
    ForgetsFences,
    ForgetsFencesOfForgotten,
    ForgetsTokens,
    ForgivesBills,
    HidesMissingZones,
    IgnoresExpiry,
    IgnoresQuotas,
    KeepsDeadWorkers,
    LiesAboutLaunches,
    RefusesWrongly,
    RevivesByRenewal,
    RewritesExits,
    RunsBackwards,
    ShowsAllOwners,
    TakesOwnerless,
    UnderstatesLag,
)
from tests.providers.clouds import OWNER
from tests.providers.histories import (
    SETTINGS,
    cloud_histories,
    engine_histories,
    live_through_cloud,
    live_through_engine,
)

SEARCHES = 160
SEARCH = settings(max_examples=12, phases=(Phase.generate,), suppress_health_check=list(HealthCheck))


def is_found(histories: st.SearchStrategy[list[Any]], caught: Callable[[list[Any]], bool]) -> bool:
    """Return whether some history is caught: many short searches find more than a long one, which stays near its first.

    Each begins with a number of its own, so that all runs of a test are the same.
    """
    for number in range(SEARCHES):
        try:
            find(histories, caught, settings=SEARCH, random=Random(number))
            return True
        except NoSuchExample:
            continue
    return False


@given(cloud_histories())
@settings(max_examples=200)
def test_every_history_of_the_cloud_keeps_every_rule(steps: list[Any]) -> None:
    assert live_through_cloud(cloud_as(MockProvider), steps) == []


@given(engine_histories())
@settings(max_examples=200)
def test_every_history_of_the_engine_keeps_every_rule(steps: list[Any]) -> None:
    assert live_through_engine(lambda cloud, clock: FakeRunner([cloud], clock), steps) == []


def cloud_as(kind: type[MockProvider]) -> Callable[[ManualClock], MockProvider]:
    return lambda clock: kind("mock", SETTINGS, clock, OWNER, "")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (ForgetsTokens, "two machines for"),
        (TakesOwnerless, "no owner"),
        (IgnoresExpiry, "lives past its expiry"),
        (LiesAboutLaunches, "although its launch certainly failed"),
        (ShowsAllOwners, "of another owner"),
        (HidesMissingZones, "complete listing lacks"),
        (UnderstatesLag, "complete listing lacks"),
        (IgnoresQuotas, "vCPUs live"),
        (BillsOn, "billed on after its end"),
        (ForgivesBills, "was billed"),
        (EndsTwice, "changed its end"),
        (RevivesByRenewal, "went back from terminated"),
    ],
)
def test_rule_of_the_cloud_catches_its_seeded_fault(kind: type[MockProvider], words: str) -> None:
    def caught(steps: list[Any]) -> bool:
        return any(words in sentence for sentence in live_through_cloud(cloud_as(kind), steps))

    assert is_found(cloud_histories(), caught)


def test_rule_against_revival_catches_a_cloud_whose_time_runs_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def follow_the_clock(self: Cloud, now: float) -> None:
        self.now = now

    monkeypatch.setattr(Cloud, "_advance", follow_the_clock)

    def caught(steps: list[Any]) -> bool:
        return live_through_cloud(cloud_as(MockProvider), steps) != []

    assert is_found(cloud_histories(), caught)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (ForgetsFences, "times"),
        (ForgetsFencesOfForgotten, "times"),
        (FencesNothing, "after its fence"),
        (RefusesWrongly, "was refused and started"),
        (RewritesExits, "ended as"),
        (KeepsDeadWorkers, "dead or silent"),
        (RunsBackwards, ""),
    ],
)
def test_rule_of_the_engine_catches_its_seeded_fault(kind: type[FakeRunner], words: str) -> None:
    def caught(steps: list[Any]) -> bool:
        broken = live_through_engine(lambda cloud, clock: kind([cloud], clock), steps)
        return any(words in sentence for sentence in broken)

    assert is_found(engine_histories(), caught)
