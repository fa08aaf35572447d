"""The EC2 provider on the fake, as tests use it: its settings, its environment, and the faults of the contract."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from botocore.client import ClientCreator
from botocore.exceptions import EndpointConnectionError

from hcloud.core.clock import ManualClock
from hcloud.core.model import Offer
from hcloud.provider import LaunchRequest, WorkerBootstrap
from providers.ec2 import factory
from providers.ec2.provider import Ec2Provider
from tests.contract.benches import VirtualTime
from tests.contract.provider_contract import ProviderAbility, ProviderBench
from tests.providers.ec2.fake_ec2 import INSTANCE_PROFILE, REGION, TYPES, USD_PER_H, FakeEc2

START_AT = 1_900_000_000.0
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "secret-of-the-tests",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}
PRICES = {name: {"on_demand": usd} for name, usd in USD_PER_H.items()}
_FAULTS = {
    ProviderAbility.LOSE_REPLY: ("RunInstances", "lose_reply"),
    ProviderAbility.LOSE_REQUEST: ("RunInstances", "lose_request"),
    ProviderAbility.ANSWER_LATE: ("RunInstances", "late"),
    ProviderAbility.LOSE_TERMINATE_REPLY: ("TerminateInstances", "lose_reply"),
    ProviderAbility.THROTTLE: ("RunInstances", "throttle"),
    ProviderAbility.RUN_OUT: ("RunInstances", "stockout"),
    ProviderAbility.EXCEED_QUOTA: ("RunInstances", "quota"),
    ProviderAbility.LIST_PARTLY: ("DescribeInstances", "partial"),
}


def _share_client_classes() -> None:
    """Let clients of a service have one class: botocore makes one of hundreds of methods for each, in 10 ms for EC2."""
    make, made = ClientCreator._create_client_class, dict[str, type]()

    def shared(self: ClientCreator, service_name: str, service_model: Any) -> type:
        if service_name not in made:
            made[service_name] = make(self, service_name, service_model)
        return made[service_name]

    ClientCreator._create_client_class = shared


_share_client_classes()


@contextmanager
def served_fake() -> Iterator[FakeEc2]:
    """A fake for a whole module of tests, and the environment in which the AWS library finds nobody's keys."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.delenv("AWS_PROFILE", raising=False)
        fake = FakeEc2()
        try:
            yield fake
        finally:
            fake.close()


def settings_for(fake: FakeEc2, **more: object) -> dict[str, object]:
    """Settings of a provider on the fake."""
    return {
        "region": REGION,
        "prices": PRICES,
        "instance_types": list(TYPES),
        "instance_profile": INSTANCE_PROFILE,
        "gateway_addresses": ["10.0.0.1:8786"],
        "endpoint_url": fake.url,
        "read_attempts": 2,
        **more,
    }


SECRET = "the-secret-of-one-launch"


class Ec2Bench(VirtualTime, ProviderBench):
    """The provider over real HTTP on the fake, whose time is a clock that tests move."""

    misspelt_setting = ("subnet", "subnets")
    looks = 100  # each is two calls over HTTP
    provider: Ec2Provider

    def __init__(self, fake: FakeEc2, home: Path, **more: object) -> None:
        self.manual = ManualClock(START_AT)
        VirtualTime.__init__(self, self.manual)
        ProviderBench.__init__(self)
        fake.reset(self.manual)
        self.fake, self.home = fake, home
        self.queue_url = fake.make_queue()
        self.bootstrap = WorkerBootstrap(
            gateway_addresses=("127.0.0.1:8786",), authority_pem="CERTIFICATE", enrolment_secret=SECRET
        )
        self.settings = settings_for(fake, spot_prices_every_s=0, interruption_queue=self.queue_url, **more)
        self.provider = self._made(self.owner)

    def build(self, settings: Mapping[str, object]) -> Ec2Provider:
        return self._made(self.owner, settings)

    def break_next(self, fault: ProviderAbility) -> None:
        if fault is ProviderAbility.BE_AWAY:
            refuse_next_connection(self.provider, self.fake.url)
        elif fault is ProviderAbility.LIST_LATE:
            self.fake.list_lag_s = 45.0
        else:
            self.fake.arm(*_FAULTS[fault])

    def strike(self, provider_id: str, how: ProviderAbility) -> None:
        if how is ProviderAbility.DIE:
            self.fake.kill(provider_id)
        else:
            self.fake.preempt(provider_id, self.queue_url)

    def restarted(self) -> Ec2Provider:
        return self._made(self.owner)

    def for_owner(self, owner: str) -> Ec2Provider:
        return self._made(owner)

    def reserve(self, counts: Sequence[int]) -> None:
        self.fake.capacity = [
            {
                "capacityReservationId": f"cr-{number}",
                "availabilityZone": f"{REGION}b",
                "instanceType": "m5.large",
                "instancePlatform": "Linux/UNIX",
                "tenancy": "default",
                "availableInstanceCount": count,
            }
            for number, count in enumerate(counts)
        ]

    def reservation_uses(self) -> list[int]:
        uses = self.fake.reservation_uses()
        return [uses[each["capacityReservationId"]] for each in self.fake.capacity]

    def _made(self, owner: str, more: Mapping[str, object] | None = None) -> Ec2Provider:
        made = factory("ec2", {**self.settings, **(more or {})}, self.clock, owner, str(self.home / owner))
        assert isinstance(made, Ec2Provider)
        return made

    def order(self, offer: Offer | None = None, **changes: Any) -> LaunchRequest:
        """A request, for an offer of choice."""
        return self.request(**({"offer": offer} if offer is not None else {}), **changes)


def refuse_next_connection(provider: Ec2Provider, url: str) -> None:
    """Let all tries of the next call find nobody listening, as the library itself would say it."""
    calls: set[str] = set()
    events = [client.meta.events for client in (provider.clients.reading(), provider.clients.writing())]

    def refuse(request: Any, **_: object) -> None:
        calls.add(request.headers["amz-sdk-invocation-id"])
        if len(calls) == 1:
            raise EndpointConnectionError(endpoint_url=url)
        for each in events:
            each.unregister("before-send.ec2", refuse)

    for each in events:
        each.register("before-send.ec2", refuse)
