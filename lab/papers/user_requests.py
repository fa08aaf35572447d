"""What users ask for: seldom what their programs need.

At Twitter 70 % of the workloads reserved up to ten times what they used, 20 % reserved down to a fifth of what they
needed, and the rest was about right (Dissertation §4.1, fig. 4.1d). Between these ends every factor is equally likely
on a logarithmic axis, which is ours, and each program's user asks for the same again and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hcloud.classifier.applications import identify
from hcloud.simulator.program_models import seeded_random
from hcloud.simulator.workload import Arrival, Workload

OVERSIZED, UNDERSIZED = 0.7, 0.2
"""The shares of users who ask for too much and for too little."""
MOST_OVER, MOST_UNDER = 10.0, 5.0
SMALLEST_VCPUS = 1.0
STEP_VCPUS = 0.1


def with_user_requests(workload: Workload, seed: int, *, largest_vcpus: float, sized: bool) -> Workload:
    """Return the same jobs with what their users ask for, at most ``largest_vcpus`` (the largest machine).

    ``sized``: users leave it to the planner how many vCPUs their jobs really get.
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
    """Return by what each of ``count`` users is off: the quantiles of the distribution, so that few users are as far
    off as many."""
    return [_factor((at + 0.5) / count) for at in range(count)]


def _factor(quantile: float) -> float:
    if quantile < UNDERSIZED:
        return float(MOST_UNDER ** -(1.0 - quantile / UNDERSIZED))
    if quantile >= 1.0 - OVERSIZED:
        return float(MOST_OVER ** ((quantile - 1.0 + OVERSIZED) / OVERSIZED))
    return 1.0


def _round_vcpus(vcpus: float) -> float:
    """Return so many vCPUs as people write them: whole ones, tenths of a single one."""
    return float(round(vcpus)) if vcpus >= 1 else round(vcpus / STEP_VCPUS) * STEP_VCPUS


def _with_request(arrival: Arrival, factor: float, largest_vcpus: float, sized: bool) -> Arrival:
    needs = arrival.spec.resources.vcpus
    vcpus = min(largest_vcpus, max(STEP_VCPUS, _round_vcpus(needs * factor)))
    within = (min(SMALLEST_VCPUS, vcpus), largest_vcpus) if sized else None
    spec = replace(arrival.spec, resources=replace(arrival.spec.resources, vcpus=vcpus), vcpus_within=within)
    return replace(arrival, spec=spec, needs_vcpus=needs)
