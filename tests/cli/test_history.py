"""A daemon's jobs and offers as a workload and a cloud: pool sizes include machines in use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from pydantic import TypeAdapter

from hcloud.cli.history import Past, offered_clouds
from hcloud.client.connection import Connection
from hcloud.core.errors import NoJobs
from hcloud.core.model import BestEffortTarget, InstanceType, JobSpec, Market, Offer, Resources
from hcloud.simulator.workload import PastJob
from tests.api.deployment import Deployment
from tests.cli.conftest import Shell

READ_AT = 1000.0
SMALL = InstanceType(
    provider="host", name="small", capacity=Resources(vcpus=1.0, memory_mib=1024, disk_gib=10.0), boot_delay_s=2.0
)


class FakeClient:
    """Answers requests for offers and machines, the newest machine first, as the API does."""

    def __init__(self, offers: list[Offer], machines: list[dict[str, Any]]) -> None:
        self.offers, self.machines = offers, machines

    def get(self, path: str, *, ended: bool = False, limit: int = 1000) -> Any:
        if path == "/v1/offers":
            return TypeAdapter(list[Offer]).dump_python(self.offers, mode="json")
        if path == "/v1/status":
            return {"now": READ_AT + 60.0}
        return [each for each in self.machines if ended or each["state"] != "terminated"][:limit]


def offer(*, vcpus_free: float | None = None, available: int | None = None) -> Offer:
    """An offer of a small machine: of a host with free vCPUs, or of a cloud with a number available."""
    left = None if vcpus_free is None else Resources(vcpus=vcpus_free, memory_mib=65_536, disk_gib=1e9)
    return Offer(
        provider="host", region="here", zone="here-1a", instance_type=SMALL, market=Market.ON_DEMAND,
        price_usd_per_h=0.02, priced_at=READ_AT, available=available, pool="host" if left else "", pool_free=left,
    )  # fmt: skip


def machine(number: int, launched_at: float | None, gone_at: float | None = None) -> dict[str, Any]:
    """A small machine as the API returns it."""
    return {
        "id": f"inst-{number}",
        "state": "terminated" if gone_at else "ready",
        "offer": TypeAdapter(Offer).dump_python(offer(vcpus_free=0.0), mode="json"),
        "launched_at": launched_at,
        "terminated_at": gone_at,
    }


def quota_of(offers: list[Offer], machines: list[dict[str, Any]]) -> float:
    """The vCPU quota of the cloud made of these offers and machines."""
    clouds, age_s = offered_clouds(cast(Connection, FakeClient(offers, machines)))
    (cloud,) = clouds.values()
    assert age_s == READ_AT + 60.0 - offers[0].priced_at
    ((quota),) = cast(list[dict[str, float]], cloud["quotas"])
    return quota["vcpus"]


@pytest.mark.parametrize(
    ("free", "machines"),
    [
        (4.0, []),
        (2.0, [machine(1, 900.0), machine(2, 950.0)]),
        (2.0, [machine(1, 900.0, 1010.0), machine(2, 950.0, 1020.0)]),  # ended since
        (4.0, [machine(1, 1010.0), machine(2, 1020.0)]),  # launched since
        (4.0, [machine(1, 800.0, 990.0), machine(2, None)]),  # ended before, never launched
        (2.0, [machine(1, 900.0, 1010.0), machine(2, 950.0), machine(3, 1020.0), machine(4, 1020.0, 1030.0)]),
    ],
)
def test_pool_size_ignores_machines_that_ended_or_started_since_it_was_read(
    free: float, machines: list[dict[str, Any]]
) -> None:
    assert quota_of([offer(vcpus_free=free)], machines) == 4.0


def test_without_a_pool_the_machines_up_now_count() -> None:
    machines = [machine(1, 1010.0), machine(2, 900.0, 1010.0)]
    assert quota_of([replace(offer(available=3), priced_at=5.0)], machines) == 4.0


def past(jobs: dict[str, PastJob], *, earlier: bool = False) -> Past:
    """Jobs submitted from 2026-05-01 18:00 to 19:00 UTC."""
    return Past(from_at=1777658400.0, until_at=1777662000.0, jobs=jobs, earlier=earlier)


@pytest.mark.parametrize(
    ("earlier", "count", "says"),
    [
        (True, 0, "no job was submitted since 2026-05-01 18:00 UTC; go further back with --since"),
        (
            False,
            0,
            "no job was submitted since 2026-05-01 18:00 UTC or before; there is nothing to replay yet",
        ),
        (
            True,
            1,
            "the only job submitted since 2026-05-01 18:00 UTC has not succeeded, so its run time is unknown; "
            "go further back with --since",
        ),
        (
            False,
            2,
            "none of the 2 jobs submitted since 2026-05-01 18:00 UTC has succeeded, so their run time is unknown",
        ),
    ],
)
def test_past_without_replayable_jobs_is_refused_with_its_period_and_a_hint(
    earlier: bool, count: int, says: str
) -> None:
    spec = JobSpec(name="a", user="u", command=("true",), target=BestEffortTarget())
    jobs = {f"job-{at}": PastJob(submitted_at=1777658500.0, spec=spec, run_s=None) for at in range(count)}
    with pytest.raises(NoJobs) as raised:
        past(jobs, earlier=earlier).workload()
    assert str(raised.value) == says


def test_commands_refuse_a_period_without_jobs(shell: Shell, deployment: Deployment) -> None:
    _, err = shell.run("plan", "policy", "cheapest", exit_code=2)
    assert err.startswith("hcloud: no job was submitted since ") and "there is nothing to replay yet" in err
    shell.run("run", "-q", "--", "sleep", "60")
    for words in (("plan", "policy", "cheapest"), ("simulate", "history", "--cloud", "offers")):
        _, err = shell.run(*words, "--since", "5ms", exit_code=2)
        assert err.startswith("hcloud: no job was submitted since 20")
        assert err.endswith(" UTC; go further back with --since\n")
