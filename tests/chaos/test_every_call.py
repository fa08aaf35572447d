"""Every call that a provider makes fails, hangs or lies, and the daemon is killed around it: nothing leaks or is lost.

`make test` plays a sample of the lives; `make chaos` plays all (``CHAOS_LIVES=all``, or the second of four parts:
``CHAOS_LIVES=2/4``).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

import providers.ec2.launch
from hcloud.controller import Controller
from hcloud.core.errors import ProviderError
from hcloud.core.model import Instance
from hcloud.observe import facts
from hcloud.observe.facts import Change
from hcloud.observe.instances import InstanceObserver
from hcloud.provider import Listing, Provider
from hcloud.spec.policy import LeasePolicy, Policy
from hcloud.store import LeaderLease as Leader
from tests.assembled import observes_as
from tests.chaos.every_call import Case, Site, When, cases
from tests.chaos.gateway import Death, Kind
from tests.chaos.scene import CrashPoints, Scene
from tests.chaos.sites import on_ec2, on_gce

BOTH = (When.FIRST, When.MIDDLE)
ONCE = (When.FIRST,)
EC2_CALLS: Mapping[str, Sequence[str]] = {
    "DescribeSubnets": ONCE,
    "DescribeInstances": BOTH,
    "DescribeImages": ONCE,
    "DescribeInstanceTypes": ONCE,
    "DescribeInstanceTypeOfferings": ONCE,
    "DescribeSpotPriceHistory": ONCE,
    "DescribeReservedInstances": ONCE,
    "DescribeCapacityReservations": ONCE,
    "GetParameter": ONCE,
    "GetServiceQuota": BOTH,
    "ReceiveMessage": BOTH,
    "RunInstances": BOTH,
    "TerminateInstances": BOTH,
}
GCE_CALLS: Mapping[str, Sequence[str]] = {
    "regions.get": BOTH,
    "machineTypes.list": BOTH,
    "instances.aggregatedList": BOTH,
    "instances.get": BOTH,
    "zoneOperations.get": BOTH,
    "zoneOperations.list": BOTH,
    "instances.insert": BOTH,
    "instances.delete": BOTH,
}
EC2_WRITES = ("RunInstances", "TerminateInstances")
GCE_WRITES = ("instances.insert", "instances.delete")
EC2_SAMPLE = (Case(call="RunInstances", when=When.FIRST, kind=Kind.LIES, death=Death.ANSWERED),)
GCE_SAMPLE = (
    Case(call="instances.aggregatedList", when=When.MIDDLE, kind=Kind.PARTIAL),
    Case(call="instances.insert", when=When.FIRST, kind=Kind.DENIES),
    Case(call="instances.delete", when=When.FIRST, kind=Kind.LIES, death=Death.ANSWERED),
    Case(call="instances.delete", when=When.FIRST, kind=Kind.FAILS, side="after its intent"),
)
PLAYED = os.environ.get("CHAOS_LIVES", "sample")


@pytest.fixture(scope="module")
def ec2() -> Iterator[Site]:
    with on_ec2() as site:
        yield site


@pytest.fixture(scope="module")
def gce() -> Iterator[Site]:
    with on_gce() as site:
        yield site


def chosen(every: Sequence[Case], sample: Sequence[Case]) -> Sequence[Case]:
    assert set(sample) <= set(every)
    if PLAYED == "sample":
        return sample
    part, parts = (1, 1) if PLAYED == "all" else map(int, PLAYED.split("/"))
    return every[part - 1 :: parts]


def test_these_are_the_calls_that_ec2_is_really_asked(ec2: Site) -> None:
    made = ec2.record()
    assert set(made) == set(EC2_CALLS)
    assert [call for call, whens in EC2_CALLS.items() if whens is BOTH and made[call] < 2] == []
    assert set(ec2.writes) == set(EC2_WRITES)


def test_these_are_the_calls_that_compute_engine_is_really_asked(gce: Site) -> None:
    made = gce.record()
    assert set(made) == set(GCE_CALLS)
    assert [call for call, whens in GCE_CALLS.items() if whens is BOTH and made[call] < 2] == []
    assert set(gce.writes) == set(GCE_WRITES)


@pytest.mark.parametrize("case", chosen(cases(EC2_CALLS, EC2_WRITES), EC2_SAMPLE), ids=str)
def test_whatever_befalls_a_call_to_ec2_nothing_leaks_or_is_lost(ec2: Site, case: Case) -> None:
    assert ec2.broken(case) == []


@pytest.mark.parametrize("case", chosen(cases(GCE_CALLS, GCE_WRITES), GCE_SAMPLE), ids=str)
def test_whatever_befalls_a_call_to_compute_engine_nothing_leaks_or_is_lost(gce: Site, case: Case) -> None:
    assert gce.broken(case) == []


# ------------------------------------------------------------------------------------------ each check is able to fail
def broken_with(site: Site, case: Case, bug: Callable[[Controller], None]) -> list[str]:
    """Return what is broken where every daemon is opened with a bug."""

    def build(home: Path, crash: CrashPoints) -> Scene:
        scene = site.build(home, crash)
        bug(scene.controller)
        return scene

    return site.broken(case, build)


class LeavesOrphans(InstanceObserver):
    """Does not care for machines that nobody knows."""

    def _end_orphans(self, name: str, listing: Listing, lease: Leader | None) -> None:
        """Do nothing."""


class TrustsListingsAlone(InstanceObserver):
    """Takes a machine for gone that no listing names, though its worker answers."""

    def _unlisted(self, instance: Instance) -> Iterator[Change]:
        at = min(self.clock.now(), instance.expires_at)
        yield facts.instance_gone(instance, self.store.live(), self.unit_index, at, "absent", Policy())


class BelievesWhatIsPartial(TrustsListingsAlone):
    """Takes absence from any listing, however partial, for the end of a machine."""

    def _surely_absent(self, instance: Instance, listing: Listing, now: float) -> bool:
        return instance.provider_id is not None


class TakesSilenceForAbsence(TrustsListingsAlone):
    """Reads a listing that failed as one that is empty."""

    def _list(self, name: str, lease: Leader | None) -> Listing | None:
        honest, self.providers = self.providers, {name: NobodyThere(self.providers[name])}  # type: ignore[dict-item]
        try:
            return super()._list(name, lease)
        finally:
            self.providers = honest


class NobodyThere:
    """A provider whose failed listings are empty ones."""

    def __init__(self, inner: Provider) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def instances(self, owner: str) -> Listing:
        try:
            return self._inner.instances(owner)
        except ProviderError:
            return Listing(instances=())


def forgetful_of_tokens(controller: Controller) -> None:
    """Launch under another token each time, and look for nothing launched before.

    Nobody knows the second machine, so the life goes on until that ends itself: soon, by a short lease.
    """
    controller.policy = replace(controller.policy, lease=LeasePolicy(horizon_s=120.0, renew_before_s=20.0))
    cloud = cast(Any, controller.offers.providers["ec2"])._inner
    cloud._sent.contains = lambda token: False
    providers.ec2.launch.client_token = lambda token: str(uuid.uuid4())


def test_a_machine_that_nobody_ends_is_found_out(gce: Site) -> None:
    denied = Case(call="instances.insert", when=When.FIRST, kind=Kind.DENIES)
    assert any("outlived two reconciles" in each for each in broken_with(gce, denied, observes_as(LeavesOrphans)))


def test_a_daemon_that_takes_a_failed_listing_for_an_empty_one_is_found_out(gce: Site) -> None:
    failed = Case(call="instances.aggregatedList", when=When.MIDDLE, kind=Kind.FAILS)
    found = broken_with(gce, failed, observes_as(TakesSilenceForAbsence))
    assert any("was called gone while" in each for each in found)


def test_a_daemon_that_believes_a_partial_listing_is_found_out(gce: Site) -> None:
    partly = Case(call="instances.aggregatedList", when=When.MIDDLE, kind=Kind.PARTIAL)
    found = broken_with(gce, partly, observes_as(BelievesWhatIsPartial))
    assert any("was called gone while" in each for each in found)


def test_a_second_machine_for_one_intent_is_found_out(ec2: Site) -> None:
    lies = Case(call="RunInstances", when=When.FIRST, kind=Kind.LIES)
    found = broken_with(ec2, lies, forgetful_of_tokens)
    assert any("launched twice" in each for each in found), found


def test_money_beyond_the_cap_is_found_out(gce: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.chaos.every_call.CAP_USD", 0.0)
    monkeypatch.setattr("tests.chaos.every_call.BILLING_MINIMUM_USD", 0.0)
    calm = Case(call="regions.get", when=When.FIRST, kind=Kind.FAILS)
    assert any("USD were billed" in each for each in gce.broken(calm))
