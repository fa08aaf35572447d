"""Performance on an instance type that no known application was measured on, from those that were.

At equal vCPUs, types differ by their processor and memory. The doubt follows from how far apart two types are: sizes of
one family, families of one provider, or different providers. Size is no part of it: performance by type is that of a
stated number of vCPUs, and the step curve gives the rest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from hcloud.classifier.estimator import Z80
from hcloud.core.estimates import Estimate

SAME_FAMILY_SD, SAME_PROVIDER_SD, OTHER_PROVIDER_SD = 0.1, 0.15, 0.35
"""Standard deviation of the logarithm of the ratio of performance on two types. ``make bench-accuracy`` compares the
first two with types of two clouds; the third is wider by the generations of processors in service."""
_LEAST = 1e-4


def family_of(column: str) -> tuple[str, str]:
    """Return provider and family of a type's column: ``m5`` of ``aws/m5.large``, ``n2`` of ``gce/n2-standard-4``."""
    provider, _, name = column.partition("/")
    return provider, re.split(r"[.-]", name, maxsplit=1)[0]


def apart(one: str, other: str) -> float:
    """Return the standard deviation of the logarithm of the ratio of performance on two types."""
    (provider, family), (other_provider, other_family) = family_of(one), family_of(other)
    if provider != other_provider:
        return OTHER_PROVIDER_SD
    return SAME_FAMILY_SD if family == other_family else SAME_PROVIDER_SD


def on_unmeasured_type(by_type: Mapping[str, Estimate], column: str) -> Estimate | None:
    """Return the estimate for a type that is not in ``by_type``, from its nearest ones; None if there is none.

    None too for a column that is not ``provider/type``, of which nothing is known. Errors of types at one distance are
    taken to be alike, so several do not narrow the limits.
    """
    if "/" not in column:
        return None
    levels: dict[float, list[tuple[float, float]]] = {}
    for known, (value, low, high, _) in by_type.items():
        if value > 0 and "/" in known:
            least, most = max(min(low, value), value * _LEAST), min(max(high, value), value / _LEAST)
            own_sd = max(math.log(most / least) / (2.0 * Z80), _LEAST)
            levels.setdefault(apart(known, column), []).append((math.log(value), own_sd))
    doubts = {level: math.hypot(level, min(sd for _, sd in found)) for level, found in levels.items()}
    if not doubts:
        return None
    nearest = min(doubts, key=lambda level: (doubts[level], level))
    weights = [1.0 / sd**2 for _, sd in levels[nearest]]
    mean = math.fsum(w * log for w, (log, _) in zip(weights, levels[nearest], strict=True)) / math.fsum(weights)
    reach = Z80 * doubts[nearest]
    return Estimate(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))
