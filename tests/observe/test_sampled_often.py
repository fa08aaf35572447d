"""A service whose metrics are read often is judged as often; all others as the policy says."""

from dataclasses import replace

import pytest

from hcloud.core.model import MetricsHook
from hcloud.observe.sampling import sampled_every_s
from hcloud.spec.policy import Policy, TimingPolicy
from tests.planner.scenes import spec


@pytest.mark.parametrize(("every_s", "least_s"), [(5.0, 10.0), (60.0, 10.0), (2.0, 1.5), (0.4, 0.3)])
def test_a_service_is_sampled_as_often_as_it_asks(every_s: float, least_s: float) -> None:
    asks = spec(metrics=MetricsHook(probe=("x",), every_s=every_s))
    assert sampled_every_s(asks, Policy()) == pytest.approx(least_s)


def test_no_job_is_sampled_less_often_than_the_policy_says() -> None:
    often = replace(Policy(), timing=TimingPolicy(sample_every_s=1.0))
    assert sampled_every_s(spec(), Policy()) == 10.0
    assert sampled_every_s(spec(metrics=MetricsHook(probe=("x",), every_s=4.0)), often) == 1.0
