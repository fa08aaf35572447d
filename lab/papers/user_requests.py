"""What users request, which is seldom what their programs need.

At Twitter 70 % of the workloads reserved up to ten times what they used, 20 % down to a fifth of what they needed, and
the rest was about right (Dissertation §4.1, fig. 4.1d). Between these ends every factor is equally likely on a
logarithmic axis (an assumption of ours), and the user of a program always requests the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hcloud.classifier.applications import identify
from hcloud.simulator.program_models import seeded_random
from hcloud.simulator.workload import Arrival, Workload

OVERSIZED, UNDERSIZED = 0.7, 0.2
"""The shares of users who request too much and too little."""
MOST_OVER, MOST_UNDER = 10.0, 5.0
"""The largest factors above and below what is needed."""
SMALLEST_VCPUS = 1.0
STEP_VCPUS = 0.1


def with_user_requests(workload: Workload, seed: int, *, largest_vcpus: float, sized: bool) -> Workload:
    """Return the same jobs with what their users request, at most ``largest_vcpus`` (the largest machine).

    ``sized``: the planner may choose how many vCPUs a job really gets.
    """
    programs = sorted({identify(each.spec).program for each in workload.arrivals})
    seeded_random(seed, "users").shuffle(programs)
    factors = dict(zip(programs, _factors(len(programs)), strict=True))
    return replace(
        workload,
        arrivals=tuple(
            _with_request(each, factors[identify(each.spec).program], largest_vcpus, sized)
            for each in workload.arrivals
        ),
    )


def _factors(count: int) -> Sequence[float]:
    """Return the factor of each of ``count`` users: quantiles, so that few users have the same distribution as many."""
    return [_factor((at + 0.5) / count) for at in range(count)]


def _factor(quantile: float) -> float:
    if quantile < UNDERSIZED:
        return float(MOST_UNDER ** -(1.0 - quantile / UNDERSIZED))
    if quantile >= 1.0 - OVERSIZED:
        return float(MOST_OVER ** ((quantile - 1.0 + OVERSIZED) / OVERSIZED))
    return 1.0


def _round_vcpus(vcpus: float) -> float:
    """Return vCPUs as people write them: whole numbers, and tenths below one."""
    return float(round(vcpus)) if vcpus >= 1 else round(vcpus / STEP_VCPUS) * STEP_VCPUS


def _with_request(arrival: Arrival, factor: float, largest_vcpus: float, sized: bool) -> Arrival:
    needs = arrival.spec.resources.vcpus
    vcpus = min(largest_vcpus, max(STEP_VCPUS, _round_vcpus(needs * factor)))
    within = (min(SMALLEST_VCPUS, vcpus), largest_vcpus) if sized else None
    spec = replace(arrival.spec, resources=replace(arrival.spec.resources, vcpus=vcpus), vcpus_within=within)
    return replace(arrival, spec=spec, needs_vcpus=needs)
