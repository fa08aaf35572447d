"""What users request, which is seldom what their programs need.

At Twitter 70 % of the workloads reserved up to ten times what they used, 20 % down to a fifth of what they needed, and
the rest was about right (Dissertation §4.1, fig. 4.1d). Between these ends every factor is equally likely on a
logarithmic axis (an assumption of ours), and the user of a program always requests the same.
"""

from __future__ import annotations

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
    # Quantiles instead of random draws, so that few programs have the same distribution as many.
    factors = {program: _factor((at + 0.5) / len(programs)) for at, program in enumerate(programs)}
    return replace(
        workload,
        arrivals=tuple(
            _with_request(each, factors[identify(each.spec).program], largest_vcpus, sized)
            for each in workload.arrivals
        ),
    )


def _factor(quantile: float) -> float:
    if quantile < UNDERSIZED:
        return float(MOST_UNDER ** -(1.0 - quantile / UNDERSIZED))
    if quantile >= 1.0 - OVERSIZED:
        return float(MOST_OVER ** ((quantile - 1.0 + OVERSIZED) / OVERSIZED))
    return 1.0


def _with_request(arrival: Arrival, factor: float, largest_vcpus: float, sized: bool) -> Arrival:
    needs = arrival.spec.resources.vcpus
    # People write whole numbers, and tenths below one.
    vcpus = needs * factor
    vcpus = float(round(vcpus)) if vcpus >= 1 else round(vcpus / STEP_VCPUS) * STEP_VCPUS
    vcpus = min(largest_vcpus, max(STEP_VCPUS, vcpus))
    within = (min(SMALLEST_VCPUS, vcpus), largest_vcpus) if sized else None
    spec = replace(arrival.spec, resources=replace(arrival.spec.resources, vcpus=vcpus), vcpus_within=within)
    return replace(arrival, spec=spec, needs_vcpus=needs)
