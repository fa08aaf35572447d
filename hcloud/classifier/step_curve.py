"""Performance of one program by vCPUs: conversion of rates between amounts.

Performance by type has one meaning: this job at stated vCPUs on that type (``Application.reference_vcpus``). A whole
machine's rate is another number. The program's own step curve converts one into the other.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping

LIBRARY_VCPUS = 1.0
"""vCPUs to which performance by type refers in rows of the library. An application's overall scale is unknown to the
classifier, so jobs measured at other amounts compare with them."""
_COLUMN = " vCPU"


def vcpus_of(column: str) -> float | None:
    """Return the vCPUs named by a scale-up column (``2 vCPU``); None for any other text."""
    try:
        found = float(column.removesuffix(_COLUMN)) if column.endswith(_COLUMN) else 0.0
    except ValueError:
        return None
    return found if 0.0 < found < math.inf else None


def rates_by_vcpus(steps: Mapping[str, float]) -> dict[float, float]:
    """Return the usable rates of scale-up columns by vCPUs, ascending."""
    named = ((vcpus_of(column), rate) for column, rate in steps.items())
    return dict(sorted((vcpus, rate) for vcpus, rate in named if vcpus is not None and 0.0 < rate < math.inf))


def rate_at(rates: Mapping[float, float], vcpus: float) -> float:
    """Return the rate at ``vcpus`` of a curve by vCPUs, ascending, which must not be empty.

    Between measured amounts both axes are logarithmic. Below the smallest the rate shrinks in proportion; above the
    largest it does not grow.
    """
    amounts = list(rates)
    above = bisect_left(amounts, vcpus)
    if above == len(amounts):
        return rates[amounts[-1]]
    if above == 0:
        return rates[amounts[0]] * vcpus / amounts[0]
    less, more = amounts[above - 1], amounts[above]
    part = math.log(vcpus / less) / math.log(more / less)
    return float(rates[less] * (rates[more] / rates[less]) ** part)


def conversion(steps: Mapping[str, float], measured_vcpus: float, wanted_vcpus: float) -> float | None:
    """Return the factor from the rate at ``measured_vcpus`` to that at ``wanted_vcpus``; None without a curve."""
    if measured_vcpus == wanted_vcpus:
        return 1.0
    rates = rates_by_vcpus(steps)
    return rate_at(rates, wanted_vcpus) / rate_at(rates, measured_vcpus) if rates else None
